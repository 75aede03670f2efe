"""Read files of a Delta table by their names, as one version of the table had them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

#: Spark's option by which a path is no pattern, whatever characters it has.
_PATHS_AS_THEY_ARE = ("__globPaths__", "false")


def read_files(spark: SparkSession, url: str, schema: str, paths: Sequence[str]) -> DataFrame:
    """The rows of these files.

    :param url: of the table
    :param schema: the columns in Delta's JSON
    :param paths: within the table
    """
    # Delta writes a schema as Spark does.
    columns = StructType.fromJson(json.loads(schema))
    if not paths:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns).option(*_PATHS_AS_THEY_ARE)
    return reader.parquet(*[f"{url}/{path}" for path in paths])
