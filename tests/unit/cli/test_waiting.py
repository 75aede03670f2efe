"""--wait returns once workers have done what was wanted, --watch lists until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.stand_in_programs import take_programs_from
from support.waiting import wait_until

from hindcast.cli import pipelines
from hindcast.cli.main import run
from hindcast.cli.waiting import caught_up
from hindcast.errors import BadInputError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, ShardState, StatusType
from hindcast.leases.store import swap
from hindcast.settings import Settings, project_root
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import PipelineRow, desired_key
from hindcast.shards.shard_row import DRAINED, REFUSED, ReportedDetail
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import EventKind, EventLog

NAME = "stock_stats"
Change = Callable[[Lease], Lease]


@pytest.fixture
def home(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A pipeline of one shard, which nobody holds."""
    monkeypatch.setenv("HINDCAST_HOME", str(settings.home))
    assert run(["resume", NAME]) == 0
    resharding.create(LeaseTable(settings), NAME, 1, 1, {0: 0, 1: 0})
    return settings


def alter(settings: Settings, change: Change) -> None:
    """Change the pipeline's shards, as a worker does."""

    def decide(snapshot: Any) -> list[Lease]:
        return [change(lease) for lease in snapshot.leases.values() if lease.status_type is StatusType.SHARD]

    swap(LeaseTable(settings), decide)


def requested(settings: Settings) -> bool:
    row = LeaseTable(settings).read().leases[desired_key(NAME)]
    return bool(PipelineRow.of(row).rebuild)


def wanted(settings: Settings, state: str) -> bool:
    return DesiredStates(LeaseTable(settings)).get(NAME).state == state


