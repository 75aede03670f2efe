"""What is wanted of a pipeline: one row, changed by compare-and-swap, that says no more and no less than was
asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.live_stream import MODULE

from hindcast import catalog
from hindcast.errors import UnknownPipelineError
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.pipeline import Pipeline
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates, desired_of, rebuild_request
from hindcast.shards.pipeline_row import (
    DesiredState,
    InactiveState,
    InactiveVersion,
    PipelineRow,
    desired_key,
)
from hindcast.shards.shard_row import DRAINED, REFUSED
from hindcast.testing import MemoryStore, Outcome

ROW = desired_key("p")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "p.py").write_text(MODULE.format(topic="t", name="p", version=4, shards=2))
    return catalog.load(tmp_path)["p"]


@pytest.fixture
def states(store: MemoryStore, pipeline: Pipeline) -> DesiredStates:
    """The pipeline is wanted, in two shards, and has them."""
    found = DesiredStates(store)
    found.declare(pipeline, 3)
    resharding.create(store, "p", 4, 2, {0: 0, 1: 0})
    return found


def test_a_declaration_is_wanted_once(store: MemoryStore, pipeline: Pipeline) -> None:
    """The row has what the file says and the number of workers. A second declaration changes nothing, and
    none is lost on a conflict.
    """
    outcomes = [Outcome.CONFLICT]
    store.outcome = lambda: outcomes.pop() if outcomes else Outcome.OK
    wanted = PipelineRow(pipeline="p", version=4, state=DesiredState.RUNNING, shards=2, workers=3)
    began = datetime.now(UTC)
    assert DesiredStates(store).declare(pipeline, 3) == wanted
    row = store.read().leases[ROW]
    assert row.updated_at is not None
    assert began <= row.updated_at <= datetime.now(UTC)
    assert row == Lease(
        stream_id="p",
        status_type=StatusType.PIPELINE,
        status_value="active",
        state=DesiredState.RUNNING,
        detail={"version": 4, "shards": 2, "workers": 3},
        updated_at=row.updated_at,
    )
    assert DesiredStates(store).declare(replace(pipeline, version=5, paused=True), 9) == wanted
    assert store.commits == 1


def test_a_pipeline_may_be_declared_paused(store: MemoryStore, pipeline: Pipeline) -> None:
    """It stays paused until a person resumes it."""
    assert DesiredStates(store).declare(replace(pipeline, paused=True), 1).state is DesiredState.PAUSED


def test_all_are_listed_by_name(store: MemoryStore, pipeline: Pipeline) -> None:
    """Other rows of the leases, shards and versions among them, are no pipelines."""
    states = DesiredStates(store)
    for name in ("b", "a"):
        states.declare(replace(pipeline, name=name), 1)
    resharding.create(store, "c", 1, 1, {0: 0})
    store.commit(store.read(), [store.read().leases[desired_key("a")].evolve(status_value="another row")])
    assert [one.pipeline for one in states.all()] == ["a", "b"]
    assert desired_of(store.read().leases.values())["b"] == states.get("b")


def test_a_pipeline_that_was_never_wanted_is_an_error_that_names_the_known_ones(
    states: DesiredStates, pipeline: Pipeline
) -> None:
    """The error names the pipeline and those that are known."""
    for ask in (
        states.get,
        lambda name: states.set_shards(name, 1),
        lambda name: states.request_rebuild(name, []),
    ):
        with pytest.raises(UnknownPipelineError) as unknown:
            ask("q")
        assert unknown.value.fields == {"pipeline": "q", "known": "p"}
    states.declare(replace(pipeline, name="a"), 1)
    with pytest.raises(UnknownPipelineError) as unknown:
        states.get("q")
    assert unknown.value.fields["known"] == "a, p"
    with pytest.raises(UnknownPipelineError) as unknown:
        DesiredStates(MemoryStore()).get("q")
    assert unknown.value.fields["known"] == "none"


@pytest.mark.parametrize(
    ("act", "changes"),
    [
        (lambda states: states.set_state("p", DesiredState.PAUSED), {"state": DesiredState.PAUSED}),
        (lambda states: states.set_shards("p", 5), {"detail": {"version": 4, "shards": 5, "workers": 3}}),
    ],
    ids=["state", "shards"],
)
def test_a_change_leaves_the_rest(
    store: MemoryStore, states: DesiredStates, act: Callable[[DesiredStates], PipelineRow], changes: object
) -> None:
    """The row has the new value and the time of the change, and its counter moved. Wanting the same again
    writes nothing.
    """
    before, began = store.read().leases[ROW], datetime.now(UTC)
    wanted = act(states)
    row = store.read().leases[ROW]
    assert wanted == states.get("p") == PipelineRow.of(row)
    assert row.updated_at is not None
    assert began <= row.updated_at <= datetime.now(UTC)
    assert row == before.renewed(updated_at=row.updated_at, **changes)  # type: ignore[arg-type]
    commits = store.commits
    act(states)
    assert store.commits == commits


def test_only_running_gives_marked_shards_another_try(store: MemoryStore, states: DesiredStates) -> None:
    """Both marks go. Other details and other pipelines' shards stay. Pausing and draining clear nothing."""
    first, second = resharding.of_version(store.read().leases.values(), "p", 4)
    (foreign,) = resharding.create(store, "q", 1, 1, {0: 0})
    marked = {
        lease.key: lease.evolve(detail={**lease.detail, mark: "why"})
        for lease, mark in ((first, REFUSED), (second, DRAINED), (foreign, REFUSED))
    }
    store.commit(store.read(), marked.values())
    for state in (DesiredState.PAUSED, DesiredState.DRAINED):
        states.set_state("p", state)
        assert all(store.read().leases[key] == lease for key, lease in marked.items())
    states.set_state("p", DesiredState.RUNNING)
    leases = store.read().leases
    assert [leases[one.key] for one in (first, second, foreign)] == [first, second, marked[foreign.key]]


