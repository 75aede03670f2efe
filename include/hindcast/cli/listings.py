"""The commands that list: pipelines, leases, checkpoints, verdicts, corrections and events. They read, and never write.

They work beside running workers: each reads one version of its table. Where nothing was ever written they make nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated, Any

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
from hindcast.cli.table import Columns
from hindcast.errors import BadInputError, StoreUnavailableError
from hindcast.pipeline import check_name
from hindcast.settings import Settings

#: A file may be vacuumed between the moment a version is opened and the moment it is read; the next version has it elsewhere.
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
    ["at", "severity", "kind", "pipeline", "shard", "worker", "message", "cure"], prose=frozenset({"message", "cure"}), spare=("worker",)
)

app = typer.Typer()


@app.command(rich_help_panel=STREAMS)
def pipelines(output: FormatOption = Format.TABLE, wide: WideOption = False, watch: WatchOption = False, every: EveryOption = 2.0) -> None:
    """List the pipelines that load, each in its active version, what is wanted of them, and the files that were refused.

    Exits 2 if a file was refused.
    """
    from hindcast import catalog

    settings = Settings()
    empty = f"There are no pipelines in {settings.pipelines_dir}."
    show(settings, Output(output, wide=wide, watch=watch, every=every), lambda: _pipelines(settings), PIPELINES, empty)
    if refused := catalog.load(settings.pipelines_dir).refused():
        raise refused


def _pipelines(settings: Settings) -> list[dict[str, Any]]:
    from hindcast import catalog
    from hindcast.control.desired import desired_of
    from hindcast.control.lease_table import read_leases

    found = catalog.load(settings.pipelines_dir)
    wanted = desired_of(_read(lambda: read_leases(settings)))
    active = {name: wanted[name].version if name in wanted else found[name].version for name in found}
    shown = [found.declared.get((name, version), found[name]) for name, version in active.items()]
    rows: list[dict[str, Any]] = [
        {
            "pipeline": pipeline.name,
            "version": pipeline.version,
            "versions": found.versions(pipeline.name),
            "topic": pipeline.source.name,
            "sink": pipeline.sink.name,
            "keys": pipeline.sink.keys,
            "window": f"{pipeline.window.duration} each {pipeline.window.slide or pipeline.window.duration}" if pipeline.window else None,
            "watermark": pipeline.watermark,
            "shards": pipeline.shards,
            "wanted": wanted[pipeline.name].state.value if pipeline.name in wanted else None,
            "running_version": wanted[pipeline.name].version if pipeline.name in wanted else None,
            "file": f"{pipeline.file}:{pipeline.line}",
            "problem": None,
        }
        for pipeline in shown
    ]
    columns = list(rows[0]) if rows else list(PIPELINES.shown)
    return [*rows, *({**dict.fromkeys(columns), "file": file, "problem": str(error)} for file, error in found.errors.items())]


@app.command(rich_help_panel=STREAMS)
def leases(
    pipeline: PipelineOption = "",
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List who owns which shard and which worker slot."""
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        from hindcast.control.lease_table import read_leases

        rows = [_lease(lease) for lease in _read(lambda: read_leases(settings)) if pipeline in ("", lease.stream_id)]
        if pipeline and not rows:
            check_pipeline(settings, pipeline)
        return rows

    show(settings, Output(output, wide=wide, watch=watch, every=every), read, LEASES, "Nothing is leased yet. A worker makes the leases.")


def _lease(lease: Any) -> dict[str, Any]:
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
        return newest(settings, "checkpoints", "committed_at", pipeline=pipeline, limit=limit, since=since_when(since))

    show(settings, Output(output, wide=wide, watch=watch, every=every), read, CHECKPOINTS)


