"""Read files of a Delta table by their names, as one version of the table had them.

Delta's own reader learns the names by jobs of Spark, and each of those takes a young JVM half a second.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from hindcast.delta.open_table import open_table

#: Of more files Spark finds out by a job that they are there: Delta's own reader is as quick then.
FEW_FILES = 32
#: Spark's option by which a path is no pattern, whatever characters it has.
_PATHS_AS_THEY_ARE = ("__globPaths__", "false")


def read_partition(
    spark: SparkSession, url: str, storage_options: dict[str, str], column: str, value: str
) -> DataFrame:
    """The rows of one partition of a table of Hindcast's own, without the partition's column.

    :param column: the one by which the table is partitioned
    :raises StoreUnavailableError: if the table cannot be read
    """
    table = open_table(url, storage_options)
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    paths = sorted(file["path"] for file in files if file[f"partition.{column}"] == value)
    schema = json.loads(table.schema().to_json())
    schema["fields"] = [field for field in schema["fields"] if field["name"] != column]
    return read_files(spark, url, json.dumps(schema), paths)


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
