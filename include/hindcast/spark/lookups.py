"""Read the Delta tables that pipelines join.

A lookup is not ours: any engine may have written it, with any feature of Delta. So it is read through Delta's
own library for Spark, never through delta-rs: that knows fewer features.
"""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.errors import LookupUnavailableError
from hindcast.pipeline import Lookup

#: The session's setting that names the folder of the lookups.
LOOKUPS = "spark.hindcast.lookups"


def read_lookup(spark: SparkSession, lookup: Lookup) -> DataFrame:
    """The lookup's rows in the version that the pipeline names.

    :raises LookupUnavailableError: if there is no such table, or it has no such version any more
    """
    url = lookup_url(spark, lookup)
    if not DeltaTable.isDeltaTable(spark, url):
        raise LookupUnavailableError(
            lookup=lookup.name,
            version=lookup.version,
            url=url,
            problem="there is no Delta table",
            cure="Write the table, or correct its name in the pipeline.",
        )
    reader = spark.read.format("delta").option("versionAsOf", str(lookup.version))
    try:
        return reader.load(url)
    except AnalysisException as error:
        history = DeltaTable.forPath(spark, url).history()
        oldest, newest = history.agg(F.min("version"), F.max("version")).head() or (None, None)
        raise LookupUnavailableError(
            lookup=lookup.name,
            version=lookup.version,
            url=url,
            problem=f"the table's log has the versions {oldest} to {newest}",
            cure="Name one of them, under a new version of the pipeline.",
        ) from error


def lookup_url(spark: SparkSession, lookup: Lookup) -> str:
    """Where the table is: a URL or path as it stands, a bare name below the folder of the lookups."""
    if "/" in lookup.name:
        return lookup.name
    return f"{spark.conf.get(LOOKUPS)}/{lookup.name}"
