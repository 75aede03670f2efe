"""What the commands of a pipeline's versions do to real tables, without a JVM: promotion step by step, readers, discarding, the listing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.live_stream import MODULE
from support.shard_harness import CrashError, crash_at
from support.simulated_platform import SINK_SCHEMA, instant

from hindcast import catalog, read
from hindcast.cli.main import run
from hindcast.errors import HindcastError, TryLaterError, UnknownPipelineError, VersionRefusedError
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.store import swap
from hindcast.partitions import app_id
from hindcast.serving.corrected_windows import CorrectedRange, Corrections, stamped
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import InactiveState, InactiveVersion
from hindcast.shards.version_changes import Versions
from hindcast.shards.warm_time import NOTED_SECONDS
from hindcast.stream.worker import Worker
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.tables.schema import LATER, SCHEMAS, ControlTable
from hindcast.testing import FakeClock
from hindcast.versions import discard as discarding
from hindcast.versions import promote as promotion
from hindcast.versions.discard import BATCH_SECONDS, POLL_SECONDS, discard
from hindcast.versions.dry_run import DryRun, plan_back_out, plan_discard, plan_promotion
from hindcast.versions.listing import list_versions
from hindcast.versions.promote import back_out, promote

NAME = "stock_stats"
#: What the clocks of judging hosts say decides nothing.
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
#: What the error of a refused promotion names.
PROMOTED = {"pipeline": NAME, "version": 2, "action": "promoted"}


@pytest.fixture
def two(settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A pipeline whose version 1 has windows that end at 5 to 9 s, beside a version 2 that has read as far."""
    settings = settings_factory(pipelines_dir=tmp_path)
    for version, table in ((1, NAME), (2, f"{NAME}_v2")):
        text = MODULE.replace('Table("{name}"', f'Table("{table}"')
        (tmp_path / f"{NAME}_{version}.py").write_text(text.format(topic="t", name=NAME, version=version, shards=1))
    store = LeaseTable(settings)
    DesiredStates(store).declare(catalog.load(tmp_path)[NAME], 1)
    resharding.create(store, NAME, 1, 1, {0: 0})
    put(settings, NAME, range(5, 10), "one")
    monkeypatch.setattr(promotion, "WAIT_SECONDS", 0.0)
    return settings


def put(settings: Settings, table: str, ends: Iterable[int], ticker: str, **more: Any) -> None:
    """A row for each window's end, in seconds."""
    rows = [
        {"window": {"start": instant(end * 1000 - 5000), "end": instant(end * 1000)}, "ticker": ticker, "trades": 1, **more} for end in ends
    ]
    schema = SINK_SCHEMA
    for name in more:
        schema = schema.append(pa.field(name, pa.float64()))
    write_deltalake(settings.table("sinks", table), pa.Table.from_pylist(rows, schema=schema), mode="append")


def begin(settings: Settings, seam_ms: int | None = None) -> Versions:
    versions = Versions(LeaseTable(settings))
    tables = (f"sinks/{NAME}_v2", f"corrections/{NAME}_v2")
    beside = InactiveVersion(version=2, state=InactiveState.CATCHING_UP, shards=1, tables=tables, seam_ms=seam_ms)
    versions.begin(NAME, beside, {0: 0}, columns_from=1)
    return versions


def at(settings: Settings, version: int, end: int, watermark_ms: int, owner: str = "") -> None:
    """The lease of the version's shard says that it has read up to there."""

    def told(snapshot: Any) -> list[Any]:
        (lease,) = resharding.of_version(snapshot.leases.values(), NAME, version)
        checkpoint = {**lease.checkpoint, "end_offsets": {"0": end}, "watermark_ms": watermark_ms, "batch": 1}
        return [lease.evolve(checkpoint=checkpoint, lease_owner=owner)]

    swap(LeaseTable(settings), told)


def proved(
    settings: Settings,
    *,
    passed: bool = True,
    broken: Iterable[str] = (),
    failed: Iterable[str] = (),
    compared: bool = True,
    judged: bool = True,
    number: int = 1,
) -> None:
    """Version 2 has caught up; then it was judged and compared.

    :param broken: the expectations that failed in the verdict
    :param failed: what the comparison found
    :param number: of the verdict
    """
    versions = Versions(LeaseTable(settings))
    versions.note_caught_up(versions.of(NAME))
    tables = ControlTables(settings)
    if judged:
        found = {"passed": passed, "failed": json.dumps(list(broken)), "unexplained": int(not passed)}
        verdict = {"run_id": "r", "pipeline": NAME, "version": 2, **found}
        tables.append(ControlTable.VERDICTS, [{**verdict, "change": versions.of(NAME).changes, "number": number, "judged_at": LONG_AGO}])
    if compared:
        comparison = {"version": 2, "with": 1, "failed": list(failed), "change": versions.of(NAME).changes, "number": 1}
        EventLog(tables).record(EventKind.VERSIONS_COMPARED, "Compared.", pipeline=NAME, comparison=comparison)


def caught_up(settings: Settings) -> None:
    """Both have read the same, and version 2 has the same windows."""
    begin(settings)
    put(settings, f"{NAME}_v2", range(5, 10), "two", max_ask=1.0)
    at(settings, 1, 50, 9_000)
    at(settings, 2, 50, 9_000)
    proved(settings)


