"""What a replay waits for if the stream has not read its whole range yet, and how far the stream is.

It reads tables; no broker, no JVM.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from hindcast.installation import Installation
from hindcast.partitions import Offsets, app_id, by_partition
from hindcast.shards.desired_state import desired_of
from hindcast.shards.pipeline_row import DesiredState
from hindcast.shards.shard_row import awaiting_rewind
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from hindcast.tables.control_tables import ControlTables
    from hindcast.tables.ledger import Ledger

#: The tables that the audit files rows into. Each has the fence of the last batch of each shard.
_FILED_INTO = (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS)


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """What must have happened before a replay can be planned.

    ``offsets``: the end that the stream has to commit, by partition. ``batches``: shard -> the batch whose
    late and poison rows have to be filed. ``beyond``: if both are empty, any batch that commits more than
    this will do. ``at``: a time that has to come, ISO 8601. ``rewind``: that no rewind is under way.
    """

    pipeline: str
    version: int
    offsets: Offsets = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    beyond: Offsets = field(default_factory=dict)
    at: str = ""
    rewind: bool = False

    def to_json(self) -> dict[str, Any]:
        kept = asdict(self)
        for name in _PLACES:
            offsets: Offsets = getattr(self, name)
            kept[name] = {str(partition): offset for partition, offset in offsets.items()}
        return kept

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        fields = dict(kept)
        for name in _PLACES:
            fields[name] = by_partition(kept[name])
        return cls(**fields)


#: The fields of :class:`Awaited` that are offsets by partition. JSON has text for the partitions.
_PLACES = ("offsets", "beyond")


@dataclass(frozen=True)
class Progress:
    """How far a stream is on its way to what is awaited.

    ``paused``: an operator paused or drained it, so it reads no further.
    """

    met: bool
    paused: bool
    text: str


def read_progress(installation: Installation, awaited: Awaited) -> Progress:
    """Read the tables once. It costs the newest batch of each shard, however long the ledger is."""
    leases = installation.lease_table.leases()
    desired = desired_of(leases).get(awaited.pipeline)
    paused = desired is not None and desired.state is not DesiredState.RUNNING
    if awaited.at and datetime.now(UTC) < datetime.fromisoformat(awaited.at):
        return Progress(met=False, paused=paused, text=f"{awaited.at} has not come")
    if awaited.rewind:
        met = not awaiting_rewind(leases, awaited.pipeline)
        return Progress(met, paused, "a rewind has begun and not ended")
    if awaited.batches:
        filed = filed_batches(installation.tables, awaited.pipeline, awaited.batches)
        behind = [shard for shard, batch in awaited.batches.items() if filed[shard] < batch]
        shards = ", ".join(behind) or "no shard"
        return Progress(not behind, paused, f"late and poison rows of {shards} are still to be filed")
    committed = _committed(installation.ledger, awaited)
    if not awaited.offsets:
        more = any(offset > awaited.beyond.get(partition, -1) for partition, offset in committed.items())
        return Progress(more, paused, "no further batch is committed yet")
    left = 0
    for partition, offset in awaited.offsets.items():
        left += max(offset - committed.get(partition, 0), 0)
    return Progress(left == 0, paused, f"{left:,} records of the range are still to be committed")


def _committed(ledger: Ledger, awaited: Awaited) -> Offsets:
    """By partition the end of what the stream has committed."""
    committed: Offsets = {}
    for row in ledger.newest(awaited.pipeline, awaited.version):
        for partition, offset in row.end_offsets.items():
            committed[partition] = max(committed.get(partition, 0), offset)
    return committed


def filed_batches(tables: ControlTables, pipeline: str, shards: Collection[str]) -> dict[str, int]:
    """By shard the last batch whose late and poison rows are in their tables; -1 for none.

    A table is opened once, however many shards there are.
    """
    from hindcast.tables.fenced_sink import Fence  # not above: DAG files import no library of tables

    filed: dict[str, int] = {}
    for name in _FILED_INTO:
        table = tables.open(name)
        for shard in shards:
            fence = Fence.of(table.transaction_version(app_id(pipeline, shard)))
            batch = -1
            if fence is not None:
                batch = fence.batch
            filed[shard] = min(filed.get(shard, batch), batch)
    return filed
