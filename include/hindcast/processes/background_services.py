"""Services: detached processes with a record, a log, and an end.

A record is ``HOME/run/<name>.json``. It holds the pid *and* the process's birth, so that a pid that was
given to another process is never signalled. A service survives its starter, and the kill of its starter's
process group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import structlog

from hindcast.errors import ServiceError
from hindcast.pipeline import check_name
from hindcast.processes import detach, programs
from hindcast.processes.environment import child_environment
from hindcast.settings import Settings

#: Marks every process of a service, whatever its session or parent.
MARKER = "HINDCAST_SERVICE"
WORKER_PREFIX = "worker-"
#: Of workers that have ended, with their logs: enough to read what happened, and bounded.
KEPT_WORKER_RECORDS = 10
#: A larger log is set aside when its service starts.
LOG_LIMIT_BYTES = 20 * 1024 * 1024
LAST_LINES = 15
_LAST_BYTES = 16_384  # of a log, enough for its last lines
_POLL_SECONDS = 0.05
_KILL_ROUNDS = 3  # a killed process may have been starting one more child
_KILLED_SECONDS = 5.0
_CLOCK_SLACK_SECONDS = 60.0  # between the record's wall clock and the kernel's birth of a process

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One recorded process. ``ports`` maps what listens there to the number; ``detail`` is the service's
    own.
    """

    name: str
    pid: int
    birth: str
    log: Path
    started_at: datetime
    token: str
    ports: dict[str, int] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return bool(self.birth) and detach.birth(self.pid) == self.birth

    @property
    def uptime_seconds(self) -> float:
        if not self.running:
            return 0.0
        return (datetime.now(UTC) - self.started_at).total_seconds()

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "log": str(self.log), "started_at": self.started_at.isoformat()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Service:
        values = {name: record[name] for name in cls.__dataclass_fields__}
        values["log"] = Path(record["log"])
        values["started_at"] = datetime.fromisoformat(record["started_at"])
        return cls(**values)


