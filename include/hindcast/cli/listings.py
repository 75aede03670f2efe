"""The commands that list: pipelines, leases, checkpoints, verdicts, corrections and events. They only read.

They can run while workers run: each reads one version of its table. If nothing was ever written they make no
table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

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
from hindcast.errors import BadInputError, StoreUnavailableError
from hindcast.pipeline import Pipeline, check_name
from hindcast.settings import Settings

if TYPE_CHECKING:
    from hindcast.leases.lease import Lease
    from hindcast.shards.desired_state import Desired

_T = TypeVar("_T")

#: A vacuum may delete a file after a version was opened and before it is read; the next version has its rows.
_ATTEMPTS = 3

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
    from hindcast import catalog

    settings = Settings()
    empty = f"There are no pipelines in {settings.pipelines_dir}."
    form = Output(output, wide=wide, watch=watch, every=every)
    show(settings, form, lambda: _pipelines(settings), PIPELINES, empty)
    refused = catalog.load(settings.pipelines_dir).refused()
    if refused:
        raise refused


def _pipelines(settings: Settings) -> list[dict[str, Any]]:
    """A row for each pipeline, then one for each file that was refused."""
    from hindcast import catalog
    from hindcast.leases.delta_store import read_leases
    from hindcast.shards.desired_state import desired_of

    found = catalog.load(settings.pipelines_dir)
    desired = desired_of(_read(lambda: read_leases(settings)))
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


def _pipeline(pipeline: Pipeline, versions: list[int], desired: Desired | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "pipeline": pipeline.name,
        "version": pipeline.version,
        "versions": versions,
        "topic": pipeline.source.name,
        "sink": pipeline.sink.name,
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
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        from hindcast.leases.delta_store import read_leases

        found = _read(lambda: read_leases(settings))
        rows = [_lease(lease) for lease in found if pipeline in ("", lease.stream_id)]
        if pipeline and not rows:
            check_pipeline(settings, pipeline)
        return rows

    form = Output(output, wide=wide, watch=watch, every=every)
    show(settings, form, read, LEASES, "Nothing is leased yet. A worker makes the leases.")


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
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        start = since_when(since)
        return newest(settings, "checkpoints", "committed_at", pipeline=pipeline, limit=limit, since=start)

    form = Output(output, wide=wide, watch=watch, every=every)
    show(settings, form, read, CHECKPOINTS)


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
    settings = Settings()
    form = Output(output, wide=wide, watch=watch, every=every)

    def read(table: str, by: str) -> list[dict[str, Any]]:
        start = since_when(since)
        rows = newest(settings, table, by, pipeline=pipeline, limit=limit, since=start, run_id=run)
        if run and not rows:
            _check_run(settings, run)
        return rows

    if differences:
        empty = f"No difference was kept for the run {run}."
        show(settings, form, lambda: read("differences", "found_at"), DIFFERENCES, empty)
    else:
        show(settings, form, lambda: read("verdicts", "judged_at"), VERDICTS)


def _check_run(settings: Settings, run: str) -> None:
    """:raises UnknownNameError: if no replay and no verdict has that id"""
    from hindcast.tables.control_tables import ControlTables
    from hindcast.tables.schema import ControlTable

    tables = ControlTables(settings)

    def read_ids() -> set[str]:
        ids: set[str] = set()
        for table in (ControlTable.RUNS, ControlTable.VERDICTS):
            column = tables.read(table, columns=["run_id"])["run_id"]
            ids.update(column.unique().to_pylist())
        return ids

    known = sorted(_read(read_ids))
    check_known("run", run, known, "`hindcast runs` lists them.")


@app.command(rich_help_panel=REPLAYS)
def corrections(
    pipeline: PipelineOption = "",
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the windows that readers get from a replay instead of the stream, and the run of each."""
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        from hindcast import catalog
        from hindcast.serving.corrected_windows import Corrections
        from hindcast.tables.control_tables import utc_from_ms

        found = catalog.load(settings.pipelines_dir)
        chosen = found.every()
        if pipeline:
            chosen = [found.of(pipeline, version) for version in found.versions(pipeline)]
        rows = []
        for declared in chosen:
            for span in Corrections(settings, declared).current().ranges:
                row = {
                    "pipeline": declared.name,
                    "version": declared.version,
                    "windows_after": utc_from_ms(span.after_ms),
                    "windows_to": utc_from_ms(span.to_ms),
                    "run_id": span.run_id,
                }
                rows.append(row)
        return rows

    form = Output(output, wide=wide, watch=watch, every=every)
    show(settings, form, read, CORRECTIONS)


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
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        return newest(
            settings,
            "events",
            "at",
            pipeline=pipeline,
            limit=limit,
            since=since_when(since),
            severity=severity,
            kind=kind,
        )

    form = Output(output, wide=wide, watch=watch, every=every)
    show(settings, form, read, EVENTS, "There are no such events.")


def show(
    settings: Settings,
    output: Output,
    read: Callable[[], list[dict[str, Any]]],
    columns: Columns | None = None,
    empty: str = "Nothing yet.",
) -> None:
    """Print a listing. If there is no Hindcast home yet, the listing is empty, and stderr says how to make
    one.

    :param empty: printed on stderr if there are no rows
    """
    notice = missing_home(settings.home, settings.tables_url)
    if notice:
        empty = ""
    output.listing(read, columns, empty, notice)


def newest(
    settings: Settings,
    name: str,
    by: str,
    *,
    pipeline: str = "",
    limit: int | None = None,
    since: datetime | None = None,
    **equal: str,
) -> list[dict[str, Any]]:
    """The newest rows of a control table by the instant ``by``. Only the rows that are shown become Python
    objects.

    :param name: of the control table
    :param since: only rows from this instant on
    :param equal: the value that a column must have; an empty one filters nothing
    :raises UnknownPipelineError: if there is no row, and no file, lease or other row is of that pipeline
    """
    from hindcast.tables.control_tables import Condition, ControlTables
    from hindcast.tables.schema import SCHEMAS, ControlTable

    if pipeline:
        check_name("pipeline", pipeline)
    table = ControlTable(name)
    equal["pipeline"] = pipeline
    where: list[Condition] = [(column, "=", value) for column, value in equal.items() if value]
    if since is not None:
        where.append((by, ">=", since))
    tables = ControlTables(settings)

    def read_newest() -> list[dict[str, Any]]:
        found = tables.read(table, where, SCHEMAS[table].names)
        ordered = found.sort_by([(by, "descending")])
        if limit is not None:
            ordered = ordered.slice(0, limit)
        return list(ordered.to_pylist())

    def read_pipelines() -> list[str]:
        column = tables.read(table, columns=["pipeline"])["pipeline"]
        return list(column.unique().to_pylist())

    rows = _read(read_newest)
    if pipeline and not rows:
        check_pipeline(settings, pipeline, _read(read_pipelines))
    return rows


def _read(read: Callable[[], Iterable[_T]]) -> list[_T]:
    """What ``read`` returns, tried up to :data:`_ATTEMPTS` times.

    :raises StoreUnavailableError: if the last attempt failed, too
    """
    from deltalake.exceptions import DeltaError

    for _ in range(_ATTEMPTS - 1):
        try:
            return list(read())
        except (StoreUnavailableError, DeltaError, OSError):
            continue
    try:
        return list(read())
    except (DeltaError, OSError) as error:
        table = Settings().table("control")
        raise StoreUnavailableError(table=table, action="read", reason=error) from error
