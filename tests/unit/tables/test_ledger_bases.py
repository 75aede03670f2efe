"""What the oldest batches come to: a history that is read from the newest ones says the same as the whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.ledger_rows import AT, batch
from support.simulated_stream import BASE_MS, simulate, trades

from hindcast.partitions import Offsets
from hindcast.recovery.rewind_point import reset_row
from hindcast.settings import Settings
from hindcast.tables import ledger_bases
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.ledger_bases import FencedBatches, LedgerBases, base_below, worth_keeping
from hindcast.tables.ledger_history import History
from hindcast.tables.oldest_batches import HistoryBase, HistoryTooShortError


def outcome(asked: Callable[[], Any]) -> Any:
    """The answer; None if more of the ledger must be read."""
    try:
        return asked()
    except HistoryTooShortError:
        return None


@given(seed=st.integers(0, 10_000), shards=st.integers(1, 4), folds=st.integers(1, 3))
def test_each_answer_is_that_of_the_whole_or_needs_more(seed: int, shards: int, folds: int) -> None:
    """Also if a base was made from a base."""
    rng = random.Random(seed)
    rows = simulate(trades(seed, count=300, partitions=4), seed=seed, shards=shards).ledger
    whole = History.of(rows)
    short = whole
    for _ in range(folds):
        cut = {p: rng.randint(0, end) for p, end in whole.committed.items()}
        base = base_below(short, cut)
        if base is not None:
            short = History.of((row for row in rows if row.sink_version > base.sink_version), base)
    assume(short.base is not None)
    assert (short.first, short.committed, short.shards) == (whole.first, whole.committed, whole.shards)
    assert short.last_read == whole.last_read
    asked: Offsets = {p: rng.randint(0, end) for p, end in whole.committed.items()}
    until = {p: rng.randint(offset, whole.committed[p]) for p, offset in asked.items()}
    filed = {shard: rng.randint(0, 9) for shard in whole.shards}
    at_ms = BASE_MS + rng.randint(-5_000, 60_000)
    since = AT + timedelta(days=rng.randint(-3650, 3650))
    version = rng.randint(0, max(row.sink_version for row in rows))
    questions: dict[str, Callable[[History], Any]] = {
        "audited": lambda history: history.audited(filed),
        "before_final": lambda history: history.before_final(at_ms),
        "horizon": lambda history: history.horizon_ms(asked, list(asked)),
        "reading": lambda history: history.reading(asked, until),
        "batches": lambda history: history.batches(asked, until),
        "first_needed": lambda history: history.first_needed(asked, dict.fromkeys(asked, at_ms)),
        "first_beyond": lambda history: history.first_beyond(asked),
        "up_to": lambda history: history.up_to(version).committed,
        "after": lambda history: history.after(version),
        "since": lambda history: history.committed_since(0, asked[0], until[0], since),
        "base": lambda history: base_below(history, whole.committed),
    }
    for name, question in questions.items():
        found = outcome(lambda question=question: question(short))
        assert found is None or found == question(whole), name


def test_what_begins_after_the_base_needs_no_more() -> None:
    """Nothing of the last two thirds asks for a batch of the first."""
    rows = simulate(trades(1, count=3_000, partitions=2), seed=1, shards=2).ledger
    whole = History.of(rows)
    early = {p: end // 3 for p, end in whole.committed.items()}
    late = {p: end // 2 for p, end in whole.committed.items()}
    base = base_below(whole, early)
    assert base is not None
    short = History.of((row for row in rows if row.sink_version > base.sink_version), base)
    assert short.horizon_ms(late, list(late)) == whole.horizon_ms(late, list(late)) > 0
    assert short.reading(late, whole.committed) == whole.reading(late, whole.committed)
    assert base.latest_event_ms is not None
    needed = dict.fromkeys(late, base.latest_event_ms + 1)
    assert short.first_needed(late, needed) == whole.first_needed(late, needed)
    everything = dict.fromkeys(whole.shards, 10**6)
    assert short.audited(everything) == whole.audited(everything)


def test_a_gap_is_never_hidden_in_a_base() -> None:
    """The chain stops before it, so there is no base beyond it."""
    rows = [batch(number, {0: number}, {0: number + 1}) for number in (1, 2, 4)]
    history = History.of(rows)
    assert history.committed == {0: 3}
    assert base_below(history, {0: 9}) is None
    found = base_below(history, {0: 3})
    assert found is not None
    assert found.shards == {"s0": 2}


def test_batches_of_one_commit_are_on_one_side_of_a_base() -> None:
    """Two rows of one version of the sink are of two tables: one was made again."""
    first, second = batch(1, {0: 0}, {0: 5}), batch(2, {0: 5}, {0: 9})
    other = replace(batch(1, {1: 0}, {1: 7}), shard="s1", sink_version=second.sink_version)
    base = base_below(History.of([first, second, other]), {0: 9, 1: 3})
    assert base is not None
    assert base.sink_version == first.sink_version


# -- which bases are used ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_bases, "LEAST_BATCHES", 1)


def rows_of(count: int, shard: str = "s0", partition: int = 0, step: int = 2) -> list[LedgerRow]:
    """So many batches of one record each; two shards take turns in the sink."""
    rows = []
    for number in range(1, count + 1):
        row = batch(number, {partition: number - 1}, {partition: number})
        rows.append(replace(row, shard=shard, sink_version=step * number + partition))
    return rows


def no_fence() -> Mapping[str, int]:
    return {}


class Kept:
    """A ledger of two shards, and its bases."""

    def __init__(self, settings: Settings) -> None:
        self.tables = ControlTables(settings)
        self.ledger = Ledger(self.tables)
        self.bases = LedgerBases(self.tables)
        self.ledger.append([*rows_of(20), *rows_of(20, "s1", 1)])

    def keep(self, offset: int, **others: int) -> HistoryBase:
        """Keep the base of what comes before the offset in both shards."""
        whole = History.of(self.ledger.batches("p", 1))
        more = {int(name[1:]): end for name, end in others.items()}
        base = worth_keeping(whole, {0: offset, 1: offset, **more})
        assert base is not None
        self.bases.add("p", 1, base)
        return base

    def histories(self, fenced: FencedBatches = no_fence) -> list[History]:
        return list(self.bases.snapshot("p", 1, fenced).histories())


@pytest.fixture
def kept(settings: Settings) -> Kept:
    return Kept(settings)


def test_the_newest_base_is_tried_first_and_the_whole_ledger_last(kept: Kept) -> None:
    """Older ones are tried in ever longer steps."""
    bases = [kept.keep(offset) for offset in (3, 6, 9, 12, 15)]
    found = kept.histories()
    assert [history.base for history in found] == [bases[4], bases[3], bases[1], None]
    whole = found[-1]
    for history in found:
        assert history.committed == whole.committed == {0: 20, 1: 20}
        assert history.first == whole.first == {0: 0, 1: 0}
    assert [len(history.rows) for history in found] == [10, 16, 28, 40]


def test_the_first_history_that_has_the_answer_gives_it(kept: Kept) -> None:
    """The whole ledger is not read for what a base can tell."""
    bases = [kept.keep(offset) for offset in (3, 15)]
    asked = []

    def ask(history: History) -> int:
        asked.append(history.base)
        return len(history.up_to(bases[0].sink_version).rows)

    assert kept.bases.snapshot("p", 1, no_fence).answer(ask) == 0
    assert asked == [bases[1], bases[0]]


def test_a_base_of_what_was_taken_back_is_not_used(kept: Kept) -> None:
    """One that ends before it is."""
    before = kept.keep(5)
    kept.keep(15)
    kept.ledger.append([replace(reset_row("p", 1, "t", "s0", 10, 9, {0: 0}, 99), committed_at=AT)])
    found = kept.histories()
    assert [history.base for history in found] == [before, None]
    assert found[0].committed == found[1].committed == {0: 10, 1: 20}


def test_a_base_that_lacks_a_batch_is_not_used(kept: Kept) -> None:
    """The ledger got it later, in an earlier version of the sink; the batch after it tells."""
    late = rows_of(22, "s2", 2, step=1)
    kept.ledger.append(late[:10])
    base = kept.keep(12, p2=10)
    assert base.shards == {"s0": 12, "s1": 12, "s2": 10}
    assert late[10].sink_version < base.sink_version < late[-1].sink_version + 100
    kept.ledger.append([*late[10:21], replace(late[21], sink_version=late[21].sink_version + 100)])
    assert [history.base for history in kept.histories()] == [None]


@pytest.mark.parametrize(("fence", "used"), [(9, True), (10, True), (11, False)])
def test_of_a_shard_without_later_batches_the_fence_is_asked(kept: Kept, fence: int, used: bool) -> None:
    """A worker died before its last batch was in the ledger, and the base lacks it."""
    quiet = rows_of(10, "s2", 2)
    kept.ledger.append(quiet)
    kept.keep(15, p2=10)

    def fenced() -> Mapping[str, int]:
        return {"s2": fence}

    assert [history.base is not None for history in kept.histories(fenced)] == (
        [True, False] if used else [False]
    )


def test_a_base_that_lacks_all_batches_of_a_shard_is_not_used(kept: Kept) -> None:
    """Its worker died before its first rows were in the ledger. Others went on, and a base was made. Then the
    next owner files the rows, in versions of the sink before that of the base.
    """
    kept.keep(15)
    early = rows_of(3, "s2", 2)

    def fenced() -> Mapping[str, int]:
        return {"s2": 3}

    assert [history.base for history in kept.histories(fenced)] == [None]
    kept.ledger.append(early)
    for history in kept.histories(fenced):
        assert history.committed == {0: 20, 1: 20, 2: 3}


def test_a_shard_that_begins_after_the_base_does_no_harm(kept: Kept) -> None:
    """All its batches are read."""
    made = kept.keep(15)
    later = [replace(row, sink_version=row.sink_version + 100) for row in rows_of(3, "s2", 2)]
    kept.ledger.append(later)

    def fenced() -> Mapping[str, int]:
        return {"s0": 20, "s1": 20, "s2": 3}

    assert [history.base for history in kept.histories(fenced)] == [made, None]


def test_a_shard_that_was_rewound_has_no_batch_after_those_that_are_kept(kept: Kept) -> None:
    """Its fence still names the last one that was taken back, and a base without that one is right."""
    kept.ledger.append([replace(reset_row("p", 1, "t", "s0", 10, 9, {0: 0}, 99), committed_at=AT)])
    base = kept.keep(10)

    def fenced() -> Mapping[str, int]:
        return {"s0": 20, "s1": 20}

    assert base.shards == {"s0": 10, "s1": 10}
    found = kept.histories(fenced)
    assert [history.base for history in found] == [base, None]
    assert found[0].committed == found[1].committed == {0: 10, 1: 20}


def test_a_base_is_read_as_it_was_kept_and_the_oldest_are_forgotten(kept: Kept) -> None:
    """However many plans there were, a version has two days of hourly ones."""
    made = kept.keep(12)
    assert kept.histories()[0].base == made
    for number in range(ledger_bases.KEPT + 5):
        kept.bases.add("p", 1, replace(made, sink_version=1000 + number))
        kept.bases.add("p", 2, made)
    rows = kept.tables.read(ledger_bases.ControlTable.LEDGER_BASES, columns=["version", "sink_version"])
    of_version = [row["sink_version"] for row in rows.to_pylist() if row["version"] == 1]
    assert sorted(of_version) == [1005 + number for number in range(ledger_bases.KEPT)]
    assert rows.num_rows == ledger_bases.KEPT + 1


def test_the_upkeep_keeps_a_base_of_the_days_before(kept: Kept) -> None:
    """Of what was committed before a time, if there is anything."""
    later = [replace(row, committed_at=AT + timedelta(days=2)) for row in rows_of(25)[20:]]
    kept.ledger.append(later)
    kept.bases.keep_older("p", 1, no_fence, AT)
    assert [history.base for history in kept.histories()] == [None]
    kept.bases.keep_older("p", 1, no_fence, AT + timedelta(days=1))
    newest = kept.histories()[0]
    assert newest.base is not None
    assert newest.base.shards == {"s0": 20, "s1": 20}
    assert [row.batch for row in newest.rows] == [21, 22, 23, 24, 25]


@pytest.mark.parametrize("part", [1, 7, 20, 100])
def test_a_ledger_without_a_base_is_read_in_parts(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Each base is made of the one before and the rows of one part, and says what all batches say. Once it is
    kept, no part is read again.
    """
    monkeypatch.setattr(ledger_bases, "PART", part)
    read: list[int] = []
    batches = Ledger.batches

    def counted(self: Ledger, *args: Any, **asked: Any) -> list[LedgerRow]:
        found = batches(self, *args, **asked)
        read.append(len(found))
        return found

    monkeypatch.setattr(Ledger, "batches", counted)
    snapshot = kept.bases.snapshot("p", 1, no_fence)
    newest = next(snapshot.histories())
    if part < 41:
        assert max(read) <= part + 1
    *shorter, whole = list(snapshot.histories())
    assert bool(shorter) == (part < 41)
    for history in shorter:
        assert (history.committed, history.first) == (whole.committed, whole.first)
        assert (history.shards, history.last_read) == (whole.shards, whole.last_read)
    base = snapshot.unkept(newest)
    assert base == newest.base
    if base is not None:
        kept.bases.add("p", 1, base)
        assert [history.base for history in kept.histories()] == [base, None]
        assert kept.bases.snapshot("p", 1, no_fence).unkept(kept.histories()[0]) is None


