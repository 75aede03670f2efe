"""One installation of Hindcast as an object: ``from hindcast import Hindcast``.

Commands, Airflow's tasks and the programs of ``hindcast.apps`` call it, and so may a notebook or a script::

    hindcast = Hindcast()
    hindcast.leases()
    stock_stats = hindcast.pipeline("stock_stats")
    verdict = stock_stats.validate(everything=True)
    stock_stats.read().pandas()

Heavy libraries (Spark, Great Expectations, delta-rs) are imported by the method that needs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from hindcast.errors import BadInputError, ForeignStreamError, ReshardRefusedError, StoreUnavailableError
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline, Policy, check, check_name
from hindcast.replay.request import RangeFields, ReplayRequest, new_run_id
from hindcast.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hindcast.foreign.adopt import Adopted, Found
    from hindcast.foreign.record import Recorded
    from hindcast.kafka.lag import ShardLag
    from hindcast.leases.lease import Lease
    from hindcast.recovery.plan_rewind import RewindPlan
    from hindcast.recovery.rewind_record import BegunRecord
    from hindcast.replay.planner import ReplayPlan
    from hindcast.replay.run_replay import Replayed
    from hindcast.replay.run_table import Runs
    from hindcast.serving.reading import Reading
    from hindcast.serving.served_table import Published
    from hindcast.shards.desired_state import DesiredStates
    from hindcast.shards.pipeline_row import PipelineRow

#: One row of a control table: column -> value.
Row = dict[str, Any]

_T = TypeVar("_T")

#: A vacuum may delete a file after a version was opened and before it is read; the next version has its rows.
_ATTEMPTS = 3
#: Up to so many records, a replay and its verdict run with the JVM's quick compiler alone. For 1,500 records
#: they use 29 seconds of CPU with it, and 52 with both: the JVM ends before the slow compiler's work pays.
#: The bound is a choice: from how many records on the slow compiler pays was not measured.
FEW_RECORDS = 100_000


class Hindcast(Installation):
    """One installation, and all that can be done with it.

    Pipelines are loaded once, at their first use; make a new object to load them again. Reads see the newest
    version of a table each time, and may run beside workers. What was never written is empty, and reading it
    makes no table.

    :param settings: those of this process by default: ``HINDCAST_*`` variables, then
        ``HINDCAST_HOME/settings.json``
    :param spark: the session that replays use, with Delta's and Kafka's jars; by default one is built at
        first need
    :raises SettingsRefusedError: if a setting of this process is wrong
    """

    def __init__(self, settings: Settings | None = None, spark: SparkSession | None = None) -> None:
        super().__init__(settings)
        self._spark = spark

    @cached_property
    def run_table(self) -> Runs:
        """The replays."""
        from hindcast.replay.run_table import Runs

        return Runs(self.tables)

    # Pipelines

    def pipeline(self, name: str, version: int = 0) -> InstalledPipeline:
        """One pipeline.

        :param version: 0 for the active one
        :raises UnknownPipelineError: if no file declares the pipeline
        :raises UnknownVersionError: if no file declares that version
        """
        self.catalog.versions(name)
        if version:
            self.catalog.of(name, version)
        return InstalledPipeline(self, name, version)

    def pipelines(self) -> list[InstalledPipeline]:
        """Every declared pipeline, in its active version."""
        return [self.pipeline(name) for name in self.catalog]

    def maintain(self) -> list[Row]:
        """Keep all tables small, and delete what has been kept for long enough, as the DAG ``maintain`` does
        each day.

        A table that cannot be read keeps no other one from being maintained.

        :returns: a row for each table, as :func:`hindcast.tables.retention.maintain` has them; ``version`` is
            None if it could not be read
        """
        from hindcast.recovery.forgotten_checkpoints import delete_forgotten_checkpoints
        from hindcast.tables.expiry import expire
        from hindcast.tables.retention import maintain

        pipelines = [one for one in self.catalog.every() if not one.is_foreign]
        expire(self.settings, self.tables)
        delete_forgotten_checkpoints(self, pipelines)
        return maintain(self.settings, self.tables, pipelines)

    # Listings

    def leases(self, pipeline: str = "") -> list[Lease]:
        """The leases of shards and worker slots, and the desired states, in the order of their keys.

        :param pipeline: only those of this one
        """
        found = self._read(self.lease_table.leases_if_any)
        return [lease for lease in found if pipeline in ("", lease.stream_id)]

    def lag(self, pipeline: str = "") -> list[ShardLag]:
        """How far each shard is behind its topic, asked of the brokers.

        :raises BrokerUnavailableError, UnknownTopicError: if the brokers do not say
        """
        from hindcast.kafka.lag import lag_of_shards
        from hindcast.kafka.offsets import TopicOffsets

        with TopicOffsets(self.settings) as offsets:
            return lag_of_shards(self.leases(), self.catalog, offsets, pipeline)

    def versions(self, pipeline: str = "") -> list[Row]:
        """The versions of pipelines: state, lag and table of each."""
        from hindcast.versions.listing import list_versions

        # A listing that is repeated shows a version that was declared meanwhile.
        newest = Installation(self.settings)
        return [row for row in list_versions(newest) if pipeline in ("", row["pipeline"])]

    def checkpoints(
        self, pipeline: str = "", *, since: datetime | None = None, limit: int | None = None
    ) -> list[Row]:
        """The ledger, newest first: one row for each committed batch."""
        return self._newest("checkpoints", "committed_at", since, limit, pipeline=pipeline)

    def runs(
        self, pipeline: str = "", *, since: datetime | None = None, limit: int | None = None
    ) -> list[Row]:
        """The replays, newest first, each in its newest state and with its costs."""
        from hindcast.replay.run_table import newest_by_run

        found = self._newest("runs", "started_at", since, None, pipeline=pipeline)
        return newest_by_run(found)[:limit]

    def verdicts(
        self, pipeline: str = "", *, run_id: str = "", since: datetime | None = None, limit: int | None = None
    ) -> list[Row]:
        """The verdicts, newest first.

        :param run_id: only those of this replay
        """
        return self._newest("verdicts", "judged_at", since, limit, pipeline=pipeline, run_id=run_id)

    def trend(self, pipeline: str = "") -> list[Row]:
        """What the verdicts of each version come to, a row for each measure: {pipeline, version, measure,
        column, newest, median, worst, worst_run, worst_at, verdicts, recent}.

        ``recent`` are the values of the newest 50 verdicts, oldest first, and ``median`` is theirs. ``worst``
        is the worst value ever.
        """
        from hindcast.tables.verdict_trends import VerdictTrends

        if pipeline:
            check_name("pipeline", pipeline)
        rows: list[Row] = []
        for trend in self._read(lambda: VerdictTrends(self.tables).read(pipeline)):
            rows.extend(trend.measures())
        return rows

    def proofs(self, pipeline: str = "") -> list[Row]:
        """The states that verdicts left: {pipeline, version, run_id, start, end, sink_version, based_on,
        made_at}, in the order of the sink's versions.

        A range of a pipeline whose results depend on all that came before can begin at each ``end`` (by
        partition). ``based_on`` is the run whose proof the range began with; empty if it began with the
        stream.
        """
        from hindcast.tables.proofs import Proofs

        if pipeline:
            check_name("pipeline", pipeline)
        return [proof.shown() for proof in self._read(lambda: Proofs(self.tables).read(pipeline))]

    def differences(
        self, run_id: str, pipeline: str = "", *, since: datetime | None = None, limit: int | None = None
    ) -> list[Row]:
        """The rows in which the stream differs from the hindcast ``run_id``, as its newest verdict has them:
        up to 1,000.
        """
        verdicts = self.verdicts(pipeline, run_id=run_id, limit=1)
        if not verdicts:
            return []
        found = self._newest("differences", "found_at", since, None, pipeline=pipeline, run_id=run_id)
        return [row for row in found if row["found_at"] == verdicts[0]["judged_at"]][:limit]

    def corrections(self, pipeline: str = "") -> list[Row]:
        """The windows that readers get from a replay instead of the stream, and the run of each.

        :raises UnknownPipelineError: if no file declares the pipeline
        """
        from hindcast.clock import utc_from_ms
        from hindcast.serving.corrected_windows import Corrections

        chosen = self.catalog.every()
        if pipeline:
            chosen = [self.catalog.of(pipeline, version) for version in self.catalog.versions(pipeline)]
        rows = []
        for declared in chosen:
            for span in Corrections(self.settings, declared).current().ranges:
                row = {
                    "pipeline": declared.name,
                    "version": declared.version,
                    "windows_after": utc_from_ms(span.after_ms),
                    "windows_to": utc_from_ms(span.to_ms),
                    "run_id": span.run_id,
                }
                rows.append(row)
        return rows

    def dead_letters(
        self, pipeline: str = "", *, since: datetime | None = None, limit: int | None = None
    ) -> list[Row]:
        """The records that no stream can use, newest first, with the reason."""
        return self._newest("dead_letters", "broker_at", since, limit, pipeline=pipeline)

    def archives(self) -> list[Row]:
        """The archived topics: rows, bytes, newest broker timestamp, ranges of offsets by partition, accepted
        gaps.
        """
        from hindcast.archive.snapshot import listing

        return listing(self.settings)

    def events(
        self,
        pipeline: str = "",
        *,
        severity: str = "",
        kind: str = "",
        since: datetime | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """What happened, newest first, and what to do about it.

        :param severity: info, warning or error
        :param kind: a value of :class:`hindcast.tables.event_log.EventKind`
        """
        return self._newest("events", "at", since, limit, pipeline=pipeline, severity=severity, kind=kind)

    def read(self, pipeline: str) -> Reading:
        """The newest results of a pipeline as readers get them: ``.pandas()``, ``.arrow()`` or
        ``.spark(session)``.

        :raises UnknownPipelineError: if no file declares the pipeline
        :raises BadInputError: if it has no table yet
        """
        from hindcast.serving.reading import read

        return read(pipeline, self.settings)

    def _newest(
        self, table_name: str, by: str, since: datetime | None, limit: int | None, **equal: str
    ) -> list[Row]:
        """The newest rows of a control table by the instant ``by``. Only those that are returned become
        Python objects.

        :param equal: the value that a column must have; an empty one filters nothing
        """
        from hindcast.delta.arrow_dataset import Condition
        from hindcast.tables.schema import SCHEMAS
        from hindcast.tables.table_names import ControlTable

        if equal.get("pipeline"):
            check_name("pipeline", equal["pipeline"])
        table = ControlTable(table_name)
        where: list[Condition] = [(column, "=", value) for column, value in equal.items() if value]
        if since is not None:
            where.append((by, ">=", since))

        def read() -> list[Row]:
            if limit is None:
                found = self.tables.read(table, where, SCHEMAS[table].names)
                newest = found.sort_by([(by, "descending")])
            else:
                newest = self.tables.newest(table, by, limit, where)
            return list(newest.to_pylist())

        return self._read(read)

    def values(self, table_name: str, column: str) -> list[str]:
        """The values that a column of a control table has, each once."""
        from hindcast.tables.table_names import ControlTable

        table = ControlTable(table_name)

        def read() -> list[str]:
            found = self.tables.read(table, columns=[column])
            return list(found[column].unique().to_pylist())

        return self._read(read)

    def _read(self, read: Callable[[], Iterable[_T]]) -> list[_T]:
        """What ``read`` returns. A read that fails is tried again, up to :data:`_ATTEMPTS` times in all.

        :raises StoreUnavailableError: if the last attempt failed, too
        """
        from deltalake.exceptions import DeltaError

        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return list(read())
            except StoreUnavailableError:
                if attempt == _ATTEMPTS:
                    raise
            except (DeltaError, OSError) as error:
                if attempt == _ATTEMPTS:
                    control = self.settings.table("control")
                    raise StoreUnavailableError(table=control, action="read", reason=error) from error
        raise AssertionError("unreachable")

    # Replays

    def judge(self, run_id: str, *, of: str = "") -> Row:
        """Judge a replay that succeeded; see :meth:`InstalledPipeline.judge`.

        :param of: the pipeline whose replay it has to be; of any by default
        :raises UnknownRunError: if no replay of that id has succeeded
        :raises BadInputError: if it is a replay of another pipeline
        """
        run = self.run_table.succeeded(run_id)
        if of not in ("", run["pipeline"]):
            problem = f"The run {run_id} is of the pipeline {run['pipeline']}, not of {of}"
            cure = f"`hindcast runs --pipeline {of}` lists its replays."
            raise BadInputError(problem=problem, cure=cure)
        return self.pipeline(run["pipeline"], run["version"]).judge(run_id)

    def spark(self, name: str = "hindcast", *, quick: Callable[[], bool] | None = None) -> SparkSession:
        """The Spark session of this process, built at its first use.

        :param name: of the application
        :param quick: whether its work is so short that it does without the JVM's slow compiler; asked only if
            the session is not built yet
        """
        if self._spark is None:
            from hindcast.spark.session import QUICK_COMPILER, build

            options = ""
            if quick is not None and quick():
                options = QUICK_COMPILER
            self._spark = build(self.settings, name, options=options)
        return self._spark


class InstalledPipeline:
    """One pipeline of an installation, in its active version or in one that was named:
    :meth:`Hindcast.pipeline` makes it.
    """

    def __init__(self, hindcast: Hindcast, name: str, version: int) -> None:
        self.name = name
        self._hindcast = hindcast
        self._settings = hindcast.settings
        self._asked_version = version

    def __repr__(self) -> str:
        version = self._asked_version or "active"
        return f"<pipeline {self.name}, version {version}>"

    @cached_property
    def declared(self) -> Pipeline:
        """Its declaration, found at first use: which version is active is read once.

        :raises UnknownVersionError: if no file declares that version
        """
        from hindcast.shards.active_version import active_pipeline

        leases = self._hindcast.leases()
        return active_pipeline(self._hindcast.catalog, leases, self.name, self._asked_version)

    @property
    def version(self) -> int:
        """The number of its version."""
        return self.declared.version

    # Listings

    def leases(self) -> list[Lease]:
        """The leases of its shards, and its desired state."""
        return self._hindcast.leases(self.name)

    def lag(self) -> list[ShardLag]:
        """How far its shards are behind its topics; see :meth:`Hindcast.lag`."""
        return self._hindcast.lag(self.name)

    def checkpoints(self, *, since: datetime | None = None, limit: int | None = None) -> list[Row]:
        """Its committed batches, newest first."""
        return self._hindcast.checkpoints(self.name, since=since, limit=limit)

    def runs(self, *, since: datetime | None = None, limit: int | None = None) -> list[Row]:
        """Its replays, newest first."""
        return self._hindcast.runs(self.name, since=since, limit=limit)

    def verdicts(self, *, since: datetime | None = None, limit: int | None = None) -> list[Row]:
        """Its verdicts, newest first."""
        return self._hindcast.verdicts(self.name, since=since, limit=limit)

    def trend(self) -> list[Row]:
        """What its verdicts come to, by version and measure; see :meth:`Hindcast.trend`."""
        return self._hindcast.trend(self.name)

    def proofs(self) -> list[Row]:
        """The states that its verdicts left; see :meth:`Hindcast.proofs`."""
        return self._hindcast.proofs(self.name)

    def events(self, *, since: datetime | None = None, limit: int | None = None) -> list[Row]:
        """What happened to it, newest first."""
        return self._hindcast.events(self.name, since=since, limit=limit)

    def dead_letters(self, *, since: datetime | None = None, limit: int | None = None) -> list[Row]:
        """The records that it could not use, newest first."""
        return self._hindcast.dead_letters(self.name, since=since, limit=limit)

    def corrections(self) -> list[Row]:
        """The windows that readers get from a replay."""
        return self._hindcast.corrections(self.name)

    def read(self) -> Reading:
        """Its newest results as readers get them, of whatever version is active."""
        return self._hindcast.read(self.name)

    def publish(self) -> Published:
        """Bring its served table up to what readers get now. Workers do it every few seconds.

        :raises BadInputError: if the active version has no served table, or no results yet
        :raises ServedTableRefusedError: if the table cannot be as it is declared
        """
        from hindcast.serving.served_table import ServedTable

        done = ServedTable(self._hindcast, self.name).publish()
        if done is None:
            cure = 'Declare one: `sink=Table("...", served=Served())`.'
            raise BadInputError(problem=f"{self.name} has no served table", cure=cure)
        return done

    def registration(self, name: str = "") -> str:
        """The SQL that gives its served table a name in a catalog; see :meth:`register`."""
        from hindcast.serving.register import statement

        return statement(name or self.name, self._hindcast.settings.served(self.declared))

    def register(self, name: str = "") -> Row:
        """Give its served table a name in the catalog of Spark's session. Nothing changes if it has it.

        :param name: ``table``, ``schema.table`` or ``catalog.schema.table``; the pipeline's own by default
        :returns: {pipeline, name, table}
        :raises RegistrationRefusedError: if another table has the name, or it is none
        """
        from hindcast.serving.register import register

        self.registration(name)  # a wrong name is refused before Spark starts
        done = self.publish()
        chosen = name or self.name
        register(self._hindcast.spark("hindcast-register", quick=lambda: True), chosen, done.table)
        return {"pipeline": self.name, "name": chosen, "table": done.table}

    # The stream. Workers apply a desired state within seconds.

    def pause(self) -> PipelineRow:
        """Stop the stream after the current batch, until :meth:`resume`."""
        return self._want("paused")

    def resume(self) -> PipelineRow:
        """Resume the stream from its checkpoint. Shards that were refused or drained get another try."""
        return self._want("running")

    def drain(self) -> PipelineRow:
        """Let the stream reach the present end of its topic, then stop it."""
        return self._want("drained")

    def reshard(self, shards: int) -> PipelineRow:
        """Divide the partitions into another number of shards, while the stream runs. Results stay exact.

        :raises PipelineError: if that number is not valid
        :raises ReshardRefusedError: if the pipeline has state of its own, which cannot be divided
        """
        self._check_own()
        check(replace(self.declared, shards=shards))
        # Refused here, before a worker stops a healthy shard for it.
        if self.declared.re_execute:
            raise ReshardRefusedError(pipeline=self.name)
        states = self._desired_states()
        states.declare(self.declared, self._settings.workers)
        return states.set_shards(self.name, shards)

    def rebuild(self, shards: Iterable[str]) -> str:
        """Rebuild the state of these shards from the topic and the ledger. Results stay exact.

        :returns: the id of the request; the lease of each shard has it as ``rebuild`` once it is met
        :raises UnknownPipelineError: if the pipeline has never run
        """
        return self._desired_states().request_rebuild(self.name, shards)

    def _want(self, state: str) -> PipelineRow:
        from hindcast.shards.pipeline_row import DesiredState

        states = self._desired_states()
        # What is declared first is the lowest version; a later one becomes active by a promotion alone.
        states.declare(self._hindcast.catalog[self.name], self._settings.workers)
        return states.set_state(self.name, DesiredState(state))

    def _desired_states(self) -> DesiredStates:
        """:raises ForeignStreamError: if others run the stream"""
        from hindcast.shards.desired_state import DesiredStates

        self._check_own()
        return DesiredStates(self._hindcast.lease_table)

    def _check_own(self) -> None:
        """:raises ForeignStreamError: if others run the stream"""
        if self._hindcast.catalog[self.name].is_foreign:
            problem = "Hindcast judges its table and does not run it"
            cure = "Do that where it runs."
            raise ForeignStreamError(pipeline=self.name, problem=problem, cure=cure)

    # A stream that others run

    def record(self) -> Recorded:
        """Bring what such a stream has done since the last time into the ledger; a verdict does that, too.

        Spark deletes all but the newest batches from a checkpoint, and what it deletes before it was recorded
        cannot be judged.

        :raises ForeignStreamError: if it is a stream of this installation, or its checkpoint is not what the
            declaration says
        """
        from hindcast.foreign.record import record

        if not self.declared.is_foreign:
            problem = "nobody else runs it: its workers record each batch"
            raise ForeignStreamError(pipeline=self.name, problem=problem, cure="Validate it as it is.")
        return record(self._hindcast, self.declared)

    def find_adoptable(self, checkpoint: str) -> Found:
        """The query that :meth:`adopt` would take over. Nothing is changed.

        :raises ForeignStreamError: if it cannot be taken over
        """
        from hindcast.foreign.adopt import find

        return find(self._hindcast, self.declared, checkpoint)

    def adopt(self, checkpoint: str, *, by: str = "") -> Adopted:
        """Take over the stream that writes this pipeline's table, at the exact offsets at which its query
        ends. The query may still run: from now on the table takes none of its batches.

        The declaration is :func:`hindcast.pipeline` with ``Table(..., url=...)``. If the stream was judged
        before, name and version are those of the judgement, whose record goes on.

        :param checkpoint: the path or URL of the query's checkpoint folder
        :param by: who does it, for the event
        :raises ForeignStreamError: if it cannot be taken over
        """
        from hindcast.foreign.adopt import adopt

        adopted = adopt(self._quick_session, self._hindcast, self.declared, checkpoint, by)
        self._desired_states().declare(self.declared, self._settings.workers)
        return adopted

    def _know_all_of_it(self) -> None:
        """Bring the ledger and the tables of late and poison rows up to date, if no worker does that."""
        if not self.declared.is_foreign:
            return
        from hindcast.foreign.late_rows import file_late_rows, records_of, unfiled

        self.record()
        batches = unfiled(self._hindcast, self.declared)
        if batches:
            spark = self._hindcast.spark("hindcast-replay", quick=lambda: records_of(batches) <= FEW_RECORDS)
            file_late_rows(spark, self._hindcast, self.declared, batches)

    # Replays and verdicts

    def request(self, *, run_id: str = "", **range_: Unpack[RangeFields]) -> ReplayRequest:
        """A request to replay a range, with a run id.

        :raises BadRangeError: if the arguments do not make one range
        """
        named = run_id or new_run_id(self.name, datetime.now(UTC))
        return ReplayRequest(pipeline=self.name, version=self._asked_version, run_id=named, **range_)

    def plan(self, request: ReplayRequest) -> ReplayPlan:
        """What a replay would read, and which windows it would judge. Starts no JVM, unless
        others run the stream.

        :raises BadRangeError: if the range is reversed, empty, or no longer retained
        :raises RangeNotYetConsumedError: if the stream has not committed all of it
        """
        from hindcast.replay.run_replay import plan_replay

        self._know_all_of_it()
        _, plan = plan_replay(self._hindcast, self.declared, request)
        return plan

    def replay(self, *, run_id: str = "", **range_: Unpack[RangeFields]) -> Replayed:
        """Replay a range of the topic as a batch: its hindcast. Ends are exclusive.

        :param run_id: a name of this run; generated by default. The same id replays the same offsets.
        :param range_: offsets of both ends, or broker timestamps of both ends, or
            ``since_last_verdict=True``, or ``late=True``, or ``everything=True``; see
            :class:`hindcast.replay.request.ReplayRequest`
        :raises BadRangeError: if the arguments do not make one range, or it is no longer retained
        :raises RangeNotYetConsumedError: if the stream has not committed all of it yet
        :raises NothingToReplayError: if the range lies before the stream's beginning
        :raises ReplayFailedError: if Spark failed
        """
        return self.run(self.request(run_id=run_id, **range_))

    def run(self, request: ReplayRequest, *, tried_again: bool = False, is_judged: bool = False) -> Replayed:
        """Replay what is requested; see :meth:`replay`.

        :param tried_again: whether the caller asks again if the stream is not that far yet
        :param is_judged: whether its verdict follows: what that needs is loaded meanwhile
        """
        from hindcast.replay.run_replay import run_replay
        from hindcast.verdict.expectations import check_types, import_meanwhile

        check_types(self.declared)
        named = request
        if not named.run_id:
            named = replace(named, run_id=new_run_id(self.name, datetime.now(UTC)))

        def session() -> SparkSession:
            if is_judged:
                import_meanwhile()
            return self._session(named.run_id)

        return run_replay(
            session,
            self._hindcast,
            self.declared,
            named,
            prepare=self._know_all_of_it,
            tried_again=tried_again,
        )

    def judge(self, run_id: str, *, policy: Policy | None = None) -> Row:
        """Judge the stream by one of the pipeline's replays: the row of ``verdicts``.

        With the policy *correct*, a verdict without unexplained differences also gives readers the replay's
        windows; the row then says so as ``corrected``.

        :param policy: instead of the declared one
        :returns: a verdict that does not hold is returned, too: its ``passed`` is False
        :raises UnknownRunError: if no replay of that id has succeeded
        """
        from hindcast.verdict.expectations import import_meanwhile
        from hindcast.verdict.judge import judge

        import_meanwhile()

        def session() -> SparkSession:
            return self._session(run_id)

        row = judge(session, self._hindcast, self.declared, run_id)
        shown = dict(row)
        for name in ("failed", "ratios", "bounds"):
            shown[name] = json.loads(row[name])
        corrects = (policy or self.declared.policy) is Policy.CORRECT
        if corrects and not row["unexplained"]:
            shown["corrected"] = self.correct(run_id)["corrected"]
        return shown

    def validate(self, *, run_id: str = "", **range_: Unpack[RangeFields]) -> Row:
        """Replay a range and judge the stream by it; see :meth:`replay` and :meth:`judge`."""
        done = self.run(self.request(run_id=run_id, **range_), is_judged=True)
        return self.judge(done.run_id)

    def correct(self, run_id: str) -> Row:
        """Give readers the results of a replay that was judged, instead of the stream's, for its closed
        windows.

        :returns: {run_id, pipeline, corrected, windows_after_ms, windows_to_ms}
        :raises UnknownRunError: if no replay of that id has succeeded
        :raises CorrectionRefusedError: if its results must not be given to readers
        """
        from hindcast.verdict.apply_correction import correct

        return correct(self._hindcast, self.declared, run_id)

    def check_correction(self, run_id: str) -> None:
        """Check that :meth:`correct` would not be refused. Nothing changes.

        :raises UnknownRunError: if no replay of that id has succeeded
        :raises CorrectionRefusedError: if its results must not be given to readers
        """
        from hindcast.verdict.apply_correction import checked

        checked(self._hindcast, self.declared, run_id)

    def benchmark(self) -> tuple[Replayed, Replayed]:
        """Replay the reference range, as a batch and with its recorded batches.

        :raises BadInputError: if the pipeline declares no reference range
        """
        from hindcast.replay.benchmark import run_reference

        batch, recorded = run_reference(self._hindcast.spark, self._hindcast, self.declared)
        return batch, recorded

    def _session(self, run_id: str) -> SparkSession:
        """The session for a replay and its verdict. The plan is kept before Spark starts, so its size is
        known.
        """

        def is_short() -> bool:
            return self._hindcast.run_table.planned_records(run_id) <= FEW_RECORDS

        return self._hindcast.spark("hindcast-replay", quick=is_short)

    # Rewinds

    def plan_rewind(self, to: Mapping[int, int] | datetime | None) -> RewindPlan:
        """What a rewind would take back.

        :param to: the offsets or the broker timestamp to read from again; None for the beginning of the topic
        :raises RewindRefusedError: if the pipeline is not paused, or its history does not allow it
        """
        from hindcast.recovery import plan_rewind

        self._check_own()
        return plan_rewind.make_plan(self._hindcast, self.declared, to)

    def rewind(self, plan: RewindPlan, *, by: str = "", reason: str = "") -> BegunRecord:
        """Take back the output of the paused pipeline as planned, so that it reads from there again.

        If a rewind was cut short, :meth:`complete_rewind` completes it and :meth:`abandon_rewind` calls it
        off.

        :param by: who does it, for the event
        """
        from hindcast.recovery import rewind

        return rewind.run(self._hindcast, self.declared, plan, by=by, reason=reason)

    def complete_rewind(self) -> BegunRecord | None:
        """Complete a rewind that was cut short; None if there is none."""
        from hindcast.recovery import rewind

        return rewind.complete(self._hindcast, self.declared)

    def abandon_rewind(self, *, by: str = "", reason: str = "") -> BegunRecord | None:
        """Call off a rewind that was cut short, as long as its table is not restored yet; None if there is
        none.
        """
        from hindcast.recovery.abandon_rewind import abandon

        return abandon(self._hindcast, self.declared, by=by, reason=reason)

    # Versions

    def start_version(self, version: int, start: str, *, new_table: bool = False, by: str = "") -> Row:
        """Start another declared version, with shards, checkpoints and a table of its own. The active one
        runs on.

        :param start: ``earliest``, an ISO 8601 time with an offset from UTC, or offsets as JSON
        :param new_table: accept that readers will see other columns
        :param by: who does it, for the event
        :raises BadInputError: if it cannot be started so; nothing was changed
        """
        from hindcast.versions.start import start_version

        self._check_own()
        return start_version(
            self._quick_session, self._hindcast, self.name, version, start, new_table=new_table, who=by
        )

    def compare_versions(self) -> Row:
        """Compare the inactive version with the active one, at equal offsets. Its ``passed`` says whether it
        holds.

        :raises VersionRefusedError: if there is no inactive version
        """
        from hindcast.versions.compare_versions import compare_versions

        return compare_versions(self._quick_session, self._hindcast, self.name)

    def promote(self, version: int, *, despite: str = "", by: str = "", since: str = "") -> Row:
        """Make the inactive version the active one. Readers switch at once; the old one is kept warm.

        :param despite: why it is promoted although it was not proved
        :param since: the id of the change after which it was approved: none may have come in between
        :raises VersionRefusedError: if it is not proved, or behind; nothing was changed
        """
        from hindcast.versions.promote import promote

        return promote(self._hindcast, self.name, version, despite=despite, who=by, since=since)

    def back_out(self, *, by: str = "") -> Row:
        """Return to the version that was active before the last promotion. Readers switch at once.

        :raises VersionRefusedError: if no version is kept warm
        """
        from hindcast.versions.promote import back_out

        return back_out(self._hindcast, self.name, who=by)

    def discard(self, version: int, *, by: str = "") -> Row:
        """Discard the inactive version: its shards, checkpoints and tables.

        :raises VersionRefusedError: if readers get windows from it; nothing was changed
        """
        from hindcast.versions.discard import discard

        return discard(self._hindcast, self.name, version, who=by)

    def _quick_session(self) -> SparkSession:
        return self._hindcast.spark("hindcast-versions", quick=lambda: True)
