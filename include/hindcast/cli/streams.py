"""The commands that act on pipelines: worker, pause, resume, drain, reshard, rebuild, rewind, replay, benchmark, validate."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast.cli.confirming import confirm
from hindcast.cli.names import meant
from hindcast.cli.options import (
    REPLAYS,
    STREAMS,
    TIMEOUT_SECONDS,
    DryRunOption,
    FormatOption,
    PipelineArgument,
    TimeoutOption,
    WaitOption,
    YesOption,
)
from hindcast.cli.output import Format, Output
from hindcast.errors import BadInputError, ReshardRefusedError, TryLaterError, WaitedInVainError
from hindcast.pipeline import Pipeline, check_name
from hindcast.settings import Settings, project_root

if TYPE_CHECKING:
    from hindcast.replay.request import ReplayRequest

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

#: From one try of a replay that came too early to the next: each starts Spark.
_RETRY_SECONDS = 5.0

app = typer.Typer()


def _active(settings: Settings, pipeline: str) -> Pipeline:
    from hindcast import catalog
    from hindcast.control.lease_table import read_leases
    from hindcast.control.standing import active_pipeline

    return active_pipeline(catalog.load(settings.pipelines_dir), read_leases(settings), pipeline)


@app.command(rich_help_panel=STREAMS)
def worker(fleet: Annotated[str, typer.Option("--fleet", help="the fleet to join; HINDCAST_FLEET by default")] = "") -> None:
    """Run one worker here until Ctrl-C or SIGTERM. It takes a slot or, where none is free, says so and exits 0."""
    settings = Settings()
    program = str(project_root() / "spark_apps" / "consume.py")
    arguments = [sys.executable, program, "--fleet", check_name("fleet", fleet or settings.fleet)]
    os.execve(sys.executable, arguments, {**os.environ, **settings.environment()})  # noqa: S606 - this process becomes the worker


@app.command(rich_help_panel=STREAMS)
def pause(pipeline: PipelineArgument, wait: WaitOption = False, timeout: TimeoutOption = TIMEOUT_SECONDS) -> None:
    """Stop the pipeline's stream after the batch in hand, until `resume`.

    With --wait: until no worker holds a shard of it.
    """
    from hindcast.cli.waiting import let_go, until

    settings = Settings()
    _want(settings, pipeline, "paused")
    if wait:
        until(let_go(settings, pipeline), f"The pause of {pipeline}", timeout)


@app.command(rich_help_panel=STREAMS)
def resume(pipeline: PipelineArgument, wait: WaitOption = False, timeout: TimeoutOption = TIMEOUT_SECONDS) -> None:
    """Let the pipeline's stream go on from its checkpoint.

    With --wait: until a worker holds each of its shards.
    """
    from hindcast.cli.waiting import consumed, until

    settings = Settings()
    _want(settings, pipeline, "running")
    if wait:
        cure = "`hindcast leases` shows the workers; `hindcast events` may say why."
        until(consumed(settings, pipeline), f"An owner of each shard of {pipeline}", timeout, cure)


@app.command(rich_help_panel=STREAMS)
def drain(
    pipeline: PipelineArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
) -> None:
    """Let the pipeline's stream reach the present end of its topic, then stop it.

    With --wait: until it has stopped.
    """
    from hindcast.cli.waiting import drained, until

    settings = Settings()
    _active(settings, pipeline)
    would = f"{pipeline} reads up to the present end of its topic, then stops until `hindcast resume {pipeline}`"
    if dry_run:
        print(f"{would}. Nothing has changed.")
        return
    confirm(f"hindcast drain {pipeline}", f"{would}. Do it?", yes=yes)
    _want(settings, pipeline, "drained")
    if wait:
        until(drained(settings, pipeline), f"The end of {pipeline}'s topic", timeout)


@app.command(rich_help_panel=STREAMS)
def reshard(
    pipeline: PipelineArgument,
    shards: Annotated[int, typer.Option("--shards", help="into how many shards to deal")],
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
) -> None:
    """Deal the pipeline's partitions into another number of shards, while it runs. Results stay exact across it.

    With --wait: until a worker holds each of the new shards.
    """
    from dataclasses import replace

    from hindcast.cli.waiting import dealt, until
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
    if wait:
        until(dealt(settings, pipeline, declared.version, shards), f"{pipeline} in {shards} shards", timeout)


@app.command(rich_help_panel=STREAMS)
def rebuild(
    pipeline: PipelineArgument,
    shard: Annotated[str, typer.Option("--shard", help="only this one, e.g. v1.g0.s0; all by default")] = "",
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
) -> None:
    """Make the state of a pipeline's shards anew from the topic and the ledger. Results stay exact; closed windows are not touched.

    With --wait: until it is made.
    """
    from hindcast.cli.waiting import rebuilt, until
    from hindcast.control import shards
    from hindcast.control.desired import DesiredStates
    from hindcast.control.lease_table import LeaseTable, read_leases
    from hindcast.control.leases import NOT_HELD

    settings = Settings()
    leases = read_leases(settings)
    declared = _active(settings, pipeline)
    version = shards.shard_version(shard) if SHARD.fullmatch(shard) else declared.version
    current = [lease.status_value for lease in shards.of_version(leases, pipeline, version) if lease.state not in NOT_HELD]
    if not current and version == declared.version:
        raise BadInputError(problem=f"{pipeline} has no shards yet", cure="There is no state to rebuild before it has run.")
    if shard and shard not in current:
        live = [lease.status_value for lease in leases if lease.stream_id == pipeline and SHARD.fullmatch(lease.status_value)]
        cure = " ".join(filter(None, [meant(shard, current), f"There are: {', '.join(current or live) or 'none'}."]))
        raise BadInputError(problem=f"{pipeline} has no live shard {shard!r}", cure=cure)
    asked = [shard] if shard else current
    request = DesiredStates(LeaseTable(settings)).request_rebuild(pipeline, asked)
    print(f"The state of {', '.join(asked)} is made anew (request {request}): see `hindcast events`.")
    if wait:
        until(rebuilt(settings, pipeline, request, asked), f"The new state of {pipeline}", timeout)


@app.command(rich_help_panel=STREAMS)
def rewind(
    pipeline: PipelineArgument,
    to: Annotated[str, typer.Option("--to", help="earliest, a broker timestamp (ISO 8601), or offsets as JSON")] = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    reason: Annotated[str, typer.Option("--reason", help="why; it is kept with the event")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="wait first until no worker holds a shard of the paused pipeline")] = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
    abandon: Annotated[bool, typer.Option("--abandon", help="call off a rewind that was cut short; all is as before it")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Take back what a paused pipeline has written since a place of its topic, and let it read that again. Nothing is doubled.

    It goes back to the last batch that had read no further. One that was cut short is carried to its end by the same command, or called
    off with --abandon, as long as its table is not put back yet.
    """
    import getpass
    import platform

    from hindcast.cli.waiting import let_go, until
    from hindcast.control.lease_table import LeaseTable
    from hindcast.replay.request import parse_offsets, parse_time
    from hindcast.stream import reset

    settings = Settings()
    declared, store, by = _active(settings, pipeline), LeaseTable(settings), f"{getpass.getuser()}@{platform.node()}"
    if abandon:
        if to or dry_run:
            raise BadInputError(problem="--abandon goes with --reason alone", cure="Leave --to and --dry-run out.")
        told = None
        if store.exists():
            told = reset.abandon(settings, store, declared, by=by, reason=reason)
        if told is None:
            raise BadInputError(problem=f"No rewind of {pipeline} was cut short", cure="There is nothing to call off.")
        print(f"{pipeline}: the rewind to {told['to']} is called off; its shards and tables are as before it.", file=sys.stderr)
        Output(output).row(told)
        return
    there = store.exists()
    if wait:
        until(let_go(settings, pipeline), f"The pause of {pipeline}", timeout, f"Was it paused? `hindcast pause {pipeline}`.")
    if there and not dry_run and (done := reset.carry_on(settings, store, declared)) is not None:
        print(f"An earlier rewind of {pipeline} to {done['to']} had been cut short; it is done now.", file=sys.stderr)
        Output(output).row(done)
        return
    if not to:
        raise BadInputError(problem="--to says where to", cure="Give --to earliest, a time or offsets.")
    target = None if to == "earliest" else parse_offsets(to) if to.lstrip().startswith("{") else parse_time(to)
    if not there:
        cure = f"`hindcast resume {pipeline}` has it consumed."
        raise BadInputError(problem=f"{pipeline} is not rewound: nothing of it was ever read, and it is not paused", cure=cure)
    plan = reset.make_plan(settings, store, declared, target)
    Output(output).row(plan.as_dict())
    if dry_run:
        return
    confirm(f"hindcast rewind {pipeline}", "Take that back and read it again?", yes=yes)
    reset.run(settings, store, declared, plan, by=by, reason=reason)
    print(f"{pipeline} is rewound to {plan.to}. `hindcast resume {pipeline}` lets it read again.", file=sys.stderr)


