"""The DAGs, as functions of the pipelines they are for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, XComArg

from hindcast.airflow.approval import DECISION, ApprovePromotionOperator, Decision
from hindcast.airflow.assets import hindcast_asset
from hindcast.airflow.driver_tasks import REPLAYS_AT_ONCE, RETRIES, driver_arguments
from hindcast.airflow.operators import (
    ArchiveOperator,
    BenchmarkOperator,
    CorrectLateOperator,
    FindHindcastsOperator,
    HindcastReplayOperator,
    MaintainOperator,
    RangeChoice,
    ValidateOperator,
)
from hindcast.airflow.reprocessing import (
    AwaitCaughtUpOperator,
    CompareVersionsOperator,
    DiscardVersionOperator,
    JudgeVersionOperator,
    PromoteVersionOperator,
    StartChoice,
    StartVersionOperator,
    WatchPromotedOperator,
)
from hindcast.airflow.scheduling import SpreadCronTimetable
from hindcast.airflow.supervision.operators import ReconcileOperator, WatchFleetOperator
from hindcast.pipeline import Pipeline
from hindcast.replay.request import RANGE_OPTIONS, RangeValue
from hindcast.settings import Settings

#: Before every stream, so that a backfill may begin at any time. Catch-up is off for every DAG.
START = datetime(2020, 1, 1, tzinfo=UTC)
TAGS = ["hindcast"]
#: Active runs of one pipeline's replay, without those of a backfill, which has its own bound. Runs that
#: wait for a slot or for their stream are active too, so there is room left for what a person asks for.
ACTIVE_RUNS = 16

SUPERVISE_DOC = """
Unpause to start the fleet. Pausing this DAG, or losing all of Airflow, stops no stream:
`hindcast pause` and `hindcast drain` do.
"""

REPLAY_DOC = """
Runs the same offsets again as a batch: the *hindcast* of `{name}`.
Each hindcast raises an asset event, on which `{validate}` judges it.

- On its schedule, and in `airflow backfill create --dag-id {replay} --from-date ... --to-date ...`
  (the end date counts too), a run covers its data interval.
  A scheduled run starts some time after its interval has ended; the delay is this pipeline's own.
- Triggered by hand, a run covers what the form says. Ends are exclusive;
  offsets are JSON of partition to offset, e.g. `{{"0": 100, "1": 200}}`.

- An interval that ended before the stream began is skipped.
  One that begins before the stream is replayed from the stream's first offset.
- A run waits for a range that the stream has not consumed yet: the task is deferred, needs no slot,
  and its log says how far the stream is.
  After {wait_hours:g} hours it fails, or is skipped if the pipeline is paused.
- A range that cannot be replayed fails at once and says why.
"""

REPROCESS_DOC = """
Consumes a new version of `{name}` as a shadow of the active one, and asks a person before readers get it.

- Trigger it by hand; the form says which version, and where it starts.
  A version that is a shadow already stays so.
- *approve* waits for an answer; its text compares both versions.
  Without an answer in time nothing is changed.
- After a promotion *watch* returns to the old version if a verdict of the new one fails.
  The old version is kept warm for {warm:g} minutes.

