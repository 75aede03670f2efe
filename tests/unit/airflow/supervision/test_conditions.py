"""The supervisor's judgement: when it wakes, when it goes on sleeping, and which workers it counts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.fleet_sample import desired, shard, slot

from hindcast.airflow.supervision.conditions import WakeReason, Watcher, heartbeat, settle, slots_wanted
from hindcast.airflow.supervision.restart_backoff import (
    HOUR,
    RestartBackoff,
    backoff_seconds,
    files_fingerprint,
)
from hindcast.leases.lease import Lease
from hindcast.settings import Settings

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WANTED = {"stock_stats": "running at version 1, 2 shards, 2 workers"}


class SteppedClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def outlook_factory() -> Callable[..., RestartBackoff]:
    """An outlook of a healthy, reconciled fleet of two; keyword arguments change it."""

    def make(**changes: Any) -> RestartBackoff:
        values: dict[str, Any] = {
            "faults": frozenset(),
            "desired": WANTED,
            "files": "f",
            "empty_slots": False,
            "slot_wakes": 0,
            "other_wakes": 0,
        }
        return RestartBackoff.after(NOW, **{**values, **changes})

    return make


class Watch:
    """A watcher over two slots whose owners renew at each look, unless they are said to be dead."""

    def __init__(self, outlook: RestartBackoff, settings: Settings, clock: SteppedClock) -> None:
        self.watcher = Watcher(outlook, settings, clock)
        self.clock = clock
        self.counter = 0
        self.dead: dict[int, int] = {}
        self.extra: list[Lease] = []
        self.wanted = desired()

    def leases(self) -> list[Lease]:
        self.counter += 1
        slots = [
            slot(number, f"worker-{number}", counter=self.dead.get(number, self.counter)) for number in (0, 1)
        ]
        return [self.wanted, *slots, *self.extra]

    def kill(self, number: int) -> None:
        self.dead[number] = self.counter

    def until_wake(self, seconds: float, failures: Any = (), files: str = "f") -> Any:
        """Look each second for so long; the first wake, or None."""
        end = self.clock.seconds + seconds
        while self.clock.seconds < end:
            if wake := self.watcher.look(self.leases(), failures, files):
                return wake
            self.clock.seconds += 1
        return None


@pytest.fixture
def watch_factory(settings: Settings, clock: SteppedClock) -> Callable[[RestartBackoff], Watch]:
    return lambda outlook: Watch(outlook, settings, clock)


def test_a_healthy_fleet_lets_the_supervisor_sleep_for_an_hour(
    outlook_factory: Any, watch_factory: Any, clock: SteppedClock
) -> None:
    """Nothing but the hour wakes it."""
    wake = watch_factory(outlook_factory()).until_wake(2 * HOUR.total_seconds())
    assert wake.reason is WakeReason.HOUR_GONE
    assert clock.seconds == HOUR.total_seconds()


def test_a_worker_that_stops_renewing_wakes_it_after_one_lease(
    outlook_factory: Any, watch_factory: Any, clock: SteppedClock
) -> None:
    """Not before a lease has gone, and with the sign that the dead worker left."""
    watch = watch_factory(outlook_factory())
    assert watch.until_wake(30) is None
    watch.kill(1)
    killed = clock.seconds
    wake = watch.until_wake(60)
    assert wake.reason is WakeReason.WORKER_LOST
    assert "worker-1" in wake.message
    assert 9 <= clock.seconds - killed <= 11
    assert wake.lost == {"1": ("worker-1", 1, watch.dead[1])}


def test_a_slot_that_was_never_taken_wakes_it(
    outlook_factory: Any, settings: Settings, clock: SteppedClock
) -> None:
    """A fleet whose slot rows do not exist is a fleet without workers."""
    wake = Watcher(outlook_factory(), settings, clock).look([desired()], (), "f")
    assert wake is not None
    assert wake.reason is WakeReason.SLOT_FREE
    assert wake.faults == ["slot_empty:0", "slot_empty:1"]


def test_a_known_fault_does_not_wake_it_again(
    outlook_factory: Any, watch_factory: Any, clock: SteppedClock
) -> None:
    """A slot that reconciling could not fill is left alone until the retry, even though a new watch first
    takes the dead for living.
    """
    outlook = outlook_factory(faults=frozenset({"slot_empty:1"}), empty_slots=True)
    watch = watch_factory(outlook)
    watch.kill(1)
    wake = watch.until_wake(3600)
    assert wake.reason is WakeReason.NOT_MENDED
    assert clock.seconds == 60


def test_a_fault_that_was_mended_and_comes_back_wakes_it(outlook_factory: Any, watch_factory: Any) -> None:
    """Known is only what stays."""
    watch = watch_factory(outlook_factory(faults=frozenset({"slot_empty:1"}), empty_slots=True))
    assert watch.until_wake(30) is None  # the launched worker renews
    watch.kill(1)
    assert watch.until_wake(30).reason is WakeReason.WORKER_LOST


def test_frequent_wakes_make_it_wait_before_the_next(
    outlook_factory: Any, watch_factory: Any, clock: SteppedClock
) -> None:
    """Workers that come up and die at once are not relaunched every few seconds."""
    watch = watch_factory(outlook_factory(slot_wakes=7))
    watch.kill(0)
    assert watch.until_wake(600).reason is WakeReason.WORKER_LOST
    assert clock.seconds == backoff_seconds(7) == 120


def test_a_query_that_fails_again_and_again_does_not_delay_the_replacement_of_a_worker(
    outlook_factory: Any, watch_factory: Any
) -> None:
    """Failures that can only be reported have a back-off of their own."""
    watch = watch_factory(outlook_factory(other_wakes=20))
    assert watch.until_wake(30, failures=[{"event_id": "e1", "message": "failed"}]) is None
    watch.kill(0)
    assert watch.until_wake(30).reason is WakeReason.WORKER_LOST


def test_back_off_doubles_from_15_seconds_to_an_hour() -> None:
    """The first few wakes of an hour are free."""
    assert [backoff_seconds(count) for count in (0, 3, 4, 5, 6)] == [0, 0, 15, 30, 60]
    assert backoff_seconds(1_000_000) == 3600


def test_a_changed_desired_state_wakes_it_at_once(outlook_factory: Any, watch_factory: Any) -> None:
    """Also during a back-off: a person asked for it."""
    watch = watch_factory(outlook_factory(slot_wakes=9, other_wakes=9))
    watch.wanted = desired(state="drained")
    wake = watch.until_wake(1)
    assert wake.reason is WakeReason.DESIRED_CHANGED
    assert "stock_stats: desired state is now drained" in wake.message


def test_changed_pipeline_files_wake_it(outlook_factory: Any, watch_factory: Any) -> None:
    """A new pipeline does not wait for the hour."""
    assert (
        watch_factory(outlook_factory()).until_wake(1, files="other").reason is WakeReason.PIPELINES_CHANGED
    )


def test_lag_over_the_limit_wakes_it_once(
    outlook_factory: Any, watch_factory: Any, settings: Settings
) -> None:
    """The next watch, told of it, sleeps on."""
    lagging = shard("stock_stats", 0, "worker-0", lag=settings.lag_limit_records + 1)
    watch = watch_factory(outlook_factory())
    watch.extra = [lagging]
    wake = watch.until_wake(1)
    assert wake.reason is WakeReason.LAG_OVER_LIMIT
    assert "stock_stats/v1.g0.s0" in wake.message
    watch = watch_factory(outlook_factory(faults=frozenset(wake.faults)))
    watch.extra = [lagging]
    assert watch.until_wake(120) is None


def test_lag_of_a_paused_pipeline_is_nobodys_fault(
    outlook_factory: Any, watch_factory: Any, settings: Settings
) -> None:
    """A paused stream falls behind on purpose."""
    watch = watch_factory(
        outlook_factory(desired={"stock_stats": "paused at version 1, 2 shards, 2 workers"})
    )
    watch.wanted = desired(state="paused")
    watch.extra = [shard("stock_stats", 0, "", lag=10 * settings.lag_limit_records)]
    assert watch.until_wake(120) is None


def test_a_failed_query_wakes_it_with_the_events_own_words(outlook_factory: Any, watch_factory: Any) -> None:
    """The message is the one that the worker wrote."""
    failure = {"event_id": "e1", "message": "The query of stock_stats/v1.g0.s0 failed: no space left."}
    wake = watch_factory(outlook_factory()).until_wake(1, failures=[failure])
    assert wake.reason is WakeReason.QUERY_FAILED
    assert wake.message == failure["message"]


def test_an_outlook_survives_its_way_through_json(outlook_factory: Any) -> None:
    """What goes through XCom and the trigger's arguments comes back equal."""
    outlook = outlook_factory(
        faults=frozenset({"slot_empty:0", "shard_lags:a/b"}), empty_slots=True, slot_wakes=5, other_wakes=6
    )
    assert RestartBackoff.from_json(outlook.to_json()) == outlook


