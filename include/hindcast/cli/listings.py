"""The commands that list: pipelines, leases, checkpoints, verdicts, runs and events. They read, and never write.

They work beside running workers: each reads one version of its table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from hindcast.cli.output import Format, Output
from hindcast.errors import BadInputError, StoreUnavailableError
from hindcast.pipeline import check_name
from hindcast.settings import Settings

#: A file may be vacuumed between the moment a version is opened and the moment it is read; the next version has it elsewhere.
_ATTEMPTS = 3

FormatOption = Annotated[Format, typer.Option("--output", "-o", help="a table for people or JSON for programs")]
PipelineOption = Annotated[str, typer.Option("--pipeline", "-p", help="only this pipeline")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="at most so many rows, the newest first")]

app = typer.Typer()


@app.command()
def pipelines(output: FormatOption = Format.TABLE) -> None:
    """List the pipelines that load, each in its active version, what is wanted of them, and the files that were refused."""
    from hindcast import catalog
    from hindcast.control.desired import DesiredStates
    from hindcast.control.lease_table import LeaseTable

    settings = Settings()
    found = catalog.load(settings.pipelines_dir)
    wanted = {desired.pipeline: desired for desired in DesiredStates(LeaseTable(settings)).all()}
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
    rows += [
        {**dict.fromkeys(rows[0] if rows else ("pipeline",)), "file": file, "problem": str(error)} for file, error in found.errors.items()
    ]
    columns = [
        "pipeline",
        "version",
        "topic",
        "sink",
        "window",
        "watermark",
        "shards",
        "wanted",
        *(["file", "problem"] if found.errors else ["file"]),
    ]
    Output(output).rows(rows, columns, empty=f"There are no pipelines in {settings.pipelines_dir}.")


@app.command()
def leases(pipeline: PipelineOption = "", output: FormatOption = Format.TABLE) -> None:
    """List who owns which shard and which worker slot."""
    from hindcast.control.lease_table import LeaseTable

    if pipeline:
        check_name("pipeline", pipeline)
    settings = Settings()
    found = _read(LeaseTable(settings).leases)
    rows = [
        {
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
        for lease in found
        if not pipeline or lease.stream_id == pipeline
    ]
    columns = [
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
    ]
    Output(output).rows(rows, columns, empty="Nothing is leased yet. A worker makes the leases when it starts.")


@app.command()
def checkpoints(pipeline: PipelineOption = "", limit: LimitOption = 20, output: FormatOption = Format.TABLE) -> None:
    """List the ledger: one row for each committed batch."""
    columns = [
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
    ]
    Output(output).rows(newest("checkpoints", "committed_at", pipeline, limit), columns)


@app.command()
def verdicts(
    pipeline: PipelineOption = "",
    run: Annotated[str, typer.Option("--run", help="only this run")] = "",
    differences: Annotated[bool, typer.Option("--differences", help="list the rows that differ; needs --run")] = False,
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
) -> None:
    """List the verdicts, or with --run ID --differences the rows in which the stream differs from its hindcast."""
    if run:
        check_name("run", run)
    if differences:
        if not run:
            raise BadInputError(problem="--differences needs a run", cure="Give --run ID; `hindcast verdicts` lists the ids.")
        columns = ["cause", "kind", "keys", "column", "stream_value", "hindcast_value", "late_rows"]
        found = newest("differences", "found_at", pipeline, limit, run)
        Output(output).rows(found, columns, empty=f"No difference was kept for the run {run}.")
        return
    columns = [
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
    ]
    Output(output).rows(newest("verdicts", "judged_at", pipeline, limit, run), columns)


@app.command()
def corrections(pipeline: PipelineOption = "", output: FormatOption = Format.TABLE) -> None:
    """List which windows readers get from a replay in the place of the stream, and of which run."""
    from hindcast import catalog
    from hindcast.control.tables import utc_from_ms
    from hindcast.serving.corrections import Corrections

    settings = Settings()
    found = catalog.load(settings.pipelines_dir)
    chosen = [found.of(pipeline, version) for version in found.versions(pipeline)] if pipeline else found.every()
    rows = [
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
    Output(output).rows(rows, ["pipeline", "windows_after", "windows_to", "run_id"])


@app.command()
def events(
    pipeline: PipelineOption = "",
    severity: Annotated[str, typer.Option("--severity", help="only info, warning or error")] = "",
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
) -> None:
    """List what happened, and what to do about it."""
    from hindcast.control.events import Severity

    if severity and severity not in set(Severity):
        raise BadInputError(problem=f"There is no severity {severity!r}", cure=f"Choose one of: {', '.join(Severity)}.")
    found = newest("events", "at", pipeline, limit, severity=severity)
    Output(output).rows(found, ["at", "severity", "kind", "pipeline", "shard", "worker", "message", "cure"])


def newest(name: str, by: str, pipeline: str, limit: int | None, run: str = "", severity: str = "") -> list[dict[str, Any]]:
    """The newest rows by the instant ``by``. Only as many as are shown become Python objects."""
    from hindcast.control.schema import SCHEMAS, ControlTable
    from hindcast.control.tables import ControlTables

    if pipeline:
        check_name("pipeline", pipeline)
    table = ControlTable(name)
    given = {"pipeline": pipeline, "run_id": run, "severity": severity}
    where = [(column, "=", value) for column, value in given.items() if value]
    tables = ControlTables(Settings())

    def read() -> list[dict[str, Any]]:
        found = tables.read(table, where, SCHEMAS[table].names)
        ordered = found.sort_by([(by, "descending")])
        return list((ordered if limit is None else ordered.slice(0, limit)).to_pylist())

    return _read(read)


def _read(read: Callable[[], list[Any]]) -> list[Any]:
    from deltalake.exceptions import DeltaError

    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except (StoreUnavailableError, DeltaError, OSError):
            continue
    try:
        return read()
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=Settings().table("control"), action="read", reason=error) from error