def seen(settings: Settings) -> Counter[tuple[int, str]]:
    """What readers get: (end of the window in seconds, ticker) of each row."""
    rows = read(NAME, settings).arrow().to_pylist()
    return Counter((int(row["window"]["end"].timestamp()), row["ticker"]) for row in rows)


def told(settings: Settings) -> list[str]:
    rows = ControlTables(settings).rows(ControlTable.EVENTS, [("pipeline", "=", NAME)])
    return [row["kind"] for row in sorted(rows, key=lambda row: row["at"])]


def test_readers_change_over_at_once_and_back(two: Settings) -> None:
    """A promotion and a back-out are a commit each, under 5 s, and each has its event; done again they change nothing."""
    caught_up(two)
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    done = promote(two, NAME, 2, who="ada")
    assert (done["promoted"], done["before"], done["barrier"], done["seconds"] < 5) == (True, 1, {"0": 50}, True)
    assert seen(two) == {(end, "two"): 1 for end in range(5, 10)}
    assert "max_ask" in read(NAME, two).pandas().columns
    assert not promote(two, NAME, 2)["promoted"]
    back = back_out(two, NAME)
    assert (back["version"], back["backed_out"], back["seconds"] < 5) == (1, True, True)
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    assert not back_out(two, NAME)["backed_out"]
    assert told(two)[-2:] == ["version_promoted", "version_backed_out"]
    assert told(two).count("version_promoted") == 1
    with pytest.raises(VersionRefusedError, match="no verdict since it caught up"):
        promote(two, NAME, 2)


def test_a_promotion_says_what_it_did(two: Settings) -> None:
    """From where on the version counts, how far behind it was, until when the old one is kept warm, and how long it took."""
    begin(two)
    at(two, 1, 60, 9_000)
    at(two, 2, 50, 9_000)
    done = promote(two, NAME, 2, despite="version 1 is wrong")
    beside = Versions(LeaseTable(two)).of(NAME).beside
    assert beside is not None
    assert beside.until is not None
    assert 0 <= done.pop("swap_seconds") <= done.pop("seconds") < 60
    assert done == {
        "pipeline": NAME,
        "version": 2,
        "before": 1,
        "promoted": True,
        "barrier": {"0": 60},
        "behind_records": 10,
        "warm_until": beside.until.isoformat(),
    }
    again = promote(two, NAME, 2)
    assert 0 <= again.pop("seconds") < 60
    assert again == {"pipeline": NAME, "version": 2, "promoted": False}
    back = back_out(two, NAME, who="ada")
    assert 0 <= back.pop("seconds") < 60
    assert back == {"pipeline": NAME, "version": 1, "before": 2, "backed_out": True}
    again = back_out(two, NAME)
    assert 0 <= again.pop("seconds") < 60
    assert again == {"pipeline": NAME, "version": 1, "before": 2, "backed_out": False}
    (event,) = ControlTables(two).rows(ControlTable.EVENTS, [("kind", "=", "version_backed_out")])
    assert json.loads(event["detail"])["who"] == "ada"


class TickingClock:
    """A clock that has moved on by so many seconds whenever it is read."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.read = seconds, 0

    def monotonic(self) -> float:
        self.read += 1
        return self.seconds * self.read


def test_a_promotion_and_a_back_out_say_to_the_millisecond_how_long_they_took(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first look to the event's end; of a promotion also how long the swap alone took."""
    caught_up(two)
    clock = TickingClock(1.23456)
    monkeypatch.setattr(promotion, "time", clock)
    done = promote(two, NAME, 2)
    assert (done["swap_seconds"], done["seconds"]) == (1.235, round(1.23456 * (clock.read - 1), 3))
    assert promote(two, NAME, 2)["seconds"] == 1.235
    for _ in ("now", "already"):
        assert back_out(two, NAME)["seconds"] == 1.235


def test_no_command_makes_up_who_gave_it(two: Settings) -> None:
    """A promotion, a back-out and a discarding that nobody put a name to name nobody."""
    caught_up(two)
    promote(two, NAME, 2)
    back_out(two, NAME)
    discard(two, NAME, 2)
    kinds = ("version_promoted", "version_backed_out", "version_discarded")
    events = [row for row in ControlTables(two).rows(ControlTable.EVENTS) if row["kind"] in kinds]
    assert len(events) == 3
    assert not any("who" in json.loads(event["detail"]) for event in events)


