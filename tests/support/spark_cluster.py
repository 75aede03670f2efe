"""A real Spark cluster on loopback: a master and one worker, from the JVM classes that the package pyspark
has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark
from support.waiting import wait_until

from hindcast.settings import project_root
from hindcast_sandbox.ports import free_ports

START_SECONDS = 120.0
CORES = 2
#: What one executor needs for small topics, and the worker for each.
EXECUTOR_MEMORY, DAEMON_MEMORY = "640m", "160m"
_WORKER_MEBIBYTES = 700

#: Short lives on few cores: what the optimising compiler and other collectors begin is never repaid.
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass
class Cluster:
    """``url`` is the Spark master that a session names; ``folder`` holds logs, the executors' folders and the
    drivers' configuration.
    """

    folder: Path
    port: int
    pages_port: int
    executors: int = 1
    has_library: bool = False
    processes: list[psutil.Popen] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def driver_environment(self) -> dict[str, str]:
        """What a driver needs besides the project's own settings: the address by which executors reach it,
        and small executors.
        """
        return {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(self.folder)}

    def started_workers(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.pages_port}/json/", timeout=5) as page:
                return int(json.load(page)["aliveworkers"])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return 0

    def start(self, kind: str, *arguments: str) -> None:
        """Start a daemon, in a folder of its own and without the driver's or the developer's settings."""
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(self.folder),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
        }
        if self.has_library:
            environment.pop("PYTHONPATH", None)
        else:
            environment["PYTHONPATH"] = str(project_root() / "include")
            environment["PYSPARK_PYTHON"] = sys.executable
        command = [
            str(program),
            f"org.apache.spark.deploy.{kind.lower()}.{kind}",
            "--host",
            "127.0.0.1",
            *arguments,
        ]
        with (self.folder / f"{kind.lower()}-{len(self.processes)}.log").open("wb") as log:
            self.processes.append(
                psutil.Popen(
                    command,
                    cwd=self.folder,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def add_worker(self) -> psutil.Popen:
        """Start one more machine of the cluster, and wait until it has joined."""
        joined = self.started_workers()
        port, pages_port = (str(number) for number in free_ports(2))
        cores = str(max(CORES, self.executors))
        size = ("--cores", cores, "--memory", f"{self.executors * _WORKER_MEBIBYTES}m")
        ports = ("--port", port, "--webui-port", pages_port)
        work = str(self.folder / f"work-{len(self.processes)}")
        self.start("Worker", *size, *ports, "--work-dir", work, self.url)
        wait_until(
            lambda: self.started_workers() > joined,
            START_SECONDS,
            f"a Spark worker has joined; its log is in {self.folder}",
        )
        return self.processes[-1]

    def running_executors(self) -> list[psutil.Process]:
        """The executors of all drivers."""
        found = []
        for member in [member for process in self.processes for member in _family(process)]:
            with suppress(psutil.NoSuchProcess):
                if any("CoarseGrainedExecutorBackend" in word for word in member.cmdline()):
                    found.append(member)
        return found

    def kill_machine(self, worker: psutil.Popen) -> None:
        """A Spark worker and its executors are gone at once, and the master knows."""
        joined = self.started_workers()
        for member in _family(worker):
            with suppress(psutil.NoSuchProcess):
                member.kill()
        worker.wait()
        wait_until(
            lambda: self.started_workers() < joined, START_SECONDS, "the master misses the Spark worker"
        )

    def end(self) -> None:
        """Stop the daemons, each with its executors; nothing of the cluster outlives it."""
        family = [member for process in self.processes for member in _family(process)]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.terminate()
        _, alive = psutil.wait_procs(family, timeout=20)
        for member in alive:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(alive, timeout=20)


def _family(process: psutil.Popen) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


@contextmanager
def running_cluster(
    folder: Path,
    *,
    executors: int = 1,
    workers: int = 1,
    has_library: bool = False,
    executor_options: str = SMALL_JVM,
) -> Iterator[Cluster]:
    """A master, and workers with two cores or one for each executor, for as long as the context lasts.

    :param executors: how many a worker has room for
    :param has_library: the Python of the drivers' own has this library, which executors use, too
    :param executor_options: of the executors' JVMs
    """
    port, pages_port = (str(number) for number in free_ports(2))
    (folder / "spark-defaults.conf").write_text(
        f"spark.executor.memory {EXECUTOR_MEMORY}\nspark.executor.extraJavaOptions {executor_options}\n"
    )
    cluster = Cluster(folder, int(port), int(pages_port), executors, has_library)
    with ExitStack() as ending:
        ending.callback(cluster.end)
        cluster.start("Master", "--port", port, "--webui-port", pages_port)
        wait_until(lambda: _listens(cluster), START_SECONDS, f"a Spark master runs; its log is in {folder}")
        for _ in range(workers):
            cluster.add_worker()
        yield cluster


def _listens(cluster: Cluster) -> bool:
    from hindcast_sandbox.ports import listens

    return listens(cluster.port) and listens(cluster.pages_port)
