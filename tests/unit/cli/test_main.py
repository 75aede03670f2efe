"""The command line over real control tables, without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.command_line import Hindcast
from support.stand_in_programs import take_programs_from

from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import REMOVED, ShardState
from hindcast.processes.background_services import Services
from hindcast.settings import Settings, project_root
from hindcast.shards import resharding
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.table_names import ControlTable

LISTINGS = (
    "pipelines",
    "lag",
    "leases",
    "checkpoints",
    "verdicts",
    "corrections",
    "runs",
    "events",
    "deadletters",
    "status",
)


@pytest.mark.parametrize("command", LISTINGS)
def test_every_listing_prints_json(hindcast: Hindcast, command: str) -> None:
    """In an empty home every listing prints a JSON array and exits 0."""
    ended = hindcast(command, "--output", "json")
    assert ended.returncode == 0, ended.stderr
    assert isinstance(json.loads(ended.stdout), list)


def test_events_are_listed_newest_first(hindcast: Hindcast, settings: Settings) -> None:
    """--limit keeps the newest, --pipeline and --severity choose; the detail is decoded."""
    log = EventLog(ControlTables(settings))
    for number in range(5):
        severity = Severity.ERROR if number % 2 else Severity.INFO
        log.record(
            EventKind.QUERY_FAILED,
            f"Event {number}.",
            severity=severity,
            pipeline="a" if number < 4 else "b",
            number=number,
        )
    found = json.loads(hindcast("events", "--pipeline", "a", "--limit", "2", "-o", "json").stdout)
    assert [row["message"] for row in found] == ["Event 3.", "Event 2."]
    assert found[0]["detail"] == {"number": 3}
    found = json.loads(hindcast("events", "--severity", "error", "-o", "json").stdout)
    assert [row["message"] for row in found] == ["Event 3.", "Event 1."]


def test_a_run_is_listed_in_its_newest_state(hindcast: Hindcast, settings: Settings) -> None:
    """A run that was planned and then succeeded is one row."""
    at = datetime(2026, 1, 31, tzinfo=UTC)
    row = {"run_id": "r1", "pipeline": "p", "started_at": at}
    tables = ControlTables(settings)
    tables.append(ControlTable.RUNS, [{**row, "state": "planned"}])
    tables.append(
        ControlTable.RUNS, [{**row, "state": "succeeded", "finished_at": at + timedelta(seconds=9)}]
    )
    assert [
        (found["run_id"], found["state"]) for found in json.loads(hindcast("runs", "-o", "json").stdout)
    ] == [("r1", "succeeded")]


def test_differences_of_a_run(hindcast: Hindcast, settings: Settings) -> None:
    """--run ID --differences lists the rows that differ in that run alone, by its newest verdict."""
    at = datetime.now(UTC)
    before = at - timedelta(minutes=1)
    differ = {
        "pipeline": "p",
        "kind": "changed",
        "cause": "unexplained",
        "keys": '{"ticker": "ACME"}',
        "found_at": at,
    }
    other = {**differ, "run_id": "r1", "keys": '{"ticker": "OLD"}', "found_at": before}
    tables = ControlTables(settings)
    tables.append(ControlTable.DIFFERENCES, [{**differ, "run_id": "r1"}, {**differ, "run_id": "r2"}, other])
    judged = [("r1", before), ("r1", at), ("r2", at)]
    tables.append(
        ControlTable.VERDICTS,
        [{"run_id": run_id, "pipeline": "p", "judged_at": judged_at} for run_id, judged_at in judged],
    )
    found = json.loads(hindcast("verdicts", "--run", "r1", "--differences", "-o", "json").stdout)
    assert [(row["run_id"], row["keys"]) for row in found] == [("r1", {"ticker": "ACME"})]


def test_listings_work_while_others_write(hindcast: Hindcast, settings: Settings) -> None:
    """Beside a writer that appends all the time, each listing is one consistent version."""
    tables, stop = ControlTables(settings), threading.Event()
    tables.append(ControlTable.EVENTS, [{"message": "First."}])

    def write() -> None:
        while not stop.is_set():
            tables.append(ControlTable.EVENTS, [{"message": "More."}])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        counts = [len(json.loads(hindcast("events", "-n", "100000", "-o", "json").stdout)) for _ in range(10)]
    finally:
        stop.set()
        writer.join()
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "nope", "--all"], "no pipeline named nope"),
        (["replay", "stock_stats"], "--from-offsets"),
        (["replay", "stock_stats", "--all", "--since-last-verdict"], "not one"),
        (["replay", "stock_stats", "--from-offsets", '{"0": 5}'], "only one of its two ends"),
        (["validate", "stock_stats", "--from-offsets", "x", "--to-offsets", "y"], "partition"),
        (["validate", "stock_stats", "--run", "../x"], "not a valid name"),
        (["validate", "stock_stats", "--run", "r1", "--all"], "--run"),
        (["validate", "nope", "--run", "r1"], "no pipeline named nope"),
        (["pause", "nope"], "no pipeline named nope"),
        (["leases", "--pipeline", "a/b"], "not a valid name"),
        (["verdicts", "--differences"], "--run"),
        (["events", "--severity", "loud"], "info, warning, error"),
        (["load", "a b"], "not a valid name"),
        (["load", "nope"], "no pipeline named nope"),
        (["worker", "--fleet", "a b"], "not a valid name"),
        (["demo", "--once", "--pipeline", "nope"], "no pipeline named nope"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    hindcast: Hindcast, settings: Settings, arguments: list[str], said: str
) -> None:
    """Exit code 2, one message on stderr with the cure, no traceback, nothing started."""
    ended = hindcast(*arguments)
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    assert not list((settings.home / "run").glob("*.json"))


def test_a_topic_without_generator_is_refused(
    hindcast: Hindcast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load` of a pipeline whose topic nobody generates: exit 2, and the topics that there are."""
    text = (project_root() / "include/pipelines/stock_stats.py").read_text()
    (tmp_path / "stock_stats.py").write_text(text.replace('Topic("trades"', 'Topic("quotes"'))
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(tmp_path))
    ended = hindcast("load", "stock_stats")
    assert ended.returncode == 2, ended.stderr
    assert "'quotes'" in ended.stderr
    assert "trades, words, spoken" in ended.stderr
    assert ended.stdout == ""


