"""The ledger: one row for each batch that a shard committed to its sink, enough to replay it or to rebuild the shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.partitions import Offsets, offsets_from_json, offsets_to_json
from hindcast.tables.control_tables import Condition, ControlTables
from hindcast.tables.schema import ControlTable

_BY_PARTITION = ("start_offsets", "end_offsets", "floors")
_MEASURED = ("min_event_ms", "max_event_ms", "input_rows", "poison_rows", "batch_seconds", "cpu_seconds", "started_at")


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """One committed batch. See :data:`hindcast.tables.schema.SCHEMAS` for the meaning and unit of each column."""

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

    @classmethod
    def unmeasured(cls, **known: Any) -> Self:
        """A row without what only Spark could measure."""
        unknown: dict[str, Any] = dict.fromkeys(_MEASURED)
        return cls(**known, **unknown)

    @property
    def is_reset(self) -> bool:
        """Whether it is no batch, but says that those of its shard after :attr:`kept` were taken back."""
        return self.batch < 0

    @property
    def kept(self) -> int:
        """Of a reset, the shard's last batch that stays; 0 for none."""
        return -1 - self.batch

    def late_ms(self, partition: int) -> int:
        """A row of the partition is late in this batch for each window that ends at or before the result."""
        return max(self.late_watermark_ms, self.floors.get(partition, 0))

    def final_ms(self, partition: int) -> int:
        """The partition's windows that end at or before the result are final after this batch."""
        return max(self.watermark_ms, self.floors.get(partition, 0))

    def as_row(self) -> dict[str, Any]:
        return {**asdict(self), **{name: offsets_to_json(getattr(self, name)) for name in _BY_PARTITION}}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        values = {name: row[name] for name in cls.__dataclass_fields__}
        return cls(**{**values, **{name: offsets_from_json(row[name] or "{}") for name in _BY_PARTITION}})


@dataclass(frozen=True)
class Undone:
    """What a reset took back: the batches of the sink's versions after ``after`` and before ``version``, its own commit."""

    after: int
    version: int

    def has(self, sink_version: int) -> bool:
        return self.after < sink_version < self.version


class Ledger:
    """Reads and appends ledger rows. A batch that was recorded twice (a repair after a take-over) is read once, one that a reset took back
    not at all.
    """

    def __init__(self, tables: ControlTables) -> None:
        self._tables = tables

    def append(self, rows: Iterable[LedgerRow]) -> None:
        self._tables.append(ControlTable.CHECKPOINTS, [row.as_row() for row in rows])

    def batches(self, pipeline: str, version: int | None = None, shard: str | None = None, *, after: int = 0) -> list[LedgerRow]:
        """The committed batches in the order (shard, batch); only those with a greater number than ``after``."""
        found = self._read(pipeline, version, shard)
        return _standing(found.filter((pc.field("batch") > after) | _IS_RESET) if after else found)

    def newest(self, pipeline: str, version: int) -> list[LedgerRow]:
        """The last committed batch of each shard, in the order of their names. Of a long ledger nothing else is made into rows."""
        found = self._read(pipeline, version)
        resets = found.filter(_IS_RESET)
        for shard, batch in zip(resets["shard"].to_pylist(), resets["batch"].to_pylist(), strict=True):
            found = found.filter((pc.field("shard") != shard) | (pc.field("batch") <= -1 - batch))
        last = found.filter(~_IS_RESET).group_by("shard").aggregate([("batch", "max")])
        of_each = zip(last["shard"].to_pylist(), last["batch_max"].to_pylist(), strict=True)
        return [row for shard, batch in sorted(of_each) for row in _standing(found.filter(_is(shard, batch)))]

    def undone(self, pipeline: str, version: int) -> list[Undone]:
        """What was taken back, by the resets of a version, the oldest first."""
        found = self._read(pipeline, version)
        versions = sorted(set(found.filter(_IS_RESET)["sink_version"].to_pylist()))
        batches = _standing(found)
        return [Undone(max((row.sink_version for row in batches if row.sink_version < reset), default=-1), reset) for reset in versions]

    def _read(self, pipeline: str, version: int | None, shard: str | None = None) -> pa.Table:
        where: list[Condition] = [("pipeline", "=", pipeline)]
        where += [("version", "=", version)] if version is not None else []
        where += [("shard", "=", shard)] if shard is not None else []
        return self._tables.read(ControlTable.CHECKPOINTS, where)


_IS_RESET = pc.field("batch") < 0


def _is(shard: str, batch: int) -> pc.Expression:
    return (pc.field("shard") == shard) & (pc.field("batch") == batch)


def _standing(table: pa.Table) -> list[LedgerRow]:
    """The batches that no reset took back, each once, in order: of two rows of one batch the one that Spark has measured."""
    found = [LedgerRow.from_row(row) for row in table.to_pylist()]
    kept: dict[tuple[int, str], int] = {}
    for row in found:
        if row.is_reset:
            kept[row.version, row.shard] = min(row.kept, kept.get((row.version, row.shard), row.kept))
    newest: dict[tuple[int, str, int], LedgerRow] = {}
    for row in found:
        if row.is_reset or row.batch > kept.get((row.version, row.shard), row.batch):
            continue
        key = (row.version, row.shard, row.batch)
        known = newest.get(key)
        if known is None or (known.input_rows is None and row.input_rows is not None):
            newest[key] = row
    return [newest[key] for key in sorted(newest)]
