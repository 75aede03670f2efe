"""The commands for dead letters (records that no stream can use): list them, and send repaired ones back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hindcast import Hindcast
from hindcast.cli.input_file import content_of
from hindcast.cli.listings import rows_or_unknown, show
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
from hindcast.cli.text_table import Columns
from hindcast.errors import BadInputError

COLUMNS = Columns(
    ["broker_at", "pipeline", "topic", "partition", "offset", "reason", "value"],
    prose=frozenset({"reason", "value"}),
    spare=("pipeline", "broker_at"),
)

app = typer.Typer(help="List the records that no stream can use, and send repaired ones back.")


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
    """List the records that no stream can use, with the reason; `replay` sends repaired ones back."""
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
    """List them, the newest first. The output of `-o json` can be repaired and given to `replay`.

    Keys and values that are UTF-8 are text in `key` and `value`, others in `key_base64` and `value_base64`.
    """
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        rows = hindcast.dead_letters(pipeline, since=since_when(since), limit=limit)
        return rows_or_unknown(hindcast, rows, pipeline, "dead_letters")

    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, COLUMNS, "There are no dead letters.")


FileOption = Annotated[
    Path, typer.Option("--file", "-f", help="repaired letters as JSON, as `list` prints them; - for stdin")
]


@app.command("redrive")
@app.command()
def replay(
    pipeline: PipelineArgument,
    file: FileOption,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Send repaired letters back into their topic. A letter is sent once, however often this command runs and
    however many people run it.
    """
    from hindcast.kafka.redrive import check_letters, letters_of, redrive
    from hindcast.versions.letters_read import refuse_letters_read

    hindcast = Hindcast()
    declared = hindcast.catalog[pipeline]
    repaired = letters_of(_text(file))
    refuse_letters_read(hindcast, declared, [letter.place for letter in repaired])
    if dry_run:
        check_letters(hindcast.tables, declared, repaired)
        Output(output).row({"pipeline": pipeline, "letters": len(repaired), "dry_run": True})
        return
    sent, before = redrive(hindcast, declared, repaired)
    Output(output).row({"pipeline": pipeline, "sent": sent, "sent_before": before})


def _text(file: Path) -> str:
    """:raises BadInputError: if the file cannot be read, or is not UTF-8"""
    try:
        return content_of(file).decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"{file} is not UTF-8 ({error})"
        cure = "Give bytes that are not text in base64, as `value_base64`."
        raise BadInputError(problem=problem, cure=cure) from error


RunArgument = Annotated[str, typer.Argument(help="the run that `replay` could not prove")]
SentOption = Annotated[
    bool, typer.Option("--sent/--not-sent", help="whether the run's records are in the topic")
]


@app.command()
def settle(pipeline: PipelineArgument, run_id: RunArgument, sent: SentOption) -> None:
    """Record whether a run of repaired letters was sent. Needed if `replay` asks for it, because the topic
    that proves it was deleted.
    """
    from hindcast.kafka import redrive

    hindcast = Hindcast()
    declared = hindcast.catalog[pipeline]
    redrive.settle(hindcast, declared, run_id, sent=sent)
    outcome = "sent"
    if not sent:
        outcome = "not sent"
    print(f"{pipeline}: run {run_id} is recorded as {outcome}.")
