"""The tasks of `reprocess`: start a version, prove it, promote or discard it, watch it, back out of it.

Each task reads the current state before it acts, and acts by one compare-and-swap. So a retry of a task
that was killed finds what was done already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from airflow.sdk.exceptions import AirflowFailException

from hindcast import Hindcast
from hindcast.airflow.approval import Decision
from hindcast.airflow.kafka_connection import settings_of_children
from hindcast.airflow.links import RUN_ID, ControlRoomLink, DataDocsLink, VerdictLink
from hindcast.airflow.operators import TRIED_AGAIN, AppOperator, awaited_of, given
from hindcast.airflow.spark_subprocess import Ended
from hindcast.airflow.version_triggers import (
    News,
    PromotedTrigger,
    ShadowTrigger,
    look_at_promoted,
    look_at_shadow,
)
from hindcast.errors import BadInputError, BadRangeError, VerdictFailedError
from hindcast.replay.request import ReplayRequest, new_run_id
from hindcast.replay.wait_for_stream import Awaited
from hindcast.shards.active_version import Rollout
from hindcast.shards.pipeline_row import SHADOW, ChangeKind
from hindcast.shards.version_changes import Versions
from hindcast.shards.version_events import record_changes

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

_log = structlog.get_logger(__name__)


class StartChoice(StrEnum):
    """The start of a new version, as the form of the DAG offers it."""

    EARLIEST = "earliest"
    TIME = "a time"
    OFFSETS = "offsets"


@contextmanager
def refusals() -> Iterator[None]:
    """Fail the task at once if no retry can help.

    :raises AirflowFailException: instead of a BadInputError
    """
    try:
        yield
    except BadInputError as error:
        raise AirflowFailException(str(error)) from error


class _VersionOperator(AppOperator):
    """:param version: a number or its text"""

    template_fields: Collection[str] = ("pipeline", "version")
    operator_extra_links: Collection[BaseOperatorLink] = (ControlRoomLink(),)
    app = "versions"

    def __init__(self, *, pipeline: str, version: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.version = version

    @property
    def number(self) -> int:
        return int(self.version)

    def rollout(self) -> Rollout:
        with refusals():
            return Versions(Hindcast().lease_table).of(self.pipeline)

    def about(self) -> list[str]:
        return ["--pipeline", self.pipeline, "--version", str(self.number)]


class StartVersionOperator(_VersionOperator):
    """Begin the version as a shadow; one that is a shadow already stays as it is.

    :param start: one of :class:`StartChoice`; the other fields count if the choice needs them
    :param new_table: true if readers are meant to see other columns
    """

    template_fields = ("pipeline", "version", "start", "from_time", "from_offsets", "new_table")

    def __init__(
        self,
        *,
        start: str = StartChoice.EARLIEST.value,
        from_time: str = "",
        from_offsets: str = "",
        new_table: Any = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.start = start
        self.from_time = from_time
        self.from_offsets = from_offsets
        self.new_table = new_table

    def execute(self, context: Context) -> dict[str, Any]:
        with refusals():
            start = self._start()
        begun: dict[str, Any] = {"pipeline": self.pipeline, "version": self.number, "begun": False}
        if self._is_shadow():
            _log.info(f"Version {self.number} of {self.pipeline} is a shadow already; the task keeps it.")
            return begun
        arguments = ["begin", *self.about(), f"--from={start}", f"--by={context['dag'].dag_id}"]
        if str(self.new_table).lower() == "true":
            arguments.append("--new-table")
        ended = self.run_app(arguments)
        # The child of a try that was given up may have outlived it and begun the version.
        if ended.exit_code and self._is_shadow():
            return begun
        return {**self.result_of(ended), "begun": True}

    def _is_shadow(self) -> bool:
        beside = self.rollout().beside
        if beside is None or beside.leaving:
            return False
        return beside.version == self.number and beside.state in SHADOW

    def _start(self) -> str:
        """:raises BadRangeError: if there is no such choice, or the field that it needs is empty"""
        try:
            choice = StartChoice(self.start)
        except ValueError as error:
            cure = "Choose one of: " + ", ".join(StartChoice)
            raise BadRangeError(range=self.start, problem="there is no such choice", cure=cure) from error
        if choice is StartChoice.TIME:
            return given(self.from_time, "from_time", choice)
        if choice is StartChoice.OFFSETS:
            return given(self.from_offsets, "from_offsets", choice)
        return choice.value


class AwaitCaughtUpOperator(_VersionOperator):
    """Sleep in the triggerer, on no worker slot, until the shadow has caught up.

    Returns (XCom) {news, since}: ``since`` is the change that made the version live. Later proofs hold for
    that state alone.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        with refusals():
            news = look_at_shadow(Hindcast(), self.pipeline, self.number)
        if news is None:
            self.defer(trigger=ShadowTrigger(self.pipeline, self.number), method_name="settled")
        return self.settled(context, news)

    def settled(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        if event["news"] != News.LIVE:
            raise AirflowFailException(
                f"Version {self.number} of {self.pipeline} is no shadow (any more): "
                "it was promoted or discarded. Nothing has changed here. "
                f"`hindcast versions --pipeline {self.pipeline}` lists the versions."
            )
        return event


class JudgeVersionOperator(_VersionOperator):
    """Give the version a verdict of its own, and return it even if it fails.

    A person decides what a failed verdict means, or the watch.
    """

    operator_extra_links = (VerdictLink(), DataDocsLink())
    app = "replay"

    def execute(self, context: Context) -> dict[str, Any]:
        return self.judge(context, everything=True)

    def judge(self, context: Context, **what: Any) -> dict[str, Any]:
        """:param what: the range, as :meth:`hindcast.replay.request.ReplayRequest.parse` takes it"""
        return self.verdict_of(self.run_judge(context, **what))

    def run_judge(self, context: Context, **what: Any) -> Ended:
        """Run the application; :meth:`verdict_of` reads how it ended."""
        run_id = new_run_id(self.pipeline, datetime.now(UTC))
        context["ti"].xcom_push(key=RUN_ID, value=run_id)
        request = ReplayRequest.parse(pipeline=self.pipeline, version=self.number, run_id=run_id, **what)
        arguments = ["judge", *request.to_arguments(), TRIED_AGAIN]
        return self.run_replay(context, arguments, run_id, self.pipeline, self.number)

    def verdict_of(self, ended: Ended) -> dict[str, Any]:
        """The verdict, passed or not."""
        if ended.exit_code == VerdictFailedError.exit_code and ended.result is not None:
            _log.warning(ended.reason)
            return ended.result
        return self.result_of(ended)


class CompareVersionsOperator(_VersionOperator):
    """Compare the version with the active one, and return the comparison even if it fails.

    A person decides what that means.
    """

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        ended = self.run_app(["compare", "--pipeline", self.pipeline])
        comparison = None
        if ended.exit_code == VerdictFailedError.exit_code:
            comparison = ended.result
        if not comparison:
            comparison = self.result_of(ended)
        other = comparison["version"]
        if other != self.number:
            raise AirflowFailException(
                f"Version {other} is compared with the active version now, not version {self.number}."
            )
        return comparison


class PromoteVersionOperator(_VersionOperator):
    """Promote the approved version, if nothing has changed since; a version that is active stays so.

    The approver's reason is used, and kept, only if the promotion is refused without it.

    Returns (XCom) {change, since, at, ...}: the promotion's id, its number and its instant, for the watch.

    :param approval: what the approving task returned
    :param caught_up: what :class:`AwaitCaughtUpOperator` returned
    """

    template_fields = ("pipeline", "version", "approval", "caught_up")

    def __init__(self, *, approval: Any, caught_up: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.approval = approval
        self.caught_up = caught_up

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        if self.approval["answer"] != Decision.PROMOTE:
            raise AirflowFailException(
                "Nobody approved the promotion. Clear the task that asks, and answer it."
            )
        rollout = self.rollout()
        result: dict[str, Any] = {"pipeline": self.pipeline, "version": self.number, "promoted": False}
        if rollout.active != self.number:
            ended = self._promote()
            rollout = self.rollout()
            # A child that failed is no fault if the version is active: another one was faster.
            if rollout.active != self.number or not ended.exit_code:
                result = self.result_of(ended)
        change = record_changes(Hindcast().tables, rollout).change
        promotion: dict[str, Any] = {
            "change": "",
            "since": rollout.changes,
            "at": datetime.now(UTC).isoformat(),
        }
        promoted = change is not None and change.kind is ChangeKind.PROMOTED
        if change is not None and promoted and change.version == self.number:
            promotion = {"change": change.id, "since": change.number, "at": change.at.isoformat()}
        return {**result, **promotion}

    def _promote(self) -> Ended:
        arguments = ["promote", *self.about()]
        arguments += [f"--since={self.caught_up['since']}", f"--by={self.approval['who']}"]
        ended = self.run_app(arguments)
        if ended.exit_code == BadInputError.exit_code and self.approval["despite"]:
            despite = self.approval["despite"]
            _log.warning("It was not proved; promoting it for the reason given.", despite=despite)
            return self.run_app([*arguments, f"--despite={despite}"])
        return ended


class DiscardVersionOperator(_VersionOperator):
    """Remove the shadow and all that it wrote. It is no fault if it is gone already."""

    def execute(self, context: Context) -> dict[str, Any]:
        rollout = self.rollout()
        beside = rollout.beside
        is_beside = beside is not None and beside.version == self.number
        if rollout.active != self.number and not is_beside:
            record_changes(Hindcast().tables, rollout)
            _log.info(f"Version {self.number} of {self.pipeline} is gone already.")
            return {
                "pipeline": self.pipeline,
                "version": self.number,
                "active": rollout.active,
                "deleted": [],
            }
        with refusals():
            pipeline = Hindcast().pipeline(self.pipeline)
            return pipeline.discard(self.number, by=context["dag"].dag_id)


class WatchPromotedOperator(JudgeVersionOperator):
    """Watch the promoted version from the triggerer, and return to the old one if a verdict of the new one
    fails.

    The time counts from the promotion, however often this task is tried. A watch without any verdict would
    prove nothing, so it ends with a verdict of its own. There is nothing to prove if the version has read its
    whole topic, and its last verdict covers all of that.

    :param promoted: what the promoting task returned
    :param minutes: a number or its text
    """

    template_fields = ("pipeline", "version", "promoted", "minutes")

    def __init__(self, *, promoted: Any, minutes: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.promoted = promoted
        self.minutes = minutes
        self._is_quiet = False  # whether this try found nothing to judge

    def execute(self, context: Context) -> dict[str, Any]:
        promoted_at = datetime.fromisoformat(self.promoted["at"])
        until = promoted_at + timedelta(minutes=float(self.minutes))
        since = self.promoted["since"]
        with refusals():
            news = look_at_promoted(Hindcast(), self.pipeline, self.number, since, until)
        if news is None:
            _log.info(f"Watching version {self.number} of {self.pipeline} until {until.isoformat()}.")
            trigger = PromotedTrigger(self.pipeline, self.number, since, until.isoformat())
            self.defer(trigger=trigger, method_name="seen")
        return self.seen(context, news)

    def seen(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        if event["news"] == News.INACTIVE:
            self._say_backed_out()
        if event["news"] == News.FAILED:
            failed = f"its verdict {event['run_id']} failed"
            if event["unexplained"]:
                self._back_out(f"{failed} with {event['unexplained']} unexplained differences")
            self._back_out(f"{failed}: `hindcast verdicts --run {event['run_id']}` says why")
        if event["verdicts"]:
            return event
        ended = self.run_judge(context, since_last_verdict=True)
        if self._is_quiet:
            _log.info(f"Version {self.number} of {self.pipeline} has read nothing since its last verdict.")
            return event
        verdict = self.verdict_of(ended)
        if not verdict["passed"]:
            failed = "; ".join(verdict["failed"])
            self._back_out(f"its verdict {verdict['run_id']} failed: {failed}")
        return {**event, "verdicts": 1, "run_id": verdict["run_id"]}

    def is_asked_again(self, context: Context, ended: Ended) -> bool:
        self._is_quiet = self._nothing_to_judge(ended)
        return self._is_quiet or super().is_asked_again(context, ended)

    def _nothing_to_judge(self, ended: Ended) -> bool:
        """Whether the version has read nothing since its last verdict, and nothing is left to be read.

        A stream that stands still has read nothing, too.
        """
        found = awaited_of(ended)
        if found is None:
            return False
        awaited = Awaited.from_json(found)
        if not awaited.beyond or awaited.offsets or awaited.batches or awaited.at or awaited.rewind:
            return False
        from hindcast.kafka.offsets import TopicOffsets, across

        hindcast = Hindcast()
        pipeline = hindcast.catalog.of(self.pipeline, self.number)
        with TopicOffsets(settings_of_children(hindcast.settings)) as topic:
            latest = across(pipeline, topic.latest)
        return all(end <= awaited.beyond.get(partition, 0) for partition, end in latest.items())

    def _say_backed_out(self) -> NoReturn:
        """Fail because another version is active: a person returned to it, or an earlier try of this task
        did.

        Such a try may have been killed before it wrote the event.
        """
        rollout = record_changes(Hindcast().tables, self.rollout())
        last = ""
        if rollout.change is not None:
            last = rollout.change.sentence
        raise AirflowFailException(
            f"Version {self.number} of {self.pipeline} is active no more, version {rollout.active} is. {last}"
        )

    def _back_out(self, why: str) -> NoReturn:
        hindcast = Hindcast()
        _log.error(f"Backing out of version {self.number} of {self.pipeline}: {why}.")
        with refusals():
            versions = Versions(hindcast.lease_table)
            since = self.promoted["change"]
            rollout = versions.back_out(self.pipeline, who=f"the watch: {why}", since=since)
        record_changes(hindcast.tables, rollout)
        raise AirflowFailException(
            f"{self.pipeline} was backed out to version {rollout.active}: "
            f"version {self.number} was promoted, and {why}. "
            f"It stays a shadow: correct it, or `hindcast discard {self.pipeline} --version {self.number}`."
        )
