"""Decide what a replay reads and which windows it judges, before any Spark starts. Pure Python; see
:mod:`hindcast.replay.inputs`.

Let ``horizon(offsets)`` be the end of the last window that was final once the stream had read up to
``offsets``. A replay of [start, end) judges the windows with ``horizon(start) < window end <= horizon(end)``:
every row that the stream may have counted in one of them was read before ``end``, and none of them was judged
by the range before. It reads from the first offsets that can hold a row of such a window.

What the topic no longer holds is read from its archive, where it has one, up to the partition's *seam*; the
topic is read from there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast.archive.archive_or_live import HeldRecords, Range, Ranges
from hindcast.clock import utc_from_ms
from hindcast.errors import (
    BadRangeError,
    LateForGoodError,
    NothingLateError,
    NothingToReplayError,
    RangeNotYetConsumedError,
)
from hindcast.partitions import Offsets, offsets_to_json
from hindcast.pipeline import Pipeline
from hindcast.replay.recorded_plan import Counted, RecordedPlan
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_table import JudgedRange
from hindcast.replay.wait_for_stream import Awaited
from hindcast.serving.corrected_windows import NOTHING, Corrected, CorrectedRange
from hindcast.tables.excluded_records import Excluded, within
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.ledger_history import History, Segment
from hindcast.tables.oldest_batches import HistoryBase
from hindcast.tables.proofs import Proof, proof_before

#: A stream that others run is asked so often whether it is far enough.
FOREIGN_RETRY_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class ReplayInputs:
    """All that a plan depends on, read once.

    ``filed``: shard -> the last batch whose late and poison rows are in their tables. ``sink_version``: the
    sink's newest version, read after the ledger; -1 if there is no sink yet. ``sink_commits``: the sink's
    versions that are batches, or empty where the pipeline has windows. ``from_time_offsets`` and
    ``to_time_offsets``: the offsets that the request's times stand for. ``archived``: the ranges
    that the archives of the topics hold, by partition. ``judged``: where each verdict ended, the one that
    reaches furthest last. ``proofs``: the states from which a range without windows can go on.
    ``late_ends_ms``: the ends of the windows that a late row was for and that no correction has with that
    row, in order. ``excluded``: the records that the stream has left out.
    """

    history: History
    earliest: Offsets
    latest: Offsets
    filed: Mapping[str, int]
    sink_version: int
    now: datetime
    sink_commits: Sequence[int] = ()
    from_time_offsets: Offsets | None = None
    to_time_offsets: Offsets | None = None
    archived: Mapping[int, Ranges] = field(default_factory=dict)
    judged: Sequence[JudgedRange] = ()
    proofs: Sequence[Proof] = ()
    corrected: Corrected = NOTHING
    late_ends_ms: Sequence[int] = ()
    excluded: Excluded = field(default_factory=dict)

    @property
    def judged_to(self) -> Offsets:
        """The end of the verdict that reaches furthest; empty if there is none."""
        if not self.judged:
            return {}
        return self.judged[-1].end

    @property
    def held(self) -> HeldRecords:
        """What can be read of the topics and of their archives."""
        return HeldRecords(self.earliest, self.latest, self.archived)

    def missing(self, partition: int, start: int, end: int) -> Ranges:
        """What of a partition's [start, end) neither the topic nor its archive holds, in order."""
        return self.held.missing(partition, start, end)

    def seams(self, start: Offsets, end: Offsets) -> Offsets:
        """By partition, up to where [start, end) is read from the archive."""
        return self.held.seams(start, end)


@dataclass(frozen=True)
class _Asked:
    """The range that was asked for, and what of it is left out, in words."""

    start: Offsets
    end: Offsets
    left_out: str = ""


