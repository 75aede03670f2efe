"""The commands for records that no stream can use: list them, and send mended ones back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hindcast.cli.listings import FormatOption, LimitOption, PipelineOption, newest
from hindcast.cli.output import Format, Output
from hindcast.cli.streams import PipelineArgument
from hindcast.settings import Settings

COLUMNS = ["broker_at", "pipeline", "topic", "partition", "offset", "reason", "value"]

app = typer.Typer(help="List the records that no stream can use, and send mended ones back.")


@app.callback(invoke_without_command=True)
def deadletters(
    context: typer.Context, pipeline: PipelineOption = "", limit: LimitOption = 20, output: FormatOption = Format.TABLE
) -> None:
    """List the records that no stream can use, with the reason; `replay` sends mended ones back."""
    if context.invoked_subcommand is None:
        list_letters(pipeline, limit, output)


@app.command("list")
def list_letters(pipeline: PipelineOption = "", limit: LimitOption = 20, output: FormatOption = Format.TABLE) -> None:
    """List them, the newest first. As JSON, one row a letter: mend the values and give the rows to `replay`, one a line."""
    Output(output).rows(newest("dead_letters", "broker_at", pipeline, limit), COLUMNS, empty="There are no dead letters.")


@app.command()
def replay(
    pipeline: PipelineArgument,
    file: Annotated[Path, typer.Option("--file", "-f", exists=True, dir_okay=False, help="mended letters, one JSON object a line")],
    output: FormatOption = Format.TABLE,
) -> None:
    """Send mended letters back into their topic. A letter is sent once, however often this is run, and by however many."""
    from hindcast import catalog
    from hindcast.topics.letters import Mended, send_back

    settings = Settings()
    declared = catalog.load(settings.pipelines_dir)[pipeline]
    lines = file.read_text(encoding="utf-8").splitlines()
    mended = [Mended.parse(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    sent, before = send_back(settings, declared, mended)
    Output(output).row({"pipeline": pipeline, "sent": sent, "sent_before": before})