@pytest.mark.parametrize(
    ("arguments", "before", "asked", "after", "said"),
    [
        (
            ("pause", NAME),
            lambda lease: lease.given_to("w1"),
            lambda settings: wanted(settings, "paused"),
            lambda lease: lease.evolve(lease_owner=""),
            "v1.g0.s0 is held by w1",
        ),
        (
            ("resume", NAME),
            lambda lease: lease,
            lambda settings: wanted(settings, "running"),
            lambda lease: lease.given_to("w1"),
            "v1.g0.s0 has no owner yet",
        ),
        (
            ("drain", NAME, "--yes"),
            lambda lease: lease.given_to("w1", detail={**lease.detail, "lag_records": 7}),
            lambda settings: wanted(settings, "drained"),
            lambda lease: lease.evolve(lease_owner="", detail={**lease.detail, DRAINED: True}),
            "lags by 7 records",
        ),
    ],
    ids=["pause", "resume", "drain"],
)
def test_a_command_waits_for_its_effect(
    home: Settings,
    arguments: tuple[str, ...],
    before: Change,
    asked: Callable[[Settings], bool],
    after: Change,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It says on stderr what is missing, and ends with 0 once nothing is; in vain it ends with 1 and says
    what was missing.
    """
    alter(home, before)
    assert run([*arguments, "--wait", "--timeout", "0.1"]) == 1
    printed = capsys.readouterr()
    assert said in printed.err
    assert "did not come within 0.1 s" in printed.err
    assert asked(home)
    alter(home, after)
    assert run([*arguments, "--wait", "--timeout", "30"]) == 0
    assert "Waiting" not in capsys.readouterr().err


def test_a_pause_does_not_wait_for_the_dead(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes a dead owner's shard while the pipeline is paused: it is let go once its lease has expired
    under our eyes.
    """
    monkeypatch.setenv("HINDCAST_LEASE_SECONDS", "1")
    alter(home, lambda lease: lease.given_to("dead"))
    assert run(["pause", NAME, "--wait", "--timeout", "30"]) == 0


def test_a_shard_that_is_refused_is_not_waited_for(
    home: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Waiting does not mend it: its reason is told at once."""
    done = threading.Event()

    def refuse() -> None:
        while not done.is_set():
            alter(
                home,
                lambda lease: lease.evolve(detail={**lease.detail, REFUSED: "its checkpoint is damaged"}),
            )

    refusing = threading.Thread(target=refuse)
    refusing.start()
    try:
        assert run(["resume", NAME, "--wait", "--timeout", "30"]) == 2
    finally:
        done.set()
        refusing.join()
    assert "its checkpoint is damaged" in capsys.readouterr().err


def test_a_reshard_waits_for_the_new_shards(home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """Until there are so many, none of them waits for its parents, and each has an owner."""
    alter(home, lambda lease: lease.given_to("w1"))
    assert run(["reshard", NAME, "--shards", "1", "--wait", "--timeout", "10"]) == 0
    assert run(["reshard", NAME, "--shards", "2", "--wait", "--timeout", "0.1"]) == 1
    assert "its number of shards is 1" in capsys.readouterr().err
    resharding.reshard(LeaseTable(home), NAME, 1, 2, {0: 0, 1: 0})
    assert run(["reshard", NAME, "--shards", "2", "--wait", "--timeout", "0.1"]) == 1
    assert "v1.g1.s0 waits for" in capsys.readouterr().err
    alter(home, lambda lease: lease.evolve(state=ShardState.OPEN, lease_owner="w1"))
    assert run(["reshard", NAME, "--shards", "2", "--wait", "--timeout", "10"]) == 0


def test_a_version_that_is_gone_is_not_waited_for(home: Settings) -> None:
    """It was discarded meanwhile. It does not catch up any more, and that is not what it is waited for."""
    with pytest.raises(BadInputError, match=r"Version 2 of stock_stats was discarded.*hindcast versions"):
        caught_up(Installation(home), NAME, 2)()
    assert caught_up(Installation(home), NAME, 1)() == ""


def test_a_rebuild_waits_until_its_request_is_met(home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own request, not an earlier one."""
    met = threading.Thread(target=_meet, args=(home,))
    met.start()
    assert run(["rebuild", NAME, "--wait", "--timeout", "30"]) == 0
    met.join()
    assert run(["rebuild", NAME, "--wait", "--timeout", "0.1"]) == 1
    assert "v1.g0.s0 is not rebuilt yet" in capsys.readouterr().err


def _meet(settings: Settings) -> None:
    wait_until(lambda: requested(settings), 30.0, "the rebuild was requested")
    row = LeaseTable(settings).read().leases[desired_key(NAME)]
    alter(
        settings,
        lambda lease: lease.evolve(
            detail={**lease.detail, **ReportedDetail(rebuild=PipelineRow.of(row).rebuild[lease.status_value])}
        ),
    )


APP = """
import pathlib, sys
tries = pathlib.Path(__file__).with_name("tries")
tries.open("a").write("x")
if len(tries.read_text()) < {tries}:
    sys.exit(75)
print('{{"passed": true}}')
"""


@pytest.mark.parametrize(
    ("tries", "more", "code"),
    [(1, (), 0), (2, (), 75), (3, ("--wait",), 0), (99, ("--wait", "--timeout", "0.1"), 1)],
)
def test_a_replay_waits_until_the_stream_is_so_far(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tries: int,
    more: tuple[str, ...],
    code: int,
) -> None:
    """While a try ends with 75 it is made again; without --wait 75 is the answer."""
    take_programs_from(tmp_path / "apps", monkeypatch)
    (tmp_path / "apps" / "replay.py").write_text(APP.format(tries=tries))
    monkeypatch.setenv("HINDCAST_HOME", str(settings.home))
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(project_root() / "include" / "pipelines"))
    monkeypatch.setattr(pipelines, "_RETRY_SECONDS", 0.01)
    assert run(["validate", NAME, "--all", *more, "-o", "json"]) == code
    if code == 0:
        assert json.loads(capsys.readouterr().out) == {"passed": True}


def test_a_watch_lists_until_ctrl_c(settings: Settings) -> None:
    """One JSON array a look, what is new in the next; Ctrl-C ends it with 0."""
    log = EventLog(ControlTables(settings))
    log.record(EventKind.QUERY_FAILED, "First.", pipeline="p")
    command = [sys.executable, "-m", "hindcast.cli.main", "events", "--watch", "--every", "0.1", "-o", "json"]
    environment = {**os.environ, **settings.environment()}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert len(json.loads(watching.stdout.readline())) == 1
        log.record(EventKind.QUERY_FAILED, "Second.", pipeline="p")
        deadline = time.monotonic() + 30
        while len(json.loads(watching.stdout.readline())) < 2:
            assert time.monotonic() < deadline
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=30)
    assert (watching.returncode, said) == (0, "")
