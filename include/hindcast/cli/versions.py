"""The commands of a pipeline's versions: versions, reprocess, promote, back-out, discard."""

from __future__ import annotations

import getpass
from typing import Annotated, Any

import typer

from hindcast.cli.confirming import confirm
from hindcast.cli.listings import show
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
from hindcast.cli.streams import run_app
from hindcast.cli.table import Columns
from hindcast.pipeline import check_name
from hindcast.settings import Settings

VersionOption = Annotated[int, typer.Option("--version", min=1, help="the version, as its file declares it")]
ByOption = Annotated[str, typer.Option("--by", help="who does it, for the event; you by default")]

COLUMNS = Columns(
    ["pipeline", "version", "state", "lag_records", "watermark_ms", "table", "warm_until", "seam_ms", "readers_to_ms"],
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
    """List the versions of pipelines: which is active, which is beside it, how far they are; `compare` compares them."""
    if context.invoked_subcommand is not None:
        return
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        from hindcast.versions.listing import list_versions

        rows = [row for row in list_versions(settings) if pipeline in ("", row["pipeline"])]
        if not rows and pipeline:
            check_pipeline(settings, pipeline)
        return rows

    show(settings, Output(output, wide=wide, watch=watch, every=every), read, COLUMNS, "There are no pipelines.")


@listing.command()
def compare(pipeline: PipelineArgument, output: FormatOption = Format.TABLE) -> None:
    """Compare the version beside the active one with it, at equal offsets. Exits 3 where it lacks windows or has keys twice."""
    check_pipeline(Settings(), pipeline)
    run_app("versions.py", ["compare", "--pipeline", check_name("pipeline", pipeline)], output)


@app.command(rich_help_panel=VERSIONS)
def reprocess(
    pipeline: PipelineArgument,
    version: VersionOption,
    start: Annotated[str, typer.Option("--from", help='earliest, an ISO 8601 time with an offset from UTC, or {"0": 100, "1": 200}')],
    new_table: Annotated[bool, typer.Option("--new-table", help="readers will see other columns: that is meant")] = False,
    by: ByOption = "",
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
    output: FormatOption = Format.TABLE,
) -> None:
    """Start a new version of the pipeline beside the active one, with shards, checkpoints and a table of its own.

    With --wait: until it has caught up with its topic.
    """
    from hindcast import catalog
    from hindcast.cli.waiting import caught_up, until

    settings = Settings()
    catalog.load(settings.pipelines_dir).of(pipeline, version)  # before any work starts
    arguments = ["begin", "--pipeline", pipeline, "--version", str(version), "--from", start, "--by", _who(by)]
    more = ["--new-table"] if new_table else []
    if not wait:
        run_app("versions.py", [*arguments, *more], output)
        return
    run_app("versions.py", [*arguments, *more], output, ends=False)
    until(caught_up(settings, pipeline, version), f"Version {version} of {pipeline} to catch up", timeout)


@app.command(rich_help_panel=VERSIONS)
def promote(
    pipeline: PipelineArgument,
    version: VersionOption,
    despite: Annotated[str, typer.Option("--despite", help="why it is promoted although it was not proved; kept in the event")] = "",
    by: ByOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Make the version beside the active one the active one. Readers switch at once; the old one is kept warm."""
    from hindcast.versions.plans import plan_promotion
    from hindcast.versions.promotion import promote as act

    settings, why = Settings(), despite.strip()
    plan = plan_promotion(settings, check_name("pipeline", pipeline), version, despite=why)
    if dry_run:
        Output(output).row({**plan.row, "dry_run": True})
        return
    confirm(f"hindcast promote {pipeline}", f"{plan.sentence}. Do it?", yes=yes or plan.done)
    Output(output).row(act(settings, pipeline, version, despite=why, who=_who(by)))


@app.command("back-out", rich_help_panel=VERSIONS)
def back_out(
    pipeline: PipelineArgument,
    by: ByOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Return to the version that was active before the last promotion. Readers switch at once."""
    from hindcast.versions.plans import plan_back_out
    from hindcast.versions.promotion import back_out as act

    settings = Settings()
    plan = plan_back_out(settings, check_name("pipeline", pipeline))
    if dry_run:
        Output(output).row({**plan.row, "dry_run": True})
        return
    confirm(f"hindcast back-out {pipeline}", f"{plan.sentence}. Do it?", yes=yes or plan.done)
    Output(output).row(act(settings, pipeline, who=_who(by)))


@app.command(rich_help_panel=VERSIONS)
def discard(
    pipeline: PipelineArgument,
    version: VersionOption,
    by: ByOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Discard the version beside the active one: its shards, checkpoints and tables."""
    from hindcast.versions.discarding import discard as act
    from hindcast.versions.plans import plan_discard

    settings = Settings()
    plan = plan_discard(settings, check_name("pipeline", pipeline), version)
    if dry_run:
        Output(output).row({**plan.row, "dry_run": True})
        return
    confirm(f"hindcast discard {pipeline}", f"{plan.sentence}. This cannot be undone. Do it?", yes=yes)
    Output(output).row(act(settings, pipeline, version, who=_who(by)))


def _who(by: str) -> str:
    return by or getpass.getuser()
