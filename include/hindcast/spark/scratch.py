"""Folders for what Spark keeps while a process or a job lives.

A process's own folder holds blocks, copies of jars and unpacked native libraries. Spark removes them when it
ends well. After kill -9 they would stay (23 MB each time). So each folder has a lock that its process holds,
and the next process removes the folders whose locks are free.

A job's folder holds files that the driver and the executors share: recorded batches, and the checkpoints of
queries that run them. On a Spark master of this machine (``local[n]``) it lies within the process's own
folder. On a cluster the executors are other processes, perhaps on other hosts, so it lies below
``Settings.scratch()``. A lock says nothing about a process of another host. There a file says that the job
lives: the job writes it again each hour, and the next job removes the folders in which that file is a day
old.
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

#: The session's setting that names the place of its jobs' folders.
PLACE = "spark.hindcast.scratch"
_SUFFIX = ".lock"
#: Locks are held until the process ends, however it ends.
_held: list[int] = []

#: The characters that mean something in a glob pattern, and their escaped form.
#: The path in the text of a file's status, without scheme and host.
_STATUS = re.compile(r"\{path=(?:[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?)?(/.*?); isDirectory=")
_GLOB = re.compile(r"([*?\[\]{}^])")
_ESCAPED = r"\\\1"
#: The file by which a job says that it lives, and how often it writes that.
_ALIVE = "alive"
_BEAT_SECONDS = 3600.0
#: A job is dead if it has not said for so long that it lives. That is far more than the clocks of two hosts
#: differ by.
_DEAD_AFTER_SECONDS = 86_400.0


def claim(home: Path) -> Path:
    """Make a folder for this process below ``home``, and remove the folders of processes that have ended."""
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
        os.close(lock_file)  # before it was locked, another process took it for a left one and removed it
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


def paths_of(jvm: Any, statuses: Any) -> list[str]:
    """The paths of an array of Hadoop's file statuses, without scheme and host.

    They come as one text: a hundred one by one are several hundred calls into the JVM. Hadoop's own function
    for the paths takes only arrays of the class FileStatus, and a store gives arrays of its own class.
    """
    text = str(jvm.org.apache.commons.lang3.ArrayUtils.toString(statuses))
    return _STATUS.findall(text)


class Folder:
    """A folder as Hadoop sees it, so on any file system that Spark itself can use.

    Names within it are relative, with slashes.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        context: Any = spark.sparkContext
        self.url = url
        self._jvm = context._jvm
        self._path = self._jvm.org.apache.hadoop.fs.Path
        self._fs = self._path(url).getFileSystem(context._jsc.hadoopConfiguration())

    def at(self, name: str) -> str:
        """The URL of this name in the folder."""
        return f"{self.url}/{name}"

    def make(self, name: str = "") -> None:
        """Make the folder, or one within it."""
        self._fs.mkdirs(self._located(name))

    def names(self, pattern: str) -> list[str]:
        """The names of the files that a glob pattern matches, in their order."""
        escaped = _GLOB.sub(_ESCAPED, self.url)
        found = self._fs.globStatus(self._path(f"{escaped}/{pattern}"))
        root = self._path(self.url).toUri().getPath()
        return sorted(path.removeprefix(f"{root}/") for path in paths_of(self._jvm, found))

    def files(self, name: str) -> list[str]:
        """The names of all files below this one, without those that are still being written."""
        root = self._path(self.url).toUri().getPath()
        found = []
        files = self._fs.listFiles(self._located(name), True)
        while files.hasNext():
            path = str(files.next().getPath().toUri().getPath())
            if not path.rsplit("/", 1)[1].startswith("."):
                found.append(path.removeprefix(f"{root}/"))
        return sorted(found)

    def has(self, name: str) -> bool:
        """Whether there is a file or a folder of this name."""
        return bool(self._fs.exists(self._located(name)))

    def move(self, name: str, to: str) -> None:
        self._fs.rename(self._path(self.at(name)), self._path(self.at(to)))

    def write(self, name: str, content: bytes) -> None:
        stream = self._fs.create(self._path(self.at(name)), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        stream = self._fs.open(self._path(self.at(name)))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def copy(self, name: str, to: Folder, to_name: str) -> None:
        """Copy a file, or a folder with all in it, to a name that another folder does not have yet. Without a
        name the whole folder is copied.
        """
        source = self._located(name)
        target = to._located(to_name)
        to._fs.mkdirs(target.getParent())
        copied = self._jvm.org.apache.hadoop.fs.FileUtil.copy(
            self._fs, source, to._fs, target, False, self._fs.getConf()
        )
        if not copied:
            raise OSError(f"{self.at(name)} could not be copied to {to.at(to_name)}")

    def uri(self, name: str) -> str:
        """The name with its scheme, as Spark writes it."""
        return str(self._fs.makeQualified(self._path(self.at(name))).toUri().toString())

    def set_time(self, name: str, at_ms: int) -> None:
        """Set the file's time of change, in epoch milliseconds."""
        self._fs.setTimes(self._path(self.at(name)), at_ms, -1)

    def check_time(self, name: str, at_ms: int) -> None:
        """:raises ScratchRefusedError: if the file does not have the time that was set"""
        if self._time_ms(name) != at_ms:
            raise ScratchRefusedError(url=self.url)

    def remove(self, name: str = "") -> None:
        """Remove what has this name in the folder; without a name the folder itself."""
        self._fs.delete(self._located(name), True)

    def remove_dead(self) -> None:
        """Remove the folders of jobs that have not said for a day that they live."""
        dead_ms = (time.time() - _DEAD_AFTER_SECONDS) * 1000
        for name in self.names(f"*/{_ALIVE}"):
            if self._time_ms(name) < dead_ms:
                job = name.removesuffix(f"/{_ALIVE}")
                self.remove(job)
                _log.info("A dead job's files were removed.", folder=self.at(job))

    def _located(self, name: str) -> Any:
        """Hadoop's path of the name; of the folder itself if the name is empty."""
        if not name:
            return self._path(self.url)
        return self._path(self.at(name))

    def _time_ms(self, name: str) -> int:
        status = self._fs.getFileStatus(self._path(self.at(name)))
        return int(status.getModificationTime())


@contextmanager
def folder(spark: SparkSession) -> Iterator[Folder]:
    """A new folder for one job. Driver and executors share it, and it is removed after the job.

    :raises ScratchRefusedError: if files there cannot be used
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
        except Exception as error:  # noqa: BLE001 - a file system may raise anything; the next hour tries again
            reason = str(error).split("\n", 1)[0]
            _log.warning("The folder of a job could not be kept young.", folder=own.url, reason=reason)
