"""Compare an archive with its topic, record by record, over the offsets that both still hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.archive.archive_or_live import next_step
from hindcast.archive.copy_topic import STEP_OFFSETS
from hindcast.archive.erased_records import ERASED_HEADER
from hindcast.archive.manifest import Manifest
from hindcast.archive.table import ArchiveTable
from hindcast.errors import ArchiveFailedError, HindcastError, innermost
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.partitions import Offsets
from hindcast.settings import Settings
from hindcast.spark.kafka_source import archived_range, kafka_range
from hindcast.spark.session import cached
from hindcast.tables.event_log import EventKind, Severity

_log = structlog.get_logger(__name__)

#: Differing records that are named; all are counted.
SAMPLES = 20
#: What is compared of a record, in addition to its place.
COMPARED = ("timestamp", "timestampType", "headers", "key", "value")
_SAMPLE_COLUMNS = ("partition", "offset", "kind", "columns")


def verify(
    session: Callable[[], SparkSession],
    installation: Installation,
    topic: str,
    *,
    step_offsets: int = STEP_OFFSETS,
) -> dict[str, Any]:
    """Compare what both hold, in steps; a difference also leaves an event.

    :returns: {topic, equal, compared, differences, samples, start, end}. ``compared`` counts the offsets that
        have a record in either; one that was erased in the archive equals any. A sample is {partition,
        offset, kind, columns}; kind is ``missing`` in the archive, ``extra``, ``doubled``, or ``changed`` in
        these columns.
    :raises UnknownArchiveError: if the topic has no archive
    :raises ArchiveFailedError: if Spark failed
    """
    settings = installation.settings
    with TopicOffsets(settings) as offsets:
        manifest = ArchiveTable(settings, topic).manifest()
        start, end = _common(manifest, offsets.earliest(topic))
        found: dict[str, Any] = {"compared": 0, "differences": 0, "samples": []}
        reached = start
        while reached != end:
            stop = next_step(reached, end, step_offsets)
            try:
                _add(found, _differing(session(), settings, topic, reached, stop))
            except HindcastError:
                raise
            except Exception as error:
                raise ArchiveFailedError(action="Verifying", topic=topic, reason=innermost(error)) from error
            _log.info(
                "Compared a step.",
                topic=topic,
                end=stop,
                compared=found["compared"],
                differences=found["differences"],
            )
            reached = stop
    if found["differences"]:
        _record(installation, topic, found)
    return {
        "topic": topic,
        "equal": not found["differences"],
        **found,
        "start": _as_json(start),
        "end": _as_json(end),
    }


def _as_json(offsets: Offsets) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}


def _record(installation: Installation, topic: str, found: dict[str, Any]) -> None:
    differ = f"{found['differences']} of {found['compared']} records"
    installation.event_log.record(
        EventKind.ARCHIVE_DIFFERS,
        f"The archive of {topic} differs from the topic in {differ}.",
        severity=Severity.ERROR,
        cure=differs_cure(installation.settings, topic),
        topic=topic,
        samples=found["samples"],
    )


def differs_cure(settings: Settings, topic: str) -> str:
    url = ArchiveTable(settings, topic).url
    return (
        f"Another process wrote to {url} or to the topic's files: "
        "restore that table, or move it away and archive the topic again."
    )


def _common(manifest: Manifest, earliest: Offsets) -> tuple[Offsets, Offsets]:
    """[start, end) of each partition that both hold. A gap of the archive lies before what the topic still
    holds, so that only the archive's last range counts.
    """
    starts: Offsets = {}
    ends: Offsets = {}
    for partition, ranges in manifest.ranges.items():
        if partition not in earliest:
            continue
        first, end = ranges[-1]
        if earliest[partition] < end:
            starts[partition] = max(first, earliest[partition])
            ends[partition] = end
    return starts, ends


def _differing(
    spark: SparkSession, settings: Settings, topic: str, start: Offsets, end: Offsets
) -> DataFrame:
    """One row an offset: how often it stands in the archive and in the topic, and the columns in which those
    differ. What was erased in the archive differs in none.

    Digests are compared, so that only they travel between Spark's tasks.
    """
    begin = {partition: offset for partition, offset in start.items() if offset < end[partition]}
    archived = archived_range(spark, settings, topic, begin, end)
    held = kafka_range(spark, settings, topic, begin, end, headers=True)
    every = _digests("archive", archived).unionByName(_digests("topic", held))
    whole = ~F.bool_or("erased")
    changed = [F.when(whole & (F.min(name) != F.max(name)), F.lit(name)) for name in COMPARED]
    return every.groupBy("partition", "offset").agg(
        F.count_if(F.col("side") == "archive").alias("archived"),
        F.count_if(F.col("side") == "topic").alias("held"),
        F.array_compact(F.array(*changed)).alias("columns"),
    )


def _digests(side: str, records: DataFrame) -> DataFrame:
    digests = [_digest(name).alias(name) for name in COMPARED]
    erased = F.lit(side == "archive") & F.coalesce(F.col("headers")[0]["key"] == ERASED_HEADER, F.lit(False))
    return records.select("partition", "offset", F.lit(side).alias("side"), erased.alias("erased"), *digests)


def _digest(name: str) -> Column:
    value = F.col(name)
    if name == "timestamp":
        value = F.unix_micros(name)  # JSON would cut an instant to milliseconds
    # JSON writes bytes in base64 and leaves nulls out, so no two contents look alike.
    return F.sha2(F.to_json(F.struct(value.alias("v"))), 256)


def _add(found: dict[str, Any], compared: DataFrame) -> None:
    """Add the counts and some samples of one step."""
    kind = (
        F.when(F.col("archived") == 0, "missing")
        .when(F.col("held") == 0, "extra")
        .when(F.col("archived") > 1, "doubled")
        .when(F.size("columns") > 0, "changed")
    )
    with cached(compared.withColumn("kind", kind)) as rows:
        counts = rows.agg(F.count("*").alias("compared"), F.count("kind").alias("differences")).first()
        assert counts is not None
        found["compared"] += counts["compared"]
        found["differences"] += counts["differences"]
        wanted = SAMPLES - len(found["samples"])
        if counts["differences"] and wanted > 0:
            different = rows.where(F.col("kind").isNotNull()).orderBy("partition", "offset")
            for row in different.limit(wanted).collect():
                found["samples"].append({name: row[name] for name in _SAMPLE_COLUMNS})
