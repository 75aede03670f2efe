"""``hindcast``: the command line. Commands are thin: they read settings, call the library, print what it returns.

Heavy libraries are imported inside the commands that need them, so that ``hindcast --help`` answers at once.
"""

from __future__ import annotations

import logging.config
import sys
from collections.abc import Sequence

import structlog
import typer

from hindcast.cli import archives, deadletters, listings, operations, runs, streams, versions
from hindcast.errors import HindcastError
from hindcast.leave import leave

app = typer.Typer(
    name="hindcast", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Supervised exactly-once streams, their batch replays, and a verdict on every difference.",
)  # fmt: skip
app.add_typer(deadletters.app, name="deadletters")
app.add_typer(runs.app, name="runs")
app.add_typer(archives.app, name="archive")
app.add_typer(versions.listing, name="versions")
for commands in (operations.app, streams.app, versions.app, listings.app):
    app.registered_commands.extend(commands.registered_commands)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. What Hindcast raises on purpose is one message on stderr; no traceback.

    :param arguments: without the program's name; those of this process by default
    """
    try:
        app(args=arguments)
    except HindcastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> None:
    """Run the command of this process and end. Its log goes to stderr, from warnings up: stdout is for results."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "loggers": {"kafka": {"level": "ERROR"}}})
    leave(run())


if __name__ == "__main__":
    main()
