"""Read a pipeline's results: one view, pinned to a version of the stream's table and one of the corrections.

Each window comes from one of the two tables, so that no window is missing, doubled or half replaced,
whatever is written meanwhile. The view reads the table of the pipeline's active version. The active version
may have begun too late for some windows: these come from the versions before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.clock import utc_from_ms
from hindcast.delta.arrow_dataset import arrow_dataset, may_meet_all
from hindcast.delta.older_log import is_in_older_log, open_version
from hindcast.delta.open_table import find_table
from hindcast.errors import BadInputError
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.serving.corrected_windows import RUN_ID, WINDOW_END, Corrected, Corrections
from hindcast.settings import Settings
from hindcast.shards.active_version import Rollout, rollouts
from hindcast.tables.sink_files import files_of, hides_rows

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Reading:
    """The results of one pipeline at one moment.

    The columns are those of the sink, and ``_run_id``: the run whose answer the row is, null if it is the
    stream's.
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
        cls,
        settings: Settings,
        pipeline: Pipeline,
        sink_version: int | None = None,
        corrections_version: int | None = None,
    ) -> Reading:
        """The newest versions, or these (-1: without corrections).

        :raises BadInputError: if there is no table yet
        """
        corrections = Corrections(settings, pipeline)
        url = settings.sink(pipeline)
        corrected = corrections.current(corrections_version)
        table = find_table(url, settings.storage_options)
        if table is None:
            cure = f"It is made when the pipeline is first consumed: `hindcast resume {pipeline.name}`."
            raise BadInputError(problem=f"There is no table {url} yet", cure=cure)
        if sink_version is None:
            sink_version = table.version()
        return cls(pipeline, url, sink_version, corrections, corrected, settings.storage_options)

    def parts(self) -> Iterator[tuple[Reading, int | None, int | None]]:
        """Each version that windows come from, with the bounds of these: after < end <= to, in epoch
        milliseconds, None for none. The active version comes last.
        """
        for part in self.earlier:
            yield part.reading, part.after_ms, part.to_ms
        yield self, self._after_ms, None

    @property
    def _after_ms(self) -> int | None:
        """Windows that end after it are of this version; None if all are."""
        if not self.earlier:
            return None
        return self.earlier[-1].to_ms

    def spark(self, session: SparkSession, ends_ms: tuple[int, int] | None = None) -> DataFrame:
        """The view as a Spark frame. The session must have Delta (see :mod:`hindcast.spark.session`).

        :param ends_ms: only the windows that end after the first of these and not after the second
        """
        from pyspark.sql import functions as F

        every = self._all_versions(session, ends_ms)
        if ends_ms is None:
            return every
        after_ms, to_ms = ends_ms
        end_us = F.unix_micros("window.end")
        return every.where((end_us > after_ms * 1000) & (end_us <= to_ms * 1000))

    def _all_versions(self, session: SparkSession, ends_ms: tuple[int, int] | None) -> DataFrame:
        from pyspark.sql import functions as F

        own = self._spark(session, ends_ms)
        if self._after_ms is None:
            return own
        end_us = F.unix_micros("window.end")
        frames = [part.reading.spark(session).where(part.holds(end_us)) for part in self.earlier]
        frames.append(own.where(end_us > self._after_ms * 1000))
        every = frames[0]
        for frame in frames[1:]:
            every = every.unionByName(frame, allowMissingColumns=True)
        columns = [F.col(f"`{name}`") for name in own.columns]
        return every.select(*columns)

    def _spark(self, session: SparkSession, ends_ms: tuple[int, int] | None) -> DataFrame:
        """The windows of this version, corrected; with bounds, at least those within them."""
        from pyspark.sql import functions as F

        stream = self._stream(session, ends_ms)
        stream = stream.withColumn(RUN_ID, F.lit(None).cast("string"))
        if not self.corrected.ranges:
            return stream
        corrections = _delta_frame(session, self.corrections.url, self.corrected.version)
        columns = [f"`{name}`" for name in stream.columns]
        kept = stream.where(~self._inside(F.unix_micros("window.end")))
        corrected = corrections.where(self._inside(F.col(WINDOW_END)))
        return kept.unionByName(corrected.select(*columns))

    def _stream(self, session: SparkSession, ends_ms: tuple[int, int] | None) -> DataFrame:
        """The stream's own table at the version; with bounds, at least the windows within them."""
        from hindcast.spark.delta_files import FEW_FILES, read_files

        table = open_version(self.sink_url, self.storage_options, self.sink_version)
        if is_in_older_log(self.sink_url, self.sink_version):
            paths = sorted(files_of(table).paths)
        elif ends_ms is None or hides_rows(table):
            return _delta_frame(session, self.sink_url, self.sink_version)
        else:
            paths = files_with_windows(table, *ends_ms)
            if len(paths) > FEW_FILES:
                return _delta_frame(session, self.sink_url, self.sink_version)
        return read_files(session, self.sink_url, table.schema().to_json(), paths)

    def arrow(self) -> pa.Table:
        """The view as one Arrow table."""
        own = self._arrow()
        if self._after_ms is None:
            return own
        end_us = pc.field("window", "end").cast(pa.int64())
        tables = [part.reading.arrow().filter(part.holds(end_us)) for part in self.earlier]
        tables.append(own.filter(end_us > self._after_ms * 1000))
        return pa.concat_tables(tables, promote_options="default").select(own.column_names)

    def _arrow(self) -> pa.Table:
        """The windows of this version, corrected."""
        sink = open_version(self.sink_url, self.storage_options, self.sink_version)
        stream = arrow_dataset(sink, folder=self.sink_url)
        columns: dict[str, Any] = {name: pc.field(name) for name in stream.schema.names}
        no_run = pc.scalar(pa.scalar(None, pa.string()))
        columns_of_stream = {**columns, RUN_ID: no_run}
        if not self.corrected.ranges:
            return stream.to_table(columns=columns_of_stream)
        corrections = arrow_dataset(self.corrections.open(self.corrected.version))
        end_us = pc.field("window", "end").cast(pa.int64())
        kept = stream.to_table(columns=columns_of_stream, filter=~self._inside(end_us))
        corrected = corrections.to_table(
            columns={**columns, RUN_ID: pc.field(RUN_ID)}, filter=self._inside(pc.field(WINDOW_END))
        )
        return pa.concat_tables([kept, corrected.cast(kept.schema)])

    def pandas(self) -> pd.DataFrame:
        """The view as a pandas frame."""
        frame: pd.DataFrame = self.arrow().to_pandas()
        return frame

    def _inside(self, end_us: Any) -> Any:
        """Whether a window is corrected, as an expression of Spark or of Arrow over its end in epoch
        microseconds.
        """
        found = None
        for after_ms, to_ms in self.corrected.intervals():
            one = (end_us > after_ms * 1000) & (end_us <= to_ms * 1000)
            if found is None:
                found = one
            else:
                found |= one
        return found


