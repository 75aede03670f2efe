"""Declaring and loading pipelines: what is wrong is refused with file, line and the valid form, and the others load."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast import catalog
from hindcast.errors import BadNameError, PipelineError, UnknownPipelineError
from hindcast.pipeline import check_name, parse_columns, parse_duration, required_columns

GOOD = """
from hindcast import Table, Topic, Window, pipeline

@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp, ask double", key="ticker"),
    event_time="ts", watermark="10 seconds", window=Window("5 seconds", slide="1 second"),
    sink=Table("{name}", keys=["window", "ticker"]), version=1, shards=2,
)
def {name}(trades):
    return trades
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def test_a_good_module_loads(tmp_path: Path) -> None:
    """A declared function is found under its own name, with its file and line."""
    path = write(tmp_path, "one", GOOD.format(name="one"))
    (pipeline,) = catalog.load(tmp_path).values()
    assert (pipeline.name, pipeline.file, pipeline.watermark_delay) == ("one", str(path), timedelta(seconds=10))


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ('watermark="10 seconds"', 'watermark="10 parsecs"', "10 parsecs"),
        ('"5 seconds", slide="1 second"', '"1 second", slide="5 seconds"', "slide"),
        ('event_time="ts"', 'event_time="when"', "when"),
        ('event_time="ts"', 'event_time="ask"', "not a timestamp"),
        ('key="ticker"', 'key="symbol"', "symbol"),
        ("ask double", "ask money", "money"),
        ("ask double", "ask", "name type"),
        ("ask double", "ticker double", "twice"),
        ("ask double", "window double", "reserved"),
        ('keys=["window", "ticker"]', 'keys=["ticker"]', "lack 'window'"),
        ('keys=["window", "ticker"]', 'keys=["window"]', "use shards=1"),
        ("version=1", "version=0", "version"),
        ("shards=2", "shards=0", "shards"),
        ('Topic("trades"', 'Topic("tra/des"', "tra/des"),
        ('Table("one"', 'Table("..")' + '  # ("', ".."),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_place(tmp_path: Path, was: str, becomes: str, says: str) -> None:
    """Each mistake is named, with the file and the form to follow, and the good module beside it loads."""
    text = GOOD.format(name="one")
    assert was in text
    text = text.replace('Table("one", keys', 'Table("..", keys') if says == ".." else text.replace(was, becomes)
    path = write(tmp_path, "one", text)
    write(tmp_path, "two", GOOD.format(name="two"))
    found = catalog.load(tmp_path)
    assert list(found) == ["two"]
    error = found.errors[str(path)]
    assert isinstance(error, PipelineError)
    assert says in str(error)
    assert f"{path}:" in str(error)
    assert "Write it like this" in str(error)


@pytest.mark.parametrize(("text", "line"), [("import nowhere_to_be_found", 1), ("x = 1\n\n1 / 0", 3), ("def (", 1)])
def test_a_module_that_does_not_import_names_its_line(tmp_path: Path, text: str, line: int) -> None:
    """Whatever a module raises stays its own, with the line that raised it."""
    path = write(tmp_path, "bad", text)
    write(tmp_path, "two", GOOD.format(name="two"))
    found = catalog.load(tmp_path)
    assert list(found) == ["two"]
    assert f"{path}:{line}:" in str(found.errors[str(path)])


def test_a_name_declared_twice_is_refused_in_the_later_file(tmp_path: Path) -> None:
    """The first file keeps the name; the second is told where it is taken."""
    write(tmp_path, "a", GOOD.format(name="one"))
    later = write(tmp_path, "b", GOOD.format(name="one"))
    found = catalog.load(tmp_path)
    assert list(found) == ["one"]
    assert "a.py" in str(found.errors[str(later)])


def test_an_unknown_pipeline_lists_the_known_ones(tmp_path: Path) -> None:
    """Asking for a pipeline that is not there is an error of exit code 2 that names those that are."""
    write(tmp_path, "one", GOOD.format(name="one"))
    with pytest.raises(UnknownPipelineError, match="one") as caught:
        catalog.load(tmp_path)["two"]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 65, "é", "a\n"])
def test_names_that_could_leave_a_folder_are_refused(name: str) -> None:
    """Only short names of harmless characters become folders and tables."""
    with pytest.raises(BadNameError):
        check_name("pipeline", name)


@given(st.integers(0, 10_000), st.sampled_from(["millisecond", "second", "minute", "hour", "day"]), st.booleans())
def test_durations_are_read_as_written(number: int, unit: str, plural: bool) -> None:
    """A number and a unit, singular or plural, is that long."""
    assert parse_duration(f"{number} {unit}{'s' if plural else ''}") == timedelta(**{unit + "s": number})


def test_nested_types_keep_their_commas() -> None:
    """A struct's fields are not taken for columns."""
    assert parse_columns("a struct<x: int, y: map<string, int>>, b decimal(10, 2)") == {
        "a": "struct<x: int, y: map<string, int>>",
        "b": "decimal(10, 2)",
    }


def test_required_columns_are_those_declared_not_null() -> None:
    """NOT NULL is no part of a column's type, whatever its case and place; the other columns may be missing."""
    schema = "ticker string NOT NULL, ts timestamp, ask decimal(10, 2) not  null, venue struct<x: int NOT NULL>"
    assert parse_columns(schema) == {"ticker": "string", "ts": "timestamp", "ask": "decimal(10, 2)", "venue": "struct<x: int not null>"}
    assert required_columns(schema) == ["ticker", "ask"]
