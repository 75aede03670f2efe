"""Run a pipeline's query over a few batches of records, as a stream and as a batch, without a broker and
without tables.

What the stream writes is compared with a batch over the same records, without the rows that came late for a
window (the late rule, docs/decisions/0002) and of the windows that are closed. A
pipeline whose results depend on which records come together is compared with a second stream over the same
batches.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamReader

from hindcast.pipeline import Mode, Pipeline, Topic
from hindcast.spark import kafka_source, parsed_records, transformation
from hindcast.spark.session import keep_state_for
from hindcast.tables.archive_schema import ARCHIVE_SCHEMA
from hindcast.testing import Record, Value
from hindcast.verdict.compare import Comparison, Sides, compare

#: The records of one batch, by topic. A topic that it does not name sends nothing in it.
Batch = Mapping[str, Sequence[Value | Record]]

#: Spark reports the watermarks of so many batches.
MOST_BATCHES = 90
_SAMPLES = 20


@dataclass(frozen=True)
class DeadLetter:
    """A record that no stream can use, and why."""

    topic: str
    offset: int
    reason: str
    value: bytes | None


@dataclass(frozen=True)
class Trial:
    """What came of it.

    ``rows``: what the stream's table holds in the end. ``late_rows``: how many rows came late for a window.
    ``comparison``: of the stream with the batch.
    """

    rows: pa.Table
    late_rows: int
    dead_letters: list[DeadLetter]
    comparison: Comparison


def run_pipeline(
    spark: SparkSession, pipeline: Pipeline, batches: Sequence[Batch], *, at: datetime | None = None
) -> Trial:
    """Try a pipeline.

    :param batches: each is one batch of the stream, in their order; all records are of one partition
    :param at: the broker's time of all records; now by default
    :raises ValueError: if there are no batches or more than :data:`MOST_BATCHES`, or one names a topic that
        the pipeline does not read
    """
    _check(pipeline, batches)
    with _without_subexpressions(spark), tempfile.TemporaryDirectory(prefix="hindcast-trial-") as folder:
        records = _Records(spark, pipeline, Path(folder))
        records.write(batches, at or datetime.now(UTC))
        streamed = _stream(records, "first")
        late_rows = 0
        if pipeline.re_execute:
            expected = _as_frame(spark, _stream(records, "second").rows)
        elif pipeline.window is None:
            usable = [parsed_records.usable(each) for each in records.parsed()]
            expected = _of_table(usable, pipeline)
        else:
            windows = _Windows(records, streamed)
            late_rows = windows.late_rows()
            expected = _of_table([windows.on_time()], pipeline)
        sides = Sides(
            stream=_as_frame(spark, streamed.rows),
            online=expected,
            hindsight=expected,
            keys=pipeline.sink.keys,
            tolerance=pipeline.tolerance,
        )
        return Trial(streamed.rows, late_rows, records.dead_letters(), compare(sides, _SAMPLES))


@contextmanager
def _without_subexpressions(spark: SparkSession) -> Iterator[None]:
    """Let Spark make no functions of expressions that stand twice.

    Of one over windows that slide it (4.2.0) makes code that does not compile: a parameter is named like an
    element of an array. It prints an error of sixty lines, and goes on without compiled code.
    """
    name = "spark.sql.subexpressionElimination.enabled"
    before = spark.conf.get(name) or "true"
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _of_table(rows: Sequence[DataFrame], pipeline: Pipeline) -> DataFrame:
    """What a table holds of a batch over these rows."""
    return transformation.without_deleted(transformation.transform(rows, pipeline), pipeline)


def _check(pipeline: Pipeline, batches: Sequence[Batch]) -> None:
    if not 0 < len(batches) <= MOST_BATCHES:
        raise ValueError(f"a trial has 1 to {MOST_BATCHES} batches, not {len(batches)}")
    known = {topic.name for topic in pipeline.topics}
    for batch in batches:
        if not batch.keys() <= known:
            unknown = ", ".join(sorted(batch.keys() - known))
            raise ValueError(f"{pipeline.name} reads {', '.join(sorted(known))}, not {unknown}")


class _Records:
    """The records of a trial as files: one for each topic and batch."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, folder: Path) -> None:
        self.spark = spark
        self.pipeline = pipeline
        self.folder = folder
        #: By topic, the offset after each batch.
        self.ends: dict[str, list[int]] = {topic.name: [] for topic in pipeline.topics}

    def write(self, batches: Sequence[Batch], at: datetime) -> None:
        for number, batch in enumerate(batches):
            for topic in self.pipeline.topics:
                records = [_as_record(sent) for sent in batch.get(topic.name, ())]
                self._write_one(topic, number, records, at)

    def _write_one(self, topic: Topic, number: int, records: list[Record], at: datetime) -> None:
        ends = self.ends[topic.name]
        first = ends[-1] if ends else 0
        count = len(records)
        columns = {
            "key": [record.key for record in records],
            "value": [_encoded(record.value) for record in records],
            "topic": [topic.name] * count,
            "partition": [0] * count,
            "offset": list(range(first, first + count)),
            "timestamp": [at] * count,
            "headers": [_headers(record) for record in records],
        }
        schema = kafka_source.RECORD_SCHEMA.append(ARCHIVE_SCHEMA.field("headers"))
        file = self._of(topic) / f"{number:04}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns, schema=schema), file)
        # Spark reads the files of a stream in the order of these times.
        os.utime(file, (number, number))
        ends.append(first + count)

    def _of(self, topic: Topic) -> Path:
        return self.folder / f"topic-{self.pipeline.topics.index(topic)}"

    def parsed(self) -> list[DataFrame]:
        """All records of each topic."""
        return self._read_by(self.spark.read)

    def streams(self) -> list[DataFrame]:
        """The same as streams, of which each batch reads one file."""
        return self._read_by(self.spark.readStream.option("maxFilesPerTrigger", 1))

    def _read_by(self, reader: DataFrameReader | DataStreamReader) -> list[DataFrame]:
        frames = []
        for topic in self.pipeline.topics:
            held = reader.schema(kafka_source.kafka_ddl(topic)).parquet(str(self._of(topic)))
            raw = kafka_source.with_decoded(held, topic, None)
            frames.append(parsed_records.parse(raw, self.pipeline, topic))
        return frames

    def dead_letters(self) -> list[DeadLetter]:
        found = []
        for parsed in self.parsed():
            dead = parsed.where(F.col("_reason").isNotNull()).orderBy("_offset")
            for row in dead.select("_topic", "_offset", "_reason", "_value").collect():
                value = None if row["_value"] is None else bytes(row["_value"])
                found.append(DeadLetter(row["_topic"], row["_offset"], row["_reason"], value))
        return found


