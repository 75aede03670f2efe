"""``hindcast``: the command line. Commands are thin: they read settings, call the library, print the result.

A command imports heavy libraries inside its function, so that ``hindcast --help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from hindcast.cli import (
    archives,
    authoring,
    deadletters,
    erasing,
    foreign,
    listings,
    manifests,
    pipelines,
    runs,
    sandbox,
    served,
    upkeep,
    versions,
)
from hindcast.cli.names import did_you_mean
from hindcast.cli.options import ARCHIVES, MACHINE, RECORDS, REPLAYS, VERSIONS
from hindcast.errors import HindcastError, UnknownPipelineError
from hindcast.processes.end_with_parent import exit_now

app = typer.Typer(
    name="hindcast",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Supervised exactly-once streams, their batch replays, and a verdict on every difference.",
    epilog=(
        "Exit codes: 0 ok, 1 failed, 2 wrong input, 3 the verdict or comparison did not pass, "
        "75 try again later."
    ),
)
for commands in (
    pipelines.app,
    listings.app,
    versions.app,
    served.app,
    foreign.app,
    erasing.app,
    authoring.app,
    sandbox.app,
    upkeep.app,
):
    app.registered_commands.extend(commands.registered_commands)
app.add_typer(runs.app, name="runs", rich_help_panel=REPLAYS)
app.add_typer(versions.listing, name="versions", rich_help_panel=VERSIONS)
app.add_typer(archives.app, name="archive", rich_help_panel=ARCHIVES)
app.add_typer(deadletters.app, name="deadletters", rich_help_panel=RECORDS)
app.add_typer(manifests.app, name="manifest", rich_help_panel=MACHINE)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"hindcast {version('hindcast')}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="print Hindcast's version and exit"
    ),
]


@app.callback()
def hindcast(context: typer.Context, version: VersionOption = False) -> None:  # noqa: ARG001 - a callback
    """Supervised exactly-once streams, their batch replays, and a verdict on every difference."""
    if context.obj is not None:
        context.obj()


def run(arguments: Sequence[str] | None = None, before: Callable[[], None] | None = None) -> int:
    """Run one command and return its exit code. A :class:`HindcastError` is one message on stderr, without a
    traceback.

    :param arguments: without the program's name; those of this process by default
    :param before: called before a command runs, but not for ``--help``
    """
    try:
        app(args=arguments, obj=before)
    except HindcastError as error:
        print(error, file=sys.stderr)
        _print_hint(error)
        return error.exit_code
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code
        return int(end.code is not None)
    return 0


def _print_hint(error: HindcastError) -> None:
    if not isinstance(error, UnknownPipelineError):
        return
    hint = did_you_mean(error)
    if hint:
        print(hint, file=sys.stderr)


def main() -> None:
    """Run the command of this process and end it. Warnings and errors are logged to stderr: stdout is for
    results.
    """
    exit_code = run(before=_log_to_stderr)
    exit_now(exit_code)


def _log_to_stderr() -> None:
    import logging.config

    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.config.dictConfig(
        {"version": 1, "disable_existing_loggers": False, "loggers": {"kafka": {"level": "ERROR"}}}
    )


if __name__ == "__main__":
    main()
