"""``hindcast demo``: everything once, from nothing to a verdict, as a user would do it step by step.

The load's report says exactly which offsets were sent. The demo waits until the stream has committed all of
them, has Airflow replay them, and takes the verdict from the control tables.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindcast.errors import HindcastError, ServiceError, VerdictFailedError
from hindcast.installation import Installation
from hindcast.leases.lease import Lease, StatusType
from hindcast.pipeline import Pipeline
from hindcast.processes.background_services import Services
from hindcast.replay.wait_for_stream import filed_batches
from hindcast.settings import Settings
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.event_log import Severity
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.table_names import ControlTable
from hindcast_sandbox import airflow, doctor, stack
from hindcast_sandbox.demo_schedules import pause_remembered, remember
from hindcast_sandbox.failover import Killed, kill_an_owner
from hindcast_sandbox.interruptible import interruptible
from hindcast_sandbox.load import LoadReport, ensure_topic, report_path

if TYPE_CHECKING:
    from rich.status import Status

#: A verdict on fewer windows says little. This many if one begins each second; in proportion if they are
#: rarer.
LEAST_WINDOWS = 200
_PARSED_SECONDS = 120.0  # Airflow reads the DAG files within some seconds of its start
_OWNED_SECONDS = 240.0  # `supervise` runs and two JVMs start, on a machine that may be busy
_CAUGHT_UP_SECONDS = 600.0  # on a busy machine the stream may be minutes behind the load
_STALLED_SECONDS = 600.0  # without any progress of a replay or verdict; with progress there is no limit
_POLL_SECONDS = 1.0
_MEMORY_SECONDS = 10.0  # between two measurements of the memory: each reads the maps of all processes
#: The choice of ``replay.<pipeline>``'s form that takes offsets
#: (hindcast.airflow.operators.RangeChoice.OFFSETS).
_BY_OFFSETS = "from offsets to offsets"
_FAILED_RUN = "failed"
#: States of a task that has a slot of its pool, and of one that waits for it.
_IN_SLOT = ("running", "queued")
_BEFORE_SLOT = ("scheduled", "deferred", "up_for_retry")
#: What tells one attempt of a task, and its state, from another.
_TASK_FIELDS = ("dag_id", "dag_run_id", "task_id", "map_index", "try_number", "state")
#: What the summary takes from the verdict's row.
_OF_VERDICT = (
    "run_id",
    "input_rows",
    "dead_letters",
    "late_rows",
    "windows_compared",
    "rows_compared",
    "unexplained",
    "captured",
    "passed",
    "failed",
)


def run(
    settings: Settings, pipeline: str, *, once: bool, seconds: float, rows_per_second: float, seed: int
) -> None:
    """The whole demo. It prints the summary as one JSON object, the last line of stdout.

    :param once: stop everything before the summary is printed; otherwise run on until ``hindcast down``
    :param seconds: how long to stream before the verdict, from the moment all shards are owned
    :raises VerdictFailedError: if the verdict does not pass, or its counts are not those that were sent
    :raises HindcastError: if a part does not start or does not answer in time
    """
    installation = Installation(settings)
    progress = Progress(installation)
    demo = Demo(installation, installation.catalog[pipeline], progress)
    try:
        with interruptible():
            summary = judge(demo, seconds, rows_per_second, seed, stop_load=once)
            if not once:
                progress.say(
                    "Everything keeps running. To stop it, press Ctrl-C here, "
                    "or run `hindcast down` (`make down`) in another terminal."
                )
                print(json.dumps(summary), flush=True)
                check(summary)
                _wait_down(demo.settings)
                return
    except KeyboardInterrupt:
        progress.say("Interrupted.")
        stack.down(demo.settings, say=progress.say)
        raise
    except HindcastError:
        if not once:
            progress.say("The services keep running. `hindcast down` (`make down`) stops them.")
        raise
    finally:
        if once:
            stack.down(demo.settings, say=progress.say)
    print(json.dumps(summary), flush=True)
    check(summary)


def check(summary: Mapping[str, Any]) -> None:
    """:raises VerdictFailedError: if the verdict failed or compared too little, or dead letters are missing
    or too many
    """
    failed: list[str] = []
    if not summary["passed"]:
        failed.append(str(summary["failed"]) or "the verdict did not pass")
    sent = summary["dead_letters_sent"]
    found = summary["dead_letters"]
    if found != sent:
        failed.append(f"{sent} unusable rows were sent and {found} are dead letters")
    compared = summary["windows_compared"]
    needed = summary["windows_needed"]
    if compared < needed:
        failed.append(f"only {compared} of {needed} windows were compared: stream for longer (--seconds)")
    if failed:
        raise VerdictFailedError(
            pipeline=summary["pipeline"],
            run_id=summary["run_id"],
            unexplained=summary["unexplained"],
            captured=summary["captured"],
            failed="; ".join(failed),
        )


class Progress:
    """What a demo tells its terminal, and the memory that its services took at most."""

    def __init__(self, installation: Installation) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False)
        self.peak_mib = 0
        self.peak_worker_mib = 0
        self._settings = installation.settings
        self._tables = installation.tables
        self._began = time.monotonic()
        self._faults_told_until = datetime.now(UTC)
        self._measured_at = 0.0

    @property
    def seconds(self) -> float:
        """Since the start of the demo."""
        return time.monotonic() - self._began

    def say(self, line: str) -> None:
        """One line of progress with the seconds since the start, on stderr."""
        self.console.print(f"[dim]{self.seconds:5.0f} s[/dim]  ", end="")
        self.console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def waiting(self, what: str, timeout_seconds: float) -> Iterator[Wait]:
        """Show a spinner during a wait. The caller polls the wait in each turn of its loop."""
        deadline = time.monotonic() + timeout_seconds
        with self.console.status(f"Waiting for {what}") as spinner:
            yield Wait(self, self._settings, spinner, what, timeout_seconds, deadline)

    def tell_faults(self) -> None:
        """Tell the errors that were recorded since the last call."""
        newer = [("severity", "=", Severity.ERROR.value), ("at", ">", self._faults_told_until)]
        events = self._tables.rows(ControlTable.EVENTS, newer)
        for event in sorted(events, key=lambda event: event["at"]):
            self.say(f"{event['message']} {event['cure']}")
            self._faults_told_until = event["at"]

    def measure_memory(self) -> None:
        """Add the present memory to the peaks."""
        self._measured_at = time.monotonic()
        services_mib = sum(row["memory_mib"] for row in stack.status(self._settings))
        workers_mib = stack.worker_memory_mib(self._settings)
        self.peak_mib = max(self.peak_mib, services_mib)
        self.peak_worker_mib = max(self.peak_worker_mib, *workers_mib.values(), 0)

    def measure_memory_sometimes(self) -> None:
        if time.monotonic() - self._measured_at >= _MEMORY_SECONDS:
            self.measure_memory()


@dataclass
class Wait:
    """A wait for one thing, with a limit of time that starts again at each sign of progress."""

    progress: Progress
    settings: Settings
    spinner: Status
    what: str
    timeout_seconds: float
    deadline: float
    sign: Hashable = None

    def poll(self, detail: str, sign: Hashable = None) -> None:
        """One turn: show the detail, tell new faults, and sleep.

        :param sign: a change of it is progress
        :raises ServiceError: if the time is over
        """
        if sign != self.sign:
            self.deadline = time.monotonic() + self.timeout_seconds
        self.sign = sign
        if time.monotonic() >= self.deadline:
            state = detail or "no progress is known"
            problem = (
                f"was waiting for {self.what} for {self.timeout_seconds:.0f} s in vain ({state})."
                " `hindcast events` and `hindcast status` may say why"
            )
            raise ServiceError(service="The demo", problem=problem, log=self.settings.logs_dir)
        shown = f"Waiting for {self.what}"
        if detail:
            shown = f"{shown}: {detail}"
        self.spinner.update(shown)
        self.progress.tell_faults()
        self.progress.measure_memory_sometimes()
        time.sleep(_POLL_SECONDS)


@dataclass
class Demo:
    """One demo of one pipeline. ``installation`` gets the addresses of the services once they run."""

    installation: Installation
    pipeline: Pipeline
    progress: Progress
    failover_seconds: float | None = None

    @property
    def settings(self) -> Settings:
        return self.installation.settings


def judge(
    demo: Demo, seconds: float, rows_per_second: float, seed: int, *, stop_load: bool
) -> dict[str, Any]:
    """Start, stream, replay, judge; returns the summary."""
    say = demo.progress.say
    for warning in doctor.require(demo.settings):
        say(f"{warning.what}: {warning.found}. {warning.cure}")
    topic = demo.pipeline.source.name
    # The load starts after the workers: otherwise the first batch would be all that was sent while Spark
    # started.
    demo.installation = Installation(stack.up(demo.settings, topic=None, say=say))
    pause_remembered(demo.settings, say)
    run_only(demo.installation, demo.pipeline)
    unpause(demo, demo.settings.dag_id("supervise"), demo.settings.dag_id("maintain"))
    _wait_owned(demo)
    stack.start_load(demo.settings, topic, rows_per_second, seed)
    say(
        f"The load sends {rows_per_second:g} rows a second to the topic {topic}; "
        f"streaming for {seconds:g} seconds."
    )
    _stream(demo, seconds)
    if stop_load or demo.pipeline.window is None:
        # Without windows a stream is judged from its beginning to its end.
        stack.stop_loads(demo.settings)
    report = LoadReport.read(report_path(demo.settings, topic))
    say(
        f"Sent {report.sent} rows: {report.late} late, {report.poison_total} unusable. "
        "Waiting for the stream to commit them."
    )
    _wait_committed(demo, report)
    verdict, replay = _replay(demo, report)
    demo.progress.measure_memory()
    summary = _summary(demo, report, verdict, replay)
    _print_table(demo, summary)
    _say_addresses(demo, verdict)
    return summary


def run_only(installation: Installation, running: Pipeline) -> None:
    """Run this pipeline and pause all others: a small machine has workers for one. Makes its topics."""
    settings = installation.settings
    for topic in running.topics:
        ensure_topic(settings.bootstrap_servers, topic.name)
    states = DesiredStates(installation.lease_table)
    for pipeline in installation.catalog.consumed():
        states.declare(pipeline, settings.workers)
        state = DesiredState.PAUSED
        if pipeline.name == running.name:
            state = DesiredState.RUNNING
        states.set_state(pipeline.name, state)


def unpause(demo: Demo, *dags: str) -> None:
    """Unpause the DAGs; waits until Airflow has parsed them."""
    token = airflow.login(demo.settings)
    for dag in dags:
        with demo.progress.waiting(f"Airflow to read the DAG {dag}", _PARSED_SECONDS) as wait:
            while problem := _refusal(demo.settings, dag, token):
                wait.poll(problem)
    demo.progress.say(f"Unpaused {', '.join(dags)}.")


def unpause_until_down(demo: Demo, *dags: str) -> None:
    """Unpause DAGs that start replays by themselves. Those that were paused are paused again after the
    demo.
    """
    token = airflow.login(demo.settings)
    unpaused: set[str] = set()
    path = "/api/v2/dags?paused=false&limit=1000"
    try:
        found = airflow.request(demo.settings.airflow_url, "GET", path, token=token)["dags"]
        unpaused = {dag["dag_id"] for dag in found}
    except ServiceError:
        pass  # Airflow is busy: then it is better to pause one DAG too many
    remember(demo.settings, [dag for dag in dags if dag not in unpaused])
    unpause(demo, *dags)


def _refusal(settings: Settings, dag: str, token: str) -> str:
    """Why the DAG could not be unpaused, e.g. because it is not parsed yet; empty once it is unpaused."""
    try:
        airflow.request(settings.airflow_url, "PATCH", f"/api/v2/dags/{dag}", {"is_paused": False}, token)
    except ServiceError as error:
        return str(error)
    return ""


def _wait_owned(demo: Demo) -> None:
    """Wait until every shard has an owner, and every worker has shards."""
    store = demo.installation.lease_table
    expected = demo.pipeline.shards
    with demo.progress.waiting("the workers to take all shards", _OWNED_SECONDS) as wait:
        shards = shard_leases(store.leases(), demo.pipeline.name)
        while not all_owned(shards, expected, demo.settings.workers):
            workers = Services(demo.settings.home).workers()
            running = sum(service.running for service in workers)
            owned = sum(bool(lease.lease_owner) for lease in shards)
            wait.poll(f"{running} workers run, {owned} of {expected} shards are owned")
            shards = shard_leases(store.leases(), demo.pipeline.name)
    owners = {lease.lease_owner for lease in shards}
    demo.progress.say(f"{len(shards)} shards are owned by {len(owners)} workers.")


def _stream(demo: Demo, seconds: float) -> None:
    """Stream for so long, kill a worker half-way, and measure how long its shards have no owner."""
    ledger = demo.installation.ledger
    path = report_path(demo.settings, demo.pipeline.source.name)
    end = time.monotonic() + seconds
    killed: Killed | None = None
    with demo.progress.waiting("the stream", seconds + _CAUGHT_UP_SECONDS) as wait:
        while True:
            left = end - time.monotonic()
            fails_over = killed is not None and demo.failover_seconds is None
            if left <= 0 and not fails_over:
                break
            batches = ledger.batches(demo.pipeline.name, demo.pipeline.version)
            if killed is None and left < seconds / 2:
                killed = _kill_a_worker(demo)
            elif killed is not None and demo.failover_seconds is None:
                demo.failover_seconds = killed.failover_seconds(batches)
            sent = _sent_rows(path)
            committed = sum(row.input_rows or 0 for row in batches)
            wait.poll(f"{max(left, 0):3.0f} s to go, {sent} rows sent, {committed} rows committed")
    if demo.failover_seconds is not None:
        demo.progress.say(f"Another owner committed its shards {demo.failover_seconds:.1f} s after the kill.")


def _kill_a_worker(demo: Demo) -> Killed | None:
    leases = demo.installation.lease_table.leases()
    killed = kill_an_owner(demo.settings, demo.pipeline.name, leases)
    if killed is not None:
        shards = ", ".join(killed.epochs)
        demo.progress.say(f"Killed (SIGKILL) the worker {killed.worker}, which had {shards}.")
    return killed


def _sent_rows(report: Path) -> int:
    if not report.exists():
        return 0
    return LoadReport.read(report).sent


def _wait_committed(demo: Demo, report: LoadReport) -> None:
    """Wait until the ledger has the report's end offsets, and the audit has filed the rows that those
    batches left out.
    """
    tables = demo.installation.tables
    ledger = demo.installation.ledger
    pipeline = demo.pipeline
    with demo.progress.waiting("the stream to commit what was sent", _CAUGHT_UP_SECONDS) as wait:
        while True:
            batches = ledger.batches(pipeline.name, pipeline.version)
            needed = covering_batches(batches, report.end_offsets)
            if needed is not None:
                break
            wait.poll("")
    with demo.progress.waiting("the audit of late and unusable rows", _CAUGHT_UP_SECONDS) as wait:
        while not _audited(tables, pipeline, needed):
            wait.poll("")
    demo.progress.say("All of it is committed and audited.")


def _audited(tables: ControlTables, pipeline: Pipeline, batches: Mapping[str, int]) -> bool:
    """Whether the audit has filed all rows up to these batches, shard to batch."""
    filed = filed_batches(tables, pipeline.name, batches)
    return all(filed[shard] >= batch for shard, batch in batches.items())


def _replay(demo: Demo, report: LoadReport) -> tuple[dict[str, Any], dict[str, Any]]:
    """Have Airflow replay the report's offsets; returns the verdict's row and the run's."""
    settings = demo.settings
    replay_dag = settings.dag_id("replay", demo.pipeline.name)
    validate_dag = settings.dag_id("validate", demo.pipeline.name)
    token = airflow.login(settings)
    unpause_until_down(demo, replay_dag, validate_dag)
    body = {"logical_date": None, "conf": _replay_conf(demo, report)}
    asked_at = datetime.now(UTC)
    path = f"/api/v2/dags/{replay_dag}/dagRuns"
    started = airflow.request(settings.airflow_url, "POST", path, body, token)
    dag_run = started["dag_run_id"]
    demo.progress.say(f"Airflow replays {report.sent} rows: the DAG {replay_dag}, run {dag_run}.")
    with demo.progress.waiting("the replay and its verdict", _STALLED_SECONDS) as wait:
        while True:
            verdict = _verdict(demo, report, asked_at)
            if verdict is not None:
                break
            _raise_if_failed(demo, token, replay_dag, asked_at, dag_run)
            _raise_if_failed(demo, token, validate_dag, asked_at)
            drivers = count_drivers(settings, token)
            wait.poll(drivers.text, drivers)
    rows = demo.installation.tables.rows(ControlTable.RUNS, [("run_id", "=", verdict["run_id"])])
    newest = max(rows, key=lambda row: row["finished_at"] or row["started_at"])
    return verdict, newest


