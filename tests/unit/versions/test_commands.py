"""What readers, the listing, the command line and a worker see of a pipeline's versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.inactive_version import NAME, at, begin, caught_up, event_kinds, proved, put, seen
from support.simulated_platform import SINK_SCHEMA, instant

from hindcast import catalog, read
from hindcast.cli.main import run
from hindcast.errors import HindcastError, VersionRefusedError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.serving.corrected_windows import CorrectedRange, Corrections, stamped
from hindcast.settings import Settings
from hindcast.shards.version_changes import Versions
from hindcast.shards.warm_time import NOTED_SECONDS
from hindcast.stream.version_sync import VersionSync
from hindcast.testing import FakeClock
from hindcast.versions.discard import discard
from hindcast.versions.listing import list_versions
from hindcast.versions.promote import back_out, promote


def test_readers_switch_at_once_and_back(two: Settings) -> None:
    """A promotion and a back-out are one commit each and take less than 5 s. Each has its event. Repeated,
    they change nothing.
    """
    caught_up(two)
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    done = promote(Installation(two), NAME, 2, who="ada")
    assert (done["promoted"], done["before"], done["barrier"]) == (True, 1, {"0": 50})
    assert 0 <= done["seconds"] < 60
    assert seen(two) == {(end, "two"): 1 for end in range(5, 10)}
    assert "max_ask" in read(NAME, two).pandas().columns
    assert not promote(Installation(two), NAME, 2)["promoted"]
    back = back_out(Installation(two), NAME)
    assert (back["version"], back["backed_out"]) == (1, True)
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    assert not back_out(Installation(two), NAME)["backed_out"]
    assert event_kinds(two)[-2:] == ["version_promoted", "version_backed_out"]
    assert event_kinds(two).count("version_promoted") == 1
    with pytest.raises(VersionRefusedError, match="no verdict since it caught up"):
        promote(Installation(two), NAME, 2)


def test_readers_get_each_window_once_across_the_seam(two: Settings) -> None:
    """Windows up to the seam come from the old version, with its corrections and without values in new
    columns. Later ones come from the new version.
    """
    begin(two, seam_ms=7_000)
    put(two, f"{NAME}_v2", range(6, 10), "two", max_ask=1.0)
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    proved(two)
    found = catalog.load(two.pipelines_dir)
    window = {"start": instant(1000), "end": instant(6000)}
    rows = pa.Table.from_pylist([{"window": window, "ticker": "batch", "trades": 2}], schema=SINK_SCHEMA)
    corrected = stamped(pa.dataset.dataset(rows), None, "run", SINK_SCHEMA.names)
    by = CorrectedRange(5_000, 6_000, "run", {0: 50})
    assert Corrections(two, found.of(NAME, 1)).replace(corrected, by)
    assert not Corrections(two, found.of(NAME, 2)).current().ranges
    promote(Installation(two), NAME, 2)
    assert seen(two) == {(5, "one"): 1, (6, "batch"): 1, (7, "one"): 1, (8, "two"): 1, (9, "two"): 1}
    asks = {}
    for row in read(NAME, two).arrow().to_pylist():
        asks[row["window"]["end"].timestamp()] = row["max_ask"]
    assert asks == {5.0: None, 6.0: None, 7.0: None, 8.0: 1.0, 9.0: 1.0}
    (old,) = [row for row in list_versions(Installation(two), NAME) if row["version"] == 1]
    assert (old["state"], old["readers_to_ms"]) == ("warm", 7_000)
    back_out(Installation(two), NAME)
    assert seen(two) == {(5, "one"): 1, (6, "batch"): 1, (7, "one"): 1, (8, "one"): 1, (9, "one"): 1}


def test_a_reader_between_a_promotion_and_a_discard_reads_again(
    two: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read that version 1 is active, and finds the table of version 1 gone. By now the row names
    another version.
    """
    caught_up(two)
    real = catalog.load

    def promote_meanwhile(folder: Path) -> Any:
        monkeypatch.setattr(catalog, "load", real)
        return real(folder)

    monkeypatch.setattr(catalog, "load", promote_meanwhile)
    answers = [LeaseTable(two).leases_if_any()]
    monkeypatch.setattr(
        LeaseTable, "leases_if_any", lambda table: answers.pop() if answers else table.leases()
    )
    promote(Installation(two), NAME, 2)
    discard(Installation(two), NAME, 1)
    assert seen(two) == {(end, "two"): 1 for end in range(5, 10)}


def test_the_commands_refuse_with_exit_code_2(
    two: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They do so for an unknown pipeline or version, and if there is nothing to promote, back out of or
    discard. The reason is on stderr.
    """
    for name, value in two.environment().items():
        monkeypatch.setenv(name, value)
    for arguments, says in (
        (["promote", "nothing", "--version", "2"], "There is no pipeline named nothing"),
        (["promote", NAME, "--version", "2"], "it is not a shadow"),
        (["back-out", NAME], "no version before it is kept warm"),
        (["discard", NAME, "--version", "2"], "it is not the inactive version"),
        (["versions", "--pipeline", "nothing"], "There is no pipeline named nothing"),
    ):
        assert run(arguments) == 2, arguments
        assert says in capsys.readouterr().err
    assert run(["versions", "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["version"], row["state"], row["table"]) for row in rows] == [
        (1, "active", f"sinks/{NAME}"),
        (2, "declared", f"sinks/{NAME}_v2"),
    ]


def test_a_warm_version_is_listed_until_its_time_is_over(two: Settings) -> None:
    """Then it is older than the active one and no longer consumed. Its table stays."""
    caught_up(two)
    promote(Installation(two), NAME, 2)
    assert list_versions(Installation(two), NAME)[0]["warm_until"] is not None
    versions = Versions(LeaseTable(two))
    assert versions.keep_warm(versions.of(NAME), two.warm_seconds) is not None
    assert [row["state"] for row in list_versions(Installation(two), NAME)] == ["older", "active"]
    with pytest.raises(HindcastError, match="no version before it is kept warm"):
        back_out(Installation(two), NAME)
    assert Path(two.table("sinks", NAME)).exists()


def test_a_worker_notes_what_becomes_of_versions(two: Settings) -> None:
    """It notes that a shadow has caught up, ends a warm version in its time, and writes the events that
    killed commands left out.
    """
    clock = FakeClock()
    worker = VersionSync(Installation(two), clock)
    begin(two)  # the command was killed before it wrote its event
    at(two, 1, 50, 9_000)

    def state_after_look() -> str:
        worker.look(LeaseTable(two).read().leases)
        inactive = Versions(LeaseTable(two)).of(NAME).beside
        if inactive is None:
            return ""
        return inactive.state.value

    assert state_after_look() == "catching_up"
    at(two, 2, 50, 9_000)
    assert state_after_look() == "live"
    assert event_kinds(two) == ["reprocess_started", "reprocess_caught_up"]
    promote(Installation(two), NAME, 2, despite="a drill")
    assert state_after_look() == "warm"
    clock.advance(NOTED_SECONDS)
    assert state_after_look() == "warm"
    assert Versions(LeaseTable(two)).of(NAME).warm_seconds_left == two.warm_seconds - NOTED_SECONDS
    assert state_after_look() == "warm"
    clock.advance(two.warm_seconds - NOTED_SECONDS)
    assert state_after_look() == ""
    assert event_kinds(two)[-2:] == ["version_promoted", "version_retired"]
