"""A worker that stands still and does not know it: stopped past its lease, stopped in part, stopped again and
again; clocks that lie.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from support import fault_oracles
from support.check_all_oracles import CheckAllOracles
from support.fleet import LEASE_SECONDS, START_SECONDS, Worker
from support.live_stream import ledger
from support.waiting import wait_until
from support.warm_fleet import TAKEN_SECONDS, WarmStream

from hindcast.stream.worker_threads import STUCK_SECONDS
from hindcast.tables.table_names import ControlTable

#: A worker that got less of the processors than this while it wanted them was starved of them.
STARVED_SHARE = 0.5
#: What the system says to who can open no more files.
NO_HANDLES = "Too many open files"
#: Clocks that differ by up to an hour either way; the oracles' events are of this much earlier, too.
CLOCKS_DIFFER = timedelta(hours=1)
#: Of the times that such clocks wrote, the first and the last are at least this far apart.
JUMPED_SECONDS = 600.0
#: Greedy processes for each processor.
NEIGHBOURS = 4
#: The least scheduling priority there is.
LEAST_PRIORITY = 19


def stand_still(seconds: float) -> None:
    time.sleep(seconds)  # the length of the pause is the fault


@pytest.mark.row("F5")
@pytest.mark.parametrize("part", ["all of it", "only Python"])
def test_an_owner_stopped_for_three_leases_wakes(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int, part: str, quick: bool
) -> None:
    """Another worker takes its shard meanwhile; the zombie's writes are refused, it says that it lost the
    lease, and all is exact.
    """
    sleeper = random.Random(seed).choice(pair)
    stream.send_more(400)
    stand_still(random.Random(seed).uniform(0.0, 0.8))  # so that it is stopped somewhere in a batch
    stop = (
        stream.fleet.signal_all
        if part == "all of it"
        else lambda process, number: os.kill(process.pid, number)
    )
    stop(sleeper, signal.SIGSTOP)
    stopped_at = time.monotonic()
    stream.send_more(200)
    stream.wait_owned(without=sleeper)
    if not quick:
        stand_still(max(0.0, 3 * LEASE_SECONDS - (time.monotonic() - stopped_at)))
    stop(sleeper, signal.SIGCONT)
    stream.send_more(200)
    wait_until(
        lambda: sleeper.poll() is not None or stream.events("lease_lost"),
        START_SECONDS,
        "the zombie has noticed",
    )
    evidence = prove(stream, "lease_lost")
    assert len({row.worker for row in evidence.ledger}) > 1


@pytest.mark.row("F5")
@pytest.mark.minutes
def test_an_owner_whose_jvm_stands_still(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """With only its JVM stopped the worker cannot serve its shard: it stops renewing, another takes over;
    awake, it writes nothing.
    """
    sleeper = random.Random(seed).choice(pair)
    stream.send_more(400)
    stand_still(random.Random(seed).uniform(0.0, 0.8))
    jvm = stream.fleet.jvm(sleeper)
    jvm.send_signal(signal.SIGSTOP)
    stream.send_more(200)
    stream.wait_owned(without=sleeper, seconds=STUCK_SECONDS + TAKEN_SECONDS)
    jvm.send_signal(signal.SIGCONT)
    stream.send_more(200)
    wait_until(
        lambda: sleeper.poll() is not None or stream.events("lease_lost"),
        START_SECONDS,
        "the zombie has noticed",
    )
    prove(stream, "lease_lost")


@pytest.mark.row("F6")
def test_pauses_near_the_limit(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int, quick: bool
) -> None:
    """Pauses of half a lease to one and a half, one after the other: shards change hands where they must, and
    do not thrash.
    """
    rng, began = (
        random.Random(seed),
        time.time(),
    )  # by then the two have shared the shards, and may have asked for it
    pauses = 2 if quick else 6
    for _ in range(pauses):
        stream.send_more(100)
        stream.fleet.whole()
        sleeper = rng.choice(stream.owners())
        stream.fleet.signal_all(sleeper, signal.SIGSTOP)
        stand_still(rng.uniform(0.5, 1.5) * LEASE_SECONDS)
        stream.fleet.signal_all(sleeper, signal.SIGCONT)
        stream.wait_owned()
    evidence = prove(stream)
    since = replace(evidence, leases=[seen for seen in evidence.leases if seen.at >= began])
    minutes = (since.leases[-1].at - began) / 60
    assert fault_oracles.steals(since) <= 1 + minutes, "at most one steal a minute"


@pytest.mark.row("F10")
def test_wall_clocks_that_jump(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """Wall clocks that jump each second, up to an hour ahead and back: nobody loses a shard by it, and a dead
    owner's is taken as ever.
    """
    fleet, rng = stream.fleet, random.Random(seed)
    before = {lease.status_value: lease.epoch for lease in stream.leases()}
    # Of a worker its own clock only: a JVM below libfaketime spins, and neither Spark nor Kafka decides
    # anything by the wall clock.
    with fleet.armed(wall_hours=1.0, seed=seed):
        for _ in range(3):
            stream.send_more(100)
            stream.wait_read()
            stand_still(LEASE_SECONDS / 2)
        assert {lease.status_value: lease.epoch for lease in stream.leases()} == before, (
            "nobody lost a shard because of a clock"
        )
        victim = rng.choice(pair)
        fleet.kill(victim)
        stream.wait_owned(without=victim)
        stream.send_more()
        stream.wait_read()
    # The lease and the ledger hold the clocks' times: they did jump.
    said = [
        row["at"].timestamp() - time.time()
        for row in fleet.rows(ControlTable.EVENTS)
        if row["pipeline"] == stream.name
    ]
    committed = [row.committed_at.timestamp() - time.time() for row in ledger(stream.settings, stream.name)]
    assert max(committed + said) - min(committed + said) > JUMPED_SECONDS, "the clocks jumped"
    stream.began_at -= CLOCKS_DIFFER
    prove(stream)


@contextmanager
def greedy_neighbours(count: int) -> Iterator[None]:
    """So many processes that want a whole processor each."""
    # Each in a session of its own: a scheduler that is fair to sessions would give them the share of one.
    busy = [sys.executable, "-c", "while True: pass"]
    neighbours = [psutil.Popen(busy, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
        psutil.wait_procs(neighbours, timeout=10)


def scheduled(family: list[psutil.Process]) -> tuple[float, float]:
    """How many seconds the processes' threads have run, and how many they could have run and waited for a
    processor.
    """
    ran, waited = 0, 0
    for process in family:
        for stat in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                running, waiting, _ = map(int, stat.read_text().split())
                ran, waited = ran + running, waited + waiting
    return ran / 1e9, waited / 1e9


@contextmanager
def least_priority(family: list[psutil.Process]) -> Iterator[None]:
    """Everybody else's threads come first. Needs root to be taken back."""
    threads = [int(task.name) for process in family for task in Path(f"/proc/{process.pid}/task").iterdir()]
    for thread in threads:
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, LEAST_PRIORITY)
    try:
        yield
    finally:
        for process in family:
            for task in Path(f"/proc/{process.pid}/task").glob("*"):
                with suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, int(task.name), 0)


