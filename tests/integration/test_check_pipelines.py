"""Every mistake of every file of pipelines, found without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hindcast import catalog
from hindcast.cli.main import run
from hindcast.settings import project_root
from hindcast.spark.check_pipelines import check_catalog

pytestmark = pytest.mark.integration

_DECLARED = """
from pyspark.sql import functions as F
from hindcast import Table, Topic, Window, pipeline


@pipeline(
    source=Topic("t", schema="a string, n int, ts timestamp", key="a"), event_time="ts", watermark="1 second",
    window=Window("1 minute"), sink=Table("{name}", keys=["window", "a"]), version=1,
)
def {name}(rows):
    return rows.groupBy("window", "a").agg({what})
"""


def test_every_example_is_sound(spark: SparkSession) -> None:
    """The pipelines that come with the platform."""
    declared = catalog.load(project_root() / "include" / "pipelines")
    found = list(check_catalog(spark, declared))
    assert [row for row in found if row["state"] != "sound"] == []
    assert len(found) == len(declared.every())


def test_each_mistake_is_told_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    """What does not load, what cannot be analysed, and what differs from run to run."""
    for name, what in {
        "good": "F.sum('n').alias('n')",
        "wrong": "F.sum('m').alias('m')",
        "unsure": "F.first('n').alias('n')",
    }.items():
        (tmp_path / f"{name}.py").write_text(_DECLARED.format(name=name, what=what))
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    found = list(check_catalog(spark, catalog.load(tmp_path)))
    assert {row["pipeline"] or Path(row["place"]).name: row["state"] for row in found} == {
        "broken": "refused",
        "good": "sound",
        "wrong": "refused",
        "unsure": "suspect",
    }
    said = {row["pipeline"]: row["problem"] for row in found}
    assert "`m` cannot be resolved" in said["wrong"]
    assert "first() depends on the order of rows" in said["unsure"]
    places = {Path(row["place"]).name for row in found if row["pipeline"] in {"good", "wrong", "unsure"}}
    assert places == {"good.py:6", "wrong.py:6", "unsure.py:6"}


def test_a_new_project_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    """`init` twice keeps what was changed; its pipeline is sound, and both DAG files are Python."""
    monkeypatch.chdir(tmp_path)
    assert run(["init"]) == 0
    written = capsys.readouterr().out.split()
    assert sorted(written) == [
        ".gitignore",
        "dags/hindcast_dags.py",
        "dags/load_errors.py",
        "pipelines/trades_a_minute.py",
    ]
    (tmp_path / ".gitignore").write_text("mine\n")
    assert run(["init"]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / ".gitignore").read_text() == "mine\n"
    (row,) = check_catalog(spark, catalog.load(tmp_path / "pipelines"))
    assert (row["pipeline"], row["state"]) == ("trades_a_minute", "sound")
    for file in (tmp_path / "dags").glob("*.py"):
        compile(file.read_text(), file, "exec")
