"""What happened in a simulated world, as data: who asked for what, what it was answered, and what was written
in truth.

A worker's operation is an INVOKE followed by OK, FAIL or UNKNOWN, which is all that the worker knows. TRUTH
is what the store, the sink or an onlooker who sees every worker at once knows. The oracles read nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple


class Kind(StrEnum):
    """What kind of entry it is. See the module's docstring."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"
    TRUTH = "truth"


class Op(StrEnum):
    """What was done."""

    JOIN = "join"
    STEP = "step"
    LEASE = "lease"
    BEGIN = "begin"
    BATCH = "batch"
    SEAL = "seal"
    DOUBT = "doubt"
    SLOT = "slot"
    CROWD = "crowd"
    OPENED = "opened"
    BARRIER = "barrier"
    ROLLOUT = "rollout"
    LEAVE = "leave"
    DIE = "die"
    HEAL = "heal"
    SETTLED = "settled"
    HEALED = "healed"


class Event(NamedTuple):
    """One entry.

    ``at`` is the true time in seconds, which no worker knows. ``batch`` is the batch written, or for a lease
    its checkpoint's batch. ``detail`` is for LEASE (owner, state, parents), for DOUBT the names of those who
    hold a shard at once, for SETTLED and HEALED the shards that were not well, for LEAVE what was left
    behind. SLOT is a slot's row, CROWD two processes that hold one slot.

    ``places`` is for BATCH and OPENED (partition -> (its first offset, the end, up to which window it is
    final)), for STANDING the versions as a :class:`Versioned`; BARRIER says that the promotion which comes
    next was decided on what had landed by then.
    """

    at: float
    worker: str
    op: Op
    kind: Kind
    shard: str = ""
    epoch: int = 0
    batch: int = 0
    detail: tuple[str, ...] = ()
    places: Any = None


class Versioned(NamedTuple):
    """What the row says of the versions: the active one, what became of them last, from which earlier ones
    readers get windows that end by when, and of each version that ever was the window end after which it has
    all (``seams``), and which are discarded.
    """

    active: int
    change: str
    earlier: tuple[tuple[int, int], ...]
    seams: Mapping[int, int]
    discarded: frozenset[int]


History = list[Event]
