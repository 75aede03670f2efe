"""A world: a topic that grows, one pipeline on it, its tables, and processes that come, stall and are
killed.
"""

from __future__ import annotations

import atexit
import itertools
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import tenacity
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from protocols.corrected_view import CorrectedView, stepped_write
from protocols.history import BrokenPromiseError, SinkHistory
from protocols.memory_tables import MemoryTables
from protocols.owner import Owner
from protocols.scheduler import Order, Process, Scheduler, Thread
from protocols.side_tables import Batch, Rows, dead_rows, delete_after, filed_rows, late_rows, unaccounted
from protocols.simulated_spark import SimulatedSpark, StandInCheckpoint, StandInFrame, signature_of
from protocols.stepped_stores import (
    SIDE_LINK,
    SINK_LINK,
    SteppedHandle,
    SteppedLeases,
    SteppedLinks,
    SteppedLog,
)
from protocols.topic import DELAY_MS, WINDOW_MS, Topic
from structlog.testing import capture_logs

from hindcast import Mode, Table, Window, pipeline
from hindcast import Topic as DeclaredTopic
from hindcast.delta import application_log, older_log
from hindcast.delta.open_table import create_table
from hindcast.errors import HindcastError, RewindRefusedError, StoreUnavailableError
from hindcast.leases import store
from hindcast.leases.lease import Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import Snapshot, swap
from hindcast.recovery import abandon_rewind, delete_late_and_dead_rows, plan_rewind, rewind, takeover
from hindcast.recovery.begun_rewind import find_begun
from hindcast.recovery.delete_late_and_dead_rows import last_filed_batch
from hindcast.recovery.plan_rewind import make_plan
from hindcast.replay import inputs
from hindcast.serving import corrected_windows
from hindcast.serving.corrected_windows import CorrectedRange, Corrections
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState, row_of
from hindcast.shards.shard_row import ShardDetail
from hindcast.stream import batch_commits, late_and_dead_rows, shard_takeover
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.tables import compaction, fenced_sink, ledger_bases, retention
from hindcast.tables.event_log import EventLog
from hindcast.tables.fenced_sink import sink_end
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.ledger_bases import LedgerBases, fenced_by
from hindcast.tables.ledger_history import History
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock

PARTITIONS = 4
MOST_PARTITIONS = 8
#: The fenced tables beside the sink.
SIDE_TABLES = (ControlTable.LATE_ROWS, ControlTable.DEAD_LETTERS)
#: Where the upkeep is about to commit files that it has joined.
JOIN = "the commit of joined files"
#: The sink's log is cut to so many simulated hours, the fewest that the setting allows.
LOG_HOURS = 1.0
#: Versions of the sink between two checkpoints of its log.
CHECKPOINT_EVERY = 8
#: Rounds after which a world without faults must be at rest.
ROUNDS = 40_000


@pipeline(
    source=DeclaredTopic("records", schema="at timestamp"),
    event_time="at",
    watermark=f"{DELAY_MS} milliseconds",
    window=Window(f"{WINDOW_MS} milliseconds"),
    sink=Table("windows", mode=Mode.APPEND, keys=["window"]),
    version=1,
)
def counted(frame: Any) -> Any:
    """Never run: the simulation counts."""
    return frame


