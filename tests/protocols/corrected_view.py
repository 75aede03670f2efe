"""Corrections in a world: replays that give readers their answer for closed windows, and what readers then see.

The table of corrections is a real Delta table. The rules are written down here a second time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake
from protocols.history import BrokenPromiseError, Window
from protocols.scheduler import Scheduler
from protocols.topic import WINDOW_MS, places, raises, window_end

from hindcast.clock import utc_from_ms
from hindcast.partitions import Offsets
from hindcast.serving.corrected_windows import CorrectedRange, Corrections, stamped

_INSTANT = pa.timestamp("us", tz="UTC")
_ANSWERS = pa.schema(
    [
        ("window", pa.struct([("start", _INSTANT), ("end", _INSTANT)])),
        ("partition", pa.int64()),
        ("records", pa.int64()),
    ]
)


@dataclass
class CorrectedView:
    """``runs``: what each replay may give, by its id; ``best``: by the end of a window, up to where the run had
    read that it was corrected by last.
    """

    table: Corrections
    runs: dict[str, CorrectedRange] = field(default_factory=dict)
    best: dict[int, Offsets] = field(default_factory=dict)
    version: int = -1

    def rows_of(self, by: CorrectedRange) -> Any:
        """The answer in hindsight of a run, as it is written."""
        rows = []
        for (partition, end_ms), count in sorted(hindsight(by).items()):
            window = {"start": utc_from_ms(end_ms - WINDOW_MS), "end": utc_from_ms(end_ms)}
            rows.append({"window": window, "partition": partition, "records": count})
        answers = ds.dataset(pa.Table.from_pylist(rows, schema=_ANSWERS))
        return stamped(answers, ds.scalar(True), by.run_id, _ANSWERS.names)

    def look(self) -> None:
        """Check what readers get for corrected windows, if a correction has landed since the last look.

        :raises BrokenPromiseError: if a window is missing, doubled or has gone back
        """
        if not DeltaTable.is_deltatable(self.table.url):
            return
        current = self.table.current()
        if current.version == self.version:
            return
        self.version = current.version
        rows = DeltaTable(self.table.url).to_pyarrow_table().to_pylist()
        twice = Counter((row["partition"], row["_window_end_us"] // 1000) for row in rows)
        doubled = sorted(window for window, times in twice.items() if times > 1)
        if doubled:
            raise BrokenPromiseError(f"I2: readers get {doubled} twice from corrections")
        seen = {}
        for row in rows:
            end_ms = row["_window_end_us"] // 1000
            seen[row["partition"], end_ms] = (row["_run_id"], row["records"])
        covered: set[int] = set()
        for one in current.ranges:
            self._check_range(one, seen, covered)
        lost = sorted(end_ms for end_ms in self.best if end_ms not in covered)
        if lost:
            raise BrokenPromiseError(f"I10: the windows {lost} were corrected, and are not any more")

    def _check_range(
        self, one: CorrectedRange, seen: dict[Window, tuple[str, int]], covered: set[int]
    ) -> None:
        run = self.runs[one.run_id]
        if not (run.after_ms <= one.after_ms < one.to_ms <= run.to_ms and run.end == one.end):
            raise BrokenPromiseError(f"I10: {one} is said to be of {run}")
        answers = hindsight(one)
        there = {window: row for window, row in seen.items() if one.after_ms < window[1] <= one.to_ms}
        if there != {window: (one.run_id, count) for window, count in answers.items()}:
            raise BrokenPromiseError(f"I10: readers get {there} for {one}, whose answer is {answers}")
        for end_ms in range(one.after_ms // WINDOW_MS * WINDOW_MS + WINDOW_MS, one.to_ms + 1, WINDOW_MS):
            if end_ms in covered:
                raise BrokenPromiseError(f"I2: window {end_ms} is in two corrected ranges")
            covered.add(end_ms)
            before = self.best.get(end_ms, {})
            if any(offset > one.end.get(partition, 0) for partition, offset in before.items()):
                raise BrokenPromiseError(
                    f"I10: window {end_ms} goes back to a run that had read to {one.end}, after {before}"
                )
            self.best[end_ms] = one.end


def hindsight(by: CorrectedRange) -> dict[Window, int]:
    """All records of a range's windows that come before the offsets to which its run had read, but for those
    on which the function raises.
    """
    found: dict[Window, int] = Counter()
    for partition, offset in places({}, by.end):
        end_ms = window_end(partition, offset)
        if by.after_ms < end_ms <= by.to_ms and not raises(partition, offset):
            found[partition, end_ms] += 1
    return found


def stepped_write(scheduler: Scheduler) -> Any:
    """``write_deltalake``, before which others may go on, and which may fail or lose its answer."""

    def write(*arguments: Any, **options: Any) -> None:
        scheduler.call("corrections commit", lambda: write_deltalake(*arguments, **options), OSError)

    return write
