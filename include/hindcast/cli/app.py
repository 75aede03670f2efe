"""``hindcast``: the command line. Commands are thin: they read settings, call the library, print what it returns.

Heavy libraries are imported inside the commands that need them, so that ``hindcast --help`` answers at once.
"""

from __future__ import annotations

import sys

import typer

from hindcast.cli import listings, operations, streams
from hindcast.errors import HindcastError

app = typer.Typer(
    name="hindcast", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Supervised exactly-once streams, their batch replays, and a verdict on every difference.",
)  # fmt: skip
for commands in (operations.app, streams.app, listings.app):
    app.registered_commands.extend(commands.registered_commands)


def main() -> None:
    """Run a command. What Hindcast raises on purpose is one message on stderr and the error's exit code; no traceback."""
    try:
        app()
    except HindcastError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