class World:
    """Everything, and what may happen to it."""

    def __init__(self, seed: str, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler()
        self.clock = FakeClock(started_at=datetime.now(UTC))
        self.topic = Topic(dict.fromkeys(range(PARTITIONS), 0))
        self.spark = SimulatedSpark(self.scheduler, self.topic, self.rng)
        self.leases = SteppedLeases(self.scheduler)
        self.settings = Settings(home=folder, sink_log_hours=LOG_HOURS)
        self.tables = MemoryTables(self.scheduler, lambda name: self.settings.table("control", name))
        self.pipeline = counted
        self.installation: Any = SimpleNamespace(
            settings=self.settings,
            ledger=Ledger(self.tables),  # type: ignore[arg-type]
            tables=self.tables,
            lease_table=self.leases,
            event_log=EventLog(self.tables),  # type: ignore[arg-type]
        )
        self.desired = DesiredStates(self.leases)
        self.rebuilt_share = 0.15
        self.errors: list[str] = []
        #: How often what has happened.
        self.seen: Counter[str] = Counter()
        self._names = itertools.count(1)
        shards = self.rng.choice((1, 2, 2))
        self.desired.declare(counted, workers=1)
        resharding.create(self.leases, counted.name, 1, shards, dict.fromkeys(self.topic.ends, 0))
        self.url = self.settings.table("sinks", "windows")
        for table in (self.url, *map(self.tables.url, SIDE_TABLES)):
            shutil.copytree(_empty_table(), table)
        self.sink = SinkHistory(Path(self.url), self.spark.files)
        self.corrected = CorrectedView(Corrections(self.settings, counted))

    # -- what can happen -------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Some thread takes its next step."""
        waiting = self.scheduler.waiting()
        if not waiting:
            self.take_over()
            return
        thread = self.rng.choice(waiting)
        self._step(thread, self._order(thread))

    def _order(self, thread: Thread) -> Order:
        """How the call ends at whose place the thread waits: now and then badly, and more often in the sink."""
        well = 85 if thread.place.startswith("sink") else 197
        return self.rng.choices((Order.GO, Order.FAIL, Order.LOSE_THE_ANSWER), (well, 4, 4))[0]

    def run_one(self) -> None:
        """One thread takes many steps, while all others stand still."""
        waiting = self.scheduler.waiting()
        if not waiting:
            return
        thread = self.rng.choice(waiting)
        for _ in range(self.rng.randint(2, 60)):
            if thread.ended:
                return
            self._step(thread, self._order(thread))

    def kill(self) -> None:
        """A process dies where it is."""
        if not self.scheduler.processes:
            return
        process = self.rng.choice(self.scheduler.processes)
        if any(thread.place.startswith("sink") for thread in process.threads):
            self.seen["a process killed in a commit"] += 1
        self.scheduler.kill(process)

    def take_over(self) -> None:
        """A new process takes some shard, whatever its owner does."""
        self._start_owner(self.rng.choice(list(self._shards())))

    def expire(self, most: int = 1) -> None:
        """Some leases are taken for expired, and freed. Their owners go on: they do not know."""

        def freed(snapshot: Snapshot) -> list[Lease]:
            held = [lease for lease in snapshot.leases.values() if lease.lease_owner]
            return [lease.given_to("") for lease in held[:most]]

        swap(self.leases, freed)

    def sleep(self) -> None:
        """A process stands still where it is, while others go on."""
        if not self.scheduler.processes:
            return
        in_sink = [
            process
            for process in self.scheduler.processes
            if any(thread.place.startswith("sink") for thread in process.threads)
        ]
        process = self.rng.choice(in_sink or self.scheduler.processes)
        process.asleep = self.rng.randint(5, 100)

    def sleep_through_a_cut(self) -> None:
        """A process stands still right before its commit gets its name. Meanwhile others commit for hours, and
        the log is cut.
        """
        process = self._about_to_commit(SINK_LINK)
        if process is None:
            return
        process.asleep = ROUNDS
        for _ in range(3):
            self.grow()
            self.take_over()
            for _ in range(200):
                self.resume()
            self.clock.advance(2.0 * 3600)
        self._wake(process)

    def sleep_through_a_rewind(self) -> None:
        """A process stands still right before its commit gets its name, and is taken for dead. Meanwhile the
        pipeline is rewound.
        """
        process = self._about_to_commit(SINK_LINK)
        if process is None:
            return
        for other in self.scheduler.processes:
            if other is not process:
                self.scheduler.kill(other)
        process.asleep = ROUNDS
        self.expire(PARTITIONS)
        self.rewind()
        self._run_until_ended(self.scheduler.processes[-1])
        self._wake(process)

    def sleep_in_an_audit_through_a_rewind(self) -> None:
        """A process that was asked to give its shard up stands still right before it files its last late rows,
        and is taken for dead. Meanwhile the pipeline is rewound.
        """
        self.grow()
        self.rewind()
        operator = self.scheduler.processes[-1]
        process = self._about_to_commit(SIDE_LINK)
        if process is None or process is operator:
            return
        process.asleep = ROUNDS
        self.expire(MOST_PARTITIONS)
        self._run_until_ended(operator)
        self._wake(process)

    def sleep_in_the_upkeep(self) -> None:
        """The upkeep stands still right before it commits files that it has joined. Meanwhile the pipeline is
        rewound, or another upkeep joins files.
        """
        self.maintain()
        process = self._about_to_commit(JOIN)
        if process is None:
            return
        process.asleep = ROUNDS
        if self.rng.random() < 0.5:
            for other in self.scheduler.processes:
                if other is not process:
                    self.scheduler.kill(other)
            self.expire(MOST_PARTITIONS)
            self.rewind()
        else:
            self.maintain()
        self._run_until_ended(self.scheduler.processes[-1])
        self._wake(process)

    def _about_to_commit(self, place: str) -> Process | None:
        """A process that is about to give a commit its name, if one comes there soon."""
        for _ in range(300):
            waiting = self.scheduler.waiting()
            for thread in waiting:
                if thread.place == place:
                    return thread.process
            if not waiting:
                self.take_over()
                continue
            self._step(self.rng.choice(waiting), Order.GO)
        return None

    def _run_until_ended(self, process: Process) -> None:
        """All go on until this process has ended, or for long."""
        for _ in range(600):
            if process.ended or not self._go_on():
                return

    def _go_on(self) -> bool:
        """Some thread takes its next step, which does not fail; false if none can."""
        waiting = self.scheduler.waiting()
        if not waiting:
            return False
        self._step(self.rng.choice(waiting), Order.GO)
        return True

    def _wake(self, process: Process) -> None:
        """The process alone goes on for a while."""
        process.asleep = 0
        for _ in range(100):
            awake = [thread for thread in process.threads if not thread.ended]
            if process.dead or not awake:
                return
            self._step(self.rng.choice(awake), Order.GO)

    def grow(self) -> None:
        """Records arrive."""
        for partition in self.topic.ends:
            self.topic.ends[partition] += self.rng.randint(0, 8)

    def pass_time(self) -> None:
        self.clock.advance(self.rng.choice((1.0, 5.0, 30.0, 130.0, 4000.0)))

    def reshard(self) -> None:
        """An operator wants another number of shards."""
        shards = self.rng.choice((1, 2, 4))
        start = dict.fromkeys(self.topic.ends, 0)
        self._begin("operator", lambda: resharding.reshard(self.leases, counted.name, 1, shards, start))

    def grow_topic(self) -> None:
        """The topic gets two more partitions, and a worker that sees it deals them out."""
        first = len(self.topic.ends)
        if first < MOST_PARTITIONS:
            self.topic.ends.update({first: 0, first + 1: 0})
        self._begin("a worker", self._deal_out)

    def _deal_out(self) -> None:
        shards = len(resharding.newest_of_version(self.leases.read().leases.values(), counted.name, 1))
        resharding.reshard(self.leases, counted.name, 1, shards, dict.fromkeys(self.topic.ends, 0))

    def maintain(self) -> None:
        """The upkeep files what only the sink's log knows, cuts the log, and keeps a base of the older
        batches.
        """
        handle: Any = SteppedHandle(self.url, self.scheduler, self.wall)
        ledger = self.installation.ledger
        bases = LedgerBases(self.tables)  # type: ignore[arg-type]
        before = self.clock.now() - timedelta(seconds=self.rng.choice((0, 20)))
        fenced = fenced_by(self.url, {}, counted.name, 1)

        def keep() -> None:
            retention._file_join_and_shorten(
                handle, ledger=ledger, url=self.url, storage_options={}, log_hours=LOG_HOURS
            )
            bases.keep_older(counted.name, 1, fenced, before)

        self._begin("maintain", keep)

    def join_files(self) -> None:
        """The upkeep joins some of the sink's files: their rows are read and written before the commit.

        :raises StoreUnavailableError: if another has replaced files meanwhile
        """
        self.scheduler.pause("files to join")
        table = DeltaTable(self.url)
        paths = sorted(pa.table(table.get_add_actions())["path"].to_pylist())
        if len(paths) < 2:
            return
        chosen = self.rng.sample(paths, self.rng.randint(2, min(len(paths), 4)))
        joined = f"joined-{len(self.spark.files)}.parquet"
        self.spark.files[joined] = [row for path in chosen for row in self.spark.files[path]]
        Path(self.url, joined).write_bytes(b"x")
        self.scheduler.pause(JOIN)
        stats = json.dumps({"numRecords": len(self.spark.files[joined])})
        try:
            compaction.replace_files(table, chosen, joined, 1, stats, data_change=False)
        except (CommitFailedError, DeltaError) as error:
            raise StoreUnavailableError(table=self.url, action="joined", reason=error) from error

    def plan(self) -> None:
        """Somebody reads the stream's past, while it goes on."""

        def read() -> None:
            ledger = inputs.read_ledger(self.installation, counted)
            for history in ledger.histories():
                self.scheduler.pause("a plan reads the sink")
                sink = sink_end(self.url, {})
                assert sink is not None
                inputs.check_not_rewound(self.installation, counted, ledger)
                unknown = inputs.unknown_commits(self.settings, counted, sink, ledger.reached())
                self.sink.look()
                self.sink.check_past(history, sink.version, unknown)

        self._begin("plan", read)

    def plan_slowly(self) -> None:
        """Somebody reads the stream's past, and before each step of that others go on, or rewind it."""
        self.plan()
        process = self.scheduler.processes[-1]
        for _ in range(100):
            awake = [thread for thread in process.threads if not thread.ended]
            if process.dead or not awake:
                return
            process.asleep = ROUNDS
            if self.rng.random() < 0.05:
                self.rewind()
                self._run_until_ended(self.scheduler.processes[-1])
            for _ in range(self.rng.randint(0, 20)):
                self.resume()
            process.asleep = 0
            self._step(awake[0], Order.GO)

    def wall(self) -> float:
        """The simulated wall clock, in seconds since 1970."""
        return self.clock.now().timestamp()

    def correct(self) -> None:
        """Replays read the records of some closed windows, and readers get their answers for them. Each begins
        once the stream has gone on a little, and any of them may be the last to answer.
        """
        replays: list[Process] = []
        for _ in range(self.rng.randint(2, 5)):
            self._begin("correct", self._correct)
            replays.append(self.scheduler.processes[-1])
            self._step_some(replays, self.rng.randint(0, 4))
            for replay in replays:
                replay.asleep = ROUNDS
            for _ in range(self.rng.randint(0, 60)):
                self.resume()
        self._step_some(replays, 100)
        for replay in replays:
            replay.asleep = 0

    def _step_some(self, processes: Sequence[Process], steps: int) -> None:
        """These processes alone take so many steps."""
        for _ in range(steps):
            awake = [thread for one in processes for thread in one.threads if not thread.ended]
            if not awake:
                return
            thread = self.rng.choice(awake)
            self._step(thread, self._order(thread))

    def _correct(self) -> None:
        history = History.of(self.installation.ledger.batches(counted.name, 1))
        end = history.committed
        if not end:
            return
        to_ms = history.horizon_ms(end, sorted(end)) - self.rng.choice((0, 0, 2, 4)) * WINDOW_MS
        after_ms = max(to_ms - self.rng.choice((1, 2, 12)) * WINDOW_MS, 0)
        if after_ms >= to_ms:
            return
        by = CorrectedRange(after_ms, to_ms, f"run-{len(self.corrected.runs)}", end)
        self.corrected.runs[by.run_id] = by
        self.scheduler.pause("a replay")
        for _ in range(3):
            try:
                self.corrected.table.replace(self.corrected.rows_of(by), by)
            except StoreUnavailableError:
                continue  # a person tries again
            self.seen["a correction"] += 1
            return

    def rewind(self) -> None:
        """An operator pauses the pipeline, takes back what some batches have written, and resumes it."""
        self._begin("operator", self._rewind)

    def _rewind(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            try:
                self.desired.set_state(counted.name, DesiredState.PAUSED)
                self._wait_until_still()
                self._rewind_once()
            except StoreUnavailableError:
                continue  # a person tries again, or goes home
            break
        self.desired.set_state(counted.name, DesiredState.RUNNING)

    def cut_a_rewind_short(self) -> None:
        """The operator's process dies at some step of a rewind; another one completes it, or calls it off."""
        self.rewind()
        process = self.scheduler.processes[-1]
        step = self.rng.choice(("reset.2", "reset.2", "reset.3", "reset.4", "reset.5"))
        for _ in range(1000):
            if any(thread.place == step for thread in process.threads):
                self.scheduler.kill(process)
                self._begin("operator", self.rng.choice((self._complete, self._call_off)))
                return
            if process.ended or not self._go_on():
                return

    def _complete(self) -> None:
        rewind.complete(self.installation, counted)

    def _call_off(self) -> None:
        abandon_rewind.abandon(self.installation, counted, by="an operator", reason="")

    def _wait_until_still(self) -> None:
        for _ in range(100):
            self.scheduler.pause("waiting for a still pipeline")
            if not any(lease.lease_owner for lease in self._shards().values()):
                return

    def _rewind_once(self) -> None:
        target = None
        if self.rng.random() < 0.8:
            committed = History.of(self.installation.ledger.batches(counted.name, 1)).committed
            target = {partition: self.rng.randint(0, end) for partition, end in committed.items()}
        if find_begun(self.leases, counted.name) is None:
            plan = make_plan(self.installation, counted, target)
            rewind.run(self.installation, counted, plan, by="an operator", reason="")
        elif self.rng.random() < 0.3:
            self._complete()
        else:
            self._call_off()

    def _begin(self, name: str, act: Callable[[], object]) -> None:
        """A process that does one thing."""
        process = self.scheduler.process(f"{name}-{next(self._names)}")

        def run() -> None:
            try:
                act()
            except HindcastError as error:
                self.said(process, error)

        self.scheduler.thread(process, run)

    # -- the end ---------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No fault any more: whoever is there goes on, dead owners are replaced, and the world comes to rest
        at the topic's end.
        """
        self.rebuilt_share = 0.0
        self._kill_all()
        try:
            self._complete()
        except RewindRefusedError:
            self._call_off()  # that has begun
        self.sink.look()
        self.desired.set_state(counted.name, DesiredState.RUNNING)
        for number in range(ROUNDS):
            if number % 50 == 0 and self._at_rest():
                break
            if number % 200 == 0:
                self._replace_owners()
            self._go_on()
        else:
            raise BrokenPromiseError(
                f"I6: the world does not come to rest: {self.errors[-3:]}, {self.sink.reached}"
            )

    def _kill_all(self) -> None:
        for process in self.scheduler.processes:
            self.scheduler.kill(process)
        self.scheduler.processes = []

    def _replace_owners(self) -> None:
        swap(self.leases, lambda snapshot: resharding.opened(snapshot.leases))
        dealt = {
            partition for lease in self._shards().values() for partition in ShardDetail.of(lease).partitions
        }
        if dealt != self.topic.ends.keys():
            self._deal_out()
        owners = {process.name for process in self.scheduler.processes}
        for key, lease in self._shards().items():
            if lease.state in {ShardState.WAIT, ShardState.TERMINATED}:
                continue
            if lease.lease_owner not in owners:
                self._start_owner(key)

    def _at_rest(self) -> bool:
        return self.sink.reached == self.topic.ends and self._all_in_ledger() and self._all_filed()

    def _all_filed(self) -> bool:
        """Whether the late rows of each shard's last batch are filed."""
        last = {landed.shard: landed.batch for landed in self.sink.kept}
        return all(
            last_filed_batch(self.installation, counted.name, shard) >= batch for shard, batch in last.items()
        )

    def _all_in_ledger(self) -> bool:
        known = {(row.shard, row.batch) for row in self.installation.ledger.batches(counted.name, 1)}
        return all((landed.shard, landed.batch) in known for landed in self.sink.kept)

    def note_ways(self) -> None:
        """Count what the history did, by what it has left."""
        kinds = self.sink.kinds
        shards = {landed.shard for landed in self.sink.kept}
        late = filed_rows(self.tables.url(ControlTable.LATE_ROWS), self.spark)
        self.seen["a batch"] += kinds["batch"]
        self.seen["a rewind"] += kinds["reset"]
        self.seen["a topic that grew"] += len(self.topic.ends) > PARTITIONS
        self.seen["a look at the past"] += kinds["past"]
        self.seen["a rewind called off"] += kinds["reset-abandoned"]
        self.seen["a rebuilt state"] += sum(1 for url in self.spark.folders if ".r" in url)
        self.seen["a generation of shards"] += len({shard.split(".")[1] for shard in shards}) - 1
        self.seen["files that were joined"] += kinds["joined files"]
        self.seen["a log that was cut"] += Path(self.url, "_older").exists()
        self.seen["a base of the ledger"] += len(self.tables.rows(ControlTable.LEDGER_BASES))
        self.seen["a late row"] += len(late)
        self.seen["a record that raises"] += len(self.sink.dead())

    # -- within ----------------------------------------------------------------------------------------------

    def paused(self, snapshot: Snapshot) -> bool:
        row = row_of(snapshot.leases, counted.name)
        return row is not None and row.state is DesiredState.PAUSED

    def lives(self, name: str) -> bool:
        """Whether a process of this name goes on."""
        return any(process.name == name and not process.ended for process in self.scheduler.processes)

    def said(self, process: Process, error: HindcastError) -> None:
        """A process has ended with an error, as a worker would report it."""
        self.errors.append(f"{process.name}: {type(error).__name__}: {error}")

    def _shards(self) -> dict[LeaseKey, Lease]:
        leases = self.leases.read().leases
        return {key: lease for key, lease in leases.items() if lease.status_type is StatusType.SHARD}

    def _start_owner(self, key: LeaseKey) -> None:
        process = self.scheduler.process(f"worker-{next(self._names)}")
        self.scheduler.thread(process, Owner(self, process, key).run)

    def _step(self, thread: Thread, order: Order) -> None:
        if thread.place == "sink commit" and order is Order.FAIL:
            self.seen["a commit that failed"] += 1
        if thread.place == "sink commit, done" and order is Order.LOSE_THE_ANSWER:
            self.seen["a commit that lost its answer"] += 1
        self.scheduler.resume(thread, order)
        self.clock.advance(0.05)
        self.sink.look()
        if thread.place.startswith("corrections"):
            self.corrected.look()


def _in_memory() -> Path:
    """A new folder, on a disk in memory if this machine has one."""
    in_memory = Path("/dev/shm")  # noqa: S108 - a disk, and the folder's name is random
    root = str(in_memory) if in_memory.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="hindcast-protocols-", dir=root))


