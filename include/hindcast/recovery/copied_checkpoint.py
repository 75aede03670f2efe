"""Copy a query's checkpoint as it was before its last batch began.

A batch that failed may have left state behind: its tasks write the state of their partitions one by one, and
some may still run after the query has ended. If the batch runs again with fewer records, that state is wrong,
and Spark would keep it (decision 0008). So the batch runs again in a copy that has the state before it. The
old folder is left as it is: until the sink names the new one, it counts.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from hindcast.replay.kept_state import name_schemas
from hindcast.spark.scratch import Folder

#: A file of one version of a state store: ``state/0/1/17.delta`` or, of a join,
#: ``state/0/1/left-keyWithIndexToValue/17.delta``.
_VERSION = re.compile(r"/state/.*/(\d+)\.\w+$")

_COPIES_AT_ONCE = 16


def copy_before(spark: SparkSession, root: str, name: str, batch: int, to: str) -> None:
    """Copy the folder ``name`` to ``to``, without the state that this batch or a later one left.

    The plan of the batch is copied, so that it reads the same records.

    If there is no such folder, nothing was planned yet, and there is nothing to copy.

    :param root: the folder in which both lie
    :param batch: Spark's number of it
    :param to: a name that the root does not have yet
    """
    folder = Folder(spark, root)
    if not folder.has(name):
        return

    def copy(file: str) -> None:
        _copy(folder, file, to + file.removeprefix(name))

    # There are hundreds of files, and a store answers in tens of milliseconds.
    with ThreadPoolExecutor(_COPIES_AT_ONCE, "copied-checkpoint") as threads:
        list(threads.map(copy, [file for file in folder.files(name) if not _is_later(file, batch)]))
    name_schemas(folder, to)


def _is_later(file: str, batch: int) -> bool:
    """Whether it is of a state that this batch or a later one left."""
    found = _VERSION.search(f"/{file}")
    return found is not None and int(found[1]) > batch  # batch N leaves version N + 1


def _copy(folder: Folder, file: str, to: str) -> None:
    """Copy a file, unless it is gone: Spark deletes old versions of a state that nothing needs any more."""
    try:
        folder.copy(file, folder, to)
    except Py4JJavaError:
        if folder.has(file):
            raise