@dataclass(frozen=True)
class _Windows:
    """The windows with ``after_ms`` < end <= ``to_ms``, and from where on their rows are read."""

    after_ms: int
    to_ms: int
    read_from: Offsets


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """What a replay does. Offsets are partition -> offset, ends exclusive; the bounds of windows are epoch
    milliseconds of window *end*.

    ``windows_after_ms`` is exclusive, ``windows_to_ms`` inclusive. ``read_from`` is at or before ``start``.
    [read_from, seams) is read from the archive, [seams, end) from the topic. ``segments`` cover [read_from,
    end) and say for each offset by which batch, so with which watermark, it was read. ``recorded``: without
    windows, every batch of the range, also those that read nothing. ``sink_after``: without windows, the rows
    that the sink's versions after this one brought are judged; -1 for all rows. ``proof``: the state in which
    the range begins; None if it begins with the stream, or if its results depend on nothing before it.
    ``base``: what the batches before the range come to, if the next plan is to begin with that.
    ``corrected``: the corrections of its windows, as readers have them at ``corrections_version``, by runs
    that had read no further than ``end``: the online answer counts a late row that one of them has.
    ``left_out``: which part of what was asked lies before the stream's beginning, or which late rows can no
    longer be corrected, in words; empty if all of it is planned. ``excluded``: the records of [read_from,
    end) that the stream has left out, so the replay leaves them out. ``instants``: the times that were asked
    for, and the offsets that they stand for.
    """

    pipeline: str
    version: int
    topic: str
    asked: str
    start: Offsets
    end: Offsets
    read_from: Offsets
    seams: Offsets
    windows_after_ms: int
    windows_to_ms: int
    sink_after: int = -1
    sink_version: int
    segments: tuple[Segment, ...]
    batches: tuple[LedgerRow, ...]
    recorded: tuple[LedgerRow, ...] = ()
    proof: Proof | None = None
    base: HistoryBase | None = None
    corrections_version: int = NOTHING.version
    corrected: tuple[CorrectedRange, ...] = ()
    left_out: str = ""
    excluded: Excluded = field(default_factory=dict)
    instants: Mapping[datetime, Offsets] = field(default_factory=dict)

    def to_record(self, counted: Counted | None = None) -> RecordedPlan:
        """What the ``runs`` table keeps of it. Batches are only counted."""
        return RecordedPlan(
            asked=self.asked,
            topic=self.topic,
            start=self.start,
            end=self.end,
            read_from=self.read_from,
            seams=self.seams,
            windows_after_ms=self.windows_after_ms,
            windows_to_ms=self.windows_to_ms,
            sink_after=self.sink_after,
            sink_version=self.sink_version,
            proof=self._proof_run,
            corrections_version=self.corrections_version,
            batches=len(self.batches),
            left_out=self.left_out,
            excluded=self.excluded,
            instants=self.instants,
            counted=counted,
        )

    @property
    def _proof_run(self) -> str:
        if self.proof is None:
            return ""
        return self.proof.run_id


def make_plan(pipeline: Pipeline, request: ReplayRequest, facts: ReplayInputs) -> ReplayPlan:
    """The plan of a request.

    :raises BadRangeError: where the range is reversed, empty, of unknown partitions, before the stream's
        beginning or no longer retained
    :raises RangeNotYetConsumedError: where the stream has not committed all of it, or has not filed its late
        and poison rows yet
    :raises NothingLateError: where late rows are asked for, and each is in a correction or can never be
    :raises NothingToReplayError: if an interval of time lies before the stream's beginning, or holds no whole
        batch of a pipeline without windows
    """
    history = facts.history
    _check_begun(pipeline, request, facts)
    if not history.chains:
        raise not_yet(pipeline, f"version {pipeline.version} has committed no batch")
    if facts.sink_version < 0:
        raise not_yet(pipeline, f"there is no table of {pipeline.sink.name} yet")
    partitions = _partitions(facts)
    asked = _range(pipeline, request, facts, partitions)
    start = asked.start
    end = asked.end
    _check_order(request, start, end)
    _check_consumed(pipeline, facts, end)
    sink_version = facts.sink_version
    windows_after_ms = windows_to_ms = 0
    read_from = start
    sink_after = -1
    recorded: tuple[LedgerRow, ...] = ()
    proof = None
    if pipeline.window is None:
        commits = _whole_commits(pipeline, request, facts, start, end)
        start = read_from = commits.start
        end = commits.end
        sink_after = commits.after
        sink_version = commits.version
        recorded = commits.rows
        proof = commits.proof
    else:
        windows = _windows(pipeline, facts, partitions, start, end)
        windows_after_ms = windows.after_ms
        windows_to_ms = windows.to_ms
        read_from = windows.read_from
    _check_retained(request, facts, read_from, end)
    return ReplayPlan(
        pipeline=pipeline.name,
        version=pipeline.version,
        topic=pipeline.source.name,
        asked=request.describe(),
        start=start,
        end=end,
        read_from=read_from,
        seams=facts.seams(read_from, end),
        windows_after_ms=windows_after_ms,
        windows_to_ms=windows_to_ms,
        sink_after=sink_after,
        sink_version=sink_version,
        segments=tuple(history.reading(read_from, end)),
        batches=tuple(history.batches(start, end)),
        recorded=recorded,
        proof=proof,
        corrections_version=facts.corrected.version,
        corrected=facts.corrected.known_by(end).within(windows_after_ms, windows_to_ms),
        left_out=asked.left_out,
        excluded=within(facts.excluded, read_from, end),
        instants=_instants(request, facts),
    )


