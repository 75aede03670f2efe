"""Put a simulated stream into a real broker and real Delta tables, as the platform itself would have left
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from support.simulated_stream import Answer, Key, Record, Simulated

from hindcast.delta.commit import METADATA_KEY
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import BatchCommit
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.schema import SCHEMAS
from hindcast.tables.table_names import ControlTable

INSTANT = pa.timestamp("us", tz="UTC")
SINK_SCHEMA = pa.schema(
    [
        ("window", pa.struct([("start", INSTANT), ("end", INSTANT)])),
        ("ticker", pa.string()),
        ("min_ask", pa.float64()),
        ("trades", pa.int64()),
        ("avg_ask", pa.float64()),
    ]
)


def instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def sink_row(stream: Simulated, key: Key, answer: Answer) -> dict[str, Any]:
    end_ms, ticker = key
    window = {"start": instant(end_ms - stream.clockwork.length_ms), "end": instant(end_ms)}
    return {
        "window": window,
        "ticker": ticker,
        "min_ask": answer[0],
        "trades": answer[1],
        "avg_ask": answer[2],
    }


def publish(settings: Settings, topic: str, records: Iterable[Record]) -> None:
    """Send the records to their partitions in order; the topic must be new, so that offsets come out as
    simulated.
    """
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=settings.bootstrap_servers,
        linger_ms=50,
        batch_size=262_144,
        compression_type="gzip",
    )
    for record in records:
        event = {
            "ticker": record.ticker,
            "ts": instant(record.event_ms).isoformat() if record.event_ms is not None else None,
            "ask": record.ask,
        }
        value = b"{not json" if record.event_ms is None and record.offset % 2 else json.dumps(event).encode()
        producer.send(
            topic,
            value,
            key=record.ticker.encode(),
            partition=record.partition,
            timestamp_ms=record.broker_ms,
        )
    producer.flush()
    producer.close()


def store(
    settings: Settings,
    stream: Simulated,
    sink: str,
    schema: pa.Schema = SINK_SCHEMA,
    rows_of: Callable[[LedgerRow], list[dict[str, Any]]] | None = None,
) -> None:
    """Write the sink batch by batch, then the ledger, the late rows and the dead letters.

    ``rows_of`` gives a batch's rows where they are not the simulation's windows.
    """
    url = settings.table("sinks", sink)
    DeltaTable.create(url, schema)
    for row in stream.ledger:
        rows = (
            rows_of(row)
            if rows_of
            else [sink_row(stream, key, answer) for key, answer in stream.emitted[row.sink_version].items()]
        )
        write_deltalake(
            url, pa.Table.from_pylist(rows, schema=schema), mode="append", commit_properties=_properties(row)
        )
    tables = ControlTables(settings)
    Ledger(tables).append(stream.ledger)
    _file(tables, ControlTable.LATE_ROWS, stream, set(stream.late))
    _file(tables, ControlTable.DEAD_LETTERS, stream, stream.poison)


def _properties(row: LedgerRow) -> CommitProperties:
    commit = BatchCommit(
        kind="batch",
        pipeline=row.pipeline,
        version=row.version,
        shard=row.shard,
        epoch=row.epoch,
        batch=row.batch,
        worker=row.worker,
        start_offsets=row.start_offsets,
        end_offsets=row.end_offsets,
        late_watermark_ms=row.late_watermark_ms,
        watermark_ms=row.watermark_ms,
    )
    return CommitProperties(
        app_transactions=[_transaction(row)], custom_metadata={METADATA_KEY: commit.as_metadata()}
    )


def _transaction(row: LedgerRow) -> Transaction:
    return Transaction(f"{row.pipeline}/v{row.version}/{row.shard}", row.epoch << 32 | row.batch)


def _file(tables: ControlTables, name: ControlTable, stream: Simulated, places: set[tuple[int, int]]) -> None:
    last = {row.shard: row for row in stream.ledger}
    of_partition = {partition: row for row in last.values() for partition in row.end_offsets}
    records = {record.place: record for record in stream.records}
    batches = {record.place: row.batch for row in stream.ledger for record in stream.read_in(row)}

    def filed(place: tuple[int, int]) -> dict[str, Any]:
        row, event_ms = of_partition[place[0]], records[place].event_ms
        where = {"pipeline": row.pipeline, "version": row.version, "shard": row.shard, "topic": row.topic}
        found = {**where, "batch": batches[place], "partition": place[0], "offset": place[1]}
        if event_ms is not None:
            found |= {"event_at": instant(event_ms), "watermark_ms": stream.thresholds[place]}
        return found

    rows = [filed(place) for place in sorted(places)]
    properties = CommitProperties(app_transactions=[_transaction(row) for row in last.values()])
    write_deltalake(
        tables.open(name),
        pa.Table.from_pylist(rows, schema=SCHEMAS[name]),
        mode="append",
        commit_properties=properties,
    )
