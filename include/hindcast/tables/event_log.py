"""The table of events: each fault leaves a row that says what happened and what to do."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import structlog

from hindcast.clock import Clock, SystemClock
from hindcast.errors import StoreUnavailableError
from hindcast.tables.table_names import ControlTable

if TYPE_CHECKING:
    from hindcast.tables.control_tables import ControlTables

_log = structlog.get_logger(__name__)


class Severity(StrEnum):
    """How bad an event is; each is named as the log's method."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventKind(StrEnum):
    """The kinds of events, by the part of the platform that writes them."""

    # fleet and leases
    WORKER_STARTED = "worker_started"
    WORKER_STOPPED = "worker_stopped"
    NO_SLOT = "no_slot"
    WORKER_REFUSED = "worker_refused"
    SHARD_TAKEN = "shard_taken"
    SHARD_RELEASED = "shard_released"
    LEASE_LOST = "lease_lost"
    DESIRED_CHANGED = "desired_changed"
    # shards
    SHARDS_CREATED = "shards_created"
    SHARD_REFUSED = "shard_refused"
    SHARD_REBUILT = "shard_rebuilt"
    SHARD_ENDED = "shard_ended"
    STREAM_ADOPTED = "stream_adopted"
    RESHARD_REFUSED = "reshard_refused"
    PIPELINE_REWINDING = "pipeline_rewinding"
    PIPELINE_REWOUND = "pipeline_rewound"
    PIPELINE_REWIND_ABANDONED = "pipeline_rewind_abandoned"
    QUERY_FAILED = "query_failed"
    RECORDS_SEARCHED = "records_searched"
    RECORDS_EXCLUDED = "records_excluded"
    OFFSETS_LOST = "offsets_lost"
    AUDIT_FAILED = "audit_failed"
    # replay and verdict
    RUN_REFUSED = "run_refused"
    RUN_FAILED = "run_failed"
    RUN_SLOW = "run_slow"
    VERDICT_FAILED = "verdict_failed"
    WINDOWS_CORRECTED = "windows_corrected"
    SERVED_TABLE_REFUSED = "served_table_refused"
    # versions of a pipeline
    REPROCESS_STARTED = "reprocess_started"
    REPROCESS_CAUGHT_UP = "reprocess_caught_up"
    VERSIONS_COMPARED = "versions_compared"
    VERSION_PROMOTED = "version_promoted"
    VERSION_BACKED_OUT = "version_backed_out"
    VERSION_RETIRED = "version_retired"
    VERSION_DISCARDED = "version_discarded"
    # archives of topics
    ARCHIVE_STOPPED = "archive_stopped"
    ARCHIVE_GAP = "archive_gap"
    ARCHIVE_IMPORTED = "archive_imported"
    ARCHIVE_DIFFERS = "archive_differs"
    KEYS_ERASED = "keys_erased"
    # supervision
    WORKER_LAUNCHED = "worker_launched"
    SUPERVISOR_WOKE = "supervisor_woke"
    PIPELINE_REFUSED = "pipeline_refused"


class EventLog:
    """Writes events. If the store does not answer, that is logged, and never hides the fault that was to be
    recorded.
    """

    def __init__(self, tables: ControlTables, worker: str = "", clock: Clock | None = None) -> None:
        self._tables = tables
        self._worker = worker
        self._clock = clock or SystemClock()

    def record(
        self,
        kind: EventKind,
        message: str,
        *,
        severity: Severity = Severity.INFO,
        cure: str = "",
        pipeline: str = "",
        shard: str = "",
        epoch: int | None = None,
        **detail: Any,
    ) -> None:
        """Append one event.

        :param message: one sentence
        :param cure: what to do; empty if nothing need be done
        :param detail: kept as JSON; what of it is no object is logged, too
        """
        row = {
            "event_id": uuid.uuid4().hex,
            "at": self._clock.now(),
            "severity": severity.value,
            "kind": kind.value,
            "pipeline": pipeline,
            "shard": shard,
            "worker": self._worker,
            "epoch": epoch,
            "message": message,
            "cure": cure,
            "detail": json.dumps(detail, default=str, sort_keys=True),
        }
        logged = {name: value for name, value in detail.items() if not isinstance(value, Mapping)}
        log = getattr(_log, severity.value)
        log(message, kind=kind.value, pipeline=pipeline, shard=shard, cure=cure, **logged)
        try:
            self._tables.append(ControlTable.EVENTS, [row])
        except StoreUnavailableError as error:
            _log.error("The event could not be stored.", kind=kind.value, reason=str(error))
