"""Detached services: they outlive their starter, and end wholly. Real processes, no JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hindcast.errors import BadNameError, ServiceError
from hindcast.processes.background_services import (
    KEPT_WORKER_RECORDS,
    MARKER,
    Service,
    Services,
    last_lines,
    members,
    memory_bytes,
)
from hindcast.processes.environment import BASIC, basic_environment
from hindcast.settings import Settings
from hindcast_sandbox.ports import free_ports, kept_ports, listens

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
#: Ignores SIGTERM, and has a child in another session that does too.
_IGNORE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
_CHILD = f"{_IGNORE}print(1, flush=True); time.sleep(600)"
_PARENT = (
    f"import subprocess, sys; {_IGNORE}"
    f"subprocess.Popen([sys.executable, '-c', {_CHILD!r}], start_new_session=True); print(2, flush=True); time.sleep(600)"
)
STUBBORN = [sys.executable, "-c", _PARENT]


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)  # it stands for a service that goes on


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """The services of a new home; all are ended after the test."""
    made = Services(tmp_path)
    yield made
    for service in made.all():
        made.stop(service, grace_seconds=0.1)


def test_a_service_is_nobodys_child_and_leads_its_own_session(services: Services) -> None:
    """The process is not our child, not in our session or group, and its record names it."""
    service = services.start("one", SLEEP, basic_environment())
    process = psutil.Process(service.pid)
    assert process.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    assert os.getsid(service.pid) == os.getpgid(service.pid) == service.pid
    assert service.running
    assert services.find("one") == service


def test_a_service_survives_the_kill_of_its_starters_group(services: Services, tmp_path: Path) -> None:
    """A kill -9 of the whole process group of the starter leaves the service running."""
    script = (
        "import sys, time; from pathlib import Path; from hindcast.processes.background_services import Services\n"
        f"Services(Path({str(tmp_path)!r})).start('survivor', {SLEEP!r}, {{}}); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        _until(lambda: services.find("survivor") is not None)
    finally:
        os.killpg(starter.pid, signal.SIGKILL)
        starter.wait()
    service = services.find("survivor")
    assert service is not None
    assert service.running


def test_it_gets_the_environment_that_was_given_and_nothing_else(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the starter has in its own environment does not leak; secrets travel by it and are in no
    argument.
    """
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "secret")
    service = services.start("plain", SLEEP, {**basic_environment(), "TOKEN": "hush"})
    _until(lambda: "TOKEN" in psutil.Process(service.pid).environ())
    process = psutil.Process(service.pid)
    assert process.environ().keys() <= {*BASIC, "TOKEN", MARKER, "LC_CTYPE"}
    assert not any("hush" in argument for argument in process.cmdline())


def test_output_goes_to_the_log(services: Services) -> None:
    """What the process writes to stdout and stderr is in HOME/logs/<name>.log."""
    service = services.start(
        "talker", [sys.executable, "-c", "import sys; print('said'); print('moaned', file=sys.stderr)"], {}
    )
    _until(lambda: not service.running)
    assert service.log.name == "talker.log"
    assert set(last_lines(service.log).splitlines()) == {"said", "moaned"}


def test_a_signal_that_the_starter_ignores_reaches_the_service(services: Services) -> None:
    """A starter that ignores SIGINT (a shell's background job) does not hand that on."""
    kept = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        service = services.start("sensitive", SLEEP, basic_environment())
    finally:
        signal.signal(signal.SIGINT, kept)
    os.kill(service.pid, signal.SIGINT)
    _until(lambda: not service.running)


def test_a_stop_ends_the_whole_tree(services: Services) -> None:
    """A service that ignores SIGTERM, and its child in another session, are killed after the grace; the
    record goes.
    """
    service = services.start("stubborn", STUBBORN, basic_environment())
    _until(lambda: {"1", "2"} <= set(last_lines(service.log).splitlines()))
    processes = members(service)
    assert services.stop(service, grace_seconds=0.3) is False
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
    assert services.find("stubborn") is None


