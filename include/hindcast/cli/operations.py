"""The commands that run Hindcast on this machine: up, down, status, doctor, load, demo."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from hindcast.cli.listings import show
from hindcast.cli.options import MACHINE, EveryOption, FormatOption, PipelineArgument, WatchOption, WideOption
from hindcast.cli.output import Format, Output
from hindcast.cli.table import Columns
from hindcast.errors import PrerequisiteError
from hindcast.settings import Settings

RateOption = Annotated[float, typer.Option("--rows-per-second", min=0.001, help="pace of the load")]
SeedOption = Annotated[int, typer.Option("--seed", help="the same seed sends the same rows")]

STATUS = Columns(
    ["name", "pid", "state", "ports", "memory_mib", "uptime_seconds", "log"], prose=frozenset({"log"}), spare=("uptime_seconds",)
)
DOCTOR = Columns(["what", "state", "found", "cure"], prose=frozenset({"found", "cure"}))

app = typer.Typer()


def say(line: str) -> None:
    """One line of progress. On stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


@app.command(rich_help_panel=MACHINE)
def up(
    airflow: Annotated[bool, typer.Option("--airflow/--no-airflow", help="start Airflow too")] = True,
    load: Annotated[bool, typer.Option("--load/--no-load", help="send trades too")] = True,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="launch so many workers now, without waiting for Airflow's `supervise`")
    ] = 0,
    rows_per_second: RateOption = 2000.0,
    seed: SeedOption = 1,
) -> None:
    """Start the embedded broker, Airflow and load as detached services. What runs already is left as it is."""
    from hindcast.local import stack

    settings = Settings()
    if workers:
        settings = settings.model_copy(update={"workers": workers})
    settings = stack.up(
        settings,
        with_airflow=airflow,
        workers=workers,
        topic="trades" if load else None,
        rows_per_second=rows_per_second,
        seed=seed,
        say=say,
    )
    if airflow and not workers:
        say("Airflow's DAGs are paused: unpause `supervise` to start the workers.")
    say("`hindcast status` lists what runs, `hindcast down` stops it.")


@app.command(rich_help_panel=MACHINE)
def down() -> None:
    """Stop everything that `up` or `demo` started, and check that nothing is left."""
    from hindcast.local import stack

    stack.down(Settings(), say=say)


@app.command(rich_help_panel=MACHINE)
def status(output: FormatOption = Format.TABLE, wide: WideOption = False, watch: WatchOption = False, every: EveryOption = 2.0) -> None:
    """List the services: what runs, on which ports, with how much memory, and where its log is."""
    settings = Settings()

    def read() -> list[dict[str, Any]]:
        from hindcast.local import stack

        return stack.status(settings)

    empty = "Nothing runs. `hindcast up` starts the embedded services."
    show(settings, Output(output, wide=wide, watch=watch, every=every), read, STATUS, empty)


@app.command(rich_help_panel=MACHINE)
def doctor(output: FormatOption = Format.TABLE, wide: WideOption = False) -> None:
    """Check the prerequisites, and say what is missing and how to get it."""
    from dataclasses import asdict

    from hindcast.local.doctor import State, examine

    findings = examine(Settings())
    Output(output, wide=wide).rows([asdict(finding) for finding in findings], DOCTOR)
    for finding in findings:
        if finding.state is State.MISSING:
            raise PrerequisiteError(what=finding.what, problem=finding.found, cure=finding.cure)


@app.command(rich_help_panel=MACHINE)
def load(
    pipeline: PipelineArgument,
    rows_per_second: RateOption = 2000.0,
    seed: SeedOption = 1,
    rows: Annotated[int | None, typer.Option("--rows", min=1, help="stop after so many rows")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.1, help="stop after so long")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Send what the pipeline reads until stopped (Ctrl-C), and print the account of what arrived.

    Each topic is made with 4 partitions if it is not there. The rows are those of the generator for the pipeline's main topic.
    """
    from dataclasses import asdict

    from rich.console import Console

    from hindcast import catalog
    from hindcast.control.lease_table import read_leases
    from hindcast.control.standing import active_pipeline
    from hindcast.local import load as loads
    from hindcast.local import stack

    settings = Settings()
    topic = active_pipeline(catalog.load(settings.pipelines_dir), read_leases(settings), pipeline).source.name
    with Console(stderr=True, highlight=False).status(f"Reaching the broker at {settings.bootstrap_servers}") as line:
        run = loads.Load(
            settings.bootstrap_servers,
            topic,
            loads.account_path(settings, topic),
            seed=seed,
            rows_per_second=rows_per_second,
            rows=rows,
            seconds=seconds,
            progress=lambda account: line.update(
                f"{account.sent:,} rows sent to {', '.join(run.topics.values())}: {account.late:,} late, {account.poison_total:,} poison"
            ),
        )
        stack.check_no_load(settings, topic)
        with loads.stopped_by_signals(run):
            account = run.run()
    Output(output).row(asdict(account))


@app.command(rich_help_panel=MACHINE)
def demo(
    once: Annotated[bool, typer.Option("--once", help="stop everything after the verdict; exit 0 only where it passes")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=10.0, help="how long to stream before the verdict")] = 158.0,
    pipeline: Annotated[str, typer.Option("--pipeline", "-p", help="a pipeline of include/pipelines")] = "stock_stats",
    rows_per_second: RateOption = 2000.0,
    seed: SeedOption = 1,
) -> None:
    """Start everything, stream, replay, judge; print the verdict and the addresses of the pages.

    Without --once it goes on until Ctrl-C, or `hindcast down` in another terminal.
    """
    from hindcast.local import demo as demos

    demos.run(Settings(), pipeline, once=once, seconds=seconds, rows_per_second=rows_per_second, seed=seed)
