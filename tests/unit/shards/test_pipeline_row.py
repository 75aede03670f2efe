"""The row of a pipeline: it is read as it was written, and its keys on disk stay."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.leases.lease import Lease, StatusType
from hindcast.shards.pipeline_row import (
    Change,
    ChangeKind,
    DesiredState,
    InactiveState,
    InactiveVersion,
    PipelineRow,
    ServedUntil,
    desired_key,
    row_of,
    rows_of,
)

NEW = PipelineRow(pipeline="p", state=DesiredState.RUNNING, version=1, shards=2, workers=3)
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
SERVED = st.lists(st.builds(ServedUntil, st.integers(1, 9), st.integers(0, 99)), max_size=2).map(tuple)
TABLES = st.lists(st.text("ab", min_size=1), max_size=2).map(tuple)
BESIDE = st.builds(
    InactiveVersion,
    version=st.integers(1, 9),
    state=st.sampled_from(InactiveState),
    shards=st.integers(1, 4),
    tables=TABLES,
    seam_ms=st.none() | st.integers(0, 99),
    until=st.none() | st.just(AT),
    warmed_seconds=st.floats(0, 9),
    earlier=SERVED,
    leaving=st.booleans(),
)
CHANGE = st.builds(
    Change,
    id=st.text("ab"),
    kind=st.sampled_from(ChangeKind),
    version=st.integers(1, 9),
    active=st.integers(1, 9),
    at=st.just(AT),
    who=st.text("ab"),
    despite=st.text("ab"),
    offsets=st.none() | st.dictionaries(st.integers(0, 9), st.integers(0, 9)),
    number=st.integers(0, 9),
)
ROWS = st.builds(
    PipelineRow,
    pipeline=st.just("p"),
    state=st.sampled_from(DesiredState),
    version=st.integers(1, 9),
    shards=st.integers(1, 4),
    workers=st.integers(1, 4),
    tables=TABLES,
    beside=st.none() | BESIDE,
    earlier=SERVED,
    change=st.none() | CHANGE,
    rebuild=st.dictionaries(st.text("ab"), st.text("ab", min_size=1), max_size=2),
    written_by=st.text("ab"),
)


def lease(row: PipelineRow) -> Lease:
    key = desired_key(row.pipeline)
    return Lease(
        stream_id=key.stream_id,
        status_type=StatusType.PIPELINE,
        status_value=key.status_value,
        state=row.state,
        detail=row.to_json(),
    )


@given(ROWS)
def test_a_row_is_read_as_it_was_written(row: PipelineRow) -> None:
    """Whatever it says, and through the JSON of its detail."""
    assert PipelineRow.of(lease(row)) == row


def test_a_new_pipeline_has_three_keys() -> None:
    """Rows of pipelines whose versions never changed stay as they always were."""
    assert NEW.to_json() == {"version": 1, "shards": 2, "workers": 3}


def test_the_keys_on_disk_stay() -> None:
    """Fleets have them in their tables."""
    beside = InactiveVersion(version=2, state=InactiveState.LIVE, shards=1, tables=("sinks/t_v2",), until=AT)
    change = Change(id="i", kind=ChangeKind.STARTED, version=2, active=1, at=AT, offsets={10: 1, 9: 2})
    row = replace(
        NEW,
        tables=("sinks/t",),
        beside=beside,
        earlier=(ServedUntil(1, 60),),
        change=change,
        rebuild={"v1.g0.s0": "r"},
        written_by="w",
    )
    assert row.to_json() == {
        "version": 1,
        "shards": 2,
        "workers": 3,
        "tables": ["sinks/t"],
        "beside": {
            "version": 2,
            "state": "live",
            "shards": 1,
            "tables": ["sinks/t_v2"],
            "seam_ms": None,
            "until": "2026-01-02T03:04:05.000006+00:00",
            "warmed_seconds": 0.0,
            "earlier": (),
            "leaving": False,
        },
        "earlier": [{"version": 1, "to_ms": 60}],
        "change": {
            "id": "i",
            "kind": "reprocess_started",
            "version": 2,
            "active": 1,
            "at": "2026-01-02T03:04:05.000006+00:00",
            "who": "",
            "despite": "",
            "offsets": {"9": 2, "10": 1},
            "number": 0,
        },
        "rebuild": {"v1.g0.s0": "r"},
        "written_by": "w",
    }


def test_only_a_pipelines_own_row_is_one() -> None:
    """Shards and slots of the same pipeline, and rows of another value, are passed over."""
    row = lease(NEW)
    others = [row.evolve(status_type=StatusType.SHARD), row.evolve(status_value="another")]
    assert rows_of([*others, row]) == [NEW]
    leases = {row.key: row}
    assert row_of(leases, "p") == NEW
    assert row_of(leases, "q") is None


@pytest.mark.parametrize("kind", ChangeKind)
def test_each_change_has_its_sentence(kind: ChangeKind) -> None:
    """It names the version, and the person if it was one."""
    change = Change(
        id="i", kind=kind, version=2, active=1, at=AT, who="ada", despite="urgent", offsets={0: 7}
    )
    sentence = change.sentence
    assert "ersion 2" in sentence
    by_a_person = kind not in {ChangeKind.CAUGHT_UP, ChangeKind.RETIRED}
    assert (" by ada" in sentence) is by_a_person
    assert ("although it was not proved: urgent" in sentence) is (kind is ChangeKind.PROMOTED)
    assert ("{0: 7}" in sentence) is (kind in {ChangeKind.STARTED, ChangeKind.PROMOTED})
    nobody = replace(change, who="", despite="").sentence
    assert " by " not in nobody
    assert "although" not in nobody
