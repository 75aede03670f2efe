"""The commands of a pipeline's versions: versions, reprocess, promote, back-out, discard."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from hindcast.cli.listings import FormatOption, PipelineOption
from hindcast.cli.output import Format, Output
from hindcast.cli.streams import PipelineArgument, run_app
from hindcast.pipeline import check_name
from hindcast.settings import Settings

VersionOption = Annotated[int, typer.Option("--version", min=1, help="the version, as its file declares it")]
ByOption = Annotated[str, typer.Option("--by", help="who does it, for the event; you by default")]

app = typer.Typer()
listing = typer.Typer()


@listing.callback(invoke_without_command=True)
def versions(context: typer.Context, pipeline: PipelineOption = "", output: FormatOption = Format.TABLE) -> None:
    """List the versions of pipelines: which is active, which is beside it, how far they are; `compare` compares them."""
    from hindcast.versions.listing import COLUMNS, list_versions

    if context.invoked_subcommand is None:
        Output(output).rows(list_versions(Settings(), check_name("pipeline", pipeline) if pipeline else ""), COLUMNS)


@listing.command()
def compare(pipeline: PipelineArgument, output: FormatOption = Format.TABLE) -> None:
    """Compare the version beside the active one with it, at equal offsets. Exits 3 where it lacks windows or has keys twice."""
    run_app("versions.py", ["compare", "--pipeline", check_name("pipeline", pipeline)], output)


@app.command()
def reprocess(
    pipeline: PipelineArgument,
    version: VersionOption,
    start: Annotated[str, typer.Option("--from", help='earliest, an ISO 8601 time with an offset from UTC, or {"0": 100, "1": 200}')],
    new_table: Annotated[bool, typer.Option("--new-table", help="readers will see other columns: that is meant")] = False,
    by: ByOption = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Start a new version of the pipeline beside the active one, with shards, checkpoints and a table of its own."""
    arguments = ["begin", "--pipeline", check_name("pipeline", pipeline), "--version", str(version), "--from", start, "--by", _who(by)]
    run_app("versions.py", [*arguments, *(["--new-table"] if new_table else [])], output)


@app.command()
def promote(
    pipeline: PipelineArgument,
    version: VersionOption,
    despite: Annotated[str, typer.Option("--despite", help="why it is promoted although it was not proved; kept in the event")] = "",
    by: ByOption = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Make the version beside the active one the active one. Readers switch at once; the old one is kept warm."""
    from hindcast.versions.promotion import promote as act

    Output(output).row(act(Settings(), check_name("pipeline", pipeline), version, despite=despite.strip(), who=_who(by)))


@app.command("back-out")
def back_out(pipeline: PipelineArgument, by: ByOption = "", output: FormatOption = Format.TABLE) -> None:
    """Return to the version that was active before the last promotion. Readers switch at once."""
    from hindcast.versions.promotion import back_out as act

    Output(output).row(act(Settings(), check_name("pipeline", pipeline), who=_who(by)))


@app.command()
def discard(pipeline: PipelineArgument, version: VersionOption, by: ByOption = "", output: FormatOption = Format.TABLE) -> None:
    """Discard the version beside the active one: its shards, checkpoints and tables."""
    from hindcast.versions.discarding import discard as act

    Output(output).row(act(Settings(), check_name("pipeline", pipeline), version, who=_who(by)))


def _who(by: str) -> str:
    return by or getpass.getuser()