def test_no_worker_is_wanted_while_all_pipelines_are_paused(settings: Settings) -> None:
    """A drained one still needs workers: it is to be consumed to its end."""
    assert slots_wanted([desired(state="paused")], settings) == []
    assert slots_wanted([desired(state="paused"), desired("other", "drained")], settings) == ["0", "1"]
    assert slots_wanted([], settings) == []


def test_settling_in_a_healthy_fleet_takes_one_renewal(settings: Settings, clock: SteppedClock) -> None:
    """As soon as each owner was seen to renew there is nothing to wait for."""
    reads = iter(range(100))

    def read() -> list[Lease]:
        counter = next(reads) // 3
        return [desired(), slot(0, "a", counter=counter), slot(1, "b", counter=counter)]

    _, empty = settle(read, settings, clock, clock.wait, {})
    assert empty == []
    assert clock.seconds <= 3


def test_settling_calls_a_silent_owner_dead_after_one_lease(settings: Settings, clock: SteppedClock) -> None:
    """One read cannot tell the living from the dead."""
    _, empty = settle(
        lambda: [desired(), slot(0, "a", counter=int(clock.seconds)), slot(1, "b")],
        settings,
        clock,
        clock.wait,
        {},
    )
    assert empty == ["1"]
    assert settings.lease_seconds <= clock.seconds <= settings.lease_seconds * 1.25


