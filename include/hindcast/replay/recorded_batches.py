"""Run a stream's recorded batches again, through the streaming engine: the same rows in the same batches give
the same results.

If results depend on which rows came together (joins of streams, sessions, deduplication, a pipeline's own
state), no batch job gives the rows that the stream should have given. The ledger knows which offsets each
batch read. So:

1. The records of each batch go into one file, and a batch that read nothing gets an empty one. The files'
   times are in the order of the batches.
2. The pipeline's query reads them one file a batch, with a new checkpoint. Its watermark moves as the
   stream's did, because it follows from the rows of the batches before.
3. No batch comes after the last recorded one. Spark would run one more, to emit what the last watermark
   closed; the stream had not done that yet.

The answer in hindsight is run with the fewest batches: all but the last at once, then the last. It ends under
the same watermark as the stream, so windows that were still open in the stream are open here too. Mostly a
batch query gives this answer at less cost (:mod:`hindcast.replay.hindsight_in_one_query`).

A range that does not begin with the stream begins with the state that the batches before it left
(:class:`BegunState`): their query goes on.

Of several topics the watermark is the least of theirs. When a query is started again, Spark knows the common
one, and of each topic only what comes from then on (``WatermarkTracker`` in
``org.apache.spark.sql.execution.streaming``): until all have brought a row the watermark stands still. So a
query here is started where the stream's was, and nowhere else. Where a range goes on from a state, but the
stream's query ran on, the newest record of each topic comes once more, in a batch before all others. It moves
the watermark of its topic to where it was, and the function does not get it.

This module is used by a verdict, for the online answer and to find out what is not deterministic; by a replay
if no batch query gives its answer in hindsight; and by a shard that has lost its state, or reads from an
archive (:mod:`hindcast.recovery.rebuild_from_batches`).

The files lie in the job's folder (:func:`hindcast.spark.scratch.folder`). Driver and executors share that
folder, so this runs on any Spark master.
"""

from __future__ import annotations

import io
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pandas as pd
import pyarrow.parquet as pq
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE, Mode, Pipeline, Topic
from hindcast.replay import kept_state, offset_buckets
from hindcast.settings import Settings
from hindcast.spark import batch_metrics, kafka_source, parsed_records, scratch, session, transformation
from hindcast.tables.excluded_records import Excluded, together
from hindcast.tables.ledger import LedgerRow

_log = structlog.get_logger(__name__)

_STEP_MS = 10  # between the times of two files; Spark forgets files that are a week older than the newest
_FEWEST = 2  # all batches but the last as one, then the last
_BATCH = "_batch"
_NEWEST = "newest"
_AGAIN = -1  # the number of the batch that has the newest records of the ranges before once more
_NUMBER = re.compile(rf"/{_BATCH}=(\d+)/")
_RANGE_COLUMNS = ("_p", "_from", "_to", "_shard", _BATCH)
_RANGE_SCHEMA = f"_bucket long, _p int, _from long, _to long, _shard string, {_BATCH} int"


#: A shard's batches in order.
_ByShard = dict[str, list["LedgerRow | BatchRange"]]


@dataclass(frozen=True)
class BatchRange:
    """The offsets that one batch of a shard is to read. The shard's batches are run in the order of their
    numbers.
    """

    shard: str
    batch: int
    start_offsets: Offsets
    end_offsets: Offsets
    excluded: Excluded = field(default_factory=dict)  # records that it is to leave out


@dataclass(frozen=True)
class BegunState:
    """The state in which the batches begin: a folder with a checkpoint for each shard, and Spark's number of
    the last batch in each.
    """

    url: str
    batches: Mapping[str, int]


class _Newest(NamedTuple):
    """The record of a topic with the newest event time: its place in the pipeline's partitions, and the file
    that holds it alone.
    """

    place: tuple[int, int]
    file: str


class _Range(NamedTuple):
    """Offsets that a batch read: Kafka's partition, start, end, shard, number of the batch dealt."""

    partition: int
    start: int
    end: int
    shard: str
    number: int


def starts_of(batches: Sequence[LedgerRow]) -> list[int]:
    """The numbers of the batches with which the shard's query was started again: the first of another owner,
    and one that leaves out a record on which the query had failed.

    :param batches: of one shard, in order
    """
    starts = []
    for number, (last, row) in enumerate(pairwise(batches), start=1):
        if row.epoch != last.epoch or row.excluded:
            starts.append(number)
    return starts


def _has_several_watermarks(pipeline: Pipeline) -> bool:
    return sum(topic.watermark for topic in pipeline.topics) > 1


