"""The commands that list: pipelines, leases, checkpoints, verdicts, corrections and events. They only read.

They can run while workers run: each reads one version of its table. If nothing was ever written they make no
table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast import Hindcast
from hindcast.cli.names import check_known, check_pipeline
from hindcast.cli.options import (
    RECORDS,
    REPLAYS,
    STREAMS,
    EveryOption,
    FormatOption,
    LimitOption,
    PipelineOption,
    SinceOption,
    WatchOption,
    WideOption,
    since_when,
)
from hindcast.cli.output import Format, Output, missing_home
from hindcast.cli.text_table import Columns
from hindcast.errors import BadInputError
from hindcast.pipeline import Pipeline, check_name

if TYPE_CHECKING:
    from hindcast.kafka.lag import ShardLag
    from hindcast.leases.lease import Lease
    from hindcast.shards.pipeline_row import PipelineRow

PIPELINES = Columns(
    ["pipeline", "version", "topic", "sink", "window", "watermark", "shards", "wanted", "file", "problem"],
    prose=frozenset({"problem"}),
    spare=("file", "window", "watermark", "sink", "shards"),
)
LEASES = Columns(
    [
        "stream_id",
        "status_type",
        "status_value",
        "state",
        "lease_owner",
        "lease_stealer",
        "epoch",
        "lease_counter",
        "lag_records",
        "updated_at",
    ],
    spare=("lease_counter", "lease_stealer", "updated_at", "status_type", "epoch"),
)
LAG = Columns(
    ["pipeline", "version", "shard", "state", "owner", "records", "seconds", "oldest_at"],
    spare=("oldest_at", "owner"),
)
CHECKPOINTS = Columns(
    [
        "committed_at",
        "pipeline",
        "shard",
        "epoch",
        "batch",
        "input_rows",
        "poison_rows",
        "output_rows",
        "batch_seconds",
        "end_offsets",
        "sink_version",
    ],
    spare=("end_offsets", "sink_version", "poison_rows", "batch_seconds", "output_rows"),
)
DIFFERENCES = Columns(
    ["cause", "kind", "keys", "column", "stream_value", "hindcast_value", "late_rows"],
    prose=frozenset({"keys", "stream_value", "hindcast_value"}),
)
VERDICTS = Columns(
    [
        "judged_at",
        "pipeline",
        "run_id",
        "passed",
        "windows_compared",
        "rows_compared",
        "unexplained",
        "late_differences",
        "captured",
        "failed",
    ],
    prose=frozenset({"failed"}),
    spare=("windows_compared", "rows_compared", "late_differences", "pipeline", "captured"),
)
TREND = Columns(
    ["pipeline", "version", "measure", "column", "newest", "median", "worst", "worst_run", "verdicts"],
    spare=("verdicts", "pipeline", "median"),
)
PROOFS = Columns(
    ["pipeline", "version", "run_id", "start", "end", "sink_version", "based_on", "made_at"],
    spare=("sink_version", "pipeline", "start"),
)
CORRECTIONS = Columns(["pipeline", "windows_after", "windows_to", "run_id"], spare=("pipeline",))
EVENTS = Columns(
    ["at", "severity", "kind", "pipeline", "shard", "worker", "message", "cure"],
    prose=frozenset({"message", "cure"}),
    spare=("worker",),
)

RunOption = Annotated[str, typer.Option("--run", help="only this run")]
DifferencesOption = Annotated[
    bool, typer.Option("--differences", help="list the rows that differ; needs --run")
]

app = typer.Typer()


@app.command(rich_help_panel=STREAMS)
def pipelines(
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the pipelines that load, each in its active version and with its desired state, and the refused
    files.

    Exits 2 if a file was refused.
    """
    hindcast = Hindcast()
    empty = f"There are no pipelines in {hindcast.settings.pipelines_dir}."
    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, lambda: _pipelines(Hindcast(hindcast.settings)), PIPELINES, empty)
    refused = hindcast.catalog.refused()
    if refused:
        raise refused


def _pipelines(hindcast: Hindcast) -> list[dict[str, Any]]:
    """A row for each pipeline, then one for each file that was refused."""
    from hindcast.shards.desired_state import desired_of

    found = hindcast.catalog
    desired = desired_of(hindcast.leases())
    rows: list[dict[str, Any]] = []
    for name, lowest in found.items():
        pipeline = lowest
        wanted = desired.get(name)
        if wanted is not None:
            pipeline = found.declared.get((name, wanted.version), lowest)
        rows.append(_pipeline(pipeline, found.versions(name), wanted))
    columns = list(PIPELINES.shown)
    if rows:
        columns = list(rows[0])
    for file, error in found.errors.items():
        refused: dict[str, Any] = dict.fromkeys(columns)
        refused["file"] = file
        refused["problem"] = str(error)
        rows.append(refused)
    return rows


