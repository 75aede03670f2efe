"""The commands that run Hindcast on this machine: up, down, status, jars, doctor, load, demo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hindcast import Hindcast
from hindcast.cli.listings import show
from hindcast.cli.options import MACHINE, EveryOption, FormatOption, PipelineArgument, WatchOption, WideOption
from hindcast.cli.output import Format, Output
from hindcast.cli.text_table import Columns
from hindcast.errors import BadInputError, PrerequisiteError
from hindcast.pipeline import Pipeline, Topic
from hindcast.settings import Settings

RateOption = Annotated[float, typer.Option("--rows-per-second", min=0.001, help="pace of the load")]
SeedOption = Annotated[int, typer.Option("--seed", help="the same seed sends the same rows")]

STATUS = Columns(
    ["name", "pid", "state", "ports", "memory_mib", "uptime_seconds", "log"],
    prose=frozenset({"log"}),
    spare=("uptime_seconds",),
)
DOCTOR = Columns(["what", "state", "found", "cure"], prose=frozenset({"found", "cure"}))

AirflowOption = Annotated[bool, typer.Option("--airflow/--no-airflow", help="start Airflow too")]
LoadOption = Annotated[bool, typer.Option("--load/--no-load", help="send trades too")]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers", min=0, help="launch so many workers now, without waiting for Airflow's `supervise`"
    ),
]
RowsOption = Annotated[int | None, typer.Option("--rows", min=1, help="stop after so many rows")]
SecondsOption = Annotated[float | None, typer.Option("--seconds", min=0.1, help="stop after so many seconds")]
FileOption = Annotated[
    Path | None, typer.Option("--file", help="send the lines of a file, plain or compressed with gzip")
]
TopicOption = Annotated[str, typer.Option("--topic", help="with --file: another topic of the pipeline")]
OnceOption = Annotated[
    bool, typer.Option("--once", help="stop everything after the verdict; exit 0 only if it passes")
]
StreamSecondsOption = Annotated[
    float, typer.Option("--seconds", min=10.0, help="how long to stream before the verdict")
]
ExampleOption = Annotated[str, typer.Option("--pipeline", "-p", help="a pipeline of include/pipelines")]

app = typer.Typer()


def say(line: str) -> None:
    """Print one line of progress on stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


@app.command(rich_help_panel=MACHINE)
def up(
    airflow: AirflowOption = True,
    load: LoadOption = True,
    workers: WorkersOption = 0,
    rows_per_second: RateOption = 2000.0,
    seed: SeedOption = 1,
) -> None:
    """Start the embedded broker, Airflow and load as detached services. Services that run already keep
    running.
    """
    from hindcast_sandbox import stack

    settings = Settings()
    if workers:
        settings = settings.model_copy(update={"workers": workers})
    topic = None
    if load:
        topic = "trades"
    stack.up(
        settings,
        with_airflow=airflow,
        workers=workers,
        topic=topic,
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
    from hindcast_sandbox import stack

    stack.down(Settings(), say=say)


@app.command(rich_help_panel=MACHINE)
def status(
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the services, each with its state, ports, memory and log."""
    hindcast = Hindcast()

    def read() -> list[dict[str, Any]]:
        from hindcast_sandbox import stack

        return stack.status(hindcast.settings)

    empty = "Nothing runs. `hindcast up` starts the embedded services."
    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, read, STATUS, empty)


@app.command(rich_help_panel=MACHINE)
def jars() -> None:
    """Fetch the jars of Spark and the broker with Maven, and archive Spark's classes for a quick start.

    What is there already is only looked at.
    """
    from hindcast.spark import jvm_class_archive
    from hindcast_sandbox.jars import fetch

    settings = Settings()
    fetch(settings, say)
    try:
        jvm_class_archive.make(settings, say)
    except PrerequisiteError as error:  # nothing needs the archive
        say(str(error))


@app.command(rich_help_panel=MACHINE)
def doctor(output: FormatOption = Format.TABLE, wide: WideOption = False) -> None:
    """Check the prerequisites; print what is missing and how to get it."""
    from dataclasses import asdict

    from hindcast_sandbox.doctor import State, examine

    findings = examine(Settings())
    rows = [asdict(finding) for finding in findings]
    Output(output, wide=wide).rows(rows, DOCTOR)
    for finding in findings:
        if finding.state is State.MISSING:
            raise PrerequisiteError(what=finding.what, problem=finding.found, cure=finding.cure)


@app.command(rich_help_panel=MACHINE)
def load(
    pipeline: PipelineArgument,
    rows_per_second: RateOption = 2000.0,
    seed: SeedOption = 1,
    rows: RowsOption = None,
    seconds: SecondsOption = None,
    file: FileOption = None,
    topic: TopicOption = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Send rows to the pipeline's topics until Ctrl-C, and print how many arrived.

    A topic that does not exist is made with 4 partitions. The generator of the pipeline's main topic makes
    the rows. With --file each line of the file is a record, as it is, and the load ends with the file.
    """
    from dataclasses import asdict

    from rich.console import Console

    from hindcast.kafka.security import security_options
    from hindcast_sandbox import load as loads
    from hindcast_sandbox import stack
    from hindcast_sandbox.file_records import file_records

    hindcast = Hindcast()
    settings = hindcast.settings
    declared = hindcast.pipeline(pipeline).declared
    source = _topic_of(declared, topic)
    generator = None
    if file is not None:
        generator = file_records(file, source)
    topic = source.name
    servers = settings.bootstrap_servers
    console = Console(stderr=True, highlight=False)
    with console.status(f"Reaching the broker at {servers}") as line:

        def show_progress(report: loads.LoadReport) -> None:
            topics = ", ".join(run.topics.values())
            counts = f"{report.late:,} late, {report.poison_total:,} poison"
            shown = f"{report.sent:,} rows sent to {topics}: {counts}; {run.in_flight:,} wait for the broker"
            if run.stopping:
                shown += ". Ctrl-C gives these up"
            line.update(shown)

        run = loads.Load(
            servers,
            topic,
            loads.report_path(settings, topic),
            generator=generator,
            seed=seed,
            rows_per_second=rows_per_second,
            rows=rows,
            seconds=seconds,
            security=security_options(settings),
            progress=show_progress,
        )
        stack.check_no_load(settings, topic)
        with loads.stopped_by_signals(run):
            report = run.run()
    Output(output).row(asdict(report))


def _topic_of(pipeline: Pipeline, name: str) -> Topic:
    """The pipeline's topic of that name; its source if there is no name.

    :raises BadInputError: if it reads no such topic
    """
    for topic in pipeline.topics:
        if name in ("", topic.name):
            return topic
    names = ", ".join(topic.name for topic in pipeline.topics)
    raise BadInputError(problem=f"{pipeline.name} reads no topic {name!r}", cure=f"It reads: {names}.")


@app.command(rich_help_panel=MACHINE)
def demo(
    once: OnceOption = False,
    seconds: StreamSecondsOption = 158.0,
    pipeline: ExampleOption = "stock_stats",
    rows_per_second: RateOption = 2000.0,
    seed: SeedOption = 1,
) -> None:
    """Start everything, stream, replay, judge; print the verdict and the addresses of the pages.

    Without --once it runs until Ctrl-C, or until `hindcast down` in another terminal.
    """
    from hindcast_sandbox import demo as demos

    demos.run(Settings(), pipeline, once=once, seconds=seconds, rows_per_second=rows_per_second, seed=seed)
