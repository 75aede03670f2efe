"""File what is in no result: poison in ``dead_letters``, late ones in ``late_rows``, each exactly once.

The ledger alone tells which rows those are (a batch's offsets and the watermark before it). So this runs some
seconds behind the commits, over several batches at a time, and any later owner may run it again: both tables
are fenced like the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.archive.held_records import held_records
from hindcast.ddl import quoted
from hindcast.delta.files import DataFile
from hindcast.errors import FenceMovedError
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.pipeline import Pipeline
from hindcast.recovery.halving import Place
from hindcast.spark import parquet_writer, parsed_records, query_signature, session, user_code
from hindcast.spark.window_counts import window_counts
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.excluded_records import together
from hindcast.tables.fenced_sink import Fence, FencedTable
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.schema import SCHEMAS
from hindcast.tables.table_names import ControlTable
from hindcast.windows import MILLISECOND, WindowEnds

#: Batches that one pass takes together: each is a row of a broadcast join.
BATCHES_PER_PASS = 64


@dataclass(frozen=True)
class _SideTable:
    """One table that rows are filed into."""

    table: FencedTable
    #: Of the located rows of some batches, those that belong into the table, as its columns; the last of the
    #: batches is given, too.
    frame: Callable[[DataFrame, LedgerRow], DataFrame]
    #: Whether a batch can have any such rows.
    may_have: Callable[[LedgerRow], bool]


class Audit:
    """Files the late and poison rows of one shard.

    If the pipeline has its own handler of late rows, they also go through that.
    """

    def __init__(
        self,
        spark: SparkSession,
        installation: Installation,
        pipeline: Pipeline,
        app: str,
        epoch: int,
        topics: TopicOffsets | None = None,
        tracebacks: Mapping[Place, str] | None = None,
    ) -> None:
        """:param topics: asked what can be read; by default each pass connects and closes again
        :param tracebacks: what the function raised, by the places of records that are left out
        """
        self._spark = spark
        self._topics = topics
        self._settings = installation.settings
        self._pipeline = pipeline
        self._epoch = epoch
        self._tracebacks = tracebacks or {}
        self.give_way: Callable[[], object] = lambda: None  # between the parts of a pass; may wait
        self._may_be_late = partial(may_have_late_rows, pipeline)
        tables = installation.tables
        self._sides = [
            self._control_table(tables, ControlTable.DEAD_LETTERS, app, self._dead_letters, _may_be_poison),
            self._control_table(tables, ControlTable.LATE_ROWS, app, late_rows, self._may_be_late),
        ]
        if pipeline.late is not None and pipeline.late_sink is not None:
            self._sides.append(self._late_sink(pipeline.late_sink.name, app))

    def _control_table(
        self,
        tables: ControlTables,
        name: ControlTable,
        app: str,
        rows: Callable[[DataFrame, Pipeline], DataFrame],
        may_have: Callable[[LedgerRow], bool],
    ) -> _SideTable:
        tables.open(name)
        table = FencedTable(tables.url(name), self._settings.storage_options, app)

        def frame(located: DataFrame, last: LedgerRow) -> DataFrame:
            return _as_table(rows(located, self._pipeline), name, last)

        return _SideTable(table, frame, may_have)

    def _late_sink(self, name: str, app: str) -> _SideTable:
        """The table of the pipeline's own handler of late rows."""
        url = self._settings.table("sinks", name)
        table = FencedTable(url, self._settings.storage_options, app)
        nothing = parsed_records.empty(self._spark, self._pipeline)[0]
        table.create(query_signature.table_schema(self._handled(nothing)))

        def frame(located: DataFrame, _: LedgerRow) -> DataFrame:
            return self._handled(_late(located, self._pipeline))

        return _SideTable(table, frame, self._may_be_late)

    def run(self, batches: Sequence[LedgerRow]) -> int:
        """File the late and poison rows of these batches that are not filed yet.

        :param batches: all that the shard committed after filed ones, in order
        :returns: the last batch whose rows are filed
        :raises LeaseLostError: if a later epoch has filed rows
        """
        filed = self._recorded()
        done = min(_batch_of(fence) for fence in filed)
        todo = [row for row in batches if row.batch > done][:BATCHES_PER_PASS]
        if not todo:
            return done
        target = Fence(self._epoch, todo[-1].batch)
        # What Spark has measured of a batch often says that it has no such row: then nothing is read.
        read = [row for row in todo if any(side.may_have(row) for side in self._sides)]
        with self._cached(read) as rows:
            for side, before in zip(self._sides, filed, strict=True):
                if before is not None and before.batch >= target.batch:
                    continue
                self.give_way()
                written = self._written(side, rows, before, todo)
                try:
                    side.table.commit(target, written, after=before)
                except FenceMovedError:
                    return done  # an older owner filed them in the meantime: the next pass starts from there
        return target.batch

    @contextmanager
    def _cached(self, batches: Sequence[LedgerRow]) -> Iterator[DataFrame | None]:
        """The records of these batches that belong into some table; None if there are no batches.

        They are read once: each table reads these few rows, not the topic again.
        """
        if not batches:
            yield None
            return
        with session.cached(self._unaccounted(batches)) as rows:
            yield rows

    def _written(
        self, side: _SideTable, rows: DataFrame | None, before: Fence | None, todo: Sequence[LedgerRow]
    ) -> list[DataFile]:
        """Write the data files of a pass over these batches; none if they cannot have rows for the table.

        :param rows: of those batches that can have rows for some table
        :param before: the last batch that the table holds
        """
        if rows is None or not any(side.may_have(row) for row in todo):
            return []
        fresh = rows.where(F.col("_batch") > _batch_of(before))
        last = todo[-1]
        prefix = f"{last.shard}-e{self._epoch}-b{last.batch}"
        table = side.table
        return parquet_writer.write_files(side.frame(fresh, last), table.url, table.storage_options, prefix)

    def rehearse(self, batch: LedgerRow, url: str) -> None:
        """Write what a pass would file of this batch into a folder that nobody reads."""
        with session.cached(self._unaccounted([batch])) as rows:
            for number, side in enumerate(self._sides):
                frame = side.frame(rows, batch)
                parquet_writer.write_files(frame, url, self._settings.storage_options, f"a{number}")

    def filed(self) -> int:
        """The last batch of the shard whose late and poison rows are filed; 0 before the first."""
        return min(_batch_of(fence) for fence in self._recorded())

    def _recorded(self) -> list[Fence | None]:
        return [side.table.recorded() for side in self._sides]

    def _dead_letters(self, rows: DataFrame, _: Pipeline) -> DataFrame:
        return dead_letters(rows, self._tracebacks)

    def _handled(self, late: DataFrame) -> DataFrame:
        assert self._pipeline.late is not None
        columns = [quoted(column) for column in self._pipeline.source.columns]
        rows = late.select(*columns, *parsed_records.given_columns(self._pipeline.source))
        return user_code.call_user_code(self._pipeline, self._pipeline.late, rows)

    def _unaccounted(self, batches: Sequence[LedgerRow]) -> DataFrame:
        """The records of these batches that belong into some table, as :meth:`_located` gives them."""
        _, late = window_counts(self._pipeline)
        return self._located(batches).where(F.col("_reason").isNotNull() | (late > 0))

    def _held(self, needed: Mapping[int, int]) -> HeldRecords:
        """What can be read now. Archives are asked only if a topic has dropped one of these offsets."""
        if self._topics is not None:
            return held_records(self._settings, self._pipeline, self._topics, needed)
        with TopicOffsets(self._settings) as topics:
            return held_records(self._settings, self._pipeline, topics, needed)

    def _located(self, batches: Sequence[LedgerRow]) -> DataFrame:
        """The records of these batches, parsed; from an archive what the topic no longer holds.

        Each has ``_batch`` and ``_late_watermark_ms`` of the batch that read it.
        """
        ranges = []
        for row in batches:
            for partition, end in row.end_offsets.items():
                start = row.start_offsets[partition]
                if end > start:
                    ranges.append((partition, start, end, row.batch, row.late_ms(partition)))
        lookup = self._spark.createDataFrame(
            ranges, "p int, s long, e long, _batch long, _late_watermark_ms long"
        )
        first = batches[0].start_offsets
        last = batches[-1].end_offsets
        seams = self._held(first).seams(first, last)
        excluded = together(row.excluded for row in batches)
        parsed = parsed_records.read_topics(
            self._spark, self._settings, self._pipeline, first, last, seams, excluded
        )
        rows = parsed_records.in_common(parsed)
        same_partition = F.col("_partition") == F.col("p")
        in_range = (F.col("_offset") >= F.col("s")) & (F.col("_offset") < F.col("e"))
        return rows.join(F.broadcast(lookup), same_partition & in_range).drop("p", "s", "e")


