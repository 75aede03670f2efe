"""A folder for the files that Spark keeps while a process lives: blocks, copies of jars, unpacked native libraries.

Spark removes them when it ends well. After kill -9 they would stay (23 MB each time), so each folder has a lock that its process holds,
and whoever starts next removes the folders whose locks nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

from pyspark.sql import SparkSession

_SUFFIX = ".lock"
#: Locks are held until the process ends, however it ends.
_held: list[int] = []


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


@contextmanager
def folder(spark: SparkSession) -> Iterator[Path]:
    """A new folder of this process for one job, removed after it."""
    path = Path(spark.conf.get("spark.local.dir") or gettempdir()) / f"job-{uuid.uuid4().hex[:8]}"
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_if_left(path: Path) -> None:
    try:
        with path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.with_name(path.name.removesuffix(_SUFFIX)), ignore_errors=True)
            path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return  # its process lives, or another one is removing it
