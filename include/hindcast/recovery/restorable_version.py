"""An older version of a sink that is to be restored: its files, and whether a vacuum may delete one of them.

A vacuum deletes the files of an older version once they were replaced longer ago than the sink's retention.
The commit of a rewind names them again, and a vacuum that began before that commit may still delete them.
(One that begins later is refused, or sees that they are named.) So a version is refused while one of the
files that must be named again is near the retention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from hindcast.delta.files import DataFile, filesystem
from hindcast.delta.intervals import hours_of
from hindcast.delta.older_log import open_version
from hindcast.errors import RewindRefusedError, StoreUnavailableError

#: Delta's own default of ``delta.deletedFileRetentionDuration``.
_RETENTION = "interval 1 week"

#: Makes the error of a problem: the caller knows the pipeline, the target and the cure.
Refused = Callable[[str], RewindRefusedError]


@dataclass(frozen=True)
class RestorableVersion:
    """The files of a version of the sink; all are there. -1 is the empty table before the first batch."""

    number: int
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def check_age(self, table: DeltaTable, margin_hours: int, refused: Refused) -> None:
        """Check that no vacuum could delete, within the margin, a file that must be named again.

        :param table: the sink at its newest version
        :raises RewindRefusedError: if one could
        """
        named = {file.path for file in live_files(table)}
        again = {file.path for file in self.files} - named
        if not again:
            return
        hours = max(0, retention_hours(table) - margin_hours)
        # The very rule of a vacuum, with a shorter retention.
        expiring = table.vacuum(
            retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True
        )
        near = sorted(again.intersection(expiring))
        if near:
            too_near = f"version {self.number} of its sink is too near to Delta's retention"
            raise refused(f"{too_near}: a vacuum may delete {near[0]} meanwhile")


def find_version(
    url: str, storage_options: dict[str, str], number: int, refused: Refused
) -> RestorableVersion:
    """A version of the table and its files.

    :raises RewindRefusedError: if that version, or a file of it, is gone
    """
    if number < 0:
        return RestorableVersion(number, ())
    gone = f"version {number} of its sink is gone (Delta's retention)"
    try:
        files = live_files(open_version(url, storage_options, number))
    except StoreUnavailableError as error:
        raise refused(gone) from error
    store = filesystem(url, storage_options)
    for info in store.get_file_info([file.path for file in files]):
        if not info.is_file:
            raise refused(f"{gone}: {info.path}")
    return RestorableVersion(number, tuple(files))


def live_files(table: DeltaTable) -> list[DataFile]:
    """The files that the table names at the handle's version."""
    files = []
    for action in pa.table(table.get_add_actions()).to_pylist():
        rows = action["num_records"]
        files.append(DataFile(action["path"], action["size_bytes"], rows, f'{{"numRecords": {rows}}}'))
    return files


def retention_hours(table: DeltaTable) -> int:
    """How long the table keeps files that were replaced; 0 if it is less than hours."""
    return hours_of(table.metadata().configuration.get("delta.deletedFileRetentionDuration", _RETENTION))