def _instants(request: ReplayRequest, facts: ReplayInputs) -> dict[datetime, Offsets]:
    instants = {}
    if request.from_time is not None and facts.from_time_offsets is not None:
        instants[request.from_time] = facts.from_time_offsets
    if request.to_time is not None and facts.to_time_offsets is not None:
        instants[request.to_time] = facts.to_time_offsets
    return instants


def not_yet(pipeline: Pipeline, problem: str, **awaited: Any) -> RangeNotYetConsumedError:
    """The error to raise while the stream is not that far.

    :param awaited: what is waited for, see :class:`Awaited`
    """
    if pipeline.is_foreign:
        # What a stream of others has done comes into the tables when it is asked again.
        later = datetime.now(UTC) + timedelta(seconds=FOREIGN_RETRY_SECONDS)
        awaited = {"at": later.isoformat()}
    what = Awaited(pipeline=pipeline.name, version=pipeline.version, **awaited)
    return RangeNotYetConsumedError(pipeline=pipeline.name, problem=problem, awaited=what)


def _check_begun(pipeline: Pipeline, request: ReplayRequest, facts: ReplayInputs) -> None:
    """An interval that ended before the stream's first offset has no result, and never will: waiting for one
    would be in vain.

    :raises NothingToReplayError: if the interval is one
    """
    if request.to_time is None or facts.to_time_offsets is None or request.to_time > facts.now:
        return
    begun = {
        partition: facts.history.first.get(partition, offset) for partition, offset in facts.earliest.items()
    }
    if any(facts.to_time_offsets[partition] > offset for partition, offset in begun.items()):
        return
    problem = f"no record of {' and '.join(topic.name for topic in pipeline.topics)} came before its end"
    if facts.history.chains:
        problem = f"the stream begins at offset {offsets_to_json(begun)}"
        problem += ", and no record from there on came before the range's end"
        if not pipeline.is_foreign:
            problem += f". `hindcast reprocess {pipeline.name} --from TIME` begins a version that has what"
            problem += " came before"
    raise NothingToReplayError(pipeline=pipeline.name, range=request.describe(), problem=problem)


def _left_out(asked: Offsets, begun: Offsets) -> str:
    """What of a range lies before the stream's beginning, in words."""
    before = [
        f"{offset} to {begun[partition]} of partition {partition}"
        for partition, offset in asked.items()
        if offset < begun[partition]
    ]
    return f"the stream began later, so offsets {', '.join(before)} are left out" if before else ""