@pytest.mark.row("F29")
def test_a_worker_that_is_starved_of_processors(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """Behind greedy neighbours a worker gets a fraction of the processors that it wants; it is slow or gives
    its shard up, and exact.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can raise a priority again")
    one = random.Random(seed).choice(pair)
    family = stream.fleet.family(one)
    with greedy_neighbours(NEIGHBOURS * (os.cpu_count() or 1)), least_priority(family):
        before = scheduled(family)
        stream.send_more(300)
        stand_still(2 * LEASE_SECONDS)
        after = scheduled(family)
    ran, waited = after[0] - before[0], after[1] - before[1]
    assert ran < STARVED_SHARE * (ran + waited), (
        f"it was starved: it ran for {ran:.1f} s and waited for {waited:.1f} s"
    )
    prove(stream, live=False, healing_seconds=60.0)


@pytest.mark.row("F29")
def test_a_worker_without_file_handles(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """A worker that can open no file says so, is slow or gives its shard up; the result stays exact."""
    one = random.Random(seed).choice(pair)
    process = psutil.Process(one.pid)
    usual = process.rlimit(psutil.RLIMIT_NOFILE)
    log = stream.fleet.log(stream.fleet.started.index(one))
    said = len(log.read_text(errors="replace"))
    process.rlimit(psutil.RLIMIT_NOFILE, (min(process.num_fds(), 8), usual[1]))
    stream.send_more(300)
    try:
        wait_until(
            lambda: NO_HANDLES in log.read_text(errors="replace")[said:],
            TAKEN_SECONDS,
            "the worker says that it has no handles",
        )
        stand_still(LEASE_SECONDS)
    finally:
        if one.poll() is None:
            process.rlimit(psutil.RLIMIT_NOFILE, usual)
    prove(stream, live=False, healing_seconds=60.0)


@pytest.mark.row("F29")
def test_a_worker_with_too_little_memory(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """Spark does not start in so small a heap: the worker says so, gives its slot up and ends, and the others
    go on.
    """
    starved = stream.fleet.start(HINDCAST_SPARK_DRIVER_MEMORY="200m")
    assert starved.wait(timeout=START_SECONDS) not in {0, None}
    evidence = prove(stream, "worker_stopped")
    said = [
        row
        for row in evidence.events
        if row["kind"] == "worker_stopped" and f"-{starved.pid}-" in row["worker"]
    ]
    assert "memory" in said[0]["message"].lower()
    assert said[0]["cure"]
