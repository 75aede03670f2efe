"""The record of a stream that others run: from files as Spark and Delta write them, without either."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from hindcast import Topic, Window, verified
from hindcast.errors import ForeignStreamError, StoreUnavailableError
from hindcast.foreign import checkpoint as checkpoint_files
from hindcast.foreign.record import record, shard_of
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.tables.ledger import LedgerRow

Factory = Callable[..., Settings]
QUERY = "8a6a0dd4-4bd7-4b9e-a3f1-0c9b8f0f9d11"
#: When batch 0 was planned; each later batch a second after the one before.
BEGAN_MS = 1_767_000_000_000


_DECLARED = """
from hindcast import Topic, verified

@verified(
    {place}, source=Topic("t", schema="ts timestamp"), event_time="ts", watermark="10 seconds",
)
def stats(rows):
    return rows
"""


@dataclass
class Query:
    """The files of a query that reads partition 0, ten records a batch, and of the table that it writes."""

    folder: Path
    query: str = QUERY
    topic: str = "t"
    version: int = 0
    batches: int = 0
    ends: dict[int, int] = field(default_factory=lambda: {0: 0})

    @property
    def table(self) -> Path:
        return self.folder / "table"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def begin(self) -> None:
        write_deltalake(str(self.table), pa.table({"n": [1]}))
        self._write("metadata", json.dumps({"id": self.query}))
        self._write("sources/0/0", "\0v1\n" + json.dumps({self.topic: {"0": 0}}))

    def commit(self, operation: str, parameters: Mapping[str, Any], at_ms: int) -> None:
        """A commit of the table that says so of itself."""
        self.version += 1
        info = {"timestamp": at_ms, "operation": operation, "operationParameters": parameters}
        path = self.table / "_delta_log" / f"{self.version:020d}.json"
        path.write_text(json.dumps({"commitInfo": info}))

    def plan(self, ends: Mapping[int, int] | None = None, *, watermark_ms: int = 0) -> None:
        """What Spark writes before a batch."""
        self.ends = dict(ends or {0: self.ends[0] + 10})
        head = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": self.at_ms}
        offsets = json.dumps({self.topic: {str(place): end for place, end in self.ends.items()}})
        self._write(f"offsets/{self.batches}", f"v1\n{json.dumps(head)}\n{offsets}")

    @property
    def at_ms(self) -> int:
        return BEGAN_MS + 1000 * self.batches

    def run(
        self,
        ends: Mapping[int, int] | None = None,
        *,
        watermark_ms: int = 0,
        next_ms: int = 0,
        in_table: bool = True,
    ) -> None:
        """One batch, from its plan to its end."""
        self.plan(ends, watermark_ms=watermark_ms)
        if in_table:
            parameters = {"outputMode": "Append", "queryId": self.query, "epochId": str(self.batches)}
            self.commit("STREAMING UPDATE", parameters, self.at_ms + 500)
        self._write(f"commits/{self.batches}", f"v1\n{json.dumps({'nextBatchWatermarkMs': next_ms})}")
        self.batches += 1

    def forget(self, kept: int) -> None:
        """Spark keeps the newest alone."""
        for number in range(self.batches - kept):
            for folder in ("offsets", "commits"):
                (self.checkpoint / folder / str(number)).unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    made = Query(tmp_path / "lake")
    made.begin()
    return made


@pytest.fixture
def installation(settings: Settings) -> Installation:
    return Installation(settings)


def declared(query: Query, *, windowed: bool = True, version: int = 1) -> Pipeline:
    """The stream's declaration."""
    window = Window("5 seconds") if windowed else None

    @verified(
        table=str(query.table),
        checkpoint=str(query.checkpoint),
        keys=["window"] if windowed else [],
        source=Topic("t", schema="ts timestamp"),
        event_time="ts",
        watermark="10 seconds",
        window=window,
        version=version,
    )
    def stats(rows: Any) -> Any:
        return rows

    return stats


def recorded(installation: Installation, pipeline: Pipeline) -> list[LedgerRow]:
    """The rows of the ledger, after one pass more."""
    record(installation, pipeline)
    return installation.ledger.batches(pipeline.name, pipeline.version, shard_of(pipeline))


