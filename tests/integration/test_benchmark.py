"""A reference range, replayed as a batch and with its recorded batches, on real tables and a real topic."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable
from support.replayed_stream import ReplayedStream

from hindcast.errors import RangeNotYetConsumedError
from hindcast.partitions import offsets_to_json
from hindcast.replay.benchmark import newest_pair, run_reference
from hindcast.replay.run_replay import Replayed
from hindcast.replay.run_table import Runs
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger_history import History
from hindcast.tables.run_states import RunKind


def rows(run: Replayed, answer: str) -> set[tuple[Any, ...]]:
    found = (
        DeltaTable(run.row["hindcast_url"]).to_pyarrow_table(filters=[("answer", "=", answer)]).to_pylist()
    )
    return {
        (row["window"]["end"], row["ticker"], row["min_ask"], row["trades"], row["avg_ask"]) for row in found
    }


def test_a_reference_range_is_replayed_in_both_ways(scene: ReplayedStream) -> None:
    """Both are kept with what they cost and which versions ran; each row that the batch has online, the
    re-execution has too.
    """
    history = History.of(scene.stream.ledger)
    half = {p: end // 4 for p, end in history.committed.items()}
    pipeline = replace(scene.pipeline, reference=(offsets_to_json(history.first), offsets_to_json(half)))
    batch, again = run_reference(lambda: scene.spark, scene.installation, pipeline)
    assert (batch.row["kind"], again.row["kind"]) == ("benchmark", "re-execution")
    for run in (batch, again):
        assert run.row["rows_per_second"] > 0 and run.row["input_rows"] == sum(half.values())
        assert {"pyspark", "hindcast"} <= json.loads(run.row["versions"]).keys()
    online = rows(batch, "online")
    assert online and online <= rows(again, "hindsight")
    runs = Runs(ControlTables(scene.settings))
    newer = {**batch.row, "run_id": "newer", "versions": '{"pyspark": "9.9"}'}
    runs.append(newer)
    assert newest_pair(
        pipeline.name, [newer, *runs.recent(pipeline.name, RunKind.BENCHMARK, 5, without="newer")]
    ) == (batch.run_id, "newer")


def test_a_version_that_has_streamed_nothing_is_told_so(scene: ReplayedStream) -> None:
    """Its ledger holds no batch to run again."""
    pipeline = replace(
        scene.pipeline,
        version=2,
        reference=('{"0": 0, "1": 0, "2": 0, "3": 0}', '{"0": 9, "1": 9, "2": 9, "3": 9}'),
    )
    with pytest.raises(RangeNotYetConsumedError, match="version 2 has committed no batch"):
        run_reference(lambda: scene.spark, scene.installation, pipeline)