class Services:
    """The services recorded below one home."""

    def __init__(self, home: Path) -> None:
        self._home = home.resolve()
        self._run = home / "run"
        self._logs = home / "logs"

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        ports: Mapping[str, int] | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Service:
        """Start a detached process; it may not be ready yet when this returns.

        :param environment: all the variables it gets; secrets may be in it, never in ``arguments``
        :raises ServiceError: if it runs already or cannot be executed
        """
        check_name("service", name)
        log = self._logs / f"{name}.log"
        known = self.find(name)
        if known and known.running:
            raise ServiceError(service=name, problem=f"is running already, with pid {known.pid}", log=log)
        self._logs.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".old.log"))
        token = f"{name}.{uuid.uuid4().hex}"
        draft = Service(
            name=name,
            pid=0,
            birth="",
            log=log,
            started_at=datetime.now(UTC),
            token=token,
            ports=dict(ports or {}),
            detail=dict(detail or {}),
        )
        request = {
            "arguments": list(arguments),
            "environment": {**environment, MARKER: token},
            "folder": str(self._home),
            "path": str(self._path(name)),
            "record": draft.as_record(),
        }
        detached = subprocess.run(
            [sys.executable, "-I", detach.__file__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            start_new_session=True,
            check=False,
        )
        if detached.returncode != 0:
            problem = f"could not be started: {detached.stderr.strip()}"
            raise ServiceError(service=name, problem=problem, log=log)
        answer = json.loads(detached.stdout)
        if "error" in answer:
            raise ServiceError(service=name, problem=f"could not be started: {answer['error']}", log=log)
        return Service.from_record(answer)

    def find(self, name: str) -> Service | None:
        """The service recorded under the name, running or ended. A file that records no service is none."""
        try:
            return Service.from_record(json.loads(self._path(name).read_text()))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def all(self) -> list[Service]:
        """All recorded services, the oldest first."""
        found = []
        for path in self._run.glob("*.json"):
            service = self.find(path.stem)
            if service is not None:
                found.append(service)
        found.sort(key=lambda service: service.started_at)
        return found

    def workers(self) -> list[Service]:
        """The workers launched below this home, running or ended."""
        return [service for service in self.all() if service.name.startswith(WORKER_PREFIX)]

    def note(self, service: Service, **detail: Any) -> Service:
        """Add to the record's ``detail``."""
        noted = replace(service, detail={**service.detail, **detail})
        detach.write_atomically(self._path(service.name), json.dumps(noted.as_record(), indent=2))
        return noted

    def stop(self, service: Service, *, grace_seconds: float) -> bool:
        """End the service and all that belongs to it, then forget it; True if it ended by itself within the
        grace.

        SIGTERM goes to the service alone: it knows what its children need. What is left after the grace is
        killed.

        :raises ServiceError: if a process cannot be killed
        """
        left = members(service)
        if service.running:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(service.pid).terminate()
        left = _wait_gone(service, left, grace_seconds)
        willing = not left
        for _ in range(_KILL_ROUNDS):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            left = _wait_gone(service, left, _KILLED_SECONDS)
            if not left:
                break
        if left:
            pids = [process.pid for process in left]
            problem = f"did not end; still running: {pids}"
            raise ServiceError(service=service.name, problem=problem, log=service.log)
        if not willing:
            _log.warning(
                "A service had to be killed.",
                service=service.name,
                pid=service.pid,
                grace_seconds=grace_seconds,
            )
        self.forget(service)
        return willing

    def forget(self, service: Service) -> None:
        """Remove the record; the log stays."""
        self._path(service.name).unlink(missing_ok=True)

    def prune_workers(self) -> None:
        """Drop the records and logs of all but the newest workers that have ended."""
        stopped = [service for service in self.workers() if not service.running]
        ended = [service for service in stopped if not members(service)]
        for service in ended[:-KEPT_WORKER_RECORDS]:
            self.forget(service)
            service.log.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._run / f"{name}.json"


def launch_worker(settings: Settings) -> Service:
    """Start one detached worker of the settings' fleet. If no slot is free, it says so and exits 0."""
    services = Services(settings.home)
    services.prune_workers()
    arguments = programs.command("consume", "--fleet", settings.fleet)
    environment = child_environment(settings)
    name = f"{WORKER_PREFIX}{uuid.uuid4().hex[:8]}"
    return services.start(name, arguments, environment, detail={"fleet": settings.fleet})


def members(service: Service) -> list[psutil.Process]:
    """Every live process of the service, itself included.

    There are three ways to belong, because each misses some: descent (lost when a parent dies), the session
    (left by ``setsid``), and the marker in the environment (overwritten by programs that set their own
    title, as Airflow's do).
    """
    found: dict[int, psutil.Process] = {}
    if service.running:
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(service.pid)
            found = _by_pid([main, *main.children(recursive=True)])
    for process in psutil.process_iter():
        known = process.pid in found or process.pid == os.getpid()
        if not known and _belongs(process, service):
            found[process.pid] = process
    return [process for process in found.values() if _alive(process)]


def _by_pid(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    return {process.pid: process for process in processes}


def _belongs(process: psutil.Process, service: Service) -> bool:
    try:
        if process.environ().get(MARKER) == service.token:
            return True
        # A session id is the pid of its first process: it cannot be reused while the session has members.
        if os.getsid(process.pid) != service.pid:
            return False
        oldest = service.started_at.timestamp() - _CLOCK_SLACK_SECONDS
        return process.create_time() >= oldest
    except (psutil.Error, OSError):
        return False


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_gone(service: Service, known: list[psutil.Process], timeout_seconds: float) -> list[psutil.Process]:
    """Wait until no process of the service is left; returns those that are."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = [process for process in known if _alive(process)]
        if not left or time.monotonic() >= deadline:
            left = _with_children(left, members(service))
            if not left or time.monotonic() >= deadline:
                return left
            known = left
        time.sleep(_POLL_SECONDS)


def _with_children(left: list[psutil.Process], more: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that are left, what they have started since, and ``more``."""
    found = _by_pid([*left, *more])
    for process in left:
        with suppress(psutil.NoSuchProcess):
            found |= _by_pid(process.children(recursive=True))
    return [process for process in found.values() if _alive(process)]


def memory_bytes(service: Service) -> int:
    """Memory of all its processes.

    It is the proportional set size if the system tells it, else the resident one, which counts shared pages
    twice.
    """
    total = 0
    for process in members(service):
        with suppress(psutil.Error, OSError):
            proportional = getattr(process.memory_full_info(), "pss", 0)
            total += proportional or process.memory_info().rss
    return total


def last_lines(log: Path, count: int = LAST_LINES) -> str:
    """The end of a log, for an error's message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(lines[-count:])
