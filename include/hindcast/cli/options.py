"""The options and arguments that several commands share, so that each means the same everywhere."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from hindcast.cli.output import Format
from hindcast.errors import BadInputError, BadRangeError

#: The groups of `hindcast --help`.
STREAMS = "Streams"
REPLAYS = "Replays and verdicts"
VERSIONS = "Versions"
SERVED = "Served tables"
ARCHIVES = "Archives"
RECORDS = "Records and events"
AUTHORING = "Write pipelines"
MACHINE = "This machine"

FormatOption = Annotated[
    Format,
    typer.Option("--output", "-o", help="a table that fits the terminal, a table of everything, or JSON"),
]
WideOption = Annotated[bool, typer.Option("--wide", help="every column, nothing cut: -o wide")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="list again and again, until Ctrl-C")]
EveryOption = Annotated[
    float, typer.Option("--every", min=0.1, help="with --watch: seconds from one listing to the next")
]
PipelineOption = Annotated[str, typer.Option("--pipeline", "-p", help="only this pipeline")]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=100_000, help="at most so many rows, the newest first")
]
SinceOption = Annotated[
    str, typer.Option("--since", help="only rows younger than 30s, 15m, 1h or 7d, or than an ISO 8601 time")
]

PipelineArgument = Annotated[str, typer.Argument(help="the pipeline's name")]

YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="do not ask; needed if there is no terminal to ask on")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only say what would happen")]
WaitOption = Annotated[bool, typer.Option("--wait", help="return once it is done; progress goes to stderr")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, help="with --wait: exit 1 after so many seconds")
]
#: How long `--wait` waits by default: a lease, the current batch and the start of a worker.
TIMEOUT_SECONDS = 300.0

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def since_when(text: str) -> datetime | None:
    """The instant that an age or a time names: rows from it on are shown. None, for all rows, if the text is
    empty.

    :raises BadInputError: if the text is neither an age nor an aware instant
    """
    if not text:
        return None
    age = _AGE.fullmatch(text)
    if age:
        return _so_long_ago(float(age[1]), _UNITS[age[2]])
    from hindcast.replay.request import parse_time

    try:
        return parse_time(text)
    except BadRangeError as error:
        problem = f"--since {text!r} is neither an age nor a time"
        cure = (
            "Write an age such as 30m, 1h or 7d, or a time with an offset from UTC such as "
            "2026-01-31T12:00:00+00:00."
        )
        raise BadInputError(problem=problem, cure=cure) from error


def _so_long_ago(count: float, unit: str) -> datetime:
    try:
        return datetime.now(UTC) - timedelta(**{unit: count})
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
