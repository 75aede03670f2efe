"""The page of the command line says what the command line is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from hindcast import errors
from hindcast.cli.main import app
from hindcast.settings import project_root

PAGE = project_root() / "docs" / "how-to" / "command-line.md"


def commands(group: Any, path: str = "hindcast") -> Iterator[tuple[str, Any]]:
    """Every command by what one types, in the order of its name."""
    for name, command in sorted(group.commands.items()):
        nested = getattr(command, "commands", None)
        if nested is None or command.invoke_without_command:
            yield f"{path} {name}", command
        if nested:
            yield from commands(command, f"{path} {name}")


def table() -> list[str]:
    """The table of commands as the page has it."""
    lines = ["| command | options | does |", "|---|---|---|"]
    for path, command in commands(typer.main.get_command(app)):
        arguments = [f"<{each.name}>" for each in command.params if each.param_type_name == "argument"]
        options = sorted(
            each.opts[0]
            for each in command.params
            if each.param_type_name == "option" and each.name != "help"
        )
        first, _, _ = " ".join(command.help.split("\n\n")[0].split()).partition(". ")
        shown = " ".join(f"`{option}`" for option in options)
        lines.append(f"| `{' '.join([path, *arguments])}` | {shown} | {first.removesuffix('.')} |")
    return lines


def test_the_page_lists_every_command_with_its_options() -> None:
    """A command or an option that comes, goes or is renamed must be told; the lines that the page lacks are
    in the failure.
    """
    expected = table()
    found = [
        line for line in PAGE.read_text().splitlines() if line.startswith(("| command |", "| `hindcast "))
    ]
    assert found == [line for line in expected if not line.startswith("|---")], "\n".join(
        ["The table should be:", *expected]
    )


def test_the_page_has_every_exit_code() -> None:
    """Each code with which a command may end on purpose has its line."""
    codes = {
        error.exit_code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.HindcastError)
    }
    assert codes <= {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)}


def test_every_option_and_argument_is_explained() -> None:
    """Each has its help, and each command its group."""
    for path, command in commands(typer.main.get_command(app)):
        assert [each.name for each in command.params if not getattr(each, "help", None)] == [], path
        assert command.help, path


def test_what_destroys_asks_and_what_lists_can_be_watched() -> None:
    """The same options mean the same everywhere, and no command of a kind lacks them."""
    options = {
        path.removeprefix("hindcast "): {option for each in command.params for option in each.opts}
        for path, command in commands(typer.main.get_command(app))
    }
    for name in ("discard", "promote", "back-out", "rewind", "drain", "correct"):
        assert {"--yes", "-y", "--dry-run"} <= options[name], name
    for name in (
        "pause",
        "resume",
        "drain",
        "reshard",
        "rebuild",
        "rewind",
        "replay",
        "validate",
        "correct",
        "reprocess",
    ):
        assert {"--wait", "--timeout"} <= options[name], name
    listings = (
        "pipelines",
        "leases",
        "checkpoints",
        "verdicts",
        "corrections",
        "runs",
        "events",
        "deadletters",
        "deadletters list",
    )
    for name in (*listings, "versions", "archive list", "status"):
        assert {"--output", "-o", "--wide", "--watch", "-w", "--every"} <= options[name], name
    for name in ("checkpoints", "verdicts", "runs", "events", "deadletters", "deadletters list"):
        assert {"--since", "--limit", "-n", "--pipeline", "-p"} <= options[name], name
