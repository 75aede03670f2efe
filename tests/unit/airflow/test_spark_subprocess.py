"""Child processes of tasks: real ones, each a few lines of Python in a checkout of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.stand_in_programs import take_programs_from

from hindcast.airflow import spark_subprocess
from hindcast.airflow.operators import ArchiveOperator, ReplayAppOperator
from hindcast.airflow.reprocessing import CompareVersionsOperator
from hindcast.airflow.spark_subprocess import SparkSubprocess
from hindcast.processes import programs
from hindcast.settings import Settings


@pytest.fixture
def child_factory(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], SparkSubprocess]:
    """A child that runs this code in the place of a program."""
    take_programs_from(tmp_path / "apps", monkeypatch)

    def make(code: str, *arguments: str) -> SparkSubprocess:
        (tmp_path / "apps" / "app.py").write_text("import json, os, subprocess, sys, time\n" + code)
        return SparkSubprocess(settings, "app", arguments)

    return make


def test_progress_is_told_and_the_last_line_is_the_result(
    child_factory: Callable[..., SparkSubprocess],
) -> None:
    """Each line of stderr as it comes; of stdout, only the last one counts."""
    told: list[str] = []
    ended = child_factory(
        'print("noise"); print("half done", file=sys.stderr); print("done", file=sys.stderr); print(json.dumps({"rows": 3}))'
    ).run(told.append)
    assert told == ["half done", "done"]
    assert ended.exit_code == 0
    assert ended.result == {"rows": 3}


def test_arguments_reach_it_as_they_are(child_factory: Callable[..., SparkSubprocess]) -> None:
    """No shell stands between: what a person typed into a form is one argument."""
    hostile = '{"0": 1}; rm -rf ~ $(id) `id` | & > x'
    assert (
        child_factory("print(json.dumps({'got': sys.argv[1:]}))", "--from-offsets", hostile).run(
            lambda _: None
        )
    ).result == {"got": ["--from-offsets", hostile]}


def test_the_exit_code_and_the_last_words_are_kept(child_factory: Callable[..., SparkSubprocess]) -> None:
    """A child that fails without a result says why on stderr."""
    ended = child_factory('print("no such offset", file=sys.stderr); print("not json"); sys.exit(75)').run(
        lambda _: None
    )
    assert (ended.exit_code, ended.result, ended.reason) == (75, None, "no such offset")


def test_it_knows_the_settings_and_nothing_of_airflow(
    child_factory: Callable[..., SparkSubprocess], monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """Airflow's database address and keys stay with Airflow."""
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "secret")
    monkeypatch.setenv("AIRFLOW_HOME", "somewhere")
    result = child_factory("print(json.dumps(dict(os.environ)))").run(lambda _: None).result
    assert result is not None
    assert [name for name in result if name.startswith("AIRFLOW")] == []
    assert result["HINDCAST_HOME"] == str(settings.home)


def test_much_output_on_both_pipes_does_not_block(child_factory: Callable[..., SparkSubprocess]) -> None:
    """Both pipes are read at once."""
    ended = child_factory(
        'for i in range(20000): print("o" * 50); print("e" * 50, file=sys.stderr)\nprint(json.dumps({"ok": 1}))'
    ).run(lambda _: None)
    assert ended.result == {"ok": 1}


def test_killing_it_ends_its_children_too(
    child_factory: Callable[..., SparkSubprocess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM is a child of the child; one that ignores SIGTERM is killed after the grace."""
    monkeypatch.setattr(spark_subprocess, "GRACE_SECONDS", 0.5)
    pid_file = tmp_path / "pid"
    code = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
open({str(pid_file)!r} + ".new", "w").write(str(child.pid)); os.rename({str(pid_file)!r} + ".new", {str(pid_file)!r})
time.sleep(600)
"""
    child = child_factory(code)
    ended: list[spark_subprocess.Ended] = []
    runner = threading.Thread(target=lambda: ended.append(child.run(lambda _: None)))
    runner.start()
    deadline = time.monotonic() + 20
    while not pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)  # between two looks at the condition
    grandchild = psutil.Process(int(pid_file.read_text()))
    assert os.getpgid(grandchild.pid) != os.getpgid(0)
    child.kill()
    runner.join(20)
    assert ended[0].exit_code == -signal.SIGKILL
    assert psutil.wait_procs([grandchild], timeout=10)[1] == []


def test_all_that_tasks_start_end_with_them() -> None:
    """An orphan would run beside the task's next try."""
    apps = {operator.app for operator in (ReplayAppOperator, ArchiveOperator, CompareVersionsOperator)}
    assert apps == {"replay", "archive", "versions"}
    for app in apps:
        text = Path(programs.__file__).parents[1].joinpath("apps", f"{app}.py").read_text()
        assert text.endswith('if __name__ == "__main__":\n    end_with_parent()\n    exit_now(main())\n')


def test_a_child_ends_with_a_task_that_was_killed(settings: Settings, tmp_path: Path) -> None:
    """SIGKILL lets the task tell nobody; its child sees that its stdin ends."""
    app = tmp_path / "app.py"
    app.write_text(
        "import os, sys, time\nfrom hindcast.processes.end_with_parent import end_with_parent\nend_with_parent()\n"
        "print(os.getpid(), file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    )
    task = (
        "import sys\nfrom hindcast.airflow import spark_subprocess\nfrom hindcast.settings import Settings\n"
        f"spark_subprocess.programs.command = lambda name: [sys.executable, {str(app)!r}]\n"
        "spark_subprocess.SparkSubprocess(Settings(), 'app', []).run(lambda line: print(line, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", task], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        process.kill()
        process.wait()
        child.wait(20)
