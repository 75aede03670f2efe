"""``hindcast``: the command line. Commands are thin: they read settings, call the library, print what it returns.

Heavy libraries are imported inside the commands that need them, so that ``hindcast --help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from hindcast.cli import archives, deadletters, listings, operations, runs, streams, versions
from hindcast.cli.names import did_you_mean
from hindcast.cli.options import ARCHIVES, RECORDS, REPLAYS, VERSIONS
from hindcast.errors import HindcastError, UnknownPipelineError
from hindcast.leave import leave

app = typer.Typer(
    name="hindcast", no_args_is_help=True, pretty_exceptions_enable=False,
    help="Supervised exactly-once streams, their batch replays, and a verdict on every difference.",
    epilog="Exit codes: 0 ok, 1 failed, 2 wrong input, 3 the verdict or comparison did not pass, 75 try again later.",
)  # fmt: skip
for commands in (streams.app, listings.app, versions.app, operations.app):
    app.registered_commands.extend(commands.registered_commands)
app.add_typer(runs.app, name="runs", rich_help_panel=REPLAYS)
app.add_typer(versions.listing, name="versions", rich_help_panel=VERSIONS)
app.add_typer(archives.app, name="archive", rich_help_panel=ARCHIVES)
app.add_typer(deadletters.app, name="deadletters", rich_help_panel=RECORDS)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"hindcast {version('hindcast')}")
        raise typer.Exit


@app.callback()
def hindcast(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print Hindcast's version and exit")
    ] = False,
) -> None:
    """Supervised exactly-once streams, their batch replays, and a verdict on every difference."""
    if context.obj is not None:
        context.obj()


def run(arguments: Sequence[str] | None = None, before: Callable[[], None] | None = None) -> int:
    """Run one command and return its exit code. What Hindcast raises on purpose is one message on stderr; no traceback.

    :param arguments: without the program's name; those of this process by default
    :param before: called before a command runs; not for ``--help``
    """
    try:
        app(args=arguments, obj=before)
    except HindcastError as error:
        print(error, file=sys.stderr)
        if isinstance(error, UnknownPipelineError) and (hint := did_you_mean(error)):
            print(hint, file=sys.stderr)
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> None:
    """Run the command of this process and end. Its log goes to stderr, from warnings up: stdout is for results."""
    leave(run(before=_log_to_stderr))


def _log_to_stderr() -> None:
    import logging.config

    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "loggers": {"kafka": {"level": "ERROR"}}})


if __name__ == "__main__":
    main()
