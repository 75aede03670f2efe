"""The folder of a job that runs recorded batches again, as Hadoop's file systems keep it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.errors import ScratchRefusedError
from hindcast.spark import scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_files_are_named_moved_and_given_times(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    """A plain path and a URL are the same folder; names are those within it."""
    folder = scratch.Folder(spark, f"{scheme}{tmp_path}/job {{1}} [a]*")
    folder.make("kept/_batch=1")
    folder.write("kept/_batch=1/b.parquet", b"\x00rows\xff")
    folder.write("kept/a.parquet", b"")
    assert folder.names("kept/_batch=*/*.parquet") == ["kept/_batch=1/b.parquet"]
    assert folder.names("kept/none-*") == []
    folder.move("kept/_batch=1/b.parquet", "kept/first.parquet")
    folder.set_time("kept/first.parquet", 1_700_000_000_000)
    folder.check_time("kept/first.parquet", 1_700_000_000_000)
    assert (tmp_path / "job {1} [a]*" / "kept" / "first.parquet").read_bytes() == b"\x00rows\xff"
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_keeps_no_times_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The order of the batches is that of their files' times: where a store gives its own, nothing is run."""
    folder = scratch.Folder(spark, str(tmp_path))
    folder.write("0.parquet", b"")
    with pytest.raises(ScratchRefusedError, match="Set HINDCAST_SCRATCH_URL"):
        folder.check_time("0.parquet", 1_700_000_000_000)


def test_a_job_s_folder_lasts_as_long_as_the_job(spark: SparkSession) -> None:
    """On a Spark master of this machine it lies with the other files of the process, which the next process
    removes if this one dies.
    """
    with scratch.folder(spark) as folder:
        path = Path(folder.url)
        assert path.parent == Path(str(spark.conf.get("spark.local.dir")))
        assert path.is_dir()
    assert not path.exists()