Each task may be retried or cleared: it does nothing twice.
"""

CORRECT_DOC = """
A version of `{name}` has the policy *correct*: late rows change no window of its stream,
and a batch corrects those windows afterwards.
`{validate}` judges each hindcast of this DAG,
and readers get its answer if nothing of the verdict is unexplained.
A run is skipped if no late row needs a correction,
or if the version that is active then has another policy.
"""

VALIDATE_DOC = """
Each hindcast that led to this run gets its own verdict.
A failed verdict fails its task and names the rows that differ.
"""


def supervise_dag() -> DAG:
    """Reconcile, then sleep until the fleet has changed; again and again."""
    with DAG(
        dag_id=_dag_id("supervise"),
        schedule="@continuous",
        start_date=START,
        catchup=False,
        max_active_runs=1,
        tags=TAGS,
        description="Keeps the fleet whole: launches missing workers, wakes when something changes",
        doc_md=SUPERVISE_DOC,
    ) as dag:
        reconcile = ReconcileOperator(
            task_id="reconcile", retries=5, retry_delay=timedelta(seconds=10), retry_exponential_backoff=2.0
        )
        WatchFleetOperator(
            task_id="watch", reconciled=reconcile.output, retries=5, retry_delay=timedelta(seconds=10)
        )
    return dag


def replay_dag(pipeline: Pipeline, schedule: str) -> DAG:
    """One hindcast a data interval, or of the range that a person gives.

    :param schedule: cron; the timetable is the one that has data intervals (Airflow's default for a cron
        text has empty ones)
    """
    own_id = _dag_id("replay", pipeline.name)
    with DAG(
        dag_id=own_id,
        schedule=_spread(own_id, schedule),
        start_date=START,
        catchup=False,
        max_active_runs=ACTIVE_RUNS,
        tags=TAGS,
        description=f"Replays ranges of {pipeline.source.name} as a batch: the hindcasts of {pipeline.name}",
        doc_md=REPLAY_DOC.format(
            name=pipeline.name,
            replay=own_id,
            validate=_dag_id("validate", pipeline.name),
            wait_hours=Settings().replay_wait_seconds / 3600,
        ),
        params={
            "range": Param(
                RangeChoice.INTERVAL.value,
                type="string",
                enum=[choice.value for choice in RangeChoice],
                title="Range",
            ),
            **_range_fields(),
        },
    ) as dag:
        HindcastReplayOperator(
            task_id="hindcast",
            pipeline=pipeline.name,
            choice="{{ params.range }}",
            from_offsets="{{ params.from_offsets | tojson }}",
            to_offsets="{{ params.to_offsets | tojson }}",
            from_time="{{ params.from_time or '' }}",
            to_time="{{ params.to_time or '' }}",
            max_active_tis_per_dag=REPLAYS_AT_ONCE,
            **driver_arguments(),
        )
    return dag


def _dag_id(name: str, of: str = "") -> str:
    return Settings().dag_id(name, of)


def _spread(dag_id: str, schedule: str) -> SpreadCronTimetable:
    settings = Settings()
    return SpreadCronTimetable(schedule, name=dag_id, spread_seconds=settings.schedule_spread_seconds)


def _range_fields() -> dict[str, Param]:
    """The fields of a form for the offsets and times of a range."""
    fields = {}
    for option in RANGE_OPTIONS:
        title = option.field.replace("_", " ").capitalize()
        description = option.help[0].upper() + option.help[1:]
        if option.value is RangeValue.OFFSETS:
            fields[option.field] = _offsets(title, description)
        elif option.value is RangeValue.TIME:
            fields[option.field] = _time(title, description)
    return fields


def _offsets(title: str, description: str) -> Param:
    pattern: dict[str, Any] = {
        "patternProperties": {"^[0-9]+$": {"type": "integer", "minimum": 0}},
        "additionalProperties": False,
        "minProperties": 1,
    }
    return Param(
        None, type=["null", "object"], title=title, description=description, section="Offsets", **pattern
    )


def _time(title: str, description: str) -> Param:
    # The format makes Airflow show a calendar but checks nothing; the task checks the time itself.
    pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}"
    return Param(
        None,
        type=["null", "string"],
        format="date-time",
        pattern=pattern,
        title=title,
        description=description,
        section="Times",
    )


def correct_dag(name: str, schedule: str) -> DAG:
    """A hindcast of each window for which a late row came; its verdict lets readers have it.

    :param schedule: cron
    """
    own_id = _dag_id("correct", name)
    with DAG(
        dag_id=own_id,
        schedule=_spread(own_id, schedule),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        tags=TAGS,
        description=f"Replays the windows of {name} for which late rows came, so that readers get them whole",
        doc_md=CORRECT_DOC.format(name=name, validate=_dag_id("validate", name)),
    ) as dag:
        CorrectLateOperator(
            task_id="hindcast", pipeline=name, max_active_tis_per_dag=REPLAYS_AT_ONCE, **driver_arguments()
        )
    return dag


def validate_dag(pipeline: Pipeline) -> DAG:
    """One verdict for each hindcast."""
    with DAG(
        dag_id=_dag_id("validate", pipeline.name),
        schedule=[hindcast_asset(pipeline.name)],
        start_date=START,
        catchup=False,
        max_active_runs=ACTIVE_RUNS,
        tags=TAGS,
        description=f"Judges the stream of {pipeline.name} by each of its hindcasts",
        doc_md=VALIDATE_DOC,
        params={
            "run_id": Param(
                "",
                type="string",
                pattern="^[A-Za-z0-9._-]{0,64}$",
                title="Hindcast",
                description="Judge this run id; empty on a scheduled run",
            )
        },
    ) as dag:
        found = FindHindcastsOperator(
            task_id="find_hindcasts", pipeline=pipeline.name, run_id="{{ params.run_id }}"
        )
        ValidateOperator.partial(
            task_id="judge",
            pipeline=pipeline.name,
            max_active_tis_per_dag=REPLAYS_AT_ONCE,
            map_index_template="{{ task.run_id }}",
            **driver_arguments(),
        ).expand(run_id=found.output)
    return dag


def reprocess_dag(name: str, versions: Sequence[int], warm_seconds: float) -> DAG:
    """Start a version, wait until it has caught up, prove it, ask, promote or discard it, and watch it.

    :param versions: those that are declared; the form proposes the highest
    :param warm_seconds: how long the old version is kept warm: a longer watch could not return to it
    """
    warm_minutes = warm_seconds / 60.0
    with DAG(
        dag_id=_dag_id("reprocess", name),
        schedule=None,
        start_date=START,
        catchup=False,
        max_active_runs=1,
        tags=TAGS,
        description=f"Proves a new version of {name}, and promotes it once a person has approved it",
        doc_md=REPROCESS_DOC.format(name=name, warm=warm_minutes),
        params={
            "version": Param(
                max(versions),
                type="integer",
                minimum=1,
                title="Version",
                description="As its file declares it",
            ),
            "from": Param(
                StartChoice.EARLIEST.value,
                type="string",
                enum=[choice.value for choice in StartChoice],
                title="From",
            ),
            "from_time": _time("From time", "Broker timestamp of the first records"),
            "from_offsets": _offsets("From offsets", 'First offset of each partition, e.g. {"0": 100}'),
            "new_table": Param(
                False,
                type="boolean",
                title="New table",
                description="Readers will see other columns: that is meant",
            ),
            "approval_hours": Param(
                24.0,
                type="number",
                exclusiveMinimum=0,
                maximum=720,
                title="Approval hours",
                description="How long the task waits for an answer",
            ),
            "watch_minutes": Param(
                min(30.0, warm_minutes),
                type="number",
                minimum=0,
                maximum=warm_minutes,
                title="Watch minutes",
                description="A verdict that fails so soon after the promotion returns to the old version",
            ),
        },
    ) as dag:
        about: dict[str, Any] = {"pipeline": name, "version": "{{ params.version }}", **RETRIES}
        of_spark = {**about, **driver_arguments()}
        start = StartVersionOperator(
            task_id="start",
            start="{{ params['from'] }}",
            from_time="{{ params.from_time or '' }}",
            from_offsets="{{ params.from_offsets | tojson }}",
            new_table="{{ params.new_table }}",
            **of_spark,
        )
        caught_up = AwaitCaughtUpOperator(task_id="caught_up", **about)
        judge = JudgeVersionOperator(task_id="judge", max_active_tis_per_dag=REPLAYS_AT_ONCE, **of_spark)
        compare = CompareVersionsOperator(task_id="compare", **of_spark)
        approve = ApprovePromotionOperator(
            task_id="approve",
            pipeline=name,
            verdict=judge.output,
            comparison=compare.output,
            hours="{{ params.approval_hours }}",
            tasks={Decision.PROMOTE: "promote", Decision.DISCARD: "discard"},
            **RETRIES,
        )
        promote = PromoteVersionOperator(
            task_id="promote", approval=XComArg(approve, DECISION), caught_up=caught_up.output, **about
        )
        discard = DiscardVersionOperator(task_id="discard", **about)
        # In no pool: it may have to return to the old version, and must not wait for a replay to end.
        watch = WatchPromotedOperator(
            task_id="watch", promoted=promote.output, minutes="{{ params.watch_minutes }}", **about
        )
        start >> caught_up >> judge >> compare >> approve >> [promote, discard]
        promote >> watch
    return dag


def maintain_dag() -> DAG:
    """Once a day, compact and tidy the control tables, the sinks and old hindcasts."""
    with DAG(
        dag_id=_dag_id("maintain"),
        schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        tags=TAGS,
        description="Compacts and vacuums control tables and sinks, drops old hindcasts",
    ) as dag:
        MaintainOperator(task_id="maintain", retries=2, retry_delay=timedelta(minutes=5))
    return dag


def archive_dag(topics: Iterable[str], schedule: str) -> DAG:
    """Copy each topic into its archive, one after the other.

    :param schedule: cron; several runs should fit into the shortest retention of the topics
    """
    with DAG(
        dag_id=_dag_id("archive"),
        schedule=CronDataIntervalTimetable(schedule, timezone="UTC"),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        max_active_tasks=REPLAYS_AT_ONCE,
        tags=TAGS,
        description="Copies topics into archives that outlive their retention",
    ) as dag:
        for topic in topics:
            ArchiveOperator(task_id=topic, topic=topic, **driver_arguments())
    return dag


def benchmark_dag(pipelines: Iterable[str]) -> DAG:
    """Once a week, replay the reference range of each pipeline's active version.

    They run one after the other, because two at once would measure each other.
    """
    with DAG(
        dag_id=_dag_id("benchmark"),
        schedule=CronDataIntervalTimetable("@weekly", timezone="UTC"),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        max_active_tasks=REPLAYS_AT_ONCE,
        tags=TAGS,
        description="Replays the reference ranges of pipelines, so that versions can be compared",
    ) as dag:
        for name in pipelines:
            BenchmarkOperator(task_id=name, pipeline=name, **driver_arguments())
    return dag
