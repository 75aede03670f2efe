"""Faults built into the protocols on purpose. Each is one alteration of the real thing, and each must be caught
by an oracle.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties
from protocols import random_histories
from protocols.stepped_stores import SteppedLinks
from protocols.world import World
from simulation.mutants import MUTANTS as OF_LEASES

from hindcast.delta import application_log, older_log
from hindcast.errors import FenceMovedError
from hindcast.recovery import delete_late_and_dead_rows, rebuild_state, rewind, rewind_point, takeover
from hindcast.recovery.restore_sink import SinkRestore
from hindcast.recovery.takeover import ShardPosition
from hindcast.replay import inputs, planner
from hindcast.serving import corrected_windows
from hindcast.serving.corrected_windows import CorrectedRange
from hindcast.shards import resharding, shard_row
from hindcast.stream import batch_commits, late_and_dead_rows, shard_takeover
from hindcast.stream.batch_commits import BatchCommits
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.stream.ledger_queue import LedgerQueue
from hindcast.stream.shard_progress import ShardProgress
from hindcast.tables import compaction, fenced_sink, ledger_bases
from hindcast.tables.excluded_records import Excluded
from hindcast.tables.fenced_sink import Fence, FencedTable
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.ledger_bases import FencedBatches, LedgerBases, LedgerSnapshot

Mutate = Callable[[pytest.MonkeyPatch], None]


def _take_over_without_a_seal(patch: pytest.MonkeyPatch) -> None:
    commit = FencedTable.commit

    def only_batches(self: FencedTable, fence: Fence, data: Any, metadata: str = "", **options: Any) -> int:
        if '"kind": "seal"' in metadata:
            return 0
        return commit(self, fence, data, metadata, **options)

    patch.setattr(FencedTable, "commit", only_batches)
    patch.setattr(ShardPosition, "check_follows", lambda *_: None)


def _commit_whatever_is_recorded(patch: pytest.MonkeyPatch) -> None:
    def commit_once(self: FencedTable, fence: Fence, data: Any, metadata: str, after: Any) -> int:
        recorded, newest = self.reached()
        if recorded == fence:
            return -1
        self._log.append(data, fence.number, metadata)
        return newest + 1

    patch.setattr(FencedTable, "_commit_once", commit_once)


def _commit_again_after_an_unknown_outcome(patch: pytest.MonkeyPatch) -> None:
    commit_once = FencedTable._commit_once

    def again(self: FencedTable, fence: Fence, data: Any, metadata: str, after: Any) -> int:
        recorded, newest = self.reached()
        if recorded == fence:
            self._log.append(data, fence.number, metadata)
            return newest + 1
        return commit_once(self, fence, data, metadata, after)

    patch.setattr(FencedTable, "_commit_once", again)


def _overwrite_an_entry_of_the_log(patch: pytest.MonkeyPatch) -> None:
    def link(self: SteppedLinks, draft: Any, entry: Any) -> None:
        self.wait(entry)
        shutil.copyfile(draft, entry)

    patch.setattr(SteppedLinks, "link", link)


def _believe_an_old_reading(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(application_log, "BELIEVED_SECONDS", 10.0**9)


def _seal_on_top_of_what_was_not_read(patch: pytest.MonkeyPatch) -> None:
    commit_once = FencedTable._commit_once

    def on_top(self: FencedTable, fence: Fence, data: Any, metadata: str, after: Any) -> int:
        try:
            return commit_once(self, fence, data, metadata, after)
        except FenceMovedError:
            if '"kind": "seal"' not in metadata:
                raise
            self._log.append(data, fence.number, metadata)
            return 0

    patch.setattr(FencedTable, "_commit_once", on_top)


def _do_not_repair_the_ledger(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        takeover,
        "repair_ledger",
        lambda _ledger, pipeline, missing: [commit.as_ledger_row(pipeline.source.name) for commit in missing],
    )


def _repair_the_last_batch_alone(patch: pytest.MonkeyPatch) -> None:
    repair = takeover.repair_ledger
    patch.setattr(
        takeover, "repair_ledger", lambda to, pipeline, missing: repair(to, pipeline, list(missing)[-1:])
    )


def _forget_rows_that_were_not_written(patch: pytest.MonkeyPatch) -> None:
    def flush(self: LedgerQueue, query: Any, base: int) -> None:
        ready = list(self._ready(query))
        del self._rows[: len(ready)]
        self._ledger.append(ready)
        self._history += ready

    patch.setattr(LedgerQueue, "flush", flush)


def _run_the_batch_in_hand_from_anew(patch: pytest.MonkeyPatch) -> None:
    """A batch that the sink holds is committed again, with the number after it."""
    commit = BatchCommits._commit

    def renumbered(self: BatchCommits, frame: Any, spark_batch: int) -> None:
        position = self._progress.position
        if spark_batch + position.incarnation.base <= position.fence.batch and spark_batch:
            base = position.fence.batch + 1 - spark_batch
            incarnation = replace(position.incarnation, base=base)
            ends = self._plans.planned(spark_batch - 1).end_offsets
            self._progress.position = replace(position, incarnation=incarnation, end_offsets=ends)
        commit(self, frame, spark_batch)

    patch.setattr(BatchCommits, "_commit", renumbered)


def _let_rows_be_late_by_the_batchs_own_watermark(patch: pytest.MonkeyPatch) -> None:
    as_metadata = fenced_sink.BatchCommit.as_metadata

    def changed(self: fenced_sink.BatchCommit) -> str:
        return as_metadata(replace(self, late_watermark_ms=self.watermark_ms))

    patch.setattr(fenced_sink.BatchCommit, "as_metadata", changed)


def _rebuild_without_floors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardPosition, "floors", lambda self: dict.fromkeys(self.end_offsets, 0))


def _rebuild_from_where_the_sink_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebuild_state, "start_of", lambda _pipeline, _history, end, _floors: dict(end))


def _rebuild_half_of_the_open_windows(patch: pytest.MonkeyPatch) -> None:
    start_of = rebuild_state.start_of

    def half(pipeline: Any, history: Any, end: Any, floors: Any) -> Any:
        start = start_of(pipeline, history, end, floors)
        return {partition: (offset + end[partition] + 1) // 2 for partition, offset in start.items()}

    patch.setattr(rebuild_state, "start_of", half)


def _open_a_child_without_its_parents_watermark(patch: pytest.MonkeyPatch) -> None:
    begun = resharding._begun

    def forgetful(child: Any, parents: Any) -> Any:
        lease = begun(child, parents)
        return lease.evolve(checkpoint={**lease.checkpoint, "floors": {}})

    patch.setattr(resharding, "_begun", forgetful)


def _end_a_shard_where_its_lease_says(patch: pytest.MonkeyPatch) -> None:
    """Of a shard that ends without a query, the sink is not asked how far it is."""
    report = ShardProgress._report

    def silent(self: ShardProgress, sink_version: int, detail: Any) -> None:
        if self._committed:
            report(self, sink_version, detail)

    patch.setattr(ShardProgress, "_report", silent)


def _take_the_ledgers_last_row_for_the_shards_place(patch: pytest.MonkeyPatch) -> None:
    since = FencedTable.since

    def ledger_alone(self: FencedTable, recorded: Fence, version: int, known: LedgerRow | None) -> Any:
        if known is None:
            return since(self, recorded, version, known)
        return self._of_row(known), []

    patch.setattr(FencedTable, "since", ledger_alone)
    patch.setattr(takeover, "_check_log", lambda *_: None)


def _use_every_base(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger_bases, "_goes_on", lambda *_: True)


def _plan_with_what_came_into_the_ledger_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """What the sink holds is compared with a later moment of the ledger than the history is of."""
    snapshot = LedgerBases.snapshot

    def moving(self: LedgerBases, pipeline: str, version: int, fenced: FencedBatches) -> LedgerSnapshot:
        made = snapshot(self, pipeline, version, fenced)
        newest = Ledger(self.tables)
        patch.setattr(LedgerSnapshot, "reached", lambda _: newest.reached(pipeline, version))
        return made

    patch.setattr(LedgerBases, "snapshot", moving)


def _plan_during_a_rewind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inputs, "check_not_rewound", lambda *_: None)


def _plan_after_a_rewind_that_has_ended(patch: pytest.MonkeyPatch) -> None:
    """Of rewinds only those are noticed that are still under way."""

    def begun(installation: Any, pipeline: Any, _: LedgerSnapshot) -> None:
        if shard_row.awaiting_rewind(installation.lease_table.leases_if_any(), pipeline.name):
            raise planner.not_yet(pipeline, "", rewind=True)

    patch.setattr(inputs, "check_not_rewound", begun)


def _use_a_base_that_was_rewound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger_bases, "_is_in_effect", lambda *_: True)
    patch.setattr(ledger_bases, "_goes_on", lambda *_: True)


def _leave_the_floors_out_of_the_audit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerRow, "late_ms", lambda self, _: self.late_watermark_ms)


def _rewind_without_raising_the_fence(patch: pytest.MonkeyPatch) -> None:
    commit = SinkRestore._commit

    def unfenced(self: SinkRestore, table: Any, kind: str, actions: Any, transactions: Any) -> int:
        epochs = self._begun.epochs
        object.__setattr__(self._begun, "epochs", {})
        try:
            return commit(self, table, kind, actions, transactions)
        finally:
            object.__setattr__(self._begun, "epochs", epochs)

    patch.setattr(SinkRestore, "_commit", unfenced)


def _rewind_without_the_ledger(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rewind, "_take_back_batches", lambda *_: None)


def _rewind_a_pipeline_that_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rewind_point, "check_still", lambda *_: None)


def _delete_the_log_before_it_is_linked(patch: pytest.MonkeyPatch) -> None:
    def shorten(url: str, hours: float) -> int:
        log = Path(url, "_delta_log")
        names = older_log._before_checkpoint(log, hours * 3600)
        for name in names:
            (log / name).unlink(missing_ok=True)
        return len(names)

    patch.setattr(fenced_sink, "shorten_log", shorten)


def _file_late_rows_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(late_and_dead_rows, "_batch_of", lambda fence: max(fence.batch - 1, 0) if fence else 0)


def _take_a_lost_filing_for_done(patch: pytest.MonkeyPatch) -> None:
    run = Audit.run

    def trusting(self: Audit, batches: Sequence[LedgerRow]) -> int:
        done = run(self, batches)
        todo = [row for row in batches if row.batch > done]
        return todo[-1].batch if todo else done

    def filed(self: Audit) -> int:
        return max(fence.batch if fence else 0 for fence in self._recorded())

    patch.setattr(Audit, "run", trusting)
    patch.setattr(Audit, "filed", filed)


def _leave_late_rows_of_batches_that_were_taken_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rewind, "delete_late_and_dead_rows", lambda *_: None)


def _rewind_without_fencing_the_late_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delete_late_and_dead_rows, "seal", lambda *_: None)


def _forget_batches_whose_rows_are_not_filed(patch: pytest.MonkeyPatch) -> None:
    def begin(self: LedgerQueue, history: list[LedgerRow]) -> None:
        self._history = history[-1:]

    patch.setattr(LedgerQueue, "begin", begin)


def _let_a_run_that_had_read_less_correct_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(corrected_windows, "_may_replace", lambda *_: True)


def _keep_the_ranges_that_a_correction_replaces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CorrectedRange, "without", lambda self, *_: [self])


def _let_two_corrections_at_once_land(patch: pytest.MonkeyPatch) -> None:
    def only_metadata(custom_metadata: dict[str, str], **_: Any) -> CommitProperties:
        return CommitProperties(custom_metadata=custom_metadata)

    patch.setattr(corrected_windows, "CommitProperties", only_metadata)


def _let_two_compactions_at_once_land(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction, "CommitProperties", lambda **_: CommitProperties())


def _name_no_record_as_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch_commits, "within", lambda *_: {})


def _leave_out_only_what_this_owner_has_found(patch: pytest.MonkeyPatch) -> None:
    def of_the_last(parts: Iterable[Excluded]) -> Excluded:
        *_, last = parts
        return dict(last)

    patch.setattr(shard_takeover, "together", of_the_last)


def _take_every_batch_for_free_of_dead_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(late_and_dead_rows, "_may_be_poison", lambda _: False)


#: The alterations, by what they are.
MUTANTS: dict[str, Mutate] = {
    mutate.__name__.strip("_").replace("_", " "): mutate
    for mutate in (
        _take_over_without_a_seal,
        _seal_on_top_of_what_was_not_read,
        _commit_whatever_is_recorded,
        _commit_again_after_an_unknown_outcome,
        _overwrite_an_entry_of_the_log,
        _believe_an_old_reading,
        _delete_the_log_before_it_is_linked,
        _run_the_batch_in_hand_from_anew,
        _do_not_repair_the_ledger,
        _repair_the_last_batch_alone,
        _forget_rows_that_were_not_written,
        _take_the_ledgers_last_row_for_the_shards_place,
        _let_rows_be_late_by_the_batchs_own_watermark,
        _leave_the_floors_out_of_the_audit,
        _file_late_rows_again,
        _take_a_lost_filing_for_done,
        _forget_batches_whose_rows_are_not_filed,
        _rebuild_without_floors,
        _rebuild_from_where_the_sink_ends,
        _rebuild_half_of_the_open_windows,
        _open_a_child_without_its_parents_watermark,
        OF_LEASES["open a child before its parent ends"],
        _end_a_shard_where_its_lease_says,
        _use_every_base,
        _use_a_base_that_was_rewound,
        _plan_with_what_came_into_the_ledger_meanwhile,
        _plan_during_a_rewind,
        _plan_after_a_rewind_that_has_ended,
        _rewind_without_raising_the_fence,
        _rewind_without_the_ledger,
        _rewind_a_pipeline_that_runs,
        _rewind_without_fencing_the_late_rows,
        _leave_late_rows_of_batches_that_were_taken_back,
        _let_a_run_that_had_read_less_correct_again,
        _keep_the_ranges_that_a_correction_replaces,
        _let_two_corrections_at_once_land,
        _let_two_compactions_at_once_land,
        _name_no_record_as_left_out,
        _leave_out_only_what_this_owner_has_found,
        _take_every_batch_for_free_of_dead_rows,
    )
}


#: Those that few histories would meet: what happens often in the histories that look for them.
ABOUT: dict[str, Callable[[World], None]] = {
    "let a run that had read less correct again": World.correct,
    "keep the ranges that a correction replaces": World.correct,
    "let two corrections at once land": World.correct,
    "believe an old reading": World.sleep_through_a_cut,
    "plan with what came into the ledger meanwhile": World.plan_slowly,
    "plan after a rewind that has ended": World.plan_slowly,
    "rewind without fencing the late rows": World.sleep_in_an_audit_through_a_rewind,
    "let two compactions at once land": World.sleep_in_the_upkeep,
}


def caught(name: str, histories: int) -> str:
    """What the first of so many histories says that finds this mutant; empty if none does."""
    with mutated(name):
        return random_histories.first_breach("mutant", histories, ABOUT.get(name))


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The code with this alteration."""
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name](patch)
        yield