def test_a_rebuild_is_requested_shard_by_shard(store: MemoryStore, states: DesiredStates) -> None:
    """Each shard has its newest request. A refused one gets another try. A drained one, and those not asked
    for, stay as they are.
    """
    first, second = resharding.of_version(store.read().leases.values(), "p", 4)
    marks = {REFUSED: "torn", DRAINED: True}
    store.commit(store.read(), [one.evolve(detail={**one.detail, **marks}) for one in (first, second)])
    leases = store.read().leases
    assert (rebuild_request(leases, first.key), rebuild_request({}, first.key)) == ("", "")
    one = states.request_rebuild("p", [first.status_value])
    leases = store.read().leases
    assert (rebuild_request(leases, first.key), rebuild_request(leases, second.key)) == (one, "")
    assert leases[first.key].detail == {**first.detail, DRAINED: True}
    assert leases[second.key].detail == {**second.detail, **marks}
    both = states.request_rebuild("p", [second.status_value])
    leases = store.read().leases
    assert [rebuild_request(leases, key) for key in (first.key, second.key)] == [one, both]
    assert leases[ROW].detail == {
        "version": 4,
        "shards": 2,
        "workers": 3,
        "rebuild": {first.status_value: one, second.status_value: both},
    }
    assert {len(one), len(both)} == {12}
    assert one != both
    assert rebuild_request(leases, LeaseKey("q", StatusType.SHARD, first.status_value)) == ""


def test_an_inactive_version_is_wanted_until_it_leaves(store: MemoryStore, states: DesiredStates) -> None:
    """It has its own number of shards, and comes after the active one."""
    row = store.read().leases[ROW]
    wanted = PipelineRow.of(row)
    beside = InactiveVersion(version=5, state=InactiveState.LIVE, shards=7, tables=())
    assert list(wanted.wanted_versions.items()) == [(4, 2)]
    assert list(replace(wanted, beside=beside).wanted_versions.items()) == [(4, 2), (5, 7)]
    assert replace(wanted, beside=replace(beside, leaving=True)).wanted_versions == {4: 2}