def test_each_batch_is_a_row(query: Query, installation: Installation) -> None:
    """Its offsets follow those of the batch before, and a row is late by the watermark of that one."""
    query.run(next_ms=50_000)
    query.run(watermark_ms=50_000, next_ms=60_000)
    query.run({0: 20}, watermark_ms=60_000, next_ms=60_000)
    beginning, *rows = recorded(installation, declared(query))
    assert (beginning.batch, beginning.end_offsets, beginning.sink_version) == (0, {0: 0}, 0)
    assert [row.batch for row in rows] == [1, 2, 3]
    assert [row.start_offsets[0] for row in rows] == [0, 10, 20]
    assert [row.end_offsets[0] for row in rows] == [10, 20, 20]
    assert [row.late_watermark_ms for row in rows] == [0, 0, 50_000]
    assert [row.watermark_ms for row in rows] == [0, 50_000, 60_000]
    assert [row.max_event_ms for row in rows] == [60_000, 70_000, 70_000]
    assert [row.sink_version for row in rows] == [1, 2, 3]
    assert {row.worker for row in rows} == {QUERY}


def test_commits_of_others_are_none_of_its_batches(query: Query, installation: Installation) -> None:
    """A compaction hours before the next batch, another query, and a hand."""
    pipeline = declared(query, windowed=False)
    query.run()
    assert [row.sink_version for row in recorded(installation, pipeline)] == [0, 1]
    query.commit("OPTIMIZE", {"predicate": "[]"}, BEGAN_MS - 9_000_000)
    query.commit("STREAMING UPDATE", {"queryId": "another", "epochId": "7"}, BEGAN_MS)
    query.commit("DELETE", {"predicate": "[]"}, BEGAN_MS)
    query.run()
    assert [row.sink_version for row in recorded(installation, pipeline)] == [0, 1, 5]


def test_a_batch_in_the_table_is_recorded_once_it_is_finished(
    query: Query, installation: Installation
) -> None:
    """Before that its place in the table is final, but not yet its watermark."""
    pipeline = declared(query)
    query.run()
    query.plan()
    assert len(recorded(installation, pipeline)) == 2
    query.run()
    assert len(recorded(installation, pipeline)) == 3
    assert record(installation, pipeline).batches == 0


@pytest.mark.parametrize("windowed", [True, False])
def test_an_older_stream_begins_with_what_is_left(
    query: Query, installation: Installation, windowed: bool
) -> None:
    """Windows that rows before it may have fallen into are final from the beginning on."""
    for number in range(6):
        query.run(watermark_ms=10_000 * number, next_ms=10_000 * (number + 1))
    query.forget(kept=3)
    beginning, *rows = recorded(installation, declared(query, windowed=windowed))
    assert beginning.is_beginning
    assert (beginning.batch, beginning.end_offsets, beginning.sink_version) == (4, {0: 40}, 4)
    # The latest event so far is ten seconds after the watermark, and a window five seconds long.
    assert beginning.watermark_ms == (40_000 + 10_000 + 5_000 if windowed else 30_000)
    assert [row.batch for row in rows] == [5, 6]
    assert [row.late_watermark_ms for row in rows] == [30_000, 40_000]


def test_a_beginning_may_be_all_there_is(query: Query, installation: Installation) -> None:
    """The next pass goes on from it."""
    for _ in range(3):
        query.run()
    query.forget(kept=1)
    pipeline = declared(query, windowed=False)
    assert [row.batch for row in recorded(installation, pipeline)] == [3]
    query.run()
    rows = recorded(installation, pipeline)
    assert [(row.batch, row.sink_version) for row in rows] == [(3, 3), (4, 4)]


def test_what_spark_deleted_unrecorded_is_told(query: Query, installation: Installation) -> None:
    """A higher version begins its record again."""
    query.run()
    record(installation, declared(query))
    for _ in range(4):
        query.run()
    query.forget(kept=2)
    with pytest.raises(ForeignStreamError, match="Spark has deleted batch 1 ") as raised:
        record(installation, declared(query))
    assert "minBatchesToRetain" in str(raised.value)
    assert record(installation, declared(query, version=2)).batches == 1


def test_a_query_that_began_again_is_told(query: Query, installation: Installation) -> None:
    """Another id is another stream, whatever its batches are called."""
    query.run()
    record(installation, declared(query))
    (query.checkpoint / "metadata").write_text(json.dumps({"id": "another"}))
    with pytest.raises(ForeignStreamError, match="It began again"):
        record(installation, declared(query))


def test_a_new_partition_is_read_from_its_first_record(query: Query, installation: Installation) -> None:
    """As Spark reads it."""
    query.run()
    query.run({0: 20, 1: 5})
    _, _, last = recorded(installation, declared(query))
    assert (last.start_offsets, last.end_offsets) == ({0: 10, 1: 0}, {0: 20, 1: 5})


