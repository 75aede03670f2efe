"""What leasing costs, on real Delta tables, without Spark.

``python tests/benchmarks/lease_cost.py [--only NAME ...]``, or ``make bench-leases``. Prints a table and, as
the last line, one JSON object; exits 1 where a bound does not hold. Each check also looks at what it wrote:
no lease may be lost.

``renewal``    one commit renews 10, 100 and 1,000 leases, taking turns; the medians of a commit and of a
whole round ``core``       coordinators at a 10 s lease, their renewals back to back: CPU time a renewal, and so a
second of lease time; then a minute in
               real time, with the looks between the renewals
``balance``    100 leases on four workers (threads, each with its own table and the real clock); a fifth joins
``growth``     10,000 renewals, faster than in life and with a retention that is shorter by as much; files,
and a cold open ``appended``   5,000 appends to ``events``, faster than in life and with a log that is shorter
by as much; a cold read, and its files
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from benchmarks.append_cost import appended
from deltalake import DeltaTable
from support.benchmark_figures import Figure, cold_reads, expect

from hindcast.clock import SystemClock
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import Snapshot, swap
from hindcast.settings import Settings
from hindcast.shards.coordinator import LeaseCoordinator
from hindcast.shards.held_leases import RENEWALS
from hindcast.tables.compaction import EVERY
from hindcast.tables.schema import LEASES_CHECKPOINT_EVERY, LEASES_RETENTION_SECONDS, SCHEMAS, configuration
from hindcast.tables.table_names import ControlTable

LEASE_SECONDS = 10.0
WORKERS = 4
#: Commits a second of four workers at a 10 s lease: what 10,000 renewals are spread over in life.
LIFE_RATE = WORKERS * RENEWALS / LEASE_SECONDS


def shards(count: int, owner: str = "") -> list[Lease]:
    """As many shards as a stream of one partition a shard would have, with the checkpoints of a running
    one.
    """
    return [
        Lease(
            stream_id="trades",
            status_type=StatusType.SHARD,
            status_value=f"v1.g0.s{index}",
            lease_owner=owner,
            epoch=1 if owner else 0,
            checkpoint={
                "batch": 4711,
                "end_offsets": {str(index): 123456789},
                "watermark_ms": 1_700_000_000_000,
            },
            detail={"partitions": [index]},
            updated_at=datetime.now(UTC),
        )
        for index in range(count)
    ]


def seeded(home: Path, leases: list[Lease]) -> LeaseTable:
    store = LeaseTable(Settings(home=home))
    swap(store, lambda _: leases)
    return store


def renew_all(store: LeaseTable) -> float:
    """Renew every lease in one commit; return the seconds of the commit alone."""
    snapshot = store.read()
    now = datetime.now(UTC)
    changes = [lease.renewed(updated_at=now) for lease in snapshot.leases.values()]
    started = time.perf_counter()
    store.commit(snapshot, changes)
    return time.perf_counter() - started


def counters(home: Path) -> Counter[int]:
    """How many leases have which counter, read by somebody who has not written them."""
    return Counter(lease.lease_counter for lease in LeaseTable(Settings(home=home)).leases())


def renewal(base: Path, rounds: int = 150) -> list[Figure]:
    """The cost of one commit by the number of leases it renews."""
    sizes = (10, 100, 1000)
    stores = {size: seeded(base / str(size), shards(size, "w")) for size in sizes}
    whole: dict[int, list[float]] = {size: [] for size in sizes}
    commit: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(rounds):
        for size in sizes if number % 2 else reversed(sizes):
            started = time.perf_counter()
            commit[size].append(renew_all(stores[size]))
            whole[size].append(time.perf_counter() - started)
    for size in sizes:
        expect(counters(base / str(size)) == {rounds: size}, f"all {size} leases were renewed {rounds} times")
    figures = [
        Figure(f"commit of {size} renewals", 1000 * statistics.median(commit[size]), unit="ms")
        for size in sizes
    ]
    figures += [
        Figure(f"read, renew, commit {size}", 1000 * statistics.median(whole[size]), unit="ms")
        for size in sizes
    ]
    ratio = {
        name: statistics.median(times[1000]) / statistics.median(times[10])
        for name, times in (("c", commit), ("w", whole))
    }
    return [
        *figures,
        Figure("commit, 1,000 leases / 10", ratio["c"], 1.5, "x"),
        Figure("read, renew, commit, 1,000 / 10", ratio["w"], unit="x"),
    ]


def coordinator(home: Path, owner: str, slots: int, lease_seconds: float = LEASE_SECONDS) -> LeaseCoordinator:
    settings = Settings(home=home)
    return LeaseCoordinator(
        LeaseTable(settings),
        SystemClock(),
        owner=owner,
        fleet="bench",
        slots=slots,
        lease_seconds=lease_seconds,
        wanted=lambda _lease, _snapshot: True,
    )


def core(base: Path) -> list[Figure]:
    """The share of a core that a worker's leasing takes at a 10 s lease: renewals, the looks between them and
    the upkeep, in real time.
    """
    figures: list[Figure] = []
    steps = round(RENEWALS * LEASES_RETENTION_SECONDS / LEASE_SECONDS)  # in life the table's log is that long
    for workers, leases in ((1, 10), (WORKERS, 100), (1, 1000)):
        home = base / f"{workers}-{leases}"
        seeded(home, shards(leases))
        coordinators = [coordinator(home, f"w{number}", workers) for number in range(workers)]
        for one in coordinators:
            one.acquire_slot(time.sleep)
        for one in coordinators:
            one.renew()  # takes its share
        started = time.process_time()
        for _ in range(steps):
            for one in coordinators:
                one.renew()
        used = (time.process_time() - started) / (steps * workers)
        found = LeaseTable(Settings(home=home)).leases()
        held = Counter(lease.lease_owner for lease in found if lease.status_type is StatusType.SHARD)
        expect(
            sum(held.values()) == leases and len(held) == workers,
            f"{workers} workers hold {leases} leases: {dict(held)}",
        )
        expect(min(lease.lease_counter for lease in found) >= steps, "every lease was renewed in every step")
        for one in coordinators:
            one._store.upkeep.wait()
        of = f"{leases} leases on {workers} worker{'s' if workers > 1 else ''}"
        figures.append(Figure(f"CPU of a renewal, {of}", 1000 * used, unit="ms"))
        figures.append(
            Figure(f"core a worker, renewals alone, {of}", 100 * used * RENEWALS / LEASE_SECONDS, unit="%")
        )
        figures.append(
            Figure(f"core a worker, {of}", _in_real_time(coordinators), 1.0 if leases <= 100 else None, "%")
        )
    return figures


def _in_real_time(coordinators: list[LeaseCoordinator], seconds: float = 60.0) -> float:
    """The share of a core that a worker takes which also looks between its renewals, in %. Each has a thread,
    as in a worker.
    """
    ended = threading.Event()

    def serve(one: LeaseCoordinator) -> None:
        due = 0.0
        while not ended.wait(one.poll_seconds):
            if (now := time.monotonic()) >= due or one.poll():
                due = now + one.held.renewal_seconds
                one.renew()

    threads = [threading.Thread(target=serve, args=(one,)) for one in coordinators]
    for thread in threads:
        thread.start()
        time.sleep(LEASE_SECONDS / RENEWALS / len(coordinators))  # their renewals are not to meet
    started, cpu = time.monotonic(), time.process_time()
    time.sleep(seconds)  # what they take meanwhile is measured
    used = (time.process_time() - cpu) / (time.monotonic() - started)
    ended.set()
    for thread in threads:
        thread.join()
    for one in coordinators:
        one._store.upkeep.wait()
    return 100 * used / len(coordinators)


def balance(base: Path, lease_seconds: float = 4.0, give_up_periods: float = 40.0) -> list[Figure]:
    """How many renewal periods pass from the first step of a worker that joins until no two workers differ by
    more than one lease.
    """
    seeded(base, shards(100))
    clock, period = SystemClock(), lease_seconds / RENEWALS
    ended = threading.Event()

    def serve(one: LeaseCoordinator, offset: float) -> None:
        """A worker's renewal loop. Its consumers stop as soon as they are told to."""
        ended.wait(offset)
        while not ended.is_set():
            for key in one.renew().close:
                one.held.mark_closed(key)
            ended.wait(period)

    def held() -> Counter[str]:
        return Counter(
            lease.lease_owner
            for lease in reader.leases()
            if lease.status_type is StatusType.SHARD and lease.lease_owner
        )

    def until(done: Callable[[Counter[str]], bool], seconds: float) -> float:
        began = clock.monotonic()
        while not done(held()) and clock.monotonic() - began < seconds:
            time.sleep(period / 50)  # how finely the period is measured
        return clock.monotonic() - began

    reader = LeaseTable(Settings(home=base))
    coordinators = [
        coordinator(base, f"w{number}", WORKERS + 1, lease_seconds) for number in range(WORKERS + 1)
    ]
    threads = []
    for number, one in enumerate(coordinators[:WORKERS]):
        one.acquire_slot(time.sleep)
        threads.append(threading.Thread(target=serve, args=(one, number * period / WORKERS), daemon=True))
    for thread in threads:
        thread.start()
    until(lambda load: len(load) == WORKERS and _even(load), give_up_periods * period)
    coordinators[WORKERS].acquire_slot(time.sleep)
    threads.append(threading.Thread(target=serve, args=(coordinators[WORKERS], 0.0), daemon=True))
    threads[-1].start()
    seconds = until(lambda load: len(load) == WORKERS + 1 and _even(load), give_up_periods * period)
    load = held()
    ended.set()
    for thread in threads:
        thread.join()
    for one in coordinators:
        one._store.upkeep.wait()
    expect(sum(load.values()) == 100, f"no lease is without an owner: {dict(load)}")
    # The commits of the two periods themselves take some hundredths of a period.
    return [
        Figure(
            "periods until a joining worker has its share", seconds / period, 2.1, f"periods of {period:g} s"
        )
    ]


