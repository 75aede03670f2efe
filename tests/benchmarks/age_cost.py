"""What a stream costs after a month, beside what it costs on its first day.

``make bench-age``: makes the tables of a new stream and those of one with a million commits behind it (a
command of seconds: :mod:`support.aged_tables`), lets the stream's own upkeep tidy both, and measures each
operation on both in turns, in one run. Prints the medians and their ratio, and as its last line one JSON
object.

``commit``     one batch into the sink, by the owner of a busy shard
``take-over``  of a busy shard: the ledger is read, the sink is sealed, the ledger is repaired
``quiet``      of a shard whose only batch was the first of the log's tail, beside a busy one's. The first
               take-over after so long is one of a kind, so each is of a copy of the aged tables; ``later``
               ones follow each other in one table
``renewal``    a commit of all leases, and the ledger rows of the batches since the last
``plan``       of the last hour, after the hour before it was planned: the ledger, the sink's version, and the
               plan; the topic is left out. ``first plan`` is the one before, of the whole ledger
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from support import aged_tables
from support.aged_tables import RECORDS, Stream
from support.benchmark_figures import Figure, expect, print_figures

from hindcast.delta.files import DataFile
from hindcast.installation import Installation
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import Snapshot, swap
from hindcast.recovery import takeover
from hindcast.replay.planner import ReplayInputs, make_plan
from hindcast.replay.request import ReplayRequest
from hindcast.settings import Settings
from hindcast.tables.fenced_sink import Fence, FencedTable, sink_end
from hindcast.tables.ledger_bases import LedgerBases, fenced_by, worth_keeping
from hindcast.tables.oldest_batches import HistoryTooShortError

PIPELINE = "stock_stats"
#: At most so many pairs of one operation are measured, for at most so many seconds, and at least one.
PAIRS = 60
SECONDS = 30.0
#: So many copies of the aged tables are made for first take-overs of a quiet shard, as many for a busy one's.
COPIES = 7
#: The goal of every ratio.
GOAL = 1.2


@dataclass
class Side:
    """One of the two streams, and what it has done since."""

    stream: Stream
    installation: Installation

    def __post_init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.batches: dict[int, int] = {}
        self.sinks: dict[int, FencedTable] = {}

    @property
    def pipeline(self) -> Any:
        return self.installation.catalog.of(PIPELINE, 1)

    def lease(self, shard: int) -> Lease:
        name = aged_tables.shard_name(shard)
        for lease in self.installation.lease_table.leases():
            if lease.status_type is StatusType.SHARD and lease.status_value == name:
                return lease
        raise KeyError(name)

    def take_over(self, shard: int) -> float:
        """Seconds of steps 2 and 3, by a process that has not opened the sink before."""
        epoch = self.epochs.get(shard, 1) + 1
        lease = replace(self.lease(shard), epoch=epoch)
        sink = self.stream.table(shard)
        started = time.perf_counter()
        ledger = self.installation.ledger
        batches = takeover.known_batches(ledger, sink, self.pipeline, lease)
        position, missing = takeover.seal(sink, self.pipeline, lease, "w", batches)
        takeover.repair_ledger(ledger, self.pipeline, missing)
        seconds = time.perf_counter() - started
        last = self.batches.get(shard, self.stream.last_batch(shard))
        expect(position.fence == Fence(epoch, last), f"shard {shard} is after its batch {last}")
        expect(position.end_offsets == {shard: last * RECORDS}, f"it has read all of batch {last}")
        self.epochs[shard] = epoch
        self.sinks[shard] = sink
        return seconds

    def commit(self, shard: int) -> float:
        """Seconds of one commit by the shard's owner."""
        if shard not in self.sinks:
            self.take_over(shard)
        epoch = self.epochs[shard]
        last = self.batches.get(shard, self.stream.last_batch(shard))
        batch = replace(self.stream.batch(shard, last + 1), epoch=epoch)
        file = DataFile(f"new-{shard}-{last + 1}.parquet", 1000, RECORDS, json.dumps({"numRecords": RECORDS}))
        sink = self.sinks[shard]
        started = time.perf_counter()
        version = sink.commit(Fence(epoch, last + 1), [file], batch.as_metadata(), after=Fence(epoch, last))
        seconds = time.perf_counter() - started
        self.batches[shard] = last + 1
        row = replace(batch, sink_version=version).as_ledger_row("trades")
        self.installation.ledger.append([row])
        return seconds

    def renew(self, shard: int) -> float:
        """Seconds of a renewal: all leases, and the ledger row of a batch."""
        self.commit(shard)
        row = self.stream.batch(shard, self.batches[shard], self.sinks[shard].version())
        started = time.perf_counter()
        swap(self.installation.lease_table, _renewed)
        self.installation.ledger.append([row.as_ledger_row("trades")])
        return time.perf_counter() - started

    def plan(self, _: int) -> float:
        """Seconds of a plan of the last hour of all partitions."""
        return self._plan_hour(1)

    def first_plan(self) -> float:
        """Seconds of a plan of the hour before the last."""
        return self._plan_hour(2)

    def _plan_hour(self, back: int) -> float:
        ends = {}
        starts = {}
        hour = max(round(3600 / self.stream.seconds_apart / self.stream.shards), 1)
        for shard in range(self.stream.shards):
            reached = self.batches.get(shard, self.stream.last_batch(shard))
            ends[shard] = max(reached - (back - 1) * hour, 0) * RECORDS
            starts[shard] = max(reached - back * hour, 0) * RECORDS
        if self.stream.quiet:
            ends[self.stream.quiet_shard] = starts[self.stream.quiet_shard] = RECORDS
        request = ReplayRequest(pipeline=PIPELINE, from_offsets=starts, to_offsets=ends)
        started = time.perf_counter()
        bases = LedgerBases(self.installation.tables)
        fenced = fenced_by(self.stream.url, {}, PIPELINE, 1)
        ledger = bases.snapshot(PIPELINE, 1, fenced)
        for history in ledger.histories():
            ledger.undone()
            ledger.excluding()
            sink = sink_end(self.stream.url, {})
            assert sink is not None
            inputs = ReplayInputs(
                history=history,
                earliest=dict.fromkeys(ends, 0),
                latest=ends,
                filed=dict.fromkeys(history.shards, ends[0]),
                sink_version=sink.version,
                now=datetime.now(UTC),
            )
            try:
                plan = make_plan(self.pipeline, request, inputs)
            except HistoryTooShortError:
                continue
            base = worth_keeping(history, plan.read_from) or ledger.unkept(history)
            if base is not None:
                bases.add(PIPELINE, 1, base)
            break
        seconds = time.perf_counter() - started
        expect(plan.start == starts and plan.end == ends, "the plan is of the hour that was asked for")
        return seconds


