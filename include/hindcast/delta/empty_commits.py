"""Refuse a table whose log has an empty commit file. A machine that lost its power may leave one."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hindcast.errors import StoreUnavailableError


def refuse_empty_commits(url: str) -> None:
    """Refuse a table on a local disk if a commit after its last checkpoint is an empty file.

    delta-rs takes such a file for a commit that did nothing: what it held would be skipped in silence. Nobody
    reads the commits before the checkpoint to learn what the table holds.

    :raises StoreUnavailableError: if there is such a file; the message names it
    """
    if "://" in url:
        return  # an object store never shows a part of an object
    log = Path(url) / "_delta_log"
    try:
        name = _empty_commit(log)
    except OSError as error:
        raise StoreUnavailableError(table=url, action="read", reason=error) from error
    if name is not None:
        raise empty_commit_error(url, name)


def empty_commit_error(url: str, name: str) -> StoreUnavailableError:
    """What is wrong with a table that has an empty commit file of this name."""
    reason = f"the commit {name} of its log is empty, and skipping it would lose rows: restore that file"
    return StoreUnavailableError(table=url, action="read", reason=reason)


def _empty_commit(log: Path) -> str | None:
    """The name of the first empty commit file after the last checkpoint; None if there is none.

    The commits are looked up by their names, so the price does not depend on the log.
    """
    checkpoint = last_checkpoint(log)
    if checkpoint is None or _size(log, checkpoint + 1) is None:
        return _listed_empty_commit(log)
    version = checkpoint + 1
    while (size := _size(log, version)) is not None:
        if size == 0:
            return _name(version)
        version += 1
    return None


def last_checkpoint(log: Path) -> int | None:
    """The version of the last checkpoint, as the log's hint has it; None without a hint, or if it is torn."""
    try:
        return int(json.loads((log / "_last_checkpoint").read_bytes())["version"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None


def _size(log: Path, version: int) -> int | None:
    try:
        return (log / _name(version)).stat().st_size
    except FileNotFoundError:
        return None


def _name(version: int) -> str:
    return f"{version:020d}.json"


def _listed_empty_commit(log: Path) -> str | None:
    """As :func:`_empty_commit`, for a log without a hint, or with one that may be old."""
    try:
        with os.scandir(log) as listing:
            entries = list(listing)
    except FileNotFoundError:
        return None  # there is no table
    # Names begin with their version in twenty digits, so they are in the order of the versions.
    first = max((entry.name for entry in entries if ".checkpoint." in entry.name), default="")
    for entry in entries:
        if entry.name > first and entry.name.endswith(".json") and _is_empty(entry):
            return entry.name
    return None


def _is_empty(entry: os.DirEntry[str]) -> bool:
    """Whether the file is empty; one that was deleted since the folder was listed is not."""
    try:
        return entry.stat().st_size == 0
    except FileNotFoundError:
        return False
