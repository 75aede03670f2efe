"""What must be true of every history (design: promises 1, 2 and 4). Pure functions from a history to the breaches found in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from simulation.history import Event, History, Kind, Op

from hindcast.control.leases import ShardState


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
    """I3: once an epoch has committed, or has begun a batch on what it found, nothing of an older epoch lands."""
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
    """I6: once the faults end every shard is owned, moves on and stays where it is; what a worker leaves cleanly is free at once."""
    for event in history:
        if event.op in {Op.HEALED, Op.SETTLED, Op.LEAVE} and event.kind is Kind.FAIL:
            yield f"{event.op}: {', '.join(event.detail)}", event


def parents_first(history: History) -> Found:
    """I8: a shard is opened, and written to, only when all its parents are TERMINATED; a parent gets no batch after that.

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
        unfinished = [parent for parent in parents.get(event.shard, ()) if states.get(parent) != ShardState.TERMINATED]
        if unfinished:
            yield f"{event.op} while its parents {', '.join(unfinished)} were not done", event
        if event.op is Op.BATCH and states.get(event.shard) == ShardState.TERMINATED:
            yield "written after it was TERMINATED", event


#: The oracles by the names that docs and reports use.
ORACLES: dict[str, Callable[[History], Found]] = {
    "I1 no loss": no_loss,
    "I2 no double": no_double,
    "I3 one owner": one_owner,
    "I3 fenced": fenced,
    "I4 checkpoint": checkpoint,
    "I6 liveness": liveness,
    "I8 parents first": parents_first,
}


def check(history: History) -> list[Breach]:
    """Every breach of every oracle, in the order of the oracles."""
    return [Breach(name, f"{event.shard}: {text}", event) for name, oracle in ORACLES.items() for text, event in oracle(history)]
