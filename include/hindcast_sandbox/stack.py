"""All of Hindcast on this machine: up, down, and what is running. Each part is a detached service (see
hindcast.processes.background_services).
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from hindcast.errors import BadInputError, ServiceError
from hindcast.installation import Installation
from hindcast.processes.background_services import (
    Service,
    Services,
    last_lines,
    launch_worker,
    members,
    memory_bytes,
)
from hindcast.processes.detach import write_atomically
from hindcast.processes.environment import child_environment
from hindcast.settings import SECRET, SETTINGS_FILE, Settings
from hindcast_sandbox import airflow, broker, jars
from hindcast_sandbox.demo_schedules import pause_remembered
from hindcast_sandbox.load import DEFAULT_ROWS_PER_SECOND, ensure_topic, report_path

LOAD_PREFIX = "load-"
MIB = 1024 * 1024
_LOAD_READY_SECONDS = 60.0
_LOAD_GRACE_SECONDS = 30.0  # it waits for the rows in flight
_WORKER_GRACE_SECONDS = 60.0  # it ends its batch, checkpoints, releases its leases, and stops a JVM
_POLL_SECONDS = 0.05
_NEVER_KEPT = SECRET | {"home"}  # the settings file is found through it

Say = Callable[[str], None]


def up(
    settings: Settings,
    *,
    with_airflow: bool = True,
    workers: int = 0,
    topic: str | None = "trades",
    rows_per_second: float = DEFAULT_ROWS_PER_SECOND,
    seed: int = 1,
    say: Say = print,
) -> Settings:
    """Start what does not run yet, in the order broker, Airflow, workers, load.

    :param workers: launch so many workers here; with Airflow, `supervise` launches them
    :param topic: what the load generator sends; None for no load
    :returns: the settings with the addresses of the services, also kept in ``HOME/settings.json`` for later
        commands
    """
    with _alone(settings):
        jars.fetch(settings, say)
        say("Starting the broker ...")
        address = broker.address(broker.start(settings))
        settings = settings.model_copy(update={"bootstrap_servers": address})
        say(f"The broker answers at {settings.bootstrap_servers}.")
        _make_topics(Installation(settings))
        if with_airflow:
            settings = _start_airflow(settings, say)
        keep(settings)
        if workers:
            start_workers(Installation(settings), workers, say)
        if topic is not None:
            start_load(settings, topic, rows_per_second, seed)
            say(f"The load sends {rows_per_second:g} rows a second to the topic {topic}.")
        return settings


def _make_topics(installation: Installation) -> None:
    for pipeline in installation.catalog.consumed():
        if pipeline.paused:
            continue
        for source in pipeline.topics:
            ensure_topic(installation.settings.bootstrap_servers, source.name)


def _start_airflow(settings: Settings, say: Say) -> Settings:
    say("Starting Airflow ...")
    settings = airflow.prepare(settings)
    keep(settings)
    settings = airflow.start(settings)
    passwords = airflow.password_file(settings)
    say(f"Airflow is healthy at {settings.airflow_url} (user {airflow.ADMIN}, password in {passwords}).")
    return settings


def start_workers(installation: Installation, count: int, say: Say = print) -> list[Service]:
    """Declare every loadable pipeline, and launch workers until ``count`` of this home run."""
    from hindcast.shards.desired_state import DesiredStates

    settings = installation.settings
    states = DesiredStates(installation.lease_table)
    for pipeline in installation.catalog.consumed():
        states.declare(pipeline, count)
    running = sum(service.running for service in Services(settings.home).workers())
    launched = [launch_worker(settings) for _ in range(count - running)]
    for service in launched:
        say(f"Launched {service.name} with pid {service.pid}; its log is {service.log}.")
    return launched


def start_load(settings: Settings, topic: str, rows_per_second: float, seed: int) -> Service:
    """Start the load of the topic as a service and wait until it keeps its report.

    A load that runs already is returned as it is.

    :raises ServiceError: if it ends, or does not begin in time
    """
    services = Services(settings.home)
    name = LOAD_PREFIX + topic
    known = services.find(name)
    if known and known.running:
        return known
    report = report_path(settings, topic)
    report.unlink(missing_ok=True)  # a reader would take an earlier load's report for this one's
    arguments = [sys.executable, "-m", "hindcast_sandbox.load"]
    arguments += ["--topic", topic]
    arguments += ["--rows-per-second", str(rows_per_second)]
    arguments += ["--seed", str(seed)]
    environment = child_environment(settings)
    service = services.start(name, arguments, environment, detail={"topic": topic})
    deadline = time.monotonic() + _LOAD_READY_SECONDS
    while not report.exists():
        running = service.running
        if not running or time.monotonic() >= deadline:
            problem = "ended while it was starting"
            if running:
                problem = f"did not begin within {_LOAD_READY_SECONDS:.0f} s"
            problem = f"{problem}. Its last lines:\n{last_lines(service.log)}\n"
            raise ServiceError(service=name, problem=problem, log=service.log)
        time.sleep(_POLL_SECONDS)
    return service


def check_no_load(settings: Settings, topic: str) -> None:
    """:raises BadInputError: if a load of the topic runs as a service: two loads would write one report"""
    known = Services(settings.home).find(LOAD_PREFIX + topic)
    if known and known.running:
        cure = "Stop it with `hindcast down`, and start the rest again with `hindcast up --no-load`."
        raise BadInputError(
            problem=f"A load of the topic {topic} runs already, with pid {known.pid}", cure=cure
        )


def stop_loads(settings: Settings) -> None:
    """Stop every load and wait for its final report."""
    loads = [service for service in Services(settings.home).all() if service.name.startswith(LOAD_PREFIX)]
    _stop(settings, loads, _LOAD_GRACE_SECONDS)


def down(settings: Settings, *, say: Say = print) -> None:
    """Stop everything of this home, and make sure that nothing is left.

    Airflow stops first, because it would launch the others again; the broker last, because the load and the
    workers end by writing. The pipelines keep their desired states: the next ``up`` resumes from there. The
    schedules that a demo started are paused.

    :raises ServiceError: if a process could not be ended
    """
    with _alone(settings):
        services = Services(settings.home)
        known = services.all()
        if not known:
            say("Nothing was running.")
            return
        running = [service.name for service in known if service.running]
        if running:
            say(f"Stopping {', '.join(running)} ...")
        else:
            say("Nothing was running.")
        pause_remembered(settings, say)
        airflow.stop(settings)
        stop_loads(settings)
        _stop(settings, services.workers(), _WORKER_GRACE_SECONDS)
        broker.stop(settings)
        rest = services.all()
        _stop(settings, rest, _WORKER_GRACE_SECONDS)
        left = {}
        for service in (*known, *rest):
            left[service.name] = [process.pid for process in members(service)]
        if any(left.values()):
            raise ServiceError(
                service="hindcast", problem=f"left processes behind: {left}", log=settings.logs_dir
            )
        if running:
            say("Everything has stopped.")


def status(settings: Settings) -> list[dict[str, Any]]:
    """One row for each recorded service."""
    return [_status_row(service) for service in Services(settings.home).all()]


def _status_row(service: Service) -> dict[str, Any]:
    state = "ended"
    if service.running:
        state = "running"
    return {
        "name": service.name,
        "pid": service.pid,
        "state": state,
        "ports": service.ports,
        "memory_mib": _memory_mib(service),
        "uptime_seconds": round(service.uptime_seconds),
        "log": str(service.log),
    }


def keep(settings: Settings) -> None:
    """Write what differs from the defaults to ``HOME/settings.json``, without what may hold keys."""
    values = settings.model_dump()
    changed = {}
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if name not in _NEVER_KEPT and values[name] != default:
            changed[name] = values[name]
    text = json.dumps(changed, default=str, indent=2, sort_keys=True) + "\n"
    write_atomically(settings.home / SETTINGS_FILE, text)


def worker_memory_mib(settings: Settings) -> dict[str, int]:
    """Memory of each running worker."""
    workers = Services(settings.home).workers()
    return {service.name: _memory_mib(service) for service in workers if service.running}


def _memory_mib(service: Service) -> int:
    return round(memory_bytes(service) / MIB)


def _stop(settings: Settings, services: list[Service], grace_seconds: float) -> None:
    """Stop the services at the same time, because each takes its seconds to end well."""
    recorded = Services(settings.home)

    def stop(service: Service) -> bool:
        return recorded.stop(service, grace_seconds=grace_seconds)

    with ThreadPoolExecutor(max_workers=max(len(services), 1)) as pool:
        list(pool.map(stop, services))  # raises what a stop raised


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """One ``up`` or ``down`` of a home at a time; the next one waits."""
    folder = settings.home / "run"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
