"""The planner: from a request and the ledger to offsets and windows, without a JVM."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.simulated_stream import BASE_MS, Record, Simulated, simulate, trades

from hindcast import Mode, Table, Topic, Window, pipeline
from hindcast.archive.archive_or_live import extended
from hindcast.errors import (
    BadRangeError,
    HindcastError,
    LateForGoodError,
    NothingLateError,
    NothingToReplayError,
    RangeNotYetConsumedError,
)
from hindcast.partitions import Offsets, offsets_to_json
from hindcast.pipeline import Pipeline
from hindcast.replay.planner import ReplayInputs, ReplayPlan, make_plan
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_table import JudgedRange
from hindcast.replay.wait_for_stream import Awaited
from hindcast.tables.ledger_bases import base_below
from hindcast.tables.ledger_history import History, may_hold
from hindcast.tables.oldest_batches import HistoryBase, HistoryTooShortError
from hindcast.tables.proofs import Proof

ALL_FILED = 2**32


SCHEMA = "ticker string, ts timestamp, ask double"


@pipeline(
    source=Topic("trades", schema=SCHEMA, key="ticker"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("5 seconds", slide="1 second"),
    sink=Table("stock_stats", keys=["window", "ticker"]),
    version=1,
    shards=2,
)
def stock_stats(frame: Any) -> Any:
    return frame


@pipeline(
    source=Topic("trades", schema=SCHEMA),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("plain"),
    version=1,
)
def plain(frame: Any) -> Any:
    return frame


@pipeline(
    source=Topic("trades", schema=SCHEMA),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("counts", keys=["ticker"], mode=Mode.UPSERT),
    version=1,
)
def counts(frame: Any) -> Any:
    return frame


def facts_of(stream: Simulated, **changes: Any) -> ReplayInputs:
    history = History.of(stream.ledger)
    ends: dict[int, int] = {}
    for record in stream.records:
        ends[record.partition] = max(ends.get(record.partition, 0), record.offset + 1)
    facts = ReplayInputs(
        history=history,
        earliest=dict.fromkeys(ends, 0),
        latest=ends,
        filed={row.shard: ALL_FILED for row in stream.ledger},
        sink_version=len(stream.ledger),
        now=datetime.fromtimestamp(BASE_MS / 1000, UTC) + timedelta(days=2),
    )
    return replace(facts, **changes)


def ask(start: dict[int, int], end: dict[int, int], name: str = "stock_stats") -> ReplayRequest:
    return ReplayRequest(pipeline=name, from_offsets=start, to_offsets=end)


def everything(name: str = "stock_stats") -> ReplayRequest:
    return ReplayRequest(pipeline=name, everything=True)


@pytest.fixture(scope="module")
def stream() -> Simulated:
    return simulate(trades(1, count=3_000, partitions=4), seed=1, shards=2)


def read_by(stream: Simulated, plan: ReplayPlan) -> list[Record]:
    return [r for r in stream.records if plan.read_from[r.partition] <= r.offset < plan.end[r.partition]]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 4),
    cuts=st.integers(1, 6),
    batch_rows=st.integers(1, 120),
    late=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_consecutive_ranges_judge_every_window_once_with_all_its_rows(
    seed: int, shards: int, cuts: int, batch_rows: int, late: float
) -> None:
    """However the offsets are cut into ranges, its rows give exactly the stream's windows, none left out and
    none twice.
    """
    stream = simulate(
        trades(seed, count=400, partitions=4, late_share=late, rate_ms=200.0),
        seed=seed,
        shards=shards,
        batch_rows=batch_rows,
    )
    facts, rng = facts_of(stream), random.Random(seed)
    marks = [{p: rng.randint(0, end) for p, end in facts.latest.items()} for _ in range(cuts)]
    ordered = [{p: sorted(mark[p] for mark in marks)[number] for p in facts.latest} for number in range(cuts)]
    bounds = [facts.history.first, *ordered, facts.history.committed]
    judged: dict = {}
    for start, end in itertools.pairwise(bounds):
        if start == end:
            continue
        plan = make_plan(stock_stats, ask(start, end), facts)
        found = stream.answers(read_by(stream, plan), plan.windows_after_ms, plan.windows_to_ms, online=True)
        assert not found.keys() & judged.keys()
        judged.update(found)
    whole = make_plan(stock_stats, everything(), facts)
    assert judged == {key: value for key, value in stream.table.items() if key[0] <= whole.windows_to_ms}


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), shards=st.integers(1, 3))
def test_every_offset_read_has_the_watermark_of_its_batch(seed: int, shards: int) -> None:
    """The plan's segments cover [read_from, end) without gap or overlap, each with the late watermark of the
    batch that read it.
    """
    stream = simulate(trades(seed, count=300, partitions=3), seed=seed, shards=shards)
    facts, rng = facts_of(stream), random.Random(seed)
    start = {p: rng.randint(0, end - 1) for p, end in facts.latest.items()}
    plan = make_plan(stock_stats, ask(start, facts.latest), facts)
    covered = {(s.partition, offset): s.late_ms for s in plan.segments for offset in range(s.start, s.end)}
    assert sum(s.end - s.start for s in plan.segments) == len(covered)
    assert {r.place: stream.thresholds[r.place] for r in read_by(stream, plan)}.items() <= covered.items()


def test_a_range_that_ends_within_a_batch_judges_only_what_earlier_batches_made_final(
    stream: Simulated,
) -> None:
    """Windows that only the cut batch closed are left to the next range."""
    facts = facts_of(stream)
    row = [r for r in facts.history.rows if r.start_offsets != r.end_offsets][-3]
    inside = {
        **facts.history.committed,
        **{p: max(o - 1, row.start_offsets[p]) for p, o in row.end_offsets.items()},
    }
    plan = make_plan(stock_stats, ask(facts.history.first, inside), facts)
    assert plan.windows_to_ms < row.watermark_ms or plan.windows_to_ms <= row.late_watermark_ms


def test_a_range_reads_back_to_rows_of_windows_that_were_open_at_its_start(stream: Simulated) -> None:
    """read_from lies before start, but not at the topic's beginning."""
    facts = facts_of(stream)
    start = {p: end - 50 for p, end in facts.latest.items()}
    plan = make_plan(stock_stats, ask(start, facts.latest), facts)
    assert all(0 < plan.read_from[p] < start[p] for p in start)
    assert plan.batches
    assert plan.windows_after_ms < plan.windows_to_ms


