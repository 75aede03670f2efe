"""The function raises on a record, and the worker that searches for it may die."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from support.check_all_oracles import CheckAllOracles
from support.fleet import START_SECONDS
from support.raising_shape import spoil
from support.waiting import wait_until
from support.warm_fleet import WarmStream

STEPS = ["exclude.1", "exclude.2", "exclude.3", "exclude.4"]


@pytest.mark.row("F31")
@pytest.mark.parametrize("step", ["", *STEPS])
def test_the_function_raises_on_a_record(
    raising_stream: WarmStream, prove: CheckAllOracles, seed: int, step: str, tmp_path: Path
) -> None:
    """The shard goes on without it, also if its worker dies on the way: the next owner searches again. Every
    other record is where it belongs.
    """
    stream = raising_stream
    fleet = stream.fleet
    stream.want()
    fleet.whole()
    stream.wait_shared()
    stream.send_more()
    stream.wait_read()
    before = fleet.alive()
    if step:
        fleet.arm(crash_at=f"{step}@1", token=str(tmp_path / "token"))
    records, _ = spoil(stream.more(200), random.Random(seed).randrange(100))
    stream.send(records)
    if step:
        wait_until(lambda: len(fleet.alive()) < len(before), START_SECONDS, f"a worker has reached {step}")
        fleet.disarm()
        (doomed,) = [process for process in before if process.poll() is not None]
        assert doomed.returncode == -signal.SIGKILL
        stream.wait_owned(without=doomed)
    stream.wait_event("records_excluded")
    stream.wait_read()
    prove(stream)
