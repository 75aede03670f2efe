"""A promotion, step by step, and the back-out of one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.inactive_version import (
    NAME,
    PROMOTED,
    at,
    begin,
    caught_up,
    end_reshard,
    event_kinds,
    proved,
    put,
    reshard,
    seen,
)
from support.shard_harness import CrashError, crash_at

from hindcast.errors import VersionRefusedError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.settings import Settings
from hindcast.shards.version_changes import Versions
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock
from hindcast.versions import promote as promote_module
from hindcast.versions.discard import discard
from hindcast.versions.dry_run import plan_promotion
from hindcast.versions.promote import POLL_SECONDS, back_out, promote


def test_a_promotion_says_what_it_did(two: Settings) -> None:
    """It says from which offsets on the version counts, how far behind it was, until when the old one is kept
    warm, and how long it took.
    """
    begin(two)
    at(two, 1, 60, 9_000)
    at(two, 2, 50, 9_000)
    done = promote(Installation(two), NAME, 2, despite="version 1 is wrong")
    warm = Versions(LeaseTable(two)).of(NAME).beside
    assert warm is not None
    assert warm.until is not None
    assert 0 <= done.pop("swap_seconds") <= done.pop("seconds") < 60
    assert done == {
        "pipeline": NAME,
        "version": 2,
        "before": 1,
        "promoted": True,
        "barrier": {"0": 60},
        "behind_records": 10,
        "warm_until": warm.until.isoformat(),
    }
    again = promote(Installation(two), NAME, 2)
    assert 0 <= again.pop("seconds") < 60
    assert again == {"pipeline": NAME, "version": 2, "promoted": False}
    back = back_out(Installation(two), NAME, who="ada")
    assert 0 <= back.pop("seconds") < 60
    assert back == {"pipeline": NAME, "version": 1, "before": 2, "backed_out": True}
    again = back_out(Installation(two), NAME)
    assert 0 <= again.pop("seconds") < 60
    assert again == {"pipeline": NAME, "version": 1, "before": 2, "backed_out": False}
    (event,) = ControlTables(two).rows(ControlTable.EVENTS, [("kind", "=", "version_backed_out")])
    assert json.loads(event["detail"])["who"] == "ada"


class TickingClock:
    """A clock that advances by so many seconds each time it is read."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.read = 0

    def monotonic(self) -> float:
        self.read += 1
        return self.seconds * self.read