def _pipeline(pipeline: Pipeline, versions: list[int], desired: PipelineRow | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "pipeline": pipeline.name,
        "version": pipeline.version,
        "versions": versions,
        "topic": pipeline.source.name,
        "sink": pipeline.sink.url or pipeline.sink.name,
        "keys": pipeline.sink.keys,
        "window": None,
        "watermark": pipeline.watermark,
        "shards": pipeline.shards,
        "wanted": None,
        "running_version": None,
        "file": f"{pipeline.file}:{pipeline.line}",
        "problem": None,
    }
    window = pipeline.window
    if window:
        row["window"] = f"{window.duration} each {window.slide or window.duration}"
    if desired:
        row["wanted"] = desired.state.value
        row["running_version"] = desired.version
    return row


@app.command(rich_help_panel=STREAMS)
def leases(
    pipeline: PipelineOption = "",
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the owner of each shard and of each worker slot."""
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        rows = [_lease(lease) for lease in hindcast.leases(pipeline)]
        return rows_or_unknown(hindcast, rows, pipeline)

    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, LEASES, "Nothing is leased yet. A worker makes the leases.")


def _lease(lease: Lease) -> dict[str, Any]:
    return {
        "stream_id": lease.stream_id,
        "status_type": lease.status_type.value,
        "status_value": lease.status_value,
        "state": lease.state,
        "lease_owner": lease.lease_owner,
        "lease_stealer": lease.lease_stealer,
        "epoch": lease.epoch,
        "lease_counter": lease.lease_counter,
        "lag_records": lease.detail.get("lag_records"),
        "parent_shard_ids": lease.parent_shard_ids,
        "checkpoint": lease.checkpoint,
        "detail": lease.detail,
        "updated_at": lease.updated_at,
    }


@app.command(rich_help_panel=STREAMS)
def lag(
    pipeline: PipelineOption = "",
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List how far each shard is behind its topic: in records, and the age of the oldest of them in seconds.

    The brokers are asked, so it is right while no worker runs as well.
    """
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        now = datetime.now(UTC)
        rows = [_lag(shard, now) for shard in hindcast.lag(pipeline)]
        return rows_or_unknown(hindcast, rows, pipeline)

    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, LAG, "Nothing is consumed yet. A worker makes the leases.")


def _lag(shard: ShardLag, now: datetime) -> dict[str, Any]:
    partitions = {}
    for number, partition in shard.partitions.items():
        partitions[str(number)] = {
            "read_to": partition.read_to,
            "end": partition.end,
            "records": partition.records,
            "oldest_at": partition.oldest_at,
        }
    return {
        "pipeline": shard.pipeline,
        "version": shard.version,
        "shard": shard.shard,
        "state": shard.state,
        "owner": shard.owner,
        "records": shard.records,
        "seconds": round(shard.seconds(now), 1),
        "oldest_at": shard.oldest_at,
        "partitions": partitions,
    }


