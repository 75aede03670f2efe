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
            "PYTHONPATH": str(project_root() / "include"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(self.folder),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
        }
        command = [
            str(program),
            f"org.apache.spark.deploy.{kind.lower()}.{kind}",
            "--host",
            "127.0.0.1",
            *arguments,
        ]
        with (self.folder / f"{kind.lower()}.log").open("wb") as log:
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
def running_cluster(folder: Path, *, executors: int = 1) -> Iterator[Cluster]:
    """A master and a worker with two cores, or one for each executor, for as long as the context lasts.

    :param executors: how many the worker has room for
    """
    port, pages_port, worker_port, worker_pages_port = (str(number) for number in free_ports(4))
    (folder / "spark-defaults.conf").write_text(
        f"spark.executor.memory {EXECUTOR_MEMORY}\nspark.executor.extraJavaOptions {SMALL_JVM}\n"
    )
    cluster = Cluster(folder, int(port), int(pages_port))
    with ExitStack() as ending:
        ending.callback(cluster.end)
        cluster.start("Master", "--port", port, "--webui-port", pages_port)
        wait_until(lambda: _listens(cluster), START_SECONDS, f"a Spark master runs; its log is in {folder}")
        cores = str(max(CORES, executors))
        size = ("--cores", cores, "--memory", f"{executors * _WORKER_MEBIBYTES}m")
        ports = ("--port", worker_port, "--webui-port", worker_pages_port)
        cluster.start("Worker", *size, *ports, "--work-dir", str(folder / "work"), cluster.url)
        wait_until(
            lambda: cluster.started_workers() == 1,
            START_SECONDS,
            f"a Spark worker has joined; its log is in {folder}",
        )
        yield cluster


def _listens(cluster: Cluster) -> bool:
    from hindcast_sandbox.ports import listens

    return listens(cluster.port) and listens(cluster.pages_port)
