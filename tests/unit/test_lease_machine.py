"""Random histories of several workers on a faulty store: at no moment do two of them hold one shard."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hindcast.control import shards
from hindcast.control.keeper import Keeper
from hindcast.control.leases import Lease, LeaseKey, StatusType
from hindcast.control.store import Snapshot
from hindcast.errors import HindcastError
from hindcast.testing import FakeClock, MemoryStore, Outcome

LEASE = 8.0
WORKERS = 3


class LeaseMachine(RuleBasedStateMachine):
    """Workers step, close, pause, die and come back while the store conflicts, fails and forgets to answer."""

    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.clock = FakeClock()
        self.outcome = Outcome.OK
        self.store = MemoryStore(self._answer)
        self.keys = [lease.key for lease in shards.create(self.store, "p", 1, count, dict.fromkeys(range(count), 0))]
        self.born = 0
        self.workers: dict[str, Keeper] = {}
        self.epochs: dict[LeaseKey, tuple[int, str]] = {}
        for _ in range(WORKERS):
            self._spawn()

    def _answer(self) -> Outcome:
        outcome, self.outcome = self.outcome, Outcome.OK
        return outcome

    def _spawn(self) -> None:
        name = f"w{self.born}"
        self.born += 1
        self.workers[name] = Keeper(
            self.store, self.clock, owner=name, fleet="f", slots=WORKERS, lease_seconds=LEASE, wanted=lambda *_: True, sleep=lambda _: None
        )
        self.workers[name].acquire_slot(self._wait)

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(pick=st.integers(0, 9), outcome=st.sampled_from(Outcome))
    def step(self, pick: int, outcome: Outcome) -> None:
        """A worker renews; whatever it must close is closed at once or never, as the next rule decides."""
        name = sorted(self.workers)[pick % len(self.workers)]
        self.outcome = outcome
        try:
            self.workers[name].step()
        except HindcastError:
            pass
        finally:
            self.outcome = Outcome.OK

    @rule(pick=st.integers(0, 9), which=st.integers(0, 9))
    def close(self, pick: int, which: int) -> None:
        """A consumer that was running has stopped."""
        name = sorted(self.workers)[pick % len(self.workers)]
        self.workers[name].closed(self.keys[which % len(self.keys)])

    @rule(seconds=st.floats(0.0, LEASE * 1.5))
    def wait(self, seconds: float) -> None:
        """Time passes for everybody: a pause of all that do not step meanwhile."""
        self.clock.advance(seconds)

    @precondition(lambda self: len(self.workers) > 1)
    @rule(pick=st.integers(0, 9))
    def die(self, pick: int) -> None:
        """Kill -9, and another process in its place."""
        del self.workers[sorted(self.workers)[pick % len(self.workers)]]
        self._spawn()

    @rule(seconds=st.integers(-7200, 7200))
    def jump(self, seconds: int) -> None:
        """The wall clock jumps; nothing may depend on it."""
        self.clock.wall_offset += type(self.clock.wall_offset)(seconds=seconds)

    @invariant()
    def one_owner(self) -> None:
        """No two workers believe at the same time that they may act for a shard."""
        for key in getattr(self, "keys", []):
            held = {name: worker._held.get(key) for name, worker in self.workers.items()}
            believers = [name for name, mine in held.items() if mine is not None and self.workers[name].holds(key, mine.epoch)]
            assert len(believers) <= 1, f"{believers} all hold {key}"

    @invariant()
    def epochs_rise_with_owners(self) -> None:
        """A shard's epoch never falls, and a new owner always comes with a new epoch."""
        for key, lease in self._shards().items():
            epoch, owner = self.epochs.get(key, (0, ""))
            assert lease.epoch >= epoch
            if lease.lease_owner and lease.lease_owner != owner:
                assert lease.epoch > epoch, f"{key} went from {owner!r} to {lease.lease_owner!r} within epoch {epoch}"
            if lease.lease_owner:
                self.epochs[key] = (lease.epoch, lease.lease_owner)

    def _shards(self) -> dict[LeaseKey, Lease]:
        snapshot = self.store.read() if hasattr(self, "store") else Snapshot({})
        return {key: lease for key, lease in snapshot.leases.items() if lease.status_type is StatusType.SHARD}

    def teardown(self) -> None:
        """Once the faults end, every shard is owned within three leases."""
        if not hasattr(self, "store"):
            return
        for _ in range(16):
            self.clock.advance(LEASE / 4)
            for worker in self.workers.values():
                for key in worker.step().close:
                    worker.closed(key)
        live = set(self.workers)
        assert all(lease.lease_owner in live for lease in self._shards().values())


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