def _windows(
    pipeline: Pipeline, facts: ReplayInputs, partitions: Sequence[int], start: Offsets, end: Offsets
) -> _Windows:
    """The windows that a replay of [start, end) judges.

    A batch that reads nothing may close windows, and may come after a verdict that ended at its offsets was
    planned. So a range that begins there begins with the windows that that verdict has not judged.
    """
    assert pipeline.window is not None
    history = facts.history
    after_ms = history.horizon_ms(start, partitions)
    begun = {partition: history.first.get(partition, 0) for partition in start}
    reached = [judged.windows_to_ms for judged in facts.judged if {**begun, **judged.end} == start]
    if reached:
        after_ms = min(after_ms, max(reached))
    to_ms = history.horizon_ms(end, partitions)
    read_from = start
    if to_ms > after_ms:
        # A window that ends after after_ms begins after after_ms - length; times of windows are whole
        # milliseconds.
        length_ms = int(pipeline.window.length.total_seconds() * 1000)
        read_from = history.first_needed(start, dict.fromkeys(start, after_ms - length_ms + 1))
    return _Windows(after_ms, to_ms, read_from)


def _partitions(facts: ReplayInputs) -> list[int]:
    """The topic's partitions that hold, or held, records. One without any has no windows to wait for."""
    return sorted(
        partition
        for partition in facts.latest
        if partition in facts.history.chains or facts.latest[partition] > 0
    )


def _range(
    pipeline: Pipeline, request: ReplayRequest, facts: ReplayInputs, partitions: Sequence[int]
) -> _Asked:
    history = facts.history
    if waiting := [pipeline.place(partition) for partition in partitions if partition not in history.chains]:
        topics = ", ".join(topic.name for topic in pipeline.topics)
        first = {partition: 1 for partition in partitions if partition not in history.chains}
        raise not_yet(
            pipeline, f"no batch has read partition {', '.join(waiting)} of {topics}", offsets=first
        )
    if request.from_offsets is not None and request.to_offsets is not None:
        _check_partitions(request, facts, partitions)
        first = {p: request.from_offsets[p] for p in partitions}
        last = {p: request.to_offsets[p] for p in partitions}
        return _Asked(first, last)
    if request.from_time is not None and request.to_time is not None:
        return _time_range(pipeline, request, facts, partitions)
    if request.late:
        return _late_range(pipeline, facts, partitions)
    reached, begun = history.audited(facts.filed), history.first
    start = {
        p: facts.judged_to.get(p, begun[p]) if request.since_last_verdict else begun[p] for p in partitions
    }
    end = {p: max(reached[p], start[p]) for p in partitions}
    if start == end:
        since = "since the last verdict" if request.since_last_verdict and facts.judged_to else "yet"
        unfiled = _unfiled(facts, history.committed)
        raise not_yet(
            pipeline, f"nothing was committed and filed {since}", batches=unfiled, beyond=history.committed
        )
    return _Asked(start, end)


def _late_range(pipeline: Pipeline, facts: ReplayInputs, partitions: Sequence[int]) -> _Asked:
    """From the first late window that can still be judged.

    A range for an earlier window reads all that one for a later window reads. So if a window can be judged,
    all later ones can.

    :raises NothingLateError: if there is none
    """
    ends = facts.late_ends_ms
    if not ends:
        raise NothingLateError(pipeline=pipeline.name)

    def is_held(window_end_ms: int) -> bool:
        return _is_held(pipeline, facts, partitions, window_end_ms)

    first = bisect_left(ends, True, key=is_held)
    left_out = _late_left_out(ends[:first])
    if first == len(ends):
        raise LateForGoodError(pipeline=pipeline.name, problem=left_out)
    start, end = _range_for(facts, partitions, ends[first])
    return _Asked(start, end, left_out)


def _is_held(pipeline: Pipeline, facts: ReplayInputs, partitions: Sequence[int], window_end_ms: int) -> bool:
    """Whether the topic and its archive hold all that a range reads that begins with this window, and whether
    a range can begin with it: no plan judges a window that ends at the epoch or before.
    """
    if window_end_ms <= 0:
        return False
    start, end = _range_for(facts, partitions, window_end_ms)
    read_from = _windows(pipeline, facts, partitions, start, end).read_from
    return not any(
        facts.missing(partition, offset, end[partition]) for partition, offset in read_from.items()
    )


