"""The oracles of the fault tests can fail: each finds the one thing that is wrong in tables that are
otherwise right.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import fault_oracles
from support.evidence import COMPACTION, Evidence, LeaseHistory, LeaseSeen, SinkCommit, TableFolder, log_files

from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import swap
from hindcast.settings import Settings
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.schema import LEASES_RETENTION_SECONDS

APP, SHARD = "p/v1/v1.g0.s0", "v1.g0.s0"
AT = datetime(2026, 1, 1, tzinfo=UTC)
ENDS = [0, 0, 10, 20, 20, 30]  # of the commits: a seal, two batches, the next owner's seal and its batch
STEPS = [("seal", 1, 0), ("batch", 1, 1), ("batch", 1, 2), ("seal", 2, 2), ("batch", 2, 3)]


def commit(number: int) -> SinkCommit:
    kind, epoch, batch = STEPS[number]
    added = (f"{batch}.parquet",) if kind == "batch" else ()
    return SinkCommit(
        number + 1, APP, epoch, batch, kind, {0: ENDS[number]}, {0: ENDS[number + 1]}, added, ()
    )


def ledger_row(number: int) -> LedgerRow:
    made = commit(number)
    unknown: dict[str, Any] = dict.fromkeys(
        ("min_event_ms", "max_event_ms", "input_rows", "poison_rows", "batch_seconds", "cpu_seconds")
    )
    return LedgerRow(
        pipeline="p",
        version=1,
        shard=SHARD,
        epoch=made.epoch,
        batch=made.batch,
        worker=f"w{made.epoch}",
        topic="t",
        start_offsets=made.start_offsets,
        end_offsets=made.end_offsets,
        late_watermark_ms=0,
        watermark_ms=0,
        output_rows=1,
        sink_version=made.version,
        started_at=None,
        committed_at=AT,
        **unknown,
    )


def seen(at: float, owner: str, epoch: int, counter: int, batch: int, **changes: Any) -> LeaseSeen:
    ends = {1: 10, 2: 20, 3: 30}
    checkpoint = {"batch": batch, "end_offsets": {"0": ends[batch]}} if batch else {}
    plain = LeaseSeen(at, SHARD, owner, "", epoch, counter, checkpoint, wanted=True, state="OPEN", parents=())
    return replace(plain, **changes)


JOINED = SinkCommit(
    6, COMPACTION, 0, 5, "", {}, {}, ("joined.parquet",), ("1.parquet", "2.parquet", "3.parquet")
)


def sound() -> Evidence:
    """Two owners, one after the other; three batches, whose files were joined in the end; offset 5 is
    poison.
    """
    return Evidence(
        pipeline="p",
        ledger=[ledger_row(number) for number in (1, 2, 4)],
        commits=[*(commit(number) for number in range(5)), JOINED],
        dead_letters=[(0, 5)],
        late_rows=[(0, 7)],
        leases=[
            seen(0, "w1", 1, 1, 0),
            seen(1, "w1", 1, 2, 1),
            seen(2, "w1", 1, 3, 2),
            seen(6, "w2", 2, 4, 2),
            seen(7, "w2", 2, 5, 3),
        ],
        events=[{"kind": "lease_lost", "severity": "warning", "cure": "c", "message": "m"}],
    )


SENT = [(0, offset) for offset in range(30)]
CHECKS: dict[str, Callable[[Evidence], object]] = {
    "set_aside": lambda evidence: fault_oracles.set_aside(evidence, SENT, [(0, 5)]),
    "written_once": fault_oracles.written_once,
    "upserted_once": lambda evidence: fault_oracles.written_once(evidence, upserts=True),
    "one_owner": fault_oracles.one_owner,
    "never_back": fault_oracles.never_back,
    "ledger_is_the_sinks": fault_oracles.ledger_is_the_sinks,
    "alive": lambda evidence: fault_oracles.alive(evidence, 3.0),
    "told": lambda evidence: fault_oracles.told(evidence, "lease_lost"),
    "parents_first": fault_oracles.parents_first,
}


def with_commit(number: int, **changes: Any) -> Evidence:
    found = sound()
    return replace(
        found,
        commits=[
            replace(made, **changes) if index == number else made for index, made in enumerate(found.commits)
        ],
    )


def with_lease(number: int, **changes: Any) -> Evidence:
    found = sound()
    return replace(
        found,
        leases=[
            replace(row, **changes) if index == number else row for index, row in enumerate(found.leases)
        ],
    )


BREACHES: dict[str, tuple[str, Evidence]] = {
    "a batch of the ledger is missing": ("set_aside", replace(sound(), ledger=sound().ledger[::2])),
    "the last records were never read": ("set_aside", replace(sound(), ledger=sound().ledger[:2])),
    "a batch read rows again": (
        "set_aside",
        replace(sound(), ledger=[*sound().ledger, replace(ledger_row(4), batch=4)]),
    ),
    "a poison row is not filed": ("set_aside", replace(sound(), dead_letters=[])),
    "a good row is a dead letter": ("set_aside", replace(sound(), dead_letters=[(0, 5), (0, 6)])),
    "a late row is filed twice": ("set_aside", replace(sound(), late_rows=[(0, 7), (0, 7)])),
    "a batch is committed twice": ("written_once", with_commit(2, batch=1)),
    "a file is added twice": ("written_once", with_commit(2, added=("1.parquet",))),
    "a file was removed": ("written_once", with_commit(2, removed=("1.parquet",))),
    "a seal removed a file of an upsert table": ("upserted_once", with_commit(3, removed=("1.parquet",))),
    "a zombie has written after the seal": ("one_owner", with_commit(4, epoch=1)),
    "an epoch of the lease fell": ("one_owner", with_lease(4, epoch=1)),
    "two owners share an epoch": ("one_owner", with_lease(3, epoch=1)),
    "an owner came back in its old epoch": ("one_owner", with_lease(4, owner="w1")),
    "a batch was skipped": ("never_back", with_commit(4, batch=4)),
    "a batch leaves a gap": ("never_back", with_commit(4, start_offsets={0: 21})),
    "a checkpoint fell": ("never_back", with_lease(4, checkpoint=seen(0, "", 0, 0, 1).checkpoint)),
    "a checkpoint passed the sink": (
        "never_back",
        with_lease(4, checkpoint={"batch": 4, "end_offsets": {"0": 40}}),
    ),
    "a checkpoint has other offsets than the sink": (
        "never_back",
        with_lease(4, checkpoint={"batch": 3, "end_offsets": {"0": 31}}),
    ),
    "the ledger lacks a batch": ("ledger_is_the_sinks", replace(sound(), ledger=sound().ledger[:2])),
    "a shard was without an owner for long": ("alive", with_lease(4, at=20.0)),
    "an event is missing": ("told", replace(sound(), events=[])),
    "a warning has no cure": (
        "told",
        replace(sound(), events=[*sound().events, {**sound().events[0], "cure": ""}]),
    ),
    "a child was opened before its parent ended": ("parents_first", with_lease(4, parents=("v1.g0.s9",))),
}


@pytest.mark.parametrize("check", CHECKS)
def test_an_oracle_accepts_what_is_right(check: str) -> None:
    """Tables of a hand-over without a fault pass."""
    CHECKS[check](sound())


@pytest.mark.parametrize("breach", BREACHES)
def test_an_oracle_finds_what_is_wrong(breach: str) -> None:
    """One thing is wrong, and the oracle for it says so."""
    check, evidence = BREACHES[breach]
    with pytest.raises(AssertionError, match=r"I\d"):
        CHECKS[check](evidence)


def test_a_pause_is_no_outage() -> None:
    """While nobody wants the pipeline its shards need no owner."""
    found = sound()
    paused = replace(
        found, leases=[*found.leases[:3], seen(50, "", 1, 3, 2, wanted=False), seen(60, "w2", 2, 4, 2)]
    )
    assert fault_oracles.alive(paused, 3.0) == 1.0


def test_steals_are_counted_once() -> None:
    """A lease that is asked for is one steal, however many versions show it."""
    asked = [
        seen(0, "w1", 1, 1, 0),
        *(seen(at, "w1", 1, at, 0, stealer="w2") for at in (1, 2, 3)),
        seen(4, "w2", 2, 9, 0),
    ]
    assert fault_oracles.steals(replace(sound(), leases=asked)) == 1


def leased(settings: Settings, renewals: int = 3) -> Path:
    """A lease table of so many renewals of one shard."""
    store = LeaseTable(settings)
    swap(
        store,
        lambda _: [Lease(stream_id="p", status_type=StatusType.SHARD, status_value=SHARD, lease_owner="w1")],
    )
    renew(settings, renewals)
    return Path(settings.table("control", "leases"))


def renew(settings: Settings, times: int) -> None:
    store = LeaseTable(settings)
    for _ in range(times):
        swap(store, lambda snapshot: [lease.renewed() for lease in snapshot.leases.values()])


def history_of(table: Path) -> LeaseHistory:
    return LeaseHistory(TableFolder(str(table)))


def counters(history: LeaseHistory, since: float = 0.0) -> list[int]:
    return [seen.counter for seen in history.of("p", since)]


def test_the_history_of_the_leases_outlives_their_table(settings: Settings) -> None:
    """What was read once stays, whatever the table's upkeep deletes afterwards."""
    table = leased(settings)
    history = history_of(table)
    assert counters(history) == [0, 1, 2, 3]
    renew(settings, 2)
    assert counters(history) == [0, 1, 2, 3, 4, 5]
    for path in log_files(table)[:3]:
        path.unlink()
    assert counters(history) == [0, 1, 2, 3, 4, 5]


def test_a_version_of_the_leases_that_went_too_early_is_a_breach(settings: Settings) -> None:
    """A version that nobody has read is missed loudly, but not where it is older than what is asked for."""
    table = leased(settings)
    oldest, *others = log_files(table)
    oldest.rename(oldest.with_suffix(".gone"))
    history = history_of(table)
    history._next = 0
    with pytest.raises(AssertionError, match="version 0"):
        history.of("p")
    before = time.time() - LEASES_RETENTION_SECONDS
    os.utime(others[0], (before,) * 2)
    assert counters(history, since=before + 1) == [1, 2, 3]
    with pytest.raises(AssertionError, match="deleted before they were read"):
        history.of("p")


def test_a_torn_version_of_the_leases_is_read_once_it_is_whole(settings: Settings) -> None:
    """Half a file and an empty one are waited for."""
    table = leased(settings)
    history, newest = history_of(table), log_files(table)[-1]
    text = newest.read_text()
    for torn in (text[:40], ""):
        newest.write_text(torn)
        with pytest.raises(AssertionError, match="cannot be read"):
            history.of("p")
    newest.write_text(text)
    assert counters(history) == [0, 1, 2, 3]
