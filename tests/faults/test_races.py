"""Races between real processes on real tables, without Spark: many that want one lease, many that write one
sink.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow.fs import FileSelector

from hindcast.clock import SystemClock
from hindcast.delta.files import filesystem
from hindcast.errors import StoreUnavailableError
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import Snapshot, swap
from hindcast.processes.end_with_parent import exit_now
from hindcast.settings import Settings
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.spark.parquet_writer import _write_file
from hindcast.tables.fenced_sink import Fence, FencedTable

LEASE_SECONDS = 1.0
COMMITS, COMMITS_QUICK = 4_000, 200
WRITERS = 4
SCHEMA = pa.schema([("writer", pa.int64()), ("n", pa.int64())])


class AtOnce(LeaseTable):
    """The real lease table, whose first taking commit waits until every other process is about to make its
    own.
    """

    def __init__(self, settings: Settings, barrier: multiprocessing.synchronize.Barrier) -> None:
        super().__init__(settings)
        self._barrier: multiprocessing.synchronize.Barrier | None = barrier

    def commit(self, snapshot: Snapshot, changes: Any) -> None:
        wanted = list(changes)
        if self._barrier is not None and any(
            lease.status_type is StatusType.SHARD and lease.epoch == 8 for lease in wanted
        ):
            barrier, self._barrier = self._barrier, None
            barrier.wait(timeout=30.0)
        super().commit(snapshot, wanted)


def _steal(settings: Settings, name: str, barrier: Any, started: Any, won: Any) -> None:
    """Hold a slot, see the dead owner's lease expire, and take it at the same moment as the others."""
    store = AtOnce(settings, barrier)
    coordinator = LeaseCoordinator(
        store,
        SystemClock(),
        owner=name,
        fleet="f",
        slots=8,
        lease_seconds=LEASE_SECONDS,
        wanted=lambda *_: True,
    )
    assert coordinator.acquire_slot(lambda _: None)
    started.wait(timeout=60.0)
    row = None
    deadline = SystemClock().monotonic() + 60.0
    while row is None or row.lease_owner == "dead":
        assert SystemClock().monotonic() < deadline, "the dead owner's lease was never taken"
        for lease in coordinator.renew().gained:
            if lease.status_type is StatusType.SHARD:
                won.put((name, lease.epoch))
        row = next(lease for lease in store.leases() if lease.status_type is StatusType.SHARD)
    won.close()
    won.join_thread()
    exit_now(0)


@pytest.mark.row("F7")
@pytest.mark.parametrize("thieves", [2, 4])
def test_many_steal_one_lease_at_once(
    settings_factory: Callable[..., Settings],
    placed: Callable[[Settings], Settings],
    seed: int,
    thieves: int,
    record_property: Any,
) -> None:
    """All have decided on the same snapshot before the first commits: exactly one wins, in the next epoch,
    and the others learn it.
    """
    settings = placed(settings_factory())
    store = LeaseTable(settings)
    swap(
        store,
        lambda _: [
            Lease(
                stream_id="p",
                status_type=StatusType.SHARD,
                status_value="v1.g0.s0",
                lease_owner="dead",
                epoch=7,
            )
        ],
    )
    context = multiprocessing.get_context("spawn")
    barrier, started, won = context.Barrier(thieves), context.Barrier(thieves), context.Queue()
    processes = [
        context.Process(target=_steal, args=(settings, f"w{number}", barrier, started, won))
        for number in range(thieves)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=90)
    assert [process.exitcode for process in processes] == [0] * thieves
    wins = [won.get(timeout=5)]
    while not won.empty():
        wins.append(won.get())
    # On a busy machine the winner's own short lease may expire, too: then the next epoch has its one winner.
    assert sorted(epoch for _, epoch in wins) == list(range(8, 8 + len(wins))), (
        f"each epoch has one winner: {wins}"
    )
    (row,) = [lease for lease in store.leases() if lease.status_type is StatusType.SHARD]
    assert (row.lease_owner, row.epoch) == max(wins, key=lambda win: win[1])
    record_property("oracles", "I3")


def _append(url: str, options: dict[str, str], writer: int, commits: int) -> None:
    table = FencedTable(url, options, f"p/v1/v1.g0.s{writer}")
    last = None
    for n in range(commits):
        rows = pa.table({"writer": [writer], "n": [n]}, schema=SCHEMA)
        file = _write_file(rows, url, options, f"w{writer}")
        fence = Fence(1, n + 1)
        while True:
            try:
                table.commit(fence, [file], after=last)
                break
            except StoreUnavailableError:
                # The others were faster forty times: a worker gives the shard back here, and tries again.
                continue
        last = fence
    exit_now(0)


@pytest.mark.row("F30")
def test_several_processes_append_to_one_sink(
    settings_factory: Callable[..., Settings],
    placed: Callable[[Settings], Settings],
    seed: int,
    record_property: Any,
    quick: bool,
) -> None:
    """Four processes make thousands of commits into one table: every one of them is there, once."""
    commits = COMMITS_QUICK if quick else COMMITS
    settings = placed(settings_factory())
    url = settings.table("sinks", "shared")
    options = settings.storage_options
    FencedTable(url, options, "p/v1/v1.g0.s0").create(SCHEMA)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_append, args=(url, options, writer, commits // WRITERS))
        for writer in range(WRITERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=500)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    table = DeltaTable(url, storage_options=options or None)
    rows = table.to_pyarrow_table().to_pylist()
    found = [(row["writer"], row["n"]) for row in rows]
    assert len(found) == len(set(found)) == commits
    assert set(found) == {(writer, n) for writer in range(WRITERS) for n in range(commits // WRITERS)}
    assert table.version() == commits, "each commit is a version"
    files = [info for info in filesystem(url, options).get_file_info(FileSelector("")) if info.is_file]
    assert len(files) == commits, "no file is left unnamed"
    record_property("oracles", "I1 I2")
