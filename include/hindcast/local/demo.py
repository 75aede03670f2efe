"""``hindcast demo``: everything once, from nothing to a verdict, as a user would do it by hand.

The load's account says exactly which offsets were sent. The demo waits until the stream has committed all of them, has Airflow
replay them, and takes the verdict from the control tables.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

from hindcast import catalog
from hindcast.control.desired import DesiredState, DesiredStates
from hindcast.control.events import Severity
from hindcast.control.lease_table import LeaseTable
from hindcast.control.leases import Lease, StatusType
from hindcast.control.ledger import Ledger, LedgerRow
from hindcast.control.schema import ControlTable
from hindcast.control.shards import app_id
from hindcast.control.tables import ControlTables
from hindcast.errors import HindcastError, ServiceError, VerdictFailedError
from hindcast.local import airflow, doctor, stack
from hindcast.local.failover import kill_an_owner
from hindcast.local.load import Account, account_path, ensure_topic
from hindcast.local.processes import Services
from hindcast.local.schedules import pause_remembered, remember
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings

if TYPE_CHECKING:
    from rich.status import Status

#: A verdict on fewer windows says little: so many where one begins each second, in proportion where they are rarer.
LEAST_WINDOWS = 200
_PARSED_SECONDS = 120.0  # Airflow reads the DAG files within some seconds of its start
_OWNED_SECONDS = 240.0  # `supervise` runs, two JVMs start, on a machine that may be busy
_CAUGHT_UP_SECONDS = 600.0  # on a busy machine the stream may be minutes behind the load
_STALLED_SECONDS = (
    600.0  # without any progress of a replay or verdict; one that goes on may take as long as it takes
)
_POLL_SECONDS = 1.0
_MEMORY_SECONDS = 10.0  # between two looks at the memory: each reads all of the processes' maps
#: The choice of ``replay.<pipeline>``'s form that takes offsets (hindcast.airflow.operators.RangeChoice.OFFSETS).
_BY_OFFSETS = "from offsets to offsets"
_FAILED_RUN = "failed"
#: States of a task that has a slot of its pool, and of one that waits for it.
_IN_SLOT = ("running", "queued")
_BEFORE_SLOT = ("scheduled", "deferred", "up_for_retry")


def run(
    settings: Settings, pipeline: str, *, once: bool, seconds: float, rows_per_second: float, seed: int
) -> None:
    """The whole demo. With ``once``, stops everything at its end and prints the summary as one JSON object, the last line of stdout.

    :param seconds: how long to stream before the verdict, from the moment all shards are owned
    :raises VerdictFailedError: where the verdict does not pass, or its counts are not those that were sent
    :raises HindcastError: where a part does not come up or does not answer in time
    """
    declared = catalog.load(settings.pipelines_dir)[pipeline]
    demo = Demo(settings, declared)
    try:
        with _interruptible():
            summary = demo.judge(seconds, rows_per_second, seed, stop_load=once)
            if not once:
                demo.say(
                    "Everything keeps running. Ctrl-C here, or `hindcast down` (`make down`) in another terminal, stops it."
                )
                print(json.dumps(summary), flush=True)
                check(summary)
                _wait_down(settings)
                return
    except KeyboardInterrupt:
        demo.say("Interrupted.")
        stack.down(settings, say=demo.say)
        raise
    except HindcastError:
        if not once:
            demo.say("The services keep running: look around, then `hindcast down` (`make down`).")
        raise
    finally:
        if once:
            stack.down(settings, say=demo.say)
    print(json.dumps(summary), flush=True)
    check(summary)


def check(summary: Mapping[str, Any]) -> None:
    """:raises VerdictFailedError: where the verdict did not pass, compared too little, or lost or found a dead letter"""
    failed = [] if summary["passed"] else [str(summary["failed"]) or "the verdict did not pass"]
    if summary["dead_letters"] != summary["dead_letters_sent"]:
        failed.append(
            f"{summary['dead_letters_sent']} unusable rows were sent and {summary['dead_letters']} are dead letters"
        )
    if summary["windows_compared"] < summary["windows_needed"]:
        failed.append(
            f"only {summary['windows_compared']} of {summary['windows_needed']} windows were compared: stream for longer (--seconds)"
        )
    if failed:
        named = {name: summary[name] for name in ("pipeline", "run_id", "unexplained", "captured")}
        raise VerdictFailedError(**named, failed="; ".join(failed))


@dataclass(frozen=True)
class Drivers:
    """The tasks of the drivers' pool, in words, one by one, and how much those that run have logged: a change of it is progress."""

    text: str
    tasks: frozenset[tuple[Any, ...]]
    logged_bytes: int


