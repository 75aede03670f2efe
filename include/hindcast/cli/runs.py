"""``hindcast runs``: what replays cost, and how two of them compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hindcast.cli.listings import newest, show
from hindcast.cli.options import EveryOption, FormatOption, LimitOption, PipelineOption, SinceOption, WatchOption, WideOption, since_when
from hindcast.cli.output import Format, Output
from hindcast.cli.table import Columns
from hindcast.errors import BadInputError
from hindcast.settings import Settings

#: Benchmarks among which two versions are looked for: a year of weeks.
_BENCHMARKS = 52

COLUMNS = Columns(
    [
        "started_at",
        "pipeline",
        "run_id",
        "kind",
        "state",
        "input_rows",
        "output_rows",
        "seconds",
        "rows_per_second",
        "cpu_seconds",
        "stream_rows_per_second",
        "latency_p50_seconds",
        "note",
    ],
    prose=frozenset({"note"}),
    spare=(
        "latency_p50_seconds",
        "stream_rows_per_second",
        "cpu_seconds",
        "rows_per_second",
        "output_rows",
        "seconds",
        "input_rows",
        "pipeline",
        "kind",
    ),
)

app = typer.Typer()


@app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    pipeline: PipelineOption = "",
    since: SinceOption = "",
    limit: LimitOption = 20,
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the replays, each in its newest state, with what they cost."""
    if context.invoked_subcommand:
        return
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        from hindcast.replay.runs import newest_by_run

        found = newest(settings, "runs", "started_at", pipeline=pipeline, since=since_when(since))
        return newest_by_run(found)[:limit]

    show(settings, Output(output, wide=wide, watch=watch, every=every), read, COLUMNS, "Nothing was replayed yet.")


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="the run to compare with")] = "",
    second: Annotated[str, typer.Argument(help="the run that is compared")] = "",
    benchmark: Annotated[str, typer.Option("--benchmark", help="the newest benchmarks of this pipeline by two versions")] = "",
    plot: Annotated[Path | None, typer.Option("--plot", help="write a picture of it to this HTML file")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Compare two replays of the same range: rows/s, CPU, memory and results. Exits 0 whatever they say."""
    from hindcast import catalog
    from hindcast.control.runs import RunKind
    from hindcast.control.tables import ControlTables
    from hindcast.pipeline import check_name
    from hindcast.replay.runs import Runs
    from hindcast.replay.versus import versus

    settings = Settings()
    if bool(benchmark) == bool(second):
        raise BadInputError(problem="Two runs are compared", cure="Name both, or give --benchmark and a pipeline's name.")
    if benchmark:
        from hindcast.replay.reference import newest_pair

        runs = Runs(ControlTables(settings)).recent(check_name("pipeline", benchmark), RunKind.BENCHMARK, _BENCHMARKS)
        first, second = newest_pair(benchmark, runs)
    runs_made = Runs(ControlTables(settings))
    runs_made.succeeded(check_name("run", first))
    newer = runs_made.succeeded(check_name("run", second))
    declared = catalog.load(settings.pipelines_dir).of(newer["pipeline"], newer["version"])
    found = versus(settings, declared, first, second)
    if plot is not None:
        _picture(found.as_dict()).write_html(plot, include_plotlyjs=True)
    if output is Format.JSON:
        Output(output).row(found.as_dict())
        return
    Output(output).rows(found.costs(), Columns(["measure", "first", "second", "ratio"]))
    Output(output).row(found.as_dict()["results"])


def _picture(found: dict[str, Any]) -> Any:
    import plotly.graph_objects as go

    costs = found["costs"]
    bars = go.Bar(x=[row["measure"] for row in costs], y=[row["ratio"] for row in costs], text=[f"{row['ratio']:.2f}" for row in costs])
    same, of = found["results"]["equal"], max(found["results"]["rows"])
    title = f"{found['second']['run_id']} / {found['first']['run_id']}: {same:,} of {of:,} rows are equal"
    return go.Figure(bars).add_hline(y=1.0, line_dash="dot").update_layout(title=title, yaxis_title="ratio", template="plotly_white")
