"""The commands that act on pipelines: worker, pause, resume, drain, reshard, rebuild, rewind, replay,
benchmark, validate and correct.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hindcast import Hindcast
from hindcast.cli.confirming import confirm, user_and_host
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
from hindcast.cli.ranges import GivenRange, takes_range
from hindcast.errors import BadInputError, TryLaterError, WaitedInVainError
from hindcast.partitions import ShardId
from hindcast.pipeline import Pipeline, check_name
from hindcast.processes import programs
from hindcast.replay.request import ReplayRequest, new_run_id
from hindcast.settings import Settings

if TYPE_CHECKING:
    from hindcast.app import InstalledPipeline
    from hindcast.leases.lease import Lease
    from hindcast.shards.pipeline_row import PipelineRow

FleetOption = Annotated[str, typer.Option("--fleet", help="the fleet to join; HINDCAST_FLEET by default")]
ShardsOption = Annotated[int, typer.Option("--shards", help="the new number of shards")]
ShardOption = Annotated[str, typer.Option("--shard", help="only this one, e.g. v1.g0.s0; all by default")]
ToOption = Annotated[
    str, typer.Option("--to", help="earliest, a broker timestamp (ISO 8601), or offsets as JSON")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="why; recorded in the event")]
WaitUntilFree = Annotated[
    bool, typer.Option("--wait", help="first wait until no worker holds a shard of the paused pipeline")
]
AbandonOption = Annotated[
    bool, typer.Option("--abandon", help="call off a rewind that was cut short; all is as before it")
]
JudgedRun = Annotated[str, typer.Option("--run", help="judge this replay, which is there already")]
CorrectedRun = Annotated[
    str, typer.Option("--run", help="give readers the results of this replay, which was judged")
]

#: A shard's name; see :mod:`hindcast.shards.resharding`.
SHARD = re.compile(r"v\d+\.g\d+\.s\d+")

#: From one attempt of a replay that came too early to the next: each starts Spark.
_RETRY_SECONDS = 5.0

app = typer.Typer()


@app.command(rich_help_panel=STREAMS)
def worker(fleet: FleetOption = "") -> None:
    """Run one worker here until Ctrl-C or SIGTERM. If no slot is free it says so and exits 0."""
    settings = Settings()
    name = check_name("fleet", fleet or settings.fleet)
    arguments = programs.command("consume", "--fleet", name)
    environment = {**os.environ, **settings.environment()}
    os.execve(sys.executable, arguments, environment)  # noqa: S606 - this process becomes the worker


@app.command(rich_help_panel=STREAMS)
def pause(
    pipeline: PipelineArgument, wait: WaitOption = False, timeout: TimeoutOption = TIMEOUT_SECONDS
) -> None:
    """Stop the pipeline's stream after the current batch, until `resume`.

    With --wait: until no worker holds a shard of it.
    """
    from hindcast.cli.waiting import let_go, until

    hindcast = Hindcast()
    desired = hindcast.pipeline(pipeline).pause()
    _print_desired(hindcast, desired)
    if wait:
        until(let_go(hindcast, pipeline), f"The pause of {pipeline}", timeout)


@app.command(rich_help_panel=STREAMS)
def resume(
    pipeline: PipelineArgument, wait: WaitOption = False, timeout: TimeoutOption = TIMEOUT_SECONDS
) -> None:
    """Resume the pipeline's stream from its checkpoint.

    With --wait: until a worker holds each of its shards.
    """
    from hindcast.cli.waiting import consumed, until

    hindcast = Hindcast()
    desired = hindcast.pipeline(pipeline).resume()
    _print_desired(hindcast, desired)
    if wait:
        cure = "`hindcast leases` shows the workers; `hindcast events` may say why."
        until(consumed(hindcast, pipeline), f"An owner of each shard of {pipeline}", timeout, cure)


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

    hindcast = Hindcast()
    stream = hindcast.pipeline(pipeline)
    effect = f"{pipeline} reads up to the present end of its topic"
    effect += f", then stops until `hindcast resume {pipeline}`"
    if dry_run:
        print(f"{effect}. Nothing has changed.")
        return
    confirm(f"hindcast drain {pipeline}", f"{effect}. Do it?", yes=yes)
    _print_desired(hindcast, stream.drain())
    if wait:
        until(drained(hindcast, pipeline), f"The end of {pipeline}'s topic", timeout)


@app.command(rich_help_panel=STREAMS)
def reshard(
    pipeline: PipelineArgument,
    shards: ShardsOption,
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
) -> None:
    """Divide the pipeline's partitions into another number of shards, while it runs. Results stay exact
    across it.

    With --wait: until a worker holds each of the new shards.
    """
    from hindcast.cli.waiting import dealt, until

    hindcast = Hindcast()
    stream = hindcast.pipeline(pipeline)
    stream.reshard(shards)
    effect = f"desired number of shards is now {shards}"
    cause = "workers of a running pipeline write them within seconds"
    print(f"{pipeline}: {effect}; {cause}. See `hindcast leases`.")
    if wait:
        progress = dealt(hindcast, pipeline, stream.version, shards)
        until(progress, f"{pipeline} in {shards} shards", timeout)


@app.command(rich_help_panel=STREAMS)
def rebuild(
    pipeline: PipelineArgument,
    shard: ShardOption = "",
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
) -> None:
    """Rebuild the state of a pipeline's shards from the topic and the ledger. Results stay exact; closed
    windows are not touched.

    With --wait: until the state is rebuilt.
    """
    from hindcast.cli.waiting import rebuilt, until

    hindcast = Hindcast()
    stream = hindcast.pipeline(pipeline)
    asked = _shards_to_rebuild(stream.leases(), stream.declared, shard)
    request = stream.rebuild(asked)
    names = ", ".join(asked)
    print(f"{pipeline}: the state of {names} will be rebuilt (request {request}). See `hindcast events`.")
    if wait:
        progress = rebuilt(hindcast, pipeline, request, asked)
        until(progress, f"The new state of {pipeline}", timeout)


def _shards_to_rebuild(leases: Iterable[Lease], declared: Pipeline, shard: str) -> list[str]:
    """The shard that was asked for, or all live shards of the active version.

    :raises BadInputError: if the pipeline has no such live shard, or none at all
    """
    from hindcast.leases.lease import NOT_HELD
    from hindcast.shards import resharding

    pipeline = declared.name
    version = declared.version
    if SHARD.fullmatch(shard):
        version = ShardId.parse(shard).version
    declared_shards = resharding.of_version(leases, pipeline, version)
    current = [lease.status_value for lease in declared_shards if lease.state not in NOT_HELD]
    if not current and version == declared.version:
        problem = f"{pipeline} has no shards yet"
        cure = "There is no state to rebuild before the pipeline has run."
        raise BadInputError(problem=problem, cure=cure)
    if not shard:
        return current
    if shard not in current:
        _refuse_shard(leases, pipeline, shard, current)
    return [shard]


def _refuse_shard(leases: Iterable[Lease], pipeline: str, shard: str, current: list[str]) -> NoReturn:
    known = current
    if not known:
        own = [lease.status_value for lease in leases if lease.stream_id == pipeline]
        known = [name for name in own if SHARD.fullmatch(name)]
    cure = f"There are: {', '.join(known) or 'none'}."
    hint = meant(shard, current)
    if hint:
        cure = f"{hint} {cure}"
    raise BadInputError(problem=f"{pipeline} has no live shard {shard!r}", cure=cure)


@app.command(rich_help_panel=STREAMS)
def rewind(
    pipeline: PipelineArgument,
    to: ToOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    reason: ReasonOption = "",
    wait: WaitUntilFree = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
    abandon: AbandonOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Take back the output of a paused pipeline since a position in its topic, so that it reads from there
    again. No row is doubled.

    It rewinds to the last batch that ended at that position or before it. If a rewind was cut short, the same
    command completes it. --abandon calls it off, as long as its table is not restored yet.
    """
    from hindcast.cli.waiting import let_go, until

    hindcast = Hindcast()
    stream = hindcast.pipeline(pipeline)
    leased = hindcast.lease_table.exists()
    if abandon:
        if to or dry_run:
            cure = "Leave --to and --dry-run out."
            raise BadInputError(problem="--abandon goes with --reason alone", cure=cure)
        _abandon_rewind(stream, leased, reason, output)
        return
    if wait:
        cure = f"Was it paused? `hindcast pause {pipeline}`."
        until(let_go(hindcast, pipeline), f"The pause of {pipeline}", timeout, cure)
    if leased and not dry_run and _complete_rewind(stream, output):
        return
    target = _rewind_target(to)
    if not leased:
        problem = f"{pipeline} is not rewound: it has never run, and it is not paused"
        raise BadInputError(problem=problem, cure=f"`hindcast resume {pipeline}` starts it.")
    plan = stream.plan_rewind(target)
    Output(output).row(plan.as_dict())
    if dry_run:
        return
    confirm(f"hindcast rewind {pipeline}", "Take that back and read it again?", yes=yes)
    stream.rewind(plan, by=user_and_host(), reason=reason)
    print(
        f"{pipeline} is rewound to {plan.to}. `hindcast resume {pipeline}` starts it again.", file=sys.stderr
    )


