"""What the listings of the command line read, refuse and leave alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.command_line import Hindcast

from hindcast.airflow.pages.views import Views
from hindcast.clock import SystemClock
from hindcast.installation import Installation
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.proofs import Proof, Proofs
from hindcast.tables.table_names import ControlTable
from hindcast.tables.verdict_trends import TrendPoint, VerdictTrends

LISTINGS = (
    ("pipelines",),
    ("lag",),
    ("leases",),
    ("checkpoints",),
    ("verdicts",),
    ("trend",),
    ("proofs",),
    ("corrections",),
    ("runs",),
    ("events",),
    ("deadletters",),
    ("deadletters", "list"),
    ("versions",),
    ("archive", "list"),
    ("status",),
)
OF_A_PIPELINE = [
    listing for listing in LISTINGS if listing not in (("pipelines",), ("archive", "list"), ("status",))
]


@pytest.mark.parametrize("listing", LISTINGS, ids=" ".join)
def test_a_listing_in_an_empty_folder_makes_nothing(
    hindcast: Hindcast,
    settings: Settings,
    listing: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No home, no table, no folder; an empty array, exit code 0, and on stderr what to do."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(folder))
    ended = hindcast(*listing, "-o", "json")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, [])
    assert "no Hindcast home here yet: run `hindcast up` or set HINDCAST_HOME" in ended.stderr
    assert not settings.home.exists()
    assert not list(folder.iterdir())


def test_the_pages_in_an_empty_folder_make_nothing(settings: Settings) -> None:
    """Airflow's pages read what there is, and there is nothing."""
    facts = Views(Installation(settings), SystemClock())
    assert facts.overview()["pipelines"] == []
    assert facts.pipeline("stock_stats") is None
    assert facts.verdict("r1") is None
    assert facts.documented() == []
    assert not settings.home.exists()


@pytest.mark.parametrize("listing", OF_A_PIPELINE, ids=" ".join)
def test_an_unknown_pipeline_is_refused(
    hindcast: Hindcast, settings: Settings, listing: tuple[str, ...]
) -> None:
    """Exit code 2 and the closest name, never an empty listing."""
    ended = hindcast(*listing, "--pipeline", "stock_stat")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "no pipeline named stock_stat" in ended.stderr
    assert "Did you mean stock_stats?" in ended.stderr
    assert not settings.home.exists()


@pytest.mark.parametrize("listing", OF_A_PIPELINE, ids=" ".join)
def test_a_known_pipeline_without_rows_is_an_empty_listing(
    hindcast: Hindcast, listing: tuple[str, ...]
) -> None:
    """Nothing has happened to it yet: exit code 0."""
    ended = hindcast(*listing, "--pipeline", "word_count", "-o", "json")
    assert ended.returncode == 0, ended.stderr
    assert all(row["pipeline"] == "word_count" for row in json.loads(ended.stdout))


def test_a_pipeline_of_the_past_is_known_by_its_rows(hindcast: Hindcast, settings: Settings) -> None:
    """Its file is gone, its events are not: a filter that leaves none of them is an empty listing."""
    EventLog(ControlTables(settings)).record(EventKind.QUERY_FAILED, "It failed.", pipeline="gone")
    assert len(json.loads(hindcast("events", "-p", "gone", "-o", "json").stdout)) == 1
    ended = hindcast("events", "-p", "gone", "--severity", "error", "-o", "json")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("events", "--severity", "warn"), "Did you mean warning?"),
        (("events", "--kind", "query_faild"), "Did you mean query_failed"),
        (("events", "--since", "yesterday"), "1h"),
        (("verdicts", "--run", "r2"), "no run named r2"),
        (("verdicts", "--run", "r2", "--differences"), "no run named r2"),
        (("archive", "verify", "trade"), "topic trade has no archive"),
        (("rebuild", "stock_stats", "--shard", "v1.g0.s0"), "no shards yet"),
        (("pause", "stock_stat"), "Did you mean stock_stats?"),
        (("validate", "stock_stats", "--version", "7", "--all"), "version 7"),
        (("promote", "stock_stats", "--version", "7"), "version 7"),
        (("discard", "stock_stats", "--version", "7"), "version 7"),
        (("reprocess", "stock_stats", "--version", "7", "--from", "earliest"), "version 7"),
        (("runs", "compare", "r1", "r2"), "id r1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_unknown_name_is_refused(
    hindcast: Hindcast, settings: Settings, arguments: tuple[str, ...], said: str
) -> None:
    """Exit code 2, and the closest of the names that there are."""
    ended = hindcast(*arguments)
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert ended.stdout == ""
    assert not settings.home.exists()


