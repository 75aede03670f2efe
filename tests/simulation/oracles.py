"""What must be true of every history (design: promises 1, 2 and 4). Pure functions from a history to the
breaches found in it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from simulation.history import Event, History, Kind, Op, Versioned
from simulation.topic import MORE_PARTITIONS, PARTITIONS

from hindcast.leases.lease import ShardState
from hindcast.partitions import ShardId
from hindcast.shards.pipeline_row import ChangeKind


class Breach(NamedTuple):
    """An oracle that does not hold, and the entry at which it was seen."""

    oracle: str
    text: str
    event: Event


Found = Iterator[tuple[str, Event]]


def _truths(history: History, *ops: Op) -> Iterator[Event]:
    return (event for event in history if event.kind is Kind.TRUTH and event.op in ops)


def no_loss(history: History) -> Found:
    """I1: the batches of a shard land in order and none is missing."""
    last: dict[str, int] = defaultdict(int)
    for event in _truths(history, Op.BATCH):
        if event.batch > last[event.shard] + 1:
            yield f"batch {event.batch} follows batch {last[event.shard]}", event
        last[event.shard] = max(last[event.shard], event.batch)


def no_double(history: History) -> Found:
    """I2: no batch of a shard lands twice."""
    landed: set[tuple[str, int]] = set()
    for event in _truths(history, Op.BATCH):
        if (event.shard, event.batch) in landed:
            yield f"batch {event.batch} landed twice", event
        landed.add((event.shard, event.batch))


def one_owner(history: History) -> Found:
    """I3: a new owner is a new epoch, epochs only rise, and at no moment do two workers hold one shard."""
    rows: dict[str, tuple[int, str]] = {}
    for event in _truths(history, Op.LEASE, Op.DOUBT):
        if event.op is Op.DOUBT:
            yield f"{' and '.join(event.detail)} hold it at once", event
            continue
        epoch, owner = rows.get(event.shard, (0, ""))
        now = event.detail[0]
        if event.epoch < epoch:
            yield f"its epoch went from {epoch} back to {event.epoch}", event
        elif now and now != owner and event.epoch == epoch:
            yield f"{now} became its owner within epoch {epoch}", event
        rows[event.shard] = (event.epoch, now or owner)


def fenced(history: History) -> Found:
    """I3: once an epoch has committed, or has begun a batch on what it found, nothing of an older epoch
    lands.
    """
    newest: dict[str, int] = defaultdict(int)
    for event in history:
        lands = event.op in {Op.BATCH, Op.SEAL} and event.kind is Kind.TRUTH
        if lands and event.epoch < newest[event.shard]:
            yield f"epoch {event.epoch} wrote after epoch {newest[event.shard]}", event
        if lands or (event.op is Op.BEGIN and event.kind is Kind.OK):
            newest[event.shard] = max(newest[event.shard], event.epoch)


def checkpoint(history: History) -> Found:
    """I4: a lease's checkpoint never moves back, and never passes what the sink holds."""
    sink: dict[str, int] = defaultdict(int)
    recorded: dict[str, int] = defaultdict(int)
    for event in _truths(history, Op.BATCH, Op.LEASE):
        if event.op is Op.BATCH:
            sink[event.shard] = max(sink[event.shard], event.batch)
            continue
        if event.batch < recorded[event.shard]:
            yield f"its checkpoint went from batch {recorded[event.shard]} back to {event.batch}", event
        if event.batch > sink[event.shard]:
            yield f"its checkpoint says batch {event.batch}, the sink holds {sink[event.shard]}", event
        recorded[event.shard] = event.batch


def liveness(history: History) -> Found:
    """I6: once the faults end every shard is owned, moves on and stays where it is; what a worker leaves
    cleanly is free at once.
    """
    for event in history:
        if event.op in {Op.HEALED, Op.SETTLED, Op.LEAVE} and event.kind is Kind.FAIL:
            yield f"{event.op}: {', '.join(event.detail)}", event


def parents_first(history: History) -> Found:
    """I8: a shard is opened, and written to, only when all its parents are TERMINATED; a parent gets no batch
    after that.

    A late seal is no batch: an owner that slept through the end may still fence off those before it.
    """
    states: dict[str, str] = {}
    parents: dict[str, tuple[str, ...]] = {}
    for event in _truths(history, Op.LEASE, Op.BATCH, Op.SEAL):
        if event.op is Op.LEASE:
            _, states[event.shard], *named = event.detail
            parents[event.shard] = tuple(named)
            if states[event.shard] == ShardState.WAIT:
                continue
        unfinished = [
            parent for parent in parents.get(event.shard, ()) if states.get(parent) != ShardState.TERMINATED
        ]
        if unfinished:
            yield f"{event.op} while its parents {', '.join(unfinished)} were not done", event
        if event.op is Op.BATCH and states.get(event.shard) == ShardState.TERMINATED:
            yield "written after it was TERMINATED", event