def test_a_table_that_names_no_batch_is_judged_by_windows_alone(
    query: Query, installation: Installation
) -> None:
    """Something else than Delta's sink wrote it: a function for each batch, say."""
    query.run(in_table=False)
    query.commit("MERGE", {}, BEGAN_MS)
    query.run(in_table=False)
    assert [row.sink_version for row in recorded(installation, declared(query))] == [1, 1, 1]
    with pytest.raises(ForeignStreamError, match="is a batch of the query"):
        record(installation, declared(query, windowed=False, version=2))


def test_what_is_no_checkpoint_of_it_is_told(query: Query, installation: Installation) -> None:
    """Another topic's, one that was never used, and files that are something else."""
    query.run()
    query.topic = "another"
    query.run()
    with pytest.raises(ForeignStreamError, match="it reads another, and not t alone"):
        record(installation, declared(query))
    (query.checkpoint / "offsets" / "1").write_text("v2\n{}")
    with pytest.raises(ForeignStreamError, match="batch 1 is not understood"):
        record(installation, declared(query))
    (query.checkpoint / "metadata").unlink()
    with pytest.raises(ForeignStreamError, match="no query has ever run with it"):
        record(installation, declared(query))
    query.checkpoint.rename(query.folder / "moved")
    with pytest.raises(ForeignStreamError, match="there is no such folder"):
        record(installation, declared(query))


def test_without_a_table_nothing_is_recorded(query: Query, installation: Installation) -> None:
    """The declaration is wrong, or the table was dropped."""
    query.run()
    query.table.rename(query.folder / "moved")
    with pytest.raises(ForeignStreamError, match="there is no Delta table"):
        record(installation, declared(query))


def test_a_store_that_does_not_answer_is_none_of_the_declarations_faults(
    query: Query, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again."""

    class Away:
        """Refuses whatever is asked."""

        def get_file_info(self, _: object) -> None:
            raise OSError("away")

        open_input_stream = get_file_info

    monkeypatch.setattr(checkpoint_files, "filesystem", lambda *_: Away())
    with pytest.raises(StoreUnavailableError, match="away"):
        record(installation, declared(query))


def test_it_is_not_run_from_here(settings_factory: Factory, query: Query, tmp_path: Path) -> None:
    """Whatever would start, stop or rewind it is refused; its listings are as those of any pipeline."""
    from hindcast import Hindcast

    folder = tmp_path / "pipelines"
    folder.mkdir()
    place = f'table="{query.table}", checkpoint="{query.checkpoint}"'
    (folder / "stats.py").write_text(_DECLARED.format(place=place))
    hindcast = Hindcast(settings_factory(pipelines_dir=folder))
    stats = hindcast.pipeline("stats")
    for change in (
        stats.pause,
        stats.resume,
        stats.drain,
        lambda: stats.reshard(2),
        lambda: stats.rebuild(["v1.g0.s0"]),
        lambda: stats.plan_rewind(None),
        lambda: stats.start_version(2, "earliest"),
    ):
        with pytest.raises(ForeignStreamError, match="does not run it"):
            change()
    assert hindcast.catalog.consumed() == []
    assert [(row["state"], row["table"]) for row in hindcast.versions()] == [("judged", str(query.table))]
    query.run()
    assert stats.record().batches == 1
    assert len(stats.checkpoints()) == 2


def test_before_a_verdict_all_is_recorded_and_filed(
    settings_factory: Factory, query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark is built for that once, for as many records as there are, and not if nothing is to be filed."""
    from hindcast import Hindcast
    from hindcast.foreign import late_rows

    folder = tmp_path / "pipelines"
    folder.mkdir()
    place = f'table="{query.table}", checkpoint="{query.checkpoint}"'
    (folder / "stats.py").write_text(_DECLARED.format(place=place))
    hindcast = Hindcast(settings_factory(pipelines_dir=folder))
    built: list[bool] = []
    filed: list[list[int]] = []

    def spark(_: Hindcast, name: str, *, quick: Callable[[], bool]) -> str:
        built.append(quick())
        return name

    def file(_spark: Any, _installation: Any, _pipeline: Any, batches: list[LedgerRow]) -> None:
        filed.append([row.batch for row in batches])

    monkeypatch.setattr(Hindcast, "spark", spark)
    monkeypatch.setattr(late_rows, "file_late_rows", file)
    stats = hindcast.pipeline("stats")
    stats._know_all_of_it()
    assert (built, filed) == ([], [])
    query.run()
    query.run({0: 10**6})
    stats._know_all_of_it()
    assert (built, filed) == ([False], [[1, 2]])