def _renewed(snapshot: Snapshot) -> list[Lease]:
    now = datetime.now(UTC)
    return [lease.renewed(updated_at=now) for lease in snapshot.leases.values()]


def compare(
    first: Callable[[], float], second: Callable[[], float], most: int = PAIRS
) -> list[tuple[float, float]]:
    """Seconds of both, in turns."""
    found: list[tuple[float, float]] = []
    ends_at = time.monotonic() + SECONDS
    while len(found) < most and (not found or time.monotonic() < ends_at):
        if len(found) % 2:
            left = first()
            right = second()
        else:
            right = second()
            left = first()
        found.append((left, right))
    return found


def figures(name: str, pairs: list[tuple[float, float]], sides: tuple[str, str]) -> list[Figure]:
    left = [pair[0] for pair in pairs]
    right = [pair[1] for pair in pairs]
    ratio = statistics.median(first / second for first, second in pairs)
    return [
        Figure(f"{name}, {sides[0]}", 1000 * statistics.median(left), unit="ms"),
        Figure(f"{name}, {sides[1]}", 1000 * statistics.median(right), unit="ms"),
        Figure(f"{name}, ratio of {len(pairs)} pairs", ratio, GOAL, "x"),
    ]


def _side(base: Path, name: str, number: int, tail: int, commits: int) -> Side:
    """A stream of so many commits, at the pace of one that makes ``commits`` in 30 days."""
    settings = Settings(home=base / name)
    stream = Stream(settings, PIPELINE, number, tail, days=30.0 * number / commits)
    aged_tables.make(stream)
    return Side(stream, Installation(settings))


