"""Ask before a command destroys something, or moves readers and streams to other data."""

from __future__ import annotations

import sys

import typer

from hindcast.errors import NotConfirmedError


def check_can_ask(action: str, *, yes: bool) -> None:
    """:raises NotConfirmedError: if ``--yes`` was not given and there is no terminal to ask on"""
    if not yes and not sys.stdin.isatty():
        raise NotConfirmedError(action=action)


def confirm(action: str, question: str, *, yes: bool) -> None:
    """Return if a person says yes, at the terminal or by ``--yes``; end the command with 1 if they say no.

    :param action: the command and its object, for the message
    :raises NotConfirmedError: if there is no terminal to ask on
    """
    if yes:
        return
    check_can_ask(action, yes=yes)
    if not typer.confirm(question, err=True):
        print("Nothing has changed.", file=sys.stderr)
        raise typer.Exit(1)


def user_and_host() -> str:
    """Who gave the command, for the event that it leaves."""
    import getpass
    import platform

    return f"{getpass.getuser()}@{platform.node()}"
