"""Real workers as real processes: killed, paused, stopped, started twice. The result stays exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil
import pytest
from live_stream import all_filed, check_answer, check_filed, declare, ends, ledger, produce
from simulated_stream import Clockwork, Record, Simulated, trades
from waiting import wait_until

from hindcast import catalog
from hindcast.control.desired import DesiredState, DesiredStates
from hindcast.control.lease_table import LeaseTable
from hindcast.control.leases import Lease, StatusType
from hindcast.control.schema import ControlTable
from hindcast.control.tables import ControlTables
from hindcast.settings import Settings, project_root

if TYPE_CHECKING:
    from conftest import Broker

LEASE_SECONDS = 3.0
START_SECONDS = 90.0  # a JVM on a busy machine of two cores


@dataclass
class Fleet:
    """Worker processes on one topic of four partitions in two shards."""

    settings: Settings
    servers: str
    topic: str
    sent: list[Record] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, **self.settings.environment()}
        command = [sys.executable, str(project_root() / "spark_apps" / "consume.py")]
        with (self.settings.home / f"worker-{len(self.started)}.log").open("wb") as log:
            # A group of its own, as a detached worker has it.
            process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.started.append(process)
        return process

    def send(self, records: list[Record]) -> None:
        produce(self.servers, self.topic, records)
        self.sent += records

    def leases(self, kind: StatusType) -> list[Lease]:
        return [lease for lease in LeaseTable(self.settings).leases() if lease.status_type is kind]

    def owned_by(self, *processes: subprocess.Popen[bytes]) -> bool:
        """Whether these processes, each with one at least, own all shards."""
        pids = {lease.lease_owner: lease.detail.get("pid") for lease in self.leases(StatusType.SLOT) if lease.lease_owner}
        owners = [pids.get(lease.lease_owner) for lease in self.leases(StatusType.SHARD)]
        return bool(owners) and set(owners) == {process.pid for process in processes}

    def wait_owned_by(self, *processes: subprocess.Popen[bytes]) -> None:
        wait_until(lambda: self.owned_by(*processes), START_SECONDS, f"{len(processes)} workers own all shards")

    def committed(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for row in ledger(self.settings):
            found.update(row.end_offsets)
        return found

    def wait_read(self) -> None:
        wait_until(lambda: self.committed() == ends(self.sent), START_SECONDS, "everything sent is in the ledger")

    def wait_filed(self) -> None:
        wait_until(lambda: all_filed(self.settings), START_SECONDS, "the late and poison rows are filed")

    def kill(self, process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
        os.killpg(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()

    def check(self) -> None:
        oracle = Simulated(Clockwork(), self.sent)
        check_answer(self.settings, self.sent, oracle)
        check_filed(self.settings, self.sent, oracle)

    def events(self) -> list[str]:
        return [row["kind"] for row in ControlTables(self.settings).rows(ControlTable.EVENTS)]


@pytest.fixture
def fleet(broker: Broker, topic: str, settings_factory: Callable[..., Settings]) -> Iterator[Fleet]:
    settings = settings_factory(
        bootstrap_servers=broker.bootstrap_servers, lease_seconds=LEASE_SECONDS, trigger_seconds=0.3, audit_seconds=2.0
    )
    settings = settings.model_copy(update={"pipelines_dir": settings.home / "pipelines"})
    declare(settings, topic, shards=2)
    DesiredStates(LeaseTable(settings)).declare(catalog.load(settings.pipelines_dir)["stock_stats"], 2)
    made = Fleet(settings, broker.bootstrap_servers, topic)
    yield made
    for process in made.started:
        if process.poll() is None:
            made.kill(process)
        process.wait()


def feed(parts: int, count: int = 600) -> list[list[Record]]:
    records = trades(11, count=count * parts, partitions=4)
    return [records[part * count : (part + 1) * count] for part in range(parts)]


def test_two_workers_through_kill_pause_and_stop(fleet: Fleet) -> None:
    """One fleet's life: two workers share the shards, one is killed, one is paused past its lease and wakes, one is stopped.

    Each time the other goes on, and at the end every record is in the result once, late or dead-lettered.
    """
    first, second, third, fourth = feed(4)
    fleet.send(first)
    one, two = fleet.start(), fleet.start()
    fleet.wait_owned_by(one, two)
    fleet.wait_read()

    fleet.kill(one)
    fleet.send(second)
    three = fleet.start()
    fleet.wait_owned_by(two, three)
    fleet.wait_read()

    fleet.kill(two, signal.SIGSTOP)  # the whole process with its JVM
    fleet.send(third)
    fleet.wait_owned_by(three)
    fleet.wait_read()
    fleet.kill(two, signal.SIGCONT)  # the zombie wakes
    fleet.send(fourth)
    wait_until(lambda: two.poll() is not None or "lease_lost" in fleet.events(), START_SECONDS, "the zombie has noticed")
    fleet.wait_read()

    fleet.wait_filed()
    stopped = time.monotonic()
    three.terminate()
    assert three.wait(timeout=START_SECONDS) == 0
    free = [lease for lease in fleet.leases(StatusType.SLOT) if lease.detail.get("pid") == three.pid]
    assert [lease.lease_owner for lease in free] == [""], f"released on a clean stop, after {time.monotonic() - stopped:.1f} s"
    two.terminate()
    two.wait(timeout=START_SECONDS)
    assert not [lease for lease in fleet.leases(StatusType.SHARD) if lease.lease_owner]
    fleet.check()
    for process in (one, two, three):
        assert not psutil.pid_exists(process.pid) or process.poll() is not None
    assert {"worker_started", "shard_taken", "lease_lost", "shard_released", "worker_stopped"} <= set(fleet.events())


def test_a_worker_too_many_exits_0_without_a_lease(fleet: Fleet) -> None:
    """With one slot, a second start takes no lease, starts no JVM and exits 0 with a sentence; pausing frees the shards."""
    fleet.settings = fleet.settings.model_copy(update={"workers": 1})
    (first,) = feed(1)
    fleet.send(first)
    one = fleet.start()
    fleet.wait_owned_by(one)
    extra = fleet.start()
    jvms = 0
    while extra.poll() is None:
        jvms += sum("java" in child.name() for child in psutil.Process(extra.pid).children(recursive=True)) if extra.poll() is None else 0
        time.sleep(0.1)  # between two looks at its children
    assert (extra.returncode, jvms) == (0, 0)
    assert "not needed" in (fleet.settings.home / "worker-1.log").read_text()
    assert fleet.owned_by(one)

    fleet.wait_read()
    DesiredStates(LeaseTable(fleet.settings)).set_state("stock_stats", DesiredState.PAUSED)
    wait_until(
        lambda: not [lease for lease in fleet.leases(StatusType.SHARD) if lease.lease_owner],
        START_SECONDS,
        "a paused pipeline's shards are free",
    )
    assert one.poll() is None
    DesiredStates(LeaseTable(fleet.settings)).set_state("stock_stats", DesiredState.RUNNING)
    fleet.wait_owned_by(one)
    DesiredStates(LeaseTable(fleet.settings)).set_state("stock_stats", DesiredState.DRAINED)
    wait_until(
        lambda: not [lease for lease in fleet.leases(StatusType.SHARD) if lease.lease_owner],
        START_SECONDS,
        "a drained pipeline's shards are free",
    )
    fleet.wait_filed()
    one.terminate()
    assert one.wait(timeout=START_SECONDS) == 0
    fleet.check()


def test_expired_offsets_stop_the_shard_and_are_named(fleet: Fleet) -> None:
    """Records deleted under the checkpoint are never skipped: the shard stops, and an event names the lost range and the cure (F16)."""
    from kafka import KafkaAdminClient, TopicPartition

    first, second = feed(2)
    fleet.send(first)
    one = fleet.start()
    fleet.wait_owned_by(one)
    fleet.wait_read()
    DesiredStates(LeaseTable(fleet.settings)).set_state("stock_stats", DesiredState.PAUSED)
    wait_until(lambda: not [lease for lease in fleet.leases(StatusType.SHARD) if lease.lease_owner], START_SECONDS, "the shards are free")
    fleet.send(second)
    lost = ends(first)[0] + 10
    admin = KafkaAdminClient(bootstrap_servers=fleet.servers)
    admin.delete_records({TopicPartition(fleet.topic, 0): lost})
    admin.close()
    DesiredStates(LeaseTable(fleet.settings)).set_state("stock_stats", DesiredState.RUNNING)
    wait_until(lambda: "offsets_lost" in fleet.events(), START_SECONDS, "the loss is an event")
    (event,) = [row for row in ControlTables(fleet.settings).rows(ControlTable.EVENTS) if row["kind"] == "offsets_lost"]
    assert f"offsets {ends(first)[0]} to {lost - 1}" in event["message"]
    assert "hindcast resume" in event["cure"]
    wait_until(lambda: fleet.committed().get(1) == ends(fleet.sent)[1], START_SECONDS, "the other shard goes on")
    assert fleet.committed()[0] == ends(first)[0]
