"""The tasks of `replay`, `validate`, `benchmark`, `archive` and `maintain`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from hindcast import Hindcast
from hindcast.airflow.assets import hindcast_asset
from hindcast.airflow.kafka_connection import settings_of_children
from hindcast.airflow.links import RUN_ID, ControlRoomLink, DataDocsLink, VerdictLink
from hindcast.airflow.replay_trigger import ConsumedTrigger, Wait
from hindcast.airflow.spark_subprocess import Ended, SparkSubprocess
from hindcast.errors import BadInputError, BadRangeError, ChildFailedError, TryLaterError, VerdictFailedError
from hindcast.pipeline import Pipeline, Policy, check_name, check_topic
from hindcast.replay.request import ReplayRequest, new_run_id
from hindcast.replay.wait_for_stream import Awaited, read_progress
from hindcast.settings import Settings
from hindcast.tables.run_states import BadEnd, RunKind, RunState, close_run

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Differing rows that are named in the log of a failed verdict; the verdict's page shows all that were kept.
NAMED_DIFFERENCES = 20
#: Tells the application that its caller retries, so that a stream that is behind does not end the run.
TRIED_AGAIN = "--tried-again"

_log = structlog.get_logger(__name__)


class RangeChoice(StrEnum):
    """What a replay covers, as the form of the DAG offers it."""

    INTERVAL = "data interval of the run"
    SINCE_LAST_VERDICT = "since the last verdict"
    LATE = "late rows that no correction has"
    TIMES = "from one time to another"
    OFFSETS = "from offsets to offsets"
    ALL = "everything"


class AppOperator(BaseOperator):
    """Runs a program of hindcast.apps as a child process. Its exit code says what Airflow should do next."""

    app: str

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._child: SparkSubprocess | None = None

    def run_app(self, arguments: Sequence[str]) -> Ended:
        self._child = SparkSubprocess(settings_of_children(Settings()), self.app, arguments)
        _log.info("Running the application.", app=self.app, arguments=list(arguments))
        return self._child.run(_log.info)

    def run_replay(
        self, context: Context, arguments: Sequence[str], run_id: str, pipeline: str, version: int | None
    ) -> Ended:
        """Run a command that replays, and close a run that ended badly, even if its process was killed.

        A run whose stream is not far enough yet stays open: the task waits, or retries under another run
        id. The last try closes it.
        """
        began_at = datetime.now(UTC)
        ended = self.run_app(arguments)
        if ended.exit_code in {0, VerdictFailedError.exit_code} or self.is_asked_again(context, ended):
            return ended
        end = BadEnd.of_process(ended.exit_code, ended.reason)
        close_run(Hindcast().tables, run_id, pipeline, end, since=began_at, version=version)
        return ended

    def is_asked_again(self, context: Context, ended: Ended) -> bool:
        """Whether the task asks for the same run later."""
        return ended.exit_code == TryLaterError.exit_code and not _is_last_try(context)

    def result_of(self, ended: Ended) -> dict[str, Any]:
        """The JSON object of a child that ended well.

        :raises TryLaterError: if the stream is not far enough yet; Airflow retries
        :raises ChildFailedError: if the child broke; Airflow retries
        :raises AirflowFailException: if the request is wrong; no retry can help
        """
        if ended.exit_code == TryLaterError.exit_code:
            raise TryLaterError(reason=ended.reason)
        if ended.exit_code == BadInputError.exit_code:
            raise AirflowFailException(ended.reason)
        if ended.exit_code != 0 or ended.result is None:
            raise ChildFailedError(program=self.app, code=ended.exit_code, reason=ended.reason)
        return ended.result

    def on_kill(self) -> None:
        if self._child is not None:
            self._child.kill()


class ReplayAppOperator(AppOperator):
    """Runs the application of replays and verdicts."""

    app = "replay"

    def __init__(self, *, pipeline: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline


def awaited_of(ended: Ended) -> dict[str, Any] | None:
    """What the stream has not committed yet, if the application ended for that."""
    if ended.exit_code != TryLaterError.exit_code or ended.result is None:
        return None
    awaited: dict[str, Any] | None = ended.result.get("awaited")
    return awaited


def _is_last_try(context: Context) -> bool:
    instance: Any = context["ti"]
    return bool(instance.try_number > instance.max_tries)


class AwaitingOperator(ReplayAppOperator):
    """Runs the application. While the stream is behind, the task sleeps in the triggerer, on no slot.

    A stream that is behind costs none of the task's tries; those are for what broke. The task waits for
    ``replay_wait_seconds`` at most. Then it is skipped if the pipeline is paused, and fails otherwise.
    """

    def answer(
        self, context: Context, arguments: list[str], run_id: str, began: str = "", tries: int = 0
    ) -> dict[str, Any]:
        """Run the application, now or once the stream is far enough, and return :meth:`done` of its result.

        :param began: when the first wait began, ISO 8601; empty before it
        :param tries: how often it has waited
        """
        if TRIED_AGAIN in arguments:
            ended = self.run_replay(context, arguments, run_id, self.pipeline, None)
        else:
            ended = self.run_app(arguments)
        awaited = awaited_of(ended)
        if awaited is None:
            return self.done(context, self.result_of(ended))

        began = began or datetime.now(UTC).isoformat()
        hindcast = Hindcast()
        version = int(awaited["version"])
        until = datetime.fromisoformat(began) + timedelta(seconds=hindcast.settings.replay_wait_seconds)
        if datetime.now(UTC) >= until:
            progress = read_progress(hindcast, Awaited.from_json(awaited))
            self._give_up(run_id, version, paused=progress.paused, why=ended.reason)
        _log.info(
            f"{ended.reason} Waiting for it until {until.isoformat()}; this task needs no slot meanwhile."
        )
        trigger = ConsumedTrigger(awaited, until.isoformat(), tries)
        waiting = {
            "arguments": arguments,
            "run_id": run_id,
            "began": began,
            "tries": tries + 1,
            "version": version,
        }
        raise TaskDeferred(trigger=trigger, method_name="consumed", kwargs=waiting)

    def is_asked_again(self, context: Context, ended: Ended) -> bool:
        return awaited_of(ended) is not None or super().is_asked_again(context, ended)

    def consumed(
        self,
        context: Context,
        event: dict[str, Any],
        arguments: list[str],
        run_id: str,
        began: str,
        tries: int,
        version: int,
    ) -> dict[str, Any]:
        """Airflow calls this once the wait has ended."""
        if event["wait"] == Wait.OVER:
            why = f"Of {self.pipeline}, {event['text']}."
            self._give_up(run_id, version, paused=event["paused"], why=why)
        return self.answer(context, arguments, run_id, began, tries)

    @abstractmethod
    def done(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        """What the task returns (XCom), from the application's result."""

    def _give_up(self, run_id: str, version: int, *, paused: bool, why: str) -> NoReturn:
        """Close the run and end the task.

        :raises AirflowSkipException: if the pipeline is paused, because an operator meant that
        :raises AirflowFailException: if it is only too slow
        """
        hindcast = Hindcast()
        minutes = hindcast.settings.replay_wait_seconds / 60
        waited = f"{why} The task waited for it for {minutes:.0f} minutes."
        if paused:
            skipped = (
                f"{waited} {self.pipeline} is paused. `hindcast resume {self.pipeline}`, "
                "then clear this task to replay the range."
            )
            hindcast.run_table.answer(
                run_id, self.pipeline, version, RunKind.REPLAY, RunState.SKIPPED, skipped
            )
            raise AirflowSkipException(skipped)
        cure = (
            f"`hindcast checkpoints --pipeline {self.pipeline}` shows how far the stream is and "
            "`hindcast events` why. Clear this task to wait again; "
            "HINDCAST_REPLAY_WAIT_SECONDS sets the limit."
        )
        end = BadEnd(RunState.FAILED, waited, cure)
        close_run(hindcast.tables, run_id, self.pipeline, end, since=datetime.now(UTC), version=version)
        raise AirflowFailException(f"{waited} {cure}")


