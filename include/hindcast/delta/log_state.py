"""What the log of a Delta table on a local disk says of the table, apart from its files. It is read by the
names of the log's entries, so the price does not depend on the log's length.

The reading begins at the last checkpoint, to which the log has a hint, or else at the first entry. From there
each entry has the next version as its name (Delta's PROTOCOL.md, "Delta Log Entries", "Last Checkpoint File",
"Checkpoints").
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from hindcast.delta.empty_commits import empty_commit_error, last_checkpoint
from hindcast.errors import StoreUnavailableError

#: What is read of a checkpoint. It has a row for each file of the table, too.
_COLUMNS = [
    "txn.appId",
    "txn.version",
    "metaData.schemaString",
    "metaData.configuration",
    "protocol.minWriterVersion",
]
#: Before a log's first entry.
_NOTHING = -1
#: If an entry is missing, so many after it are looked for: one that was lost has some after it.
_LOOK_AHEAD = 8


@dataclass(frozen=True)
class LogState:
    """What the log says at a version.

    ``apps``: the applications that are asked for, None for all. ``numbers``: the last number of each of them;
    those without a commit are left out. ``columns``: the names of the table's columns.
    """

    apps: Collection[str] | None
    version: int = _NOTHING
    numbers: Mapping[str, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    writer_version: int = 0

    @classmethod
    def of_table(cls, table: DeltaTable, apps: Collection[str]) -> Self:
        """As Delta's own reader finds it."""
        numbers = {}
        for app in apps:
            number = table.transaction_version(app)
            if number is not None:
                numbers[app] = number
        return cls(
            apps,
            table.version(),
            numbers,
            tuple(column.name for column in table.schema().fields),
            table.metadata().configuration,
            table.protocol().min_writer_version,
        )

    def after(self, action: Mapping[str, Any]) -> Self:
        """With an action of an entry, or of a checkpoint."""
        transaction = action.get("txn")
        if transaction is not None:
            app = transaction["appId"]
            if self.apps is not None and app not in self.apps:
                return self
            return replace(self, numbers={**self.numbers, app: transaction["version"]})
        metadata = action.get("metaData")
        if metadata is not None:
            columns = json.loads(metadata["schemaString"])["fields"]
            names = tuple(column["name"] for column in columns)
            return replace(self, columns=names, configuration=dict(metadata["configuration"] or {}))
        protocol = action.get("protocol")
        if protocol is not None:
            return replace(self, writer_version=protocol["minWriterVersion"])
        return self


def entry_path(log: Path, version: int) -> Path:
    """The entry of a version.

    :param log: the folder of the log
    """
    return log / f"{version:020d}.json"


def is_in_log(log: Path, version: int) -> bool:
    """Whether the log still has a version, as an entry or as a checkpoint. The oldest are deleted first, so
    each later version is there, too, if it was made.
    """
    return _exists(log, version) or (log / f"{version:020d}.checkpoint.parquet").exists()


def read_state(log: Path, apps: Collection[str] | None) -> LogState | None:
    """What the log says now.

    :returns: None if only Delta's own reader can tell: there is no table, its checkpoint has another form, or
        the log's hint is too old
    :raises StoreUnavailableError: if an entry is empty
    :raises OSError or ValueError: if the log cannot be read
    """
    state = _checkpointed(log, apps)
    if state is None:
        return None
    # The hint may be that of an older checkpoint, after which entries are deleted.
    if not _exists(log, state.version + 1) and not _exists(log, state.version):
        return None
    return follow(log, state)


def _checkpointed(log: Path, apps: Collection[str] | None) -> LogState | None:
    """What the last checkpoint says; nothing at all before the first one."""
    version = last_checkpoint(log)
    if version is None:
        return LogState(apps)
    try:
        with pq.ParquetFile(log / f"{version:020d}.checkpoint.parquet") as checkpoint:
            actions = checkpoint.read(columns=_COLUMNS)
    except FileNotFoundError:
        return None
    state = LogState(apps, version)
    for action in actions.filter(_is_any(actions)).to_pylist():
        state = state.after(action)
    return state


def _is_any(actions: pa.Table) -> pa.ChunkedArray:
    """Which rows say anything; the others name files."""
    any_of = pc.is_valid(actions.column(0))
    for name in actions.column_names[1:]:
        any_of = pc.or_(any_of, pc.is_valid(actions[name]))
    return any_of


def follow(log: Path, state: LogState) -> LogState | None:
    """What the log says now, from an earlier version on.

    :returns: None if the log has lost that version: then it is not known whether entries that are missing
        after it were never made
    :raises StoreUnavailableError: if an entry is empty, or missing before another one
    :raises OSError or ValueError: if an entry cannot be read, or is torn
    """
    newer = state
    while (entry := _next_entry(log, newer.version)) is not None:
        lines = entry.rstrip().split(b"\n")
        for line in lines[:-1]:
            # Most lines name files.
            if b'"txn"' in line or b'"metaData"' in line or b'"protocol"' in line:
                newer = newer.after(json.loads(line))
        # If the entry is torn, so is this line.
        newer = newer.after(json.loads(lines[-1]))
        newer = replace(newer, version=newer.version + 1)
    if newer.version == state.version and not is_in_log(log, state.version):
        return None
    return newer


def _next_entry(log: Path, version: int) -> bytes | None:
    """The entry after a version; None if there is none."""
    entry = _read(log, version + 1)
    if entry is not None or not is_in_log(log, version):
        return entry
    later = [number for number in range(version + 2, version + 2 + _LOOK_AHEAD) if _exists(log, number)]
    if not later:
        return None
    # Either another process has made both meanwhile, or the entry is lost.
    entry = _read(log, version + 1)
    if entry is None:
        name = entry_path(log, version + 1).name
        reason = (
            f"the commit {name} of its log is missing, and skipping it would lose rows: restore that file"
        )
        raise StoreUnavailableError(table=str(log.parent), action="read", reason=reason)
    return entry


def _exists(log: Path, version: int) -> bool:
    return entry_path(log, version).exists()


def _read(log: Path, version: int) -> bytes | None:
    path = entry_path(log, version)
    try:
        entry = path.read_bytes()
    except FileNotFoundError:
        return None
    if not entry:
        raise empty_commit_error(str(log.parent), path.name)
    return entry