@contextmanager
def recorded_batches(
    spark: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    start: Offsets,
    end: Offsets,
    rows: Iterable[LedgerRow | BatchRange],
    seams: Offsets | None = None,
    *,
    at_once: bool = False,
    folder: scratch.Folder | None = None,
    before: int = 0,
    begun: BegunState | None = None,
    state_is_kept: bool = False,
) -> Iterator[RecordedBatches]:
    """The records of [start, end) in files, by shard and batch, for as long as the context lasts.

    :param rows: the batches that read them, or are to read them
    :param seams: see :func:`hindcast.spark.kafka_source.records`
    :param at_once: deal them as the fewest batches
    :param folder: where the files are to lie; a folder of their own by default
    :param before: so many batches of the shard have run from this folder before
    :param begun: the state in which they begin; none by default
    :param state_is_kept: whether the state is to be copied from here or to here
    """
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(scratch.folder(spark))
        by_shard: _ByShard = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row.shard, row.batch)):
            by_shard[row.shard].append(row)
        counts = {shard: len(batches) for shard, batches in by_shard.items()}
        if at_once:
            counts = {shard: min(count, _FEWEST) for shard, count in counts.items()}
        excluded = together(row.excluded for batches in by_shard.values() for row in batches)
        starts = {}
        owners = {}
        if _has_several_watermarks(pipeline):
            for shard, batches in by_shard.items():
                run = [row for row in batches if isinstance(row, LedgerRow)]
                if not run:
                    continue
                owners[shard] = run[0].epoch, run[-1].epoch
                if not at_once:
                    starts[shard] = starts_of(run)
        recorded = RecordedBatches(
            spark, pipeline, folder, counts, before, begun, state_is_kept, excluded, starts, owners
        )
        for topic in pipeline.topics:
            raw = kafka_source.records(spark, settings, pipeline, topic, start, end, seams)
            recorded.keep(topic, raw, by_shard)
        yield recorded


