"""File the rows that are in no result: poison into ``dead_letters``, late ones into ``late_rows``, each exactly once.

Which rows those are follows from the ledger alone (a batch's offsets and the watermark before it), so this runs some seconds behind
the commits, over several batches at a time, and may be run again by any later owner: both tables are fenced like the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.ddl import quoted
from hindcast.errors import FenceMovedError
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.spark import kafka_source, parquet_writer, query_signature, session
from hindcast.spark.window_counts import window_counts
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import Fence, FencedTable
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.schema import SCHEMAS, ControlTable

#: Batches that one pass takes together: each is a row of a broadcast join.
BATCHES_PER_PASS = 64


@dataclass(frozen=True)
class _SideTable:
    """One table that rows are filed into: which of the located rows, and whether these batches can have any."""

    table: FencedTable
    frame: Callable[[DataFrame, LedgerRow], DataFrame]
    may_have: Callable[[Sequence[LedgerRow]], bool]


class Audit:
    """Files the late and poison rows of one shard, and gives the late ones to the pipeline's own handler where it has one."""

    def __init__(self, spark: SparkSession, settings: Settings, pipeline: Pipeline, app: str, epoch: int) -> None:
        self._spark, self._settings, self._pipeline, self._epoch = spark, settings, pipeline, epoch
        self.give_way: Callable[[], object] = lambda: None  # between the parts of a pass; may wait
        tables = ControlTables(settings)

        def account(name: ControlTable, rows: Callable[..., DataFrame], may_have: Callable[[Sequence[LedgerRow]], bool]) -> _SideTable:
            tables.open(name)
            table = FencedTable(tables.url(name), settings.storage_options, app)
            return _SideTable(table, lambda located, last: _as_table(rows(located, pipeline), name, last), may_have)

        self._accounts = [
            account(ControlTable.DEAD_LETTERS, dead_letters, lambda batches: any(row.poison_rows != 0 for row in batches)),
            account(ControlTable.LATE_ROWS, late_rows, self._may_be_late),
        ]
        if pipeline.late is not None and pipeline.late_sink is not None:
            table = FencedTable(settings.table("sinks", pipeline.late_sink.name), settings.storage_options, app)
            table.create(query_signature.table_schema(self._handled(kafka_source.empty(spark, pipeline)[0])))
            self._accounts.append(_SideTable(table, lambda located, _: self._handled(_late(located, pipeline)), self._may_be_late))

    def run(self, batches: Sequence[LedgerRow]) -> int:
        """File what is not filed yet of these batches (all that the shard committed after filed ones, in order); return up to which it is.

        :raises LeaseLostError: where a later epoch has filed rows
        """
        filed = self._recorded()
        done = min(fence.batch if fence else 0 for fence in filed)
        todo = [row for row in batches if row.batch > done][:BATCHES_PER_PASS]
        if not todo:
            return done
        target = Fence(self._epoch, todo[-1].batch)
        with session.cached(self._unaccounted(todo)) as rows:  # each account reads these few, not the topic again
            for account, before in zip(self._accounts, filed, strict=True):
                if before is not None and before.batch >= target.batch:
                    continue
                fresh = rows.where(F.col("_batch") > (before.batch if before else 0))
                table, written = account.table, []
                self.give_way()
                if account.may_have(todo):
                    name = f"{todo[-1].shard}-e{self._epoch}-b{target.batch}"
                    written = parquet_writer.write_files(account.frame(fresh, todo[-1]), table.url, table.storage_options, name)
                try:
                    table.commit(target, written, after=before)
                except FenceMovedError:
                    return done  # an older owner filed them in the meantime: the next pass starts from what it filed
        return target.batch

    def rehearse(self, batch: LedgerRow, url: str) -> None:
        """Write what a pass would file of this batch into a folder that nobody reads."""
        with session.cached(self._unaccounted([batch])) as rows:
            for number, account in enumerate(self._accounts):
                parquet_writer.write_files(account.frame(rows, batch), url, self._settings.storage_options, f"a{number}")

    def filed(self) -> int:
        """The last batch of the shard whose late and poison rows are filed; 0 before the first."""
        return min(fence.batch if fence else 0 for fence in self._recorded())

    def _recorded(self) -> list[Fence | None]:
        return [account.table.recorded() for account in self._accounts]

    def _may_be_late(self, batches: Sequence[LedgerRow]) -> bool:
        waits = self._pipeline.window is not None or self._pipeline.re_execute
        return waits and any(row.late_ms(partition) > 0 for row in batches for partition in row.end_offsets)

    def _handled(self, late: DataFrame) -> DataFrame:
        assert self._pipeline.late is not None
        kafka_source.carry_code()
        return self._pipeline.late(late.select(*map(quoted, self._pipeline.source.columns), *kafka_source.PLACE_COLUMNS))

    def _unaccounted(self, batches: Sequence[LedgerRow]) -> DataFrame:
        """The records of these batches that some account has to name, as :meth:`_located` gives them."""
        _, late = window_counts(self._pipeline)
        return self._located(batches).where(F.col("_reason").isNotNull() | (late > 0))

    def _located(self, batches: Sequence[LedgerRow]) -> DataFrame:
        """The records of these batches, parsed, each with ``_batch`` and ``_late_watermark_ms`` of the batch that read it."""
        start, end = batches[0].start_offsets, batches[-1].end_offsets
        ranges = [
            (partition, row.start_offsets[partition], row.end_offsets[partition], row.batch, row.late_ms(partition))
            for row in batches
            for partition in row.end_offsets
            if row.end_offsets[partition] > row.start_offsets[partition]
        ]
        lookup = self._spark.createDataFrame(ranges, "p int, s long, e long, _batch long, _late_watermark_ms long")
        rows = kafka_source.in_common(kafka_source.read_topics(self._spark, self._settings, self._pipeline, start, end))
        within = (F.col("_partition") == F.col("p")) & (F.col("_offset") >= F.col("s")) & (F.col("_offset") < F.col("e"))
        return rows.join(F.broadcast(lookup), within).drop("p", "s", "e")


def dead_letters(rows: DataFrame, _: Pipeline) -> DataFrame:
    """The poison rows, with why."""
    return rows.where(F.col("_reason").isNotNull()).select(
        F.col("_batch").alias("batch"),
        F.col("_topic").alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_timestamp").alias("broker_at"),
        F.col("_reason").alias("reason"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
    )


def late_rows(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The usable rows that were late for at least one of their windows, with how many of how many."""
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
        F.col("_value").alias("value"),
    )


def _late(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    total, late = window_counts(pipeline)
    usable = rows.where(F.col("_reason").isNull())
    return usable.withColumns({"_windows_total": total, "_windows_late": late}).where(F.col("_windows_late") > 0)


def _as_table(frame: DataFrame, name: ControlTable, of: LedgerRow) -> DataFrame:
    constants = {"pipeline": of.pipeline, "version": of.version, "shard": of.shard, "epoch": of.epoch}
    kinds = {field.name: field.type for field in SCHEMAS[name]}
    columns = [F.lit(constants[column]).alias(column) if column in constants else F.col(column) for column in SCHEMAS[name].names]
    longs = {column for column, kind in kinds.items() if str(kind) == "int64"}
    return frame.select(
        *[
            value.cast("long").alias(column) if column in longs else value
            for column, value in zip(SCHEMAS[name].names, columns, strict=True)
        ]
    )