def _range_for(facts: ReplayInputs, partitions: Sequence[int], window_end_ms: int) -> tuple[Offsets, Offsets]:
    """The start and the end of the range that judges all windows from this one on, up to what is filed."""
    open_to = facts.history.before_final(window_end_ms)
    reached = facts.history.audited(facts.filed)
    start = {partition: open_to[partition] for partition in partitions}
    end = {partition: max(reached[partition], offset) for partition, offset in start.items()}
    return start, end


def _late_left_out(ends: Sequence[int]) -> str:
    """Which late windows no run can begin with any more, in words; empty if there is none."""
    notes = []
    gone = [end for end in ends if end > 0]
    if gone:
        windows = f"{len(gone)} windows that end from {_time(gone[0])} to {_time(gone[-1])}"
        reason = "a replay from there on needs records that neither the topic nor an archive holds"
        notes.append(f"the late rows of {windows} stay uncorrected and are left out, because {reason}")
    judged_by_none = len(ends) - len(gone)
    if judged_by_none:
        windows = f"{judged_by_none} windows that end at {_time(0)} or before"
        reason = "no watermark is before that time"
        notes.append(f"the late rows of {windows} stay uncorrected and are left out, because {reason}")
    return "; ".join(notes)


def _time(epoch_ms: int) -> str:
    return utc_from_ms(epoch_ms).isoformat()


def _time_range(
    pipeline: Pipeline, request: ReplayRequest, facts: ReplayInputs, partitions: Sequence[int]
) -> _Asked:
    assert request.from_time is not None and request.to_time is not None
    if request.from_time >= request.to_time:
        raise BadRangeError(
            range=request.describe(),
            problem="it does not end after it begins",
            cure="Give --to-time after --from-time.",
        )
    if request.to_time > facts.now:
        raise not_yet(pipeline, f"{request.to_time.isoformat()} has not come", at=request.to_time.isoformat())
    start, end = (
        {p: offsets[p] for p in partitions}
        for offsets in (facts.from_time_offsets or {}, facts.to_time_offsets or {})
    )
    for partition in partitions:
        # The first offset that is still there answers for those that are gone; the ledger knows whether they
        # were of this range.
        for first, last in facts.missing(
            partition, facts.history.first[partition], facts.earliest[partition]
        ):
            gone = facts.history.committed_since(partition, first, last, request.from_time)
            if gone and first <= start[partition] <= last:
                _refuse_gap(request, facts, partition, (max(first, gone[0].start), last))
    begun = facts.history.first
    from_begin = {partition: max(offset, begun[partition]) for partition, offset in start.items()}
    to_begin = {partition: max(offset, begun[partition]) for partition, offset in end.items()}
    return _Asked(from_begin, to_begin, _left_out(start, begun))


def _check_partitions(request: ReplayRequest, facts: ReplayInputs, partitions: Sequence[int]) -> None:
    for option, offsets in (
        ("--from-offsets", request.from_offsets or {}),
        ("--to-offsets", request.to_offsets or {}),
    ):
        cure = f"Name these partitions: {', '.join(map(str, partitions))}."
        if unknown := sorted(set(offsets) - set(facts.latest)):
            raise BadRangeError(
                range=request.describe(),
                problem=f"the topic has no partition {', '.join(map(str, unknown))}",
                cure=cure,
            )
        if absent := sorted(set(partitions) - set(offsets)):
            partitions_without = ", ".join(map(str, absent))
            problem = f"{option} says nothing of partition {partitions_without}"
            problem += ", whose rows belong to the same windows"
            raise BadRangeError(range=request.describe(), problem=problem, cure=cure)


def _check_order(request: ReplayRequest, start: Offsets, end: Offsets) -> None:
    if reversed_ := [partition for partition in start if start[partition] > end[partition]]:
        problem = (
            f"partition {reversed_[0]} ends at {end[reversed_[0]]}, before it begins at {start[reversed_[0]]}"
        )
        raise BadRangeError(range=request.describe(), problem=problem, cure="Swap the two ends.")
    if start == end and request.from_offsets is not None:
        raise BadRangeError(
            range=request.describe(),
            problem="it is empty",
            cure="End offsets are exclusive: give greater ones.",
        )


