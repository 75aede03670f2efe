"""The commands for records that no stream can use: list them, and send mended ones back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hindcast.cli.listings import newest, show
from hindcast.cli.options import (
    DryRunOption,
    EveryOption,
    FormatOption,
    LimitOption,
    PipelineArgument,
    PipelineOption,
    SinceOption,
    WatchOption,
    WideOption,
    since_when,
)
from hindcast.cli.output import Format, Output
from hindcast.cli.table import Columns
from hindcast.errors import BadInputError
from hindcast.settings import Settings

COLUMNS = Columns(
    ["broker_at", "pipeline", "topic", "partition", "offset", "reason", "value"],
    prose=frozenset({"reason", "value"}),
    spare=("pipeline", "broker_at"),
)

app = typer.Typer(help="List the records that no stream can use, and send mended ones back.")


@app.callback(invoke_without_command=True)
def deadletters(
    context: typer.Context,
    pipeline: PipelineOption = "",
    since: SinceOption = "",
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the records that no stream can use, with the reason; `replay` sends mended ones back."""
    if context.invoked_subcommand is None:
        list_letters(pipeline, since, limit, output, wide, watch, every)


@app.command("list")
def list_letters(
    pipeline: PipelineOption = "",
    since: SinceOption = "",
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List them, the newest first. What `-o json` prints can be mended and given to `replay`.

    Keys and values that are UTF-8 stand as text in `key` and `value`, others in `key_base64` and `value_base64`.
    """
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        return newest(settings, "dead_letters", "broker_at", pipeline=pipeline, limit=limit, since=since_when(since))

    show(settings, Output(output, wide=wide, watch=watch, every=every), read, COLUMNS, "There are no dead letters.")


@app.command()
def replay(
    pipeline: PipelineArgument,
    file: Annotated[Path, typer.Option("--file", "-f", help="mended letters as JSON, as `list` prints them; - for stdin")],
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Send mended letters back into their topic. A letter is sent once, however often this is run, and by however many."""
    from hindcast import catalog
    from hindcast.topics.letters import check_letters, letters_of, send_back

    settings = Settings()
    declared = catalog.load(settings.pipelines_dir)[pipeline]
    mended = letters_of(_text(file))
    if dry_run:
        check_letters(settings, declared, mended)
        Output(output).row({"pipeline": pipeline, "letters": len(mended), "dry_run": True})
        return
    sent, before = send_back(settings, declared, mended)
    Output(output).row({"pipeline": pipeline, "sent": sent, "sent_before": before})


def _text(file: Path) -> str:
    """:raises BadInputError: if the file cannot be read, or is not UTF-8"""
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInputError(problem=f"{file} cannot be read: {error.strerror}", cure="Name another file, or - for stdin.") from error
    except UnicodeDecodeError as error:
        cure = "Bytes that are no text are given in base64, as `value_base64`."
        raise BadInputError(problem=f"{file} is not UTF-8 ({error})", cure=cure) from error


@app.command()
def settle(
    pipeline: PipelineArgument,
    run_id: Annotated[str, typer.Argument(help="the run that `replay` could not prove")],
    sent: Annotated[bool, typer.Option("--sent/--not-sent", help="whether its records are in the topic")],
) -> None:
    """Say whether a run of mended letters was sent, if `replay` asks for it: the topic that proves it was deleted."""
    from hindcast import catalog
    from hindcast.topics import letters

    settings = Settings()
    letters.settle(settings, catalog.load(settings.pipelines_dir)[pipeline], run_id, sent=sent)
    said = "sent" if sent else "not sent"
    print(f"{pipeline}: the run {run_id} is written down as {said}.")
