"""What the table ``runs`` says of a run: its state, its purpose, and the end of a run that did not finish."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import structlog

from hindcast.errors import BadInputError, StoreUnavailableError, TryLaterError
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from hindcast.tables.control_tables import ControlTables

_log = structlog.get_logger(__name__)


class RunState(StrEnum):
    """A run's states. ``PLANNED`` leads to ``SUCCEEDED`` or ``FAILED``.

    ``REFUSED``: it could not be planned, so nothing was run. ``SKIPPED``: there was nothing to replay; the
    run's note says why.
    """

    PLANNED = "planned"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    SKIPPED = "skipped"


class RunKind(StrEnum):
    """What a run is for. The last two are of a pipeline's reference range, as a batch and through the
    streaming engine.
    """

    REPLAY = "replay"
    BENCHMARK = "benchmark"
    RE_EXECUTION = "re-execution"


#: Runs that are made to be compared with those of other versions.
BENCHMARKS = frozenset({RunKind.BENCHMARK, RunKind.RE_EXECUTION})
#: States in which an attempt at a run is over.
ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.REFUSED, RunState.SKIPPED})
#: What an attempt keeps of the row that the one before it left. The plan is among it: the same run id replays
#: the same offsets.
_KEPT = ("version", "kind", "plan", "hindcast_url", "versions")
#: A shell's exit code of a process that was killed is this number plus the signal's number.
_SHELL_SIGNALS = 128

_MEND_AND_ASK_AGAIN = "Nothing was run. Ask again once what the message names is mended."
_SAME_RUN_AGAIN = "Run it again with the same run id"


@dataclass(frozen=True)
class BadEnd:
    """How an attempt at a run ended that did not succeed: its state, a sentence that says why, and one that
    says what to do.
    """

    state: RunState
    reason: str
    cure: str

    @classmethod
    def of_error(cls, error: Exception) -> BadEnd:
        """The end of an attempt that could not be planned."""
        if isinstance(error, BadInputError):
            return cls(RunState.REFUSED, str(error), _MEND_AND_ASK_AGAIN)
        cure = "Nothing was run. Ask again once the cause is gone: the message says which."
        return cls(RunState.FAILED, str(error), cure)

    @classmethod
    def of_process(cls, exit_code: int, last_words: str) -> BadEnd:
        """The end of an attempt whose process ended with this exit code; a signal's is negative.

        :param last_words: the last line that the process printed
        """
        number = _signal_number(exit_code)
        if number > 0:
            reason = f"Its process was killed by {_signal_name(number)}. The last thing it said: {last_words}"
            cure = (
                "If the machine ran out of memory, which the kernel's log says, give it more or replay a "
                f"shorter range. {_SAME_RUN_AGAIN}: it replays the same offsets."
            )
            return cls(RunState.FAILED, reason, cure)
        if exit_code == BadInputError.exit_code:
            return cls(RunState.REFUSED, last_words, _MEND_AND_ASK_AGAIN)
        if exit_code == TryLaterError.exit_code:
            cure = (
                "`hindcast checkpoints` shows how far the stream is and `hindcast events` why. "
                "Ask again once it has read the range."
            )
            return cls(RunState.FAILED, last_words, cure)
        cure = f"{_SAME_RUN_AGAIN} once the cause is gone: it replays the same offsets."
        return cls(RunState.FAILED, last_words, cure)


def _signal_number(exit_code: int) -> int:
    """The signal that killed a process; 0 or less if none did."""
    if exit_code < 0:
        return -exit_code
    return exit_code - _SHELL_SIGNALS


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
    """Record the bad end of a run that has no end yet, as a row and an event; return whether it had none.

    Each attempt at a run id adds rows, and the newest row counts: a run is listed once, as its last attempt
    left it. So a caller that waited for a process may call this, whatever the process itself wrote before it
    died.

    :param since: when the attempt began; older rows are of earlier attempts
    """
    try:
        newest = _newest_row(tables, run_id)
        if newest is not None and newest["state"] in ENDED and newest["finished_at"] >= since:
            return False
        row = {
            "run_id": run_id,
            "pipeline": pipeline,
            "version": version,
            "kind": kind.value,
            "state": end.state.value,
            "note": end.reason,
            "started_at": since,
            "finished_at": datetime.now(UTC),
        }
        if newest is not None:
            for name in _KEPT:
                row[name] = newest[name]
        tables.append(ControlTable.RUNS, [row])
    except StoreUnavailableError as error:  # it must not hide how the attempt ended
        _log.error("The end of a run could not be stored.", run_id=run_id, end=end.reason, reason=str(error))
        return False
    event = EventKind.RUN_FAILED
    message = f"The replay {run_id} failed: {end.reason}"
    if end.state is RunState.REFUSED:
        event = EventKind.RUN_REFUSED
        message = f"The replay {run_id} was refused: {end.reason}"
    EventLog(tables).record(
        event, message, severity=Severity.ERROR, cure=end.cure, pipeline=pipeline, run_id=run_id
    )
    return True


def _newest_row(tables: ControlTables, run_id: str) -> dict[str, Any] | None:
    rows = tables.rows(ControlTable.RUNS, [("run_id", "=", run_id)])
    return max(rows, key=lambda row: row["finished_at"] or row["started_at"], default=None)
