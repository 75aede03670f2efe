"""A rewound pipeline reads again what it had read, and its tables hold each row once: nothing of before is
doubled or lost.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.live_stream import check_answer, check_filed, delete_records, ledger, sink_rows
from support.shard_harness import CrashError, Shard, crash_at, parts
from support.simulated_stream import Clockwork, Simulated
from support.workload_harness import Workload, at

from hindcast.errors import LeaseLostError, RewindRefusedError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import ShardState
from hindcast.partitions import app_id
from hindcast.recovery import rewind
from hindcast.recovery.plan_rewind import RewindPlan, make_plan
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import run_replay
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState
from hindcast.shards.resharding import of_version
from hindcast.shards.shard_row import awaiting_rewind
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import Fence
from hindcast.tables.ledger import Ledger
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.judge import judge

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]


@pytest.fixture
def shard(shard: Shard) -> Shard:
    """A shard whose lease is in the table that a rewind reads."""
    shard.store = LeaseTable(shard.settings)
    return shard


def pause(shard: Shard) -> None:
    """Want the pipeline paused, and have its shard given up as a worker does after its last batch."""
    states = DesiredStates(shard.store)
    states.declare(shard.pipeline, 1)
    states.set_state(shard.pipeline.name, DesiredState.PAUSED)
    held = [
        lease
        for lease in of_version(shard.store.read().leases.values(), shard.pipeline.name, 1)
        if lease.lease_owner
    ]
    shard.store.commit(
        shard.store.read(), [lease.renewed(lease_owner="", state=ShardState.CLOSED) for lease in held]
    )


def file(shard: Shard) -> None:
    """File what is late or poison of every batch of the shard that was consumed last."""
    owner = shard.running[-1]
    installation = Installation(shard.settings)
    audit = Audit(shard.spark, installation, shard.pipeline, shard.app, owner.lease.epoch)
    batches = [
        row
        for row in ledger(shard.settings, shard.pipeline.name)
        if app_id(row.pipeline, row.shard) == shard.app
    ]
    while audit.run(batches) < batches[-1].batch:
        pass


def plan(shard: Shard, target: dict[int, int] | datetime | None) -> RewindPlan:
    return make_plan(Installation(shard.settings), shard.pipeline, target)


def rewound(shard: Shard, target: dict[int, int] | None) -> dict[str, Any]:
    file(shard)
    pause(shard)
    return rewind.run(
        Installation(shard.settings), shard.pipeline, plan(shard, target), by="me", reason="a test"
    )


def check(shard: Shard) -> None:
    """The answer, late and poison rows are those of plain Python, and the verdict finds nothing
    unexplained.
    """
    oracle = Simulated(Clockwork(), shard.sent)
    check_answer(shard.settings, shard.sent, oracle)
    file(shard)
    check_filed(shard.settings, shard.sent, oracle)
    request = ReplayRequest(pipeline=shard.pipeline.name, run_id="after", everything=True)
    run_replay(lambda: shard.spark, Installation(shard.settings), shard.pipeline, request)
    verdict = judge(lambda: shard.spark, Installation(shard.settings), shard.pipeline, "after")
    assert (verdict["unexplained"], verdict["doubled"], verdict["input_rows"]) == (0, 0, len(shard.sent))


def read_once(shard: Shard) -> None:
    """By the ledger each offset was read by one batch, from the first to the last that was sent."""
    read: dict[int, Counter[int]] = defaultdict(Counter)
    for row in ledger(shard.settings):
        for partition, end in row.end_offsets.items():
            read[partition].update(range(row.start_offsets[partition], end))
    assert {partition: dict(found) for partition, found in read.items()} == {
        partition: dict.fromkeys(range(end), 1) for partition, end in shard.reached().items()
    }


def test_a_rewound_pipeline_replaces_what_it_had_written(shard: Shard) -> None:
    """To a place in the middle, then to the beginning: each time every offset is accounted for once, and the
    verdict is clean.
    """
    first, second = parts()
    shard.serve(first)
    told = rewound(shard, {0: 90, 1: 90})
    assert told["rows_replaced"] > 0 and told["rows_kept"] > 0
    assert all(0 < begin <= 90 < end for begin, end in told["partitions"].values())
    assert len(sink_rows(shard.settings)) == told["rows_kept"]
    shard.serve(second[:100])
    assert shard.running[-1].lease.status_value == "v1.g1.s0"
    read_once(shard)
    check_answer(shard.settings, shard.sent, Simulated(Clockwork(), shard.sent))
    assert rewound(shard, None)["rows_kept"] == 0
    assert sink_rows(shard.settings) == []
    assert not ControlTables(shard.settings).rows(ControlTable.LATE_ROWS)
    shard.serve(second[100:])
    read_once(shard)
    check(shard)
    events = ControlTables(shard.settings).rows(ControlTable.EVENTS, [("kind", "=", "pipeline_rewound")])
    assert {json.loads(row["detail"])["by"] for row in events} == {"me"} and all(
        "a test" in row["message"] for row in events
    )


def test_a_death_between_any_two_steps_leaves_what_the_same_command_ends(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before step 1 nothing has changed; after it, each try goes one step further. An owner of before writes
    nothing any more.
    """
    first, second = parts()
    shard.serve(first)
    old = shard.running[-1]
    old_sink = shard.sink
    file(shard)
    pause(shard)
    before, planned = sorted(sink_rows(shard.settings)), plan(shard, {0: 60, 1: 60})
    for step in range(1, 6):
        crash_at(monkeypatch, f"reset.{step}", 1)
        what = partial(rewind.run, plan=planned, by="me", reason="") if step <= 2 else rewind.complete
        with pytest.raises(CrashError):
            what(Installation(shard.settings), shard.pipeline)
        begun = bool(awaiting_rewind(shard.store.leases(), shard.pipeline.name))
        assert begun is (step > 1), "the old state, or one that the same call goes on from"
        assert (sorted(sink_rows(shard.settings)) == before) is (step <= 2)
        if begun:
            with pytest.raises(RewindRefusedError, match="cut short"):
                plan(shard, None)
    crash_at(monkeypatch, "", 1)
    with pytest.raises(LeaseLostError):
        old_sink.commit(Fence(old.lease.epoch, old.batch + 1), [], after=Fence(old.lease.epoch, old.batch))
    late = ledger(shard.settings)[-1]
    Ledger(ControlTables(shard.settings)).append(
        [replace(late, batch=old.batch + 1, sink_version=99)]
    )  # as an owner that wakes files it
    assert rewind.complete(Installation(shard.settings), shard.pipeline) is not None
    assert rewind.complete(Installation(shard.settings), shard.pipeline) is None
    shard.serve(second)
    read_once(shard)
    check(shard)


