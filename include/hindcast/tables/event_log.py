"""The table of events: each fault leaves a row that says what happened and what to do."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

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
    """The kinds of events, by the part of the platform that writes them. ``docs/reference/events.md`` is made
    from here.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # fleet and leases
    WORKER_STARTED = "worker_started", "a worker holds a slot and takes shards"
    WORKER_STOPPED = (
        "worker_stopped",
        "a worker has ended: as information because it was told to, as an error because a part of it failed",
    )
    NO_SLOT = (
        "no_slot",
        "a worker was not needed, since live workers hold all slots of the fleet, and has ended",
    )
    WORKER_REFUSED = (
        "worker_refused",
        "a worker's lease is not as long as that of workers that live, so it has ended",
    )
    SHARD_TAKEN = "shard_taken", "a worker owns a shard"
    SHARD_RELEASED = "shard_released", "a worker has given a shard up after the batch in hand"
    LEASE_LOST = "lease_lost", "a worker was away for longer than its lease and has stopped consuming a shard"
    # shards
    SHARDS_CREATED = (
        "shards_created",
        "the shards of a version, or of a new generation, stand in the table of leases",
    )
    SHARD_REFUSED = (
        "shard_refused",
        "a shard, or a pipeline's shards, cannot go on as they are and wait for a person",
    )
    SHARD_REBUILT = "shard_rebuilt", "a shard's state was made again from the topic"
    SHARD_ENDED = "shard_ended", "a shard has been read to its end"
    STREAM_ADOPTED = "stream_adopted", "a stream that others ran was taken over"
    RESHARD_REFUSED = (
        "reshard_refused",
        "the topic lacks what the new shards would need, so nothing has changed",
    )
    PIPELINE_REWINDING = "pipeline_rewinding", "a rewind of a pipeline has begun"
    PIPELINE_REWOUND = "pipeline_rewound", "a rewind is complete"
    PIPELINE_REWIND_ABANDONED = "pipeline_rewind_abandoned", "a rewind that was cut short was called off"
    QUERY_FAILED = "query_failed", "a query has failed; the worker starts it again after a while"
    RECORDS_SEARCHED = (
        "records_searched",
        "a batch failed, and the records on which the function raises are searched for",
    )
    RECORDS_EXCLUDED = "records_excluded", "a shard goes on without records on which the function raises"
    OFFSETS_LOST = "offsets_lost", "the topic no longer has records that a shard needs; nothing was skipped"
    AUDIT_FAILED = "audit_failed", "late and unusable rows could not be filed; the next pass files them"
    # replay and verdict
    RUN_REFUSED = "run_refused", "what was asked of a replay cannot be run"
    RUN_FAILED = "run_failed", "a replay failed, was given up or was killed"
    RUN_SLOW = "run_slow", "a replay was slower than like ones before it"
    VERDICT_FAILED = "verdict_failed", "a verdict did not pass"
    WINDOWS_CORRECTED = "windows_corrected", "readers get a replay's answer for some windows"
    SERVED_TABLE_REFUSED = "served_table_refused", "a served table cannot be written as it is declared"
    # versions of a pipeline
    REPROCESS_STARTED = "reprocess_started", "a new version of a pipeline began to catch up"
    REPROCESS_CAUGHT_UP = "reprocess_caught_up", "a new version has caught up with its topic"
    VERSIONS_COMPARED = "versions_compared", "two versions of a pipeline were compared"
    VERSION_PROMOTED = "version_promoted", "readers get another version"
    VERSION_BACKED_OUT = "version_backed_out", "readers get the earlier version again"
    VERSION_RETIRED = "version_retired", "a version is no longer read or run"
    VERSION_DISCARDED = "version_discarded", "a version and its tables were given up"
    # archives of topics
    ARCHIVE_STOPPED = "archive_stopped", "a topic could not be archived; nothing was skipped"
    ARCHIVE_GAP = "archive_gap", "a person accepted that records are missing from an archive"
    ARCHIVE_IMPORTED = "archive_imported", "older records were taken from a table into an archive"
    ARCHIVE_DIFFERS = "archive_differs", "records of an archive differ from the topic's"
    KEYS_ERASED = "keys_erased", "what was kept of some keys was erased"
    # supervision
    WORKER_LAUNCHED = "worker_launched", "the supervisor has started a worker's process"
    SUPERVISOR_WOKE = "supervisor_woke", "the supervisor saw a change, or its time was up"
    PIPELINE_REFUSED = "pipeline_refused", "a pipeline's file is wrong; the others keep running"


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
