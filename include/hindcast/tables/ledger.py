"""The ledger: one row for each batch that a shard committed to its sink. With it the batch can be replayed,
and the shard rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.delta.arrow_dataset import Condition
from hindcast.partitions import Offsets, offsets_from_json, offsets_to_json
from hindcast.tables.control_tables import ControlTables, TableVersion
from hindcast.tables.excluded_records import Excluded, excluded_from_json, excluded_to_json
from hindcast.tables.table_names import ControlTable

#: Of the row that says where a stream began that others run. Epochs of leases begin at 1.
BEGINNING_EPOCH = 0
_BY_PARTITION = ("start_offsets", "end_offsets", "floors")
#: What only Spark can measure.
_MEASURED = (
    "min_event_ms",
    "max_event_ms",
    "input_rows",
    "poison_rows",
    "batch_seconds",
    "cpu_seconds",
    "started_at",
)


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """One committed batch. See :data:`hindcast.tables.schema.DESCRIBED` for the meaning and unit of each
    column.
    """

    pipeline: str
    version: int
    shard: str
    epoch: int
    batch: int
    worker: str
    topic: str
    start_offsets: Offsets
    end_offsets: Offsets
    late_watermark_ms: int
    watermark_ms: int
    min_event_ms: int | None
    max_event_ms: int | None
    input_rows: int | None
    poison_rows: int | None
    output_rows: int
    batch_seconds: float | None
    cpu_seconds: float | None
    sink_version: int
    started_at: datetime | None
    committed_at: datetime
    floors: Offsets = field(default_factory=dict)
    checkpoint: str | None = None
    base: int | None = None
    excluded: Excluded = field(default_factory=dict)

    @classmethod
    def unmeasured(cls, **known: Any) -> Self:
        """A row without what only Spark could measure."""
        unknown: dict[str, Any] = dict.fromkeys(_MEASURED)
        return cls(**known, **unknown)

    @property
    def is_reset(self) -> bool:
        """Whether this is no batch: the row then says that the shard's batches after :attr:`kept` were taken
        back.
        """
        return self.batch < 0

    @property
    def is_beginning(self) -> bool:
        """Whether this is no batch, but all that came before the first recorded batch of a stream that
        others run.
        """
        return self.epoch == BEGINNING_EPOCH and not self.is_reset

    @property
    def kept(self) -> int:
        """Of a reset, the shard's last batch that stays; 0 if none stays."""
        return -1 - self.batch

    @property
    def reads(self) -> bool:
        """Whether the batch has read anything. One that has not may still move the watermark."""
        return any(end > self.start_offsets.get(partition, 0) for partition, end in self.end_offsets.items())

    @property
    def may_have_usable_rows(self) -> bool:
        """Whether the batch may have read a record that is not poison; it may if Spark did not measure it."""
        if self.input_rows is None or self.poison_rows is None:
            return True
        return self.input_rows > self.poison_rows

    def late_ms(self, partition: int) -> int:
        """A row of the partition is late in this batch for each window that ends at or before the result."""
        return max(self.late_watermark_ms, self.floors.get(partition, 0))

    def final_ms(self, partition: int) -> int:
        """The partition's windows that end at or before the result are final after this batch."""
        return max(self.watermark_ms, self.floors.get(partition, 0))

    def as_row(self) -> dict[str, Any]:
        row = asdict(self)
        for name in _BY_PARTITION:
            row[name] = offsets_to_json(row[name])
        row["excluded"] = excluded_to_json(self.excluded) or None
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        values = {name: row[name] for name in cls.__dataclass_fields__}
        for name in _BY_PARTITION:
            values[name] = offsets_from_json(values[name] or "{}")
        values["excluded"] = excluded_from_json(values["excluded"])
        return cls(**values)


@dataclass(frozen=True)
class Undone:
    """What a reset took back: the batches in the sink's versions after ``after`` and before ``version``. The
    latter is the reset's own commit.
    """

    after: int
    version: int

    def has(self, sink_version: int) -> bool:
        return self.after < sink_version < self.version


