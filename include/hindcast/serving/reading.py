"""Read a pipeline's results: one view, pinned to a version of the stream's table and one of the corrections.

Each window comes from one of the two, so whatever is written meanwhile no window is missing, doubled or half replaced. What is read is
the table of the pipeline's active version, and of the versions before it for windows that the active one began too late for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from hindcast import catalog
from hindcast.catalog import Catalog
from hindcast.errors import BadInputError, StoreUnavailableError
from hindcast.leases.delta_store import read_leases
from hindcast.pipeline import Pipeline
from hindcast.serving.corrected_windows import RUN_ID, WINDOW_END, Corrected, Corrections
from hindcast.settings import Settings
from hindcast.shards.active_version import Rollout, rollouts
from hindcast.tables.control_tables import arrow_dataset

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Reading:
    """The results of one pipeline at one moment.

    The columns are those of the sink, and ``_run_id``: the run whose answer the row is, null where the stream said it.
    """

    pipeline: Pipeline
    sink_url: str
    sink_version: int
    corrections: Corrections
    corrected: Corrected
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    earlier: tuple[Part, ...] = ()

    @classmethod
    def pin(
        cls, settings: Settings, pipeline: Pipeline, sink_version: int | None = None, corrections_version: int | None = None
    ) -> Reading:
        """The newest versions, or these (-1: without corrections).

        :raises BadInputError: where there is no table yet
        """
        corrections, url = Corrections(settings, pipeline), settings.table("sinks", pipeline.sink.name)
        corrected = corrections.current(corrections_version)
        try:
            table = DeltaTable(url, version=sink_version, storage_options=settings.storage_options or None)
        except TableNotFoundError as error:
            cure = f"It is made when the pipeline is first consumed: `hindcast resume {pipeline.name}`."
            raise BadInputError(problem=f"There is no table {url} yet", cure=cure) from error
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=url, action="read", reason=error) from error
        return cls(pipeline, url, table.version(), corrections, corrected, settings.storage_options)

    @property
    def _after_ms(self) -> int | None:
        """Windows that end after it are of this version; None for all."""
        return self.earlier[-1].to_ms if self.earlier else None

    def spark(self, session: SparkSession) -> DataFrame:
        """The view as a Spark frame; the session has Delta (see :mod:`hindcast.spark.session`)."""
        from pyspark.sql import functions as F

        frame = self._spark(session)
        if self._after_ms is None:
            return frame
        end_us = F.unix_micros("window.end")
        older = [part.reading.spark(session).where(part.holds(end_us)) for part in self.earlier]
        frames = [*older, frame.where(end_us > self._after_ms * 1000)]
        columns = [F.col(f"`{name}`") for name in frame.columns]
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames).select(*columns)

    def _spark(self, session: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F

        stream = session.read.format("delta").option("versionAsOf", str(self.sink_version)).load(self.sink_url)
        stream = stream.withColumn(RUN_ID, F.lit(None).cast("string"))
        if not self.corrected.ranges:
            return stream
        batch = session.read.format("delta").option("versionAsOf", str(self.corrected.version)).load(self.corrections.url)
        columns = [f"`{name}`" for name in stream.columns]
        kept = stream.where(~self._inside(F.unix_micros("window.end")))
        return kept.unionByName(batch.where(self._inside(F.col(WINDOW_END))).select(*columns))

    def arrow(self) -> pa.Table:
        """The view as one Arrow table."""
        if self._after_ms is None:
            return self._arrow()
        own = self._arrow()
        end_us = pc.field("window", "end").cast(pa.int64())
        older = [part.reading.arrow().filter(part.holds(end_us)) for part in self.earlier]
        tables = [*older, own.filter(end_us > self._after_ms * 1000)]
        return pa.concat_tables(tables, promote_options="default").select(own.column_names)

    def _arrow(self) -> pa.Table:
        stream = arrow_dataset(DeltaTable(self.sink_url, version=self.sink_version, storage_options=self.storage_options or None))
        columns: dict[str, Any] = {name: pc.field(name) for name in stream.schema.names}
        of_stream = {**columns, RUN_ID: pc.scalar(pa.scalar(None, pa.string()))}
        if not self.corrected.ranges:
            return stream.to_table(columns=of_stream)
        batch = arrow_dataset(self.corrections.open(self.corrected.version))
        parts = (
            stream.to_table(columns=of_stream, filter=~self._inside(pc.field("window", "end").cast(pa.int64()))),
            batch.to_table(columns={**columns, RUN_ID: pc.field(RUN_ID)}, filter=self._inside(pc.field(WINDOW_END))),
        )
        return pa.concat_tables([part.cast(parts[0].schema) for part in parts])

    def pandas(self) -> pd.DataFrame:
        """The view as a pandas frame."""
        frame: pd.DataFrame = self.arrow().to_pandas()
        return frame

    def _inside(self, end_us: Any) -> Any:
        """Whether a window is corrected, as an expression of Spark or of Arrow, over its end in epoch microseconds."""
        found = None
        for after_ms, to_ms in self.corrected.intervals():
            one = (end_us > after_ms * 1000) & (end_us <= to_ms * 1000)
            found = one if found is None else found | one
        return found


@dataclass(frozen=True)
class Part:
    """What readers get from a version that is not active any more: the windows with ``after_ms`` < end <= ``to_ms``."""

    reading: Reading
    after_ms: int | None
    to_ms: int

    def holds(self, end_us: Any) -> Any:
        """Whether a window is one of them, as an expression of Spark or of Arrow, over its end in epoch microseconds."""
        until = end_us <= self.to_ms * 1000
        return until if self.after_ms is None else until & (end_us > self.after_ms * 1000)


def read(pipeline: str, settings: Settings | None = None) -> Reading:
    """The newest results of a pipeline, in its active version: ``read("stock_stats").pandas()``, ``.arrow()`` or ``.spark(session)``.

    Which version is active, and where older windows come from, is one read of one row.

    :raises UnknownPipelineError: where there is no such pipeline
    :raises UnknownVersionError: where no file declares a version that readers get
    :raises BadInputError: where it has no table yet
    """
    settings = settings or Settings()
    found = catalog.load(settings.pipelines_dir)
    standing = rollouts(read_leases(settings)).get(pipeline)
    while True:
        try:
            return _pinned(settings, found, pipeline, standing)
        except BadInputError:
            before, standing = standing, rollouts(read_leases(settings)).get(pipeline)
            if standing == before:  # else it was discarded after another was promoted
                raise


def _pinned(settings: Settings, found: Catalog, name: str, standing: Rollout | None) -> Reading:
    if standing is None:
        return Reading.pin(settings, found[name])
    parts: list[Part] = []
    for one in standing.earlier:
        parts.append(Part(Reading.pin(settings, found.of(name, one.version)), parts[-1].to_ms if parts else None, one.to_ms))
    return replace(Reading.pin(settings, found.of(name, standing.active)), earlier=tuple(parts))