def test_a_run_without_a_verdict_is_an_empty_listing(hindcast: Hindcast, settings: Settings) -> None:
    """The run is known, so nothing is wrong: it is not judged yet."""
    ControlTables(settings).append(ControlTable.RUNS, [{"run_id": "r1", "pipeline": "p", "state": "planned"}])
    ended = hindcast("verdicts", "--run", "r1", "-o", "json")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, [])


def test_events_are_chosen_by_kind_and_age(hindcast: Hindcast, settings: Settings) -> None:
    """--since takes an age or an instant, --kind one kind of event, --limit the newest of those."""
    now = datetime.now(UTC)
    rows = [
        {
            "event_id": str(hours),
            "at": now - timedelta(hours=hours),
            "kind": kind,
            "severity": "info",
            "pipeline": "p",
            "message": kind,
        }
        for hours, kind in ((0, "query_failed"), (2, "query_failed"), (3, "lease_lost"), (50, "lease_lost"))
    ]
    ControlTables(settings).append(ControlTable.EVENTS, rows)

    def ids(*arguments: str) -> list[str]:
        return [row["event_id"] for row in json.loads(hindcast("events", *arguments, "-o", "json").stdout)]

    assert ids("--since", "1h") == ["0"]
    assert ids("--since", "150m") == ["0", "2"]
    assert ids("--since", (now - timedelta(hours=4)).isoformat()) == ["0", "2", "3"]
    assert ids("--since", "7d", "--kind", "lease_lost") == ["3", "50"]
    assert ids("--kind", "query_failed", "--limit", "1") == ["0"]
    assert ids("--severity", Severity.ERROR.value) == []


def test_every_refused_file_is_listed_and_the_command_fails(
    hindcast: Hindcast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deploys pipelines learns of all that is wrong by one command that exits 2."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "one.py").write_text("import no_such_module\n")
    (folder / "two.py").write_text("this is no Python\n")
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(folder))
    ended = hindcast("pipelines", "-o", "json")
    assert ended.returncode == 2
    assert [Path(row["file"]).name for row in json.loads(ended.stdout)] == ["one.py", "two.py"]
    assert "one.py" in ended.stderr and "two.py" in ended.stderr


def test_the_proofs_are_listed_with_their_ends(hindcast: Hindcast, settings: Settings) -> None:
    """In the order in which they go on from each other. A range can begin at each end."""
    proofs = Proofs(ControlTables(settings))
    at = datetime(2026, 1, 5, 12, tzinfo=UTC)
    for number in (2, 1):
        proof = Proof(
            run_id=f"r{number}",
            pipeline="word_count",
            version=1,
            first={0: 0},
            start={0: 10 * number - 10},
            end={0: 10 * number},
            sink_version=number,
            based_on="r1" if number == 2 else "",
            batches={"all": 0},
            url=f"proofs/word_count/r{number}",
            made_at=at,
        )
        proofs.add(proof)
    first, second = json.loads(hindcast("proofs", "--pipeline", "word_count", "-o", "json").stdout)
    assert first == {
        "pipeline": "word_count",
        "version": 1,
        "run_id": "r1",
        "start": {"0": 0},
        "end": {"0": 10},
        "sink_version": 1,
        "based_on": "",
        "made_at": "2026-01-05T12:00:00+00:00",
    }
    assert (second["run_id"], second["based_on"], second["end"]) == ("r2", "r1", {"0": 20})
    shown = hindcast("proofs").stdout
    assert "based_on" in shown and "r2" in shown


def test_the_trend_is_listed_by_version_and_measure(hindcast: Hindcast, settings: Settings) -> None:
    """With the worst figure ever, also if its verdict is no longer among the newest."""
    trends = VerdictTrends(ControlTables(settings))
    for number in range(3):
        at = f"2026-01-05T1{number}:00:00+00:00"
        figures = {"captured": 0.25 + number / 4, "ratio_greatest.trucks": 1.5}
        trends.add(
            "bin_packing", 1, TrendPoint(run_id=f"r{number}", judged_at=at, passed=True, figures=figures)
        )
    ended = hindcast("trend", "--pipeline", "bin_packing", "-o", "json")
    captured, ratio = json.loads(ended.stdout)
    assert captured == {
        "pipeline": "bin_packing",
        "version": 1,
        "measure": "captured",
        "column": "",
        "newest": 0.75,
        "median": 0.5,
        "worst": 0.25,
        "worst_run": "r0",
        "worst_at": "2026-01-05T10:00:00+00:00",
        "verdicts": 3,
        "recent": [0.25, 0.5, 0.75],
    }
    assert (ratio["measure"], ratio["column"], ratio["worst"]) == ("ratio_greatest", "trucks", 1.5)
    shown = hindcast("trend").stdout
    assert "ratio_greatest" in shown and "worst_run" in shown