class Ledger:
    """Reads and appends ledger rows.

    A batch that was recorded twice (a repair after a takeover) is read once. A batch that a reset took back
    is not read.
    """

    def __init__(self, tables: ControlTables, version: TableVersion | None = None) -> None:
        """:param version: what is read; None for the newest version each time"""
        self._tables = tables
        self._pinned = version

    def pinned(self) -> Ledger:
        """The ledger as it is now. All that is read of it is of one moment, whatever is appended meanwhile.

        :raises StoreUnavailableError: if the store does not answer
        """
        return Ledger(self._tables, self._tables.newest_version(ControlTable.CHECKPOINTS))

    def append(self, rows: Iterable[LedgerRow]) -> None:
        self._tables.append(ControlTable.CHECKPOINTS, [row.as_row() for row in rows])

    def batches(
        self,
        pipeline: str,
        version: int | None = None,
        shard: str | None = None,
        *,
        after: int = 0,
        sink_after: int = -1,
        sink_to: int | None = None,
    ) -> list[LedgerRow]:
        """The committed batches in the order (version, shard, batch).

        :param version: of this version only
        :param shard: of this shard only
        :param after: only batches with a greater number
        :param sink_after: only batches in later versions of the sink than this one
        :param sink_to: only batches in this version of the sink and those before it
        """
        conditions: list[Condition] = []
        if after:
            conditions.append(("batch", ">", after))
        if sink_after >= 0:
            conditions.append(("sink_version", ">", sink_after))
        if sink_to is not None:
            conditions.append(("sink_version", "<=", sink_to))
        if not conditions:
            return _batches_in_effect(self._read(pipeline, version, shard))
        found = self._read(pipeline, version, shard, more=[("batch", ">=", 0), *conditions])
        resets = self._read(pipeline, version, shard, more=[_RESETS])
        return _batches_in_effect(pa.concat_tables([found, resets]))

    def excluding(self, pipeline: str, version: int) -> list[LedgerRow]:
        """The committed batches that left records out, in the order (shard, batch)."""
        found = self._read(pipeline, version, more=[_EXCLUDING])
        if not found.num_rows:
            return []
        resets = self._read(pipeline, version, more=[_RESETS])
        return _batches_in_effect(pa.concat_tables([found, resets]))

    def resets(self, pipeline: str, version: int) -> list[LedgerRow]:
        """The rows that took batches of the version back."""
        return [LedgerRow.from_row(row) for row in self._read(pipeline, version, more=[_RESETS]).to_pylist()]

    def newest(self, pipeline: str, version: int) -> list[LedgerRow]:
        """The last committed batch of each shard, in the order of their names.

        The narrow columns say which rows these are; only their own rows are read whole.
        """
        return self._last_rows(pipeline, version, taken_back=False)

    def near(self, pipeline: str, version: int, shard: str, batch: int, sink_version: int) -> list[LedgerRow]:
        """What a take-over needs to know of the batches, at a price that does not depend on their number: the
        last ones of a shard up to this batch, the one after it, and those of all shards that are in later
        versions of the sink than this one. In the order (shard, batch).

        A shard has the batch after this one in the ledger if it has any later one: rows are added in order.
        So the ledger knows more of the shard than its sink if that row is here.

        :param batch: the last one that the sink's fence names; 0 before the first
        :param sink_version: of the sink, read before
        """
        last: list[Condition] = [("batch", ">", batch - _NEAR), ("batch", "<=", batch + 1)]
        later: list[Condition] = [("sink_version", ">", sink_version)]
        wanted = [[("shard", "=", shard), *last], later, [_RESETS]]
        batches = _batches_in_effect(self._read(pipeline, version, any_of=wanted))
        if batch > 0 and not any(row.shard == shard for row in batches):
            return self.newest(pipeline, version)  # the ledger lacks many, or a reset took them back
        return batches

    def reached(self, pipeline: str, version: int) -> dict[str, LedgerRow]:
        """The last batch of each shard, also one that a reset took back."""
        return {row.shard: row for row in self._last_rows(pipeline, version, taken_back=True)}

    def _last_rows(self, pipeline: str, version: int, *, taken_back: bool) -> list[LedgerRow]:
        found = self._read(pipeline, version, columns=["shard", "batch"])
        batches = found.filter(~_IS_RESET)
        if not taken_back:
            batches = _in_effect(batches, found.filter(_IS_RESET))
        last = batches.group_by("shard").aggregate([("batch", "max")])
        numbers = dict(_pairs(last, "shard", "batch_max"))
        if not numbers:
            return []
        wanted = sorted(set(numbers.values()))
        rows = self._read(pipeline, version, more=[("batch", "in", wanted)])
        own = [row for row in rows.to_pylist() if row["batch"] == numbers.get(row["shard"])]
        return _batches_in_effect(pa.Table.from_pylist(own, schema=rows.schema))

    def undone(self, pipeline: str, version: int) -> list[Undone]:
        """What the resets of a version took back, the oldest first."""
        resets = {row.sink_version for row in self.resets(pipeline, version)}
        if not resets:
            return []
        found = self._read(pipeline, version, columns=["shard", "batch", "sink_version"])
        in_effect = _in_effect(found.filter(~_IS_RESET), found.filter(_IS_RESET))
        kept = in_effect["sink_version"].to_pylist()
        undone = []
        for reset in sorted(resets):
            before = [sink_version for sink_version in kept if sink_version < reset]
            undone.append(Undone(max(before, default=-1), reset))
        return undone

    def _read(
        self,
        pipeline: str,
        version: int | None,
        shard: str | None = None,
        columns: list[str] | None = None,
        more: Iterable[Condition] = (),
        any_of: Sequence[Sequence[Condition]] = (),
    ) -> pa.Table:
        where: list[Condition] = [("pipeline", "=", pipeline), *more]
        if version is not None:
            where.append(("version", "=", version))
        if shard is not None:
            where.append(("shard", "=", shard))
        table = self._pinned or self._tables.newest_version(ControlTable.CHECKPOINTS)
        return table.read(where, columns, any_of=any_of)


