"""What destroys something, or leads readers and streams elsewhere, asks first; --dry-run changes nothing."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.live_stream import MODULE

from hindcast import catalog
from hindcast.cli.main import run
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import InactiveState, InactiveVersion
from hindcast.shards.version_changes import Versions

NAME = "stock_stats"


@pytest.fixture
def home(
    settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """A pipeline whose version 2 catches up beside version 1."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    settings = settings_factory(pipelines_dir=folder)
    for version, table in ((1, NAME), (2, f"{NAME}_v2")):
        text = MODULE.replace('Table("{name}"', f'Table("{table}"')
        (folder / f"{NAME}_{version}.py").write_text(
            text.format(topic="t", name=NAME, version=version, shards=1)
        )
    store = LeaseTable(settings)
    DesiredStates(store).declare(catalog.load(folder)[NAME], 1)
    resharding.create(store, NAME, 1, 1, {0: 0})
    beside = InactiveVersion(
        version=2,
        state=InactiveState.CATCHING_UP,
        shards=1,
        tables=(f"sinks/{NAME}_v2", f"corrections/{NAME}_v2"),
    )
    Versions(store).begin(NAME, beside, {0: 0}, columns_from=1)
    monkeypatch.setenv("HINDCAST_HOME", str(settings.home))
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(folder))
    return settings


def leases(settings: Settings) -> list[Lease]:
    return LeaseTable(settings).leases()


#: Each command, and what its dry run says.
COMMANDS = [
    (("drain", NAME), "reads up to the present end"),
    (("promote", NAME, "--version", "2", "--despite", "why"), "before"),
    (("discard", NAME, "--version", "2"), f"sinks/{NAME}_v2"),
    (("correct", NAME, "--all"), "--all"),
]


@pytest.mark.parametrize(("arguments", "_said"), COMMANDS)
def test_without_a_terminal_a_yes_is_needed(
    home: Settings, arguments: tuple[str, ...], _said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that forgot --yes is told so, with exit code 2, and nothing has changed."""
    before = leases(home)
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert "--yes" in printed.err and "Nothing has changed" in printed.err
    assert printed.out == ""
    assert leases(home) == before


@pytest.mark.parametrize(("arguments", "said"), COMMANDS)
def test_a_dry_run_changes_nothing(
    home: Settings, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what would happen, and exits 0 without being asked for a yes."""
    before = leases(home)
    assert run([*arguments, "--dry-run"]) == 0
    assert said in capsys.readouterr().out
    assert leases(home) == before


def test_a_dry_run_is_refused_as_the_command_is(home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """What would be refused says so at once, whether or not anybody can be asked."""
    for arguments, said in (
        (("promote", NAME, "--version", "2"), "it has not caught up"),
        (("promote", NAME, "--version", "9"), "it is not a shadow"),
        (("back-out", NAME), "no version before it is kept warm"),
        (("discard", NAME, "--version", "1"), "it is the active one"),
        (("discard", "other", "--version", "1"), "no pipeline named other"),
        (("correct", NAME, "--run", "not-made"), "not-made"),
    ):
        for more in ((), ("--dry-run",)):
            assert run([*arguments, *more]) == 2
            assert said in capsys.readouterr().err


def test_what_was_promoted_can_be_backed_out_of_and_discarded(
    home: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --yes nobody is asked. The dry run before it says what is then done; a command that is done
    already asks nobody.
    """
    for arguments, told in (
        (
            ("promote", NAME, "--version", "2", "--despite", "why"),
            {"version": 2, "before": 1, "promoted": True},
        ),
        (("back-out", NAME), {"version": 1, "before": 2, "backed_out": True}),
        (("discard", NAME, "--version", "2"), {"version": 2, "active": 1}),
    ):
        for more in ("--dry-run", "--yes"):
            assert run([*arguments, more, "-o", "json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert {name: found[name] for name in told} == told
        if arguments[0] == "back-out":
            assert run(arguments) == 0
            capsys.readouterr()


def test_without_a_terminal_a_back_out_needs_a_yes(
    home: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """It leads readers elsewhere, as the promotion before it did."""
    assert run(["promote", NAME, "--version", "2", "--despite", "why", "--yes"]) == 0
    before = leases(home)
    capsys.readouterr()
    assert run(["back-out", NAME]) == 2
    printed = capsys.readouterr()
    assert "--yes" in printed.err and "Nothing has changed" in printed.err
    assert leases(home) == before


@pytest.mark.parametrize(("answer", "code", "state"), [("n", 1, "running"), ("y", 0, "drained")])
def test_on_a_terminal_a_person_is_asked(home: Settings, answer: str, code: int, state: str) -> None:
    """A no ends with 1 and changes nothing; a yes does it."""
    outer, inner = pty.openpty()
    os.write(outer, f"{answer}\n".encode())
    command = [sys.executable, "-m", "hindcast.cli.main", "drain", NAME]
    environment = {**os.environ, **home.environment()}
    ended = subprocess.run(
        command, env=environment, stdin=inner, capture_output=True, text=True, timeout=60, check=False
    )
    for end in (outer, inner):
        with suppress(OSError):
            os.close(end)
    assert ended.returncode == code, ended.stderr
    assert "Do it?" in ended.stderr
    assert DesiredStates(LeaseTable(home)).get(NAME).state == state
