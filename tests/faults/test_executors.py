"""A stream whose executors are processes of a Spark cluster: they die, stand still, go with their machine, and
come with a new one.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest
from support.check_all_oracles import CheckAllOracles
from support.fleet import LEASE_SECONDS, Worker, fleet_settings
from support.spark_cluster import Cluster, running_cluster
from support.warm_fleet import WarmFleet, WarmStream

from hindcast.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from conftest import Broker

#: Each driver has one executor of one core.
EACH = {"spark.cores.max": "1", "spark.executor.cores": "1"}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and one machine with room for two executors."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), executors=2) as made:
        yield made


@pytest.fixture(scope="session")
def shared_fleet(
    broker: Broker, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, jars_dir: Path
) -> Iterator[WarmFleet]:
    """Two workers whose Spark is the cluster."""
    settings = fleet_settings(
        Settings(home=tmp_path_factory.mktemp("cluster-faults"), jars_dir=jars_dir), broker.bootstrap_servers
    )
    own = {"workers": 2, "spark_master": cluster.url, "spark_conf": EACH}
    of_driver = [f"{name}={value}" for name, value in cluster.driver_environment().items()]
    made = WarmFleet(settings.model_copy(update=own), wrapper=("env", *of_driver), spares=0)
    yield made
    made.end()
    made.history.stop()


def killed(cluster: Cluster, chosen: psutil.Process) -> None:
    """One executor dies; the machine's daemon starts another."""
    chosen.kill()


def stood_still(cluster: Cluster, chosen: psutil.Process) -> None:
    """One executor stands still for three leases, and wakes."""
    chosen.send_signal(signal.SIGSTOP)
    time.sleep(3 * LEASE_SECONDS)  # the length of the pause is the fault
    with suppress(psutil.NoSuchProcess):
        chosen.send_signal(signal.SIGCONT)


def lost_with_its_machine(cluster: Cluster, chosen: psutil.Process) -> None:
    """All executors die with their machine; a while later there is another one."""
    cluster.kill_machine(cluster.processes[-1])
    time.sleep(LEASE_SECONDS)  # for so long there is no executor at all: the length is the fault
    cluster.add_worker()


@pytest.mark.row("F32")
@pytest.mark.parametrize("fault", [killed, stood_still, lost_with_its_machine])
def test_executors_are_lost_slow_and_added(
    stream: WarmStream,
    pair: Sequence[Worker],
    cluster: Cluster,
    prove: CheckAllOracles,
    seed: int,
    fault: Callable[[Cluster, psutil.Process], None],
) -> None:
    """In the middle of a batch. The stream's state is in the executors' memory, and is read again."""
    executors = sorted(cluster.running_executors(), key=lambda process: process.pid)
    assert len(executors) == len(pair)
    chosen = random.Random(seed).choice(executors)
    stream.send_more(400)
    time.sleep(random.Random(seed).uniform(0.0, 1.5))  # the random moment is the fault
    fault(cluster, chosen)
    stream.send_more(200)
    prove(stream)
