"""What the log of events says of the shards that one worker consumes."""

from __future__ import annotations

import structlog

from hindcast.errors import OffsetsLostError, name_of_error
from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.tables.event_log import EventKind, EventLog, Severity
from hindcast.tables.excluded_records import Excluded, count

_log = structlog.get_logger(__name__)


class ShardEvents:
    """One method for each event of a shard; the message names the shard, and the cure what to do next."""

    def __init__(self, events: EventLog, owner: str) -> None:
        """:param owner: the worker, as the leases name it"""
        self._events = events
        self._owner = owner

    def taken(self, lease: Lease, *, superseded: bool) -> None:
        """:param superseded: the shard was taken only to be ended"""
        verb = "consumes"
        if superseded:
            verb = "ends"
        self._record(
            EventKind.SHARD_TAKEN, f"{self._owner} {verb} {lease.key} in epoch {lease.epoch}.", lease
        )

    def rebuilt(self, lease: Lease, reason: str) -> None:
        message = f"The state of {lease.key} is rebuilt from the topic: {reason}"
        self._record(EventKind.SHARD_REBUILT, message, lease)

    def released(self, lease: Lease) -> None:
        message = f"{self._owner} has given {lease.key} up after the batch in hand."
        self._record(EventKind.SHARD_RELEASED, message, lease)

    def ended(self, lease: Lease, end_offsets: Offsets) -> None:
        self._record(EventKind.SHARD_ENDED, f"{lease.key} has ended at the offsets {end_offsets}.", lease)

    def lost(self, lease: Lease) -> None:
        message = f"{self._owner} has lost {lease.key} (epoch {lease.epoch}) and has stopped consuming it."
        cure = (
            "The next owner goes on. If it happens often: "
            "give the worker more CPU, or raise HINDCAST_LEASE_SECONDS."
        )
        self._record(EventKind.LEASE_LOST, message, lease, severity=Severity.WARNING, cure=cure)

    def audit_failed(self, lease: Lease, message: str) -> None:
        cure = "The next pass tries again. If it goes on: the worker's log has the whole error."
        self._record(EventKind.AUDIT_FAILED, message, lease, severity=Severity.WARNING, cure=cure)

    def refused(self, lease: Lease, error: BaseException) -> None:
        """The shard waits for an operator."""
        kind = EventKind.SHARD_REFUSED
        if isinstance(error, OffsetsLostError):
            kind = EventKind.OFFSETS_LOST
        cure = f"When it is mended: hindcast resume {lease.stream_id}"
        self._record(kind, str(error), lease, severity=Severity.ERROR, cure=cure)

    def query_failed(self, lease: Lease, error: BaseException, cause: str, seconds: float) -> None:
        """The worker starts the query again after a while.

        :param cause: the error in one sentence, for the event; the log has all of it
        :param seconds: until this worker may start the query again
        """
        restart = f"is started again in {seconds:.0f} s at the earliest"
        message = f"The query of {lease.key} failed and {restart}: {cause}"
        rebuild = f"`hindcast rebuild {lease.stream_id} --shard {lease.status_value}`"
        cure = (
            "If it goes on: the worker's log has the whole error; "
            f"{rebuild} rebuilds its state; `hindcast pause` stops the tries."
        )
        _log.error(message, error=str(error))
        self._record(EventKind.QUERY_FAILED, message, lease, severity=Severity.ERROR, cure=cure)

    def searching(self, lease: Lease, error: BaseException) -> None:
        """A query failed, and the worker looks for the records that raise. The log has the whole error."""
        message = f"A batch of {lease.key} failed with {name_of_error(error)}."
        _log.error(message, error=str(error))
        message += " The records on which the function raises are searched for."
        cure = "Nothing yet: the stream goes on without such records once they are found."
        self._record(EventKind.RECORDS_SEARCHED, message, lease, severity=Severity.WARNING, cure=cure)

    def excluded(self, lease: Lease, excluded: Excluded) -> None:
        """The shard goes on without these records."""
        errors = sorted({error for offsets in excluded.values() for error in offsets.values()})
        places = []
        for partition, offsets in sorted(excluded.items()):
            places += [f"{partition}/{offset}" for offset in sorted(offsets)]
        message = (
            f"{lease.key} goes on without {count(excluded)} records on which the function raises "
            f"{', '.join(errors)}: partition/offset {', '.join(places)}."
        )
        cure = (
            f"They are dead letters: `hindcast deadletters --pipeline {lease.stream_id}`. Mend the function "
            "under a new version, or the records by `hindcast deadletters replay`."
        )
        self._record(EventKind.RECORDS_EXCLUDED, message, lease, severity=Severity.ERROR, cure=cure)

    def _record(
        self,
        kind: EventKind,
        message: str,
        lease: Lease,
        *,
        severity: Severity = Severity.INFO,
        cure: str = "",
    ) -> None:
        self._events.record(
            kind,
            message,
            severity=severity,
            cure=cure,
            pipeline=lease.stream_id,
            shard=lease.status_value,
            epoch=lease.epoch,
        )
