"""All of Hindcast on this machine: up, down, and what is running. Each part is a detached service (see hindcast.local.processes)."""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from hindcast import catalog
from hindcast.errors import BadInputError, ServiceError
from hindcast.local import airflow, broker, jars
from hindcast.local.detach import write_atomically
from hindcast.local.load import DEFAULT_ROWS_PER_SECOND, account_path, ensure_topic
from hindcast.local.processes import (
    Service,
    Services,
    inherited_environment,
    last_lines,
    launch_worker,
    members,
    memory_bytes,
)
from hindcast.local.schedules import pause_remembered
from hindcast.settings import SETTINGS_FILE, Settings

LOAD_PREFIX = "load-"
MIB = 1024 * 1024
_LOAD_READY_SECONDS = 60.0
_LOAD_GRACE_SECONDS = 30.0  # it waits for the rows in flight
_WORKER_GRACE_SECONDS = 60.0  # it ends its batch, checkpoints, releases its leases, and stops a JVM
_NEVER_KEPT = frozenset({"home"})  # the settings file is found through it

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
    """Start what does not run yet, in the order broker, Airflow, workers, load; returns the settings that reach it.

    They are also kept in ``HOME/settings.json``, where every later command finds them.

    :param workers: launch so many workers here; with Airflow, `supervise` launches them
    :param topic: what the load generator sends; None for no load
    """
    with _alone(settings):
        jars.fetch(settings, say)
        say("Starting the broker ...")
        settings = settings.model_copy(update={"bootstrap_servers": broker.address(broker.start(settings))})
        say(f"The broker answers at {settings.bootstrap_servers}.")
        for pipeline in catalog.load(settings.pipelines_dir).values():
            for source in pipeline.topics if not pipeline.paused else ():
                ensure_topic(settings.bootstrap_servers, source.name)
        if with_airflow:
            say("Starting Airflow ...")
            settings = airflow.prepare(settings)
            keep(settings)
            settings = airflow.start(settings)
            say(
                f"Airflow is healthy at {settings.airflow_url} (user {airflow.ADMIN}, password in {airflow.password_file(settings)})."
            )
        keep(settings)
        if workers:
            start_workers(settings, workers, say)
        if topic is not None:
            start_load(settings, topic, rows_per_second, seed)
            say(f"The load sends {rows_per_second:g} rows a second to the topic {topic}.")
        return settings


def start_workers(settings: Settings, count: int, say: Say = print) -> list[Service]:
    """Want every loadable pipeline running, and launch workers until ``count`` of this home run."""
    from hindcast.control.desired import DesiredStates
    from hindcast.control.lease_table import LeaseTable

    states = DesiredStates(LeaseTable(settings))
    for pipeline in catalog.load(settings.pipelines_dir).values():
        states.declare(pipeline, count)
    running = [service for service in Services(settings.home).workers() if service.running]
    launched = [launch_worker(settings) for _ in range(count - len(running))]
    for service in launched:
        say(f"Launched {service.name} with pid {service.pid}; its log is {service.log}.")
    return launched


def start_load(settings: Settings, topic: str, rows_per_second: float, seed: int) -> Service:
    """Start the load of the topic as a service and wait until it keeps its account; one that runs already is returned as it is.

    :raises ServiceError: where it ends, or does not begin in time
    """
    services = Services(settings.home)
    name = LOAD_PREFIX + topic
    known = services.find(name)
    if known and known.running:
        return known
    account = account_path(settings, topic)
    account.unlink(missing_ok=True)  # an earlier load's, which a reader would take for this one's
    arguments = [
        sys.executable,
        "-m",
        "hindcast.local.load",
        "--topic",
        topic,
        "--rows-per-second",
        str(rows_per_second),
        "--seed",
        str(seed),
    ]
    service = services.start(
        name, arguments, {**inherited_environment(), **settings.environment()}, detail={"topic": topic}
    )
    deadline = time.monotonic() + _LOAD_READY_SECONDS
    while not account.exists():
        if not service.running or time.monotonic() >= deadline:
            problem = (
                f"did not begin within {_LOAD_READY_SECONDS:.0f} s"
                if service.running
                else "ended while it was starting"
            )
            raise ServiceError(
                service=name,
                problem=f"{problem}. Its last lines:\n{last_lines(service.log)}\n",
                log=service.log,
            )
        time.sleep(0.05)
    return service