def _copies(side: Side, base: Path) -> Iterator[Side]:
    """The side with tables of its own, again and again: what is done to one changes no other."""
    for number in itertools.count():
        home = base / f"copy-{number}"
        shutil.copytree(side.stream.settings.home, home, copy_function=_linked)
        settings = side.stream.settings.model_copy(update={"home": home})
        copy = Side(replace(side.stream, settings=settings), Installation(settings))
        copy.epochs = dict(side.epochs)
        copy.batches = dict(side.batches)
        yield copy


def _linked(source: str, target: str) -> str:
    """Copy a file, or link it if it is one that is never written again."""
    if source.endswith(".parquet"):
        os.link(source, target)
        return target
    return str(shutil.copy2(source, target))


def measure(base: Path, commits: int, tail: int, only: list[str]) -> Iterator[Figure]:
    """The figures of all operations that are asked for."""
    began = time.monotonic()
    sides = []
    for name, number in (("aged", commits), ("new", 40)):
        sides.append(_side(base, name, number, min(tail, number - 8), commits))
    yield Figure("both are made in", time.monotonic() - began, unit="s")
    aged, new = sides
    ages = (f"{commits:,} commits", "new")
    busy = 1
    if "plan" in only:
        hours = round(3 * 3600 / aged.stream.seconds_apart)
        young = _side(base, "young", hours, min(tail, hours - 8), commits)
        for side, age in ((aged, ages[0]), (young, "three hours")):
            yield Figure(f"first plan, {age}", 1000 * side.first_plan(), unit="ms")
        pairs = compare(lambda: aged.plan(busy), lambda: young.plan(busy))
        yield from figures("plan of an hour", pairs, (ages[0], "three hours"))
    operations: dict[str, Callable[[Side, int], float]] = {
        "commit": Side.commit,
        "renewal": Side.renew,
        "take-over": Side.take_over,
    }
    for name, operation in operations.items():
        if name in only:
            pairs = compare(lambda run=operation: run(aged, busy), lambda run=operation: run(new, busy))
            yield from figures(name, pairs, ages)
    if "quiet" in only:
        quiet = aged.stream.quiet_shard
        copies = _copies(aged, base)
        pairs = compare(lambda: next(copies).take_over(quiet), lambda: next(copies).take_over(busy), COPIES)
        yield from figures("quiet take-over", pairs, ("the first", "busy"))
        pairs = compare(lambda: aged.take_over(quiet), lambda: aged.take_over(busy))
        yield from figures("quiet take-over", pairs[1:] or pairs, ("later", "busy"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Figure("most memory of the process", peak, unit="MiB")


def main() -> int:
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(30),
    )
    names = ["commit", "renewal", "take-over", "plan", "quiet"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--tail", type=int, default=10_000, help="commits that the aged sink's log still has")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    asked = parser.parse_args()
    os.environ.setdefault("TOKIO_WORKER_THREADS", "1")  # as in a worker: see hindcast.apps.consume
    with tempfile.TemporaryDirectory(prefix="hindcast-age-", ignore_cleanup_errors=True) as folder:
        return print_figures(measure(Path(folder), asked.commits, asked.tail, asked.only))


if __name__ == "__main__":
    sys.exit(main())