def slots(history: History) -> Found:
    """I5: a slot has one live owner, and each new one a new epoch. A shard is given to nobody who has no
    slot, no batch is begun by a process that never had one, and a process that finds no free slot owns
    nothing.
    """
    rows: dict[str, tuple[int, str]] = {}
    owners: dict[str, str] = {}
    held: dict[str, str] = {}
    had_one: set[str] = set()
    refused: set[str] = set()
    for event in history:
        if event.op is Op.CROWD:
            yield f"{' and '.join(event.detail)} hold it at once", event
        elif event.op is Op.JOIN and event.kind is Kind.FAIL:
            refused.add(event.worker)
        elif event.op is Op.BEGIN and event.worker not in had_one:
            yield f"{event.worker} consumes it without a slot", event
        elif event.op is Op.SLOT:
            epoch, owner = rows.get(event.shard, (0, ""))
            now = event.detail[0]
            if event.epoch < epoch or (now and now != owner and event.epoch <= epoch):
                yield f"{now} took it in epoch {event.epoch} after epoch {epoch} of {owner}", event
            rows[event.shard] = (event.epoch, now or owner)
            owners[event.shard] = now
            had_one |= {now} - {""}
        elif event.op is Op.LEASE:
            now, before = event.detail[0], held.get(event.shard, "")
            if now not in {before, "", *owners.values()}:
                yield f"{now} has no slot, and is given it", event
            held[event.shard] = now
        if event.op in {Op.SLOT, Op.LEASE} and event.detail and event.detail[0] in refused:
            yield f"{event.detail[0]} was refused a slot, and owns it", event


def offsets(history: History) -> Found:
    """I1: in each version every offset of each partition is read once, across batches, owners and
    generations.
    """
    ends: dict[tuple[int, int], int] = {}
    for event in _truths(history, Op.BATCH, Op.OPENED):
        version = _version(event)
        for partition, (start, end, _) in (event.places or {}).items():
            if (at := ends.get((version, partition), start)) != start:
                yield f"{event.op} reads partition {partition} from {start} on, it was read up to {at}", event
            ends[version, partition] = end


def final_stays_final(history: History) -> Found:
    """I10: a shard of a new generation opens no window that a shard before it had closed for one of its
    keys.
    """
    final: dict[tuple[int, int], int] = {}
    counts = (PARTITIONS, MORE_PARTITIONS)
    for event in _truths(history, Op.BATCH, Op.OPENED):
        version = _version(event)
        if event.op is Op.OPENED and event.detail:
            for partition, (_, _, floor) in event.places.items():
                before = [partition] if (version, partition) in final else _same_keys(partition, counts)
                closed = max((final.get((version, one), 0) for one in before), default=0)
                if floor < closed:
                    yield (
                        f"windows of partition {partition} are final up to {floor}, they were up to {closed}",
                        event,
                    )
        final |= {
            (version, partition): final_ms for partition, (_, _, final_ms) in (event.places or {}).items()
        }


@cache
def _same_keys(partition: int, counts: tuple[int, ...]) -> list[int]:
    """The partitions in which a key of this one may have been while the topic had another number of them."""
    hashes = [one for one in range(math.lcm(*counts)) if one % counts[-1] == partition]
    return sorted({one % counts[0] for one in hashes})


def readers(history: History) -> Found:
    """I9: readers get each window from one version that has all of it; a promoted version has read all that
    the one before it had.
    """
    ends: dict[int, dict[int, int]] = defaultdict(dict)
    barrier: dict[int, dict[int, int]] = {}
    active = 1
    for event in _truths(history, Op.BATCH, Op.OPENED, Op.BARRIER, Op.ROLLOUT):
        if event.op is Op.BARRIER:
            barrier = {version: dict(ends_of) for version, ends_of in ends.items()}
        elif event.op is Op.ROLLOUT:
            said: Versioned = event.places
            for window in {
                1,
                *(end + more for _, end in said.earlier for more in (0, 1)),
                *said.seams.values(),
            }:
                holder = next((version for version, to_ms in said.earlier if window <= to_ms), said.active)
                if holder in said.discarded or window <= said.seams[holder] > 0:
                    yield (
                        f"readers get the window that ends at {window} from version {holder}, which lacks some of it",
                        event,
                    )
            if said.change == ChangeKind.PROMOTED and said.active != active:
                behind = sum(
                    max(0, end - ends[said.active].get(p, 0)) for p, end in barrier.get(active, {}).items()
                )
                if behind:
                    yield (
                        f"version {said.active} was promoted {behind} records behind version {active}",
                        event,
                    )
            active = said.active
        else:
            ends[_version(event)] |= {
                partition: end for partition, (_, end, _) in (event.places or {}).items()
            }


def _version(event: Event) -> int:
    return ShardId.parse(event.shard.split("/")[1]).version


#: The oracles by the names that docs and reports use.
ORACLES: dict[str, Callable[[History], Found]] = {
    "I1 no loss": no_loss,
    "I2 no double": no_double,
    "I3 one owner": one_owner,
    "I3 fenced": fenced,
    "I4 checkpoint": checkpoint,
    "I6 liveness": liveness,
    "I8 parents first": parents_first,
    "I1 offsets": offsets,
    "I5 slots": slots,
    "I9 readers": readers,
    "I10 final stays final": final_stays_final,
}


def check(history: History) -> list[Breach]:
    """Every breach of every oracle, in the order of the oracles."""
    return [
        Breach(name, f"{event.shard}: {text}", event)
        for name, oracle in ORACLES.items()
        for text, event in oracle(history)
    ]