def _check_consumed(pipeline: Pipeline, facts: ReplayInputs, end: Offsets) -> None:
    committed, filed = facts.history.committed, facts.history.audited(facts.filed)
    for partition, offset in end.items():
        if offset > committed[partition]:
            known = f"committed up to {committed[partition]} and the topic ends at {facts.latest[partition]}"
            problem = f"partition {partition} is asked up to offset {offset}, {known}"
            raise not_yet(pipeline, problem, offsets=end)
    for partition, offset in end.items():
        if offset > filed[partition]:
            problem = (
                f"late and poison rows of partition {partition} are filed up to offset {filed[partition]}"
            )
            problem += f", not yet up to {offset}"
            raise not_yet(pipeline, problem, batches=_unfiled(facts, end))


def _unfiled(facts: ReplayInputs, end: Offsets) -> dict[str, int]:
    """Shard -> its last batch below ``end``, of the shards of which such a batch is not filed yet."""
    last: dict[str, int] = {}
    for partition, offset in end.items():
        for segment in facts.history.chains[partition]:
            if segment.start < offset:
                last[segment.row.shard] = max(last.get(segment.row.shard, 0), segment.row.batch)
    return {shard: batch for shard, batch in sorted(last.items()) if batch > facts.filed.get(shard, -1)}


def _check_retained(request: ReplayRequest, facts: ReplayInputs, read_from: Offsets, end: Offsets) -> None:
    _check_was_input(request, facts, read_from)
    for partition, offset in read_from.items():
        if end[partition] > facts.latest[partition]:
            problem = f"partition {partition} ends at {facts.latest[partition]} now, before {end[partition]}"
            problem += ": the topic was created again"
            raise BadRangeError(
                range=request.describe(),
                problem=problem,
                cure="Restore the topic, or give the pipeline a new version.",
            )
        if gaps := facts.missing(partition, offset, end[partition]):
            _refuse_gap(request, facts, partition, *gaps)


def _refuse_gap(request: ReplayRequest, facts: ReplayInputs, partition: int, *gaps: Range) -> None:
    gone = f"the topic no longer holds {' and '.join(f'{first} to {last}' for first, last in gaps)}"
    no_archive = (
        "its archive does not either" if facts.archived.get(partition) else "it has no archive of them"
    )
    problem = f"its windows need partition {partition} from offset {gaps[0][0]}, and {gone}; {no_archive}"
    last = gaps[-1][1]
    cure = f"Start late enough that offsets from {last} on are all it needs of partition {partition}"
    cure += ", or restore the topic's data."
    raise BadRangeError(range=request.describe(), problem=problem, cure=cure)


@dataclass(frozen=True)
class _Commits:
    """Whole commits of the sink: its versions after ``after`` up to and including ``version``, and the
    offsets that their batches read. ``after`` is -1 at the stream's beginning.

    ``rows``: their batches. ``proof``: the state in which they begin, if their results depend on one.
    """

    start: Offsets
    end: Offsets
    after: int
    version: int
    rows: tuple[LedgerRow, ...]
    proof: Proof | None


@dataclass(frozen=True)
class _Begin:
    """Where whole commits begin: their first offsets, the version of the sink before, and their state."""

    start: Offsets
    after: int = -1
    proof: Proof | None = None


def _whole_commits(
    pipeline: Pipeline, request: ReplayRequest, facts: ReplayInputs, start: Offsets, end: Offsets
) -> _Commits:
    """Without windows no row of the sink says which offsets it came from. So such a range is made of whole
    commits: it ends at a version of the sink that holds the batches below ``end`` and no others.

    If each row comes from one record, it begins in the same way, at or before ``start``. All other results
    depend on all that came before. Their range begins with a proof at or before ``start``, or with the
    stream.
    """
    history = facts.history
    begun = {partition: history.first[partition] for partition in start}
    _check_was_input(request, facts, start)
    if pipeline.row_by_row:
        begin = _commits_before(facts, start, begun)
    else:
        begin = _proved_before(request, facts, start, begun)
    version = _last_version_below(pipeline, request, facts, end)
    chosen = history.up_to(version)
    reached = {partition: chosen.committed.get(partition, begun[partition]) for partition in start}
    if version <= begin.after or reached == begin.start:
        problem = "no version of the sink holds whole batches of this range only"
        if request.to_time is not None:  # all of it is committed, so waiting brings no other batches
            raise NothingToReplayError(pipeline=pipeline.name, range=request.describe(), problem=problem)
        raise not_yet(pipeline, problem, beyond=history.committed)
    return _Commits(begin.start, reached, begin.after, version, chosen.after(begin.after), begin.proof)