@dataclass(frozen=True)
class RecordedBatches:
    """``counts``: shard -> as how many batches its records are dealt; the last of them is the last recorded
    one. ``before``: so many batches have run from the folder before, into the same checkpoint. ``begun``: the
    state in which they begin. ``state_is_kept``: whether their state may be copied. ``excluded``: the records
    that they leave out. ``starts``: shard -> the batches, by their numbers here, with which the stream's
    query was started again. ``owners``: shard -> the epochs of the first and of the last batch. Both are
    empty if they change no watermark.
    """

    spark: SparkSession
    pipeline: Pipeline
    folder: scratch.Folder
    counts: dict[str, int]
    before: int = 0
    begun: BegunState | None = None
    state_is_kept: bool = False
    excluded: Excluded = field(default_factory=dict)
    starts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    owners: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def keep(self, topic: Topic, raw: DataFrame, by_shard: _ByShard) -> None:
        """Step 1, for one topic."""
        ranges = self._ranges(topic, by_shard)
        width = offset_buckets.width_of(sum(one.end - one.start for one in ranges), len(ranges))
        rows = pd.DataFrame(_by_bucket(ranges, width), columns=["_bucket", *_RANGE_COLUMNS])
        lookup = self.spark.createDataFrame(rows, _RANGE_SCHEMA)
        offset = F.col("offset")
        in_range = (offset >= F.col("_from")) & (offset < F.col("_to"))
        same_bucket = offset_buckets.bucket("offset", width) == F.col("_bucket")
        here = (F.col("partition") == F.col("_p")) & same_bucket & in_range
        record = kafka_source.record_types(topic)
        placed = raw.join(F.broadcast(lookup), here).select(*record, "_shard", _BATCH)
        dealt = placed.repartition("_shard", _BATCH)
        dealt = dealt.sortWithinPartitions("_shard", _BATCH, "partition", "offset")
        writer = dealt.write.partitionBy("_shard", _BATCH)
        # A task reads whole groups of rows.
        writer = writer.option("parquet.block.row.count.limit", kafka_source.MAX_RECORDS_PER_TASK)
        writer.parquet(self.folder.at(self._kept(topic)))

    def _kept(self, topic: Topic) -> str:
        return f"kept/{self.before}/{topic.name}"

    def _ranges(self, topic: Topic, by_shard: _ByShard) -> list[_Range]:
        """The ranges of the topic that batches read. Those of one batch dealt that touch are one range.

        If a shard's records are dealt as fewer batches than were recorded, the first of them holds the oldest
        ones.
        """
        index = self.pipeline.topics.index(topic)
        ranges: list[_Range] = []
        for shard, rows in by_shard.items():
            joined = len(rows) - self.counts[shard]
            newest: dict[int, _Range] = {}
            for recorded_number, row in enumerate(rows):
                number = max(0, recorded_number - joined)
                for partition, end in row.end_offsets.items():
                    start = row.start_offsets[partition]
                    if partition // TOPIC_STRIDE != index or end <= start:
                        continue
                    last = newest.get(partition)
                    if last is not None and (last.number, last.end) == (number, start):
                        start = last.start
                    elif last is not None:
                        ranges.append(last)
                    newest[partition] = _Range(partition % TOPIC_STRIDE, start, end, shard, number)
            ranges.extend(newest.values())
        return ranges

    def run(self) -> DataFrame:
        """Steps 2 and 3 for every shard, once.

        :returns: all rows of the results; of running results the last of each key
        """
        for shard in self.counts:
            self._run_shard(shard)
        return self._last_of_each_key(self.spark.read.parquet(self.folder.at("rows")))

    def _run_shard(self, shard: str) -> None:
        def save(frame: DataFrame, number: int) -> None:
            numbered = frame.withColumn(_BATCH, F.lit(number))
            numbered.write.mode("append").parquet(self.folder.at("rows"))

        started = time.monotonic()
        checkpoint = _checkpoint(shard)
        if self.begun is not None and shard in self.begun.batches:
            last = self.begun.batches[shard]
            kept_state.restore(self._begun_in(shard), last, self.folder, checkpoint)
        if shard in self.owners:
            self._find_newest(shard)
        first = 0
        for end in (*self.starts.get(shard, ()), self.counts[shard]):
            query = self.begin(shard, self.folder.at(checkpoint), save, first=first, end=end)
            query.awaitTermination()
            first = end
        seconds = time.monotonic() - started
        _log.info("Ran recorded batches again.", shard=shard, batches=self.counts[shard], seconds=seconds)

    def _all_begun(self) -> scratch.Folder:
        assert self.begun is not None
        return scratch.Folder(self.spark, self.begun.url)

    def _begun_in(self, shard: str) -> scratch.Folder:
        return scratch.Folder(self.spark, self._all_begun().at(shard))

    def keep_state(self, url: str) -> BegunState:
        """Copy the state that :meth:`run` left, for the batches that come next.

        A shard without batches keeps the state in which it was.

        :param url: a folder that is not there yet
        """
        before: dict[str, int] = {}
        if self.begun is not None:
            before.update(self.begun.batches)
        all_shards = scratch.Folder(self.spark, url)
        for shard in before:
            if shard in self.counts:
                continue
            self._begun_in(shard).copy("", all_shards, shard)
            _copy_newest(self._all_begun(), all_shards, shard)
        batches = dict(before)
        for shard, count in self.counts.items():
            again = len(self._newest_before(shard)) > 0
            batches[shard] = before.get(shard, -1) + count + again
            to = scratch.Folder(self.spark, f"{url}/{shard}")
            kept_state.keep(self.folder, _checkpoint(shard), batches[shard], to)
            _copy_newest(self.folder, all_shards, shard)
        return BegunState(url, batches)

    def begin(
        self,
        shard: str,
        checkpoint: str,
        save: Callable[[DataFrame, int], None] | None,
        *,
        floors: Offsets | None = None,
        measured: bool = False,
        first: int = 0,
        end: int | None = None,
    ) -> StreamingQuery:
        """Start steps 2 and 3 for one shard, once for each of its batches.

        The files of a topic come from a folder of the topic's name.

        :param save: called with the results of each batch; None to drop them
        :param floors: see :func:`hindcast.spark.transformation.above_floors`
        :param measured: whether Spark is to measure the batches, as it does those of a stream
        :param first: the number of the first batch
        :param end: that of the one after the last; all of them by default
        """
        if end is None:
            end = self.counts[shard]
        newest = self._newest_before(shard)
        frames = []
        for number, topic in enumerate(self.pipeline.topics):
            line = f"lines/{shard}/{topic.name}"
            self._line_up(line, f"{self._kept(topic)}/_shard={shard}", first, end, newest, topic)
            reader = self.spark.readStream.schema(kafka_source.record_ddl(topic))
            raw = reader.option("maxFilesPerTrigger", 1).parquet(self.folder.at(line))
            parsed = parsed_records.parse(raw, self.pipeline, topic, self.excluded)
            if measured:
                parsed = batch_metrics.observed(parsed, number)
            frames.append(parsed)
        again = {topic: record.place for topic, record in newest.items()}
        writer = (
            transformation.result(frames, self.pipeline, floors or {}, again)
            .writeStream.queryName(f"re-execution of {self.pipeline.name}.{shard}")
            .outputMode(transformation.output_mode(self.pipeline))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
        )
        if save is None:
            writer = writer.format("noop")
        else:
            writer = writer.foreachBatch(save)
        session.keep_state_for(self.spark, self.pipeline, on_disk=self.state_is_kept)
        with session.without_empty_batches(self.spark):
            return writer.start()

    def _find_newest(self, shard: str) -> None:
        """Keep the record with the newest event time of each topic, of those that the stream's query had read
        since it was started last.
        """
        starts = self.starts.get(shard, ())
        before = self._newest_before(shard)
        since = 0
        if starts:
            since = starts[-1]
            before = {}
        for topic in self.pipeline.topics:
            if not topic.watermark:
                continue
            kept = f"{self._kept(topic)}/_shard={shard}"
            names = self.folder.names(f"{kept}/{_BATCH}=*/*.parquet")
            places = [self.folder.at(name) for name in names if _number_of(name) >= since]
            if topic.name in before:
                places.append(before[topic.name].file)
            if not places:
                continue
            raw = self.spark.read.schema(kafka_source.record_ddl(topic)).parquet(*places)
            usable = parsed_records.usable(parsed_records.parse(raw, self.pipeline, topic, self.excluded))
            place = F.max_by(F.struct("_partition", "_offset"), "_event_at").alias("place")
            found = usable.agg(place).collect()[0]["place"]
            if found is None:
                continue
            partition, offset = found
            here = (F.col("partition") == partition % TOPIC_STRIDE) & (F.col("offset") == offset)
            record = raw.where(here).limit(1).coalesce(1)
            record.write.parquet(self.folder.at(f"{_NEWEST}/{shard}/{self.owners[shard][1]}/{topic.name}"))

    def _newest_before(self, shard: str) -> dict[str, _Newest]:
        """By topic, the newest record of the ranges before this one. None if the stream's query was started
        again since.
        """
        if self.begun is None or shard not in self.begun.batches or shard not in self.owners:
            return {}
        kept = self._all_begun()
        found = {}
        for name in kept.names(f"{_NEWEST}/{shard}/{self.owners[shard][0]}/*/*.parquet"):
            topic = next(one for one in self.pipeline.topics if one.name == name.split("/")[-2])
            (row,) = self.spark.read.parquet(kept.at(name)).select("partition", "offset").collect()
            partition = self.pipeline.topics.index(topic) * TOPIC_STRIDE + row["partition"]
            found[topic.name] = _Newest((partition, row["offset"]), kept.at(name))
        return found

    def _line_up(
        self, line: str, kept: str, first: int, end: int, newest: Mapping[str, _Newest], topic: Topic
    ) -> None:
        """One file a batch in ``line``, in the order of their times. Before the first of all comes the newest
        record of the ranges before, if there were any.

        All rows of a batch went through one task, so it has at most one file. Of the batches before, the last
        one's file stays: a query that is started again looks at it.
        """
        self.folder.make(line)
        for name in self.folder.names(f"{line}/*.parquet")[:-1]:
            self.folder.remove(name)
        parts = {_number_of(name): name for name in self.folder.names(f"{kept}/{_BATCH}=*/*.parquet")}
        numbers = list(range(first, end))
        if newest and first == 0:
            numbers.insert(0, _AGAIN)
        first_ms = time.time_ns() // 1_000_000 - len(numbers) * _STEP_MS
        for step, number in enumerate(numbers):
            name = f"{line}/{self.before + number + bool(newest):08}.parquet"
            at_ms = first_ms + step * _STEP_MS
            if number in parts:
                self.folder.move(parts[number], name)
            elif number == _AGAIN and topic.name in newest:
                folder, _, own = newest[topic.name].file.rpartition("/")
                scratch.Folder(self.spark, folder).copy(own, self.folder, name)
            else:
                self.folder.write(name, _no_records())
            self.folder.set_time(name, at_ms)
            if step == 0:
                self.folder.check_time(name, at_ms)

    def _last_of_each_key(self, rows: DataFrame) -> DataFrame:
        if self.pipeline.sink.mode is not Mode.UPSERT:
            return rows.drop(_BATCH)
        columns = [column for column in rows.columns if column != _BATCH]
        last = F.max_by(F.struct(*columns), _BATCH).alias("_last")
        return rows.groupBy(*self.pipeline.sink.keys).agg(last).select("_last.*")


def _number_of(name: str) -> int:
    """The number of the batch whose file has this name."""
    (number,) = _NUMBER.findall(name)
    return int(number)


def _copy_newest(kept: scratch.Folder, to: scratch.Folder, shard: str) -> None:
    """Copy the newest records of a shard's topics, if there are any."""
    name = f"{_NEWEST}/{shard}"
    if kept.has(name):
        kept.copy(name, to, name)


def _checkpoint(shard: str) -> str:
    """The name of a shard's checkpoint in the job's folder."""
    return f"checkpoint/{shard}"


def _by_bucket(ranges: Iterable[_Range], width: int) -> Iterator[tuple[int | str, ...]]:
    """The rows of :data:`_RANGE_SCHEMA`: each range once for each bucket of offsets that it touches."""
    for one in ranges:
        for bucket in offset_buckets.touched(one.start, one.end, width):
            yield bucket, *one


@cache
def _no_records() -> bytes:
    """A Parquet file without a row."""
    content = io.BytesIO()
    pq.write_table(kafka_source.RECORD_SCHEMA.empty_table(), content)
    return content.getvalue()
