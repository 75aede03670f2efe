"""The table of corrections: ``corrections/<sink>``. Pure Python and deltalake.

The sink stays what the stream said, so that it can always be judged. A correction is one commit on the other
table: it replaces all rows there for its range of windows, and its metadata says for each corrected window
which run set it. Readers take corrected windows from here and all others from the sink
(:mod:`hindcast.serving.reading`).

A range is (after, to], by the end of a window. It also has the offsets up to which its run had read. A run
that had read less never replaces one that had read more, in whatever order the two are applied. A run that
is applied again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from hindcast.delta.commit import KEEP_THE_LOG, METADATA_KEY, commits_down, until_it_lands
from hindcast.delta.open_table import create_table, find_table
from hindcast.errors import StoreUnavailableError
from hindcast.partitions import Offsets, by_partition, offsets_to_json
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings

# The columns that this table has in addition to those of the sink.
#: The window's end in epoch microseconds.
WINDOW_END = "_window_end_us"
#: The run that set the row.
RUN_ID = "_run_id"
#: When it did.
CORRECTED_AT = "_corrected_at"


@dataclass(frozen=True)
class CorrectedRange:
    """The windows with ``after_ms`` < end <= ``to_ms`` have the answer of the run ``run_id``.

    ``end``: the offsets up to which that run had read.
    """

    after_ms: int
    to_ms: int
    run_id: str
    end: Offsets

    def overlaps(self, after_ms: int, to_ms: int) -> bool:
        return self.after_ms < to_ms and after_ms < self.to_ms

    def contains(self, other: CorrectedRange) -> bool:
        return self.after_ms <= other.after_ms and other.to_ms <= self.to_ms

    def read_past(self, end: Mapping[int, int]) -> bool:
        """Whether its run had read past these offsets in any partition."""
        return any(offset > end.get(partition, 0) for partition, offset in self.end.items())

    def without(self, after_ms: int, to_ms: int) -> Iterable[CorrectedRange]:
        """What is left of it without these windows: none, one or two ranges."""
        before = (self.after_ms, min(self.to_ms, after_ms))
        behind = (max(self.after_ms, to_ms), self.to_ms)
        for first, last in (before, behind):
            if first < last:
                yield CorrectedRange(first, last, self.run_id, self.end)

    def as_dict(self) -> dict[str, Any]:
        return {
            "after_ms": self.after_ms,
            "to_ms": self.to_ms,
            "run_id": self.run_id,
            "end": offsets_to_json(self.end),
        }

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> CorrectedRange:
        end = by_partition(json.loads(entry["end"]))
        return cls(entry["after_ms"], entry["to_ms"], entry["run_id"], end)


@dataclass(frozen=True)
class Corrected:
    """What is corrected at one version of the table. Ranges are in order and do not overlap.

    If there is no table the version is -1 and there are no ranges.
    """

    version: int
    ranges: tuple[CorrectedRange, ...]

    def within(self, after_ms: int, to_ms: int) -> tuple[CorrectedRange, ...]:
        """The ranges that overlap these windows."""
        return tuple(one for one in self.ranges if one.overlaps(after_ms, to_ms))

    def known_by(self, end: Mapping[int, int]) -> Corrected:
        """Without the ranges of runs that had read past these offsets: they cannot be judged from the records
        before the offsets alone.
        """
        known = [one for one in self.ranges if not one.read_past(end)]
        return Corrected(self.version, tuple(known))

    def intervals(self) -> list[tuple[int, int]]:
        """(after_ms, to_ms] of all corrected windows, neighbours joined."""
        joined: list[tuple[int, int]] = []
        for one in self.ranges:
            if joined and joined[-1][1] == one.after_ms:
                first, _ = joined[-1]
                joined[-1] = (first, one.to_ms)
            else:
                joined.append((one.after_ms, one.to_ms))
        return joined


NOTHING = Corrected(-1, ())


class Corrections:
    """The corrections of one pipeline's sink."""

    def __init__(self, settings: Settings, pipeline: Pipeline) -> None:
        self.url = settings.table("corrections", pipeline.sink.name)
        self._options = settings.storage_options
        self._app = f"{pipeline.name}/v{pipeline.version}/corrections"

    def current(self, version: int | None = None) -> Corrected:
        """What is corrected now, or at an older version of the table.

        :raises StoreUnavailableError: if the store does not answer
        """
        if version == NOTHING.version:
            return NOTHING
        table = self._open(version)
        if table is None:
            return NOTHING
        return self._corrected(table)

    def open(self, version: int | None = None) -> DeltaTable:
        """The table, which must exist, at its newest version or at one that :meth:`current` gave."""
        table = self._open(version)
        assert table is not None
        return table

    def replace(self, rows: pa.dataset.Scanner, by: CorrectedRange) -> bool:
        """Replace the rows of the range's windows. False if they are there already, or if a run that had read
        more has set any of these windows.

        :param rows: all rows of the range's windows, with the columns of the sink and the three of this table
        :raises StoreUnavailableError: if the store does not answer; nothing, or all of it, was written: try
            again
        """
        try:
            return until_it_lands(self.url, lambda: self._replace_once(rows, by))
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=self.url, action="written", reason=error) from error

    def _replace_once(self, rows: pa.dataset.Scanner, by: CorrectedRange) -> bool:
        table = self._open()
        if table is None:
            self._create(rows.projected_schema)
            table = self.open()
        before = self._corrected(table)
        if not _may_replace(before, by):
            return False
        metadata = {
            "kind": "correction",
            "run_id": by.run_id,
            "ranges": [one.as_dict() for one in _ranges_after(before, by)],
        }
        properties = CommitProperties(
            custom_metadata={METADATA_KEY: json.dumps(metadata)},
            max_commit_retries=0,
            # Of two corrections at once only one lands.
            app_transactions=[Transaction(self._app, table.version() + 1)],
        )
        after_us = by.after_ms * 1000
        to_us = by.to_ms * 1000
        write_deltalake(
            table,
            rows.to_reader(),
            mode="overwrite",
            predicate=f"{WINDOW_END} > {after_us:d} AND {WINDOW_END} <= {to_us:d}",
            commit_properties=properties,
        )
        return True

    def _create(self, schema: pa.Schema) -> None:
        # The table's commits say what is corrected, so none may ever be cleaned away; there are some a day.
        cure = "It was not written by this Hindcast: move it away."
        create_table(self.url, schema, self._options, cure, configuration=KEEP_THE_LOG)

    def _corrected(self, table: DeltaTable) -> Corrected:
        """What is corrected at the version of the handle. The newest commit up to it that corrected says so;
        other commits only join files.
        """
        version = table.version()
        for entry in commits_down(self.url, self._options, version):
            if METADATA_KEY in entry:
                metadata = json.loads(entry[METADATA_KEY])
                ranges = [CorrectedRange.of(one) for one in metadata["ranges"]]
                return Corrected(version, tuple(ranges))
        return Corrected(version, ())

    def _open(self, version: int | None = None) -> DeltaTable | None:
        return find_table(self.url, self._options, version)


