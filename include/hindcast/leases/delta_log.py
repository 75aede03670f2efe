"""The log of ``leases`` on a local disk, followed entry by entry: what a worker does that looks at the leases many times a second.

Delta's own reader lists the log, makes a snapshot and plans a scan: 6 ms for what one small entry says, 1 ms where nothing is new. The
entries that a :class:`hindcast.leases.delta_store.LeaseTable` and its upkeep write are read here as the protocol has them
(Delta's PROTOCOL.md, "Delta Log Entries" and "Actions"): a whole overwrite names the one file that is the table from then on, and a vacuum
names none. Anything else is left to Delta's reader, and so is a store that is not a local disk.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

#: The last whole overwrite is among so many of the newest entries: a vacuum writes two, and seldom do two follow each other.
ENTRIES = 5
#: What reading an entry raises that nothing of ours has written.
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError)


def newest(folder: Path) -> tuple[int, Path | None] | None:
    """The table's newest version and the file that holds all its rows, for whoever knows no version of it.

    :returns: None where only Delta's own reader can tell
    """
    with suppress(OSError, *_NOT_OURS), os.scandir(folder / "_delta_log") as log:
        last = max(int(entry.name[:-5]) for entry in log if entry.name[:-5].isdigit() and entry.name.endswith(".json"))
        for version in range(last, last - ENTRIES, -1):
            if named := _named(folder, version):
                return last, folder / named
    return None


def newer(folder: Path, version: int) -> tuple[int, Path | None] | None:
    """The table's newest version and the file that holds all its rows; no file where no row has changed since ``version``.

    :param version: one that was the newest so short a time ago that no entry after it is deleted yet
    :returns: None where only Delta's own reader can tell
    """
    file: Path | None = None
    while True:
        try:
            named = _named(folder, version + 1)
        except FileNotFoundError:
            return version, file
        except _NOT_OURS:
            return None
        version, file = version + 1, folder / named if named else file


def _named(folder: Path, version: int) -> str:
    """The file that a commit says is the whole table; empty where it changes no row.

    :raises FileNotFoundError: there is no such version
    :raises _NOT_OURS: the commit is neither a whole overwrite by one file nor without a change
    """
    text = (folder / "_delta_log" / f"{version:020d}.json").read_bytes()
    actions: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
    changes = [action for action in actions if "commitInfo" not in action]
    if not changes and info["operation"] in {"VACUUM START", "VACUUM END"}:
        return ""
    (added,) = (action["add"] for action in changes if "add" in action)
    others = any(action.keys() - {"add", "remove"} for action in changes)
    whole = (
        info["operation"] == "WRITE"
        and info["operationParameters"]["mode"] == "Overwrite"
        and "predicate" not in info["operationParameters"]
    )
    if others or not whole or added.get("deletionVector") or "%" in added["path"] or "/" in added["path"]:
        raise LookupError
    return str(added["path"])
