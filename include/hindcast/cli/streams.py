"""The commands that act on pipelines: worker, pause, resume, drain, reshard, rebuild, rewind, replay, benchmark, validate."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Annotated, Any

import typer

from hindcast.cli.listings import FormatOption
from hindcast.cli.output import Format, Output
from hindcast.errors import BadInputError, ReshardRefusedError
from hindcast.pipeline import Pipeline, check_name
from hindcast.settings import Settings, project_root

PipelineArgument = Annotated[str, typer.Argument(help="the pipeline's name")]
FromOffsets = Annotated[str, typer.Option("--from-offsets", help='first offset of each partition: {"0": 100, "1": 200}')]
ToOffsets = Annotated[str, typer.Option("--to-offsets", help="offset after the last one of each partition")]
FromTime = Annotated[str, typer.Option("--from-time", help="broker timestamp of the first records, ISO 8601 with an offset from UTC")]
ToTime = Annotated[str, typer.Option("--to-time", help="records of this broker timestamp or later are left out")]
SinceLastVerdict = Annotated[bool, typer.Option("--since-last-verdict", help="what was streamed since the last verdict")]
Late = Annotated[bool, typer.Option("--late", help="from the first window for which a late row came that no correction has")]
All = Annotated[bool, typer.Option("--all", help="all that the topic holds and the stream has committed")]
Version = Annotated[int, typer.Option("--version", min=0, help="one beside the active version; the active one by default")]
RunId = Annotated[str, typer.Option("--run-id", help="a name of this run; made up by default")]

#: A shard's name; see :mod:`hindcast.control.shards`.
SHARD = re.compile(r"v\d+\.g\d+\.s\d+")

app = typer.Typer()


def _active(settings: Settings, pipeline: str) -> Pipeline:
    from hindcast import catalog
    from hindcast.control.lease_table import read_leases
    from hindcast.control.standing import active_pipeline

    return active_pipeline(catalog.load(settings.pipelines_dir), read_leases(settings), pipeline)


@app.command()
def worker(fleet: Annotated[str, typer.Option("--fleet", help="the fleet to join; HINDCAST_FLEET by default")] = "") -> None:
    """Run one worker here until Ctrl-C or SIGTERM. It takes a slot or, where none is free, says so and exits 0."""
    settings = Settings()
    program = str(project_root() / "spark_apps" / "consume.py")
    arguments = [sys.executable, program, "--fleet", check_name("fleet", fleet or settings.fleet)]
    os.execve(sys.executable, arguments, {**os.environ, **settings.environment()})  # noqa: S606 - this process becomes the worker


@app.command()
def pause(pipeline: PipelineArgument) -> None:
    """Stop the pipeline's stream after the batch in hand, until `resume`."""
    _want(pipeline, "paused")


@app.command()
def resume(pipeline: PipelineArgument) -> None:
    """Let the pipeline's stream go on from its checkpoint."""
    _want(pipeline, "running")


@app.command()
def drain(pipeline: PipelineArgument) -> None:
    """Let the pipeline's stream reach the present end of its topic, then stop it."""
    _want(pipeline, "drained")


@app.command()
def reshard(pipeline: PipelineArgument, shards: Annotated[int, typer.Option("--shards", help="into how many shards to deal")]) -> None:
    """Deal the pipeline's partitions into another number of shards, while it runs. Results stay exact across it."""
    from dataclasses import replace

    from hindcast.control.desired import DesiredStates
    from hindcast.control.lease_table import LeaseTable
    from hindcast.pipeline import check

    settings = Settings()
    declared = _active(settings, pipeline)
    check(replace(declared, shards=shards))
    if declared.re_execute:  # before a shard that does well is stopped by a wish that it cannot meet
        raise ReshardRefusedError(pipeline=pipeline)
    states = DesiredStates(LeaseTable(settings))
    states.declare(declared, settings.workers)
    states.set_shards(pipeline, shards)
    print(f"{pipeline} is wanted in {shards} shards. A running pipeline's workers write them within seconds: see `hindcast leases`.")