def _batch_of(fence: Fence | None) -> int:
    """The last batch that a table holds; 0 before the first."""
    if fence is None:
        return 0
    return fence.batch


def may_have_late_rows(pipeline: Pipeline, row: LedgerRow) -> bool:
    """Whether some row of the batch can be late for one of its windows.

    Event times are measured in whole milliseconds, rounded down, and so are the ends of windows. So no row's
    earliest window ends before that of the batch's earliest event. A batch that Spark did not measure may
    have late rows.
    """
    if pipeline.window is None and not pipeline.re_execute:
        return False
    late_ms = max((row.late_ms(partition) for partition in row.end_offsets), default=0)
    if late_ms <= 0:
        return False  # no window was final when the batch began
    if row.min_event_ms is None:
        return row.may_have_usable_rows
    if pipeline.window is None:
        return row.min_event_ms <= late_ms
    return bool(WindowEnds.of(pipeline.window, MILLISECOND).first(row.min_event_ms) <= late_ms)


def _may_be_poison(row: LedgerRow) -> bool:
    """A batch that Spark did not measure counts, too."""
    return row.poison_rows != 0


def dead_letters(rows: DataFrame, tracebacks: Mapping[Place, str]) -> DataFrame:
    """The poison rows, each with its reason, and with a traceback if one is known."""
    traceback = F.lit(None).cast("string")
    for (partition, offset), text in tracebacks.items():
        here = (F.col("_partition") == partition) & (F.col("_offset") == offset)
        traceback = F.when(here, text).otherwise(traceback)
    return rows.where(F.col("_reason").isNotNull()).select(
        F.col("_batch").alias("batch"),
        F.col("_topic").alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_timestamp").alias("broker_at"),
        F.col("_reason").alias("reason"),
        traceback.alias("traceback"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
    )


def late_rows(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The usable rows that were late for at least one of their windows, with the counts of both."""
    return _late(rows, pipeline).select(
        F.col("_batch").alias("batch"),
        F.col("_topic").alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_event_at").alias("event_at"),
        F.col("_timestamp").alias("broker_at"),
        F.col("_late_watermark_ms").alias("watermark_ms"),
        F.col("_windows_late").alias("windows_late"),
        F.col("_windows_total").alias("windows_total"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
    )


def _late(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    total, late = window_counts(pipeline)
    usable = rows.where(F.col("_reason").isNull())
    counted = usable.withColumns({"_windows_total": total, "_windows_late": late})
    return counted.where(F.col("_windows_late") > 0)


def _as_table(frame: DataFrame, name: ControlTable, of: LedgerRow) -> DataFrame:
    """The frame with the columns of the control table, in their order.

    :param of: a batch of the frame's shard and epoch
    """
    constants = {"pipeline": of.pipeline, "version": of.version, "shard": of.shard, "epoch": of.epoch}
    columns = []
    for field in SCHEMAS[name]:
        column = F.col(field.name)
        if field.name in constants:
            column = F.lit(constants[field.name]).alias(field.name)
        if str(field.type) == "int64":
            column = column.cast("long").alias(field.name)
        columns.append(column)
    return frame.select(*columns)
