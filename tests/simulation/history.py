"""What happened in a simulated world, as data: who asked for what, what it was answered, and what was written in truth.

A worker's operation is an INVOKE followed by OK, FAIL or UNKNOWN, which is all that the worker knows. TRUTH is what the store, the
sink or an onlooker who sees every worker at once knows. The oracles read nothing else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


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
    LEAVE = "leave"
    DIE = "die"
    HEAL = "heal"
    SETTLED = "settled"
    HEALED = "healed"


class Event(NamedTuple):
    """One entry.

    ``at`` is the true time in seconds, which no worker knows. ``batch`` is the batch written, or for a lease its checkpoint's batch.
    ``detail`` is for LEASE (owner, state, parents), for DOUBT the names of those who hold a shard at once, for SETTLED and HEALED the
    shards that were not well, for LEAVE what was left behind.
    """

    at: float
    worker: str
    op: Op
    kind: Kind
    shard: str = ""
    epoch: int = 0
    batch: int = 0
    detail: tuple[str, ...] = ()


History = list[Event]
