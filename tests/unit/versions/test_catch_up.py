"""How far a version has come: by the last commit of each shard in its own table, and by its leases before
there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from support.opened_tables import record_opened_tables

from hindcast.leases.lease import Lease, ShardState
from hindcast.leases.store import swap
from hindcast.partitions import Offsets, app_id
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.tables.ledger import Ledger
from hindcast.testing import MemoryStore
from hindcast.versions.catch_up import VersionPosition, position, position_by


@dataclass(frozen=True)
class Commit:
    """What a shard's last commit says."""

    end_offsets: Offsets
    watermark_ms: int
    floors: Offsets = field(default_factory=dict)


def by(leases: list[Lease], **commits: Commit) -> VersionPosition:
    """How far version 1 has come, if these are the last commits of its shards ``s0``, ``s1`` and so on, all
    of the first generation.
    """

    def last_commit(lease: Lease) -> Commit | None:
        return commits.get(lease.status_value.removeprefix("v1.g0."))

    return position_by(leases, "p", 1, last_commit)


def test_a_version_is_final_up_to_its_slowest_partition() -> None:
    """If nothing was read, nothing is final."""
    assert VersionPosition({0: 9, 1: 9}, {0: 700, 1: 300}).horizon_ms == 300
    assert VersionPosition({}, {}).horizon_ms == 0


@pytest.mark.parametrize(
    ("own", "behind"),
    [
        ({0: 10, 1: 20}, 0),
        ({0: 9, 1: 18}, 3),
        ({0: 9, 1: 99}, 1),
        ({0: 10}, 20),
        ({0: 10, 1: 20, 2: 5}, 0),
        ({}, 30),
    ],
)
def test_records_behind_are_those_that_the_other_has_read_alone(own: Offsets, behind: int) -> None:
    """They are summed over the partitions. A partition that is ahead does not make up for another one, and of
    an unknown partition nothing was read.
    """
    other = VersionPosition({0: 10, 1: 20}, {})
    assert VersionPosition(own, {}).behind(other) == behind
    assert VersionPosition(own, {}).covers(other) == (behind == 0)


@pytest.mark.parametrize(("final_ms", "covers"), [(499, False), (500, True), (501, True)])
def test_a_version_covers_what_it_has_read_and_closed(final_ms: int, covers: bool) -> None:
    """Having read as far is not enough: a window that the other has closed may still be open."""
    assert VersionPosition({0: 10}, {0: final_ms}).covers(VersionPosition({0: 10}, {0: 500})) is covers


def test_the_last_commit_says_more_than_the_lease() -> None:
    """The lease learns of a commit later. A shard that has committed nothing is where its lease says. Only a
    partition of which something was read closes windows.
    """
    first, second, third = resharding.create(MemoryStore(), "p", 1, 3, {0: 5, 1: 6, 2: 0})
    second = second.evolve(checkpoint={**second.checkpoint, "end_offsets": {"1": 9}, "watermark_ms": 400})
    leases = [first, second, third]
    assert by(leases) == VersionPosition({0: 5, 1: 9, 2: 0}, {1: 400})
    both = by(leases, s0=Commit({0: 8}, 300), s1=Commit({1: 12}, 450))
    assert both == VersionPosition({0: 8, 1: 12, 2: 0}, {0: 300, 1: 450})
    others = by(leases, s0=Commit({0: 5}, 0), s2=Commit({2: 1}, 70))
    assert others == VersionPosition({0: 5, 1: 9, 2: 1}, {1: 400, 2: 70})


def test_what_was_read_before_any_watermark_is_open_yet() -> None:
    """No window that ends after 1970 is final, by the commit and by the lease alike."""
    (lease,) = resharding.create(MemoryStore(), "p", 1, 1, {0: 5})
    assert by([lease], s0=Commit({0: 6}, 0)) == VersionPosition({0: 6}, {0: 0})
    read = lease.evolve(checkpoint={**lease.checkpoint, "end_offsets": {"0": 6}})
    assert by([read]) == VersionPosition({0: 6}, {0: 0})


