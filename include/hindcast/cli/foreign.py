"""The commands for streams that others run."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from hindcast import Hindcast
from hindcast.cli.confirming import confirm, user_and_host
from hindcast.cli.options import (
    STREAMS,
    DryRunOption,
    EveryOption,
    FormatOption,
    PipelineArgument,
    WatchOption,
    YesOption,
)
from hindcast.cli.output import Format, Output
from hindcast.errors import StoreUnavailableError

CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", help="the path or URL of the checkpoint folder of the query")
]

app = typer.Typer()


@app.command(rich_help_panel=STREAMS)
def record(
    pipeline: PipelineArgument,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
    output: FormatOption = Format.TABLE,
) -> None:
    """Bring into the ledger what a stream that others run has done since the last time.

    A verdict does that, too. With --watch it is done again and again: Spark keeps the newest batches of a
    checkpoint alone, 100 by default, and what it deletes unrecorded cannot be judged.
    """
    stream = Hindcast().pipeline(pipeline)

    def read() -> list[dict[str, Any]]:
        try:
            found = stream.record()
        except StoreUnavailableError as error:
            if not watch:
                raise
            print(f"{error} It is tried again in {every:g} s.", file=sys.stderr)
            return []
        if found.last is None:
            print(f"The query of {pipeline} has finished no batch yet.", file=sys.stderr)
            return []
        last = found.last
        return [
            {
                "pipeline": pipeline,
                "recorded": found.batches,
                "batch": last.batch,
                "end_offsets": last.end_offsets,
                "sink_version": last.sink_version,
                "committed_at": last.committed_at,
            }
        ]

    form = Output(output, watch=watch, every=every)
    form.listing(read, empty="")


@app.command(rich_help_panel=STREAMS)
def adopt(
    pipeline: PipelineArgument,
    checkpoint: CheckpointOption,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Take over a stream that others run, at the exact offsets at which its query ends.

    The query's table takes none of its batches any more, whether or not it still runs. Workers go on from
    there. If it is cut short, run it again.
    """
    stream = Hindcast().pipeline(pipeline)
    form = Output(output)
    found = stream.find_adoptable(checkpoint)
    if dry_run:
        form.row({"pipeline": pipeline, **asdict(found), "dry_run": True})
        return
    question = (
        f"The table {stream.declared.sink.url} will take no batch of the query {found.query} any more. "
    )
    confirm(f"hindcast adopt {pipeline}", question + "Take it over?", yes=yes)
    done = stream.adopt(checkpoint, by=user_and_host())
    shown = {
        "pipeline": pipeline,
        "query": done.query,
        "last_batch": done.last_batch,
        "offsets": done.offsets,
        "shards": [lease.status_value for lease in done.shards],
    }
    form.row(shown)
