"""A rewind that is called off leaves all as it was, at whichever step it was cut short."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.crashes import die_before
from support.paused_pipeline import EPOCH, Paused

from hindcast.errors import LeaseLostError, RewindRefusedError
from hindcast.leases.lease import ShardState
from hindcast.recovery import plan_rewind, takeover
from hindcast.recovery.restore_sink import SinkRestore
from hindcast.shards.shard_row import ShardCheckpoint
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import Fence
from hindcast.tables.table_names import ControlTable

#: Hours for which Delta keeps a file that was replaced.
WEEK = 7 * 24


@pytest.mark.parametrize("step", range(1, 6))
def test_a_vacuum_between_any_two_steps_leaves_a_way(
    paused: Paused, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Before the sink is restored its files may go: then all can be as before. Afterwards no file is needed
    that could go.
    """
    paused.replace_files(hours=0)
    found = paused.plan(paused.middle)
    before = paused.rows()
    states = paused.states()
    die_before(monkeypatch, f"reset.{step}", partial(paused.run, found))
    paused.vacuum()
    if step > 2:
        assert paused.complete() is not None
        assert paused.rows().total() == found.rows_kept
        return
    if step == 2:
        with pytest.raises(RewindRefusedError, match=r"retention.*--abandon"):
            paused.complete()
        assert paused.abandon() is not None
    assert paused.rows() == before
    assert paused.states() == states
    with pytest.raises(RewindRefusedError, match="later place, or to the beginning"):
        paused.plan(paused.middle)
    assert paused.rewind(None)["rows_kept"] == 0


def test_a_vacuum_that_began_before_the_sink_is_restored_finds_nothing_to_delete(
    paused: Paused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewind that was cut short is completed days later: a file that came near the retention since is not
    named again.
    """
    paused.replace_files(hours=WEEK - 0.5)
    before = paused.rows()
    monkeypatch.setattr(plan_rewind, "PLAN_MARGIN_HOURS", 0)
    with pytest.raises(RewindRefusedError, match=r"too near to Delta's retention.*--abandon"):
        paused.rewind(paused.middle)
    assert paused.abandon() is not None
    assert paused.rows() == before


@pytest.mark.parametrize("step", [1, 2])
def test_a_death_while_it_is_called_off_is_ended_by_the_same_call(
    paused: Paused, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Leases and rows as before, in a raised epoch: an owner that was thought dead writes nothing, the next
    one does.
    """
    found = paused.plan(paused.middle)
    before = paused.rows()
    states = paused.states()
    die_before(monkeypatch, "reset.2", partial(paused.run, found))
    die_before(monkeypatch, f"abandon.{step}", paused.abandon)
    if step == 2:
        with pytest.raises(RewindRefusedError, match="it was called off"):
            paused.complete()
    assert paused.abandon() is not None
    assert paused.rows() == before
    assert paused.states() == states
    assert paused.abandon() is None
    assert paused.complete() is None
    zombie = paused.app()
    last = zombie.recorded()
    assert last is not None
    assert last.epoch == EPOCH + 1
    with pytest.raises(LeaseLostError):
        zombie.commit(Fence(EPOCH, last.batch + 1), [], after=last)
    assert zombie.commit(Fence(EPOCH + 2, last.batch), [], after=last) > 0
    kinds = {row["kind"] for row in ControlTables(paused.settings).rows(ControlTable.EVENTS)}
    assert {"pipeline_rewinding", "pipeline_rewind_abandoned"} <= kinds
    assert paused.rewind(paused.middle)["rows_kept"] == found.rows_kept == paused.rows().total()


def test_shards_that_nobody_has_taken_yet_can_be_taken_after_it(
    paused: Paused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline was rewound, stayed paused, and a second rewind is called off: the sink has the fences of
    shards that have never committed.
    """
    paused.rewind(paused.middle)
    die_before(monkeypatch, "reset.2", partial(paused.run, paused.plan(None)))
    assert paused.abandon() is not None
    for lease in paused.store.read().leases.values():
        if lease.state != ShardState.OPEN:
            continue
        sink = paused.app(lease.status_value)
        taken = lease.given_to("w")
        position, missing = takeover.seal(sink, paused.pipeline, taken, "w", [])
        assert (position.fence, missing) == (Fence(taken.epoch, 0), [])
        assert position.end_offsets == ShardCheckpoint.of(lease).start_offsets


def test_what_was_called_off_is_said(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the rewind, as it began."""
    found = paused.plan(paused.middle)
    die_before(monkeypatch, "reset.2", partial(paused.run, found))
    record = paused.abandon()
    assert record is not None
    assert record["to"] == found.to
    assert record["sink_version"] == found.point.sink_version
    assert record["last"] == found.point.last
    rows = ControlTables(paused.settings).rows(
        ControlTable.EVENTS, [("kind", "=", "pipeline_rewind_abandoned")]
    )
    assert [row["message"].startswith("me called off") for row in rows] == [True]
    assert rows[0]["message"].endswith(": a test.")


def test_of_calling_off_and_restoring_only_one_lands(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is about to restore the sink while another one calls the rewind off takes no step any
    more; the other way round it is refused.
    """
    commit = SinkRestore._commit
    before = paused.rows()
    states = paused.states()

    def overtaken(restore: SinkRestore, *arguments: Any) -> int:
        monkeypatch.setattr(SinkRestore, "_commit", commit)
        assert paused.abandon() is not None
        return commit(restore, *arguments)

    monkeypatch.setattr(SinkRestore, "_commit", overtaken)
    with pytest.raises(RewindRefusedError, match="it was called off"):
        paused.rewind(paused.middle)
    assert paused.rows() == before
    assert paused.states() == states
    found = paused.plan(paused.middle)
    die_before(monkeypatch, "reset.3", partial(paused.run, found))
    with pytest.raises(RewindRefusedError, match="restored already"):
        paused.abandon()
    assert paused.complete() is not None
    assert paused.rows().total() == found.rows_kept