def test_settling_does_not_wait_for_an_owner_that_was_already_watched(
    settings: Settings, clock: SteppedClock
) -> None:
    """The trigger watched it for a whole lease; while its sign is the same it is dead."""
    dead = slot(1, "b")
    _, empty = settle(
        lambda: [desired(), slot(0, "a", counter=int(clock.seconds)), dead],
        settings,
        clock,
        clock.wait,
        {"1": heartbeat(dead)},
    )
    assert empty == ["1"]
    assert clock.seconds <= 2


def test_settling_waits_for_an_owner_that_has_renewed_since(settings: Settings, clock: SteppedClock) -> None:
    """A worker that was only paused is alive again: its counter moved on from the sign."""
    stale = slot(1, "b", counter=3)

    def read() -> list[Lease]:
        return [
            desired(),
            slot(0, "a", counter=int(clock.seconds)),
            slot(1, "b", counter=4 + int(clock.seconds)),
        ]

    assert settle(read, settings, clock, clock.wait, {"1": heartbeat(stale)})[1] == []


def test_the_fingerprint_follows_the_files(tmp_path: Any) -> None:
    """Editing, adding and removing a pipeline's file each change it; another kind of file does not."""
    (tmp_path / "a.py").write_text("x = 1")
    first = files_fingerprint(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    assert files_fingerprint(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2")
    second = files_fingerprint(tmp_path)
    (tmp_path / "b.py").write_text("")
    assert len({first, second, files_fingerprint(tmp_path)}) == 3


def test_the_fingerprint_follows_what_pipelines_import(tmp_path: Any) -> None:
    """A mend of a module in a folder beside them may be all that a refused pipeline waits for."""
    (tmp_path / "a.py").write_text("from rules.tax import rate")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "tax.py").write_text("rate = 1 / 0")
    broken = files_fingerprint(tmp_path)
    (tmp_path / "rules" / "tax.py").write_text("rate = 0.2")
    assert files_fingerprint(tmp_path) != broken
