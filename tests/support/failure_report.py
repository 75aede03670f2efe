"""What a stream's tables and its workers' logs say, for the report of a test that has failed: its home is
gone before anybody can look.
"""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
from support.fleet import WORKER, Fleet, Stream
from support.waiting import wait_until

from hindcast.errors import HindcastError
from hindcast.leases.lease import StatusType

LINES = 25
EVENTS = 15


def failure_report(stream: Stream) -> str:
    """Its leases, the fleet's newest events, the ends of its workers' logs, and where the threads of the
    workers that still ran stood.

    These workers are ended by it.
    """
    fleet, began = stream.fleet, stream.began_at.timestamp()
    recent = [number for number in range(len(fleet.started)) if fleet.log(number).stat().st_mtime >= began]
    parts = [_leases(stream), _events(stream)]
    parts += [_tail(fleet.log(number)) for number in recent]
    parts += [_stacks(fleet, number) for number in recent if fleet.started[number].poll() is None]
    return "\n".join(parts)


def _leases(stream: Stream) -> str:
    try:
        rows = [
            *stream.leases(),
            *stream.fleet.leases(StatusType.SLOT),
            *stream.fleet.leases(StatusType.PIPELINE, stream.name),
        ]
    except HindcastError as error:
        return f"leases: {error}"
    return "\n".join(
        f"{row.key} owner={row.lease_owner or '-'} epoch={row.epoch} state={row.state} {row.checkpoint} {row.detail}"
        for row in rows
    )


def _events(stream: Stream) -> str:
    try:
        rows = stream.fleet.events(stream.began_at)[-EVENTS:]
    except HindcastError as error:
        return f"events: {error}"
    return "\n".join(f"{row['at']:%H:%M:%S.%f} {row['kind']} {row['message']}" for row in rows)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(
        [f"-- {log.name}, the last of {len(lines)} lines", *(line[:300] for line in lines[-LINES:])]
    )


def _stacks(fleet: Fleet, number: int) -> str:
    """Of Python's threads those in our code, of the JVM's those that run a query: one after the other, as
    both write into one log.
    """
    process, log = fleet.started[number], fleet.log(number)
    before = len(log.read_text(errors="replace"))
    with suppress(StopIteration, psutil.NoSuchProcess, AssertionError):
        fleet.jvm(process).send_signal(signal.SIGQUIT)
        wait_until(
            lambda: "JNI global refs" in log.read_text(errors="replace")[before:],
            10,
            "the JVM has printed its threads",
        )
    process.send_signal(signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    said = log.read_text(errors="replace")[before:].split("\n\n")
    told = [
        part
        for part in said
        if any(name in part for name in ("stream execution thread", "/hindcast/", str(WORKER)))
    ]
    return "\n".join([f"-- {log.name}, its threads", *told])
