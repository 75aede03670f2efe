"""Take over a stream that others run, at the exact offsets at which its query ends.

The query may still run; stopping it first only spares it work.

1. Its table is fenced: from that commit on it takes none of the query's batches, and the commit says which
   was the last (:mod:`hindcast.foreign.fence`).
2. The query's batches up to that one are recorded in the ledger (:mod:`hindcast.foreign.record`).
3. The rows that came late in them, and the records that could not be read, are filed.
4. One commit of leases makes shards that begin where that batch ended. Windows that it has emitted are below
   their *floors*; the state of those that are still open is rebuilt by the first owner, as after a reshard
   (:mod:`hindcast.recovery.rebuild_state`).

Whoever dies between two of them calls it again, and each step that was done is found done. Until step 4 no
worker consumes the topic: a pipeline whose table is there already gets no shards in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from hindcast.delta.application_log import PLAIN_WRITER
from hindcast.delta.open_table import find_table
from hindcast.errors import ForeignStreamError
from hindcast.foreign.checkpoint import ForeignCheckpoint
from hindcast.foreign.fence import fence_off, last_in_table
from hindcast.foreign.late_rows import file_late_rows, unfiled
from hindcast.foreign.record import record
from hindcast.installation import Installation
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline
from hindcast.processes.crash_points import reach
from hindcast.shards import resharding
from hindcast.tables.event_log import EventKind

#: What a table may ask of those who write it that is met by adding files.
_HARMLESS_FEATURES = frozenset({"appendOnly", "invariants"})
#: From this version of the protocol on a table lists what it asks.
_WITH_FEATURES = 7


@dataclass(frozen=True)
class Found:
    """A query that can be taken over. ``last_batch``: Spark's number of its last batch in the table now."""

    query: str
    last_batch: int


@dataclass(frozen=True)
class Adopted:
    """``offsets``: by partition, where the query ended and the shards begin. ``last_batch``: Spark's number
    of the query's last batch.
    """

    query: str
    last_batch: int
    offsets: Offsets
    shards: tuple[Lease, ...]


def find(installation: Installation, pipeline: Pipeline, checkpoint: str) -> Found:
    """The query that writes the table of a pipeline of one's own. Nothing is changed.

    :param checkpoint: the path or URL of the query's checkpoint folder
    :raises ForeignStreamError: if this is no stream that can be taken over
    :raises StoreUnavailableError: if a store does not answer
    """
    options = installation.settings.storage_options
    url = pipeline.sink.url
    if pipeline.is_foreign or not url:
        problem = "the declaration does not say that Hindcast is to run it"
        cure = "Declare it with @pipeline, and its table with the table's place: Table(..., url=...)."
        raise ForeignStreamError(pipeline=pipeline.name, problem=problem, cure=cure)
    leases = installation.lease_table.leases_if_any()
    if resharding.of_version(leases, pipeline.name, pipeline.version):
        problem = f"version {pipeline.version} has shards already"
        raise ForeignStreamError(pipeline=pipeline.name, problem=problem, cure="See `hindcast leases`.")
    query = ForeignCheckpoint(pipeline, checkpoint, options).query_id()
    _check_writable(pipeline, options)
    last = last_in_table(url, options, query)
    if last is None:
        problem = f"the table {url} has no batch of the query {query} of {checkpoint}"
        cure = "Only a query that writes with Delta's own streaming sink can be taken over."
        raise ForeignStreamError(pipeline=pipeline.name, problem=problem, cure=cure)
    return Found(query, last)


def _check_writable(pipeline: Pipeline, storage_options: dict[str, str]) -> None:
    """Check that files with the plain columns of the result can be added to the table.

    :raises ForeignStreamError: if the table asks more of who writes it
    """
    table = find_table(pipeline.sink.url, storage_options)
    if table is None:
        return
    protocol = table.protocol()
    asks = sorted(set(protocol.writer_features or []) - _HARMLESS_FEATURES)
    if PLAIN_WRITER < protocol.min_writer_version < _WITH_FEATURES:
        asks.append(f"version {protocol.min_writer_version} of the protocol")
    columns = table.metadata().partition_columns
    if columns:
        asks.append(f"partitions by {', '.join(columns)}")
    if not asks:
        return
    problem = f"its table asks of those who write it what Hindcast does not do: {', '.join(asks)}"
    cure = "It can be judged as it is, but not taken over: begin a pipeline with a table of its own."
    raise ForeignStreamError(pipeline=pipeline.name, problem=problem, cure=cure)


def adopt(
    session: Callable[[], SparkSession],
    installation: Installation,
    pipeline: Pipeline,
    checkpoint: str,
    who: str = "",
) -> Adopted:
    """Take over the stream that writes the table of a pipeline of one's own.

    :param session: called once the query is fenced off, if there is something to file
    :param checkpoint: the path or URL of the query's checkpoint folder
    :param who: does it, for the event
    :raises ForeignStreamError: if this is no stream that can be taken over, and nothing was changed; or if
        Spark has deleted batches of it that were not recorded
    :raises StoreUnavailableError, BrokerUnavailableError: if a source is away; call it again
    """
    query = find(installation, pipeline, checkpoint).query
    reach("adopt.1")
    last_batch = fence_off(pipeline.sink.url, installation.settings.storage_options, query)
    reach("adopt.2")
    theirs = replace(pipeline, foreign_checkpoint=checkpoint)
    last = record(installation, theirs).last
    assert last is not None
    reach("adopt.3")
    batches = unfiled(installation, theirs)
    if batches:
        file_late_rows(session(), installation, theirs, batches)
    reach("adopt.4")
    floors = {partition: last.final_ms(partition) for partition in last.end_offsets}
    why = "its stream was taken over"
    created = resharding.adopt(
        installation.lease_table,
        pipeline.name,
        pipeline.version,
        pipeline.shards,
        last.end_offsets,
        floors,
        why,
    )
    message = (
        f"{pipeline.name} goes on after batch {last_batch} of the query {query}, from {last.end_offsets}."
    )
    installation.event_log.record(
        EventKind.STREAM_ADOPTED, message, pipeline=pipeline.name, query=query, checkpoint=checkpoint, by=who
    )
    return Adopted(query, last_batch, last.end_offsets, tuple(created))
