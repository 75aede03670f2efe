"""Shards, desired states, the ledger and the events: what is written is what is wanted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.live_stream import declare
from support.upkeep import maintain_all

from hindcast import catalog
from hindcast.errors import BadInputError, UnknownPipelineError
from hindcast.leases.lease import TRANSITIONS, Lease, ShardState, StatusType
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState
from hindcast.shards.shard_row import DRAINED, REFUSED
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.table_names import ControlTable
from hindcast.testing import MemoryStore


@given(st.sets(st.integers(0, 200), min_size=1), st.integers(1, 40))
def test_every_partition_is_in_exactly_one_shard(partitions: set[int], count: int) -> None:
    """Dealing loses no partition, doubles none, and leaves no shard empty."""
    dealt = resharding.deal(partitions, count, len(partitions))
    assert sorted(partition for part in dealt for partition in part) == sorted(partitions)
    assert all(dealt)
    assert len(dealt) <= count


@pytest.mark.parametrize("before", ShardState)
@pytest.mark.parametrize("after", ShardState)
def test_only_the_table_of_transitions_moves_a_shard(before: ShardState, after: ShardState) -> None:
    """A transition that the table does not have is refused."""
    lease = Lease(stream_id="p", status_type=StatusType.SHARD, status_value="v1.g0.s0", state=before)
    if before is after or after in TRANSITIONS[before]:
        assert lease.moved(after).state == after
    else:
        with pytest.raises(ValueError, match="cannot go from"):
            lease.moved(after)


def test_a_shard_has_the_same_partitions_of_each_topic() -> None:
    """Keys are in the same partition of each topic, so they meet in one shard. Topics that differ in size can
    only be one shard.
    """
    second = {TOPIC_STRIDE + number: 0 for number in range(3)}
    created = resharding.create(MemoryStore(), "p", 1, 2, {0: 5, 1: 6, 2: 7, **second})
    assert [lease.detail["partitions"] for lease in created] == [
        [0, 2, TOPIC_STRIDE, TOPIC_STRIDE + 2],
        [1, TOPIC_STRIDE + 1],
    ]
    with pytest.raises(BadInputError, match="The topics of p have 3, 1 partitions") as caught:
        resharding.create(MemoryStore(), "p", 1, 2, {0: 5, 1: 6, 2: 7, TOPIC_STRIDE: 0})
    assert "shards=1" in str(caught.value.fields["cure"])
    (alone,) = resharding.create(MemoryStore(), "p", 1, 1, {0: 5, 1: 6, 2: 7, TOPIC_STRIDE: 0})
    assert alone.detail["partitions"] == [0, 1, 2, TOPIC_STRIDE]


def test_shards_are_created_once() -> None:
    """A second creation, from another worker, finds the first and writes nothing."""
    store = MemoryStore()
    assert [
        lease.detail["partitions"] for lease in resharding.create(store, "p", 1, 2, {0: 5, 1: 6, 2: 7})
    ] == [[0, 2], [1]]
    assert resharding.create(store, "p", 1, 3, {0: 9, 1: 9, 2: 9}) == []
    first, second = resharding.of_version(store.read().leases.values(), "p", 1)
    assert (first.checkpoint["start_offsets"], second.checkpoint["start_offsets"]) == (
        {"0": 5, "2": 7},
        {"1": 6},
    )


def test_the_shards_of_a_version_come_in_the_order_of_their_names() -> None:
    """The order in which the leases were read does not matter. Those of other versions and pipelines are left
    out.
    """
    store = MemoryStore()
    for name, version in (("p", 1), ("p", 2), ("q", 1)):
        resharding.create(store, name, version, 2, {0: 0, 1: 0})
    leases = [*store.read().leases.values()]
    for order in (leases, leases[::-1]):
        assert [(lease.stream_id, lease.status_value) for lease in resharding.of_version(order, "p", 1)] == [
            ("p", "v1.g0.s0"),
            ("p", "v1.g0.s1"),
        ]


def test_a_shard_is_wanted_while_its_pipeline_runs_and_its_parents_are_done(
    settings: Settings, tmp_path: Path
) -> None:
    """Paused, refused, of another version, or with a parent still open: not consumed."""
    settings = settings.model_copy(update={"pipelines_dir": tmp_path})
    declare(settings, "t")
    pipeline = catalog.load(tmp_path)["stock_stats"]
    store = MemoryStore()
    states = DesiredStates(store)
    states.declare(pipeline, 1)
    (lease,) = resharding.create(store, "stock_stats", 1, 1, {0: 0})

    def wanted(**changes: object) -> bool:
        return resharding.wanted(
            lease.evolve(**changes), store.read(), lambda name, version: (name, version) == ("stock_stats", 1)
        )

    assert wanted()
    assert not wanted(detail={REFUSED: "torn"})
    assert not wanted(status_value="v2.g0.s0")
    assert not wanted(state=ShardState.WAIT)
    assert not wanted(state=ShardState.TERMINATED)
    states.set_state("stock_stats", DesiredState.PAUSED)
    assert not wanted()
    states.set_state("stock_stats", DesiredState.DRAINED)
    assert wanted()
    assert not wanted(detail={DRAINED: True})


def test_resuming_clears_what_a_worker_refused() -> None:
    """`hindcast resume` gives a refused shard another try."""
    store = MemoryStore()
    (lease,) = resharding.create(store, "p", 1, 1, {0: 0})
    row = Lease(
        stream_id="p",
        status_type=StatusType.PIPELINE,
        status_value="active",
        state=DesiredState.RUNNING,
        detail={"version": 1, "shards": 1, "workers": 1},
    )
    store.commit(store.read(), [row, lease.evolve(detail={**lease.detail, REFUSED: "torn"})])
    DesiredStates(store).set_state("p", DesiredState.RUNNING)
    assert store.read().leases[lease.key].detail == lease.detail


def test_an_unknown_pipeline_has_no_desired_state() -> None:
    """Pausing a pipeline that was never wanted is an error that names the known ones."""
    with pytest.raises(UnknownPipelineError, match="none"):
        DesiredStates(MemoryStore()).set_state("p", DesiredState.PAUSED)


def row(batch: int, **changes: object) -> LedgerRow:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    values: dict[str, object] = {
        "pipeline": "p",
        "version": 1,
        "shard": "v1.g0.s0",
        "epoch": 1,
        "batch": batch,
        "worker": "w",
        "topic": "t",
        "start_offsets": {0: batch, 10: 0},
        "end_offsets": {0: batch + 1, 10: 0},
        "late_watermark_ms": 0,
        "watermark_ms": 0,
        "min_event_ms": None,
        "max_event_ms": None,
        "input_rows": 1,
        "poison_rows": 0,
        "output_rows": 0,
        "batch_seconds": 0.1,
        "cpu_seconds": 0.1,
        "sink_version": batch,
        "started_at": at,
        "committed_at": at,
    }
    return LedgerRow(**{**values, **changes})


def test_the_ledger_is_read_in_order_and_a_repaired_batch_once(settings: Settings) -> None:
    """Batches come back sorted by number. Of a batch that was written twice, the row with Spark's
    measurements counts.
    """
    ledger = Ledger(ControlTables(settings))
    ledger.append([row(10), row(2)])
    ledger.append([row(9, input_rows=None), row(9), row(10, input_rows=None)])
    assert [(entry.batch, entry.input_rows) for entry in ledger.batches("p", 1)] == [(2, 1), (9, 1), (10, 1)]
    assert ledger.batches("other") == []


@hypothesis_settings(max_examples=40)
@given(
    written=st.lists(
        st.tuples(st.sampled_from(["v1.g0.s0", "v1.g0.s1"]), st.integers(-5, 6), st.sampled_from([1, None])),
        max_size=12,
    ),
    after=st.integers(0, 6),
)
def test_the_end_of_the_ledger_is_that_of_the_whole(
    written: list[tuple[str, int, int | None]], after: int
) -> None:
    """Whether the ledger was repaired or reset: the newest batches, and those after one, are those that a
    reader of all rows would pick.
    """
    with TemporaryDirectory() as home:
        ledger = Ledger(ControlTables(Settings(home=Path(home))))
        ledger.append([row(batch, shard=shard, input_rows=rows) for shard, batch, rows in written])
        every = ledger.batches("p", 1)
        last = {entry.shard: entry for entry in every}
        assert ledger.newest("p", 1) == [last[shard] for shard in sorted(last)]
        for shard in ("v1.g0.s0", "v1.g0.s1"):
            assert ledger.batches("p", 1, shard, after=after) == [
                entry for entry in every if entry.shard == shard and (not after or entry.batch > after)
            ]


def test_maintenance_changes_no_row(settings: Settings, tmp_path: Path) -> None:
    """After compaction and vacuum the tables read as before, from fewer files."""
    settings = settings.model_copy(update={"pipelines_dir": tmp_path})
    ledger = Ledger(ControlTables(settings))
    for batch in range(1, 13):
        ledger.append([row(batch)])
    before = ledger.batches("p")
    done = {entry["table"]: entry for entry in maintain_all(settings)}
    assert ledger.batches("p") == before
    assert (done["checkpoints"]["files_before"], done["checkpoints"]["files_after"]) == (12, 1)
    assert {entry["skipped"] for entry in done.values()} == {""}


def test_an_event_is_a_row_with_its_cure(settings: Settings) -> None:
    """What happened, how bad it is, to what, and what to do: all of it is in the table."""
    tables = ControlTables(settings)
    EventLog(tables, "w").record(
        EventKind.QUERY_FAILED,
        "It broke.",
        severity=Severity.ERROR,
        cure="Mend it.",
        pipeline="p",
        shard="s",
        epoch=3,
        tries=2,
    )
    (event,) = tables.rows(ControlTable.EVENTS, [("pipeline", "=", "p")])
    assert (event["kind"], event["severity"], event["message"], event["cure"], event["detail"]) == (
        "query_failed",
        "error",
        "It broke.",
        "Mend it.",
        '{"tries": 2}',
    )


def test_a_value_in_a_condition_is_never_code(settings: Settings) -> None:
    """A quote in a name finds nothing and breaks nothing."""
    tables = ControlTables(settings)
    EventLog(tables).record(EventKind.NO_SLOT, "x", pipeline="p")
    assert tables.rows(ControlTable.EVENTS, [("pipeline", "=", "p' OR '1'='1")]) == []
