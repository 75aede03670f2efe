"""``hindcast runs``: list the replays with their costs, and compare two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hindcast import Hindcast
from hindcast.cli.listings import rows_or_unknown, show
from hindcast.cli.options import (
    EveryOption,
    FormatOption,
    LimitOption,
    PipelineOption,
    SinceOption,
    WatchOption,
    WideOption,
    since_when,
)
from hindcast.cli.output import Format, Output
from hindcast.cli.text_table import Columns
from hindcast.errors import BadInputError

#: The newest benchmarks, among which those of two versions are found: one a week for a year.
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
    """List the replays, each in its newest state and with its costs."""
    if context.invoked_subcommand:
        return
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        rows = hindcast.runs(pipeline, since=since_when(since), limit=limit)
        return rows_or_unknown(hindcast, rows, pipeline, "runs")

    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, COLUMNS, "Nothing was replayed yet.")


FirstArgument = Annotated[str, typer.Argument(help="the run to compare with")]
SecondArgument = Annotated[str, typer.Argument(help="the run that is compared")]
BenchmarkOption = Annotated[
    str, typer.Option("--benchmark", help="the newest benchmarks of this pipeline by two versions")
]
PlotOption = Annotated[Path | None, typer.Option("--plot", help="write a chart of it to this HTML file")]


@app.command()
def compare(
    first: FirstArgument = "",
    second: SecondArgument = "",
    benchmark: BenchmarkOption = "",
    plot: PlotOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Compare two replays of the same range: rows/s, CPU, memory and results. Exits 0 whatever they say."""
    from hindcast.pipeline import check_name
    from hindcast.replay.compare_runs import compare_runs
    from hindcast.tables.run_states import RunKind

    hindcast = Hindcast()
    if bool(benchmark) == bool(second):
        cure = "Name both, or give --benchmark and a pipeline's name."
        raise BadInputError(problem="Two runs are compared", cure=cure)
    replays = hindcast.run_table
    if benchmark:
        from hindcast.replay.benchmark import newest_pair

        name = check_name("pipeline", benchmark)
        recent = replays.recent(name, RunKind.BENCHMARK, _BENCHMARKS)
        first, second = newest_pair(benchmark, recent)
    replays.succeeded(check_name("run", first))
    newer = replays.succeeded(check_name("run", second))
    declared = hindcast.catalog.of(newer["pipeline"], newer["version"])
    found = compare_runs(hindcast, declared, first, second)
    if plot is not None:
        _chart(found.as_dict()).write_html(plot, include_plotlyjs=True)
    if output is Format.JSON:
        Output(output).row(found.as_dict())
        return
    Output(output).rows(found.costs(), Columns(["measure", "first", "second", "ratio"]))
    Output(output).row(found.as_dict()["results"])


def _chart(found: dict[str, Any]) -> Any:
    import plotly.graph_objects as go

    measures = []
    ratios = []
    for row in found["costs"]:
        measures.append(row["measure"])
        ratios.append(row["ratio"])
    labels = [f"{ratio:.2f}" for ratio in ratios]
    first = found["first"]["run_id"]
    second = found["second"]["run_id"]
    equal = found["results"]["equal"]
    rows = max(found["results"]["rows"])
    title = f"{second} / {first}: {equal:,} of {rows:,} rows are equal"
    chart = go.Figure(go.Bar(x=measures, y=ratios, text=labels))
    chart.add_hline(y=1.0, line_dash="dot")
    return chart.update_layout(title=title, yaxis_title="ratio", template="plotly_white")