def test_a_promotion_and_a_back_out_say_to_the_millisecond_how_long_they_took(
    two: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command is timed. Of a promotion the swap alone is timed, too."""
    caught_up(two)
    clock = TickingClock(1.23456)
    monkeypatch.setattr(promote_module, "time", clock)
    done = promote(Installation(two), NAME, 2)
    assert (done["swap_seconds"], done["seconds"]) == (1.235, round(1.23456 * (clock.read - 1), 3))
    assert promote(Installation(two), NAME, 2)["seconds"] == 1.235
    for _ in ("now", "already"):
        assert back_out(Installation(two), NAME)["seconds"] == 1.235


def test_events_name_nobody_if_no_name_was_given(two: Settings) -> None:
    """Those of a promotion, a back-out and a discard."""
    caught_up(two)
    promote(Installation(two), NAME, 2)
    back_out(Installation(two), NAME)
    discard(Installation(two), NAME, 2)
    kinds = ("version_promoted", "version_backed_out", "version_discarded")
    events = [row for row in ControlTables(two).rows(ControlTable.EVENTS) if row["kind"] in kinds]
    assert len(events) == 3
    for event in events:
        assert "who" not in json.loads(event["detail"])


def test_a_promotion_waits_for_what_the_active_version_has_read(
    two: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is a batch behind reads that batch in the next seconds. With --despite it is promoted at
    once, however far behind it is.
    """
    caught_up(two)
    at(two, 1, 60, 9_500)
    monkeypatch.setattr(promote_module, "WAIT_SECONDS", 60.0)
    waits = []

    def read_on(seconds: float) -> None:
        waits.append(seconds)
        at(two, 2, 50 + 5 * len(waits), 9_000 + 250 * len(waits))

    done = promote(Installation(two), NAME, 2, sleep=read_on)
    assert (done["barrier"], done["behind_records"]) == ({"0": 60}, 0)
    assert waits == [POLL_SECONDS] * 2
    back_out(Installation(two), NAME)
    at(two, 1, 99, 9_900)
    assert (
        promote(Installation(two), NAME, 2, despite="version 1 is wrong", sleep=read_on)["behind_records"]
        == 39
    )
    assert len(waits) == 2


def test_a_promotion_gives_up_once_its_time_is_over(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that stays behind is polled until then, and not once more."""
    caught_up(two)
    at(two, 1, 60, 9_000)
    clock = FakeClock()
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds)

    monkeypatch.setattr(promote_module, "time", clock)
    monkeypatch.setattr(promote_module, "WAIT_SECONDS", 15.0)
    monkeypatch.setattr(promote_module, "POLL_SECONDS", 5.0)
    with pytest.raises(VersionRefusedError, match="it is 10 records behind version 1"):
        promote(Installation(two), NAME, 2, sleep=wait)
    assert waits == [5.0] * 3


def at_step(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Let something happen when a promotion is about to take this step."""

    def reach(reached: str) -> None:
        if reached == step:
            act()

    monkeypatch.setattr(promote_module, "reach", reach)


def test_a_verdict_that_fails_while_a_promotion_waits_counts(
    two: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version may be judged at any time. What counts is the newest verdict before the swap."""
    caught_up(two)
    at_step(monkeypatch, "promote.3", lambda: proved(two, passed=False, number=2))
    with pytest.raises(VersionRefusedError, match="its newest verdict, of run r, failed"):
        promote(Installation(two), NAME, 2)
    assert Versions(LeaseTable(two)).of(NAME).active == 1


def test_a_change_while_a_promotion_waits_is_seen_by_the_swap(
    two: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command has promoted the version and backed out of it meanwhile."""
    caught_up(two)

    def meanwhile() -> None:
        versions = Versions(LeaseTable(two))
        since = versions.of(NAME).change
        assert since is not None
        versions.promote(NAME, 2, (), warm_seconds=60.0, barrier={}, since=since.id)
        versions.back_out(NAME)

    at_step(monkeypatch, "promote.4", meanwhile)
    with pytest.raises(VersionRefusedError, match="something changed while it was looked at"):
        promote(Installation(two), NAME, 2)
    assert Versions(LeaseTable(two)).of(NAME).active == 1


@pytest.mark.parametrize("step", [f"promote.{number}" for number in range(1, 6)])
def test_a_kill_between_any_two_steps_leaves_one_active_version(two: Settings, step: str) -> None:
    """Readers have all of one version, whichever step the kill prevents. The same command, repeated, leads to
    the same end, with one event.
    """
    caught_up(two)
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, step, 1)
        with pytest.raises(CrashError):
            promote(Installation(two), NAME, 2)
    ticker = "one"
    if step == "promote.5":
        ticker = "two"
    assert seen(two) == {(end, ticker): 1 for end in range(5, 10)}
    promote(Installation(two), NAME, 2)
    assert seen(two) == {(end, "two"): 1 for end in range(5, 10)}
    assert event_kinds(two).count("version_promoted") == 1


def test_a_back_out_that_was_killed_is_finished_by_the_next_command(two: Settings) -> None:
    """Readers are back. The next command writes the missing event, once."""
    caught_up(two)
    promote(Installation(two), NAME, 2)
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, "back_out.2", 1)
        with pytest.raises(CrashError):
            back_out(Installation(two), NAME)
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    assert not back_out(Installation(two), NAME)["backed_out"]
    assert event_kinds(two).count("version_backed_out") == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_promotion_waits_for_a_reshard_of_either_version(two: Settings, version: int) -> None:
    """While a shard waits for its parents, its own offsets say nothing: the old version has read 1,000
    records, and the new one 10 of them.
    """
    begin(two)
    put(two, f"{NAME}_v2", range(5, 10), "two")
    at(two, 1, 1000, 9_000)
    at(two, 2, 10, 9_000)
    proved(two)
    reshard(two, version)
    before = LeaseTable(two).leases()
    with pytest.raises(
        VersionRefusedError, match=f"version {version} is being resharded: v{version}.g1.s0 must wait"
    ):
        promote(Installation(two), NAME, 2)
    assert LeaseTable(two).leases() == before
    end_reshard(two, version)
    with pytest.raises(VersionRefusedError, match="it is 990 records behind version 1"):
        promote(Installation(two), NAME, 2)


def test_a_promotion_resumes_once_the_reshard_is_done(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits as long for a reshard as for a version that is a little behind. Then it decides by what the
    children took over.
    """
    caught_up(two)
    reshard(two, 1)
    monkeypatch.setattr(promote_module, "WAIT_SECONDS", 60.0)
    waits = []

    def end_it(seconds: float) -> None:
        waits.append(seconds)
        end_reshard(two, 1)

    assert promote(Installation(two), NAME, 2, sleep=end_it)["barrier"] == {"0": 50, "1": 0}
    assert waits == [POLL_SECONDS]


def test_a_promotion_with_a_reason_waits_for_no_reshard(two: Settings) -> None:
    """The active version may be the broken one. The parents, which have not ended yet, say how far it has
    read.
    """
    begin(two)
    at(two, 1, 1000, 9_000)
    at(two, 2, 10, 9_000)
    reshard(two, 1)
    done = promote(Installation(two), NAME, 2, despite="version 1 never ends")
    assert (done["barrier"], done["behind_records"]) == ({"0": 1000, "1": 0}, 990)


def test_what_was_approved_is_promoted_and_nothing_else(two: Settings) -> None:
    """A promotion names the change after which it was approved, and is refused if another change came since.
    The same holds for the back-out of a promotion.
    """
    caught_up(two)
    versions = Versions(LeaseTable(two))
    approved = versions.of(NAME).change
    assert approved is not None
    promote(Installation(two), NAME, 2, since=approved.id)
    promoted = versions.of(NAME).change
    back_out(Installation(two), NAME)
    with pytest.raises(VersionRefusedError, match="something changed since it was approved") as caught:
        promote(Installation(two), NAME, 2, despite="never mind", since=approved.id)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == PROMOTED
    assert "Compare it again" in str(caught.value.fields["cure"])
    promote(Installation(two), NAME, 2, despite="never mind")
    assert promoted is not None
    with pytest.raises(VersionRefusedError, match="something changed since that promotion"):
        versions.back_out(NAME, since=promoted.id)
    assert versions.of(NAME).active == 2


def test_a_seam_that_is_still_open_in_the_old_version_is_waited_for(two: Settings) -> None:
    """Readers would miss the windows that the old version has not closed yet."""
    begin(two, seam_ms=9_500)
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    proved(two)
    with pytest.raises(
        VersionRefusedError,
        match=r"end by 1970-01-01T00:00:09\.5.* from version 1, and some of them are open there",
    ) as caught:
        promote(Installation(two), NAME, 2)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == PROMOTED
    assert "--despite" in str(caught.value.fields["cure"])
    for version in (1, 2):
        at(two, version, 60, 9_500)
    assert promote(Installation(two), NAME, 2)["promoted"]


@pytest.mark.parametrize("act", [plan_promotion, promote])
def test_only_the_last_promotion_is_done_already(
    two: Settings, act: Callable[[Installation, str, int], object]
) -> None:
    """The last change did not promote a version that is active from the start or again, nor the one that was
    active before.
    """
    with pytest.raises(VersionRefusedError, match="it is active already") as caught:
        act(Installation(two), NAME, 1)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == {
        **PROMOTED,
        "version": 1,
    }
    caught_up(two)
    with pytest.raises(VersionRefusedError, match="it is active already"):
        act(Installation(two), NAME, 1)
    promote(Installation(two), NAME, 2)
    with pytest.raises(VersionRefusedError, match="it is not a shadow"):
        act(Installation(two), NAME, 1)
    back_out(Installation(two), NAME)
    with pytest.raises(VersionRefusedError, match="it is active already"):
        act(Installation(two), NAME, 1)
