"""Folders for what Spark keeps while a process or a job lives.

A process's own folder holds blocks, copies of jars and unpacked native libraries. Spark removes them when it ends well. After kill -9 they
would stay (23 MB each time), so each folder has a lock that its process holds, and whoever starts next removes the folders whose locks
nobody holds.

A job's folder holds files that the driver and the executors share: recorded batches, and the checkpoints of queries that run them. On a
Spark master of this machine (``local[n]``) it lies within the process's own folder. On a cluster executors are other processes, perhaps on
other hosts, so it lies below ``Settings.scratch()``. A lock says nothing about a process of another host. There a file says that the job
lives: the job writes it anew each hour, and whoever begins a job removes the folders in which that file is a day old.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import SparkSession

from hindcast.errors import ScratchRefusedError

_log = structlog.get_logger(__name__)

#: Where a session finds the place of its jobs' folders.
PLACE = "spark.hindcast.scratch"
_SUFFIX = ".lock"
#: Locks are held until the process ends, however it ends.
_held: list[int] = []

#: What a glob pattern would read as its own, and how it is told not to.
_GLOB, _ESCAPED = re.compile(r"([*?\[\]{}^])"), r"\\\1"
_ALIVE = "alive"
_BEAT_SECONDS = 3600.0
#: A job that has not said for so long that it lives is dead, whatever two hosts' clocks differ by.
_DEAD_AFTER_SECONDS = 86_400.0


def claim(home: Path) -> Path:
    """Make a folder for this process below ``home``, and remove those of processes that have ended."""
    root = home / "tmp" / "spark"
    root.mkdir(parents=True, exist_ok=True)
    for lock in root.glob(f"*{_SUFFIX}"):
        _remove_if_left(lock)
    while True:
        folder = root / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        path = folder.with_name(folder.name + _SUFFIX)
        lock_file = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        if path.exists():
            break
        os.close(lock_file)  # somebody took it for one that was left, in the moment before it was locked
    _held.append(lock_file)
    folder.mkdir()
    return folder


def _remove_if_left(path: Path) -> None:
    try:
        with path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.with_name(path.name.removesuffix(_SUFFIX)), ignore_errors=True)
            path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return  # its process lives, or another one is removing it


class Folder:
    """A folder as Hadoop sees it, so on whatever file system Spark itself can use. Names within it are relative, with slashes."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        context: Any = spark.sparkContext
        self.url = url
        self._jvm = context._jvm
        self._path = self._jvm.org.apache.hadoop.fs.Path
        self._fs = self._path(url).getFileSystem(context._jsc.hadoopConfiguration())

    def at(self, name: str) -> str:
        """The URL of what has this name in the folder."""
        return f"{self.url}/{name}"

    def make(self, name: str = "") -> None:
        """Make the folder, or one within it."""
        self._fs.mkdirs(self._path(self.at(name) if name else self.url))

    def names(self, pattern: str) -> list[str]:
        """The names of the files that a glob pattern matches, in their order."""
        found = self._fs.globStatus(self._path(f"{_GLOB.sub(_ESCAPED, self.url)}/{pattern}"))
        # As one string, "{url,url}": asked for one by one, a hundred names are several hundred calls into the JVM.
        text = self._jvm.org.apache.commons.lang3.ArrayUtils.toString(self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(found))
        root = self._path(self.url).toUri().getPath()
        return sorted(re.findall(rf"{re.escape(root)}/([^,}}]+)", text))

    def move(self, name: str, to: str) -> None:
        self._fs.rename(self._path(self.at(name)), self._path(self.at(to)))

    def write(self, name: str, content: bytes) -> None:
        stream = self._fs.create(self._path(self.at(name)), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def set_time(self, name: str, at_ms: int) -> None:
        """Let the file be changed at that time, in epoch milliseconds."""
        self._fs.setTimes(self._path(self.at(name)), at_ms, -1)

    def check_time(self, name: str, at_ms: int) -> None:
        """:raises ScratchRefusedError: where the file does not have the time that was set"""
        if self._time_ms(name) != at_ms:
            raise ScratchRefusedError(url=self.url)

    def remove(self, name: str = "") -> None:
        self._fs.delete(self._path(self.at(name) if name else self.url), True)

    def remove_dead(self) -> None:
        """Remove the folders in it whose jobs have not said for a day that they live."""
        dead_ms = (time.time() - _DEAD_AFTER_SECONDS) * 1000
        for name in self.names(f"*/{_ALIVE}"):
            if self._time_ms(name) < dead_ms:
                job = name.removesuffix(f"/{_ALIVE}")
                self.remove(job)
                _log.info("A dead job's files were removed.", folder=self.at(job))

    def _time_ms(self, name: str) -> int:
        return int(self._fs.getFileStatus(self._path(self.at(name))).getModificationTime())


@contextmanager
def folder(spark: SparkSession) -> Iterator[Folder]:
    """A new folder for one job, removed after it, which driver and executors share.

    :raises ScratchRefusedError: where files there cannot be used
    """
    place = Folder(spark, str(spark.conf.get(PLACE)))
    own = Folder(spark, place.at(f"job-{uuid.uuid4().hex[:8]}"))
    own.make()
    ended = threading.Event()
    if not str(spark.sparkContext.master).startswith("local"):
        own.write(_ALIVE, b"")
        place.remove_dead()
        threading.Thread(target=_say_alive, args=(own, ended), name="scratch", daemon=True).start()
    try:
        yield own
    finally:
        ended.set()
        own.remove()


def _say_alive(own: Folder, ended: threading.Event) -> None:
    while not ended.wait(_BEAT_SECONDS):
        try:
            own.write(_ALIVE, b"")
        except Exception as error:  # noqa: BLE001 - whatever a file system raises; the next hour tries again, and a day is long
            _log.warning("The folder of a job could not be kept young.", folder=own.url, reason=str(error).split("\n", 1)[0])
