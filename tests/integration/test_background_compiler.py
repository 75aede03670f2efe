"""The optimising compiler of a worker's JVM gives way; the rest of the JVM does not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hindcast.spark import background_compiler
from hindcast_sandbox import broker

_WAITS = """
public class Waits {
    public static void main(String[] arguments) throws java.io.IOException {
        System.out.println("up");
        System.in.read();
    }
}
"""


@pytest.fixture
def jvm(tmp_path: Path) -> Iterator[int]:
    """The process id of a JVM that waits, with a worker's compilers."""
    source = tmp_path / "Waits.java"
    source.write_text(_WAITS)
    command = [broker.java(), background_compiler.OPTIONS, str(source)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        process.communicate(b"\n")


def priorities(pid: int) -> dict[str, set[int]]:
    """The priorities of the process's threads, by the first word of their names."""
    found: dict[str, set[int]] = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        kind = (thread / "comm").read_text().split()[0]
        found.setdefault(kind, set()).add(os.getpriority(os.PRIO_PROCESS, int(thread.name)))
    return found


def test_the_optimising_compiler_alone_gives_way(jvm: int) -> None:
    """It gets the least priority; the quick compiler, the garbage collector and the program keep theirs."""
    before = priorities(jvm)
    background_compiler.give_way_in(jvm)
    assert priorities(jvm) == {**before, "C2": {19}}


def test_nothing_is_asked_of_a_system_that_shows_no_threads() -> None:
    """There is no process of this id."""
    background_compiler.give_way_in(2**30)