@app.command(rich_help_panel=REPLAYS)
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
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay a range of the pipeline's topic as a batch: its hindcast.

    With --wait: as soon as the stream has committed the range.
    """
    asked = _range(
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
    _run_replay("hindcast", asked, output, wait_seconds=timeout if wait else 0.0)


@app.command(rich_help_panel=REPLAYS)
def benchmark(pipeline: PipelineArgument, output: FormatOption = Format.TABLE) -> None:
    """Replay the pipeline's reference range, as a batch and with its recorded batches. `hindcast runs compare` sets two versions side by
    side.
    """
    from hindcast.replay.reference import request_of

    request_of(_active(Settings(), pipeline))  # before any work starts
    run_app("replay.py", ["benchmark", "--pipeline", pipeline], output)


@app.command(rich_help_panel=REPLAYS)
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
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay a range and judge the stream by it. Exits 3 where the verdict fails."""
    if run:
        _check_alone(from_offsets, to_offsets, from_time, to_time, since_last_verdict, everything, run_id, bool(version))
        _known(pipeline)
        run_app("replay.py", ["verdict", "--run-id", check_name("run", run)], output)
        return
    asked = _range(
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
    _run_replay("judge", asked, output, wait_seconds=timeout if wait else 0.0)


@app.command(rich_help_panel=REPLAYS)
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
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
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
        if dry_run:
            Output(output).row({"pipeline": pipeline, "version": of, "run_id": run, "dry_run": True})
            return
        _confirm_correction(pipeline, f"run {run}", yes=yes)
        Output(output).row(apply(settings, catalog.load(settings.pipelines_dir).of(pipeline, of), run))
        return
    asked = _range(
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
    if dry_run:
        Output(output).row({"pipeline": pipeline, "replays": asked.to_arguments(), "dry_run": True})
        return
    _confirm_correction(pipeline, "a new replay of the range", yes=yes)
    _run_replay("correct", asked, output, wait_seconds=timeout if wait else 0.0)


def _confirm_correction(pipeline: str, of: str, *, yes: bool) -> None:
    question = f"Readers of {pipeline} get the answer of {of} in the place of the stream's, for its closed windows. Do it?"
    confirm(f"hindcast correct {pipeline}", question, yes=yes)


def _check_alone(*given: str | bool) -> None:
    """:raises BadInputError: where something of a range is given beside --run"""
    if any(given):
        raise BadInputError(problem="--run names a replay whose range is fixed", cure="Give either --run or a range.")


def _known(pipeline: str, version: int = 0) -> None:
    """:raises UnknownPipelineError: if there is no such pipeline
    :raises UnknownVersionError: if it is not declared in that version
    """
    from hindcast import catalog

    found = catalog.load(Settings().pipelines_dir)
    found.of(pipeline, version or min(found.versions(pipeline)))


def _range(pipeline: str, **given: Any) -> ReplayRequest:
    """What is asked, checked before any work starts, under a run id.

    :raises BadInputError: where the pipeline is unknown or the options do not make one range
    """
    from hindcast.replay.request import ReplayRequest, new_run_id

    _known(pipeline, given["version"])
    asked = ReplayRequest.parse(pipeline=pipeline, **given)
    return replace(asked, run_id=asked.run_id or new_run_id(pipeline, datetime.now(UTC)))


def _run_replay(command: str, asked: ReplayRequest, output: Format, *, wait_seconds: float) -> None:
    """Run a command that replays. A run that ends badly has its row in ``runs`` and an event, even if its process was killed."""
    from hindcast.control.runs import BadEnd, close_run
    from hindcast.control.tables import ControlTables
    from hindcast.errors import VerdictFailedError

    arguments = [command, *asked.to_arguments()]
    if wait_seconds:
        arguments.append("--tried-again")  # the application ends no run for a stream that is not far enough yet
    began_at = datetime.now(UTC)

    def close(end: BadEnd) -> None:
        close_run(ControlTables(Settings()), asked.run_id, asked.pipeline, end, since=began_at, version=asked.version or None)

    try:
        run_app("replay.py", arguments, output, wait_seconds=wait_seconds)
    except typer.Exit as ended:
        if ended.exit_code not in {0, VerdictFailedError.exit_code}:
            close(BadEnd.of_process(ended.exit_code, "see what it wrote to the terminal"))
        raise
    except WaitedInVainError as error:
        close(BadEnd.of_process(TryLaterError.exit_code, str(error)))
        raise


def _want(settings: Settings, pipeline: str, state: str) -> None:
    from hindcast import catalog
    from hindcast.control.desired import DesiredState, DesiredStates
    from hindcast.control.lease_table import LeaseTable
    from hindcast.control.reset import unfinished

    declared = catalog.load(settings.pipelines_dir)[pipeline]
    store = LeaseTable(settings)
    states = DesiredStates(store)
    states.declare(declared, settings.workers)
    desired = states.set_state(pipeline, DesiredState(state))
    print(f"{pipeline}: desired state is now {desired.state.name}; workers apply it within seconds. See `hindcast leases`.")
    if unfinished(store.read().leases, pipeline):
        carry_on = f"`hindcast rewind {pipeline}` carries it to its end, with --abandon it calls it off."
        print(f"A rewind of it was cut short, so its shards wait: {carry_on}", file=sys.stderr)


def run_app(script: str, arguments: list[str], form: Format, *, wait_seconds: float = 0.0, ends: bool = True) -> None:
    """Run one of spark_apps/: its progress goes to stderr as it comes, its result is printed, its exit code becomes ours.

    :param wait_seconds: for so long it is run again while it says that a retry may succeed
    :param ends: whether the command ends with it, also if it was well
    :raises WaitedInVainError: if it says so still
    """
    command = [sys.executable, str(project_root() / "spark_apps" / script), *arguments]
    environment = {**os.environ, **Settings().environment()}
    deadline = time.monotonic() + wait_seconds
    while True:
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode != TryLaterError.exit_code or not wait_seconds:
            break
        if time.monotonic() >= deadline:
            cure = "The same command may succeed later."
            raise WaitedInVainError(what=f"{script} {arguments[0]}", seconds=wait_seconds, seen="the message above", cure=cure)
        print("Waiting: it is tried again", file=sys.stderr, flush=True)
        time.sleep(min(_RETRY_SECONDS, max(deadline - time.monotonic(), 0.0)))
    lines = ended.stdout.strip().splitlines()
    if lines and ended.returncode != TryLaterError.exit_code:  # what is waited for is in the message, and for programs in the object
        try:
            Output(form).row(json.loads(lines[-1]))
        except ValueError:
            print(lines[-1])
    if ends or ended.returncode:
        raise typer.Exit(ended.returncode)
