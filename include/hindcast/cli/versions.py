"""The commands of a pipeline's versions: versions, reprocess, promote, back-out, discard."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hindcast import Hindcast
from hindcast.cli.confirming import confirm, user_and_host
from hindcast.cli.listings import rows_or_unknown, show
from hindcast.cli.names import check_pipeline
from hindcast.cli.options import (
    TIMEOUT_SECONDS,
    VERSIONS,
    DryRunOption,
    EveryOption,
    FormatOption,
    PipelineArgument,
    PipelineOption,
    TimeoutOption,
    WaitOption,
    WatchOption,
    WideOption,
    YesOption,
)
from hindcast.cli.output import Format, Output
from hindcast.cli.pipelines import run_app
from hindcast.cli.text_table import Columns
from hindcast.pipeline import check_name

VersionOption = Annotated[int, typer.Option("--version", min=1, help="the version, as its file declares it")]
ByOption = Annotated[str, typer.Option("--by", help="who does it, for the event; you by default")]
StartOption = Annotated[
    str,
    typer.Option(
        "--from", help='earliest, an ISO 8601 time with an offset from UTC, or {"0": 100, "1": 200}'
    ),
]
NewTableOption = Annotated[
    bool, typer.Option("--new-table", help="accept that readers will see other columns")
]
DespiteOption = Annotated[
    str,
    typer.Option("--despite", help="why it is promoted although it was not proved; recorded in the event"),
]

COLUMNS = Columns(
    [
        "pipeline",
        "version",
        "state",
        "lag_records",
        "watermark_ms",
        "table",
        "warm_until",
        "seam_ms",
        "readers_to_ms",
    ],
    spare=("seam_ms", "readers_to_ms", "warm_until", "watermark_ms", "table"),
)

app = typer.Typer()
listing = typer.Typer()


@listing.callback(invoke_without_command=True)
def versions(
    context: typer.Context,
    pipeline: PipelineOption = "",
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the versions of pipelines: state, lag and table of each; `compare` compares two of them."""
    if context.invoked_subcommand is not None:
        return
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        return rows_or_unknown(hindcast, hindcast.versions(pipeline), pipeline)

    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, COLUMNS, "There are no pipelines.")


@listing.command()
def compare(pipeline: PipelineArgument, output: FormatOption = Format.TABLE) -> None:
    """Compare the inactive version with the active one, at equal offsets. Exits 3 if it lacks windows or has
    keys twice.
    """
    check_pipeline(Hindcast(), pipeline)
    name = check_name("pipeline", pipeline)
    run_app("versions", ["compare", "--pipeline", name], output)


@app.command(rich_help_panel=VERSIONS)
def reprocess(
    pipeline: PipelineArgument,
    version: VersionOption,
    start: StartOption,
    new_table: NewTableOption = False,
    by: ByOption = "",
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
    output: FormatOption = Format.TABLE,
) -> None:
    """Start a new version of the pipeline, with shards, checkpoints and a table of its own. The active
    version keeps running.

    With --wait: until it has caught up with its topic.
    """
    from hindcast.cli.waiting import caught_up, until

    hindcast = Hindcast()
    hindcast.catalog.of(pipeline, version)  # check before any work starts
    arguments = ["begin", "--pipeline", pipeline, "--version", str(version)]
    arguments += ["--from", start, "--by", by or user_and_host()]
    if new_table:
        arguments.append("--new-table")
    run_app("versions", arguments, output, ends=not wait)
    if wait:
        progress = caught_up(hindcast, pipeline, version)
        until(progress, f"Version {version} of {pipeline} to catch up", timeout)


@app.command(rich_help_panel=VERSIONS)
def promote(
    pipeline: PipelineArgument,
    version: VersionOption,
    despite: DespiteOption = "",
    by: ByOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Make the inactive version the active one. Readers switch at once; the old one is kept warm."""
    from hindcast.versions.dry_run import plan_promotion

    hindcast = Hindcast()
    why = despite.strip()
    name = check_name("pipeline", pipeline)
    plan = plan_promotion(hindcast, name, version, despite=why)
    if dry_run:
        Output(output).row({**plan.row, "dry_run": True})
        return
    confirm(f"hindcast promote {pipeline}", f"{plan.sentence}. Do it?", yes=yes or plan.done)
    row = hindcast.pipeline(name).promote(version, despite=why, by=by or user_and_host())
    Output(output).row(row)


@app.command("back-out", rich_help_panel=VERSIONS)
def back_out(
    pipeline: PipelineArgument,
    by: ByOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Return to the version that was active before the last promotion. Readers switch at once."""
    from hindcast.versions.dry_run import plan_back_out

    hindcast = Hindcast()
    plan = plan_back_out(hindcast, check_name("pipeline", pipeline))
    if dry_run:
        Output(output).row({**plan.row, "dry_run": True})
        return
    confirm(f"hindcast back-out {pipeline}", f"{plan.sentence}. Do it?", yes=yes or plan.done)
    row = hindcast.pipeline(pipeline).back_out(by=by or user_and_host())
    Output(output).row(row)


@app.command(rich_help_panel=VERSIONS)
def discard(
    pipeline: PipelineArgument,
    version: VersionOption,
    by: ByOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Discard the inactive version: its shards, checkpoints and tables."""
    from hindcast.versions.dry_run import plan_discard

    hindcast = Hindcast()
    plan = plan_discard(hindcast, check_name("pipeline", pipeline), version)
    if dry_run:
        Output(output).row({**plan.row, "dry_run": True})
        return
    question = f"{plan.sentence}. This cannot be undone. Do it?"
    confirm(f"hindcast discard {pipeline}", question, yes=yes)
    row = hindcast.pipeline(pipeline).discard(version, by=by or user_and_host())
    Output(output).row(row)