@app.command()
def rebuild(
    pipeline: PipelineArgument, shard: Annotated[str, typer.Option("--shard", help="only this one, e.g. v1.g0.s0; all by default")] = ""
) -> None:
    """Make the state of a pipeline's shards anew from the topic and the ledger. Results stay exact; closed windows are not touched."""
    from hindcast.control import shards
    from hindcast.control.desired import DesiredStates
    from hindcast.control.lease_table import LeaseTable
    from hindcast.control.leases import NOT_HELD

    settings = Settings()
    store = LeaseTable(settings)
    leases = store.leases()
    declared = _active(settings, pipeline)
    version = shards.shard_version(shard) if SHARD.fullmatch(shard) else declared.version
    current = [lease.status_value for lease in shards.of_version(leases, pipeline, version) if lease.state not in NOT_HELD]
    if shard and shard not in current:
        raise BadInputError(problem=f"{pipeline} has no live shard {shard!r}", cure=f"There are: {', '.join(current) or 'none'}.")
    if not current:
        raise BadInputError(problem=f"{pipeline} has no shards yet", cure="There is no state to rebuild before it has run.")
    request = DesiredStates(store).request_rebuild(pipeline, [shard] if shard else current)
    print(f"The state of {shard or ', '.join(current)} is made anew (request {request}): see `hindcast events`.")