def test_a_promotion_waits_for_what_the_active_version_has_read(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is a batch behind reads it in the next seconds. For a reason it is promoted at once, however far behind it is."""
    caught_up(two)
    at(two, 1, 60, 9_500)
    monkeypatch.setattr(promotion, "WAIT_SECONDS", 60.0)
    waits = []

    def read_on(seconds: float) -> None:
        waits.append(seconds)
        at(two, 2, 50 + 5 * len(waits), 9_000 + 250 * len(waits))

    done = promote(two, NAME, 2, sleep=read_on)
    assert (done["barrier"], done["behind_records"], waits) == ({"0": 60}, 0, [promotion.POLL_SECONDS] * 2)
    back_out(two, NAME)
    at(two, 1, 99, 9_900)
    assert promote(two, NAME, 2, despite="version 1 is wrong", sleep=read_on)["behind_records"] == 39
    assert len(waits) == 2


def at_step(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Something happens when a promotion is about to take this step."""
    monkeypatch.setattr(promotion, "reach", lambda reached: act() if reached == step else None)


def test_a_proof_that_fails_while_a_promotion_waits_counts(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is judged again and again; the newest verdict is the one before the swap."""
    caught_up(two)
    at_step(monkeypatch, "promote.3", lambda: proved(two, passed=False, number=2))
    with pytest.raises(VersionRefusedError, match="its newest verdict, of run r, failed"):
        promote(two, NAME, 2)
    assert Versions(LeaseTable(two)).of(NAME).active == 1


def test_a_change_while_a_promotion_waits_is_seen_by_the_swap(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has promoted the version and backed out of it: what was looked at is no more."""
    caught_up(two)

    def meanwhile() -> None:
        versions = Versions(LeaseTable(two))
        since = versions.of(NAME).change
        assert since is not None
        versions.promote(NAME, 2, (), warm_seconds=60.0, barrier={}, since=since.id)
        versions.back_out(NAME)

    at_step(monkeypatch, "promote.4", meanwhile)
    with pytest.raises(VersionRefusedError, match="something changed while it was looked at"):
        promote(two, NAME, 2)
    assert Versions(LeaseTable(two)).of(NAME).active == 1


@pytest.mark.parametrize("step", [f"promote.{number}" for number in range(1, 6)])
def test_a_kill_between_any_two_steps_leaves_one_active_version(two: Settings, step: str) -> None:
    """Whatever step it died before, readers have one version, whole; the same command again ends in the same place, told once."""
    caught_up(two)
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, step, 1)
        with pytest.raises(CrashError):
            promote(two, NAME, 2)
    ticker = "two" if step == "promote.5" else "one"
    assert seen(two) == {(end, ticker): 1 for end in range(5, 10)}
    promote(two, NAME, 2)
    assert seen(two) == {(end, "two"): 1 for end in range(5, 10)}
    assert told(two).count("version_promoted") == 1


def test_a_kill_of_a_back_out_leaves_it_to_the_next_command(two: Settings) -> None:
    """Readers are back; the event that was not written is, once."""
    caught_up(two)
    promote(two, NAME, 2)
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, "back_out.2", 1)
        with pytest.raises(CrashError):
            back_out(two, NAME)
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    assert not back_out(two, NAME)["backed_out"]
    assert told(two).count("version_backed_out") == 1


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda _: None, "it has not caught up"),
        (lambda s: proved(s, judged=False), "it has no verdict since it caught up"),
        (lambda s: proved(s, passed=False), "its newest verdict, of run r, failed: 1 differences are unexplained"),
        (lambda s: proved(s, passed=False, broken=["no_nulls", "no_gaps"]), "its newest verdict, of run r, failed: no_nulls; no_gaps"),
        (lambda s: proved(s, compared=False), "it was not compared with version 1"),
        (lambda s: proved(s, failed=["3 windows are only in version 1"]), "the comparison with version 1 failed: 3 windows"),
        (lambda s: proved(s, failed=["a is gone", "b is new"]), "the comparison with version 1 failed: a is gone; b is new"),
        (lambda s: (proved(s), at(s, 1, 60, 9_000)), "it is 10 records behind version 1"),
        (
            lambda s: (proved(s), at(s, 1, 50, 9_001)),
            r"its windows are final up to 1970-01-01T00:00:09\+00:00, those of version 1 up to 1970-01-01T00:00:09\.001",
        ),
    ],
)
def test_what_is_not_proved_is_promoted_for_a_reason_alone(two: Settings, prepare: Callable[[Settings], object], says: str) -> None:
    """Without --despite nothing changes; with it readers change over, and the reason and who gave it are kept."""
    begin(two)
    put(two, f"{NAME}_v2", range(5, 10), "two")
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    prepare(two)
    before = LeaseTable(two).leases()
    with pytest.raises(VersionRefusedError, match=says) as caught:
        promote(two, NAME, 2)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == PROMOTED
    assert "--despite" in str(caught.value.fields["cure"])
    assert LeaseTable(two).leases() == before
    promote(two, NAME, 2, despite="version 1 is wrong", who="ada")
    (event,) = ControlTables(two).rows(ControlTable.EVENTS, [("kind", "=", "version_promoted")])
    assert "although it was not proved: version 1 is wrong" in event["message"]
    assert json.loads(event["detail"])["who"] == "ada"


def reshard(settings: Settings, version: int, count: int = 2) -> list[Any]:
    """The version's next generation is written, and waits for the newest one to end."""
    return resharding.reshard(LeaseTable(settings), NAME, version, count, {0: 0, 1: 0})


def end(settings: Settings, version: int) -> None:
    """The parents end, and a worker opens their children."""

    def told(snapshot: Any) -> list[Any]:
        parents = resharding.superseded(snapshot.leases.values())
        own = [lease for lease in resharding.of_version(snapshot.leases.values(), NAME, version) if lease.key in parents]
        ended = {lease.key: lease.evolve(state="TERMINATED") for lease in own}
        return [*ended.values(), *resharding.opened({**snapshot.leases, **ended})]

    swap(LeaseTable(settings), told)


