"""Random histories of a pipeline's versions: one version is active, and readers get each window once and
whole.

That holds whatever is done in whatever order.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from hindcast.errors import VersionRefusedError
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import swap
from hindcast.partitions import ShardId
from hindcast.shards.pipeline_row import (
    SHADOW,
    DesiredState,
    InactiveState,
    InactiveVersion,
    PipelineRow,
    desired_key,
)
from hindcast.shards.version_changes import Versions
from hindcast.testing import MemoryStore

NAME = "p"
#: What is tried, as often as it stands here.
#: "next" is what an operator would do who likes to go to and fro.
WHAT = ["next"] * 6 + ["begin", "promote", "back out", "retire", "discard", "promote any"]


class Histories(RuleBasedStateMachine):
    """Any order of start, promotion, back-out, retirement and discarding. Each is tried whether it is allowed
    or not.
    """

    #: In how many histories each of them was done, by its name; under "" how many there were.
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.done: set[str] = set()
        self.store = MemoryStore()

        detail = {"version": 1, "shards": 1, "workers": 1}
        row = Lease(
            stream_id=NAME,
            status_type=StatusType.PIPELINE,
            status_value="active",
            state=DesiredState.RUNNING,
            detail=detail,
        )
        swap(self.store, lambda _: [row])
        self.versions = Versions(self.store)
        self.seams: dict[int, int] = {1: 0}  # version -> it has all windows that end after it
        self.deleted: set[int] = set()
        self.next = 2

    @rule(
        what=st.sampled_from(WHAT),
        seam=st.one_of(st.none(), st.integers(1, 100)),
        version=st.integers(1, 9),
        finish=st.booleans(),
    )
    def happen(self, what: str, seam: int | None, version: int, finish: bool) -> None:
        """One rule does everything: Hypothesis leaves whole rules out of most histories, and a back-out needs
        several of them.
        """
        beside = self.versions.of(NAME).beside
        if what == "next":
            shadow = beside is not None and beside.state in SHADOW
            what = (
                "begin"
                if beside is None
                else "discard"
                if beside.leaving
                else "promote"
                if shadow
                else "back out"
            )
        if what == "begin":
            self.begin(seam)
        elif what == "promote any":
            self.promote(version)
        elif what == "back out":
            self.back_out()
        elif what == "retire":
            self.versions.keep_warm(self.versions.of(NAME), 0.0)
        elif beside is not None and what == "promote":
            self.promote(beside.version)
        elif beside is not None:
            self.discard(beside.version, finish)

    def begin(self, seam: int | None) -> None:
        try:
            beside = InactiveVersion(
                version=self.next, state=InactiveState.CATCHING_UP, shards=1, tables=(), seam_ms=seam
            )
            self.versions.begin(NAME, beside, {0: 0}, columns_from=self.versions.of(NAME).active)
        except VersionRefusedError:
            return
        self.seams[self.next] = seam or 0
        self.next += 1

    def promote(self, version: int) -> None:
        rollout = self.versions.of(NAME)
        since = rollout.change.id if rollout.change else ""
        try:
            self.versions.promote(
                NAME, version, (f"sinks/p_{rollout.active}",), warm_seconds=0.0, barrier={0: 1}, since=since
            )
        except VersionRefusedError:
            return
        assert version not in self.deleted
        self.done.add("promoted again" if "backed out" in self.done else "promoted")

    def back_out(self) -> None:
        before = self.versions.of(NAME)
        try:
            after = self.versions.back_out(NAME)
        except VersionRefusedError:
            return
        assert before.beside is not None
        assert (after.active, after.earlier) == (before.beside.version, before.beside.earlier)
        self.done.add("backed out")

    def discard(self, version: int, finish: bool) -> None:
        try:
            self.versions.leave(NAME, version)
        except VersionRefusedError:
            return
        if finish:
            self.versions.remove(NAME, version)
            self.deleted.add(version)

    @invariant()
    def one_version_is_active_and_readers_get_each_window_once_and_whole(self) -> None:
        rollout = self.versions.of(NAME)
        assert rollout.active not in self.deleted
        assert rollout.beside is None or rollout.beside.version != rollout.active
        ends = [one.to_ms for one in rollout.earlier]
        assert ends == sorted(set(ends))
        edges = {1, 101, *ends, *(seam for seam in self.seams.values() if seam)}
        for window_end in edges | {edge + 1 for edge in edges}:
            holders = [one.version for one in rollout.earlier if window_end <= one.to_ms][:1] or [
                rollout.active
            ]
            assert window_end > self.seams[holders[0]]
            assert holders[0] not in self.deleted

    @invariant()
    def the_wanted_versions_have_their_shards_and_the_discarded_have_none(self) -> None:
        snapshot = self.store.read()
        wanted = PipelineRow.of(snapshot.leases[desired_key(NAME)]).wanted_versions
        held = {
            ShardId.parse(key.status_value).version
            for key in snapshot.leases
            if key.status_type == StatusType.SHARD
        }
        assert set(wanted) - {1} <= held
        assert not held & self.deleted
        assert len(wanted) <= 2

    def teardown(self) -> None:
        """Count."""
        self.seen.update({"", *self.done})


def test_histories_of_versions() -> None:
    """Every history that is drawn holds, and most of them promote and back out."""
    Histories.seen.clear()
    run_state_machine_as_test(Histories, settings=settings(max_examples=60, stateful_step_count=30))
    seen = Histories.seen
    assert all(seen[one] > seen[""] / 2 for one in ("promoted", "backed out")), seen