def test_a_stop_finds_children_whose_parent_is_dead(services: Services) -> None:
    """After kill -9 of the main process its children, in other sessions, still belong to the service and are
    ended.
    """
    service = services.start("orphans", STUBBORN, basic_environment())
    _until(lambda: {"1", "2"} <= set(last_lines(service.log).splitlines()))
    os.kill(service.pid, signal.SIGKILL)
    _until(lambda: not service.running)
    assert len(members(service)) == 1
    services.stop(service, grace_seconds=0.1)
    assert members(service) == []


def test_a_willing_service_ends_by_itself(services: Services) -> None:
    """SIGTERM alone ends a well-behaved process: the stop says so and does not wait out the grace."""
    service = services.start("willing", SLEEP, basic_environment())
    assert services.stop(service, grace_seconds=600.0) is True


def test_a_reused_pid_is_never_signalled(services: Services, tmp_path: Path) -> None:
    """A record whose pid now belongs to a process of another birth counts as ended, and its stop harms
    nobody.
    """
    bystander = subprocess.Popen(SLEEP)
    try:
        service = services.start("short", [sys.executable, "-c", ""], {})
        _until(lambda: not service.running)
        stale: Service = replace(service, pid=bystander.pid)
        (tmp_path / "run" / "short.json").write_text(json.dumps(stale.as_record()))
        found = services.find("short")
        assert found is not None
        assert not found.running
        services.stop(found, grace_seconds=0.1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_name_runs_once(services: Services) -> None:
    """Starting a running service again is refused with its pid; a name that is none is refused before
    anything starts.
    """
    service = services.start("single", SLEEP, basic_environment())
    with pytest.raises(ServiceError, match=str(service.pid)):
        services.start("single", SLEEP, basic_environment())
    with pytest.raises(BadNameError):
        services.start("../escape", SLEEP, {})


def test_what_cannot_be_executed_is_an_error(services: Services) -> None:
    """A program that is not there is named in the error, and leaves no record."""
    with pytest.raises(ServiceError, match="no-such-program"):
        services.start("none", ["/no-such-program"], {})
    assert services.all() == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '["replay.stock_stats"]', '{"log": 1, "started_at": 2}']
)
def test_a_file_that_records_no_service_is_none(services: Services, tmp_path: Path, text: str) -> None:
    """A torn or foreign file among the records is no service, and hides none."""
    made = services.start("sleeper", SLEEP, {})
    (tmp_path / "run" / "foreign.json").write_text(text)
    assert services.find("foreign") is None
    assert [service.name for service in services.all()] == [made.name]


def test_records_of_ended_workers_are_bounded(services: Services) -> None:
    """Only the newest records of workers that have ended are kept, each with its log; other services are left
    alone.
    """
    for number in range(KEPT_WORKER_RECORDS + 3):
        services.start(f"worker-{number:02}", [sys.executable, "-c", "print()"], {})
    services.start("other", [sys.executable, "-c", ""], {})
    _until(lambda: not any(service.running for service in services.all()))
    services.prune_workers()
    assert [service.name for service in services.workers()] == [
        f"worker-{number:02}" for number in range(3, KEPT_WORKER_RECORDS + 3)
    ]
    assert all(service.log.exists() for service in services.workers())
    assert services.find("other") is not None


def test_memory_counts_all_processes(services: Services) -> None:
    """The memory of a service is at least that of a bare Python, and 0 once it has ended."""
    service = services.start("sized", SLEEP, basic_environment())
    _until(lambda: memory_bytes(service) > 2_000_000)
    services.stop(service, grace_seconds=5.0)
    assert memory_bytes(service) == 0


def test_ports_are_kept_while_they_are_free(tmp_path: Path) -> None:
    """The second start finds the first one's ports; once somebody listens there, it gets others."""
    import socket

    first = kept_ports(tmp_path / "ports.json", ("a", "b"))
    assert kept_ports(tmp_path / "ports.json", ("a", "b")) == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first["a"]))
        taken.listen()
        assert listens(first["a"])
        assert kept_ports(tmp_path / "ports.json", ("a", "b")) != first
    assert len(set(free_ports(20))) == 20


def test_a_home_named_relatively_is_the_same_for_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HINDCAST_HOME=name means a folder below the working directory, also for a child that runs elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HINDCAST_HOME", "here")
    assert Settings().environment()["HINDCAST_HOME"] == str(tmp_path / "here")