@app.command()
def rewind(
    pipeline: PipelineArgument,
    to: Annotated[str, typer.Option("--to", help="earliest, a broker timestamp (ISO 8601), or offsets as JSON")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be re-read and replaced")] = False,
    reason: Annotated[str, typer.Option("--reason", help="why; it is kept with the event")] = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Take back what a paused pipeline has written since a place of its topic, and let it read that again. Nothing is doubled.

    It goes back to the last batch that had read no further. One that was cut short is carried to its end by the same command.
    """
    import getpass
    import platform

    from hindcast.control.lease_table import LeaseTable
    from hindcast.replay.request import parse_offsets, parse_time
    from hindcast.stream import reset

    settings = Settings()
    declared, store = _active(settings, pipeline), LeaseTable(settings)
    if not dry_run and (done := reset.carry_on(settings, store, declared)) is not None:
        print(f"An earlier rewind of {pipeline} to {done['to']} had been cut short; it is done now.", file=sys.stderr)
        Output(output).row(done)
        return
    if not to:
        raise BadInputError(problem="--to says where to", cure="Give --to earliest, a time or offsets.")
    target = None if to == "earliest" else parse_offsets(to) if to.lstrip().startswith("{") else parse_time(to)
    plan = reset.make_plan(settings, store, declared, target)
    Output(output).row(plan.as_dict())
    if dry_run or not (yes or typer.confirm("Take that back and read it again?", err=True)):
        return
    reset.run(settings, store, declared, plan, by=f"{getpass.getuser()}@{platform.node()}", reason=reason)
    print(f"{pipeline} is rewound to {plan.to}. `hindcast resume {pipeline}` lets it read again.", file=sys.stderr)


@app.command()
def replay(
    pipeline: PipelineArgument,
    from_offsets: FromOffsets = "",
    to_offsets: ToOffsets = "",
    from_time: FromTime = "",
    to_time: ToTime = "",
    since_last_verdict: SinceLastVerdict = False,
    everything: All = False,
    version: Version = 0,
    run_id: RunId = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay a range of the pipeline's topic as a batch: its hindcast."""
    arguments = _range(
        pipeline,
        from_offsets=from_offsets,
        to_offsets=to_offsets,
        from_time=from_time,
        to_time=to_time,
        since_last_verdict=since_last_verdict,
        everything=everything,
        version=version,
        run_id=run_id,
    )
    run_app("replay.py", ["hindcast", *arguments], output)


@app.command()
def benchmark(pipeline: PipelineArgument, output: FormatOption = Format.TABLE) -> None:
    """Replay the pipeline's reference range, as a batch and with its recorded batches. `hindcast runs compare` sets two versions side by
    side.
    """
    from hindcast.replay.reference import request_of

    request_of(_active(Settings(), pipeline))  # before any work starts
    run_app("replay.py", ["benchmark", "--pipeline", pipeline], output)


@app.command()
def validate(
    pipeline: PipelineArgument,
    from_offsets: FromOffsets = "",
    to_offsets: ToOffsets = "",
    from_time: FromTime = "",
    to_time: ToTime = "",
    since_last_verdict: SinceLastVerdict = False,
    everything: All = False,
    version: Version = 0,
    run_id: RunId = "",
    run: Annotated[str, typer.Option("--run", help="judge this replay, which is there already")] = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay a range and judge the stream by it. Exits 3 where the verdict fails."""
    if run:
        _check_alone(from_offsets, to_offsets, from_time, to_time, since_last_verdict, everything, run_id, bool(version))
        _known(pipeline)
        run_app("replay.py", ["verdict", "--run-id", check_name("run", run)], output)
        return
    arguments = _range(
        pipeline,
        from_offsets=from_offsets,
        to_offsets=to_offsets,
        from_time=from_time,
        to_time=to_time,
        since_last_verdict=since_last_verdict,
        everything=everything,
        version=version,
        run_id=run_id,
    )
    run_app("replay.py", ["judge", *arguments], output)


@app.command()
def correct(
    pipeline: PipelineArgument,
    run: Annotated[str, typer.Option("--run", help="let readers have the answer of this replay, which was judged")] = "",
    from_offsets: FromOffsets = "",
    to_offsets: ToOffsets = "",
    from_time: FromTime = "",
    to_time: ToTime = "",
    since_last_verdict: SinceLastVerdict = False,
    late: Late = False,
    everything: All = False,
    version: Version = 0,
    run_id: RunId = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay a range, judge the stream by it, and let readers have the batch's answer for its closed windows.

    Exits 3 where the verdict fails.
    """
    if run:
        from hindcast import catalog
        from hindcast.control.tables import ControlTables
        from hindcast.replay.runs import Runs
        from hindcast.verdict.correct import correct as apply

        _check_alone(from_offsets, to_offsets, from_time, to_time, since_last_verdict, late, everything, run_id, bool(version))
        settings = Settings()
        of = Runs(ControlTables(settings)).succeeded(check_name("run", run))["version"]
        Output(output).row(apply(settings, catalog.load(settings.pipelines_dir).of(pipeline, of), run))
        return
    arguments = _range(
        pipeline,
        from_offsets=from_offsets,
        to_offsets=to_offsets,
        from_time=from_time,
        to_time=to_time,
        since_last_verdict=since_last_verdict,
        late=late,
        everything=everything,
        version=version,
        run_id=run_id,
    )
    run_app("replay.py", ["correct", *arguments], output)


def _check_alone(*given: str | bool) -> None:
    """:raises BadInputError: where something of a range is given beside --run"""
    if any(given):
        raise BadInputError(problem="--run names a replay whose range is fixed", cure="Give either --run or a range.")


def _known(pipeline: str) -> None:
    """:raises UnknownPipelineError: where there is no such pipeline"""
    from hindcast import catalog

    catalog.load(Settings().pipelines_dir)[pipeline]


def _range(pipeline: str, **given: Any) -> list[str]:
    """The range's arguments, checked before any work starts.

    :raises BadInputError: where the pipeline is unknown or the options do not make one range
    """
    from hindcast.replay.request import ReplayRequest

    _known(pipeline)
    return ReplayRequest.parse(pipeline=pipeline, **given).to_arguments()


def _want(pipeline: str, state: str) -> None:
    from hindcast import catalog
    from hindcast.control.desired import DesiredState, DesiredStates
    from hindcast.control.lease_table import LeaseTable
    from hindcast.control.reset import unfinished

    settings = Settings()
    store = LeaseTable(settings)
    states = DesiredStates(store)
    states.declare(catalog.load(settings.pipelines_dir)[pipeline], settings.workers)
    desired = states.set_state(pipeline, DesiredState(state))
    print(f"{pipeline} is wanted {desired.state.value}. Its workers follow within seconds: see `hindcast leases`.")
    if unfinished(store.read().leases, pipeline):
        print(f"A rewind of it was cut short, so its shards wait: `hindcast rewind {pipeline}` carries it to its end.", file=sys.stderr)


def run_app(script: str, arguments: list[str], form: Format) -> None:
    """Run one of spark_apps/: its progress goes to stderr as it comes, its result is printed, its exit code becomes ours."""
    command = [sys.executable, str(project_root() / "spark_apps" / script), *arguments]
    environment = {**os.environ, **Settings().environment()}
    ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    lines = ended.stdout.strip().splitlines()
    if lines:
        try:
            Output(form).row(json.loads(lines[-1]))
        except ValueError:
            print(lines[-1])
    raise typer.Exit(ended.returncode)
