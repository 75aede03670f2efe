"""Tables that pipelines join, read by Delta's own library for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from hindcast.errors import LookupUnavailableError
from hindcast.pipeline import Lookup
from hindcast.spark.lookups import LOOKUPS, read_lookup


@pytest.fixture
def countries(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A lookup of two versions below the session's folder of lookups."""
    folder = tmp_path / "lookups"
    table = folder / "countries"
    write_deltalake(table, pa.table({"code": ["pt"]}))
    write_deltalake(table, pa.table({"code": ["is"]}), mode="append")
    before = spark.conf.get(LOOKUPS, "")
    spark.conf.set(LOOKUPS, str(folder))
    try:
        yield table
    finally:
        spark.conf.set(LOOKUPS, before)


@pytest.mark.parametrize(("version", "codes"), [(0, ["pt"]), (1, ["is", "pt"])])
def test_a_lookup_is_read_in_its_version(
    spark: SparkSession, countries: Path, version: int, codes: list[str]
) -> None:
    """The rows are those of the named version, by the table's name as well as by its path."""
    for name in ("countries", str(countries)):
        rows = read_lookup(spark, Lookup(name, version)).collect()
        assert sorted(row.code for row in rows) == codes


def test_a_table_of_deletion_vectors_is_read(spark: SparkSession, countries: Path) -> None:
    """A feature that the platform's own writer does not know is no obstacle: rows deleted by a vector are not
    there.
    """
    properties = "'delta.enableDeletionVectors' = true"
    spark.sql(f"ALTER TABLE delta.`{countries}` SET TBLPROPERTIES ({properties})")
    table = SparkDeltaTable.forPath(spark, str(countries))
    table.delete("code = 'pt'")
    newest = table.history(1).head()
    rows = read_lookup(spark, Lookup("countries", newest.version)).collect()
    assert [row.code for row in rows] == ["is"]


def test_a_version_that_is_not_there_is_named_with_those_that_are(
    spark: SparkSession, countries: Path
) -> None:
    """The error says which versions the table has, and what to do."""
    assert DeltaTable(countries).version() == 1
    with pytest.raises(
        LookupUnavailableError,
        match=r"countries cannot be read in version 7 .* has the versions 0 to 1\. Name one",
    ):
        read_lookup(spark, Lookup("countries", 7))


def test_a_table_that_is_not_there_is_named(spark: SparkSession, countries: Path) -> None:
    """The error says that there is no table and what to do."""
    with pytest.raises(
        LookupUnavailableError,
        match=r"cities cannot be read in version 0 .* there is no Delta table\. Write the table",
    ):
        read_lookup(spark, Lookup("cities", 0))
