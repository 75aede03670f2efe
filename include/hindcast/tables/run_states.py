"""What the table ``runs`` says of a run: which states it has, what it was for, and how one ends that did not come to its end."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import structlog

from hindcast.errors import BadInputError, StoreUnavailableError, TryLaterError
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.schema import ControlTable

_log = structlog.get_logger(__name__)


class RunState(StrEnum):
    """A run's states. ``PLANNED`` leads to ``SUCCEEDED`` or ``FAILED``.

    ``REFUSED``: it could not be planned, so nothing was run. ``SKIPPED``: there was nothing to replay; the run's note says why.
    """

    PLANNED = "planned"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    SKIPPED = "skipped"


class RunKind(StrEnum):
    """What a run is for. The last two are of a pipeline's reference range, as a batch and through the streaming engine."""

    REPLAY = "replay"
    BENCHMARK = "benchmark"
    RE_EXECUTION = "re-execution"


#: Runs that are made to be compared with those of other versions.
BENCHMARKS = frozenset({RunKind.BENCHMARK, RunKind.RE_EXECUTION})
#: States after which an attempt at a run does nothing any more.
ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.REFUSED, RunState.SKIPPED})
#: What another attempt keeps of the row that the one before left. Its plan: the same run id replays the same offsets.
_KEPT = ("version", "kind", "plan", "hindcast_url", "versions")
#: A shell's exit code of a process that was killed is this and the signal's number.
_SHELL_SIGNALS = 128


@dataclass(frozen=True)
class BadEnd:
    """How an attempt at a run ended that did not succeed: its state, a sentence that says why, and one that says what to do."""

    state: RunState
    reason: str
    cure: str

    @classmethod
    def of_error(cls, error: Exception) -> BadEnd:
        """Of an attempt that could not be planned."""
        if isinstance(error, BadInputError):
            return cls(RunState.REFUSED, str(error), "Nothing was run. Ask again once what the message names is mended.")
        return cls(RunState.FAILED, str(error), "Nothing was run. Ask again once the cause is gone: the message says which.")

    @classmethod
    def of_process(cls, exit_code: int, last_words: str) -> BadEnd:
        """Of an attempt whose process ended with this exit code, negative for a signal."""
        number = -exit_code if exit_code < 0 else exit_code - _SHELL_SIGNALS
        if number > 0:
            name = f"signal {number}"
            with suppress(ValueError):
                name = signal.Signals(number).name
            cure = (
                "If the machine ran out of memory, which the kernel's log says, give it more or replay a shorter range. "
                "Run it again with the same run id: it replays the same offsets."
            )
            return cls(RunState.FAILED, f"Its process was killed by {name}. The last thing it said: {last_words}", cure)
        if exit_code == BadInputError.exit_code:
            return cls(RunState.REFUSED, last_words, "Nothing was run. Ask again once what the message names is mended.")
        if exit_code == TryLaterError.exit_code:
            cure = "`hindcast checkpoints` shows how far the stream is and `hindcast events` why. Ask again once it has read the range."
            return cls(RunState.FAILED, last_words, cure)
        return cls(RunState.FAILED, last_words, "Run it again with the same run id once the cause is gone: it replays the same offsets.")


def close_run(
    tables: ControlTables,
    run_id: str,
    pipeline: str,
    end: BadEnd,
    *,
    since: datetime,
    version: int | None = None,
    kind: RunKind = RunKind.REPLAY,
) -> bool:
    """Give a run that has no end the row and the event of a bad one; return whether it had none.

    Each attempt at a run id adds rows, and the newest row counts: a run is listed once, as its last attempt left it. So whoever waited
    for a process may call this whatever the process itself wrote before it died.

    :param since: when the attempt began; older rows are of earlier attempts
    """
    try:
        rows = tables.rows(ControlTable.RUNS, [("run_id", "=", run_id)])
        newest = max(rows, key=lambda row: row["finished_at"] or row["started_at"], default=None)
        if newest is not None and newest["state"] in ENDED and newest["finished_at"] >= since:
            return False
        row = {"version": version, "kind": kind.value}
        row |= {name: newest[name] for name in _KEPT} if newest is not None else {}
        ended = {"state": end.state.value, "note": end.reason, "started_at": since, "finished_at": datetime.now(UTC)}
        tables.append(ControlTable.RUNS, [{"run_id": run_id, "pipeline": pipeline, **row, **ended}])
    except StoreUnavailableError as error:  # it must not hide how the attempt ended
        _log.error("The end of a run could not be stored.", run_id=run_id, end=end.reason, reason=str(error))
        return False
    event = EventKind.RUN_REFUSED if end.state is RunState.REFUSED else EventKind.RUN_FAILED
    message = f"The replay {run_id} {'was refused' if end.state is RunState.REFUSED else 'failed'}: {end.reason}"
    EventLog(tables).record(event, message, severity=Severity.ERROR, cure=end.cure, pipeline=pipeline, run_id=run_id)
    return True