def test_a_second_load_of_a_topic_is_refused(hindcast: Hindcast, settings: Settings) -> None:
    """Beside a load that runs as a service `load` exits 2 and names its pid: the two would write one
    report.
    """
    services = Services(settings.home)
    service = services.start(
        "load-trades", [sys.executable, "-c", "import time; time.sleep(600)"], dict(os.environ), detail={}
    )
    try:
        ended = hindcast("load", "stock_stats")
    finally:
        services.stop(service, grace_seconds=5.0)
    assert ended.returncode == 2, ended.stderr
    assert str(service.pid) in ended.stderr


def test_pause_resume_and_drain_write_the_desired_state(hindcast: Hindcast) -> None:
    """What was wanted last is what `pipelines` shows; the row is made where there was none."""
    for command, wanted in (
        (("pause",), "paused"),
        (("resume",), "running"),
        (("drain", "--yes"), "drained"),
    ):
        ended = hindcast(*command, "stock_stats")
        assert ended.returncode == 0, ended.stderr
        (row,) = [
            row
            for row in json.loads(hindcast("pipelines", "-o", "json").stdout)
            if row["pipeline"] == "stock_stats"
        ]
        assert row["wanted"] == wanted


def test_resume_says_what_a_rewind_that_was_cut_short_waits_for(
    hindcast: Hindcast, settings: Settings
) -> None:
    """Its shards wait for the rewind's own end, so the stream would stand still in silence."""
    assert hindcast("pause", "stock_stats").stderr == ""
    store = LeaseTable(settings)
    (shard,) = resharding.create(store, "stock_stats", 1, 1, {0: 0})
    store.commit(store.read(), [shard.evolve(state=REMOVED)])
    waiting = shard.evolve(state=ShardState.WAIT, detail={**shard.detail, "reset": {}})
    store.commit(store.read(), [waiting])
    assert "`hindcast rewind stock_stats` completes it" in hindcast("resume", "stock_stats").stderr


def test_state_that_depends_on_batches_is_not_dealt_to_other_shards(
    hindcast: Hindcast, settings: Settings
) -> None:
    """A wish that its worker must refuse would stop a shard that does well: nothing is written."""
    ended = hindcast("reshard", "sentences", "--shards", "1")
    assert ended.returncode == 1
    assert "Raise the pipeline's version" in ended.stderr
    assert not Path(settings.table("control", "leases")).exists()


