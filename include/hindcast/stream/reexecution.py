"""Run a stream's recorded batches again, through the streaming engine: the same rows in the same batches give the same results.

Where results depend on which rows came together (joins of streams, sessions, deduplication, state of its own) no batch job says what the
stream should have said. The ledger knows which offsets each batch read, so

1. the records of each batch go into one file, an empty one for a batch that read nothing; the files' times are in the order of the batches;
2. the pipeline's query reads them one file a batch, with a new checkpoint. Its watermark moves as the stream's did, because it follows from
   the rows of the batches before;
3. a batch that comes after the last recorded one (Spark lets go of what the last watermark closed) is left out.

The answer in hindsight is the same with the fewest batches: all but the last at once, then the last, so that both end under the same
watermark and what was still open in the stream is open here too. Mostly a batch query says it for less (:mod:`hindcast.stream.at_once`).

Three use it: a verdict for the online answer and to find out what is not deterministic, a replay whose hindsight no batch query says, and
a shard that has lost its state (:mod:`hindcast.stream.rerun`).

The files lie on the driver's disk: a session that does this has a Spark master of its own machine (``local[n]``).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from hindcast.control.ledger import LedgerRow, Offsets
from hindcast.pipeline import TOPIC_STRIDE, Mode, Pipeline, Topic
from hindcast.settings import Settings
from hindcast.stream import files, scratch, session, source

_log = structlog.get_logger(__name__)

#: Kafka's records as they are kept between the two readings.
_RECORD = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
_STEP_MS = 10  # between the times of two files; Spark forgets files that are a week older than the newest
_BATCH = "_batch"


@contextmanager
def recorded_batches(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    start: Offsets,
    end: Offsets,
    rows: Iterable[LedgerRow],
    seams: Offsets | None = None,
) -> Iterator[RecordedBatches]:
    """The records of [start, end) on disk, by shard and batch, for as long as the context lasts.

    :param rows: the batches that read them
    :param seams: see :func:`hindcast.stream.source.records`
    """
    with scratch.folder(spark) as folder:
        by_shard: dict[str, list[LedgerRow]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row.shard, row.batch)):
            by_shard[row.shard].append(row)
        recorded = RecordedBatches(spark, pipeline, folder, {shard: len(rows) for shard, rows in by_shard.items()})
        for topic in pipeline.topics:
            raw = source.records(spark, settings, pipeline, topic, start, end, seams)
            recorded.keep(topic, raw, by_shard)
        yield recorded


@dataclass(frozen=True)
class RecordedBatches:
    """``counts``: shard -> how many batches it has recorded."""

    spark: SparkSession
    pipeline: Pipeline
    folder: Path
    counts: dict[str, int]

    def keep(self, topic: Topic, raw: DataFrame, by_shard: dict[str, list[LedgerRow]]) -> None:
        """Step 1, for one topic."""
        index = self.pipeline.topics.index(topic)
        ranges = [
            (partition % TOPIC_STRIDE, row.start_offsets[partition], end, shard, number)
            for shard, rows in by_shard.items()
            for number, row in enumerate(rows)
            for partition, end in row.end_offsets.items()
            if partition // TOPIC_STRIDE == index and end > row.start_offsets[partition]
        ]
        names = ["_p", "_from", "_to", "_shard", _BATCH]
        lookup = self.spark.createDataFrame(pd.DataFrame(ranges, columns=names), "_p int, _from long, _to long, _shard string, _batch int")
        here = (F.col("partition") == F.col("_p")) & (F.col("offset") >= F.col("_from")) & (F.col("offset") < F.col("_to"))
        placed = raw.join(F.broadcast(lookup), here).select("key", "value", "topic", "partition", "offset", "timestamp", "_shard", _BATCH)
        dealt = placed.repartition("_shard", _BATCH).sortWithinPartitions("_shard", _BATCH, "partition", "offset")
        dealt.write.partitionBy("_shard", _BATCH).parquet(str(self.folder / "kept" / topic.name))

    def run(self, *, at_once: bool = False) -> DataFrame:
        """Steps 2 and 3 for every shard: all rows of the results; of running results the last of each key."""
        results = self.folder / ("hindsight" if at_once else "online")
        for shard, count in self.counts.items():
            dealt = [range(count - 1), range(count - 1, count)] if at_once and count > 1 else [range(n, n + 1) for n in range(count)]
            self._run_shard(shard, dealt, results)
        return self._last_of_each_key(self.spark.read.parquet(str(results / "rows")))

    def _run_shard(self, shard: str, dealt: Sequence[range], results: Path) -> None:
        def save(frame: DataFrame, number: int) -> None:
            if number < len(dealt):
                frame.withColumn(_BATCH, F.lit(number)).write.mode("append").parquet(str(results / "rows"))
            else:
                files.run(frame)

        started = time.monotonic()
        self.begin(shard, dealt, results / "input", str(results / "checkpoint" / shard), save).awaitTermination()
        _log.info("Ran recorded batches again.", shard=shard, batches=len(dealt), seconds=time.monotonic() - started)

    def begin(
        self, shard: str, dealt: Sequence[range], lines: Path, checkpoint: str, save: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        """Start step 2 for one shard, its batches dealt as said.

        :param lines: a folder for the files, those of one topic in ``<lines>/<shard>/<topic>``
        """
        frames = []
        for topic in self.pipeline.topics:
            line = lines / shard / topic.name
            self._line_up(line, self.folder / "kept" / topic.name / f"_shard={shard}", dealt)
            raw = self.spark.readStream.schema(_RECORD).option("maxFilesPerTrigger", 1).parquet(str(line))
            frames.append(source.parse(raw, self.pipeline, topic))
        session.keep_state_for(self.spark, self.pipeline)
        return (
            source.result(frames, self.pipeline, {})
            .writeStream.queryName(f"re-execution of {self.pipeline.name}.{shard}")
            .foreachBatch(save)
            .outputMode(source.output_mode(self.pipeline))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    def _line_up(self, line: Path, kept: Path, dealt: Sequence[range]) -> None:
        """One file a batch in ``line``, in the order of their times."""
        line.mkdir(parents=True)
        first_ms = time.time_ns() // 1_000_000 - len(dealt) * _STEP_MS
        for position, batches in enumerate(dealt):
            path = line / f"{position:08}.parquet"
            parts = [part for number in batches for part in sorted((kept / f"{_BATCH}={number}").glob("*.parquet"))]
            if len(parts) == 1:
                os.link(parts[0], path)
            else:
                _concatenate(parts, path)
            at_ns = (first_ms + position * _STEP_MS) * 1_000_000
            os.utime(path, ns=(at_ns, at_ns))

    def _last_of_each_key(self, rows: DataFrame) -> DataFrame:
        if self.pipeline.sink.mode is not Mode.UPSERT:
            return rows.drop(_BATCH)
        columns = [column for column in rows.columns if column != _BATCH]
        last = F.max_by(F.struct(*columns), _BATCH).alias("_last")
        return rows.groupBy(*self.pipeline.sink.keys).agg(last).select("_last.*")


def _concatenate(parts: Sequence[Path], path: Path) -> None:
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
        ]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for part in parts:
            writer.write_table(pq.read_table(part, schema=schema, partitioning=None))