class HindcastReplayOperator(AwaitingOperator):
    """Replay a range of a pipeline's topic as a batch, and announce its hindcast by an asset event.

    Each try has a run id of its own, so that an abandoned try never writes into the table of the next one.

    :param announced: whether to raise the asset event, on which the DAG ``validate`` judges the hindcast
    :param choice: one of :class:`RangeChoice`. The other fields count if the choice needs them: offsets are
        JSON of partition to offset, ends are exclusive, times are ISO 8601 with an offset from UTC.
    """

    template_fields = ("pipeline", "choice", "from_offsets", "to_offsets", "from_time", "to_time")
    operator_extra_links = (VerdictLink(), DataDocsLink())

    def __init__(
        self,
        *,
        pipeline: str,
        announced: bool = True,
        choice: str = RangeChoice.INTERVAL.value,
        from_offsets: str = "",
        to_offsets: str = "",
        from_time: str = "",
        to_time: str = "",
        **kwargs: Any,
    ) -> None:
        if announced:
            kwargs["outlets"] = [hindcast_asset(pipeline)]
        super().__init__(pipeline=pipeline, **kwargs)
        self.announced = announced
        self.choice = choice
        self.from_offsets = from_offsets
        self.to_offsets = to_offsets
        self.from_time = from_time
        self.to_time = to_time

    def execute(self, context: Context) -> dict[str, Any]:
        interval_start = context.get("data_interval_start")
        interval_end = context.get("data_interval_end")
        began_at = datetime.now(UTC)
        run_id = new_run_id(self.pipeline, began_at)
        try:
            request = self._request(run_id, interval_start, interval_end)
        except BadInputError as error:
            end = BadEnd.of_error(error)
            close_run(Hindcast().tables, run_id, self.pipeline, end, since=began_at)
            raise AirflowFailException(str(error)) from error
        _log.info(f"Replaying {request.describe()} as run {request.run_id}.")
        context["ti"].xcom_push(key=RUN_ID, value=request.run_id)
        arguments = ["hindcast", *request.to_arguments(), TRIED_AGAIN]
        return self.answer(context, arguments, request.run_id)

    def done(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        if "run_id" not in result:
            raise AirflowSkipException(result["note"])
        run_id = result["run_id"]
        if self.announced:
            asset_event = context["outlet_events"][hindcast_asset(self.pipeline)]
            asset_event.extra = {"run_id": run_id, "pipeline": self.pipeline}
        left_out = result.get("plan", {}).get("left_out")
        if left_out:
            _log.warning(f"Only a part of the range was replayed: {left_out}.")
        _log.info(
            f"The hindcast {run_id} is complete.",
            input_rows=result.get("input_rows"),
            state=result.get("state"),
        )
        return result

    def _request(
        self, run_id: str, interval_start: datetime | None, interval_end: datetime | None
    ) -> ReplayRequest:
        """:raises BadInputError: if the fields do not make one range"""
        try:
            choice = RangeChoice(self.choice)
        except ValueError as error:
            cure = "Choose one of: " + ", ".join(RangeChoice)
            raise BadRangeError(range=self.choice, problem="there is no such choice", cure=cure) from error
        fields: dict[str, Any] = {}
        if choice is RangeChoice.INTERVAL:
            if interval_start is None or interval_end is None:
                cure = "Give the run a logical date, or choose another range."
                raise BadRangeError(range=choice, problem="this run has no data interval", cure=cure)
            fields["from_time"] = interval_start.isoformat()
            fields["to_time"] = interval_end.isoformat()
        elif choice is RangeChoice.TIMES:
            fields["from_time"] = given(self.from_time, "from_time", choice)
            fields["to_time"] = given(self.to_time, "to_time", choice)
        elif choice is RangeChoice.OFFSETS:
            fields["from_offsets"] = given(self.from_offsets, "from_offsets", choice)
            fields["to_offsets"] = given(self.to_offsets, "to_offsets", choice)
        elif choice is RangeChoice.SINCE_LAST_VERDICT:
            fields["since_last_verdict"] = True
        elif choice is RangeChoice.LATE:
            fields["late"] = True
        else:
            fields["everything"] = True
        return ReplayRequest.parse(pipeline=self.pipeline, run_id=run_id, **fields)


class CorrectLateOperator(HindcastReplayOperator):
    """Replay the windows of late rows that no correction has.

    Skipped if the active version does not have the policy *correct*. Each run reads which version is
    active, so a promotion or a back-out counts at once.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(choice=RangeChoice.LATE.value, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        active = active_version(self.pipeline)
        if active.policy is not Policy.CORRECT:
            policy = active.policy.value
            raise AirflowSkipException(
                f"Version {active.version} of {self.pipeline} is active and has the policy {policy}."
            )
        return super().execute(context)


def active_version(name: str) -> Pipeline:
    """The declaration of the pipeline's version that is active now.

    :raises AirflowFailException: if no file declares it
    """
    try:
        return Hindcast().pipeline(name).declared
    except BadInputError as error:
        raise AirflowFailException(str(error)) from error


def given(text: str, name: str, choice: StrEnum) -> str:
    """The text of a field that the choice needs.

    :raises BadRangeError: if it is empty
    """
    if text in {"", "null", "None"}:  # a form's empty field, as a template passes it on
        raise BadRangeError(range=choice, problem=f"{name} is empty", cure=f"Fill {name} in.")
    return text


class FindHindcastsOperator(BaseOperator):
    """Returns the run ids to judge: those of *every* asset event that led to this run, or the one a person
    gave.

    Airflow gathers the events that come while it makes a run: five backfilled hindcasts may trigger three
    runs.
    """

    template_fields = ("pipeline", "run_id")

    def __init__(self, *, pipeline: str, run_id: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.run_id = run_id

    def execute(self, context: Context) -> list[str]:
        run_ids = []
        asked = self.run_id.strip()
        if asked:
            run_ids.append(asked)
        events = context["triggering_asset_events"]
        asset = hindcast_asset(self.pipeline)
        if asset in events:
            named = [event.extra.get("run_id") for event in events[asset]]
            run_ids.extend(str(run_id) for run_id in named if run_id)
        found = list(dict.fromkeys(run_ids))
        if not found:
            raise AirflowFailException(
                f"There is no hindcast of {self.pipeline} to judge. "
                "Trigger this DAG with the run_id of one: `hindcast runs` lists them."
            )
        try:
            for run_id in found:
                check_name("run", run_id)
        except BadInputError as error:
            raise AirflowFailException(str(error)) from error
        _log.info(f"Hindcasts to judge: {', '.join(found)}.")
        return found


class ValidateOperator(ReplayAppOperator):
    """Compare one hindcast with the stream's table. Fails, without a retry, if the verdict does."""

    template_fields = ("pipeline", "run_id")
    operator_extra_links = (VerdictLink(), DataDocsLink())

    def __init__(self, *, pipeline: str, run_id: Any, **kwargs: Any) -> None:
        """:param run_id: the replay's, as a text, or as the XCom argument that will have it"""
        super().__init__(pipeline=pipeline, **kwargs)
        self.run_id = run_id

    def execute(self, context: Context) -> dict[str, Any]:
        context["ti"].xcom_push(key=RUN_ID, value=self.run_id)
        ended = self.run_app(["verdict", "--pipeline", self.pipeline, "--run-id", self.run_id])
        if ended.exit_code == VerdictFailedError.exit_code:
            context["ti"].xcom_push(key="verdict", value=ended.result)
            self._name_differences()
            raise AirflowFailException(ended.reason)
        verdict = self.result_of(ended)
        context["ti"].xcom_push(key="verdict", value=verdict)
        unexplained = verdict.get("unexplained")
        captured = verdict.get("captured")
        _log.info(
            f"{self.pipeline} holds: {unexplained} unexplained differences, captured {captured}.",
            windows_compared=verdict.get("windows_compared"),
            rows_compared=verdict.get("rows_compared"),
            late_rows=verdict.get("late_rows"),
        )
        return verdict

    def _name_differences(self) -> None:
        found = Hindcast().differences(self.run_id)
        rows = [row for row in found if row["cause"] in {"unexplained", "bound"}]
        rows.sort(key=lambda row: (row["kind"], row["keys"], row["column"] or ""))
        for row in rows[:NAMED_DIFFERENCES]:
            said = f"{row['kind']}: the row {row['keys']}"
            if row["column"]:
                said += f", column {row['column']}"
            _log.error(said, stream=row["stream_value"], hindcast=row["hindcast_value"])
        more = len(rows) - NAMED_DIFFERENCES
        if more > 0:
            _log.error(f"{more} more differences were kept; the verdict's page shows them.")


class BenchmarkOperator(AwaitingOperator):
    """Replay the reference range of the active version, as a batch and with its recorded batches.

    `hindcast runs` keeps what both cost. Skipped if the active version declares no reference range.
    """

    template_fields = ("pipeline",)
    operator_extra_links = (ControlRoomLink(),)

    def execute(self, context: Context) -> dict[str, Any]:
        active = active_version(self.pipeline)
        if active.reference is None:
            raise AirflowSkipException(
                f"Version {active.version} of {self.pipeline} is active and pins no reference range."
            )
        pipeline = check_name("pipeline", self.pipeline)
        run_id = new_run_id(pipeline, datetime.now(UTC))
        return self.answer(context, ["benchmark", "--pipeline", pipeline], run_id)

    def done(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - as its parent has it
        if "batch" not in result:
            raise AirflowSkipException(result["note"])
        for way in ("batch", "re_execution"):
            run = result[way]
            speed = f"{run['rows_per_second']:,.0f} rows/s"
            _log.info(f"{self.pipeline} as {way}: {speed}.", run_id=run["run_id"], note=run.get("note"))
        return result


class ArchiveOperator(AppOperator):
    """Archive what a topic holds and its archive does not.

    A gap fails the task at once: a person must accept it.
    """

    template_fields = ("topic",)
    operator_extra_links = (ControlRoomLink(),)
    app = "archive"

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        ended = self.run_app(["run", check_topic(self.topic)])
        done = self.result_of(ended)
        _log.info(
            f"{self.topic} is archived up to its end.",
            rows=done.get("rows"),
            bytes=done.get("bytes"),
            steps=done.get("steps"),
        )
        return done


class MaintainOperator(BaseOperator):
    """Compact, vacuum and tidy what Hindcast keeps, so that a listing never slows down as history grows.

    A table that cannot be read keeps no other one from being maintained. The task fails once all are done.
    """

    operator_extra_links = (ControlRoomLink(),)

    def execute(self, context: Context) -> list[dict[str, Any]]:  # noqa: ARG002 - Airflow's signature
        from hindcast.tables.retention import check_maintained  # delta-rs: a DAG file does without it

        done = Hindcast().maintain()
        for row in done:
            figures = {key: value for key, value in row.items() if key != "table"}
            _log.info(f"Maintained {row.get('table')}.", **figures)
        check_maintained(done)
        return done
