"""Real workers as real processes: killed, paused, stopped, started twice. The result stays exact."""

from __future__ import annotations

import signal
import time
from typing import NamedTuple

import psutil
import pytest
from support.commands import run_command
from support.fleet import START_SECONDS, Stream, Worker, feed
from support.live_stream import delete_records, ends, ledger
from support.waiting import wait_until

from hindcast.leases.lease import StatusType
from hindcast.shards.pipeline_row import DesiredState
from hindcast.shards.slot_row import SlotHolder


def test_two_workers_through_kill_pause_and_stop(stream: Stream) -> None:
    """One fleet's life: two workers share the shards, one is killed, one is paused past its lease and wakes,
    one is stopped.

    Each time the other goes on, and at the end every record is in the result once, late or dead-lettered.
    """
    fleet = stream.fleet
    first, second, third, fourth = feed(4)
    stream.send(first)
    one, two = fleet.start(), fleet.start()
    stream.wait_owned_by(one, two)
    stream.wait_read()

    fleet.kill(one)
    stream.send(second)
    three = fleet.start()
    stream.wait_owned_by(two, three)
    stream.wait_read()

    fleet.kill(two, signal.SIGSTOP)  # the whole process with its JVM
    stream.send(third)
    stream.wait_owned_by(three)
    stream.wait_read()
    fleet.kill(two, signal.SIGCONT)  # the zombie wakes
    stream.send(fourth)
    wait_until(
        lambda: two.poll() is not None or stream.events("lease_lost"), START_SECONDS, "the zombie has noticed"
    )
    stream.wait_read()

    stream.wait_filed()
    stopped = time.monotonic()
    three.terminate()
    assert three.wait(timeout=START_SECONDS) == 0
    free = [lease for lease in fleet.leases(StatusType.SLOT) if SlotHolder.of(lease).pid == three.pid]
    assert [lease.lease_owner for lease in free] == [""], (
        f"released on a clean stop, after {time.monotonic() - stopped:.1f} s"
    )
    two.terminate()
    two.wait(timeout=START_SECONDS)
    assert not [lease for lease in stream.leases() if lease.lease_owner]
    stream.check()
    for process in (one, two, three):
        assert not psutil.pid_exists(process.pid) or process.poll() is not None
    assert {"worker_started", "shard_taken", "lease_lost", "shard_released", "worker_stopped"} <= {
        row["kind"] for row in fleet.events()
    }


class Costs(NamedTuple):
    """Seconds of CPU since a worker began: what its processes used, and what the ledger counts for its
    batches.
    """

    used: float
    counted: float


def costs(stream: Stream, worker: Worker) -> Costs:
    """Call while everything that was sent is read. The cost of a batch that is under way comes with the next
    one.
    """
    used = 0.0
    for process in stream.fleet.family(worker):
        times = process.cpu_times()
        used += times.user + times.system + times.children_user + times.children_system
    counted = sum(row.cpu_seconds or 0.0 for row in ledger(stream.settings, stream.name))
    return Costs(used, counted)


def test_a_worker_too_many_exits_0_without_a_lease(stream: Stream) -> None:
    """With one slot, a second start takes no lease, starts no JVM and exits 0 with a sentence; pausing frees
    the shards. A rewind asks first.

    The one worker consumes both shards meanwhile, and what their batches cost adds up to what it used.
    """
    fleet = stream.fleet
    fleet.settings = fleet.settings.model_copy(update={"workers": 1})
    first, *more = feed(4)
    stream.send(first)
    one = fleet.start()
    stream.wait_owned_by(one)
    extra = fleet.start()
    jvms = 0
    while extra.poll() is None:
        jvms += (
            sum("java" in child.name() for child in psutil.Process(extra.pid).children(recursive=True))
            if extra.poll() is None
            else 0
        )
        time.sleep(0.1)  # between two looks at its children
    assert (extra.returncode, jvms) == (0, 0)
    assert "not needed" in fleet.log(1).read_text()
    assert stream.owned_by(one)

    stream.wait_read()
    before = costs(stream, one)
    for records in more:
        stream.send(records)
        stream.wait_read()
    after = costs(stream, one)
    used, counted = after.used - before.used, after.counted - before.counted
    assert 0.5 < counted / used < 1.25, (
        f"{counted:.1f} s of CPU in the ledger, where the worker used {used:.1f} s"
    )

    stream.want(DesiredState.PAUSED)
    stream.wait_free()
    refused = run_command(stream.settings, "rewind", stream.name, "--to", "earliest")
    assert refused.returncode == 2 and "--yes" in refused.stderr and "Nothing has changed" in refused.stderr
    assert stream.events("pipeline_rewinding") == []
    assert one.poll() is None
    stream.want()
    stream.wait_owned_by(one)
    stream.want(DesiredState.DRAINED)
    stream.wait_free()
    stream.wait_filed()
    one.terminate()
    assert one.wait(timeout=START_SECONDS) == 0
    stream.check()


@pytest.mark.row("F16")
def test_expired_offsets_stop_the_shard_and_are_named(stream: Stream) -> None:
    """Records deleted under the checkpoint are never skipped: the shard stops, and an event names the lost
    range and the cure (F16).
    """
    fleet = stream.fleet
    first, second = feed(2)
    stream.send(first)
    one = fleet.start()
    stream.wait_owned_by(one)
    stream.wait_read()
    stream.want(DesiredState.PAUSED)
    stream.wait_free()
    stream.send(second)
    lost = ends(first)[0] + 10
    delete_records(fleet.settings.bootstrap_servers, stream.topic, {0: lost})
    stream.want()
    event = stream.wait_event("offsets_lost")
    assert f"offsets {ends(first)[0]} to {lost - 1}" in event["message"]
    assert "hindcast resume" in event["cure"]
    wait_until(
        lambda: stream.committed().get(1) == ends(stream.sent)[1], START_SECONDS, "the other shard goes on"
    )
    assert stream.committed()[0] == ends(first)[0]
