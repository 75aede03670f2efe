"""Up, status and down of the embedded services, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_until

from hindcast.processes.background_services import MARKER, Services
from hindcast.processes.detach import birth
from hindcast.settings import Settings
from hindcast_sandbox import jars, stack
from hindcast_sandbox.load import LoadReport, LoadState, report_path


@pytest.fixture
def home(settings: Settings) -> Iterator[Settings]:
    """Settings of a home that is down after the test."""
    jars.fetch(settings)
    yield settings
    stack.down(settings, say=lambda _: None)


def _hindcast(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HINDCAST_HOME": str(settings.home),
        "HINDCAST_JARS_DIR": str(settings.spark_jars_dir),
    }
    command = [sys.executable, "-m", "hindcast.cli.main", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)


def _left(home: Path) -> list[psutil.Process]:
    """Processes whose environment or arguments name the home."""
    found = []
    for process in psutil.process_iter():
        try:
            named = [
                *process.cmdline(),
                process.environ().get("HINDCAST_HOME", ""),
                process.environ().get(MARKER, ""),
            ]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(home) in text for text in named):
            found.append(process)
    return found


def test_up_and_down_leave_nothing(home: Settings) -> None:
    """`up` starts a broker and a load that `status` shows; `down` ends both, the load with a whole report; a
    second `down` is content.
    """
    ended = _hindcast(home, "up", "--no-airflow", "--rows-per-second", "200")
    assert ended.returncode == 0, ended.stderr
    rows = {row["name"]: row for row in json.loads(_hindcast(home, "status", "-o", "json").stdout)}
    assert rows.keys() == {"broker", "load-trades"}
    assert all(row["state"] == "running" and row["memory_mib"] > 10 for row in rows.values())
    kept = json.loads((home.home / "settings.json").read_text())
    assert kept["bootstrap_servers"] == f"127.0.0.1:{rows['broker']['ports']['kafka']}"
    wait_until(lambda: LoadReport.read(report_path(home, "trades")).sent > 50, 60, "50 rows are sent")
    pids = {row["pid"] for row in rows.values()}
    assert pids <= {process.pid for process in _left(home.home)} | {rows["load-trades"]["pid"]}
    assert _hindcast(home, "down").returncode == 0
    assert not [pid for pid in pids if birth(pid)]  # a zombie that init has yet to reap is gone
    assert _left(home.home) == []
    assert Services(home.home).all() == []
    assert LoadReport.read(report_path(home, "trades")).state is LoadState.FINISHED
    assert _hindcast(home, "down").returncode == 0


def test_up_again_mends_what_died(home: Settings) -> None:
    """After kill -9 of the broker, `status` says that it ended and `up` starts it at the same address; the
    load is not doubled.
    """
    assert _hindcast(home, "up", "--no-airflow", "--rows-per-second", "50").returncode == 0
    services = Services(home.home)
    broker, load = services.find("broker"), services.find("load-trades")
    assert broker
    assert load
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not broker.running, 60, "the broker is gone")
    states = {row["name"]: row["state"] for row in json.loads(_hindcast(home, "status", "-o", "json").stdout)}
    assert states == {"broker": "ended", "load-trades": "running"}
    assert _hindcast(home, "up", "--no-airflow").returncode == 0
    again = services.find("broker")
    assert again
    assert (again.ports, again.running) == (broker.ports, True)
    assert services.find("load-trades") == load


def test_two_homes_stand_beside_each_other(home: Settings, settings_factory: Callable[..., Settings]) -> None:
    """A second home gets ports of its own, and its `down` leaves the first running."""
    other = settings_factory()
    try:
        for each in (home, other):
            assert _hindcast(each, "up", "--no-airflow", "--no-load").returncode == 0
        ports = [
            service.ports["kafka"]
            for each in (home, other)
            if (service := Services(each.home).find("broker"))
        ]
        assert len(set(ports)) == 2
    finally:
        assert _hindcast(other, "down").returncode == 0
    first = Services(home.home).find("broker")
    assert first
    assert first.running


def test_the_settings_file_holds_no_more_than_what_differs(settings_factory: Callable[..., Settings]) -> None:
    """Only what is not a default is kept, and nothing that may be secret."""
    secret = {"aws_secret_access_key": "s"}
    settings = settings_factory(
        jars_dir=None, lease_seconds=3.0, storage_options=secret, spark_conf=secret, kafka_password="s"
    )
    stack.keep(settings)
    assert json.loads((settings.home / "settings.json").read_text()) == {"lease_seconds": 3.0}