@cache
def _empty_table() -> Path:
    """A table without a row, to be copied."""
    folder = _in_memory()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    schema = signature_of(None, counted).schema
    configuration = {"delta.checkpointInterval": str(CHECKPOINT_EVERY)}
    create_table(str(folder), schema, {}, "", configuration=configuration)
    return folder


@contextmanager
def world(seed: str) -> Iterator[World]:
    """A world on a disk in memory, in which the product's protocols run unchanged over stand-ins of Spark and
    Kafka.
    """
    folder = _in_memory()
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        made = World(seed, folder)
        try:
            _stand_in(patch, made)
            yield made
        finally:
            made._kill_all()
            shutil.rmtree(folder, ignore_errors=True)


def _stand_in_for_audits(patch: pytest.MonkeyPatch, made: World) -> None:
    def read(_: Audit, batches: Sequence[LedgerRow]) -> Rows:
        made.scheduler.pause("an audit reads the topic")
        return unaccounted(batches)

    def deleted(_tables: Any, name: ControlTable, _pipeline: str, shard: str, kept: int) -> None:
        made.scheduler.pause("the deletion of late and dead rows")
        delete_after(made.tables.url(name), made.spark, shard, kept)

    patch.setattr(Audit, "_unaccounted", read)
    patch.setattr(late_and_dead_rows, "F", SimpleNamespace(col=lambda _: Batch()))
    patch.setattr(late_and_dead_rows, "session", SimpleNamespace(cached=nullcontext))
    patch.setattr(late_and_dead_rows, "late_rows", lambda rows, _: late_rows(rows))
    patch.setattr(late_and_dead_rows, "dead_letters", lambda rows, _: dead_rows(rows))
    patch.setattr(late_and_dead_rows, "_as_table", lambda rows, *_: rows)
    patch.setattr(late_and_dead_rows, "parquet_writer", SimpleNamespace(write_files=made.spark.write_files))
    patch.setattr(delete_late_and_dead_rows, "_delete_after", deleted)


