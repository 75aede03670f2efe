"""Is everything there that Hindcast needs? One finding a prerequisite, each with its cure."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from hindcast.errors import BrokerUnavailableError, HindcastError, PrerequisiteError, SettingsRefusedError
from hindcast.kafka.security import client_options
from hindcast.processes.background_services import Services
from hindcast.settings import Settings
from hindcast_sandbox import airflow, broker, jars
from hindcast_sandbox.ports import free_ports, listens

OLDEST_PYTHON = (3, 11)
OLDEST_JDK = 17
NEEDED_DISK_GIB = 3.0  # jars 0.2, Airflow's and the broker's data, an hour of tables
NEEDED_MEMORY_GIB = 6.0  # measured: see docs/quickstart.md
GIB = 1024**3
_JAVA_SECONDS = 20.0
_ANSWER_MS = 5000  # of a broker


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """One prerequisite: what was found, and what to do where that is not enough."""

    what: str
    state: State
    found: str
    cure: str = ""


def examine(settings: Settings) -> list[Finding]:
    """All findings, in the order in which things are needed. Starts nothing, changes nothing."""
    checks: tuple[Callable[[Settings], Finding], ...] = (
        _python,
        _jdk,
        _maven,
        _make,
        _airflow,
        _jars,
        _disk,
        _memory,
        _loopback,
        _broker,
    )
    return [check(settings) for check in checks]


def require(settings: Settings) -> Iterator[Finding]:
    """The warnings.

    :raises PrerequisiteError: for the first thing that is missing; jars are not, as they can be fetched
    """
    for finding in examine(settings):
        if finding.state is State.MISSING:
            raise PrerequisiteError(what=finding.what, problem=finding.found, cure=finding.cure)
        if finding.state is State.WARNING:
            yield finding


def java_version(text: str) -> int | None:
    """The major version in what ``java -version`` prints: 17 of ``17.0.15``, 8 of ``1.8.0_412``."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not match:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _python(_: Settings) -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info[:2] >= OLDEST_PYTHON
    return Finding(
        "Python",
        State.OK if good else State.MISSING,
        found,
        "" if good else "Install Python 3.11 or newer and run `make env` with it.",
    )


def _jdk(_: Settings) -> Finding:
    cure = "Install a JDK, version 17 or newer, and set JAVA_HOME or put it on PATH."
    try:
        launcher = broker.java()
        ended = subprocess.run(
            [launcher, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (HindcastError, OSError, subprocess.TimeoutExpired) as error:
        return Finding("JDK", State.MISSING, str(error), cure)
    version = java_version(ended.stderr + ended.stdout)
    if version is None or version < OLDEST_JDK:
        return Finding("JDK", State.MISSING, f"{launcher} is of version {version or 'unknown'}", cure)
    return Finding("JDK", State.OK, f"{version} ({launcher})")


def _maven(settings: Settings) -> Finding:
    found = shutil.which("mvn")
    if found:
        return Finding("Maven", State.OK, found)
    if not jars.missing(settings):
        return Finding("Maven", State.OK, "not on PATH, and not needed: the jars are there")
    return Finding(
        "Maven",
        State.MISSING,
        "there is no `mvn` on PATH",
        "Install Maven (on Debian and Ubuntu: apt-get install maven).",
    )


def _make(_: Settings) -> Finding:
    found = shutil.which("make")
    return Finding(
        "make",
        State.OK if found else State.WARNING,
        found or "not on PATH",
        "" if found else "Install make, or use the `hindcast` command itself.",
    )


def _airflow(_: Settings) -> Finding:
    try:
        return Finding("Airflow", State.OK, airflow.executable())
    except PrerequisiteError as error:
        return Finding("Airflow", State.MISSING, str(error), airflow.INSTALL)


def _jars(settings: Settings) -> Finding:
    if missing := jars.missing(settings):
        return Finding(
            "jars",
            State.WARNING,
            f"not fetched yet: {', '.join(missing)}",
            "Run `hindcast jars`; `hindcast up` and `make demo` do so themselves.",
        )
    return Finding("jars", State.OK, ", ".join(str(folder) for folder in jars.folders(settings).values()))


def _disk(settings: Settings) -> Finding:
    folder = next(path for path in (settings.home, *settings.home.parents) if path.exists())
    free = shutil.disk_usage(folder).free / GIB
    good = free >= NEEDED_DISK_GIB
    cure = f"Free {NEEDED_DISK_GIB:.0f} GiB there, or set HINDCAST_HOME to a folder on another disk."
    return Finding(
        "disk space",
        State.OK if good else State.WARNING,
        f"{free:.1f} GiB free at {folder}",
        "" if good else cure,
    )


def _memory(settings: Settings) -> Finding:
    if any(service.running for service in Services(settings.home).all()):
        return Finding("memory", State.OK, "Hindcast is running")
    free = psutil.virtual_memory().available / GIB
    good = free >= NEEDED_MEMORY_GIB
    cure = f"The demo takes about {NEEDED_MEMORY_GIB:.0f} GiB. "
    cure += "Close something, or run one worker: HINDCAST_WORKERS=1."
    return Finding(
        "memory", State.OK if good else State.WARNING, f"{free:.1f} GiB available", "" if good else cure
    )


def _loopback(_: Settings) -> Finding:
    """The own host name must resolve, as Spark asks for it, and loopback ports must be there to bind."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
        free_ports(1)
    except OSError as error:
        cure = f"Add a line `127.0.0.1 {name}` to {Path('/etc/hosts')}."
        return Finding("host name", State.WARNING, f"{name}: {error}", cure)
    return Finding("host name", State.OK, f"{name} is {address}")


def _foreign_broker(settings: Settings) -> Finding:
    from kafka import KafkaAdminClient

    from hindcast.kafka.why_unavailable import explained

    servers = settings.bootstrap_servers
    waits = {"bootstrap_timeout_ms": _ANSWER_MS, "request_timeout_ms": _ANSWER_MS}
    try:
        with (
            explained(servers, "its brokers"),
            KafkaAdminClient(**client_options(settings), **waits) as admin,
        ):
            count = len(admin.describe_cluster()["brokers"])
    except (SettingsRefusedError, BrokerUnavailableError) as error:
        return Finding("broker", State.WARNING, servers, str(error))
    return Finding("broker", State.OK, f"{servers} answers: {count} brokers")


def _broker(settings: Settings) -> Finding:
    own = Services(settings.home).find(broker.NAME)
    known = {Settings.model_fields["bootstrap_servers"].default}
    if own:
        known.add(broker.address(own))
    if settings.bootstrap_servers not in known:
        return _foreign_broker(settings)
    if own and own.running:
        good = listens(own.ports["kafka"])
        return Finding(
            "broker",
            State.OK if good else State.WARNING,
            broker.address(own),
            "" if good else f"It does not answer. Its log is {own.log}.",
        )
    return Finding("broker", State.OK, "not running; `hindcast up` starts it")
