"""Death at any moment: of a whole worker, between any two steps of its protocols, of its JVM or its Python
alone.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from support.check_all_oracles import CheckAllOracles
from support.fleet import START_SECONDS, Worker
from support.warm_fleet import WarmStream

from hindcast.leases.lease import StatusType
from hindcast.shards.slot_row import SlotHolder

SINK_STEPS = ["sink.1", "sink.2", "sink.3", "sink.4", "sink.5", "sink.6"]
TAKEOVER_STEPS = ["takeover.2", "takeover.3", "takeover.4", "takeover.5"]


@pytest.mark.row("F1")
def test_a_worker_killed_in_the_middle_of_a_batch(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """At a random moment one worker and its JVM die; another goes on with its shard where it was, and nothing
    is lost or doubled.
    """
    victim = random.Random(seed).choice(pair)
    stream.send_more(400)
    time.sleep(random.Random(seed).uniform(0.0, 1.5))  # the random moment is the fault
    stream.fleet.kill(victim)
    stream.wait_owned(without=victim)
    prove(stream)


@pytest.mark.row("F2")
def test_a_batch_that_spark_does_not_know_as_done(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """The newest entry of Spark's commit log is gone, as after a death just before it: the batch is run again
    and written once.
    """
    stream.pause()
    for lease in stream.leases():
        commits = Path(stream.settings.checkpoint(stream.name, lease.status_value)) / "commits"
        newest = max(
            (path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
        )
        newest.unlink()
        (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    stream.want()
    prove(stream)


@pytest.mark.row("F3")
@pytest.mark.parametrize("step", [*SINK_STEPS, *TAKEOVER_STEPS])
def test_a_worker_killed_at_a_step(
    stream: WarmStream,
    pair: tuple[Worker, Worker],
    prove: CheckAllOracles,
    seed: int,
    step: str,
    tmp_path: Path,
) -> None:
    """A worker that dies exactly there, in its next batches or as it takes a shard over again, loses and
    doubles nothing.
    """
    fleet = stream.fleet
    before = fleet.alive()
    if step in TAKEOVER_STEPS:
        stream.pause()
    count = random.Random(seed).randint(1, 3) if step in SINK_STEPS else 1
    fleet.arm(crash_at=f"{step}@{count}", token=str(tmp_path / "token"))
    stream.want()
    deadline = time.monotonic() + START_SECONDS
    while len(fleet.alive()) >= len(before):
        assert time.monotonic() < deadline, f"no worker has reached {step}"
        stream.send_more(20)
        time.sleep(0.1)  # records arrive while it works, so that it has batches to commit
    fleet.disarm()
    (doomed,) = [process for process in before if process.poll() is not None]
    assert doomed.returncode == -signal.SIGKILL
    stream.wait_owned(without=doomed)
    prove(stream)


@pytest.mark.row("F4")
@pytest.mark.parametrize("part", ["jvm", "python workers"])
def test_a_part_of_a_worker_dies_alone(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int, part: str
) -> None:
    """Without its JVM a worker says so, gives its leases up and ends; Spark's Python workers are replaced, or
    the shard given back.
    """
    one, _ = pair
    stream.send_more(400)
    if part == "jvm":
        stream.fleet.jvm(one).kill()
        one.wait(timeout=START_SECONDS)
        assert one.returncode not in {0, None}
        stream.wait_owned(without=one)
        assert not [
            slot
            for slot in stream.fleet.leases(StatusType.SLOT)
            if SlotHolder.of(slot).pid == one.pid and slot.lease_owner
        ]
        prove(stream, "worker_stopped")
        return
    jvm = stream.fleet.jvm(one)
    daemons = [child for child in jvm.children() if "python" in child.name()]
    assert daemons, "Spark has a Python daemon"
    for process in [member for daemon in daemons for member in (*daemon.children(recursive=True), daemon)]:
        process.kill()
    psutil.wait_procs(daemons, timeout=10)
    prove(stream)