@pytest.mark.parametrize("version", [1, 2])
def test_a_promotion_waits_for_a_reshard_of_either_version(two: Settings, version: int) -> None:
    """While a shard waits for its parents its offsets are those of nobody: 10 of 1,000 records are not all that the old version read."""
    begin(two)
    put(two, f"{NAME}_v2", range(5, 10), "two")
    at(two, 1, 1000, 9_000)
    at(two, 2, 10, 9_000)
    proved(two)
    reshard(two, version)
    before = LeaseTable(two).leases()
    with pytest.raises(VersionRefusedError, match=f"version {version} is being resharded: v{version}.g1.s0 must wait"):
        promote(two, NAME, 2)
    assert LeaseTable(two).leases() == before
    end(two, version)
    with pytest.raises(VersionRefusedError, match="it is 990 records behind version 1"):
        promote(two, NAME, 2)


def test_a_promotion_goes_on_once_the_reshard_is_done(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for as long as a version that is a little behind may take, then decides by what the children took over."""
    caught_up(two)
    reshard(two, 1)
    monkeypatch.setattr(promotion, "WAIT_SECONDS", 60.0)
    waits = []

    def end_it(seconds: float) -> None:
        waits.append(seconds)
        end(two, 1)

    assert promote(two, NAME, 2, sleep=end_it)["barrier"] == {"0": 50, "1": 0}
    assert waits == [promotion.POLL_SECONDS]


def test_a_promotion_for_a_reason_needs_no_reshard_to_end(two: Settings) -> None:
    """The active version may be the one that is broken. How far it had read is what the parents say who are yet to end."""
    begin(two)
    at(two, 1, 1000, 9_000)
    at(two, 2, 10, 9_000)
    reshard(two, 1)
    done = promote(two, NAME, 2, despite="version 1 never ends")
    assert (done["barrier"], done["behind_records"]) == ({"0": 1000, "1": 0}, 990)


@pytest.mark.parametrize("passed", [True, False])
def test_what_was_judged_before_it_caught_up_is_no_proof(two: Settings, passed: bool) -> None:
    """Whatever the clock of the host says that judged it: it may be hours ahead."""
    begin(two)
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    tables = ControlTables(two)
    before = {"run_id": "old", "pipeline": NAME, "version": 2, "passed": passed, "failed": "[]", "unexplained": int(not passed)}
    tables.append(ControlTable.VERDICTS, [{**before, "change": 1, "number": 7, "judged_at": datetime(2101, 1, 1, tzinfo=UTC)}])
    comparison = {"version": 2, "with": 1, "failed": [], "change": 1, "number": 7}
    EventLog(tables).record(EventKind.VERSIONS_COMPARED, "Compared.", pipeline=NAME, comparison=comparison)
    proved(two, judged=False, compared=False)
    with pytest.raises(VersionRefusedError, match="it has no verdict since it caught up"):
        promote(two, NAME, 2)
    proved(two, compared=False)
    with pytest.raises(VersionRefusedError, match="it was not compared with version 1"):
        promote(two, NAME, 2)
    proved(two)
    assert promote(two, NAME, 2)["promoted"]


def test_a_version_without_a_verdict_is_told_how_it_is_judged(two: Settings) -> None:
    """The cure names the command, with the version that it is to judge."""
    begin(two)
    proved(two, judged=False)
    with pytest.raises(VersionRefusedError, match="it has no verdict since it caught up") as caught:
        promote(two, NAME, 2)
    assert f"`hindcast validate {NAME} --version 2 --all` judges it" in str(caught.value.fields["cure"])


def test_the_verdict_of_another_version_or_pipeline_is_none_of_its_own(two: Settings) -> None:
    """Whether it passed or failed, and however new it is."""
    caught_up(two)
    changes = Versions(LeaseTable(two)).of(NAME).changes
    for pipeline, version in ((NAME, 1), ("other", 2)):
        verdict = {"run_id": "bad", "pipeline": pipeline, "version": version, "passed": False, "failed": "[]", "unexplained": 1}
        ControlTables(two).append(ControlTable.VERDICTS, [{**verdict, "change": changes, "number": 9, "judged_at": LONG_AGO}])
    assert promote(two, NAME, 2)["promoted"]


@pytest.mark.parametrize(("numbers", "says"), [((2, 1), ""), ((1, 2), "of run bad, failed"), ((2, 2), "of run bad, failed")])
def test_the_newest_proof_is_that_of_the_highest_number(two: Settings, numbers: tuple[int, int], says: str) -> None:
    """Not the one that a host called the latest. Of two that were given at once the failed one counts."""
    caught_up(two)
    changes = Versions(LeaseTable(two)).of(NAME).changes
    rows = [
        {"run_id": run, "pipeline": NAME, "version": 2, "passed": run == "good", "failed": "[]", "unexplained": int(run == "bad")}
        for run in ("good", "bad")
    ]
    instants = (LONG_AGO, datetime(2101, 1, 1, tzinfo=UTC))
    for row, number, judged_at in zip(rows, numbers, instants[:: 1 if not says else -1], strict=True):
        told = {**row, "change": changes, "number": number, "judged_at": judged_at}
        ControlTables(two).append(ControlTable.VERDICTS, [told])
    if says:
        with pytest.raises(VersionRefusedError, match=says):
            promote(two, NAME, 2)
    else:
        assert promote(two, NAME, 2)["promoted"]


def test_verdicts_that_an_older_hindcast_gave_are_kept_and_prove_nothing(two: Settings) -> None:
    """Its table lacks the columns that order them: they are added, and the rows that are there have none of them."""
    older = pa.schema([field for field in SCHEMAS[ControlTable.VERDICTS] if field.name not in LATER[ControlTable.VERDICTS]])
    row = {"run_id": "old", "pipeline": NAME, "version": 2, "passed": True, "failed": "[]", "unexplained": 0, "schema_version": 1}
    write_deltalake(two.table("control", "verdicts"), pa.Table.from_pylist([row], schema=older))
    begin(two)
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    proved(two, judged=False)
    with pytest.raises(VersionRefusedError, match="it has no verdict since it caught up"):
        promote(two, NAME, 2)
    proved(two)
    assert [row["run_id"] for row in ControlTables(two).rows(ControlTable.VERDICTS, [("version", "=", 2)])].count("old") == 1
    assert promote(two, NAME, 2)["promoted"]


def test_what_was_approved_is_promoted_and_nothing_else(two: Settings) -> None:
    """Bound to the change after which it was approved, a promotion is refused once another has come; so is a back-out of a promotion."""
    caught_up(two)
    versions = Versions(LeaseTable(two))
    approved = versions.of(NAME).change
    assert approved is not None
    promote(two, NAME, 2, since=approved.id)
    promotion = versions.of(NAME).change
    back_out(two, NAME)
    with pytest.raises(VersionRefusedError, match="something changed since it was approved") as caught:
        promote(two, NAME, 2, despite="never mind", since=approved.id)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == PROMOTED
    assert "Compare it again" in str(caught.value.fields["cure"])
    promote(two, NAME, 2, despite="never mind")
    assert promotion is not None
    with pytest.raises(VersionRefusedError, match="something changed since that promotion"):
        versions.back_out(NAME, since=promotion.id)
    assert versions.of(NAME).active == 2


def test_readers_get_each_window_once_across_the_seam(two: Settings) -> None:
    """Windows up to the seam are the old version's, with its corrections and no value in new columns; later ones the new version's."""
    begin(two, seam_ms=7_000)
    put(two, f"{NAME}_v2", range(6, 10), "two", max_ask=1.0)
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    proved(two)
    found = catalog.load(two.pipelines_dir)
    rows = pa.Table.from_pylist(
        [{"window": {"start": instant(1000), "end": instant(6000)}, "ticker": "batch", "trades": 2}], schema=SINK_SCHEMA
    )
    by = CorrectedRange(5_000, 6_000, "run", {0: 50})
    assert Corrections(two, found.of(NAME, 1)).replace(stamped(pa.dataset.dataset(rows), None, "run", SINK_SCHEMA.names), by)
    assert not Corrections(two, found.of(NAME, 2)).current().ranges
    promote(two, NAME, 2)
    assert seen(two) == {(5, "one"): 1, (6, "batch"): 1, (7, "one"): 1, (8, "two"): 1, (9, "two"): 1}
    asks = {row["window"]["end"].timestamp(): row["max_ask"] for row in read(NAME, two).arrow().to_pylist()}
    assert asks == {5.0: None, 6.0: None, 7.0: None, 8.0: 1.0, 9.0: 1.0}
    (old,) = [row for row in list_versions(two, NAME) if row["version"] == 1]
    assert (old["state"], old["readers_to_ms"]) == ("warm", 7_000)
    back_out(two, NAME)
    assert seen(two) == {(5, "one"): 1, (6, "batch"): 1, (7, "one"): 1, (8, "one"): 1, (9, "one"): 1}


def test_a_seam_that_is_still_open_in_the_old_version_is_waited_for(two: Settings) -> None:
    """Readers would miss what the old version has not closed yet."""
    begin(two, seam_ms=9_500)
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    proved(two)
    with pytest.raises(VersionRefusedError, match=r"end by 1970-01-01T00:00:09\.5.* from version 1, where some are open") as caught:
        promote(two, NAME, 2)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == PROMOTED
    assert "--despite" in str(caught.value.fields["cure"])
    for version in (1, 2):
        at(two, version, 60, 9_500)
    assert promote(two, NAME, 2)["promoted"]


def test_a_discarded_version_leaves_nothing(two: Settings) -> None:
    """Shards, checkpoints and tables go; the active version's stay, and so does what history says."""
    caught_up(two)
    folders = [Path(two.checkpoint(NAME, folder)) for folder in ("v1.g0.s0", "v2.g0.s0", "v2.g0.s0.r1.e2")]
    for folder in folders:
        folder.mkdir(parents=True)
    done = discard(two, NAME, 2, who="ada")
    deleted = [f"checkpoints/{NAME}/v2.g0.s0", f"checkpoints/{NAME}/v2.g0.s0.r1.e2", f"sinks/{NAME}_v2"]
    assert done == {"pipeline": NAME, "version": 2, "active": 1, "deleted": deleted}
    assert [folder.exists() for folder in folders] == [True, False, False]
    assert not Path(two.table("sinks", f"{NAME}_v2")).exists()
    assert [lease.status_value for lease in LeaseTable(two).leases()] == ["active", "v1.g0.s0"]
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    (event,) = ControlTables(two).rows(ControlTable.EVENTS, [("kind", "=", "version_discarded")])
    assert json.loads(event["detail"])["who"] == "ada"
    with pytest.raises(VersionRefusedError, match="it is not beside the active one"):
        discard(two, NAME, 2)


@pytest.mark.parametrize("step", [f"discard.{number}" for number in range(1, 6)])
def test_a_discarding_that_was_killed_is_finished_by_the_next(two: Settings, step: str) -> None:
    """Nobody can promote what is half gone, and the same command goes on from there."""
    caught_up(two)
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, step, 1)
        with pytest.raises(CrashError):
            discard(two, NAME, 2)
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    if step != "discard.1":
        with pytest.raises(VersionRefusedError, match="it is not a shadow"):
            promote(two, NAME, 2)
    if step == "discard.5":
        versions = Versions(LeaseTable(two))
        assert versions.keep_warm(versions.of(NAME), 0.0) is None
        assert list_versions(two, NAME)[1]["state"] == "declared"
    else:
        discard(two, NAME, 2)
        assert told(two).count("version_discarded") == 1
    assert not Path(two.table("sinks", f"{NAME}_v2")).exists()