def test_no_base_of_a_part_hides_a_gap(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after a missing batch is read whole."""
    monkeypatch.setattr(ledger_bases, "PART", 10)
    kept.ledger.append([replace(row, shard="s2") for row in rows_of(20, "s2", 2) if row.batch != 9])
    found = kept.histories()
    assert [history.base.sink_version for history in found if history.base] == [10]
    assert {history.committed[2] for history in found} == {8}


def test_the_upkeep_keeps_what_it_has_made_of_parts(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no row comes after it that is old enough."""
    monkeypatch.setattr(ledger_bases, "PART", 10)
    kept.bases.keep_older("p", 1, no_fence, AT - timedelta(days=1))
    assert kept.histories()[0].base is not None
    assert len(kept.histories()) == 2


def test_a_base_that_spares_little_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from the base before it; and nothing is kept where nothing is before the range."""
    monkeypatch.setattr(ledger_bases, "LEAST_BATCHES", 5)
    history = History.of(rows_of(20))

    def spares(offset: int, of: History) -> bool:
        asked: Mapping[int, int] = {0: offset}
        return worth_keeping(of, asked) is not None

    assert [spares(offset, history) for offset in (0, 4, 5)] == [False, False, True]
    base = worth_keeping(history, {0: 8})
    assert base is not None
    later = History.of([row for row in history.rows if row.sink_version > base.sink_version], base)
    assert [spares(offset, later) for offset in (8, 12, 13)] == [False, False, True]