def _abandon_rewind(stream: InstalledPipeline, leased: bool, reason: str, output: Format) -> None:
    """:raises BadInputError: if no rewind of the pipeline was cut short"""
    pipeline = stream.name
    abandoned = None
    if leased:
        abandoned = stream.abandon_rewind(by=user_and_host(), reason=reason)
    if abandoned is None:
        problem = f"No rewind of {pipeline} was cut short"
        raise BadInputError(problem=problem, cure="There is nothing to call off.")
    outcome = f"the rewind to {abandoned['to']} is called off"
    print(f"{pipeline}: {outcome}; its shards and tables are as before it.", file=sys.stderr)
    Output(output).row(abandoned)


def _complete_rewind(stream: InstalledPipeline, output: Format) -> bool:
    """Complete a rewind that was cut short; whether there was one."""
    done = stream.complete_rewind()
    if done is None:
        return False
    name = f"An earlier rewind of {stream.name} to {done['to']}"
    print(f"{name} had been cut short; it is complete now.", file=sys.stderr)
    Output(output).row(done)
    return True


def _rewind_target(to: str) -> datetime | dict[int, int] | None:
    """The instant or the offsets that ``--to`` names; None for the beginning of the topic.

    :raises BadInputError: if it is missing, or of no valid form
    """
    from hindcast.replay.request import parse_offsets, parse_time

    if not to:
        problem = "--to is missing: the position to rewind to"
        raise BadInputError(problem=problem, cure="Give --to earliest, a time or offsets.")
    if to == "earliest":
        return None
    if to.lstrip().startswith("{"):
        return parse_offsets(to)
    return parse_time(to)