@dataclass(frozen=True)
class Part:
    """What readers get from a version that is not active any more: the windows with ``after_ms`` < end <=
    ``to_ms``.
    """

    reading: Reading
    after_ms: int | None
    to_ms: int

    def holds(self, end_us: Any) -> Any:
        """Whether a window is one of them, as an expression of Spark or of Arrow over its end in epoch
        microseconds.
        """
        until = end_us <= self.to_ms * 1000
        if self.after_ms is None:
            return until
        return until & (end_us > self.after_ms * 1000)


def read(pipeline: str, settings: Settings | None = None) -> Reading:
    """The newest results of a pipeline, in its active version.

    Take them by ``read("stock_stats").pandas()``, ``.arrow()`` or ``.spark(session)``.

    One read of one row says which version is active and where older windows come from.

    :raises UnknownPipelineError: if there is no such pipeline
    :raises UnknownVersionError: if no file declares a version that readers get
    :raises BadInputError: if it has no table yet
    """
    return newest(Installation(settings), pipeline)


def newest(installation: Installation, pipeline: str) -> Reading:
    """The newest results of a pipeline of an installation; see :func:`read`."""
    rollout = _rollout(installation, pipeline)
    while True:
        try:
            return _pinned(installation, pipeline, rollout)
        except BadInputError:
            before = rollout
            rollout = _rollout(installation, pipeline)
            # If it differs, another version was promoted and the table of the former one discarded: retry.
            if rollout == before:
                raise


def _rollout(installation: Installation, pipeline: str) -> Rollout | None:
    return rollouts(installation.lease_table.leases_if_any()).get(pipeline)


def _pinned(installation: Installation, name: str, rollout: Rollout | None) -> Reading:
    settings = installation.settings
    found = installation.catalog
    if rollout is None:
        return Reading.pin(settings, found[name])
    parts: list[Part] = []
    after_ms: int | None = None
    for one in rollout.earlier:
        reading = Reading.pin(settings, found.of(name, one.version))
        parts.append(Part(reading, after_ms, one.to_ms))
        after_ms = one.to_ms
    active = Reading.pin(settings, found.of(name, rollout.active))
    return replace(active, earlier=tuple(parts))


def files_with_windows(table: DeltaTable, after_ms: int, to_ms: int) -> list[str]:
    """The files of a sink that may have a window which ends after the one instant and not after the other."""
    files = pa.table(table.get_add_actions(flatten=True))
    within = [("window.end", ">", utc_from_ms(after_ms)), ("window.end", "<=", utc_from_ms(to_ms))]
    found: list[str] = files.filter(may_meet_all(files, [within]))["path"].to_pylist()
    return sorted(found)


def _delta_frame(session: SparkSession, url: str, version: int) -> DataFrame:
    return session.read.format("delta").option("versionAsOf", str(version)).load(url)
