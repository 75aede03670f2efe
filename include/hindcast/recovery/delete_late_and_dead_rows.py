"""Delete the late and poison rows of the batches that a rewind takes back, so that no older owner adds
more.
"""

from __future__ import annotations

from collections.abc import Mapping

from hindcast.delta.open_table import find_table, open_table
from hindcast.errors import FenceMovedError
from hindcast.installation import Installation
from hindcast.partitions import app_id
from hindcast.pipeline import Pipeline
from hindcast.recovery.begun_rewind import BegunRewind
from hindcast.recovery.retried_commit import retry_commit
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import Fence, FencedTable
from hindcast.tables.table_names import ControlTable

_TABLES = (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS)


def last_filed_batch(installation: Installation, pipeline: str, shard: str) -> int:
    """The last batch whose late rows and whose poison rows are both in their tables; 0 for none."""
    batches = []
    for name in _TABLES:
        recorded = _fenced_table(installation, name, pipeline, shard).recorded()
        batches.append(recorded.batch if recorded else 0)
    return min(batches)


def delete_late_and_dead_rows(installation: Installation, pipeline: Pipeline, begun: BegunRewind) -> None:
    """Fence both tables, and delete the rows of the batches that are taken back.

    :raises StoreUnavailableError: if the store does not answer
    """
    for shard, kept in begun.kept_batches.items():
        for name in _TABLES:
            if shard in begun.epochs:
                seal(_fenced_table(installation, name, pipeline.name, shard), begun.epochs[shard])
            _delete_after(installation.tables, name, pipeline.name, shard, kept)


def empty_late_sink(settings: Settings, pipeline: Pipeline, epochs: Mapping[str, int]) -> None:
    """Fence and empty the pipeline's own table for its late rows, if it has one.

    Nothing of it is kept: such a pipeline is rewound to the beginning only.
    """
    if pipeline.late_sink is None:
        return
    url = settings.table("sinks", pipeline.late_sink.name)
    options = settings.storage_options
    if find_table(url, options) is None:
        return  # no late row yet
    for shard, epoch in epochs.items():
        seal(FencedTable(url, options, app_id(pipeline.name, shard)), epoch)
    retry_commit(url, lambda: open_table(url, options).delete())


def seal(table: FencedTable, epoch: int) -> None:
    """Raise the application's fence to the epoch, with the batch that it has reached; nothing if that is
    done.
    """
    while True:
        recorded = table.recorded()
        reached = recorded or Fence(0, 0)
        if reached.epoch >= epoch:
            return
        try:
            table.commit(Fence(epoch, reached.batch), [], after=recorded)
        except FenceMovedError:
            # An older owner filed rows after the reading. They are deleted with the rest.
            continue


def _fenced_table(installation: Installation, name: ControlTable, pipeline: str, shard: str) -> FencedTable:
    tables = installation.tables
    tables.open(name)  # makes it on first use
    return FencedTable(tables.url(name), installation.settings.storage_options, app_id(pipeline, shard))


def _delete_after(tables: ControlTables, name: ControlTable, pipeline: str, shard: str, kept: int) -> None:
    """Delete the shard's rows of all batches after ``kept``. No name holds a quote
    (hindcast.pipeline.NAME).
    """
    predicate = f"pipeline = '{pipeline}' AND shard = '{shard}' AND batch > {kept}"
    retry_commit(tables.url(name), lambda: tables.open(name).delete(predicate))
