"""A worker that stands still and does not know it: stopped past its lease, stopped in part, stopped again and again; clocks that lie."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import oracles
import psutil
import pytest
from faulty_worker import FAULTS
from fleet import LEASE_SECONDS, START_SECONDS, Stream, Worker
from proof import Prove
from waiting import wait_until

from hindcast.stream.worker import STUCK_SECONDS

TAKEN_SECONDS = LEASE_SECONDS + 30.0  # I6
FAULTY = Path(__file__).with_name("faulty_worker.py")


def stand_still(seconds: float) -> None:
    time.sleep(seconds)  # the length of the pause is the fault


@pytest.mark.row("F5")
@pytest.mark.parametrize("part", ["all of it", "only Python"])
def test_an_owner_stopped_for_three_leases_wakes(stream: Stream, pair: tuple[Worker, Worker], prove: Prove, seed: int, part: str) -> None:
    """Another worker takes its shard meanwhile; the zombie's writes are refused, it says that it lost the lease, and all is exact."""
    sleeper, other = random.Random(seed).sample(pair, 2)
    stream.send_more(400)
    stand_still(random.Random(seed).uniform(0.0, 0.8))  # so that it is stopped somewhere in a batch
    stop = stream.fleet.signal_all if part == "all of it" else lambda process, number: os.kill(process.pid, number)
    stop(sleeper, signal.SIGSTOP)
    stopped_at = time.monotonic()
    stream.send_more(200)
    stream.wait_owned_by(other, seconds=TAKEN_SECONDS)
    stand_still(max(0.0, 3 * LEASE_SECONDS - (time.monotonic() - stopped_at)))
    stop(sleeper, signal.SIGCONT)
    stream.send_more(200)
    wait_until(lambda: sleeper.poll() is not None or stream.events("lease_lost"), START_SECONDS, "the zombie has noticed")
    evidence = prove(stream, "lease_lost")
    assert len({row.worker for row in evidence.ledger}) == 2


@pytest.mark.row("F5")
def test_an_owner_whose_jvm_stands_still(stream: Stream, pair: tuple[Worker, Worker], prove: Prove, seed: int) -> None:
    """With only its JVM stopped the worker cannot serve its shard: it stops renewing, another takes over; awake, it writes nothing."""
    sleeper, other = random.Random(seed).sample(pair, 2)
    stream.send_more(400)
    stand_still(random.Random(seed).uniform(0.0, 0.8))
    jvm = stream.fleet.jvm(sleeper)
    jvm.send_signal(signal.SIGSTOP)
    stream.send_more(200)
    stream.wait_owned_by(other, seconds=STUCK_SECONDS + TAKEN_SECONDS)
    jvm.send_signal(signal.SIGCONT)
    stream.send_more(200)
    wait_until(lambda: sleeper.poll() is not None or stream.events("lease_lost"), START_SECONDS, "the zombie has noticed")
    prove(stream, "lease_lost")


@pytest.mark.row("F6")
def test_pauses_near_the_limit(stream: Stream, pair: tuple[Worker, Worker], prove: Prove, seed: int) -> None:
    """Pauses of half a lease to one and a half, one after the other: shards change hands where they must, and do not thrash."""
    rng, began = random.Random(seed), time.time()  # by then the two have shared the shards, and may have asked for it
    for _ in range(6):
        stream.send_more(100)
        running = stream.fleet.whole()
        sleeper = rng.choice(running)
        stream.fleet.signal_all(sleeper, signal.SIGSTOP)
        stand_still(rng.uniform(0.5, 1.5) * LEASE_SECONDS)
        stream.fleet.signal_all(sleeper, signal.SIGCONT)
        wait_until(lambda: None not in stream.fleet.owners(stream.name).values(), TAKEN_SECONDS, "every shard has a live owner")
    evidence = prove(stream)
    since = replace(evidence, leases=[seen for seen in evidence.leases if seen.at >= began])
    minutes = (since.leases[-1].at - began) / 60
    assert oracles.steals(since) <= 1 + minutes, "at most one steal a minute"


@pytest.mark.row("F10")
def test_a_worker_whose_wall_clock_is_an_hour_ahead(stream: Stream, prove: Prove, seed: int) -> None:
    """Two workers that disagree by an hour share the shards, and hand them over, as if they agreed."""
    fleet = stream.fleet
    one = fleet.whole(2)[0]
    for process in fleet.alive()[1:]:
        fleet.kill(process)
    stream.want()
    stream.send_more()
    stream.wait_owned_by(one)
    # Its own clock only: a JVM below libfaketime spins, and neither Spark nor Kafka decides anything by the wall clock.
    two = fleet.start(FAULTY, **{FAULTS: json.dumps({"wall_hours": 1})})
    stream.wait_owned_by(one, two)
    stream.send_more()
    stream.wait_read()
    fleet.kill(one)
    stream.wait_owned_by(two, seconds=TAKEN_SECONDS)
    stream.send_more()
    evidence = prove(stream)
    ahead = [row["at"] for row in evidence.events if row["worker"] == fleet.id_of(two)]
    assert max(ahead).timestamp() > time.time() + 3000, "its clock was ahead"
    fleet.kill(two)


@pytest.mark.row("F29")
@pytest.mark.parametrize("starved", ["CPU", "file handles"])
def test_a_worker_that_is_starved(stream: Stream, pair: tuple[Worker, Worker], prove: Prove, seed: int, starved: str) -> None:
    """Beside greedy neighbours, or out of file handles, a worker is slow or gives its shards up; the result stays exact."""
    one, _ = pair
    if starved == "CPU":
        neighbours = [_busy() for _ in range(4)]
        try:
            stream.send_more(600)
            stream.wait_read()
        finally:
            for neighbour in neighbours:
                neighbour.kill()
            psutil.wait_procs(neighbours, timeout=10)
        prove(stream, live=False, healing_seconds=60.0)
        return
    process = psutil.Process(one.pid)
    usual = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), usual[1]))
    stream.send_more(300)
    stand_still(2 * LEASE_SECONDS)
    if one.poll() is None:
        process.rlimit(psutil.RLIMIT_NOFILE, usual)
    prove(stream, live=False, healing_seconds=60.0)


@pytest.mark.row("F29")
def test_a_worker_with_too_little_memory(stream: Stream, prove: Prove, seed: int) -> None:
    """Spark does not start in so small a heap: the worker says so, gives its slot up and ends, and the other goes on."""
    sound, *others = stream.fleet.whole()
    for process in others:
        stream.fleet.kill(process)
    stream.want()
    stream.send_more()
    stream.wait_owned_by(sound)
    starved = stream.fleet.start(HINDCAST_SPARK_DRIVER_MEMORY="200m")
    assert starved.wait(timeout=START_SECONDS) not in {0, None}
    evidence = prove(stream, "worker_stopped")
    said = [row for row in evidence.events if row["kind"] == "worker_stopped" and f"-{starved.pid}-" in row["worker"]]
    assert "memory" in said[0]["message"].lower()
    assert said[0]["cure"]


def _busy() -> psutil.Popen:
    import sys

    return psutil.Popen([sys.executable, "-c", "while True: pass"])
