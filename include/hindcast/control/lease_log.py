"""The log of ``leases`` on a local disk, followed entry by entry: what a worker does that looks at the leases many times a second.

Delta's own reader lists the log, makes a snapshot and plans a scan: 6 ms for what one small entry says, 1 ms where nothing is new. The
entries that a :class:`hindcast.control.lease_table.LeaseTable` and its upkeep write are read here as the protocol has them
(Delta's PROTOCOL.md, "Delta Log Entries" and "Actions"): a whole overwrite names the one file that is the table from then on, and a vacuum
names none. Anything else is left to Delta's reader, and so is a store that is not a local disk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def newer(folder: Path, version: int) -> tuple[int, Path | None] | None:
    """The table's newest version and the file that holds all its rows; no file where no row has changed since ``version``.

    :param version: one that was the newest so short a time ago that no entry after it is deleted yet
    :returns: None where only Delta's own reader can tell
    """
    file: Path | None = None
    while True:
        try:
            text = (folder / "_delta_log" / f"{version + 1:020d}.json").read_bytes()
        except FileNotFoundError:
            return version, file
        try:
            named = _named([json.loads(line) for line in text.splitlines()])
        except (ValueError, LookupError, TypeError, AttributeError):
            return None
        version, file = version + 1, folder / named if named else file


def _named(actions: list[dict[str, Any]]) -> str:
    """The file that a commit says is the whole table; empty where it changes no row.

    :raises LookupError: where the commit is neither a whole overwrite by one file nor without a change
    """
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