@app.command(rich_help_panel=REPLAYS)
@takes_range()
def replay(
    pipeline: PipelineArgument,
    given: GivenRange,
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay a range of the pipeline's topic as a batch: its hindcast.

    With --wait: as soon as the stream has committed the range.
    """
    asked = _request(pipeline, given)
    _run_replay("hindcast", asked, output, wait=wait, timeout=timeout)


@app.command(rich_help_panel=REPLAYS)
def benchmark(pipeline: PipelineArgument, output: FormatOption = Format.TABLE) -> None:
    """Replay the pipeline's reference range, as a batch and with its recorded batches. `hindcast runs
    compare` compares two versions.
    """
    from hindcast.replay.benchmark import request_of

    request_of(Hindcast().pipeline(pipeline).declared)  # check before any work starts
    run_app("replay", ["benchmark", "--pipeline", pipeline], output)


@app.command(rich_help_panel=REPLAYS)
@takes_range()
def validate(
    pipeline: PipelineArgument,
    given: GivenRange,
    run: JudgedRun = "",
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay a range and judge the stream by it. Exits 3 if the verdict fails."""
    if run:
        _check_alone(given)
        _check_declared(pipeline)
        judged = ["verdict", "--pipeline", pipeline, "--run-id", check_name("run", run)]
        run_app("replay", judged, output)
        return
    asked = _request(pipeline, given)
    _run_replay("judge", asked, output, wait=wait, timeout=timeout)


@app.command(rich_help_panel=REPLAYS)
@takes_range(late=True)
def correct(
    pipeline: PipelineArgument,
    given: GivenRange,
    run: CorrectedRun = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = TIMEOUT_SECONDS,
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay a range, judge the stream by it, and give readers the batch's results for its closed windows.

    Exits 3 if the verdict fails.
    """
    if run:
        _check_alone(given)
        _apply_correction(pipeline, run, output, yes=yes, dry_run=dry_run)
        return
    asked = _request(pipeline, given)
    if dry_run:
        Output(output).row({"pipeline": pipeline, "replays": asked.to_arguments(), "dry_run": True})
        return
    _confirm_correction(pipeline, "a new replay of the range", yes=yes)
    _run_replay("correct", asked, output, wait=wait, timeout=timeout)


def _apply_correction(pipeline: str, run: str, output: Format, *, yes: bool, dry_run: bool) -> None:
    """Give readers the results of a replay that was judged already."""
    hindcast = Hindcast()
    version = hindcast.run_table.succeeded(check_name("run", run))["version"]
    corrected = hindcast.pipeline(pipeline, version)
    corrected.check_correction(run)
    if dry_run:
        Output(output).row({"pipeline": pipeline, "version": version, "run_id": run, "dry_run": True})
        return
    _confirm_correction(pipeline, f"run {run}", yes=yes)
    Output(output).row(corrected.correct(run))


def _confirm_correction(pipeline: str, replayed: str, *, yes: bool) -> None:
    effect = f"Readers of {pipeline} get the results of {replayed} instead of the stream's"
    confirm(f"hindcast correct {pipeline}", f"{effect}, for its closed windows. Do it?", yes=yes)


def _check_alone(given: GivenRange) -> None:
    """:raises BadInputError: if an option of a range is given together with --run"""
    if any(given.values()):
        problem = "--run names a replay whose range is fixed"
        raise BadInputError(problem=problem, cure="Give either --run or a range.")


def _check_declared(pipeline: str, version: int = 0) -> None:
    """:raises UnknownPipelineError: if there is no such pipeline
    :raises UnknownVersionError: if it is not declared in that version
    """
    Hindcast().pipeline(pipeline, version)


def _request(pipeline: str, given: GivenRange) -> ReplayRequest:
    """The request with its run id, checked before any work starts.

    :raises BadInputError: if the pipeline is unknown or the options do not make one range
    """
    _check_declared(pipeline, given["version"])
    asked = ReplayRequest.parse(pipeline=pipeline, **given)
    if asked.run_id:
        return asked
    return replace(asked, run_id=new_run_id(pipeline, datetime.now(UTC)))


def _run_replay(command: str, asked: ReplayRequest, output: Format, *, wait: bool, timeout: float) -> None:
    """Run a command that replays. A failed run gets its row in ``runs`` and an event, even if its process was
    killed.
    """
    from hindcast.errors import VerdictFailedError
    from hindcast.tables.run_states import BadEnd, close_run

    arguments = [command, *asked.to_arguments()]
    wait_seconds = 0.0
    if wait:
        wait_seconds = timeout
        # With it the application does not close the run while the stream has not committed the range yet.
        arguments.append("--tried-again")
    began_at = datetime.now(UTC)

    def close(end: BadEnd) -> None:
        tables = Hindcast().tables
        version = asked.version or None
        close_run(tables, asked.run_id, asked.pipeline, end, since=began_at, version=version)

    try:
        run_app("replay", arguments, output, wait_seconds=wait_seconds)
    except typer.Exit as ended:
        if ended.exit_code not in {0, VerdictFailedError.exit_code}:
            close(BadEnd.of_process(ended.exit_code, "see what it wrote to the terminal"))
        raise
    except WaitedInVainError as error:
        close(BadEnd.of_process(TryLaterError.exit_code, str(error)))
        raise


def _print_desired(hindcast: Hindcast, desired: PipelineRow) -> None:
    from hindcast.shards.shard_row import awaiting_rewind

    pipeline = desired.pipeline
    effect = f"desired state is now {desired.state.name}; workers apply it within seconds"
    print(f"{pipeline}: {effect}. See `hindcast leases`.")
    if awaiting_rewind(hindcast.lease_table.leases(), pipeline):
        cure = f"`hindcast rewind {pipeline}` completes it; with --abandon it calls it off."
        print(f"A rewind of {pipeline} was cut short, so its shards wait: {cure}", file=sys.stderr)


def run_app(
    program: str, arguments: list[str], form: Format, *, wait_seconds: float = 0.0, ends: bool = True
) -> None:
    """Run a program of hindcast.apps. Its progress goes to stderr at once; its result is printed; its exit
    code becomes that of the command.

    :param wait_seconds: retry for so long, while the application exits with the code of
        :class:`TryLaterError`
    :param ends: whether the command ends with the application, also if that succeeded
    :raises WaitedInVainError: if the application still exits with that code after ``wait_seconds``
    """
    ended = _run_until_ready(program, arguments, wait_seconds)
    lines = ended.stdout.strip().splitlines()
    # For people the error message names what is awaited; the JSON object of it is for programs.
    if lines and ended.returncode != TryLaterError.exit_code:
        _print_result(lines[-1], form)
    if ends or ended.returncode:
        raise typer.Exit(ended.returncode)


def _run_until_ready(
    program: str, arguments: list[str], wait_seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run the application again while it says that a retry may succeed, for ``wait_seconds`` at most.

    :raises WaitedInVainError: if it says so after that time, too
    """
    command = programs.command(program, *arguments)
    environment = {**os.environ, **Settings().environment()}
    deadline = time.monotonic() + wait_seconds
    while True:
        ended = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
        )
        if ended.returncode != TryLaterError.exit_code or not wait_seconds:
            return ended
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise WaitedInVainError(
                what=f"{program} {arguments[0]}",
                seconds=wait_seconds,
                seen="the message above",
                cure="The same command may succeed later.",
            )
        print("Waiting to retry", file=sys.stderr, flush=True)
        time.sleep(min(_RETRY_SECONDS, remaining))


def _print_result(line: str, form: Format) -> None:
    try:
        row = json.loads(line)
    except ValueError:
        print(line)
        return
    Output(form).row(row)
