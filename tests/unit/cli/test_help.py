"""What a user sees before the first command: groups, the version, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
from typer.main import get_command

from hindcast.cli.main import app, run


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and exit code 0."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.split() == ["hindcast", version("hindcast")]


def test_every_command_stands_in_a_group() -> None:
    """`hindcast --help` lists no command under the nameless heading."""
    command = get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    panels = {name: getattr(found, "rich_help_panel", None) for name, found in command.commands.items()}
    assert [name for name, panel in panels.items() if not panel] == []
    assert len(set(panels.values())) < len(panels) / 2, "a group has several commands"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands(shell: str) -> None:
    """The script that --show-completion prints asks the program; the answer has the commands."""
    environment = {
        **os.environ,
        "_HINDCAST_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "hindcast re",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "hindcast re",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    program = (
        "import sys; from hindcast.cli.main import app; sys.argv[0] = 'hindcast'; app(prog_name='hindcast')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    for name in ("replay", "rewind", "reshard"):
        assert name in done.stdout, done.stderr
    assert "deadletters" not in done.stdout