class Demo:
    """One demo of one pipeline."""

    def __init__(self, settings: Settings, pipeline: Pipeline) -> None:
        from rich.console import Console

        self.settings, self.pipeline = settings, pipeline
        self._console = Console(stderr=True, highlight=False)
        self._began = time.monotonic()
        self._since = datetime.now(UTC)
        self._memory_at = 0.0
        self._peak_mib = 0
        self._peak_worker_mib = 0
        self._failover_seconds: float | None = None

    def say(self, line: str) -> None:
        """One line of progress with the seconds since the start, on stderr."""
        self._console.print(f"[dim]{time.monotonic() - self._began:5.0f} s[/dim]  ", end="")
        self._console.print(line, markup=False, soft_wrap=True)

    def judge(self, seconds: float, rows_per_second: float, seed: int, *, stop_load: bool) -> dict[str, Any]:
        """Start, stream, replay, judge; returns the summary."""
        for warning in doctor.require(self.settings):
            self.say(f"{warning.what}: {warning.found}. {warning.cure}")
        topic = self.pipeline.source.name
        # The load begins when somebody reads: else the first batch would be all that was sent while Spark started.
        self.settings = stack.up(self.settings, topic=None, say=self.say)
        pause_remembered(self.settings, self.say)
        self._want_running()
        self._unpause("supervise", "maintain")
        self._wait_owned()
        stack.start_load(self.settings, topic, rows_per_second, seed)
        self.say(
            f"The load sends {rows_per_second:g} rows a second to the topic {topic}; streaming for {seconds:g} seconds."
        )
        self._stream(seconds)
        if (
            stop_load or self.pipeline.window is None
        ):  # without windows a stream is judged from its beginning to its end
            stack.stop_loads(self.settings)
        account = Account.read(account_path(self.settings, topic))
        self.say(
            f"Sent {account.sent} rows: {account.late} late, {account.poison_total} unusable. Waiting for the stream to commit them."
        )
        self._wait_committed(account)
        verdict, of_run = self._verdict(account)
        return self._summary(account, verdict, of_run)

    def _want_running(self) -> None:
        """This pipeline and no other: the workers of a small machine are its own."""
        for topic in self.pipeline.topics:
            ensure_topic(self.settings.bootstrap_servers, topic.name)
        states = DesiredStates(LeaseTable(self.settings))
        for pipeline in catalog.load(self.settings.pipelines_dir).values():
            states.declare(pipeline, self.settings.workers)
            states.set_state(
                pipeline.name,
                DesiredState.RUNNING if pipeline.name == self.pipeline.name else DesiredState.PAUSED,
            )

    def _unpause(self, *dags: str) -> None:
        token = airflow.login(self.settings)
        for dag in dags:
            with self._waiting(f"Airflow to read the DAG {dag}", _PARSED_SECONDS) as tick:
                while problem := self._refusal(dag, token):
                    tick(problem)
        self.say(f"Unpaused {', '.join(dags)}.")

    def _unpause_until_down(self, *dags: str) -> None:
        """Unpause DAGs that start replays by themselves; those that nobody had unpaused before are paused again after the demo."""
        token = airflow.login(self.settings)
        try:
            found = airflow.request(
                self.settings.airflow_url, "GET", "/api/v2/dags?paused=false&limit=1000", token=token
            )["dags"]
            running = {dag["dag_id"] for dag in found}
        except ServiceError:  # a busy one: rather pause one too many
            running = set()
        remember(self.settings, [dag for dag in dags if dag not in running])
        self._unpause(*dags)

    def _refusal(self, dag: str, token: str) -> str:
        """Why the DAG could not be unpaused, e.g. that it is not parsed yet; empty where it is."""
        try:
            airflow.request(
                self.settings.airflow_url, "PATCH", f"/api/v2/dags/{dag}", {"is_paused": False}, token
            )
        except ServiceError as error:
            return str(error)
        return ""

    def _wait_owned(self) -> None:
        """Until every shard has an owner and has committed a batch or reads already."""
        store = LeaseTable(self.settings)
        with self._waiting("the workers to take all shards", _OWNED_SECONDS) as tick:
            while True:
                shards = shard_leases(store.leases(), self.pipeline.name)
                owners = {lease.lease_owner for lease in shards}
                # The first worker takes all; the others are given theirs as they come. Load before that would wait for the move.
                if (
                    len(shards) >= self.pipeline.shards
                    and "" not in owners
                    and len(owners) >= min(self.settings.workers, self.pipeline.shards)
                ):
                    break
                workers = sum(service.running for service in Services(self.settings.home).workers())
                tick(
                    f"{workers} workers run, {sum(bool(lease.lease_owner) for lease in shards)} of {self.pipeline.shards} shards are owned"
                )
        self.say(f"{len(shards)} shards are owned by {len(owners)} workers.")

    def _stream(self, seconds: float) -> None:
        ledger, path = (
            Ledger(ControlTables(self.settings)),
            account_path(self.settings, self.pipeline.source.name),
        )
        began = time.monotonic()
        killed = None
        with self._waiting("the stream", seconds + _CAUGHT_UP_SECONDS) as tick:
            while (left := began + seconds - time.monotonic()) > 0 or (
                killed is not None and self._failover_seconds is None
            ):
                batches = ledger.batches(self.pipeline.name, self.pipeline.version)
                if killed is None and left < seconds / 2:
                    killed = kill_an_owner(
                        self.settings, self.pipeline.name, LeaseTable(self.settings).leases()
                    )
                    if killed is not None:
                        self.say(
                            f"Killed (SIGKILL) the worker {killed.worker}, which had {', '.join(killed.epochs)}."
                        )
                elif killed is not None and self._failover_seconds is None:
                    self._failover_seconds = killed.failover_seconds(batches)
                sent = Account.read(path).sent if path.exists() else 0
                read = sum(row.input_rows or 0 for row in batches)
                tick(f"{max(left, 0):3.0f} s to go, {sent} rows sent, {read} rows committed")
        if self._failover_seconds is not None:
            self.say(
                f"Its shards were committed again by another owner {self._failover_seconds:.1f} s after the kill."
            )

    def _wait_committed(self, account: Account) -> None:
        """Until the ledger has the account's end offsets, and the audit has filed what those batches left out."""
        ledger, tables = Ledger(ControlTables(self.settings)), ControlTables(self.settings)
        with self._waiting("the stream to commit what was sent", _CAUGHT_UP_SECONDS) as tick:
            while (
                needed := covering_batches(
                    ledger.batches(self.pipeline.name, self.pipeline.version), account.end_offsets
                )
            ) is None:
                tick("")
        with self._waiting("the audit of late and unusable rows", _CAUGHT_UP_SECONDS) as tick:
            while any(
                audited_batch(tables, name, self.pipeline, shard) < batch
                for name in _AUDITED
                for shard, batch in needed.items()
            ):
                tick("")
        self.say("All of it is committed and audited.")

    def _verdict(self, account: Account) -> tuple[dict[str, Any], dict[str, Any]]:
        """Have Airflow replay the account's offsets; returns the verdict's row and the run's."""
        token = airflow.login(self.settings)
        name = self.pipeline.name
        self._unpause_until_down(f"replay.{name}", f"validate.{name}")
        partitions = {
            partition
            for row in Ledger(ControlTables(self.settings)).batches(name)
            for partition in row.end_offsets
        }
        nothing = dict.fromkeys(
            sorted(partitions), 0
        )  # a partition that got no row has its end where it begins
        offsets = {
            "from_offsets": {**nothing, **account.start_offsets},
            "to_offsets": {**nothing, **account.end_offsets},
        }
        conf = {
            "range": _BY_OFFSETS,
            **{
                end: {str(number): offset for number, offset in places.items()}
                for end, places in offsets.items()
            },
        }
        asked = datetime.now(UTC)
        started = airflow.request(
            self.settings.airflow_url,
            "POST",
            f"/api/v2/dags/replay.{name}/dagRuns",
            {"logical_date": None, "conf": conf},
            token,
        )
        self.say(f"Airflow replays {account.sent} rows: the DAG replay.{name}, run {started['dag_run_id']}.")
        with self._waiting("the replay and its verdict", _STALLED_SECONDS) as tick:
            while (verdict := self._judged(asked, account)) is None:
                for dag in (f"replay.{name}", f"validate.{name}"):
                    self._raise_if_failed(
                        dag, token, started["dag_run_id"] if dag.startswith("replay") else "", asked
                    )
                drivers = self._drivers(token)
                tick(drivers.text, drivers)
        rows = ControlTables(self.settings).rows(ControlTable.RUNS, [("run_id", "=", verdict["run_id"])])
        return verdict, max(rows, key=lambda row: row["finished_at"] or row["started_at"])

    def _drivers(self, token: str) -> Drivers:
        """What replays and verdicts do, ours and those that ours waits behind."""
        states = "&".join(f"state={state}" for state in (*_IN_SLOT, *_BEFORE_SLOT))
        path = f"/api/v2/dags/~/dagRuns/~/taskInstances?pool={self.settings.spark_pool}&{states}&limit=100"
        try:
            tasks = airflow.request(self.settings.airflow_url, "GET", path, token=token)["task_instances"]
        except ServiceError:
            return Drivers("Airflow is busy", frozenset(), 0)
        logs = self.settings.logs_dir / "airflow"
        running = [task for task in tasks if task["state"] in _IN_SLOT]
        folders = [
            logs / f"dag_id={task['dag_id']}" / f"run_id={task['dag_run_id']}" / f"task_id={task['task_id']}"
            for task in running
        ]
        said = sum(file.stat().st_size for folder in folders for file in folder.rglob("*.log"))
        text = f"{len(running)} replays or verdicts run, {len(tasks) - len(running)} wait"
        known = ("dag_id", "dag_run_id", "task_id", "map_index", "try_number", "state")
        return Drivers(text, frozenset(tuple(task[name] for name in known) for task in tasks), said)

    def _judged(self, since: datetime, account: Account) -> dict[str, Any] | None:
        """The newest verdict on the account's offsets."""
        tables = ControlTables(self.settings)
        found = tables.rows(
            ControlTable.VERDICTS, [("pipeline", "=", self.pipeline.name), ("judged_at", ">=", since)]
        )
        ours = [row for row in found if row["input_rows"] == account.sent]
        return max(ours, key=lambda row: row["judged_at"], default=None)

    def _raise_if_failed(self, dag: str, token: str, run_id: str, since: datetime) -> None:
        """:raises ServiceError: where the DAG's run has failed, or a run of it that began since"""
        path = f"/api/v2/dags/{dag}/dagRuns?order_by=-run_after&limit=20"
        try:
            runs = airflow.request(self.settings.airflow_url, "GET", path, token=token)["dag_runs"]
        except ServiceError:
            return  # a busy one is asked again
        for found in runs:
            ours = (
                found["dag_run_id"] == run_id
                if run_id
                else datetime.fromisoformat(found["queued_at"] or found["run_after"]) >= since
            )
            if ours and found["state"] == _FAILED_RUN and self._nothing_judged(since):
                log = self.settings.logs_dir / "airflow" / f"dag_id={dag}" / f"run_id={found['dag_run_id']}"
                raise ServiceError(service=f"Airflow's DAG {dag}", problem="failed", log=log)

    def _nothing_judged(self, since: datetime) -> bool:
        tables = ControlTables(self.settings)
        return not tables.rows(
            ControlTable.VERDICTS, [("pipeline", "=", self.pipeline.name), ("judged_at", ">=", since)]
        )

    def _summary(self, account: Account, verdict: dict[str, Any], of_run: dict[str, Any]) -> dict[str, Any]:
        self._look_at_memory(force=True)
        taken = (
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
        summary: dict[str, Any] = {
            "pipeline": self.pipeline.name,
            **{name: verdict[name] for name in taken},
            "failed": "; ".join(json.loads(verdict["failed"] or "[]")),
            "windows_needed": least_windows(self.pipeline),
            "dead_letters_sent": account.poison_total,
            "rows_sent": account.sent,
            "late_rows_sent": account.late,
            "stream_rows_per_second": of_run["stream_rows_per_second"],
            "stream_cpu_seconds": of_run["stream_cpu_seconds"],
            "batch_rows_per_second": of_run["rows_per_second"],
            "batch_cpu_seconds": of_run["cpu_seconds"],
            "latency_p50_seconds": of_run["latency_p50_seconds"],
            "latency_p95_seconds": of_run["latency_p95_seconds"],
            "failover_seconds": self._failover_seconds,
            "lease_seconds": self.settings.lease_seconds,
            "worker_memory_mib": self._peak_worker_mib,
            "demo_memory_mib": self._peak_mib,
            "seconds_to_verdict": round(time.monotonic() - self._began, 1),
        }
        self._print(summary, verdict)
        return summary

    def _print(self, summary: Mapping[str, Any], verdict: Mapping[str, Any]) -> None:
        from rich import box
        from rich.table import Table

        table = Table(
            box=box.SIMPLE,
            show_header=False,
            title=f"The verdict on {self.pipeline.name}: {'passed' if summary['passed'] else 'FAILED'}",
        )
        for name, value in summary.items():
            if name not in {"pipeline", "passed"} and value not in (None, ""):
                table.add_row(
                    name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else str(value)
                )
        self._console.print(table)
        self.say(
            f"Airflow: {self.settings.airflow_url} (user {airflow.ADMIN}, password in {airflow.password_file(self.settings)})"
        )
        self.say(f"Data Docs: {(self.settings.home / 'data_docs' / verdict['data_docs']).as_uri()}")

    @contextmanager
    def _waiting(self, what: str, timeout_seconds: float) -> Iterator[Callable[..., None]]:
        """A spinner, and the function to call in each turn of a wait: it tells of new faults, and raises once the time is over.

        Its second argument, if any, is a sign of progress: the time begins anew whenever it has changed.
        """
        deadline = time.monotonic() + timeout_seconds
        seen: Hashable = None

        def tick(detail: str, sign: Hashable = None) -> None:
            nonlocal deadline, seen
            if sign != seen:
                deadline = time.monotonic() + timeout_seconds
            seen = sign
            self._tick(what, detail, deadline, timeout_seconds, spinner)

        with self._console.status(f"Waiting for {what}") as spinner:
            yield tick

    def _tick(self, what: str, detail: str, deadline: float, timeout_seconds: float, spinner: Status) -> None:
        if time.monotonic() >= deadline:
            problem = f"was waiting for {what} for {timeout_seconds:.0f} s in vain ({detail or 'no progress is known'})"
            raise ServiceError(
                service="The demo",
                problem=f"{problem}. `hindcast events` and `hindcast status` may say why",
                log=self.settings.logs_dir,
            )
        spinner.update(f"Waiting for {what}" + (f": {detail}" if detail else ""))
        self._tell_faults()
        self._look_at_memory()
        time.sleep(_POLL_SECONDS)

    def _tell_faults(self) -> None:
        found = ControlTables(self.settings).rows(
            ControlTable.EVENTS, [("severity", "=", Severity.ERROR.value), ("at", ">", self._since)]
        )
        for row in sorted(found, key=lambda row: row["at"]):
            self.say(f"{row['message']} {row['cure']}")
            self._since = row["at"]

    def _look_at_memory(self, *, force: bool = False) -> None:
        if not force and time.monotonic() - self._memory_at < _MEMORY_SECONDS:
            return
        self._memory_at = time.monotonic()
        found = {row["name"]: row["memory_mib"] for row in stack.status(self.settings)}
        workers = stack.worker_memory_mib(self.settings)
        self._peak_mib = max(self._peak_mib, sum(found.values()))
        self._peak_worker_mib = max(self._peak_worker_mib, *workers.values(), 0)


#: The tables that the audit files rows into, each with its own progress.
_AUDITED = (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS)


def least_windows(pipeline: Pipeline) -> int:
    """How many windows a passing demo has compared; where they are rare, its own beginning and end cut two of them."""
    slide_seconds = pipeline.window.step.total_seconds() if pipeline.window else float("inf")
    return (
        LEAST_WINDOWS
        if slide_seconds <= 1
        else max(int(pipeline.window is not None), int(LEAST_WINDOWS / slide_seconds) - 2)
    )


def shard_leases(leases: list[Lease], pipeline: str) -> list[Lease]:
    """The shards of the pipeline that are to be consumed."""
    return [
        lease
        for lease in leases
        if lease.stream_id == pipeline
        and lease.status_type is StatusType.SHARD
        and lease.state != "TERMINATED"
    ]


def covering_batches(rows: list[LedgerRow], end_offsets: Mapping[int, int]) -> dict[str, int] | None:
    """For each shard, its first batch after which all its partitions have reached ``end_offsets``; None where not all have."""
    found: dict[str, int] = {}
    reached: set[int] = set()
    for row in rows:
        if row.shard not in found and all(
            offset >= end_offsets.get(partition, 0) for partition, offset in row.end_offsets.items()
        ):
            found[row.shard] = row.batch
            reached |= row.end_offsets.keys()
    return found if reached >= end_offsets.keys() else None


def audited_batch(tables: ControlTables, name: ControlTable, pipeline: Pipeline, shard: str) -> int:
    """Up to which batch the audit has filed the shard's rows into the table; 0 where it has not begun. See hindcast.stream.audit."""
    version = tables.open(name).transaction_version(app_id(pipeline.name, shard))
    return (version or 0) & 0xFFFFFFFF


def _wait_down(settings: Settings) -> None:
    """Until somebody else has stopped everything."""
    while any(service.running for service in Services(settings.home).all()):
        time.sleep(_POLL_SECONDS)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a demo as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    kept = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)
