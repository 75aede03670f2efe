"""The sides that are compared: each is a process that reads the topic, and a way to tell what it committed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil
from benchmarks.speed.jobs import WINDOWS, Job
from benchmarks.speed.measure import (
    Commit,
    commits_of_flink,
    commits_of_ledger,
    commits_of_plain,
    rows_of_flink,
)
from support.waiting import wait_until

from hindcast import catalog
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import StatusType
from hindcast.processes import programs
from hindcast.settings import Settings
from hindcast.shards.desired_state import DesiredStates
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger
from hindcast_sandbox import broker

_READY_SECONDS = 240.0
_END_SECONDS = 60.0
NAME = "stock_stats"
_PLAIN = Path(__file__).with_name("plain_stream.py")


class Side(ABC):
    """One side in one run.

    :param folder: of its own, for what it writes
    :param job: what it does with the trades
    """

    name: str

    def __init__(self, settings: Settings, topic: str, folder: Path, job: Job = WINDOWS) -> None:
        self.settings = settings
        self.topic = topic
        self.folder = folder
        self.job = job
        self._started: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it reads the topic."""

    @abstractmethod
    def commits(self) -> list[Commit]:
        """What it has committed so far, in the order of the commits."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]] | None:
        """What it wrote, as its job wants it for the check; None if its sink keeps nothing."""

    @property
    def processes(self) -> list[psutil.Process]:
        """Those that it consists of. They may have children."""
        return [psutil.Process(process.pid) for process in self._started]

    def _run(self, arguments: list[str], environment: dict[str, str]) -> None:
        """Start a process. The n-th one, from 0 on, writes into the files ``out-n`` and ``err-n``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(self._started)
        with self._said("out", number).open("wb") as out, self._said("err", number).open("wb") as err:
            process = subprocess.Popen(
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self._started.append(process)

    def _said(self, where: str, number: int = 0) -> Path:
        return self.folder / f"{where}-{number}"

    def _wait(self, ready: Callable[[], bool]) -> None:
        def ended() -> bool:
            return any(process.poll() is not None for process in self._started)

        wait_until(lambda: ready() or ended(), _READY_SECONDS, f"{self.name} reads the topic", every=0.5)
        for number, process in enumerate(self._started):
            if process.poll() is not None:
                said = self._said("err", number).read_text(errors="replace")[-2000:]
                raise SystemExit(f"{self.name} ended with {process.returncode}:\n{said}")

    def end(self) -> None:
        """End it and all that it started."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Plain(Side):
    """:mod:`benchmarks.speed.plain_stream`."""

    options: tuple[str, ...] = ()

    def start(self) -> None:
        arguments = [sys.executable, str(_PLAIN), "--servers", self.settings.bootstrap_servers]
        arguments += ["--topic", self.topic, "--folder", str(self.folder), "--job", self.job.name]
        arguments += ["--jars", str(self.settings.spark_jars_dir), *self.options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HINDCAST_")}
        self._run(arguments, environment)
        self._wait(lambda: "ready" in self._said("out").read_text())

    def commits(self) -> list[Commit]:
        return commits_of_plain(self.folder, self.topic)

    def rows(self) -> list[dict[str, Any]] | None:
        return self.job.rows_of_delta(str(self.folder / "table"))


class Stock(Plain):
    name = "stock"


class Tuned(Plain):
    name = "tuned"
    options = ("--tuned",)


class NoSink(Plain):
    """The tuned job whose sink takes nothing: what reading and counting alone cost."""

    name = "no sink"
    options = ("--tuned", "--sink", "noop")

    def rows(self) -> None:
        return None


class Flink(Side):
    """``flink/Windows.java``, in a JVM of its own: Flink 1.20 into an Iceberg table, a checkpoint each second."""

    name = "flink"

    def start(self) -> None:
        environment = bench_folder(self.settings)
        opens = ["java.lang", "java.util", "java.net", "java.nio", "java.time", "sun.nio.ch"]
        opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in opens]
        classpath = f"{environment / 'classes'}:{environment / 'flink'}/*"
        arguments = [
            broker.java(),
            "-Xmx1g",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *opened,
            "-cp",
            classpath,
            "Windows",
        ]
        arguments += [self.settings.bootstrap_servers, self.topic, str(self.folder), "2"]
        self._run(arguments, dict(os.environ))
        self._wait(lambda: "ready" in self._said("out").read_text())

    def commits(self) -> list[Commit]:
        return commits_of_flink(self.folder)

    def rows(self) -> list[dict[str, Any]]:
        return rows_of_flink(self.folder)


class Ours(Side):
    """A supervised pipeline in one worker, with the settings that it comes with."""

    name = "hindcast"
    shards = 1
    workers = 1
    #: The settings that are not as they come.
    changed: ClassVar[Mapping[str, Any]] = {}

    def start(self) -> None:
        home = self.folder / "home"
        own = {"home": home, "pipelines_dir": home / "pipelines", **self.changed}
        self.settings = self.settings.model_copy(update=own)
        self.settings.pipelines_dir.mkdir(parents=True)
        module = self.job.module(NAME, topic=self.topic, shards=self.shards)
        (self.settings.pipelines_dir / f"{NAME}.py").write_text(module)
        states = DesiredStates(LeaseTable(self.settings))
        states.declare(catalog.load(self.settings.pipelines_dir)[NAME], self.settings.workers)
        for _ in range(self.workers):
            self._run(programs.command("consume"), {**os.environ, **self.settings.environment()})
        self._wait(self._own_all)

    def _own_all(self) -> bool:
        """Whether each shard has an owner, and each worker a shard."""
        owners = [
            lease.lease_owner
            for lease in LeaseTable(self.settings).leases_if_any()
            if lease.status_type is StatusType.SHARD and lease.lease_owner
        ]
        return len(owners) == self.shards and len(set(owners)) == self.workers

    def commits(self) -> list[Commit]:
        return commits_of_ledger(Ledger(ControlTables(self.settings)).batches(NAME))

    def rows(self) -> list[dict[str, Any]]:
        return self.job.rows_of_delta(self.settings.table("sinks", NAME))


class TwoShards(Ours):
    """The same with a query for each half of the partitions: what dealing them out costs in one worker."""

    name = "two shards"
    shards = 2


class FourShards(Ours):
    """The same with a query for each quarter."""

    name = "four shards"
    shards = 4


class TwoWorkers(TwoShards):
    """Each half of the partitions in a worker of its own."""

    name = "two workers"
    workers = 2


class ShorterTrigger(Ours):
    """The same with more batches a second."""

    name = "trigger 0.7"
    changed: ClassVar[Mapping[str, Any]] = {"trigger_seconds": 0.7}


class ShortTrigger(Ours):
    """The same with twice as many batches a second."""

    name = "trigger 0.5"
    changed: ClassVar[Mapping[str, Any]] = {"trigger_seconds": 0.5}


class LongTrigger(Ours):
    """The same with a fifth of the batches."""

    name = "trigger 5"
    changed: ClassVar[Mapping[str, Any]] = {"trigger_seconds": 5.0}


class SmallHeap(Ours):
    """The same with little more than the least heap that Spark starts with, 450 MiB."""

    name = "heap 480m"
    changed: ClassVar[Mapping[str, Any]] = {"spark_driver_memory": "480m"}


class LargeHeap(Ours):
    """The same with three times the heap."""

    name = "heap 2g"
    changed: ClassVar[Mapping[str, Any]] = {"spark_driver_memory": "2g"}


#: Those that show what a setting is worth. They run if they are named.
_CHOICES: tuple[type[Side], ...] = (
    FourShards,
    TwoWorkers,
    ShorterTrigger,
    ShortTrigger,
    LongTrigger,
    SmallHeap,
    LargeHeap,
)
#: Those of a benchmark that names none.
USUAL: tuple[type[Side], ...] = (Ours, TwoShards, Tuned, Stock, NoSink, Flink)
SIDES: dict[str, type[Side]] = {side.name: side for side in (*USUAL, *_CHOICES)}


def bench_folder(settings: Settings) -> Path:
    """What `make bench` installs for itself: the client that sends, and Flink."""
    return settings.spark_jars_dir.parent.parent / "bench"