def _may_replace(before: Corrected, by: CorrectedRange) -> bool:
    """False if a run that had read more has set any of these windows, or if this run has set them all."""
    for other in before.within(by.after_ms, by.to_ms):
        if other.read_past(by.end):
            return False
    return not any(one.run_id == by.run_id and one.contains(by) for one in before.ranges)


def _ranges_after(before: Corrected, by: CorrectedRange) -> list[CorrectedRange]:
    """All corrected ranges once this one is set, in order."""
    ranges: list[CorrectedRange] = []
    for one in before.ranges:
        ranges.extend(one.without(by.after_ms, by.to_ms))
    ranges.append(by)
    return sorted(ranges, key=lambda one: one.after_ms)


def stamped(
    rows: pa.dataset.Dataset, only: pa.dataset.Expression, run_id: str, columns: Iterable[str]
) -> pa.dataset.Scanner:
    """The rows with the three columns of the table. They are read when they are written."""
    now = pa.scalar(datetime.now(UTC), pa.timestamp("us", tz="UTC"))
    shown: dict[str, Any] = {name: pa.dataset.field(name) for name in columns}
    shown[WINDOW_END] = pa.dataset.field("window", "end").cast(pa.int64())
    shown[RUN_ID] = pa.dataset.scalar(run_id)
    shown[CORRECTED_AT] = pa.dataset.scalar(now)
    return rows.scanner(columns=shown, filter=only)