def test_a_refused_pipeline_is_listed_with_its_problem(
    hindcast: Hindcast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that does not load is in the listing, with what is wrong, beside the good ones, and the exit
    code tells.
    """
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(tmp_path))
    ended = hindcast("pipelines", "-o", "json")
    (row,) = json.loads(ended.stdout)
    assert row["file"].endswith("broken.py")
    assert ended.returncode == 2
    assert "1 of the pipelines' files were refused" in ended.stderr
    assert "no_such_module" in row["problem"]


def test_a_foreign_table_is_refused_with_the_cure(hindcast: Hindcast, settings: Settings) -> None:
    """A table with other columns under the name of a control table: exit 1 and what to do, no traceback."""
    import pyarrow as pa
    from deltalake import write_deltalake

    Path(settings.table("control", "events")).mkdir(parents=True)
    write_deltalake(settings.table("control", "events"), pa.table({"x": [1]}))
    ended = hindcast("events")
    assert ended.returncode == 1
    assert "HINDCAST_TABLES_URL" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_imports_nothing_heavy() -> None:
    """`hindcast --help` answers without Spark, Airflow, Arrow, delta-rs, Kafka or pandas."""
    heavy = ("pyspark", "airflow", "pyarrow", "deltalake", "kafka", "pandas")
    command = [sys.executable, "-X", "importtime", "-m", "hindcast.cli.main", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & set(heavy)


def test_a_command_ends_without_taking_the_interpreter_down() -> None:
    """The process ends by itself with the command's exit code and all it printed; delta-rs' threads get no
    chance to abort it.
    """
    script = (
        "import atexit, sys; from hindcast.cli.main import main; atexit.register(print, 'taken down')\n"
        "sys.argv = ['hindcast', 'verdicts', '--differences']; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--run" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--to is missing"),
        (("--to", "yesterday"), "it is not a time"),
        (("--to", '{"0": -1}'), "whole numbers from 0"),
        (("--to", "earliest", "--yes"), "it is not paused"),
    ],
)
def test_a_rewind_that_makes_no_sense_is_refused(
    hindcast: Hindcast, arguments: tuple[str, ...], words: str
) -> None:
    """Before the broker is asked anything: exit code 2, and what to do."""
    ended = hindcast("rewind", "stock_stats", *arguments)
    assert ended.returncode == 2
    assert words in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--to", "earliest"), "goes with --reason alone"),
        (("--dry-run",), "goes with --reason alone"),
        ((), "was cut short"),
    ],
)
def test_calling_off_what_is_no_rewind_is_refused(
    hindcast: Hindcast, arguments: tuple[str, ...], words: str
) -> None:
    """Exit code 2; one that was cut short is called off by `rewind --abandon` alone."""
    ended = hindcast("rewind", "stock_stats", "--abandon", *arguments)
    assert ended.returncode == 2
    assert words in ended.stderr


@pytest.mark.parametrize(
    "command", [("replay",), ("validate",), ("correct", "--yes")], ids=lambda command: command[0]
)
def test_a_replay_that_is_killed_is_listed_as_failed(
    hindcast: Hindcast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Its process could not say so any more: the command does, in `runs` and in `events`."""
    take_programs_from(tmp_path / "apps", monkeypatch)
    (tmp_path / "apps" / "replay.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert hindcast(*command, "stock_stats", "--all").returncode != 0
    (run,) = json.loads(hindcast("runs", "-o", "json").stdout)
    assert (run["state"], run["pipeline"], "killed by SIGKILL" in run["note"]) == (
        "failed",
        "stock_stats",
        True,
    )
    (event,) = json.loads(hindcast("events", "-o", "json").stdout)
    assert (event["kind"], event["detail"]["run_id"]) == ("run_failed", run["run_id"])


def test_a_benchmark_needs_a_range_and_a_comparison_two_runs(hindcast: Hindcast) -> None:
    """Both say what is missing."""
    assert "reference=" in hindcast("benchmark", "stock_stats").stderr
    assert "Name both" in hindcast("runs", "compare", "one").stderr
    assert (
        "hindcast benchmark stock_stats" in hindcast("runs", "compare", "--benchmark", "stock_stats").stderr
    )
