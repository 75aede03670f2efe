"""The served table always has what readers get, on real Delta tables: whatever is committed, joined, corrected
and promoted, whoever dies in the middle, and however many publish at once.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from hypothesis import HealthCheck, given
from hypothesis import settings as budget
from hypothesis import strategies as st
from support.crashes import CrashError, crash_at
from support.served_world import LAST, SCHEMA, WINDOW, World, window

from hindcast.delta.column_statistics import statistics_of_file
from hindcast.errors import ServedTableRefusedError
from hindcast.pipeline import Served, Table
from hindcast.processes import crash_points
from hindcast.serving import served_table
from hindcast.serving.corrected_windows import RUN_ID
from hindcast.settings import Settings

STEPS = ["served.2", "served.3", "served.4", "served.5"]


@pytest.fixture
def world(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(settings)
    monkeypatch.setattr(served_table, "newest", made.newest)
    return made


def commits(url: str) -> int:
    return DeltaTable(url).version()


def test_a_correction_and_a_promotion_are_one_commit_each(world: World) -> None:
    """And so is the way back. Without news there is none."""
    publisher = world.publisher()
    world.append(1, [1, 2, 3, 4])
    world.append(1, [5, 6])
    world.append(2, [3, 4, 5, 6], 7)
    first = publisher.publish()
    assert first is not None
    assert (first.commits, first.files_added, first.files_removed) == (1, 2, 0)
    world.check()
    for change in (
        lambda: world.correct(1, 1, 3, 5),
        lambda: world.promote(4),
        lambda: world.correct(2, 4, 5, 6),
        world.back_out,
    ):
        before = commits(world.url)
        change()
        done = publisher.publish()
        assert done is not None
        assert (done.commits, commits(world.url) - before) == (1, 1)
        world.check()
        again = world.publisher().publish()
        assert again is not None
        assert again.commits == 0


def test_files_are_linked_on_a_local_disk(world: World) -> None:
    """So the table takes no room for what needs no change."""
    world.append(1, [1, 2])
    world.publisher().publish()
    [path] = [Path(uri) for uri in DeltaTable(world.url).file_uris()]
    assert path.stat().st_nlink == 2


def test_joined_files_are_no_change(world: World) -> None:
    """Two joins between two looks, with appends in between, and a correction of a joined file."""
    publisher = world.publisher()
    world.append(1, [1])
    publisher.publish()
    world.append(1, [2])
    world.join(1)
    world.append(1, [3])
    world.append(1, [4])
    world.join(1)
    world.correct(1, 1, 2, 3)
    publisher.publish()
    world.check()
    quiet = 0
    for entry in Path(world.url, "_delta_log").glob("*.json"):
        quiet += '"dataChange":false' in entry.read_text()
    assert quiet == 2


def test_joined_files_of_which_windows_were_corrected_meanwhile(world: World) -> None:
    """The correction is a change, and the join is none."""
    world.append(1, [1])
    world.append(1, [2, 3])
    publisher = world.publisher()
    publisher.publish()
    world.join(1)
    world.correct(1, 1, 2, 3)
    publisher.publish()
    world.check()


def test_a_log_that_lost_where_files_were_joined(world: World) -> None:
    """Then the files are replaced, and the rows are right."""
    world.append(1, [1])
    world.append(1, [2])
    world.publisher().publish()
    world.join(1)
    world.append(1, [3])
    sink = DeltaTable(world.settings.sink(world.pipelines[1]))
    sink.create_checkpoint()
    for version in range(sink.version()):
        Path(sink.table_uri.removeprefix("file://"), f"_delta_log/{version:020d}.json").unlink()
    world.publisher().publish()
    world.check()


ACTION = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 2), st.integers(0, LAST - 1), st.integers(1, 3)),
    st.tuples(st.just("join"), st.integers(1, 2), st.just(0), st.just(0)),
    st.tuples(st.just("correct"), st.integers(1, 2), st.integers(0, LAST - 1), st.integers(1, 4)),
    st.tuples(st.just("promote"), st.integers(1, LAST), st.just(0), st.just(0)),
    st.tuples(st.just("back out"), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.just("publish"), st.integers(0, len(STEPS)), st.integers(1, 2), st.just(0)),
)


@given(actions=st.lists(ACTION, min_size=3, max_size=14))
@budget(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, actions: list[Any]
) -> None:
    """Publishers die at any step. The next one, with or without what it remembers, makes the table right."""
    home = tmp_path_factory.mktemp("world")
    world = World(Settings(home=home, tables_url=str(home / "tables")))
    monkeypatch.setattr(served_table, "newest", world.newest)
    publisher = world.publisher()
    for run, (kind, which, first, more) in enumerate(actions, start=1):
        if kind == "append":
            world.append(which, list(range(first + 1, min(first + more, LAST) + 1)), run)
        elif kind == "join":
            world.join(which)
        elif kind == "correct":
            world.correct(which, first, min(first + more, LAST), run)
        elif kind == "promote":
            world.promote(which)
        elif kind == "back out":
            world.back_out()
        elif which == len(STEPS):
            publisher.publish()
            world.check()
        else:
            crash_at(monkeypatch, STEPS[which], first)
            try:
                publisher.publish()
            except CrashError:
                publisher = world.publisher()
            crash_at(monkeypatch, "", 1)
    publisher.publish()
    world.check()


@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_that_slept_takes_nothing_back(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, *, corrects: bool
) -> None:
    """Whatever it had read before another one published, it reads again."""
    world.append(1, [1, 2])
    world.publisher().publish()
    world.append(1, [3])
    awake: list[Callable[[], None]] = []

    def meanwhile() -> None:
        if corrects:
            world.correct(1, 0, 2, 9)
        world.append(1, [4])
        world.publisher().publish()

    awake.append(meanwhile)

    def reach(reached: str) -> None:
        if reached == step and awake:
            awake.pop()()

    monkeypatch.setattr(served_table, "reach", reach)
    world.publisher().publish()
    world.check()
    seen = [sum(world.rows(version).values()) for version in range(1, commits(world.url) + 1)]
    assert seen == sorted(seen), "rows that readers had are gone"


def test_partitions_comments_and_properties(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are declared, and as they are declared later."""
    schema = pa.schema([*SCHEMA, ("day", pa.date32())])
    served = Served(
        partition_by=("day", "k"),
        comment="What it is",
        comments={"n": "How many"},
        properties={"delta.enableChangeDataFeed": "true"},
    )
    world = World(settings, served, (schema, schema))
    monkeypatch.setattr(served_table, "newest", world.newest)
    rows = pa.Table.from_pylist(
        [
            {"window": window(1), "k": "a b/c", "n": 1, "day": date(2026, 1, 1)},
            {"window": window(2), "k": None, "n": 2, "day": date(2026, 1, 2)},
            {"window": window(3), "k": "", "n": 3, "day": None},
        ],
        schema,
    )
    write_deltalake(world.settings.sink(world.pipelines[1]), rows, mode="append")
    world.publisher().publish()
    assert sorted(DeltaTable(world.url).to_pyarrow_table()["n"].to_pylist()) == [1, 2, 3]
    world.correct(1, 0, 1, 3)
    world.publisher().publish()
    table = DeltaTable(world.url)
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [2, 3, 103]
    assert table.metadata().partition_columns == ["day", "k"]
    assert table.metadata().description == "What it is"
    assert table.metadata().configuration["delta.enableChangeDataFeed"] == "true"
    assert next(one for one in table.schema().fields if one.name == "n").metadata == {"comment": "How many"}
    kinds = Counter(pa.table(table.load_cdf(1).read_all())["_change_type"].to_pylist())
    assert kinds == {"insert": 6, "delete": 3} or kinds["insert"] - kinds["delete"] == 3
    later = replace(served, comment="Other", comments={"n": "Rows"})
    world.pipelines[1].sink = Table("s1", served=later)
    world.publisher().publish()
    assert DeltaTable(world.url).metadata().description == "Other"
    world.pipelines[1].sink = Table("s1", served=Served())
    with pytest.raises(ServedTableRefusedError, match=r"partitioned by \['day', 'k'\]"):
        world.publisher().publish()


