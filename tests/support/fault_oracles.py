"""The oracles: pure functions of what the tables say. Each raises an AssertionError that names what is wrong,
or returns nothing.

Sets of real offsets throughout, never counts alone. The exact answer (I5, and the rest of I1 and I2) is that
of :func:`support.live_stream.check_answer`, which plain Python works out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from support.evidence import COMPACTION, Evidence, LeaseSeen, Place, SinkCommit

#: I6: a shard may be without a living owner for two leases. A busy machine of two cores may add this.
BUSY_SECONDS = 3.0
RESET = "reset"


def no_loss(evidence: Evidence) -> set[Place]:
    """I1: the batches of each shard cover every offset from its start to its checkpoint, none twice; return
    the offsets covered.
    """
    read: Counter[Place] = Counter()
    for row in evidence.ledger:
        for partition, end in row.end_offsets.items():
            read.update((partition, offset) for offset in range(row.start_offsets[partition], end))
    twice = [place for place, times in read.items() if times > 1]
    assert not twice, f"I1: read by two batches: {sorted(twice)[:10]}"
    for partition in {partition for partition, _ in read}:
        offsets = sorted(offset for found, offset in read if found == partition)
        missing = set(range(offsets[0], offsets[-1] + 1)) - set(offsets)
        assert not missing, (
            f"I1: partition {partition} was read from {offsets[0]} to {offsets[-1]} without {sorted(missing)[:10]}"
        )
    return set(read)


def set_aside(evidence: Evidence, sent: Iterable[Place], poison: Iterable[Place]) -> None:
    """I1: what was sent was read, and exactly the poison is in ``dead_letters``, each record once."""
    unread = set(sent) - no_loss(evidence)
    assert not unread, f"I1: sent and never read: {sorted(unread)[:10]}"
    assert sorted(evidence.dead_letters) == sorted(poison), "I1: the dead letters are not the poison"
    assert len(evidence.late_rows) == len(set(evidence.late_rows)), "I2: a late row is filed twice"


def written_once(evidence: Evidence, *, upserts: bool = False) -> None:
    """I2: no batch and no file is in the sink's log twice, and no file was ever taken out but to be joined
    with others, or by a reset.

    A batch that ``upserts`` takes out the files whose rows it replaces.

    That those rows are still there, and once, is for the exact answer to say.
    """
    batches = Counter((commit.app, commit.batch) for commit in evidence.commits if commit.kind == "batch")
    assert not (twice := [key for key, times in batches.items() if times > 1]), (
        f"I2: committed twice: {twice}"
    )
    files = Counter(path for commit in evidence.commits if commit.kind != RESET for path in commit.added)
    assert not (twice := [path for path, times in files.items() if times > 1]), (
        f"I2: files added twice: {twice}"
    )
    may_remove = {RESET, "batch"} if upserts else {RESET}
    removing = [commit for commit in evidence.commits if commit.removed and commit.app != COMPACTION]
    assert not [commit for commit in removing if commit.kind not in may_remove], (
        "I2: files were removed from the sink"
    )


def one_owner(evidence: Evidence) -> None:
    """I3: in the sink's log epochs never fall; in the history of the leases each epoch has one owner and each
    owner's is a new one.
    """
    for app, commits in _by_app(evidence).items():
        for before, after in pairwise(commits):
            assert after.epoch >= before.epoch, (
                f"I3: {app}: version {after.version} is of epoch {after.epoch}, after {before.epoch}"
            )
    for shard, history in _by_shard(evidence).items():
        owners: dict[int, set[str]] = defaultdict(set)
        for before, after in pairwise(history):
            assert after.epoch >= before.epoch, (
                f"I3: {shard}: the lease's epoch fell from {before.epoch} to {after.epoch}"
            )
            if after.owner and after.owner != before.owner:
                assert after.epoch > before.epoch, (
                    f"I3: {shard}: {after.owner} owns it in the epoch of {before.owner or 'nobody'}"
                )
        for seen in history:
            if seen.owner:
                owners[seen.epoch].add(seen.owner)
        assert not (shared := {epoch: found for epoch, found in owners.items() if len(found) > 1}), (
            f"I3: {shard}: {shared}"
        )


def never_back(evidence: Evidence) -> None:
    """I4: each commit begins where the one before ended, and none follows a reset.

    A lease's checkpoint never falls and is one that the sink holds.
    """
    held: dict[tuple[str, int], SinkCommit] = {}
    for app, commits in _by_app(evidence).items():
        shard = app.rsplit("/", 1)[-1]
        held |= {(shard, commit.batch): commit for commit in commits if commit.kind == "batch"}
        for before, after in pairwise(commits):
            step = (after.batch - before.batch) if after.kind == "batch" else 1 + (after.batch - before.batch)
            assert step == 1, (
                f"I4: {app}: {after.kind} {after.batch} of epoch {after.epoch} follows batch {before.batch}"
            )
            assert before.kind != RESET, f"I4: {app}: batch {after.batch} follows a reset"
            assert after.kind == RESET or after.start_offsets == before.end_offsets, (
                f"I4: {app}: batch {after.batch} begins elsewhere than {before.batch} ended"
            )
    for shard, history in _by_shard(evidence).items():
        points = [seen.checkpoint for seen in history if "batch" in seen.checkpoint]
        for before, after in pairwise(points):
            assert after["batch"] >= before["batch"], (
                f"I4: {shard}: the checkpoint fell from {before['batch']} to {after['batch']}"
            )
        for point in points:
            commit = held.get((shard, point["batch"]))
            assert commit is not None, (
                f"I4: {shard}: the checkpoint names batch {point['batch']}, which the sink does not hold"
            )
            ends = {int(partition): offset for partition, offset in point["end_offsets"].items()}
            assert ends == commit.end_offsets, (
                f"I4: {shard}: the checkpoint of batch {point['batch']} is not the sink's"
            )


def ledger_is_the_sinks(evidence: Evidence) -> None:
    """I4: the ledger has exactly the batches that the sink holds and no reset took back, with their epochs
    and offsets.
    """
    resets = {commit.version for commit in evidence.commits if commit.kind == RESET}
    kept = [
        (max((row.sink_version for row in evidence.ledger if row.sink_version < reset), default=-1), reset)
        for reset in resets
    ]
    committed = {
        (commit.app, commit.batch): (commit.epoch, commit.end_offsets, commit.version)
        for commit in evidence.commits
        if commit.kind == "batch" and not any(after < commit.version < reset for after, reset in kept)
    }
    recorded = {
        (f"{row.pipeline}/v{row.version}/{row.shard}", row.batch): (
            row.epoch,
            row.end_offsets,
            row.sink_version,
        )
        for row in evidence.ledger
    }
    assert recorded == committed, (
        f"I4: ledger and sink differ in {sorted(set(recorded) ^ set(committed))[:5]}"
    )


def alive(evidence: Evidence, lease_seconds: float) -> float:
    """I6: while the pipeline is wanted no shard goes unrenewed for more than two leases; return the longest
    time that one did.
    """
    longest = 0.0
    for shard, history in _by_shard(evidence).items():
        renewed: LeaseSeen | None = None
        for seen in history:
            if not seen.wanted:
                renewed = None
            elif seen.owner and (
                renewed is None or (seen.owner, seen.counter) != (renewed.owner, renewed.counter)
            ):
                longest = max(longest, seen.at - renewed.at if renewed else 0.0)
                renewed = seen
        assert longest <= 2 * lease_seconds + BUSY_SECONDS, (
            f"I6: {shard} had no living owner for {longest:.1f} s"
        )
    return longest


def steals(evidence: Evidence) -> int:
    """How many times a live worker was asked to hand a shard over."""
    asked = 0
    for history in _by_shard(evidence).values():
        asked += sum(
            bool(after.stealer) and after.stealer != before.stealer for before, after in pairwise(history)
        )
    return asked


def told(evidence: Evidence, *kinds: str) -> None:
    """I7: each of these kinds is among the events, and every warning and error names a cure."""
    found = {row["kind"] for row in evidence.events}
    assert set(kinds) <= found, f"I7: no event {sorted(set(kinds) - found)}; there are {sorted(found)}"
    silent = {
        (row["kind"], row["message"])
        for row in evidence.events
        if row["severity"] in {"warning", "error"} and not row["cure"]
    }
    assert not silent, f"I7: without a cure: {sorted(silent)[:3]}"


def parents_first(evidence: Evidence) -> None:
    """I8: no child shard has an owner before all its parents have ended, and what it reads begins where they
    stopped.
    """
    ended: dict[str, float] = {}
    stopped_at: dict[int, int] = {}
    for seen in evidence.leases:
        if seen.state == "TERMINATED":
            ended.setdefault(seen.shard, seen.at)
    for seen in evidence.leases:
        if seen.owner:
            early = [parent for parent in seen.parents if ended.get(parent, float("inf")) > seen.at]
            assert not early, f"I8: {seen.shard} has an owner and its parents {early} have not ended"
    parents = {parent for seen in evidence.leases for parent in seen.parents}
    for row in evidence.ledger:
        if row.shard in parents:
            stopped_at.update(row.end_offsets)
    begun: set[str] = set()
    for row in evidence.ledger:
        if row.shard not in parents and row.shard not in begun:
            begun.add(row.shard)
            gaps = {
                p: (stopped_at[p], o)
                for p, o in row.start_offsets.items()
                if p in stopped_at and o != stopped_at[p]
            }
            assert not gaps, f"I8: {row.shard} begins elsewhere than its parents stopped: {gaps}"


def _by_app(evidence: Evidence) -> dict[str, list[SinkCommit]]:
    found: dict[str, list[SinkCommit]] = defaultdict(list)
    for commit in sorted(evidence.commits, key=lambda commit: commit.version):
        if commit.app != COMPACTION:
            found[commit.app].append(commit)
    return found


def _by_shard(evidence: Evidence) -> dict[str, list[LeaseSeen]]:
    found: dict[str, list[LeaseSeen]] = defaultdict(list)
    for seen in evidence.leases:
        found[seen.shard].append(seen)
    return found
