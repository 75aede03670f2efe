"""Make the frame of one shard's query: the pipeline's topics, read as streams and measured, and its
transformation.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline, Topic
from hindcast.settings import Settings
from hindcast.spark import batch_metrics, kafka_source, parsed_records, transformation
from hindcast.tables.excluded_records import Excluded


class QueryFrame:
    """Makes the frame, ahead of time if its place is likely. One thread at a time calls it."""

    def __init__(self, spark: SparkSession, settings: Settings, pipeline: Pipeline) -> None:
        self._spark = spark
        self._settings = settings
        self._pipeline = pipeline
        # A start, floors, and the frame that was made for them.
        self._prepared: tuple[tuple[Offsets, Offsets], DataFrame] | None = None

    def prepare(self, start: Offsets, floors: Offsets) -> None:
        """Make the frame for this place, and keep it."""
        self._prepared = (start, floors), self._made(start, floors, {})

    def at(self, start: Offsets, floors: Offsets, excluded: Excluded) -> DataFrame:
        """The frame that begins at ``start``: the one that was prepared, if it was made for this place.

        :param floors: by partition, in epoch milliseconds: windows that end at or before it are left out
        :param excluded: the records that are left out
        """
        if self._prepared is not None and not excluded:
            place, frame = self._prepared
            if place == (start, floors):
                return frame
        return self._made(start, floors, excluded)

    def _made(self, start: Offsets, floors: Offsets, excluded: Excluded) -> DataFrame:
        topics = enumerate(self._pipeline.topics)
        parsed = [self._observed(index, topic, start, excluded) for index, topic in topics]
        return transformation.result(parsed, self._pipeline, floors)

    def _observed(self, index: int, topic: Topic, start: Offsets, excluded: Excluded) -> DataFrame:
        pipeline = self._pipeline
        raw = kafka_source.stream(self._spark, self._settings, pipeline, topic, start)
        return batch_metrics.observed(parsed_records.parse(raw, pipeline, topic, excluded), index)