def test_a_rewind_that_could_not_be_refilled_changes_nothing(shard: Shard) -> None:
    """Running, held, forward, in the future, unknown, not filed, expired: each is refused with what to do."""
    first, _ = parts(1000)
    shard.serve(first)
    with pytest.raises(RewindRefusedError, match="not paused"):
        plan(shard, None)
    states = DesiredStates(shard.store)
    states.declare(shard.pipeline, 1)
    states.set_state(shard.pipeline.name, DesiredState.PAUSED)
    with pytest.raises(RewindRefusedError, match="still holds"):
        plan(shard, None)
    pause(shard)
    with pytest.raises(RewindRefusedError, match="not all filed yet"):
        plan(shard, {0: 60, 1: 60})
    file(shard)
    version, leases = shard.sink.version(), dict(shard.store.read().leases)
    ends = shard.reached()
    for target, words in (
        ({0: ends[0] + 1}, "leads back"),
        (datetime(2999, 1, 1, tzinfo=UTC), "has not come"),
        ({7: 1}, "no partition 7"),
        (ends, "nothing was read after it"),
    ):
        with pytest.raises(RewindRefusedError, match=words):
            plan(shard, target)
    delete_records(shard.servers, shard.pipeline.source.name, {0: 30})
    with pytest.raises(RewindRefusedError, match="later place: what is held begins"):
        plan(shard, None)
    last = {partition: end - 6 for partition, end in ends.items()}
    planned = plan(shard, last)
    for file_of in Path(shard.sink.url).glob("*.parquet"):
        file_of.rename(file_of.with_suffix(".gone"))
    with pytest.raises(RewindRefusedError, match="retention"):
        plan(shard, last)
    states.set_state(shard.pipeline.name, DesiredState.RUNNING)
    with pytest.raises(RewindRefusedError, match="not paused"):
        rewind.run(Installation(shard.settings), shard.pipeline, planned, by="me", reason="")
    assert shard.sink.version() == version
    shards = {
        key: (lease.state, lease.epoch)
        for key, lease in shard.store.read().leases.items()
        if key.status_type == "shard"
    }
    assert shards == {key: (leases[key].state, leases[key].epoch) for key in shards}


def test_running_results_are_rewound(workload: Callable[..., Workload]) -> None:
    """Rows that later batches had replaced are as they were, and counted on from there."""
    words = workload("word_count", 1)
    words.store = LeaseTable(words.settings)
    for spoken in (["a", "b", "a"], ["a", "c"]):
        words.put([{"word": word, "ts": at(0)} for word in spoken])
        words.read()
    told = rewound(words, {0: 3})
    assert told["partitions"] == {"0": [3, 5]}
    assert {row["word"]: row["count"] for row in words.rows()} == {"a": 2, "b": 1}
    words.put([{"word": "d", "ts": at(0)}])
    words.read()
    assert {row["word"]: row["count"] for row in words.rows()} == {"a": 3, "b": 1, "c": 1, "d": 1}
    file(words)
    request = ReplayRequest(pipeline=words.pipeline.name, run_id="once", everything=True)
    run_replay(lambda: words.spark, Installation(words.settings), words.pipeline, request)
    assert (
        judge(lambda: words.spark, Installation(words.settings), words.pipeline, "once")["unexplained"] == 0
    )