def test_a_shard_that_is_held_is_waited_for_until_its_lease_has_expired(two: Settings) -> None:
    """Whoever holds it may be writing. A dead owner's lease is still for a whole lease; a living one's moves."""
    caught_up(two)
    at(two, 2, 50, 9_000, owner="dead")
    clock = FakeClock()
    discard(two, NAME, 2, clock=clock, sleep=lambda _: clock.advance(1.0))
    assert two.lease_seconds <= clock.monotonic() <= two.lease_seconds + 2


def test_a_shard_whose_owner_goes_on_is_not_taken_from_under_it(two: Settings) -> None:
    """It is tried again later; nothing was deleted."""
    caught_up(two)
    at(two, 2, 50, 9_000, owner="alive")
    clock, waits = FakeClock(), [two.lease_seconds * 1.25 + BATCH_SECONDS - 1.0, 1.0]

    def renew(seconds: float) -> None:
        assert seconds == POLL_SECONDS
        clock.advance(waits.pop(0))
        swap(LeaseTable(two), lambda snapshot: [one.renewed() for one in snapshot.leases.values() if one.lease_owner == "alive"])

    with pytest.raises(TryLaterError, match="alive still holds shards"):
        discard(two, NAME, 2, clock=clock, sleep=renew)
    assert clock.monotonic() == two.lease_seconds * 1.25 + BATCH_SECONDS
    assert Path(two.table("sinks", f"{NAME}_v2")).exists()


