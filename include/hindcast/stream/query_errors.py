"""What an error of a query means for its shard."""

from __future__ import annotations

import re

from hindcast.errors import (
    BrokerUnavailableError,
    CommitConflictError,
    CommitUnknownError,
    FenceMovedError,
    HindcastError,
    LeaseLostError,
    RegistryUnavailableError,
    StoreUnavailableError,
    innermost,
)

#: Passing faults: the shard is given back and taken again after a while. Every other HindcastError waits for
#: an operator.
PASSING = (
    LeaseLostError,
    StoreUnavailableError,
    BrokerUnavailableError,
    CommitConflictError,
    CommitUnknownError,
    FenceMovedError,
)
#: Spark's conditions for state files that are missing or torn: the next start rebuilds the state instead of
#: failing for ever.
_STATE_LOST = re.compile(
    r"CANNOT_LOAD_STATE_STORE|OPERATOR_MISSING_STATE_DIRECTORY|STATE_STORE_[A-Z_]*(CORRUPT|CHECKSUM|MISSING|NOT_FOUND|UNEXPECTED)"
)
#: What a JVM says of a class whose first use failed: it tries no second time for as long as it lives. Most of
#: these classes unpack a native library, which a full disk prevents.
_JVM_BROKEN = re.compile(
    r"UnsatisfiedLinkError|ExceptionInInitializerError|NoClassDefFoundError: Could not initialize class"
)
#: What the text of Spark's error names if a process of an executor raised it.
_REGISTRY_AWAY = re.compile(rf"\b{RegistryUnavailableError.__name__}\b")


def is_refusal(error: BaseException) -> bool:
    """Whether the shard waits for an operator."""
    return isinstance(error, HindcastError) and not isinstance(error, PASSING)


def is_state_lost(error: BaseException) -> bool:
    """Whether Spark's state files are missing or torn, so that no retry would help."""
    return _STATE_LOST.search(str(error)) is not None


def is_jvm_broken(error: BaseException) -> bool:
    """Whether the JVM cannot load one of its classes any more, so that only another process can go on."""
    return _JVM_BROKEN.search(str(error)) is not None


def may_be_of_a_record(error: BaseException) -> bool:
    """Whether the pipeline's function may have raised it on a record of the batch."""
    if isinstance(error, HindcastError) or is_state_lost(error) or is_jvm_broken(error):
        return False
    return _REGISTRY_AWAY.search(str(error)) is None


def cause(error: BaseException) -> str:
    """The error in one sentence, as much of it as fits into an event."""
    return innermost(error)[:300]