def test_rows_read_again_after_a_rebuild_stay_with_the_batch_that_read_them_first() -> None:
    """A rebuilt shard rewinds; the overlap is no gap and changes no threshold."""
    stream = simulate(trades(3, count=300, partitions=1), seed=3, shards=1)
    last = History.of(stream.ledger).rows[-1]
    again = replace(
        last,
        epoch=2,
        batch=last.batch + 1,
        start_offsets={0: 100},
        end_offsets={0: 300},
        late_watermark_ms=0,
        watermark_ms=0,
        sink_version=last.sink_version + 1,
    )
    history = History.of([*stream.ledger, again])
    assert history.committed == {0: 300}
    assert [s.row.batch for s in history.reading({0: 100}, {0: 300})] == [
        s.row.batch for s in History.of(stream.ledger).reading({0: 100}, {0: 300})
    ]
    assert history.horizon_ms({0: 300}, [0]) == last.watermark_ms


def test_what_lies_past_a_gap_in_the_ledger_is_not_yet_known() -> None:
    """A missing batch ends what can be replayed until it is repaired."""
    stream = simulate(trades(4, count=300, partitions=1), seed=4, shards=1)
    missing = next(row for row in stream.ledger[3:] if row.start_offsets != row.end_offsets)
    history = History.of(row for row in stream.ledger if row is not missing)
    assert history.committed == missing.start_offsets


@pytest.mark.parametrize(
    ("start", "end", "problem"),
    [
        ({0: 10, 1: 0, 2: 0, 3: 0}, {0: 5, 1: 9, 2: 9, 3: 9}, "before it begins"),
        ({0: 5, 1: 5, 2: 5, 3: 5}, {0: 5, 1: 5, 2: 5, 3: 5}, "empty"),
        ({0: 0, 1: 0, 2: 0, 9: 0}, {0: 5, 1: 5, 2: 5, 3: 5}, "no partition 9"),
        ({0: 0, 1: 0, 2: 0}, {0: 5, 1: 5, 2: 5, 3: 5}, "nothing of partition 3|says nothing"),
    ],
)
def test_a_bad_offset_range_is_refused_with_a_cure(
    stream: Simulated, start: dict[int, int], end: dict[int, int], problem: str
) -> None:
    """Reversed and empty ranges and unknown partitions exit with 2."""
    with pytest.raises(BadRangeError, match=problem) as caught:
        make_plan(stock_stats, ask(start, end), facts_of(stream))
    assert caught.value.exit_code == 2


def test_offsets_that_the_topic_no_longer_holds_are_named(stream: Simulated) -> None:
    """A range past retention says which offsets are gone."""
    facts = facts_of(stream, earliest={0: 40, 1: 0, 2: 0, 3: 0})
    with pytest.raises(BadRangeError, match="no longer holds 0 to 40"):
        make_plan(stock_stats, everything(), facts)


def test_what_the_topic_dropped_is_read_from_the_archive_up_to_an_exact_seam(stream: Simulated) -> None:
    """[read_from, seam) from the archive, [seam, end) from the topic; a partition that the topic holds wholly
    is read from it alone.
    """
    facts = facts_of(stream)
    archived = {p: ((0, end - 20),) for p, end in facts.latest.items()}
    facts = replace(facts, earliest={0: 40, 1: 0, 2: 60, 3: facts.latest[3] - 20}, archived=archived)
    plan = make_plan(stock_stats, everything(), facts)
    assert plan.seams == {0: facts.latest[0] - 20, 1: 0, 2: facts.latest[2] - 20, 3: facts.latest[3] - 20}
    assert plan.to_record().to_json()["archive_to"] == {str(p): seam for p, seam in plan.seams.items()}