def _as_record(sent: Value | Record) -> Record:
    return sent if isinstance(sent, Record) else Record(sent)


def _headers(record: Record) -> list[dict[str, Any]] | None:
    """Null without any, as Kafka's source gives them."""
    return [{"key": key, "value": value} for key, value in record.headers] or None


def _encoded(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return json.dumps(value, default=_as_text).encode()


def _as_text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


@dataclass
class _Streamed:
    """What a stream wrote, and the watermark of each of its batches: by it windows were final."""

    rows: pa.Table
    watermarks_ms: dict[int, int] = field(default_factory=dict)


def _stream(records: _Records, name: str) -> _Streamed:
    pipeline = records.pipeline
    written: list[pa.Table] = []
    keep_state_for(records.spark, pipeline)
    query = (
        transformation.result(records.streams(), pipeline, {})
        .writeStream.foreachBatch(lambda frame, _: written.append(frame.toArrow()))
        .outputMode(transformation.output_mode(pipeline))
        .option("checkpointLocation", str(records.folder / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    watermarks = {}
    for progress in query.recentProgress:
        watermark = progress["eventTime"].get("watermark")
        if watermark:
            at = datetime.fromisoformat(watermark)
            watermarks[progress["batchId"]] = round(at.timestamp() * 1000)
    return _Streamed(_held(pipeline, written), watermarks)


def _held(pipeline: Pipeline, written: list[pa.Table]) -> pa.Table:
    """What a table holds after these results: all of them, or of an upsert the last one of each key."""
    if pipeline.sink.mode is Mode.APPEND:
        return pa.concat_tables(written)
    newest: dict[str, Any] = {}
    for table in written:
        for row in table.to_pylist():
            key = json.dumps([row[name] for name in pipeline.sink.keys], default=_as_text)
            newest[key] = row
    schema = written[0].schema
    rows = list(newest.values())
    if pipeline.sink.deleted:
        rows = [row for row in rows if not row[pipeline.sink.deleted]]
        schema = schema.remove(schema.get_field_index(pipeline.sink.deleted))
    return pa.Table.from_pylist(rows, schema=schema)


def _as_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    # In one piece: Spark (4.2.0) reads nothing after a piece without rows.
    return spark.createDataFrame(rows.combine_chunks())


class _Windows:
    """The (row, window) pairs of a trial, by the late rule."""

    def __init__(self, records: _Records, streamed: _Streamed) -> None:
        pipeline = records.pipeline
        (parsed,) = records.parsed()
        self._pairs = transformation.assign_windows(parsed_records.usable(parsed), pipeline)
        end_ms = F.unix_micros("window.end") / F.lit(1000)
        self._late = end_ms <= _threshold_ms(records.ends[pipeline.source.name], streamed.watermarks_ms)
        self._closed = end_ms <= F.lit(max(streamed.watermarks_ms.values(), default=0))

    def on_time(self) -> DataFrame:
        """Those that the stream counted, of closed windows."""
        return self._pairs.where(self._closed & ~self._late)

    def late_rows(self) -> int:
        return self._pairs.where(self._late).select("_offset").distinct().count()


def _threshold_ms(ends: Sequence[int], watermarks_ms: Mapping[int, int]) -> Column:
    """The watermark of the batch before a row's own: a window that ends there or earlier was final."""
    threshold = F.lit(0)
    for number, first in enumerate(ends[:-1]):
        final = F.lit(watermarks_ms.get(number, 0))
        threshold = F.when(F.col("_offset") >= first, final).otherwise(threshold)
    return threshold