def test_a_new_version_brings_a_column(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is null in the windows of the version before. A column of another type is refused."""
    wider = pa.schema([*SCHEMA, ("m", pa.float64())])
    world = World(settings, schemas=(SCHEMA, wider))
    monkeypatch.setattr(served_table, "newest", world.newest)
    world.append(1, [1, 2, 3])
    world.append(2, [2, 3, 4], 5)
    publisher = world.publisher()
    publisher.publish()
    world.promote(2)
    publisher.publish()
    world.check()
    assert DeltaTable(world.url).to_pyarrow_table().column_names == ["window", "k", "n", RUN_ID, "m"]
    other = World(
        Settings(home=settings.home / "b"),
        schemas=(SCHEMA, pa.schema([("window", WINDOW), ("n", pa.string())])),
    )
    monkeypatch.setattr(served_table, "newest", other.newest)
    other.publisher().publish()
    other.promote(2)
    with pytest.raises(ServedTableRefusedError, match="its column n is"):
        other.publisher().publish()


def test_a_sink_whose_files_do_not_tell_its_rows_is_refused(world: World) -> None:
    """A person must mend that, so it is another error than that of a table which is not there yet."""
    world.append(1, [1])
    world.publisher().publish()
    DeltaTable(world.settings.sink(world.pipelines[1])).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    world.append(1, [2])
    with pytest.raises(ServedTableRefusedError, match="has deletion vectors"):
        world.publisher().publish()


@pytest.mark.parametrize("joined", [False, True])
def test_a_table_that_is_gone_is_made_again(world: World, *, joined: bool) -> None:
    """By the same publisher, whether or not there is news: what it remembers is of another table."""
    publisher = world.publisher()
    world.append(1, [1])
    world.append(1, [2])
    publisher.publish()
    shutil.rmtree(world.url)
    if joined:
        world.join(1)
    publisher.publish()
    world.check()


def test_what_others_write_is_taken_out(world: World) -> None:
    """And what they removed is there again."""
    publisher = world.publisher()
    world.append(1, [1, 2])
    publisher.publish()
    write_deltalake(world.url, DeltaTable(world.url).to_pyarrow_table().slice(0, 1), mode="overwrite")
    publisher.publish()
    world.check()


def test_an_active_version_without_a_served_table(world: World) -> None:
    """There is nothing to do."""
    world.pipelines[1].sink = Table("s1")
    assert world.publisher().publish() is None
    assert not Path(world.url).exists()


def test_statistics_of_all_columns(tmp_path: Path) -> None:
    """From the file's own. A reader that skips files by them must find every row."""
    rows = pa.table(
        {
            "window": pa.array([window(1), window(5)], WINDOW),
            "text": ["b", None],
            "long": ["x" * 101, "y"],
            "number": [3, -1],
            "day": [date(2026, 1, 1), date(2025, 1, 1)],
            "ratio": [1.5, float("nan")],
            "truth": [True, False],
            "list": [[1], []],
            "late": pa.array([None, 1 << 60], pa.timestamp("us", tz="UTC")),
        }
    )
    path = tmp_path / "f.parquet"
    pq.write_table(rows, path, row_group_size=1)
    found = statistics_of_file(pq.read_metadata(path), rows.schema)
    ends = {"start": "1970-01-01T00:00:00.000Z", "end": "1970-01-01T00:00:00.001Z"}
    assert found["numRecords"] == 2
    assert found["minValues"] == {"window": ends, "text": "b", "number": -1, "day": "2025-01-01"}
    assert found["maxValues"]["window"]["end"] == "1970-01-01T00:00:00.005Z"
    assert found["maxValues"]["number"] == 3
    assert found["nullCount"] == {
        "window": {"start": 0, "end": 0},
        "text": 1,
        "long": 0,
        "number": 0,
        "day": 0,
        "ratio": 0,
        "truth": 0,
        "late": 1,
    }


def test_the_steps_are_crash_points() -> None:
    """Each step that a test dies at is one that the code reaches."""
    text = Path(served_table.__file__).read_text()
    assert all(f'reach("{step}")' in text for step in STEPS)
    assert crash_points._step == ""