@app.command(rich_help_panel=REPLAYS)
def verdicts(
    pipeline: PipelineOption = "",
    run: Annotated[str, typer.Option("--run", help="only this run")] = "",
    differences: Annotated[bool, typer.Option("--differences", help="list the rows that differ; needs --run")] = False,
    since: SinceOption = "",
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the verdicts, or with --run ID --differences the rows in which the stream differs from its hindcast."""
    if run:
        check_name("run", run)
    if differences and not run:
        raise BadInputError(problem="--differences needs a run", cure="Give --run ID; `hindcast verdicts` lists the ids.")
    settings = Settings()
    name, by, columns, empty = "verdicts", "judged_at", VERDICTS, "Nothing yet."
    if differences:
        name, by, columns, empty = "differences", "found_at", DIFFERENCES, f"No difference was kept for the run {run}."

    def read() -> list[dict[str, Any]]:
        rows = newest(settings, name, by, pipeline=pipeline, limit=limit, since=since_when(since), run_id=run)
        if run and not rows:
            _check_run(settings, run)
        return rows

    show(settings, Output(output, wide=wide, watch=watch, every=every), read, columns, empty)


def _check_run(settings: Settings, run: str) -> None:
    """:raises UnknownNameError: if no replay and no verdict has that id"""
    from hindcast.control.schema import ControlTable
    from hindcast.control.tables import ControlTables

    tables = ControlTables(settings)
    known: set[str] = set()
    for name in (ControlTable.RUNS, ControlTable.VERDICTS):
        known.update(_read(lambda name=name: tables.read(name, columns=["run_id"])["run_id"].unique().to_pylist()))  # type: ignore[misc]
    check_known("run", run, sorted(known), "`hindcast runs` lists them.")


@app.command(rich_help_panel=REPLAYS)
def corrections(
    pipeline: PipelineOption = "",
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List which windows readers get from a replay in the place of the stream, and of which run."""
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        from hindcast import catalog
        from hindcast.control.tables import utc_from_ms
        from hindcast.serving.corrections import Corrections

        found = catalog.load(settings.pipelines_dir)
        chosen = [found.of(pipeline, version) for version in found.versions(pipeline)] if pipeline else found.every()
        return [
            {
                "pipeline": one.name,
                "version": one.version,
                "windows_after": utc_from_ms(span.after_ms),
                "windows_to": utc_from_ms(span.to_ms),
                "run_id": span.run_id,
            }
            for one in chosen
            for span in Corrections(settings, one).current().ranges
        ]

    show(settings, Output(output, wide=wide, watch=watch, every=every), read, CORRECTIONS)


def _severities(incomplete: str) -> list[str]:
    from hindcast.control.events import Severity

    return [severity.value for severity in Severity if severity.value.startswith(incomplete)]


def _kinds(incomplete: str) -> list[str]:
    from hindcast.control.events import EventKind

    return [kind.value for kind in EventKind if kind.value.startswith(incomplete)]


@app.command(rich_help_panel=RECORDS)
def events(
    pipeline: PipelineOption = "",
    severity: Annotated[
        str, typer.Option("--severity", metavar="[info|warning|error]", help="only of this severity", autocompletion=_severities)
    ] = "",
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="only of this kind, e.g. query_failed", autocompletion=_kinds)] = "",
    since: SinceOption = "",
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List what happened, and what to do about it."""
    from hindcast.control.events import EventKind, Severity

    if severity:
        check_known("severity", severity, Severity)
    if kind:
        check_known("kind of event", kind, EventKind)
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        return newest(settings, "events", "at", pipeline=pipeline, limit=limit, since=since_when(since), severity=severity, kind=kind)

    since_when(since)
    show(settings, Output(output, wide=wide, watch=watch, every=every), read, EVENTS, "There are no such events.")


def show(
    settings: Settings,
    output: Output,
    read: Callable[[], list[dict[str, Any]]],
    columns: Columns | None = None,
    empty: str = "Nothing yet.",
) -> None:
    """Print a listing. In a folder without a home it is empty, and stderr says how to make one."""
    notice = missing_home(settings.home, settings.tables_url)
    if notice:
        empty = ""
    output.listing(read, columns, empty, notice)


def newest(
    settings: Settings, name: str, by: str, *, pipeline: str = "", limit: int | None = None, since: datetime | None = None, **equal: str
) -> list[dict[str, Any]]:
    """The newest rows by the instant ``by``. Only as many as are shown become Python objects.

    :param equal: the value that a column must have; an empty one chooses nothing
    :raises UnknownPipelineError: if there is no row, and neither a file nor a lease nor another row is of that pipeline
    """
    from hindcast.control.schema import SCHEMAS, ControlTable
    from hindcast.control.tables import Condition, ControlTables

    if pipeline:
        check_name("pipeline", pipeline)
    table = ControlTable(name)
    given = {"pipeline": pipeline, **equal}
    where: list[Condition] = [(column, "=", value) for column, value in given.items() if value]
    if since is not None:
        where.append((by, ">=", since))
    tables = ControlTables(settings)

    def read() -> list[dict[str, Any]]:
        ordered = tables.read(table, where, SCHEMAS[table].names).sort_by([(by, "descending")])
        return list((ordered if limit is None else ordered.slice(0, limit)).to_pylist())

    def pipelines_of() -> list[str]:
        return list(tables.read(table, columns=["pipeline"])["pipeline"].unique().to_pylist())

    rows = _read(read)
    if pipeline and not rows:
        check_pipeline(settings, pipeline, _read(pipelines_of))
    return rows


def _read(read: Callable[[], Iterable[Any]]) -> list[Any]:
    from deltalake.exceptions import DeltaError

    for _ in range(_ATTEMPTS - 1):
        try:
            return list(read())
        except (StoreUnavailableError, DeltaError, OSError):
            continue
    try:
        return list(read())
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=Settings().table("control"), action="read", reason=error) from error