@app.command(rich_help_panel=STREAMS)
def checkpoints(
    pipeline: PipelineOption = "",
    since: SinceOption = "",
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the ledger: one row for each committed batch."""
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        rows = hindcast.checkpoints(pipeline, since=since_when(since), limit=limit)
        return rows_or_unknown(hindcast, rows, pipeline, "checkpoints")

    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, CHECKPOINTS)


@app.command(rich_help_panel=REPLAYS)
def verdicts(
    pipeline: PipelineOption = "",
    run: RunOption = "",
    differences: DifferencesOption = False,
    since: SinceOption = "",
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the verdicts, or with --run ID --differences the rows in which the stream differs from its
    hindcast.
    """
    if run:
        check_name("run", run)
    if differences and not run:
        cure = "Give --run ID; `hindcast verdicts` lists the ids."
        raise BadInputError(problem="--differences needs a run", cure=cure)
    hindcast = Hindcast()
    form = Output(output, wide=wide, watch=watch, every=every)

    def read_verdicts() -> list[dict[str, Any]]:
        rows = hindcast.verdicts(pipeline, run_id=run, since=since_when(since), limit=limit)
        return checked(rows, "verdicts")

    def read_differences() -> list[dict[str, Any]]:
        rows = hindcast.differences(run, pipeline, since=since_when(since), limit=limit)
        return checked(rows, "differences")

    def checked(rows: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
        rows_or_unknown(hindcast, rows, pipeline, table)
        if run and not rows:
            _check_run(hindcast, run)
        return rows

    if differences:
        empty = f"No difference was kept for the run {run}."
        show(hindcast, form, read_differences, DIFFERENCES, empty)
    else:
        show(hindcast, form, read_verdicts, VERDICTS)


def _check_run(hindcast: Hindcast, run: str) -> None:
    """:raises UnknownNameError: if no replay and no verdict has that id"""
    known: set[str] = set()
    for table in ("runs", "verdicts"):
        known.update(hindcast.values(table, "run_id"))
    check_known("run", run, sorted(known), "`hindcast runs` lists them.")


@app.command(rich_help_panel=REPLAYS)
def trend(
    pipeline: PipelineOption = "",
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List what the verdicts of each version come to: newest, median and worst of captured, ratios, latency
    and cost.
    """
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        return rows_or_unknown(hindcast, hindcast.trend(pipeline), pipeline, "verdict_trends")

    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, TREND, "Nothing was judged yet.")


@app.command(rich_help_panel=REPLAYS)
def proofs(
    pipeline: PipelineOption = "",
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the states that verdicts left, each with the offsets at which a next range can begin."""
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        return rows_or_unknown(hindcast, hindcast.proofs(pipeline), pipeline, "proofs")

    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, PROOFS, "No verdict has left a proof yet.")


@app.command(rich_help_panel=REPLAYS)
def corrections(
    pipeline: PipelineOption = "",
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the windows that readers get from a replay instead of the stream, and the run of each."""
    hindcast = Hindcast()
    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, lambda: hindcast.corrections(pipeline), CORRECTIONS)


def _severities(incomplete: str) -> list[str]:
    from hindcast.tables.event_log import Severity

    return _beginning_with(incomplete, Severity)


def _kinds(incomplete: str) -> list[str]:
    from hindcast.tables.event_log import EventKind

    return _beginning_with(incomplete, EventKind)


def _beginning_with(incomplete: str, words: Iterable[StrEnum]) -> list[str]:
    return [word.value for word in words if word.value.startswith(incomplete)]


SeverityOption = Annotated[
    str,
    typer.Option(
        "--severity", metavar="[info|warning|error]", help="only of this severity", autocompletion=_severities
    ),
]
KindOption = Annotated[
    str,
    typer.Option(
        "--kind", metavar="KIND", help="only of this kind, e.g. query_failed", autocompletion=_kinds
    ),
]


@app.command(rich_help_panel=RECORDS)
def events(
    pipeline: PipelineOption = "",
    severity: SeverityOption = "",
    kind: KindOption = "",
    since: SinceOption = "",
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List what happened, and what to do about it."""
    from hindcast.tables.event_log import EventKind, Severity

    if severity:
        check_known("severity", severity, Severity)
    if kind:
        check_known("kind of event", kind, EventKind)
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        rows = hindcast.events(pipeline, severity=severity, kind=kind, since=since_when(since), limit=limit)
        return rows_or_unknown(hindcast, rows, pipeline, "events")

    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, EVENTS, "There are no such events.")


def show(
    hindcast: Hindcast,
    output: Output,
    read: Callable[[], list[dict[str, Any]]],
    columns: Columns | None = None,
    empty: str = "Nothing yet.",
) -> None:
    """Print a listing. If there is no Hindcast home yet, the listing is empty, and stderr says how to make
    one.

    :param empty: printed on stderr if there are no rows
    """
    notice = missing_home(hindcast.settings.home, hindcast.settings.tables_url)
    if notice:
        empty = ""
    output.listing(read, columns, empty, notice)


def rows_or_unknown(
    hindcast: Hindcast, rows: list[dict[str, Any]], pipeline: str, table: str = ""
) -> list[dict[str, Any]]:
    """The rows. If there is none, check that the pipeline is known.

    :param pipeline: the one that was asked for; empty for all
    :param table: the control table of the rows: a pipeline that it has a row of is known
    :raises UnknownPipelineError: if there is no row, and no file, lease or other row is of that pipeline
    """
    if pipeline and not rows:
        named = []
        if table:
            named = hindcast.values(table, "pipeline")
        check_pipeline(hindcast, pipeline, named)
    return rows