_IS_RESET = pc.field("batch") < 0
_RESETS: Condition = ("batch", "<", 0)
_EXCLUDING: Condition = ("excluded", ">", "")
#: A worker writes its rows with each renewal: if it died, the ledger lacks fewer batches than this.
_NEAR = 64


def _pairs(table: pa.Table, first: str, second: str) -> Iterator[tuple[Any, Any]]:
    """The values of two columns, row by row."""
    for row in table.select([first, second]).to_pylist():
        yield row[first], row[second]


def _in_effect(batches: pa.Table, resets: pa.Table) -> pa.Table:
    """Shards and numbers of the batches that no reset took back."""
    if not resets.num_rows:
        return batches
    kept = pa.table({"shard": resets["shard"], "kept": pc.subtract(-1, resets["batch"])})
    least = kept.group_by("shard").aggregate([("kept", "min")])
    joined = batches.join(least, "shard")
    in_effect = pc.field("kept_min").is_null() | (pc.field("batch") <= pc.field("kept_min"))
    return joined.filter(in_effect)


def _batches_in_effect(table: pa.Table) -> list[LedgerRow]:
    """The batches that no reset took back, each once, in order. Of two rows of one batch, the row that Spark
    has measured counts.
    """
    rows = [LedgerRow.from_row(row) for row in table.to_pylist()]
    last_kept: dict[tuple[int, str], int] = {}
    for row in rows:
        if row.is_reset:
            shard = (row.version, row.shard)
            last_kept[shard] = min(row.kept, last_kept.get(shard, row.kept))
    chosen: dict[tuple[int, str, int], LedgerRow] = {}
    for row in rows:
        if row.is_reset or row.batch > last_kept.get((row.version, row.shard), row.batch):
            continue
        batch = (row.version, row.shard, row.batch)
        known = chosen.get(batch)
        if known is None or (known.input_rows is None and row.input_rows is not None):
            chosen[batch] = row
    return [chosen[batch] for batch in sorted(chosen)]
