"""The older part of a table's log, in a folder of its own, so that the log itself stays short.

Delta's readers and writers list a table's whole log, and on a local disk each entry costs them. But an older
version is asked for now and then: a rewind restores one, a verdict reads the one that its replay planned. So
the entries are not deleted when the log is shortened: they move to the folder ``_older`` of the table, whose
``_delta_log`` is again a log that Delta's reader understands. It has the files of each older version, as
paths within the table itself. Vacuums leave folders alone whose name begins with an underscore.

The entries are first linked into the older log, from the oldest on, and then deleted from the log, again from
the oldest on. So at each moment each version is whole in one of the two, and a process may die between any
two steps.

An object store lists what comes after a name, so there the log is left as it is.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from deltalake import DeltaTable

from hindcast.delta.log_state import entry_path
from hindcast.delta.open_table import open_table

_LOG = "_delta_log"
_OLDER = "_older"
#: A file of a log that belongs to a version.
_OF_VERSION = re.compile(r"(\d{20})\..+")
#: A checkpoint that is whole by itself.
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


def shorten_log(url: str, hours: float) -> int:
    """Move to the older log what the table's log has from before its last checkpoint that is so old.

    :returns: how many files were moved
    :raises OSError: if the store does not answer
    """
    if "://" in url:
        return 0
    log = Path(url, _LOG)
    older = Path(url, _OLDER, _LOG)
    names = _before_checkpoint(log, hours * 3600)
    if names:
        older.mkdir(parents=True, exist_ok=True)
    for name in names:
        # Another process may move the same. A stray entry in a gap of the log is dropped.
        with suppress(FileExistsError, FileNotFoundError):
            os.link(log / name, older / name)
    for name in names:
        (log / name).unlink(missing_ok=True)
    return len(names)


def expire_older_log(url: str, hours: float) -> int:
    """Delete what the older log has from before its last checkpoint that is so old.

    :returns: how many files were deleted
    :raises OSError: if the store does not answer
    """
    if "://" in url:
        return 0
    older = Path(url, _OLDER, _LOG)
    names = _before_checkpoint(older, hours * 3600)
    for name in names:
        (older / name).unlink(missing_ok=True)
    return len(names)


def open_version(url: str, storage_options: dict[str, str], version: int) -> DeltaTable:
    """The table at a version, be it one of the older log. Its files are paths within the table at ``url``,
    not within the handle's own address.

    :raises StoreUnavailableError: if the store does not answer, or both logs have lost the version
    """
    if is_in_older_log(url, version):
        return open_table(f"{url}/{_OLDER}", storage_options, version)
    return open_table(url, storage_options, version)


def is_in_older_log(url: str, version: int) -> bool:
    """Whether a version must be read by :func:`open_version`, since Delta's readers do not find it."""
    # A process that slept may have left a stray entry in a gap of the log itself, so the older log decides.
    return "://" not in url and entry_path(Path(url, _OLDER, _LOG), version).exists()


def entry_of(url: str, version: int) -> Path:
    """Where the entry of a version is, or would be, of a table on a local disk."""
    folder = Path(url)
    if is_in_older_log(url, version):
        folder = Path(url, _OLDER)
    return entry_path(folder / _LOG, version)


def _before_checkpoint(log: Path, seconds: float) -> list[str]:
    """The names of the files of the versions before the last checkpoint that is so old, the oldest first."""
    written_before = time.time() - seconds
    first_kept = -1
    of_versions: list[tuple[int, str]] = []
    try:
        with os.scandir(log) as listing:
            for file in listing:
                named = _OF_VERSION.fullmatch(file.name)
                if named is None:
                    continue
                version = int(named[1])
                of_versions.append((version, file.name))
                if version > first_kept and _CHECKPOINT.fullmatch(file.name):
                    with suppress(FileNotFoundError):
                        if file.stat().st_mtime <= written_before:
                            first_kept = version
    except FileNotFoundError:
        return []
    return [name for version, name in sorted(of_versions) if version < first_kept]
