"""The table of what batches said in the place of the stream: ``corrections/<sink>``. Pure Python and deltalake.

The sink stays what the stream said, so that it can always be judged. A correction is one commit on the other table: it replaces whatever
stood there for its range of windows, and says in its metadata by which run each corrected window was set. Readers take corrected windows
from here and all others from the sink (:mod:`hindcast.serving.reading`).

A range is (after, to], by the end of a window, and has the offsets up to which its run had read: a run that had read less never replaces
one that had read more, whatever the order in which they are applied, and one that is applied again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from hindcast.delta.commit import KEEP_THE_LOG, METADATA_KEY, commits_down, create_table, until_it_lands
from hindcast.errors import StoreUnavailableError
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.tables.ledger import Offsets, by_partition, offsets_to_json

#: Columns beside the sink's: the window's end in epoch microseconds, the run that set the row, and when.
WINDOW_END, RUN_ID, CORRECTED_AT = "_window_end_us", "_run_id", "_corrected_at"


@dataclass(frozen=True)
class CorrectedRange:
    """The windows with ``after_ms`` < end <= ``to_ms`` say what the run ``run_id`` said, which had read up to ``end``."""

    after_ms: int
    to_ms: int
    run_id: str
    end: Offsets

    def overlaps(self, after_ms: int, to_ms: int) -> bool:
        return self.after_ms < to_ms and after_ms < self.to_ms

    def without(self, after_ms: int, to_ms: int) -> Iterable[CorrectedRange]:
        """What is left of it beside these windows: none, one or two ranges."""
        for first, last in ((self.after_ms, min(self.to_ms, after_ms)), (max(self.after_ms, to_ms), self.to_ms)):
            if first < last:
                yield CorrectedRange(first, last, self.run_id, self.end)

    def as_dict(self) -> dict[str, Any]:
        return {"after_ms": self.after_ms, "to_ms": self.to_ms, "run_id": self.run_id, "end": offsets_to_json(self.end)}

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> CorrectedRange:
        return cls(entry["after_ms"], entry["to_ms"], entry["run_id"], by_partition(json.loads(entry["end"])))


@dataclass(frozen=True)
class Corrected:
    """What is corrected at one version of the table; version -1 and no ranges where there is none. Ranges are in order and apart."""

    version: int
    ranges: tuple[CorrectedRange, ...]

    def within(self, after_ms: int, to_ms: int) -> tuple[CorrectedRange, ...]:
        """The ranges that overlap these windows."""
        return tuple(one for one in self.ranges if one.overlaps(after_ms, to_ms))

    def known_by(self, end: Mapping[int, int]) -> Corrected:
        """Without the ranges of runs that had read past these offsets: whoever knows only the records before them cannot judge those."""
        known = [one for one in self.ranges if all(offset <= end.get(partition, 0) for partition, offset in one.end.items())]
        return Corrected(self.version, tuple(known))

    def intervals(self) -> list[tuple[int, int]]:
        """(after_ms, to_ms] of all corrected windows, neighbours joined."""
        joined: list[tuple[int, int]] = []
        for one in self.ranges:
            if joined and joined[-1][1] == one.after_ms:
                joined[-1] = (joined[-1][0], one.to_ms)
            else:
                joined.append((one.after_ms, one.to_ms))
        return joined


NOTHING = Corrected(-1, ())


class Corrections:
    """The corrections of one pipeline's sink."""

    def __init__(self, settings: Settings, pipeline: Pipeline) -> None:
        self.url = settings.table("corrections", pipeline.sink.name)
        self._options = settings.storage_options or None
        self._app = f"{pipeline.name}/v{pipeline.version}/corrections"

    def current(self, version: int | None = None) -> Corrected:
        """What is corrected now, or at an older version of the table.

        :raises StoreUnavailableError: the store does not answer
        """
        if version == NOTHING.version:
            return NOTHING
        table = self._open(version)
        return self._corrected(table) if table is not None else NOTHING

    def open(self, version: int | None = None) -> DeltaTable:
        """The table, which there is, at its newest version or at one that :meth:`current` gave."""
        table = self._open(version)
        assert table is not None
        return table

    def replace(self, rows: pa.dataset.Scanner, by: CorrectedRange) -> bool:
        """Put the rows in the place of what stood for the range; False where that is there already, or a run that had read more.

        :param rows: all rows of the range's windows, with the columns of the sink and the three of this table
        :raises StoreUnavailableError: the store does not answer; nothing, or all of it, was written: try again
        """
        try:
            return until_it_lands(self.url, lambda: self._replace_once(rows, by))
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=self.url, action="written", reason=error) from error

    def _replace_once(self, rows: pa.dataset.Scanner, by: CorrectedRange) -> bool:
        table = self._open()
        if table is None:
            # Its commits say what is corrected, so none may ever be cleaned away; there are some a day.
            cure = "It was not written by this Hindcast: move it away."
            create_table(self.url, rows.projected_schema, self._options or {}, cure, configuration=KEEP_THE_LOG)
            table = self.open()
        before = self._corrected(table)
        for other in before.within(by.after_ms, by.to_ms):
            if any(offset > by.end.get(partition, 0) for partition, offset in other.end.items()):
                return False
        if any(one.run_id == by.run_id and one.after_ms <= by.after_ms and by.to_ms <= one.to_ms for one in before.ranges):
            return False
        kept = [part for one in before.ranges for part in one.without(by.after_ms, by.to_ms)]
        ranges = sorted([*kept, by], key=lambda one: one.after_ms)
        metadata = {"kind": "correction", "run_id": by.run_id, "ranges": [one.as_dict() for one in ranges]}
        write_deltalake(
            table,
            rows.to_reader(),
            mode="overwrite",
            predicate=f"{WINDOW_END} > {by.after_ms * 1000:d} AND {WINDOW_END} <= {by.to_ms * 1000:d}",
            commit_properties=CommitProperties(
                custom_metadata={METADATA_KEY: json.dumps(metadata)},
                max_commit_retries=0,
                app_transactions=[Transaction(self._app, table.version() + 1)],  # of two at once only one lands
            ),
        )
        return True

    def _corrected(self, table: DeltaTable) -> Corrected:
        """At the version of the handle: from the newest commit up to it that corrected; others only join files."""
        version = table.version()
        for entry in commits_down(self.open(), version):  # by another handle: on this one a commit may be about to land
            if METADATA_KEY in entry:
                return Corrected(version, tuple(CorrectedRange.of(one) for one in json.loads(entry[METADATA_KEY])["ranges"]))
        return Corrected(version, ())

    def _open(self, version: int | None = None) -> DeltaTable | None:
        try:
            return DeltaTable(self.url, version=version, storage_options=self._options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=self.url, action="read", reason=error) from error


def stamped(rows: pa.dataset.Dataset, only: pa.dataset.Expression, run_id: str, columns: Iterable[str]) -> pa.dataset.Scanner:
    """The rows as the table takes them, read when they are written."""
    shown: dict[str, Any] = {name: pa.dataset.field(name) for name in columns}
    shown[WINDOW_END] = pa.dataset.field("window", "end").cast(pa.int64())
    shown[RUN_ID] = pa.dataset.scalar(run_id)
    shown[CORRECTED_AT] = pa.dataset.scalar(pa.scalar(datetime.now(UTC), pa.timestamp("us", tz="UTC")))
    return rows.scanner(columns=shown, filter=only)
