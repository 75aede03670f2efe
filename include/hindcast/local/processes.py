"""Services: detached processes with a record, a log, and an end.

A record is ``HOME/run/<name>.json``. It holds the pid *and* the process's birth, so that a pid that was given to another process
is never signalled. A service survives its starter, and the kill of its starter's process group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import structlog

from hindcast.errors import ServiceError
from hindcast.local import detach
from hindcast.pipeline import check_name
from hindcast.settings import Settings, project_root

#: Marks every process of a service, whatever its session or parent.
MARKER = "HINDCAST_SERVICE"
WORKER_PREFIX = "worker-"
#: What a child gets of the starter's environment. No AIRFLOW__*: a worker is not a part of the Airflow that launched it.
INHERITED = ("PATH", "HOME", "USER", "JAVA_HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
KEPT_WORKER_RECORDS = (
    10  # of workers that have ended, with their logs: enough to read what happened, and bounded
)
LOG_LIMIT_BYTES = 20 * 1024 * 1024  # a log that is larger when its service starts is set aside first
LAST_LINES = 15
_POLL_SECONDS = 0.05

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One recorded process. ``ports`` maps what listens there to the number; ``detail`` is the service's own."""

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
        return (datetime.now(UTC) - self.started_at).total_seconds() if self.running else 0.0

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "log": str(self.log), "started_at": self.started_at.isoformat()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Service:
        values = {
            **record,
            "log": Path(record["log"]),
            "started_at": datetime.fromisoformat(record["started_at"]),
        }
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})


def inherited_environment() -> dict[str, str]:
    """The few variables that a program needs from its surroundings."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


class Services:
    """The services recorded below one home."""

    def __init__(self, home: Path) -> None:
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
        """Start a detached process; it has begun, which is not to say that it is ready.

        :param environment: all the variables it gets; secrets may be in it, never in ``arguments``
        :raises ServiceError: where it runs already or cannot be executed
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
            "arguments": list(arguments), "environment": {**environment, MARKER: token}, "folder": str(project_root()),
            "path": str(self._path(name)), "record": draft.as_record(),
        }  # fmt: skip
        detached = subprocess.run(
            [sys.executable, "-I", detach.__file__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            start_new_session=True,
            check=False,
        )
        if detached.returncode != 0:
            raise ServiceError(
                service=name, problem=f"could not be started: {detached.stderr.strip()}", log=log
            )
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
        found = [self.find(path.stem) for path in self._run.glob("*.json")]
        return sorted((service for service in found if service), key=lambda service: service.started_at)

    def workers(self) -> list[Service]:
        """The workers launched below this home, running or ended."""
        return [service for service in self.all() if service.name.startswith(WORKER_PREFIX)]

    def note(self, service: Service, **detail: Any) -> Service:
        """Add to the record's ``detail``."""
        noted = replace(service, detail={**service.detail, **detail})
        detach.write_atomically(self._path(service.name), json.dumps(noted.as_record(), indent=2))
        return noted

    def stop(self, service: Service, *, grace_seconds: float) -> bool:
        """End the service and all that belongs to it, then forget it. True where it ended by itself within the grace.

        SIGTERM goes to the service alone: it knows what its children need. Whatever is left after the grace is killed.
        """
        left = members(service)
        if service.running:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(service.pid).terminate()
        left = _wait_gone(service, left, grace_seconds)
        willing = not left
        for _ in range(3):  # a killed process may have had one more child in the making
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            left = _wait_gone(service, left, 5.0)
            if not left:
                break
        if left:
            raise ServiceError(
                service=service.name,
                problem=f"did not end; still running: {[process.pid for process in left]}",
                log=service.log,
            )
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
        ended = [service for service in self.workers() if not service.running and not members(service)]
        for service in ended[:-KEPT_WORKER_RECORDS]:
            self.forget(service)
            service.log.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._run / f"{name}.json"


def launch_worker(settings: Settings) -> Service:
    """Start one detached worker of the settings' fleet. It takes a slot or, where none is free, says so and exits 0."""
    services = Services(settings.home)
    services.prune_workers()
    arguments = [sys.executable, str(project_root() / "spark_apps" / "consume.py"), "--fleet", settings.fleet]
    environment = {**inherited_environment(), **settings.environment()}
    return services.start(
        f"{WORKER_PREFIX}{uuid.uuid4().hex[:8]}", arguments, environment, detail={"fleet": settings.fleet}
    )


def members(service: Service) -> list[psutil.Process]:
    """Every live process of the service, itself included.

    Three ways to belong, as each misses some: descent (lost when a parent dies), session (left by ``setsid``), and the marker in
    the environment (overwritten by programs that set their own title, as Airflow's do).
    """
    found: dict[int, psutil.Process] = {}
    if service.running:
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(service.pid)
            found = {process.pid: process for process in (main, *main.children(recursive=True))}
    for process in psutil.process_iter():
        if process.pid not in found and process.pid != os.getpid() and _belongs(process, service):
            found[process.pid] = process
    return [process for process in found.values() if _alive(process)]


def _belongs(process: psutil.Process, service: Service) -> bool:
    try:
        if process.environ().get(MARKER) == service.token:
            return True
        # A session id is the pid of its first process: it cannot be reused while the session has members.
        return (
            os.getsid(process.pid) == service.pid
            and process.create_time() >= service.started_at.timestamp() - 60
        )
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
    """Those that are left, what they have started since, and the others found."""
    found = {process.pid: process for process in (*left, *more)}
    for process in left:
        with suppress(psutil.NoSuchProcess):
            found |= {child.pid: child for child in process.children(recursive=True)}
    return [process for process in found.values() if _alive(process)]


def memory_bytes(service: Service) -> int:
    """Memory of all its processes: proportional set size where the system tells it, else resident (which counts shared pages twice)."""
    total = 0
    for process in members(service):
        with suppress(psutil.Error, OSError):
            total += getattr(process.memory_full_info(), "pss", 0) or process.memory_info().rss
    return total


def last_lines(log: Path, count: int = LAST_LINES) -> str:
    """The end of a log, for an error's message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(lines[-count:])