@settings(max_examples=60)
@given(data=st.data())
def test_a_plan_reads_each_offset_from_one_of_both_or_names_what_neither_holds(
    stream: Simulated, data: st.DataObject
) -> None:
    """Whatever is retained and archived, with one accepted gap: each needed offset comes from where it is
    held, or the gap is named.
    """
    whole = facts_of(stream)
    earliest = {p: data.draw(st.integers(0, end)) for p, end in whole.latest.items()}
    marks = {
        p: sorted(data.draw(st.lists(st.integers(0, end), min_size=3, max_size=3)))
        for p, end in whole.latest.items()
    }
    archived = {
        p: extended(extended((), 0, first), second, last) for p, (first, second, last) in marks.items()
    }
    facts = replace(whole, earliest=earliest, archived=archived)
    request = ask({p: end // 2 for p, end in whole.latest.items()}, whole.latest)
    needed = make_plan(stock_stats, request, whole).read_from
    held = {
        p: {o for first, last in archived[p] for o in range(first, last)} | set(range(earliest[p], end))
        for p, end in whole.latest.items()
    }
    lacking = {p: sorted(set(range(needed[p], end)) - held[p]) for p, end in whole.latest.items()}
    if any(lacking.values()):
        partition = next(p for p in needed if lacking[p])
        with pytest.raises(
            BadRangeError,
            match=f"partition {partition} from offset {lacking[partition][0]}, and .* no longer holds",
        ):
            make_plan(stock_stats, request, facts)
        return
    plan = make_plan(stock_stats, request, facts)
    for p, seam in plan.seams.items():
        assert plan.read_from[p] <= seam <= plan.end[p]
        assert set(range(plan.read_from[p], seam)) <= {
            o for first, last in archived[p] for o in range(first, last)
        }
        assert seam == plan.end[p] or seam >= earliest[p]


def test_a_range_that_neither_topic_nor_archive_holds_is_named(stream: Simulated) -> None:
    """Each gap of the partition, from and to."""
    facts = facts_of(stream, earliest={0: 90, 1: 0, 2: 0, 3: 0}, archived={0: ((0, 30), (40, 80))})
    with pytest.raises(
        BadRangeError, match="no longer holds 30 to 40 and 80 to 90; its archive does not either"
    ):
        make_plan(stock_stats, everything(), facts)


def test_rows_that_only_the_windows_need_must_be_retained_too(stream: Simulated) -> None:
    """A start after the earliest offset is refused where its first windows began before it."""
    facts = facts_of(stream)
    start = {p: end - 50 for p, end in facts.latest.items()}
    with pytest.raises(BadRangeError, match="its windows need"):
        make_plan(
            stock_stats,
            ask(start, facts.latest),
            replace(facts, earliest={p: o - 1 for p, o in start.items()}),
        )


def test_a_topic_that_was_made_anew_is_refused(stream: Simulated) -> None:
    """Offsets of the ledger that the topic has not reached are not those records any more."""
    facts = facts_of(stream)
    with pytest.raises(BadRangeError, match="created again"):
        make_plan(stock_stats, everything(), replace(facts, latest=dict.fromkeys(facts.latest, 7)))


def test_offsets_before_the_streams_beginning_are_refused(stream: Simulated) -> None:
    """What the stream never read cannot be held against it."""
    rows = [
        replace(row, start_offsets={p: max(o, 30) for p, o in row.start_offsets.items()})
        for row in stream.ledger
        if min(row.end_offsets.values()) > 30
    ]
    with pytest.raises(BadRangeError, match="were never its input"):
        make_plan(
            stock_stats,
            ask(dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 90)),
            facts_of(stream, history=History.of(rows)),
        )


def test_a_range_past_the_last_commit_asks_for_a_retry(stream: Simulated) -> None:
    """Exit 75: nothing is clipped in silence."""
    facts = facts_of(stream)
    with pytest.raises(RangeNotYetConsumedError, match="committed up to") as caught:
        make_plan(
            stock_stats, ask(facts.history.first, {p: end + 1 for p, end in facts.latest.items()}), facts
        )
    assert caught.value.exit_code == 75


def test_a_range_past_the_audit_asks_for_a_retry_and_all_takes_what_is_filed(stream: Simulated) -> None:
    """Late rows not yet filed would look lost, so an explicit range waits and "all" ends before them."""
    facts = facts_of(stream, filed={"v1.g0.s0": 5, "v1.g0.s1": ALL_FILED})
    with pytest.raises(RangeNotYetConsumedError, match="filed up to"):
        make_plan(stock_stats, ask(facts.history.first, facts.history.committed), facts)
    plan = make_plan(stock_stats, everything(), facts)
    fifth = next(row for row in stream.ledger if row.shard == "v1.g0.s0" and row.batch == 5)
    assert {p: plan.end[p] for p in fifth.end_offsets} == fifth.end_offsets


def test_a_partition_that_no_batch_has_read_holds_the_verdict_back(stream: Simulated) -> None:
    """A shard that has not begun may still hold keys of every window."""
    rows = [row for row in stream.ledger if row.shard == "v1.g0.s0"]
    with pytest.raises(RangeNotYetConsumedError, match="no batch has read partition 1, 3"):
        make_plan(stock_stats, everything(), facts_of(stream, history=History.of(rows)))


def test_a_partition_without_a_record_is_waited_for_by_nobody(stream: Simulated) -> None:
    """An empty partition, even one no shard has met, leaves the bounds alone."""
    facts = facts_of(stream)
    grown = replace(facts, latest={**facts.latest, 4: 0}, earliest={**facts.earliest, 4: 0})
    assert (
        make_plan(stock_stats, everything(), grown).windows_to_ms
        == make_plan(stock_stats, everything(), facts).windows_to_ms
        > BASE_MS
    )


def test_a_plan_leaves_out_what_the_stream_has_left_out(stream: Simulated) -> None:
    """Also of the rows before the range that only its windows need. The run's record has them, too."""
    facts = facts_of(stream)
    start = {partition: end * 9 // 10 for partition, end in facts.latest.items()}
    end = {partition: end - 5 for partition, end in facts.latest.items()}
    first = make_plan(stock_stats, ask(start, end), facts).read_from[0]
    assert 0 < first < start[0]
    named = {0: {first - 1: "A", first: "B", start[0]: "C", end[0] - 1: "D", end[0]: "E"}}
    plan = make_plan(stock_stats, ask(start, end), facts_of(stream, excluded=named))
    assert plan.excluded == {0: {first: "B", start[0]: "C", end[0] - 1: "D"}}
    assert RecordedPlan.from_text(plan.to_record().text()).excluded == plan.excluded
    without = make_plan(stock_stats, ask(start, end), facts_of(stream))
    assert "excluded" not in without.to_record().to_json()


def test_the_next_verdict_begins_where_the_last_one_ended(stream: Simulated) -> None:
    """Windows judged before are not judged again; without a verdict the range is all there is; without news
    it is a retry.
    """
    facts, request = facts_of(stream), ReplayRequest(pipeline="stock_stats", since_last_verdict=True)
    assert make_plan(stock_stats, request, facts).start == facts.history.first
    middle = {p: end // 2 for p, end in facts.latest.items()}
    before = make_plan(stock_stats, ask(facts.history.first, middle), facts)
    judged = [JudgedRange(middle, 1, before.windows_to_ms)]
    plan = make_plan(stock_stats, request, replace(facts, judged=judged))
    assert plan.start == middle
    assert plan.windows_after_ms == before.windows_to_ms
    with pytest.raises(RangeNotYetConsumedError, match="since the last verdict"):
        make_plan(stock_stats, request, replace(facts, judged=[JudgedRange(facts.history.committed, 1)]))


@settings(max_examples=100)
@given(seed=st.integers(0, 10_000), cut=st.floats(0.1, 0.9))
def test_windows_that_a_later_empty_batch_closes_are_of_the_next_range(seed: int, cut: float) -> None:
    """The first range is planned before the ledger has that batch, which ends at the same offsets."""
    rows = simulate(trades(seed, count=300, partitions=2), seed=seed, shards=1, batch_rows=20).ledger
    known = rows[: max(1, int(cut * len(rows)))]
    facts = facts_of(simulate(trades(seed, count=300, partitions=2), seed=seed, shards=1, batch_rows=20))
    early = replace(facts, history=History.of(known), latest=History.of(known).committed)
    assume(set(early.latest) == set(facts.latest))
    assume(early.latest != early.history.first)
    first = make_plan(stock_stats, everything(), early)
    empty = replace(
        known[-1],
        batch=known[-1].batch + 1,
        start_offsets=known[-1].end_offsets,
        sink_version=known[-1].sink_version + 1,
        watermark_ms=known[-1].watermark_ms + 7_000,
    )
    after = [
        replace(row, batch=row.batch + 1, sink_version=row.sink_version + 1) for row in rows[len(known) :]
    ]
    judged = [JudgedRange(first.end, first.sink_version, first.windows_to_ms)]
    later = replace(facts, history=History.of([*known, empty, *after]), judged=judged)
    assume(History.of([*known, empty, *after]).committed != first.end)
    second = make_plan(stock_stats, ReplayRequest(pipeline="stock_stats", since_last_verdict=True), later)
    assert second.start == first.end
    assert second.windows_after_ms == first.windows_to_ms


def _between(start: datetime, end: datetime) -> ReplayRequest:
    return ReplayRequest(pipeline="stock_stats", from_time=start, to_time=end)


LATE = ReplayRequest(pipeline="stock_stats", late=True)


def window_ends(stream: Simulated) -> list[int]:
    return sorted({end for end, _ in stream.table})


def test_late_rows_whose_records_are_gone_do_not_hold_up_newer_ones(stream: Simulated) -> None:
    """The plan begins at the first window that can still be judged and names those before it."""
    facts = facts_of(stream)
    old, older, new = (window_ends(stream)[index] for index in (5, 9, -20))
    alone = make_plan(stock_stats, LATE, replace(facts, late_ends_ms=[new]))
    assert alone.left_out == ""
    assert alone.windows_after_ms < new <= alone.windows_to_ms
    held = replace(facts, earliest=alone.read_from, late_ends_ms=[old, older, new])
    plan = make_plan(stock_stats, LATE, held)
    assert replace(plan, left_out="") == alone
    shown = [datetime.fromtimestamp(end / 1000, UTC).isoformat() for end in (old, older)]
    windows = f"2 windows that end from {shown[0]} to {shown[1]}"
    assert plan.left_out.startswith(f"the late rows of {windows} stay uncorrected and are left out")
    archived = {p: ((0, offset),) for p, offset in held.earliest.items()}
    from_archive = make_plan(stock_stats, LATE, replace(held, archived=archived))
    assert from_archive.left_out == ""
    assert from_archive.windows_after_ms < old


def test_late_rows_of_windows_before_the_epoch_do_not_hold_up_newer_ones(stream: Simulated) -> None:
    """No watermark is before the epoch, so no plan judges a window that ends there: it is named."""
    facts = facts_of(stream)
    new = window_ends(stream)[-20]
    plan = make_plan(stock_stats, LATE, replace(facts, late_ends_ms=[-62_135_596_799_000, 0, new]))
    assert replace(plan, left_out="") == make_plan(stock_stats, LATE, replace(facts, late_ends_ms=[new]))
    assert plan.left_out.startswith(
        "the late rows of 2 windows that end at 1970-01-01T00:00:00+00:00 or before"
    )


def test_late_rows_that_can_never_be_corrected_are_no_work(stream: Simulated) -> None:
    """There is nothing to replay, as if no row was late, and the message names what stays uncorrected."""
    facts = facts_of(stream)
    with pytest.raises(NothingLateError, match="or are still open"):
        make_plan(stock_stats, LATE, facts)
    gone = replace(facts, earliest=facts.latest, late_ends_ms=[-5, window_ends(stream)[5]])
    with pytest.raises(LateForGoodError, match=r"1 windows .* no archive|1 windows .* or before") as caught:
        make_plan(stock_stats, LATE, gone)
    assert isinstance(caught.value, NothingLateError)
    assert caught.value.exit_code == 0
    assert "an archive holds; the late rows of 1 windows that end at 1970" in str(caught.value)


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), shards=st.integers(1, 2), data=st.data())
def test_late_rows_are_planned_from_the_first_window_that_can_be_judged(
    seed: int, shards: int, data: st.DataObject
) -> None:
    """Whatever the topic and its archive hold: the plan is that of the first window for which there is one."""
    stream = simulate(trades(seed, count=300, partitions=2, late_share=0.05), seed=seed, shards=shards)
    facts = facts_of(stream)
    assume(window_ends(stream))  # a stream may be too short to close one
    ends = sorted(data.draw(st.sets(st.sampled_from(window_ends(stream)), min_size=1, max_size=4)))
    cut = {p: data.draw(st.integers(0, end)) for p, end in facts.latest.items()}
    archived = {p: data.draw(st.sampled_from([(), ((0, at),), ((at // 2, at),)])) for p, at in cut.items()}
    facts = replace(facts, earliest=cut, archived={p: ranges for p, ranges in archived.items() if cut[p]})
    alone: list[ReplayPlan] = []
    for end in ends:
        try:
            alone.append(make_plan(stock_stats, LATE, replace(facts, late_ends_ms=[end])))
        except LateForGoodError:
            assert not alone, "a window can be judged, and a later one cannot"
    every = replace(facts, late_ends_ms=ends)
    if not alone:
        with pytest.raises(LateForGoodError, match=f"{len(ends)} windows"):
            make_plan(stock_stats, LATE, every)
        return
    plan = make_plan(stock_stats, LATE, every)
    assert replace(plan, left_out="") == alone[0]
    assert bool(plan.left_out) == (len(alone) < len(ends))


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), shards=st.integers(1, 2), partitions=st.integers(1, 2))
def test_a_plan_for_a_late_row_judges_its_window(seed: int, shards: int, partitions: int) -> None:
    """Also if the batch that made the window final read nothing."""
    stream = simulate(trades(seed, count=200, partitions=partitions), seed=seed, shards=shards)
    facts = facts_of(stream)
    final = make_plan(stock_stats, everything(), facts).windows_to_ms
    for end in window_ends(stream):
        if end <= final:
            plan = make_plan(stock_stats, LATE, replace(facts, late_ends_ms=[end]))
            assert plan.windows_after_ms < end <= plan.windows_to_ms


def test_an_interval_of_time_becomes_the_brokers_offsets(stream: Simulated) -> None:
    """An interval that has not ended is retried; one without records is a plan of nothing; a reversed one is
    refused.
    """
    facts = facts_of(stream)
    start, end = {p: o // 3 for p, o in facts.latest.items()}, {p: o // 2 for p, o in facts.latest.items()}
    at = datetime(2026, 1, 1, tzinfo=UTC)
    timed = replace(facts, from_time_offsets=start, to_time_offsets=end)
    plan = make_plan(stock_stats, _between(at, at + timedelta(minutes=1)), timed)
    assert (plan.start, plan.end) == (start, end)
    quiet = make_plan(
        stock_stats, _between(at, at + timedelta(minutes=1)), replace(timed, to_time_offsets=start)
    )
    assert quiet.windows_after_ms == quiet.windows_to_ms
    with pytest.raises(RangeNotYetConsumedError, match="has not come"):
        make_plan(stock_stats, _between(at, facts.now + timedelta(minutes=1)), timed)
    with pytest.raises(BadRangeError, match="does not end after"):
        make_plan(stock_stats, _between(at, at), timed)


def _begun_at(stream: Simulated, offset: int) -> History:
    """The history of a stream that began at this offset of each partition."""
    rows = [
        replace(row, start_offsets={p: max(o, offset) for p, o in row.start_offsets.items()})
        for row in stream.ledger
        if min(row.end_offsets.values()) > offset
    ]
    return History.of(rows)


@pytest.mark.parametrize(("declared", "name"), [(stock_stats, "stock_stats"), (plain, "plain")])
def test_an_interval_before_the_streams_beginning_is_answered_at_once(
    stream: Simulated, declared: Pipeline, name: str
) -> None:
    """A schedule's first interval mostly is one: nothing to wait for, and nothing that is wrong."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    request = ReplayRequest(pipeline=name, from_time=at, to_time=at + timedelta(hours=1))
    history = _begun_at(stream, 30)
    timed = facts_of(
        stream,
        history=history,
        from_time_offsets=dict.fromkeys(range(4), 0),
        to_time_offsets=dict.fromkeys(range(4), 30),
    )
    with pytest.raises(NothingToReplayError, match="begins at offset") as caught:
        make_plan(declared, request, timed)
    assert caught.value.exit_code == 0
    unread = replace(
        timed, history=History.of([]), sink_version=-1, to_time_offsets=dict.fromkeys(range(4), 0)
    )
    with pytest.raises(NothingToReplayError, match="no record"):
        make_plan(declared, request, unread)
    read_soon = replace(unread, to_time_offsets=dict.fromkeys(range(4), 30))
    with pytest.raises(RangeNotYetConsumedError, match="has committed no batch"):
        make_plan(declared, request, read_soon)


def test_an_interval_that_begins_before_the_stream_is_replayed_from_the_streams_beginning(
    stream: Simulated,
) -> None:
    """The plan says what it leaves out; the same interval of a stream that has all of it leaves out
    nothing.
    """
    at = datetime(2026, 1, 1, tzinfo=UTC)
    history = _begun_at(stream, 30)
    end = {p: o // 2 for p, o in history.committed.items()}
    begun = history.first
    timed = facts_of(
        stream,
        history=history,
        from_time_offsets={0: 0, 1: begun[1], 2: 10, 3: begun[3] + 9},
        to_time_offsets=end,
    )
    plan = make_plan(stock_stats, _between(at, at + timedelta(hours=1)), timed)
    assert (plan.start, plan.end) == ({**begun, 3: begun[3] + 9}, end)
    named = f"offsets 0 to {begun[0]} of partition 0, 10 to {begun[2]} of partition 2 are left out"
    assert plan.left_out == f"the stream began later, so {named}"
    assert plan.to_record().to_json()["left_out"] == plan.left_out
    whole = make_plan(
        stock_stats, _between(at, at + timedelta(hours=1)), replace(timed, history=History.of(stream.ledger))
    )
    assert whole.left_out == ""


def test_an_interval_without_a_whole_batch_is_answered_at_once() -> None:
    """Without windows only whole batches can be judged. All of the interval is committed, so waiting would
    bring no more.
    """
    stream = simulate(trades(5, count=200, partitions=2), seed=5, shards=1, pipeline="plain")
    facts = facts_of(stream, sink_commits=tuple(range(1, len(stream.ledger) + 1)))
    first = next(row for row in facts.history.rows if all(row.end_offsets.values()))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    request = ReplayRequest(pipeline="plain", from_time=at, to_time=at + timedelta(hours=1))
    cut = {p: o - 1 for p, o in first.end_offsets.items()}
    timed = replace(facts, from_time_offsets=dict.fromkeys(cut, 0), to_time_offsets=cut)
    history = replace(facts, history=History.of(facts.history.rows[facts.history.rows.index(first) :]))
    with pytest.raises(NothingToReplayError, match="whole batches"):
        make_plan(plain, request, replace(timed, history=history.history))


def test_what_is_not_yet_consumed_says_what_it_waits_for(stream: Simulated) -> None:
    """The offsets that are to be committed, or the batches that are to be filed: whoever waits for them need
    not plan again.
    """
    facts = facts_of(stream)
    asked = {p: end + 1 for p, end in facts.latest.items()}
    with pytest.raises(RangeNotYetConsumedError) as caught:
        make_plan(stock_stats, ask(facts.history.first, asked), facts)
    assert caught.value.awaited == Awaited(pipeline="stock_stats", version=1, offsets=asked)
    unfiled = facts_of(stream, filed={"v1.g0.s0": 5, "v1.g0.s1": ALL_FILED})
    with pytest.raises(RangeNotYetConsumedError) as caught:
        make_plan(stock_stats, ask(facts.history.first, facts.history.committed), unfiled)
    last = max(
        row.batch for row in stream.ledger if row.shard == "v1.g0.s0" and row.start_offsets != row.end_offsets
    )
    assert caught.value.awaited == Awaited(pipeline="stock_stats", version=1, batches={"v1.g0.s0": last})


def test_an_interval_of_which_records_are_gone_is_refused(stream: Simulated) -> None:
    """The broker answers with the first offset it still has; the ledger knows that earlier ones were of the
    interval.
    """
    facts = facts_of(stream)
    earliest = {p: o // 2 for p, o in facts.latest.items()}
    at = datetime.fromtimestamp(BASE_MS / 1000, UTC)
    with pytest.raises(BadRangeError, match="no longer holds"):
        make_plan(
            stock_stats,
            _between(at, at + timedelta(days=1)),
            replace(facts, earliest=earliest, from_time_offsets=earliest, to_time_offsets=facts.latest),
        )


def test_an_interval_of_which_records_are_archived_is_planned(stream: Simulated) -> None:
    """What the archive holds of an interval is not gone; what lies before an archived answer or after the
    interval refuses nothing.
    """
    facts = facts_of(stream)
    earliest = {p: o // 2 for p, o in facts.latest.items()}
    at = datetime.fromtimestamp(BASE_MS / 1000, UTC)
    timed = replace(
        facts,
        earliest=earliest,
        archived={p: ((0, o),) for p, o in earliest.items()},
        from_time_offsets=dict.fromkeys(earliest, 0),
        to_time_offsets=facts.latest,
    )
    plan = make_plan(stock_stats, _between(at, at + timedelta(days=1)), timed)
    assert (plan.start, plan.seams) == (dict.fromkeys(earliest, 0), earliest)
    early = replace(
        timed,
        archived={p: ((0, o - 10),) for p, o in earliest.items()},
        to_time_offsets={p: o - 10 for p, o in earliest.items()},
    )
    assert make_plan(stock_stats, _between(at, at + timedelta(days=1)), early).seams == early.to_time_offsets
    late = replace(early, from_time_offsets=earliest, to_time_offsets=facts.latest)
    with pytest.raises(BadRangeError, match="no longer holds"):
        make_plan(stock_stats, _between(at, at + timedelta(days=1)), late)


def _plain_facts(seed: int, shards: int, batch_rows: int = 30, **changes: Any) -> ReplayInputs:
    """A stream without windows whose sink has a commit of something else before each batch and at the end."""
    stream = simulate(
        trades(seed, count=300, partitions=4),
        seed=seed,
        shards=shards,
        pipeline="plain",
        batch_rows=batch_rows,
    )
    rows = [replace(row, sink_version=2 * row.sink_version) for row in stream.ledger]
    commits = [row.sink_version for row in rows]
    newest = 2 * len(rows) + 1
    return facts_of(stream, history=History.of(rows), sink_commits=commits, sink_version=newest, **changes)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 4),
    cuts=st.integers(1, 6),
    batch_rows=st.integers(1, 120),
    verdicts=st.booleans(),
)
def test_consecutive_ranges_without_windows_judge_each_commit_once(
    seed: int, shards: int, cuts: int, batch_rows: int, verdicts: bool
) -> None:
    """However the offsets are cut into ranges, each batch is in one of them, with the offsets that it read.
    If each range got a verdict, so is every other commit of the sink.
    """
    facts, rng = _plain_facts(seed, shards, batch_rows), random.Random(seed)
    marks = [{p: rng.randint(0, end) for p, end in facts.latest.items()} for _ in range(cuts)]
    ordered = [{p: sorted(mark[p] for mark in marks)[number] for p in facts.latest} for number in range(cuts)]
    bounds = [facts.history.first, *ordered, facts.history.committed]
    judged: list[JudgedRange] = []
    plans = []
    for start, end in itertools.pairwise(bounds):
        try:
            plan = make_plan(plain, ask(start, end, "plain"), replace(facts, judged=judged))
        except (RangeNotYetConsumedError, BadRangeError):
            continue  # no whole batch, or no offset
        plans.append(plan)
        if verdicts:
            judged.append(JudgedRange(plan.end, plan.sink_version))
    assert [plan.start for plan in plans] == [facts.history.first, *(plan.end for plan in plans[:-1])]
    assert (plans[0].sink_after, plans[-1].sink_version) == (-1, facts.sink_version)
    versions = [version for plan in plans for version in range(plan.sink_after + 1, plan.sink_version + 1)]
    if verdicts:
        assert versions == list(range(facts.sink_version + 1))
    for plan in plans:
        inside = [
            row for row in facts.history.rows if plan.sink_after < row.sink_version <= plan.sink_version
        ]
        assert {row.sink_version for row in inside if row.reads} == {row.sink_version for row in plan.batches}
        read = sum(end - row.start_offsets[p] for row in inside for p, end in row.end_offsets.items())
        assert read == sum(plan.end[p] - offset for p, offset in plan.start.items())
    batches = [row.sink_version for plan in plans for row in plan.batches]
    assert sorted(batches) == sorted(row.sink_version for row in facts.history.rows if row.reads)


def test_a_range_without_windows_is_rounded_to_whole_commits() -> None:
    """It ends before the first batch beyond its end, and begins after the last one below its start."""
    facts = _plain_facts(5, shards=1)
    first, second, third = [row for row in facts.history.rows if row.reads][2:5]
    asked = ask(
        {p: min(o + 1, facts.latest[p]) for p, o in first.end_offsets.items()},
        {p: min(o + 1, facts.latest[p]) for p, o in third.end_offsets.items()},
        "plain",
    )
    plan = make_plan(plain, asked, facts)
    assert (plan.start, plan.end) == (first.end_offsets, third.end_offsets)
    assert (plan.sink_after, plan.sink_version) == (first.sink_version, third.sink_version + 1)
    assert [row.sink_version for row in plan.batches] == [second.sink_version, third.sink_version]
    again = make_plan(plain, ask(plan.start, plan.end, "plain"), facts)
    assert (again.start, again.end, again.sink_after) == (plan.start, plan.end, plan.sink_after)


def test_a_range_begins_at_the_version_up_to_which_a_verdict_has_judged() -> None:
    """What was written between the last batch and that version is in the range before. A verdict that ended
    at other offsets says nothing.
    """
    facts = _plain_facts(5, shards=1)
    first, second = [row for row in facts.history.rows if row.reads][2:4]
    asked = ask(first.end_offsets, second.end_offsets, "plain")
    here = JudgedRange(first.end_offsets, first.sink_version + 1)
    elsewhere = JudgedRange(second.end_offsets, first.sink_version + 1)
    assert make_plan(plain, asked, replace(facts, judged=[here])).sink_after == first.sink_version + 1
    assert make_plan(plain, asked, replace(facts, judged=[elsewhere])).sink_after == first.sink_version


def test_a_range_with_a_given_end_waits_for_the_ledger() -> None:
    """A batch that is in the sink and not yet in the ledger would be in no range, so the range is not cut
    short at it. All that is there is planned up to it.
    """
    facts = _plain_facts(5, shards=1)
    reading = [row for row in facts.history.rows if row.reads]
    unknown = reading[2].sink_version - 1
    late_ledger = replace(facts, sink_commits=[*facts.sink_commits, unknown])
    with pytest.raises(RangeNotYetConsumedError, match=f"version {unknown} yet"):
        make_plan(plain, ask(facts.history.first, reading[3].end_offsets, "plain"), late_ledger)
    plan = make_plan(plain, everything("plain"), late_ledger)
    assert (plan.end, plan.sink_version) == (reading[1].end_offsets, unknown - 1)
    beyond = replace(facts, sink_commits=[*facts.sink_commits, reading[3].sink_version + 1])
    plan = make_plan(plain, ask(facts.history.first, reading[3].end_offsets, "plain"), beyond)
    assert (plan.end, plan.sink_version) == (reading[3].end_offsets, reading[3].sink_version)


def test_a_result_of_earlier_records_is_judged_from_the_beginning() -> None:
    """A running result depends on all that came before, so its range begins there and nowhere else."""
    facts = _plain_facts(5, shards=1)
    middle = facts.history.rows[len(facts.history.rows) // 2]
    plan = make_plan(counts, ask(facts.history.first, middle.end_offsets, "plain"), facts)
    assert (plan.start, plan.sink_after, plan.end) == (facts.history.first, -1, middle.end_offsets)
    with pytest.raises(BadRangeError, match="from the beginning"):
        make_plan(counts, ask(middle.end_offsets, facts.history.committed, "plain"), facts)


def _proof(plan: ReplayPlan, first: Offsets) -> Proof:
    """What a verdict on the plan leaves."""
    return Proof(
        run_id=f"to {plan.sink_version}",
        pipeline="plain",
        version=1,
        first=first,
        start=plan.start,
        end=plan.end,
        sink_version=plan.sink_version,
        based_on="",
        batches={},
        url="",
        made_at=datetime(2026, 1, 5, tzinfo=UTC),
    )


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 4),
    cuts=st.integers(1, 6),
    kept=st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_ranges_that_go_on_from_proofs_hold_each_commit(
    seed: int, shards: int, cuts: int, kept: list[bool]
) -> None:
    """However time is cut into ranges: if each leaves a proof, each commit is in one range. If a proof is
    lacking, the next range goes back to the one before, or to the stream's beginning.
    """
    facts, rng = _plain_facts(seed, shards), random.Random(seed)
    marks = [{p: rng.randint(0, end) for p, end in facts.latest.items()} for _ in range(cuts)]
    ordered = [{p: sorted(mark[p] for mark in marks)[number] for p in facts.latest} for number in range(cuts)]
    bounds = [facts.history.first, *ordered, facts.history.committed]
    at = datetime.fromtimestamp(BASE_MS / 1000, UTC)
    asked = _between(at, at + timedelta(days=1))
    proofs: list[Proof] = []
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        timed = replace(facts, from_time_offsets=start, to_time_offsets=end, proofs=proofs)
        try:
            plan = make_plan(counts, asked, timed)
        except NothingToReplayError:
            continue
        before = proofs[-1] if proofs else None
        assert plan.proof == before
        assert plan.start == (before.end if before else facts.history.first)
        assert plan.sink_after == (before.sink_version if before else -1)
        inside = [
            row for row in facts.history.rows if plan.sink_after < row.sink_version <= plan.sink_version
        ]
        assert list(plan.recorded) == inside
        assert sum(
            last - row.start_offsets[p] for row in inside for p, last in row.end_offsets.items()
        ) == sum(plan.end[p] - offset for p, offset in plan.start.items())
        if kept[number]:
            proofs.append(_proof(plan, facts.history.first))


def _outcome(pipeline: Pipeline, asked: ReplayRequest, facts: ReplayInputs) -> Any:
    """The plan, or the words of the refusal; None if more of the ledger must be read."""
    try:
        return make_plan(pipeline, asked, facts)
    except HistoryTooShortError:
        return None
    except HindcastError as error:
        return str(error)


def _with_base(facts: ReplayInputs, base: HistoryBase) -> ReplayInputs:
    """What is known if only the batches after the base were read."""
    rows = [row for row in facts.history.rows if row.sink_version > base.sink_version]
    commits = [commit for commit in facts.sink_commits if commit > base.sink_version]
    return replace(facts, history=History.of(rows, base), sink_commits=commits)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 4),
    declared=st.sampled_from([stock_stats, plain, counts]),
    timed=st.booleans(),
    filed=st.sampled_from([0, 3, ALL_FILED]),
)
def test_a_plan_from_the_newest_batches_is_the_plan_from_all(
    seed: int, shards: int, declared: Pipeline, timed: bool, filed: int
) -> None:
    """Whatever the oldest batches are cut at: the plan is the same, or it says that it needs more of them."""
    rng = random.Random(seed)
    if declared is stock_stats:
        facts = facts_of(simulate(trades(seed, count=300, partitions=4), seed=seed, shards=shards))
    else:
        facts = _plain_facts(seed, shards)
    facts = replace(facts, filed={row.shard: filed for row in facts.history.rows})
    cut, start, end = (
        {p: sorted(rng.randint(0, last) for _ in range(3))[number] for p, last in facts.latest.items()}
        for number in range(3)
    )
    base = base_below(facts.history, cut)
    assume(base is not None)
    assert base is not None
    asked = ask(start, end, declared.name)
    if timed:
        at = datetime.fromtimestamp(BASE_MS / 1000, UTC)
        asked = _between(at, at + timedelta(days=1))
        facts = replace(facts, from_time_offsets=start, to_time_offsets=end)
    for request in (asked, everything(declared.name)):
        found = _outcome(declared, request, _with_base(facts, base))
        assert found is None or found == _outcome(declared, request, facts)


def test_the_last_hour_is_planned_from_the_newest_batches() -> None:
    """A range that begins well after the base needs nothing of what it stands for."""
    facts = facts_of(simulate(trades(3, count=6_000, partitions=2), seed=3, shards=2))
    early = {p: end // 8 for p, end in facts.latest.items()}
    late = {p: end * 2 // 3 for p, end in facts.latest.items()}
    base = base_below(facts.history, early)
    assert base is not None
    short = _with_base(facts, base)
    assert len(short.history.rows) < len(facts.history.rows)
    plan = make_plan(stock_stats, ask(late, facts.latest), short)
    assert plan == make_plan(stock_stats, ask(late, facts.latest), facts)
    next_base = base_below(short.history, late)
    assert next_base == base_below(facts.history, late)
    assert next_base is not None
    assert next_base.sink_version > base.sink_version


def test_offsets_that_begin_with_a_proof_are_judged_from_there() -> None:
    """Other offsets are refused, and the error names the nearest place. A proof of another stream counts for
    nothing.
    """
    facts = _plain_facts(5, shards=1)
    first = facts.history.first
    middle = facts.history.rows[len(facts.history.rows) // 2]
    proof = _proof(make_plan(counts, ask(first, middle.end_offsets, "plain"), facts), first)
    proved = replace(facts, proofs=[proof])
    committed = facts.history.committed
    plan = make_plan(counts, ask(proof.end, committed, "plain"), proved)
    assert (plan.start, plan.sink_after, plan.proof) == (proof.end, proof.sink_version, proof)
    assert (plan.to_record().proof, plan.end) == (proof.run_id, committed)
    later = {p: min(o + 1, committed[p]) for p, o in proof.end.items()}
    with pytest.raises(BadRangeError) as refused:
        make_plan(counts, ask(later, committed, "plain"), proved)
    assert offsets_to_json(proof.end) in str(refused.value)
    whole = make_plan(counts, everything("plain"), proved)
    assert (whole.start, whole.proof, whole.sink_after) == (first, None, -1)
    other = replace(proof, first={p: o + 1 for p, o in first.items()})
    with pytest.raises(BadRangeError, match="from the beginning"):
        make_plan(counts, ask(proof.end, committed, "plain"), replace(facts, proofs=[other]))


def test_offsets_before_a_stream_without_windows_began_are_refused() -> None:
    """They were never its input; rounding does not hide that."""
    facts = _plain_facts(5, shards=1)
    begun = next(row for row in facts.history.rows if row.reads)
    later = replace(facts, history=History.of(row for row in facts.history.rows if row is not begun))
    with pytest.raises(BadRangeError, match="never its input"):
        make_plan(plain, ask(dict.fromkeys(facts.latest, 0), facts.latest, "plain"), later)


def test_a_batch_of_which_nothing_is_known_may_hold_any_row(stream: Simulated) -> None:
    """Unknown event times are read; a batch known to be empty or all poison is not."""
    row = replace(stream.ledger[0], max_event_ms=None, min_event_ms=None)
    assert may_hold(replace(row, input_rows=None), 0)
    assert may_hold(replace(row, input_rows=5, poison_rows=None), 0)
    assert not may_hold(replace(row, input_rows=0, poison_rows=0), 0)
    assert not may_hold(replace(row, input_rows=5, poison_rows=5), 0)