def test_what_was_final_before_a_commit_stays_final() -> None:
    """The greatest counts: of the commit's watermark, of its floor for the partition, and of what the lease
    knows.
    """
    (lease,) = resharding.create(MemoryStore(), "p", 1, 1, {0: 5, 1: 5})
    commit = Commit({0: 8, 1: 8}, 300, {1: 350})
    assert by([lease], s0=commit).final_ms == {0: 300, 1: 350}
    further = lease.evolve(checkpoint={**lease.checkpoint, "watermark_ms": 320})
    assert by([further], s0=commit).final_ms == {0: 320, 1: 350}
    begun = lease.evolve(checkpoint={**lease.checkpoint, "floors": {"0": 310, "1": 360}})
    assert by([begun], s0=commit).final_ms == {0: 310, 1: 360}, "each partition has a floor of its own"


def test_a_child_that_has_read_nothing_keeps_what_was_final_for_its_parent() -> None:
    """A shard that waits for its parent is where the parent is."""
    store = MemoryStore()
    (root,) = resharding.create(store, "p", 1, 1, {0: 5, 1: 5})
    resharding.reshard(store, "p", 1, 2, {0: 0, 1: 0})
    read = root.evolve(checkpoint={**root.checkpoint, "end_offsets": {"0": 8, "1": 9}, "watermark_ms": 600})
    swap(store, lambda _: [read])
    assert by(list(store.read().leases.values())) == VersionPosition({0: 8, 1: 9}, {0: 600, 1: 600})
    swap(store, lambda _: [read.evolve(state=ShardState.TERMINATED)])
    swap(store, lambda snapshot: resharding.opened(snapshot.leases))
    assert by(list(store.read().leases.values())) == VersionPosition({0: 8, 1: 9}, {0: 600, 1: 600})


def commit(settings: Settings, shard: str, batch: int, offsets: Offsets) -> None:
    """Commit a batch without rows to the table ``t``."""
    table = FencedTable(settings.table("sinks", "t"), {}, app_id("p", shard))
    table.create(pa.schema([("k", pa.string())]))
    said = BatchCommit(
        kind="batch",
        pipeline="p",
        version=1,
        shard=shard,
        epoch=1,
        batch=batch,
        worker="w",
        start_offsets=dict.fromkeys(offsets, 0),
        end_offsets=offsets,
        late_watermark_ms=0,
        watermark_ms=batch * 100,
    )
    after = None
    if batch > 1:
        after = Fence(1, batch - 1)
    table.commit(Fence(1, batch), [], said.as_metadata(), after=after)


def ledger_of(settings: Settings) -> Ledger:
    return Ledger(ControlTables(settings))


def test_the_versions_own_table_is_read(settings: Settings) -> None:
    """Each shard's newest commit in it counts, even if other shards have committed since. Before there is a
    table the leases count.
    """
    leases = resharding.create(MemoryStore(), "p", 1, 2, {0: 0, 1: 0})
    assert position(settings, ledger_of(settings), "t", leases, "p", 1) == VersionPosition({0: 0, 1: 0}, {})
    commit(settings, "v1.g0.s0", 1, {0: 3})
    commit(settings, "v1.g0.s0", 2, {0: 7})
    assert position(settings, ledger_of(settings), "t", leases, "p", 1) == VersionPosition(
        {0: 7, 1: 0}, {0: 200}
    )
    commit(settings, "v1.g0.s1", 1, {1: 4})
    assert position(settings, ledger_of(settings), "t", leases, "p", 1) == VersionPosition(
        {0: 7, 1: 4}, {0: 200, 1: 100}
    )
    assert position(settings, ledger_of(settings), "other", leases, "p", 1) == VersionPosition(
        {0: 0, 1: 0}, {}
    )


def test_a_table_is_read_with_the_stores_options(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them an object store refuses the request."""
    options = {"allow_http": "true"}
    seen = record_opened_tables(monkeypatch)
    leases = resharding.create(MemoryStore(), "p", 1, 1, {0: 0})
    position(
        settings.model_copy(update={"storage_options": options}), ledger_of(settings), "t", leases, "p", 1
    )
    sink = settings.table("sinks", "t")
    assert [given for url, given in seen if url == sink] == [options]