def _replay_conf(demo: Demo, report: LoadReport) -> dict[str, Any]:
    """The values of the replay DAG's form. A partition that got no row has the range from 0 to 0."""
    start: dict[int, int] = {}
    for row in demo.installation.ledger.batches(demo.pipeline.name):
        start |= dict.fromkeys(row.end_offsets, 0)
    end = start | report.end_offsets
    start |= report.start_offsets
    return {"range": _BY_OFFSETS, "from_offsets": _as_json(start), "to_offsets": _as_json(end)}


def _as_json(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


@dataclass(frozen=True)
class Drivers:
    """The tasks of the drivers' pool, and how much the running ones have logged. A change of it is progress.

    ``text`` counts them in words; ``tasks`` has the values of ``_TASK_FIELDS`` for each.
    """

    text: str
    tasks: frozenset[tuple[Any, ...]]
    logged_bytes: int


def count_drivers(settings: Settings, token: str) -> Drivers:
    """What replays and verdicts do now: ours, and those that ours waits for."""
    states = "&".join(f"state={state}" for state in (*_IN_SLOT, *_BEFORE_SLOT))
    path = f"/api/v2/dags/~/dagRuns/~/taskInstances?pool={settings.spark_pool}&{states}&limit=100"
    try:
        tasks = airflow.request(settings.airflow_url, "GET", path, token=token)["task_instances"]
    except ServiceError:
        return Drivers("Airflow is busy", frozenset(), 0)
    running = 0
    logged_bytes = 0
    known = set()
    for task in tasks:
        known.add(tuple(task[name] for name in _TASK_FIELDS))
        if task["state"] in _IN_SLOT:
            running += 1
            logs = _run_logs(settings, task["dag_id"], task["dag_run_id"]) / f"task_id={task['task_id']}"
            logged_bytes += sum(file.stat().st_size for file in logs.rglob("*.log"))
    text = f"{running} replays or verdicts run, {len(tasks) - running} wait"
    return Drivers(text, frozenset(known), logged_bytes)


def _run_logs(settings: Settings, dag: str, dag_run: str) -> Path:
    return settings.logs_dir / "airflow" / f"dag_id={dag}" / f"run_id={dag_run}"


def _verdict(demo: Demo, report: LoadReport, since: datetime) -> dict[str, Any] | None:
    """The newest verdict on the report's offsets."""
    ours = [row for row in _verdicts(demo, since) if row["input_rows"] == report.sent]
    return max(ours, key=lambda row: row["judged_at"], default=None)


def _verdicts(demo: Demo, since: datetime) -> list[dict[str, Any]]:
    newer = [("pipeline", "=", demo.pipeline.name), ("judged_at", ">=", since)]
    return demo.installation.tables.rows(ControlTable.VERDICTS, newer)


def _raise_if_failed(demo: Demo, token: str, dag: str, since: datetime, dag_run: str = "") -> None:
    """:raises ServiceError: if this run of the DAG has failed, or without a run, any run that began since"""
    path = f"/api/v2/dags/{dag}/dagRuns?order_by=-run_after&limit=20"
    try:
        found = airflow.request(demo.settings.airflow_url, "GET", path, token=token)["dag_runs"]
    except ServiceError:
        return  # Airflow is busy; the next poll asks again
    for each in found:
        if dag_run:
            ours = each["dag_run_id"] == dag_run
        else:
            queued_at = each["queued_at"] or each["run_after"]
            ours = datetime.fromisoformat(queued_at) >= since
        if ours and each["state"] == _FAILED_RUN and not _verdicts(demo, since):
            log = _run_logs(demo.settings, dag, each["dag_run_id"])
            raise ServiceError(service=f"Airflow's DAG {dag}", problem="failed", log=log)


def _summary(
    demo: Demo, report: LoadReport, verdict: Mapping[str, Any], replay: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON object that the demo prints. ``replay`` is the run's row."""
    summary: dict[str, Any] = {"pipeline": demo.pipeline.name}
    for name in _OF_VERDICT:
        summary[name] = verdict[name]
    failed = json.loads(verdict["failed"] or "[]")
    summary["failed"] = "; ".join(failed)
    summary |= {
        "windows_needed": least_windows(demo.pipeline),
        "dead_letters_sent": report.poison_total,
        "rows_sent": report.sent,
        "late_rows_sent": report.late,
        "stream_rows_per_second": replay["stream_rows_per_second"],
        "stream_cpu_seconds": replay["stream_cpu_seconds"],
        "batch_rows_per_second": replay["rows_per_second"],
        "batch_cpu_seconds": replay["cpu_seconds"],
        "latency_p50_seconds": replay["latency_p50_seconds"],
        "latency_p95_seconds": replay["latency_p95_seconds"],
        "failover_seconds": demo.failover_seconds,
        "lease_seconds": demo.settings.lease_seconds,
        "worker_memory_mib": demo.progress.peak_worker_mib,
        "demo_memory_mib": demo.progress.peak_mib,
        "seconds_to_verdict": round(demo.progress.seconds, 1),
    }
    return summary


def _print_table(demo: Demo, summary: Mapping[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    outcome = "FAILED"
    if summary["passed"]:
        outcome = "passed"
    title = f"The verdict on {demo.pipeline.name}: {outcome}"
    table = Table(box=box.SIMPLE, show_header=False, title=title)
    for name, value in summary.items():
        if name in {"pipeline", "passed"} or value in (None, ""):
            continue
        text = str(value)
        if isinstance(value, float):
            text = f"{value:,.4g}"
        table.add_row(name.replace("_", " "), text)
    demo.progress.console.print(table)


def _say_addresses(demo: Demo, verdict: Mapping[str, Any]) -> None:
    settings = demo.settings
    passwords = airflow.password_file(settings)
    page = settings.home / "data_docs" / verdict["data_docs"]
    demo.progress.say(f"Airflow: {settings.airflow_url} (user {airflow.ADMIN}, password in {passwords})")
    demo.progress.say(f"Data Docs: {page.as_uri()}")


def least_windows(pipeline: Pipeline) -> int:
    """How many windows a passing demo has compared. If they are rare, two are cut by its own beginning and
    end.
    """
    if pipeline.window is None:
        return 0
    slide_seconds = pipeline.window.step.total_seconds()
    if slide_seconds <= 1:
        return LEAST_WINDOWS
    whole = int(LEAST_WINDOWS / slide_seconds) - 2
    return max(whole, 1)


def shard_leases(leases: list[Lease], pipeline: str) -> list[Lease]:
    """The leases of the pipeline's shards, without those that have ended."""
    found = []
    for lease in leases:
        of_shard = lease.stream_id == pipeline and lease.status_type is StatusType.SHARD
        if of_shard and lease.state != "TERMINATED":
            found.append(lease)
    return found


def all_owned(shards: list[Lease], expected: int, workers: int) -> bool:
    """Whether so many shards are there, each has an owner, and all of the workers own some.

    The first worker takes all shards and the others get theirs as they come. Load that is sent earlier would
    wait for the move.
    """
    owners = {lease.lease_owner for lease in shards}
    spread = len(owners) >= min(workers, expected)
    return len(shards) >= expected and "" not in owners and spread


def covering_batches(rows: list[LedgerRow], end_offsets: Mapping[int, int]) -> dict[str, int] | None:
    """For each shard, its first batch after which all its partitions have reached ``end_offsets``; None if
    some have not.
    """
    found: dict[str, int] = {}
    reached: set[int] = set()
    for row in rows:
        if row.shard not in found and _covers(row, end_offsets):
            found[row.shard] = row.batch
            reached |= row.end_offsets.keys()
    if not reached >= end_offsets.keys():
        return None
    return found


def _covers(row: LedgerRow, end_offsets: Mapping[int, int]) -> bool:
    ends = row.end_offsets.items()
    return all(offset >= end_offsets.get(partition, 0) for partition, offset in ends)


def _wait_down(settings: Settings) -> None:
    """Wait until another process has stopped everything."""
    services = Services(settings.home)
    while any(service.running for service in services.all()):
        time.sleep(_POLL_SECONDS)
