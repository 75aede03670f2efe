"""Death at any moment: of a whole worker, between any two steps of its protocols, of its JVM or its Python alone."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from faulty_worker import FAULTS
from fleet import LEASE_SECONDS, START_SECONDS, Stream, Worker
from proof import Prove
from waiting import wait_until

from hindcast.control.leases import StatusType

FAULTY = Path(__file__).with_name("faulty_worker.py")
TAKEN_SECONDS = LEASE_SECONDS + 30.0  # I6
SINK_STEPS = ["sink.1", "sink.2", "sink.3", "sink.4", "sink.5", "sink.6"]
TAKEOVER_STEPS = ["takeover.2", "takeover.3", "takeover.4", "takeover.5"]


@pytest.mark.row("F1")
def test_a_worker_killed_in_the_middle_of_a_batch(stream: Stream, pair: tuple[Worker, Worker], prove: Prove, seed: int) -> None:
    """At a random moment one worker and its JVM die; the other goes on with both shards where it was, and nothing is lost or doubled."""
    victim, survivor = random.Random(seed).sample(pair, 2)
    stream.send_more(400)
    time.sleep(random.Random(seed).uniform(0.0, 1.5))  # the random moment is the fault
    stream.fleet.kill(victim)
    stream.wait_owned_by(survivor, seconds=TAKEN_SECONDS)
    prove(stream)


@pytest.mark.row("F2")
def test_a_batch_that_spark_does_not_know_as_done(stream: Stream, pair: tuple[Worker, Worker], prove: Prove, seed: int) -> None:
    """The newest entry of Spark's commit log is gone, as after a death just before it: the batch is run again and written once."""
    stream.pause()
    for lease in stream.leases():
        commits = Path(stream.settings.checkpoint(stream.name, lease.status_value)) / "commits"
        newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        newest.unlink()
        (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    stream.want()
    prove(stream)


@pytest.mark.row("F3")
@pytest.mark.parametrize("step", [*SINK_STEPS, *TAKEOVER_STEPS])
def test_a_worker_killed_at_a_step(stream: Stream, prove: Prove, seed: int, step: str) -> None:
    """A worker that dies exactly there, at its third batch or as it takes over, loses and doubles nothing."""
    fleet = stream.fleet
    for process in fleet.alive()[1:]:
        fleet.kill(process)
    (survivor,) = fleet.whole(1)
    stream.want()
    stream.send_more()
    stream.wait_owned_by(survivor)
    # What it dies of is the same without a rehearsal, and sooner.
    doomed = fleet.start(FAULTY, **{FAULTS: json.dumps({"cold": True})}, HINDCAST_CRASH_AT=f"{step}@{3 if step in SINK_STEPS else 1}")
    deadline = time.monotonic() + START_SECONDS
    while doomed.poll() is None:
        assert time.monotonic() < deadline, f"the worker has not reached {step}"
        stream.send_more(20)
        time.sleep(0.3)  # records arrive while it works, so that it has batches to commit
    assert doomed.returncode == -signal.SIGKILL
    stream.wait_owned_by(survivor, seconds=TAKEN_SECONDS)
    prove(stream)


@pytest.mark.row("F4")
@pytest.mark.parametrize("part", ["jvm", "python workers"])
def test_a_part_of_a_worker_dies_alone(stream: Stream, pair: tuple[Worker, Worker], prove: Prove, seed: int, part: str) -> None:
    """Without its JVM a worker says so, gives its leases up and ends; Spark's Python workers are replaced, or the shard given back."""
    one, _ = pair
    stream.send_more(400)
    if part == "jvm":
        stream.fleet.jvm(one).kill()
        one.wait(timeout=START_SECONDS)
        assert one.returncode not in {0, None}
        wait_until(lambda: stream.owned_by(*stream.fleet.alive()), TAKEN_SECONDS, "the other worker owns both shards")
        assert not [slot for slot in stream.fleet.leases(StatusType.SLOT) if slot.detail.get("pid") == one.pid and slot.lease_owner]
        prove(stream, "worker_stopped")
        return
    jvm = stream.fleet.jvm(one)
    daemons = [child for child in jvm.children() if "python" in child.name()]
    assert daemons, "Spark has a Python daemon"
    for process in [member for daemon in daemons for member in (*daemon.children(recursive=True), daemon)]:
        process.kill()
    psutil.wait_procs(daemons, timeout=10)
    prove(stream)