def _stand_in(patch: pytest.MonkeyPatch, made: World) -> None:
    """Put the stand-ins in the places of what they stand for."""
    clock = SimpleNamespace(monotonic=made.clock.monotonic, time=made.wall)

    def log(url: str, storage_options: dict[str, str], app: str) -> SteppedLog:
        stepped = SteppedLog(url, storage_options, app)
        stepped.scheduler = made.scheduler
        stepped.now = made.wall
        return stepped

    def nap(seconds: float) -> None:
        made.scheduler.pause("a retry")
        made.clock.advance(seconds)

    patch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=nap))
    patch.setattr(store, "time", SimpleNamespace(sleep=nap))
    patch.setattr(fenced_sink, "application_log", log)
    patch.setattr(fenced_sink, "_SHORTEN_EVERY", 5)
    patch.setattr(application_log, "os", SteppedLinks(made.scheduler, SINK_LINK))
    patch.setattr(older_log, "os", SteppedLinks(made.scheduler, "a link of the older log"))
    patch.setattr(retention, "compact", lambda *_: made.join_files())
    patch.setattr(application_log, "time", clock)
    patch.setattr(older_log, "time", clock)
    patch.setattr(corrected_windows, "write_deltalake", stepped_write(made.scheduler))
    for module in (takeover, fenced_sink, batch_commits, shard_takeover, rewind, abandon_rewind):
        patch.setattr(module, "reach", made.scheduler.pause)
    patch.setattr(plan_rewind, "TopicOffsets", lambda _: nullcontext())
    patch.setattr(plan_rewind, "held_records", lambda *_: made.topic.held())
    _stand_in_for_audits(patch, made)
    patch.setattr(ledger_bases, "LEAST_BATCHES", 3)
    patch.setattr(ledger_bases, "PART", 20)
    patch.setattr(ledger_bases, "KEPT", 3)
    patch.setattr(shard_takeover, "query_signature", SimpleNamespace(signature_of=signature_of))
    patch.setattr(shard_takeover, "SparkCheckpoint", StandInCheckpoint)
    patch.setattr(shard_takeover, "QueryFrame", StandInFrame)
    patch.setattr(shard_takeover, "copy_before", lambda spark, *places: spark.copy_before(*places))
    patch.setattr(shard_takeover, "session", SimpleNamespace(keep_state_for=lambda *_: None))
    patch.setattr(shard_takeover.ShardTakeover, "_held_records", lambda *_: made.topic.held())
    patch.setattr(
        batch_commits,
        "parquet_writer",
        SimpleNamespace(write_files=made.spark.write_files, run=made.spark.run),
    )
