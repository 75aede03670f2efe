"""The proofs that verdicts leave: which of them a range may begin with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hindcast.partitions import Offsets
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Undone
from hindcast.tables.proofs import Proof, Proofs, proof_before

AT = datetime(2026, 1, 5, 12, tzinfo=UTC)


def proof(number: int, **changes: Any) -> Proof:
    """The proof of the run of that number, which ends at ten times its number."""
    made = Proof(
        run_id=f"r-{number}",
        pipeline="words",
        version=1,
        first={0: 0, 1: 3},
        start={0: 10 * number - 10, 1: 3},
        end={0: 10 * number, 1: 3},
        sink_version=number,
        based_on="",
        batches={"v1.g0.s0": number - 1},
        url=f"proofs/words/r-{number}",
        made_at=AT,
    )
    return replace(made, **changes)


def test_a_proof_is_read_as_it_was_added(settings: Settings) -> None:
    """In the order of the sink's versions, of one version of one pipeline."""
    proofs = Proofs(ControlTables(settings))
    assert proofs.of_version("words", 1) == []
    assert proofs.of_run("r-1") is None
    others = [proof(3, pipeline="other"), proof(4, version=2)]
    for one in (proof(2), proof(1), *others):
        proofs.add(one)
    assert proofs.of_version("words", 1) == [proof(1), proof(2)]
    assert proofs.of_run("r-2") == proof(2)


def test_of_a_run_that_was_tried_again_the_last_proof_counts(settings: Settings) -> None:
    """The one before it is forgotten."""
    proofs = Proofs(ControlTables(settings))
    again = proof(1, made_at=AT + timedelta(minutes=1), url="again")
    assert proofs.add(proof(1)) == proofs.add(proof(2)) == []
    assert proofs.add(again) == [proof(1)]
    assert proofs.of_version("words", 1) == [again, proof(2)]
    assert proofs.of_run("r-1") == again
    assert proofs.urls() == {"again", proof(2).url}


def test_the_newest_proofs_are_kept_and_the_last_of_each_day_of_a_week(settings: Settings) -> None:
    """The next range goes on from the newest, however old it is. Another version's are its own affair. What
    is forgotten is told, so that its files can be deleted.
    """
    proofs = Proofs(ControlTables(settings))
    other = proof(1, version=2)
    proofs.add(other)
    forgotten: list[str] = []
    for number in range(1, 10 * 24):  # one an hour, the first at 13:00
        told = proofs.add(proof(number, made_at=AT + timedelta(hours=number)))
        forgotten += [one.run_id for one in told]
    kept = [int(one.run_id.removeprefix("r-")) for one in proofs.of_version("words", 1)]
    assert kept == [83, 107, 131, 155, 179, 203, 227, 234, 235, 236, 237, 238, 239]
    assert sorted([*map(int, (name[2:] for name in forgotten)), *kept]) == list(range(1, 10 * 24))
    late = AT + timedelta(days=400)
    proofs.add(proof(240, made_at=late))
    assert [one.sink_version for one in proofs.of_version("words", 1)] == [235, 236, 237, 238, 239, 240]
    assert proofs.of_version("words", 2) == [other]


def test_many_judges_leave_their_proofs_at_once(settings: Settings) -> None:
    """Each replaces the rows of the version, and none is lost."""
    with ThreadPoolExecutor(4) as judges:
        list(judges.map(lambda number: Proofs(ControlTables(settings)).add(proof(number)), range(1, 7)))
    assert Proofs(ControlTables(settings)).of_version("words", 1) == [proof(number) for number in range(1, 7)]


def test_a_proof_of_what_was_taken_back_counts_for_nothing(settings: Settings) -> None:
    """A rewind took back the commits that it ends with."""
    proofs = Proofs(ControlTables(settings))
    for number in (1, 2, 3, 4):
        proofs.add(proof(number))
    undone = [Undone(after=1, version=4)]
    assert proofs.of_version("words", 1, undone) == [proof(1), proof(4)]


OFFSETS = st.fixed_dictionaries({0: st.integers(0, 60), 1: st.integers(3, 9)})


@given(start=OFFSETS, ends=st.lists(OFFSETS, max_size=5))
def test_the_nearest_proof_at_or_before_the_start(start: Offsets, ends: list[Offsets]) -> None:
    """Of those that end there or before in each partition, the one of the sink's newest version."""
    proofs = [proof(number, end=end) for number, end in enumerate(ends)]
    within = [one for one in proofs if all(one.end[p] <= start[p] for p in start)]
    expected = within[-1] if within else None
    assert proof_before(proofs, start, {0: 0, 1: 3}) == expected
    assert proof_before(proofs[::-1], start, {0: 0, 1: 3}) == expected


def test_a_proof_must_go_back_to_the_streams_beginning() -> None:
    """A partition that came later is none of the proof's, and begins where the stream began it."""
    known = proof(1)
    assert proof_before([known], {0: 10, 1: 3}, {0: 1, 1: 3}) is None
    assert proof_before([known], {0: 10, 1: 3}, {1: 3}) is None
    assert proof_before([known], {0: 10, 1: 3, 2: 7}, {0: 0, 1: 3, 2: 7}) == known
    assert proof_before([known], {0: 10, 1: 3, 2: 6}, {0: 0, 1: 3, 2: 7}) is None
