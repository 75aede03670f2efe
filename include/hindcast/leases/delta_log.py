"""The log of ``leases``, followed entry by entry, so that a poll of a worker costs little: it polls them many
times a second.

Delta's own reader lists the log, makes a snapshot and plans a scan: 6 ms for what one small entry says, and
1 ms if nothing is new. So this reads the entries that a :class:`hindcast.leases.delta_store.LeaseTable` and
its upkeep write, as the protocol has them (Delta's PROTOCOL.md, "Delta Log Entries" and "Actions"): a whole
overwrite names the one file that is the table from then on, and a vacuum names none. Anything else is left to
Delta's reader.

In an object store Delta's reader lists the log, which is what a store charges most for, and reads entries
again. Here a poll asks once for the entry that would come next.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyarrow import NativeFile, OSFile
from pyarrow.fs import FileSystem

from hindcast.delta.files import filesystem

#: The file name of an entry: its version.
_ENTRY = re.compile(r"([0-9]+)\.json")
#: The last whole overwrite is among so many of the newest entries: a vacuum writes two, and two vacuums
#: seldom follow each other.
ENTRIES = 5
#: What an entry raises if none of our writers has written it.
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError)
#: The operations that change no row.
_VACUUM = frozenset({"VACUUM START", "VACUUM END"})
#: The kinds of action that a whole overwrite may have. A commit with others says more than which file it is.
_OVERWRITE = frozenset({"commitInfo", "add", "remove"})


class LogEnd(NamedTuple):
    """The table's newest version, and the file that holds all its rows."""

    version: int
    file: str  # its name; empty if no row has changed since the version that the reader knows


class TableFolder(Protocol):
    """The folder of the table."""

    def open(self, name: str) -> NativeFile:
        """:raises FileNotFoundError: if there is no such file
        :raises OSError: if the store does not answer
        """

    def versions(self) -> list[int]:
        """The versions of which the log has an entry, in no order; none if that costs more than Delta's
        reader.
        """


class LocalFolder:
    """A folder on a local disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> NativeFile:
        return OSFile(str(self._path / name))

    def versions(self) -> list[int]:
        versions: list[int] = []
        with os.scandir(self._path / "_delta_log") as log:
            for entry in log:
                match = _ENTRY.fullmatch(entry.name)
                if match:
                    versions.append(int(match[1]))
        return versions


class StoreFolder:
    """A folder in an object store, reached as deltalake reaches it."""

    def __init__(self, url: str, storage_options: dict[str, str]) -> None:
        self._url = url
        self._options = storage_options

    @cached_property
    def _store(self) -> FileSystem:
        return filesystem(self._url, self._options)

    def open(self, name: str) -> NativeFile:
        return self._store.open_input_file(name)

    def versions(self) -> list[int]:
        return []


def folder_of(url: str, storage_options: dict[str, str]) -> TableFolder:
    """The folder of a table at a path or a URL."""
    if "://" in url:
        return StoreFolder(url, storage_options)
    return LocalFolder(Path(url))


def newest(folder: TableFolder) -> LogEnd | None:
    """The end of the table's log, for a reader that knows no version of it. It has a file.

    :returns: None if only Delta's own reader can tell
    """
    try:
        last = max(folder.versions())
        for version in range(last, last - ENTRIES, -1):
            name = _whole_file(folder, version)
            if name:
                return LogEnd(last, name)
    except (OSError, *_NOT_OURS):
        return None
    return None


def newer(folder: TableFolder, version: int) -> LogEnd | None:
    """The end of the table's log, for a reader that knows a version of it.

    :param version: one that was the newest so short a time ago that no entry after it is deleted yet
    :returns: None if only Delta's own reader can tell
    :raises OSError: if the store does not answer
    """
    end = LogEnd(version, "")
    try:
        while True:
            name = _whole_file(folder, end.version + 1)
            end = LogEnd(end.version + 1, name or end.file)
    except FileNotFoundError:
        return end
    except _NOT_OURS:
        return None


def _whole_file(folder: TableFolder, version: int) -> str:
    """The name of the one file that is the whole table in this version; empty if the commit changes no row.

    :raises FileNotFoundError: if there is no such version
    :raises _NOT_OURS: if the commit is neither a whole overwrite by one file nor a vacuum
    """
    with folder.open(f"_delta_log/{version:020d}.json") as entry:
        text = entry.read()
    actions: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    kinds: set[str] = set().union(*actions)
    (info,) = _of_kind("commitInfo", actions)
    if kinds == {"commitInfo"} and info["operation"] in _VACUUM:
        return ""
    if not kinds <= _OVERWRITE or not _is_whole_overwrite(info):
        raise LookupError
    (added,) = _of_kind("add", actions)
    path = str(added["path"])
    if added.get("deletionVector") or "%" in path or "/" in path:
        raise LookupError
    return path


def _of_kind(kind: str, actions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [action[kind] for action in actions if kind in action]


def _is_whole_overwrite(info: dict[str, Any]) -> bool:
    """Whether a commit says that it replaces all rows."""
    parameters = info["operationParameters"]
    return (
        info["operation"] == "WRITE" and parameters["mode"] == "Overwrite" and "predicate" not in parameters
    )