def check_no_load(settings: Settings, topic: str) -> None:
    """:raises BadInputError: where a load of the topic runs as a service: two loads would keep one account"""
    known = Services(settings.home).find(LOAD_PREFIX + topic)
    if known and known.running:
        cure = "Stop it with `hindcast down`, and start the rest again with `hindcast up --no-load`."
        raise BadInputError(
            problem=f"A load of the topic {topic} runs already, with pid {known.pid}", cure=cure
        )


def stop_loads(settings: Settings) -> None:
    """Stop every load and wait for its final account."""
    _stop(
        settings,
        [service for service in Services(settings.home).all() if service.name.startswith(LOAD_PREFIX)],
        _LOAD_GRACE_SECONDS,
    )


def down(settings: Settings, *, say: Say = print) -> None:
    """Stop everything of this home, and make sure that nothing is left.

    Airflow goes first, as it would launch again what is stopped; the broker last, as the load and the workers end by writing.
    What is wanted of the pipelines stays: the next ``up`` goes on from there. The schedules that a demo started are paused.

    :raises ServiceError: where a process could not be ended
    """
    with _alone(settings):
        services = Services(settings.home)
        known = services.all()
        if not known:
            say("Nothing was running.")
            return
        running = [service.name for service in known if service.running]
        say(f"Stopping {', '.join(running)} ..." if running else "Nothing was running.")
        pause_remembered(settings, say)
        airflow.stop(settings)
        stop_loads(settings)
        _stop(settings, services.workers(), _WORKER_GRACE_SECONDS)
        broker.stop(settings)
        rest = services.all()
        _stop(settings, rest, _WORKER_GRACE_SECONDS)
        left = {service.name: [process.pid for process in members(service)] for service in (*known, *rest)}
        if any(left.values()):
            raise ServiceError(
                service="hindcast", problem=f"left processes behind: {left}", log=settings.logs_dir
            )
        if running:
            say("Everything has stopped.")


def status(settings: Settings) -> list[dict[str, Any]]:
    """One row for each recorded service."""
    return [
        {
            "name": service.name,
            "pid": service.pid,
            "state": "running" if service.running else "ended",
            "ports": service.ports,
            "memory_mib": round(memory_bytes(service) / MIB),
            "uptime_seconds": round(service.uptime_seconds),
            "log": str(service.log),
        }
        for service in Services(settings.home).all()
    ]


def keep(settings: Settings) -> None:
    """Write what differs from the defaults to ``HOME/settings.json`` (mode 0600: store options may hold keys)."""
    plain = {
        name: field.get_default(call_default_factory=True)
        for name, field in Settings.model_fields.items()
        if name not in _NEVER_KEPT
    }
    changed = {
        name: value for name, value in settings.model_dump().items() if name in plain and value != plain[name]
    }
    write_atomically(
        settings.home / SETTINGS_FILE,
        json.dumps(changed, default=str, indent=2, sort_keys=True) + "\n",
        0o600,
    )


def worker_memory_mib(settings: Settings) -> dict[str, int]:
    """Memory of each running worker."""
    return {
        service.name: round(memory_bytes(service) / MIB)
        for service in Services(settings.home).workers()
        if service.running
    }


def _stop(settings: Settings, services: list[Service], grace_seconds: float) -> None:
    """Stop them at the same time: each takes its seconds to end well."""
    recorded = Services(settings.home)
    with ThreadPoolExecutor(max_workers=max(len(services), 1)) as pool:
        list(pool.map(lambda service: recorded.stop(service, grace_seconds=grace_seconds), services))


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """One ``up`` or ``down`` of a home at a time; the next one waits."""
    folder = settings.home / "run"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