def _proved_before(request: ReplayRequest, facts: ReplayInputs, start: Offsets, begun: Offsets) -> _Begin:
    """The nearest place at or before ``start`` from which results can be judged that depend on all that came
    before.

    :raises BadRangeError: if offsets were asked for, and the place is another one
    """
    proof = proof_before(facts.proofs, start, begun)
    begin = _Begin(begun)
    if proof is not None:
        begin = _Begin({**begun, **proof.end}, proof.sink_version, proof)
    if request.from_offsets is not None and start != begin.start:
        problem = "a result that depends on earlier records is judged from the beginning"
        raise BadRangeError(
            range=request.describe(),
            problem=f"{problem}, or from where an earlier verdict ended",
            cure=f"Begin at {offsets_to_json(begin.start)}.",
        )
    return begin


def _last_version_below(pipeline: Pipeline, request: ReplayRequest, facts: ReplayInputs, end: Offsets) -> int:
    """The last version of the sink before a batch that read something from ``end`` on.

    A batch that the ledger does not have yet counts as one. But a range with a given end must not become
    shorter for it: the next one begins at that end, and none would have the rest.

    :raises RangeNotYetConsumedError: if such a batch is among those of a range with a given end
    """
    outside = facts.history.first_beyond(end)
    version = facts.sink_version
    if outside is not None:
        version = min(version, outside - 1)
    before = facts.history.up_to(version)
    before.check_holds(facts.sink_commits)
    known = {row.sink_version for row in before.rows}
    unknown = [commit for commit in facts.sink_commits if commit not in known and commit <= version]
    if not unknown:
        return version
    first_unknown = min(unknown)
    given_end = request.from_offsets is not None or request.to_time is not None
    if given_end and first_unknown < before.last_read:
        problem = f"the ledger does not have the batch of the sink's version {first_unknown} yet"
        raise not_yet(pipeline, problem, beyond=facts.history.committed)
    return first_unknown - 1


def _commits_before(facts: ReplayInputs, start: Offsets, begun: Offsets) -> _Begin:
    """The offsets of the whole commits below ``start``, and the version of the sink after which the range
    begins.

    A verdict that ended at these offsets has judged the table up to its own version. The range begins after
    that one, so that each commit is in one range, and what was written between two batches in one, too. After
    no verdict it begins after the last batch.
    """
    beyond = facts.history.first_beyond(start)
    below = facts.history
    if beyond is not None:
        below = below.up_to(beyond - 1)
    after = below.last_read
    if after < 0:
        return _Begin(begun)
    committed = below.committed
    reached = {partition: committed.get(partition, offset) for partition, offset in begun.items()}
    for judged in facts.judged:
        in_place = beyond is None or judged.sink_version < beyond
        if in_place and {**begun, **judged.end} == reached:
            after = max(after, judged.sink_version)
    return _Begin(reached, after)


def _check_was_input(request: ReplayRequest, facts: ReplayInputs, start: Offsets) -> None:
    """:raises BadRangeError: if the range begins before the stream did"""
    for partition, offset in start.items():
        begun = facts.history.first[partition]
        if begun > offset:
            problem = f"the stream began partition {partition} at offset {begun}"
            problem += f", so {offset} to {begun} were never its input"
            raise BadRangeError(
                range=request.describe(),
                problem=problem,
                cure=f"Start at {offsets_to_json(facts.history.first)} or later.",
            )