def _even(load: Counter[str]) -> bool:
    return max(load.values()) - min(load.values()) <= 1


def growth(base: Path, renewals: int = 10_000, leases: int = 100) -> list[Figure]:
    """What 10,000 renewals leave behind, and how long it takes a new process to open that."""
    old, new = base / "old", base / "new"
    for home in (base / "warm", new):
        renew_all(seeded(home, shards(leases, "w")))
    warm = LeaseTable(Settings(home=base / "warm"))
    started = time.perf_counter()
    for _ in range(200):
        renew_all(warm)
    faster = 200 / (time.perf_counter() - started) / LIFE_RATE
    seconds = max(1, round(LEASES_RETENTION_SECONDS / faster))
    url = Path(Settings(home=old).table("control", ControlTable.LEASES))
    url.mkdir(parents=True)
    kept = {
        "delta.logRetentionDuration": f"interval {seconds} seconds",
        "delta.deletedFileRetentionDuration": f"interval {seconds} seconds",
    }
    DeltaTable.create(
        str(url), SCHEMAS[ControlTable.LEASES], configuration={**configuration(ControlTable.LEASES), **kept}
    )
    store = seeded(old, shards(leases, "w"))
    files: list[int] = []
    times: list[float] = []
    for number in range(renewals):
        times.append(-time.perf_counter())
        swap(store, _renewed)
        times[-1] += time.perf_counter()
        if store.read().token % EVERY == 0:
            # In life the next renewal is half a second away, the next upkeep half a minute.
            store.upkeep.wait()
        if number % 100 == 0:
            files.append(sum(1 for path in url.rglob("*") if path.is_file()))
    while (DeltaTable(str(url)).version() + 2) % LEASES_CHECKPOINT_EVERY != 0:
        swap(store, _renewed)  # to where a cold open has the most to read
        renewals += 1
    store.upkeep.wait()
    expect(counters(old) == {renewals: leases}, f"{leases} leases were renewed {renewals} times")
    half = len(files) // 2
    opens = cold_reads({"old": old, "new": new}, "leases")
    return [
        Figure("renewals a second, so faster than in life by", faster, unit="x"),
        Figure("retention, shortened by as much", seconds, unit="s"),
        Figure("files after half of 10,000 renewals, at most", max(files[:half])),
        Figure(
            "files in the second half, at most / in the first",
            max(files[half:]) / max(files[:half]),
            1.25,
            "x",
        ),
        Figure(
            "slowest renewal in 10,000, upkeep included",
            1000 * max(times),
            1000 * LEASE_SECONDS / RENEWALS,
            "ms",
        ),
        Figure("cold open and read after 1 renewal", 1000 * statistics.median(opens["new"]), unit="ms"),
        Figure("cold open and read after 10,000", 1000 * statistics.median(opens["old"]), unit="ms"),
        Figure(
            "cold open and read, 10,000 / 1",
            statistics.median(a / b for a, b in zip(opens["old"], opens["new"], strict=True)),
            1.5,
            "x",
        ),
    ]


def _renewed(snapshot: Snapshot) -> list[Lease]:
    now = datetime.now(UTC)
    return [lease.renewed(updated_at=now) for lease in snapshot.leases.values()]


CHECKS: dict[str, Callable[[Path], list[Figure]]] = {
    "renewal": renewal,
    "core": core,
    "balance": balance,
    "growth": growth,
    "appended": appended,
}


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hindcast-leases-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def main() -> int:
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(30),
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    asked = parser.parse_args()
    os.environ.setdefault("TOKIO_WORKER_THREADS", "1")  # as in a worker: see hindcast.apps.consume
    report: dict[str, Any] = {}
    passed = True
    for name in asked.only:
        with scratch() as base:
            figures = CHECKS[name](base)
        for figure in figures:
            bound = (
                ""
                if figure.bound is None
                else f"at most {figure.bound:g}  {'ok' if figure.holds else 'MISSED'}"
            )
            print(f"{name:9} {figure.name:48} {figure.value:10.2f} {figure.unit:18} {bound}", flush=True)  # noqa: T201 -- the result
            passed &= figure.holds
        report[name] = {figure.name: round(figure.value, 3) for figure in figures}
    print(json.dumps({"passed": passed, **report}))  # noqa: T201 -- the result
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