def test_all_whose_shards_are_held_are_named(two: Settings) -> None:
    """Each once, however many shards it holds."""
    caught_up(two)
    (shard,) = resharding.of_version(LeaseTable(two).leases(), NAME, 2)
    holders = ((0, "one"), (1, "two"), (2, "two"))
    held = [shard.evolve(status_value=f"v2.g0.s{number}", lease_owner=owner) for number, owner in holders]
    swap(LeaseTable(two), lambda _: held)
    clock = FakeClock()

    def renew(_: float) -> None:
        clock.advance(10.0)
        swap(LeaseTable(two), lambda snapshot: [one.renewed() for one in snapshot.leases.values() if one.lease_owner])

    with pytest.raises(TryLaterError, match=f"one, two still holds shards of {NAME} version 2"):
        discard(two, NAME, 2, clock=clock, sleep=renew)


def test_of_two_that_discard_at_once_the_later_finds_it_done(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what was done, and the event is written once."""
    caught_up(two)

    def finish(reached: str) -> None:
        if reached == "discard.4":
            Versions(LeaseTable(two)).remove(NAME, 2, who="ada")

    monkeypatch.setattr(discarding, "reach", finish)
    assert discard(two, NAME, 2, who="bob")["active"] == 1
    (event,) = ControlTables(two).rows(ControlTable.EVENTS, [("kind", "=", "version_discarded")])
    assert json.loads(event["detail"])["who"] == "ada"


def test_a_discarding_has_the_stores_options(
    two: Settings, settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them an object store would refuse whoever deletes a table's rows."""
    store = settings_factory(pipelines_dir=two.pipelines_dir, tables_url=f"file://{tmp_path}/tables")
    DesiredStates(LeaseTable(store)).declare(catalog.load(two.pipelines_dir)[NAME], 1)
    begin(store)
    put(store, f"{NAME}_v2", range(5, 10), "two")
    options, seen, opens = {"allow_http": "true"}, [], DeltaTable.__init__

    def opened(self: DeltaTable, table_uri: str, *arguments: Any, storage_options: dict[str, str] | None = None, **others: Any) -> None:
        seen.append((table_uri.split("/")[-2], storage_options))
        opens(self, table_uri, *arguments, storage_options=storage_options, **others)

    monkeypatch.setattr(DeltaTable, "__init__", opened)
    discard(store.model_copy(update={"storage_options": options}), NAME, 2)
    assert [given for folder, given in seen if folder in {"sinks", "corrections"}] == [options] * 2


def test_an_object_store_deletes_the_files_itself(two: Settings, settings_factory: Callable[..., Settings], tmp_path: Path) -> None:
    """The rows of a discarded version go; its checkpoints and files are left to the store's own rules. What was not there is not named."""
    store = settings_factory(
        pipelines_dir=two.pipelines_dir, tables_url=f"file://{tmp_path}/tables", checkpoints_url=f"file://{tmp_path}/checkpoints"
    )
    DesiredStates(LeaseTable(store)).declare(catalog.load(two.pipelines_dir)[NAME], 1)
    begin(store)
    put(store, f"{NAME}_v2", range(5, 10), "two")
    folder = tmp_path / "checkpoints" / NAME / "v2.g0.s0"
    folder.mkdir(parents=True)
    assert discard(store, NAME, 2)["deleted"] == [f"sinks/{NAME}_v2"]
    assert DeltaTable(store.table("sinks", f"{NAME}_v2")).to_pyarrow_table().num_rows == 0
    assert folder.exists()


def test_a_plan_says_what_the_promotion_then_does(two: Settings) -> None:
    """And that it is done, once it is; nothing changes by the plan itself."""
    begin(two)
    at(two, 1, 60, 9_000)
    at(two, 2, 50, 9_000)
    before, began = LeaseTable(two).leases(), datetime.now(UTC)
    plan = plan_promotion(two, NAME, 2, despite="version 1 is wrong")
    warm_until = datetime.fromisoformat(plan.row["warm_until"]) - timedelta(seconds=two.warm_seconds)
    assert began <= warm_until <= datetime.now(UTC)
    row = {"pipeline": NAME, "version": 2, "before": 1, "promoted": True, "behind_records": 10, "warm_until": plan.row["warm_until"]}
    warm = "version 1 is kept warm for 3600 s"
    assert plan == DryRun(f"{NAME}: version 2 becomes the active one, readers switch at once, {warm}", row)
    assert LeaseTable(two).leases() == before
    done = promote(two, NAME, 2, despite="version 1 is wrong")
    assert {name: done[name] for name in row if name != "warm_until"} == {name: row[name] for name in row if name != "warm_until"}
    again = plan_promotion(two, NAME, 2)
    row = {"pipeline": NAME, "version": 2, "before": 2, "promoted": False}
    assert again == DryRun(f"{NAME}: version 2 is active already", row, done=True)


@pytest.mark.parametrize("act", [plan_promotion, promote])
def test_only_the_last_promotion_is_done_already(two: Settings, act: Callable[[Settings, str, int], object]) -> None:
    """A version that was active from the start, or is again, was not promoted by the last change; nor was the one before it."""
    with pytest.raises(VersionRefusedError, match="it is active already") as caught:
        act(two, NAME, 1)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == {**PROMOTED, "version": 1}
    caught_up(two)
    with pytest.raises(VersionRefusedError, match="it is active already"):
        act(two, NAME, 1)
    promote(two, NAME, 2)
    with pytest.raises(VersionRefusedError, match="it is not a shadow"):
        act(two, NAME, 1)
    back_out(two, NAME)
    with pytest.raises(VersionRefusedError, match="it is active already"):
        act(two, NAME, 1)


def committed(settings: Settings, version: int, table: str, end: int) -> None:
    """The version's shard has committed a batch up to there, which its lease does not know yet."""
    shard = f"v{version}.g0.s0"
    told = BatchCommit(
        kind="batch",
        pipeline=NAME,
        version=version,
        shard=shard,
        epoch=1,
        batch=1,
        worker="w",
        start_offsets={0: 0},
        end_offsets={0: end},
        late_watermark_ms=0,
        watermark_ms=9_000,
    )
    fenced = FencedTable(settings.table("sinks", table), {}, app_id(NAME, shard))
    fenced.commit(Fence(1, 1), [], told.as_metadata(), after=None)


def test_what_the_tables_say_counts_before_the_leases_know_it(two: Settings) -> None:
    """The plan and the promotion both ask each version's own table how far it is."""
    begin(two)
    put(two, f"{NAME}_v2", range(5, 10), "two")
    for version in (1, 2):
        at(two, version, 50, 9_000)
    committed(two, 1, NAME, 90)
    committed(two, 2, f"{NAME}_v2", 70)
    assert plan_promotion(two, NAME, 2, despite="a drill").row["behind_records"] == 20
    done = promote(two, NAME, 2, despite="a drill")
    assert (done["barrier"], done["behind_records"]) == ({"0": 90}, 20)
    change = Versions(LeaseTable(two)).of(NAME).change
    assert change is not None
    assert (change.offsets, change.who) == ({0: 90}, "")


def test_a_plan_is_refused_as_the_promotion_would_be(two: Settings) -> None:
    """Without a proof, and in the middle of a reshard; for a reason neither matters."""
    begin(two)
    for version in (1, 2):
        at(two, version, 50, 9_000)
    with pytest.raises(VersionRefusedError, match="it has not caught up") as caught:
        plan_promotion(two, NAME, 2)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == PROMOTED
    proved(two)
    assert plan_promotion(two, NAME, 2).row["promoted"]
    with pytest.raises(VersionRefusedError, match="it is not a shadow") as caught:
        plan_promotion(two, NAME, 3)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == {**PROMOTED, "version": 3}
    reshard(two, 1)
    with pytest.raises(VersionRefusedError, match="version 1 is being resharded"):
        plan_promotion(two, NAME, 2)
    assert plan_promotion(two, NAME, 2, despite="version 1 never ends").row["promoted"]


def test_a_plan_says_what_the_back_out_and_the_discard_then_do(two: Settings) -> None:
    """Nothing changes by the plans themselves."""
    caught_up(two)
    promote(two, NAME, 2)
    before = LeaseTable(two).leases()
    row = {"pipeline": NAME, "version": 1, "before": 2, "backed_out": True}
    back = DryRun(f"{NAME}: readers return to version 1 at once, version 2 goes on beside it", row)
    assert plan_back_out(two, NAME) == back
    assert LeaseTable(two).leases() == before
    back_out(two, NAME)
    done = DryRun(f"{NAME}: version 1 is active again already", {**row, "backed_out": False}, done=True)
    assert plan_back_out(two, NAME) == done
    before = LeaseTable(two).leases()
    tables = [f"sinks/{NAME}_v2", f"corrections/{NAME}_v2"]
    sentence = f"{NAME}: the shards, checkpoints and tables of version 2 are deleted (sinks/{NAME}_v2, corrections/{NAME}_v2)"
    row = {"pipeline": NAME, "version": 2, "active": 1, "deletes": tables}
    assert plan_discard(two, NAME, 2) == DryRun(sentence, row)
    assert LeaseTable(two).leases() == before
    discard(two, NAME, 2)
    with pytest.raises(VersionRefusedError, match="no version before it is kept warm"):
        plan_back_out(two, NAME)


@pytest.mark.parametrize(
    ("plan", "version", "action"),
    [
        (lambda settings: plan_promotion(settings, "idle", 7), 7, "promoted"),
        (lambda settings: plan_back_out(settings, "idle"), 3, "backed out"),
        (lambda settings: plan_discard(settings, "idle", 7), 7, "discarded"),
    ],
)
def test_nothing_is_planned_for_what_was_never_consumed(
    two: Settings, plan: Callable[[Settings], DryRun], version: int, action: str
) -> None:
    """A pipeline that is declared alone: the error says so, and how it is started. One that is not even declared is unknown."""
    (two.pipelines_dir / "idle.py").write_text(MODULE.format(topic="t", name="idle", version=3, shards=1))
    with pytest.raises(VersionRefusedError, match="`hindcast resume idle` has version 3 consumed") as caught:
        plan(two)
    fields = caught.value.fields
    assert (fields["pipeline"], fields["version"], fields["action"]) == ("idle", version, action)
    assert "ever consumed" in str(fields["problem"])
    (two.pipelines_dir / "idle.py").unlink()
    with pytest.raises(UnknownPipelineError):
        plan(two)


def test_a_reader_between_a_promotion_and_a_discarding_reads_again(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had read that version 1 is active, and finds its table gone: the row says by now which one to read."""
    caught_up(two)
    real = catalog.load

    def promote_meanwhile(folder: Path) -> Any:
        monkeypatch.setattr(catalog, "load", real)
        return real(folder)

    monkeypatch.setattr(catalog, "load", promote_meanwhile)
    from hindcast.serving import reading

    leases = reading.read_leases(two)
    answers = [leases]
    monkeypatch.setattr(reading, "read_leases", lambda settings: answers.pop() if answers else LeaseTable(settings).leases())
    promote(two, NAME, 2)
    discard(two, NAME, 1)
    assert seen(two) == {(end, "two"): 1 for end in range(5, 10)}


def test_the_commands_refuse_with_exit_code_2(two: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown pipelines and versions, and nothing to promote, back out of or discard: said on stderr."""
    for name, value in two.environment().items():
        monkeypatch.setenv(name, value)
    for arguments, says in (
        (["promote", "nothing", "--version", "2"], "There is no pipeline named nothing"),
        (["promote", NAME, "--version", "2"], "it is not a shadow"),
        (["back-out", NAME], "no version before it is kept warm"),
        (["discard", NAME, "--version", "2"], "it is not beside the active one"),
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
    """Then it is older than the active one and consumed no more; its table stays."""
    caught_up(two)
    promote(two, NAME, 2)
    assert list_versions(two, NAME)[0]["warm_until"] is not None
    versions = Versions(LeaseTable(two))
    assert versions.keep_warm(versions.of(NAME), two.warm_seconds) is not None
    assert [row["state"] for row in list_versions(two, NAME)] == ["older", "active"]
    with pytest.raises(HindcastError, match="no version before it is kept warm"):
        back_out(two, NAME)
    assert Path(two.table("sinks", NAME)).exists()


def test_a_worker_notes_what_becomes_of_versions(two: Settings) -> None:
    """It says that a shadow has caught up and ends a warm version in its time, and writes the events that killed commands owe."""
    clock = FakeClock()
    worker = Worker(two, clock)
    begin(two)  # whoever did that was killed before its event
    at(two, 1, 50, 9_000)

    def look() -> str:
        worker._look_after_versions(LeaseTable(two).read().leases)
        standing = Versions(LeaseTable(two)).of(NAME)
        return standing.beside.state.value if standing.beside else ""

    assert look() == "catching_up"
    at(two, 2, 50, 9_000)
    assert look() == "live"
    assert told(two) == ["reprocess_started", "reprocess_caught_up"]
    promote(two, NAME, 2, despite="a drill")
    assert look() == "warm"
    clock.advance(NOTED_SECONDS)
    assert look() == "warm"
    assert Versions(LeaseTable(two)).of(NAME).warm_seconds_left == two.warm_seconds - NOTED_SECONDS
    assert look() == "warm"
    clock.advance(two.warm_seconds - NOTED_SECONDS)
    assert look() == ""
    assert told(two)[-2:] == ["version_promoted", "version_retired"]
