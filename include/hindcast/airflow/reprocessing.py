"""The tasks of `reprocess`: a new version beside the active one, proved, promoted or discarded, watched and backed out.

Each looks at what is there before it acts, and acts by one compare-and-swap: a try that repeats one that was killed finds it done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from airflow.sdk.exceptions import AirflowFailException

from hindcast.airflow.approval import Answer
from hindcast.airflow.children import Ended
from hindcast.airflow.links import RUN_ID, ControlRoomLink, DataDocsLink, VerdictLink
from hindcast.airflow.operators import TRIED_AGAIN, AppOperator, given
from hindcast.airflow.version_triggers import News, PromotedTrigger, ShadowTrigger, look_at_promoted, look_at_shadow
from hindcast.control.lease_table import LeaseTable
from hindcast.control.standing import SHADOW, ChangeKind, Standing
from hindcast.control.tables import ControlTables
from hindcast.control.telling import tell
from hindcast.control.versions import Versions
from hindcast.errors import BadInputError, BadRangeError, VerdictFailedError
from hindcast.replay.request import ReplayRequest, new_run_id
from hindcast.settings import Settings
from hindcast.versions.discarding import discard

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

_log = structlog.get_logger(__name__)


class StartChoice(StrEnum):
    """Where a new version begins, as the form of the DAG offers it."""

    EARLIEST = "earliest"
    TIME = "a time"
    OFFSETS = "offsets"


@contextmanager
def refusals() -> Iterator[None]:
    """What no retry can help fails the task at once.

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
    app = "versions.py"

    def __init__(self, *, pipeline: str, version: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.version = version

    @property
    def number(self) -> int:
        return int(self.version)

    def standing(self) -> Standing:
        with refusals():
            return Versions(LeaseTable(Settings())).of(self.pipeline)

    def about(self) -> list[str]:
        return ["--pipeline", self.pipeline, "--version", str(self.number)]


class StartVersionOperator(_VersionOperator):
    """Begin the version as a shadow. One that stands beside the active version already is gone on with.

    :param start: one of :class:`StartChoice`; the other fields count where it asks for them
    :param new_table: true where readers are meant to see other columns
    """

    template_fields = ("pipeline", "version", "start", "from_time", "from_offsets", "new_table")

    def __init__(
        self, *, start: str = StartChoice.EARLIEST.value, from_time: str = "", from_offsets: str = "", new_table: Any = False, **kwargs: Any
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
            _log.info(f"Version {self.number} of {self.pipeline} is beside the active one already: going on with it.")
            return begun
        by = f"--by={context['dag'].dag_id}"
        new_table = ["--new-table"] if str(self.new_table).lower() == "true" else []
        ended = self.run_app(["begin", *self.about(), f"--from={start}", by, *new_table])
        if ended.exit_code and self._is_shadow():  # by the child of a try that was given up, which outlived it
            return begun
        return {**self.result_of(ended), "begun": True}

    def _is_shadow(self) -> bool:
        beside = self.standing().beside
        return beside is not None and beside.version == self.number and beside.state in SHADOW and not beside.leaving

    def _start(self) -> str:
        """:raises BadRangeError: where the field is empty that the choice asks for"""
        try:
            choice = StartChoice(self.start)
        except ValueError as error:
            cure = "Choose one of: " + ", ".join(StartChoice)
            raise BadRangeError(range=self.start, problem="there is no such choice", cure=cure) from error
        if choice is StartChoice.TIME:
            return given(self.from_time, "from_time", choice)
        return given(self.from_offsets, "from_offsets", choice) if choice is StartChoice.OFFSETS else choice.value


class AwaitCaughtUpOperator(_VersionOperator):
    """Sleep in the triggerer, on no worker slot, until the shadow has caught up.

    Returns (XCom) {news, since}: the change since which it is live. What is proved from here on is proved of that state alone.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        with refusals():
            news = look_at_shadow(Settings(), self.pipeline, self.number)
        if news is None:
            self.defer(trigger=ShadowTrigger(self.pipeline, self.number), method_name="settled")
        return self.settled(context, news)

    def settled(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        if event["news"] != News.LIVE:
            raise AirflowFailException(
                f"Version {self.number} of {self.pipeline} is no shadow beside the active version (any more): somebody promoted or "
                f"discarded it. Nothing has changed here. `hindcast versions --pipeline {self.pipeline}` lists what there is."
            )
        return event


class JudgeVersionOperator(_VersionOperator):
    """Give the version a verdict of its own. One that fails is returned like one that passes: a person decides, or the watch."""

    operator_extra_links = (VerdictLink(), DataDocsLink())
    app = "replay.py"

    def execute(self, context: Context) -> dict[str, Any]:
        return self.judge(context, everything=True)

    def judge(self, context: Context, **what: Any) -> dict[str, Any]:
        """:param what: the range, as :meth:`hindcast.replay.request.ReplayRequest.parse` takes it"""
        run_id = new_run_id(self.pipeline, datetime.now(UTC))
        context["ti"].xcom_push(key=RUN_ID, value=run_id)
        request = ReplayRequest.parse(pipeline=self.pipeline, version=self.number, run_id=run_id, **what)
        arguments = ["judge", *request.to_arguments(), TRIED_AGAIN]
        ended = self.run_replay(context, arguments, run_id, self.pipeline, self.number)
        if ended.exit_code == VerdictFailedError.exit_code and ended.result is not None:
            _log.warning(ended.reason)
            return ended.result
        return self.result_of(ended)


class CompareVersionsOperator(_VersionOperator):
    """Compare the version with the active one. One that fails is returned like one that passes: a person decides."""

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        ended = self.run_app(["compare", "--pipeline", self.pipeline])
        failed = ended.result if ended.exit_code == VerdictFailedError.exit_code else None
        comparison = failed or self.result_of(ended)
        if comparison["version"] != self.number:
            raise AirflowFailException(f"Version {comparison['version']} is beside the active one now, not version {self.number}.")
        return comparison


class PromoteVersionOperator(_VersionOperator):
    """Promote what was approved, if nothing has changed since; a version that is active is left so.

    The approver's reason is used, and kept, only where the promotion is refused without it.

    Returns (XCom) {change, since, at, ...}: the promotion's id, its number and its instant, for the watch.

    :param approval: what the approving task returned
    :param caught_up: what the task returned that waited for the version
    """

    template_fields = ("pipeline", "version", "approval", "caught_up")

    def __init__(self, *, approval: Any, caught_up: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.approval = approval
        self.caught_up = caught_up

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        if self.approval["answer"] != Answer.PROMOTE:
            raise AirflowFailException("Nobody approved the promotion. Clear the task that asks, and answer it.")
        standing, result = self.standing(), {"pipeline": self.pipeline, "version": self.number, "promoted": False}
        if standing.active != self.number:
            ended = self._promote()
            standing = self.standing()
            if standing.active != self.number or not ended.exit_code:
                result = self.result_of(ended)
        change = tell(ControlTables(Settings()), standing).change
        promotion = change if change is not None and (change.kind, change.version) == (ChangeKind.PROMOTED, self.number) else None
        at = promotion.at if promotion else datetime.now(UTC)
        since = promotion.number if promotion else standing.changes
        return {**result, "change": promotion.id if promotion else "", "since": since, "at": at.isoformat()}

    def _promote(self) -> Ended:
        arguments = ["promote", *self.about(), f"--since={self.caught_up['since']}", f"--by={self.approval['who']}"]
        ended = self.run_app(arguments)
        if ended.exit_code == BadInputError.exit_code and self.approval["despite"]:
            _log.warning("It was not proved; promoting it for the reason given.", despite=self.approval["despite"])
            return self.run_app([*arguments, f"--despite={self.approval['despite']}"])
        return ended


class DiscardVersionOperator(_VersionOperator):
    """Remove the shadow and all that it made; one that is gone already is no fault."""

    def execute(self, context: Context) -> dict[str, Any]:
        standing = self.standing()
        if standing.active != self.number and (standing.beside is None or standing.beside.version != self.number):
            tell(ControlTables(Settings()), standing)
            _log.info(f"Version {self.number} of {self.pipeline} is gone already.")
            return {"pipeline": self.pipeline, "version": self.number, "active": standing.active, "deleted": []}
        with refusals():
            return discard(Settings(), self.pipeline, self.number, who=context["dag"].dag_id)


class WatchPromotedOperator(JudgeVersionOperator):
    """Sleep in the triggerer while readers have the new version, and return to the old one if a verdict of the new one fails.

    The time counts from the promotion, however often this task is tried. A watch without any verdict would show nothing: such a one ends
    with a verdict of its own.

    :param promoted: what the promoting task returned
    :param minutes: a number or its text
    """

    template_fields = ("pipeline", "version", "promoted", "minutes")

    def __init__(self, *, promoted: Any, minutes: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.promoted = promoted
        self.minutes = minutes

    def execute(self, context: Context) -> dict[str, Any]:
        at = datetime.fromisoformat(self.promoted["at"])
        until = at + timedelta(minutes=float(self.minutes))
        with refusals():
            news = look_at_promoted(Settings(), self.pipeline, self.number, self.promoted["since"], until)
        if news is None:
            _log.info(f"Watching version {self.number} of {self.pipeline} until {until.isoformat()}.")
            trigger = PromotedTrigger(self.pipeline, self.number, self.promoted["since"], until.isoformat())
            self.defer(trigger=trigger, method_name="seen")
        return self.seen(context, news)

    def seen(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        if event["news"] == News.INACTIVE:
            self._say_backed_out()
        if event["news"] == News.FAILED:
            self._back_out(f"its verdict {event['run_id']} failed with {event['unexplained']} unexplained differences")
        if event["verdicts"]:
            return event
        verdict = self.judge(context, since_last_verdict=True)
        if not verdict["passed"]:
            self._back_out(f"its verdict {verdict['run_id']} failed: {'; '.join(verdict['failed'])}")
        return {**event, "verdicts": 1, "run_id": verdict["run_id"]}

    def _say_backed_out(self) -> NoReturn:
        """Somebody returned to another version, or an earlier try of this task did and was killed before it could say so."""
        standing = tell(ControlTables(Settings()), self.standing())
        last = standing.change.sentence if standing.change else ""
        raise AirflowFailException(f"Version {self.number} of {self.pipeline} is active no more, version {standing.active} is. {last}")

    def _back_out(self, why: str) -> NoReturn:
        settings = Settings()
        _log.error(f"Returning from version {self.number} of {self.pipeline} to the one before: {why}.")
        with refusals():
            versions = Versions(LeaseTable(settings))
            standing = versions.back_out(self.pipeline, who=f"the watch: {why}", since=self.promoted["change"])
        tell(ControlTables(settings), standing)
        raise AirflowFailException(
            f"{self.pipeline} was backed out to version {standing.active}: version {self.number} was promoted, and {why}. It goes on "
            f"beside the active one: mend it, or `hindcast discard {self.pipeline} --version {self.number}`."
        )
