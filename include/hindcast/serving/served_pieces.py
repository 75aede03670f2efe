"""What the served table must hold, as a set of pieces, each with a name.

A piece is what readers get from one file of a sink, or of one correction. Its name says which rows these
are: two pieces of one name have the same rows. So what the table lacks, and what it has too much, are found
by a comparison of names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.delta.files import filesystem
from hindcast.delta.older_log import open_version
from hindcast.serving.corrected_windows import WINDOW_END, CorrectedRange
from hindcast.serving.reading import Reading
from hindcast.tables.sink_files import check_files_tell_rows

#: The windows with the first < end <= the second, in epoch milliseconds.
Interval = tuple[int, int]
#: Before, and after, any window.
_EVER = 1 << 52
#: Of the hash of a source, and of the windows that are taken from it, so many digits stand in a name.
_SOURCE_DIGITS = 32
_WINDOWS_DIGITS = 8
_EVERY_WINDOW = "0" * _WINDOWS_DIGITS


@dataclass(frozen=True)
class Piece:
    """What readers get from one file of a sink, or of one correction.

    ``source`` names where the rows come from. ``path`` is the file within the sink, empty for a correction,
    which ``correction`` then is. ``windows`` are those of the file that readers get from it, None for all of
    its rows.
    """

    source: str
    reading: Reading = field(repr=False, compare=False)
    path: str = ""
    correction: CorrectedRange | None = None
    windows: tuple[Interval, ...] | None = None

    @property
    def name(self) -> str:
        """What the names of its files in the served table begin with."""
        windows = _EVERY_WINDOW
        if self.windows is not None:
            windows = _digest(repr(self.windows), _WINDOWS_DIGITS)
        return f"{self.source}-{windows}"

    def rows(self) -> pa.Table:
        """Its rows, with the columns of its source."""
        reading = self.reading
        if self.correction is not None:
            table = reading.corrections.open(reading.corrected.version)
            end_us = pc.field(WINDOW_END)
            return arrow_dataset(table).to_table(filter=_within(end_us, [_interval(self.correction)]))
        store = filesystem(reading.sink_url, reading.storage_options)
        rows = pq.read_table(unquote(self.path), filesystem=store)
        if self.windows is None:
            return rows
        return rows.filter(_within(pc.field("window", "end").cast(pa.int64()), self.windows))


def source_of(table_id: str, path: str) -> str:
    """The name of a file of a sink as a source of pieces."""
    return _digest(f"{table_id}/{path}", _SOURCE_DIGITS)


def source_in(name: str) -> str:
    """The source that the name of a piece, or of one of its files, begins with."""
    return name.split("-", 1)[0]


def piece_name_in(path: str) -> str:
    """The name of the piece that a file of the served table is of."""
    return "-".join(path.split("-", 2)[:2])


def pieces_of(reading: Reading) -> Iterator[Piece]:
    """The pieces of all that readers get: none has a row of another, and together they have all.

    :raises BadInputError: if the files of a sink alone do not tell its rows
    :raises StoreUnavailableError: if the store does not answer
    """
    for part, after_ms, to_ms in reading.parts():
        bounds = (_or(after_ms, -_EVER), _or(to_ms, _EVER))
        yield from _of_sink(part, bounds)
        yield from _of_corrections(part, bounds)


def _of_sink(reading: Reading, bounds: Interval) -> Iterator[Piece]:
    """:param bounds: the windows that readers get from this version"""
    sink = open_version(reading.sink_url, reading.storage_options, reading.sink_version)
    table_id = str(sink.metadata().id)
    for path, ends in _files(sink):
        source = source_of(table_id, path)
        if reading.pipeline.window is None:
            yield Piece(source, reading, path)
            continue
        kept = _without(_overlap(ends, bounds), reading.corrected.intervals())
        if kept == [ends]:
            yield Piece(source, reading, path)
        elif kept:
            yield Piece(source, reading, path, windows=tuple(kept))


def _of_corrections(reading: Reading, bounds: Interval) -> Iterator[Piece]:
    """:param bounds: the windows that readers get from this version"""
    ranges = reading.corrected.within(*bounds)
    if not ranges:
        return
    table_id = reading.corrections.open(reading.corrected.version).metadata().id
    for corrected in ranges:
        after_ms, to_ms = _overlap(_interval(corrected), bounds)
        taken = CorrectedRange(after_ms, to_ms, corrected.run_id, corrected.end)
        source = _digest(f"{table_id}/{taken.run_id}/{after_ms}/{to_ms}", _SOURCE_DIGITS)
        yield Piece(source, reading, correction=taken)


def _files(sink: DeltaTable) -> Iterator[tuple[str, Interval]]:
    """Each file, and an interval that has all of its windows."""
    check_files_tell_rows(sink)
    files = pa.table(sink.get_add_actions(flatten=True))
    for file in files.to_pylist():
        lowest = file.get("min.window.end")
        highest = file.get("max.window.end")
        if lowest is None or highest is None:
            yield file["path"], (-_EVER, _EVER)
        else:
            # Windows end on whole milliseconds, as Delta's statistics do.
            yield file["path"], (_epoch_ms(lowest) - 1, _epoch_ms(highest))


def _epoch_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _interval(corrected: CorrectedRange) -> Interval:
    return corrected.after_ms, corrected.to_ms


def _overlap(one: Interval, other: Interval) -> Interval:
    return max(one[0], other[0]), min(one[1], other[1])


def _without(whole: Interval, taken: Iterable[Interval]) -> list[Interval]:
    """What is left of an interval without these others, which are in order and do not overlap."""
    left = []
    begin, end = whole
    for after, to in taken:
        if to <= begin or after >= end:
            continue
        if begin < after:
            left.append((begin, after))
        begin = to
    if begin < end:
        left.append((begin, end))
    return left


def _within(end_us: Any, intervals: Sequence[Interval]) -> Any:
    """Whether a window's end, in epoch microseconds, is in one of the intervals."""
    found = pc.scalar(False)
    for after_ms, to_ms in intervals:
        found |= (end_us > after_ms * 1000) & (end_us <= to_ms * 1000)
    return found


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
