"""Ask a person whether a new version shall be promoted: Airflow's own human-in-the-loop task, with the comparison in its text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLBranchOperator
from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Of the differing rows that a comparison keeps, so many are in the text, and so much of each value.
SHOWN_SAMPLES = 5
SHOWN_CHARACTERS = 160
REASON_CHARACTERS = 500
ANSWER = "answer"

_CAUSES = {"late_in_one_version": "a row came late for one of the versions alone", "version": "the versions' own rules"}


class Answer(StrEnum):
    """What a person may answer, each with the task that does it."""

    PROMOTE = "Promote"
    DISCARD = "Discard"


class ApprovePromotionOperator(HITLBranchOperator):
    """Ask; then go on with the task that does what was answered.

    Without an answer in time nothing is changed and the task fails. A promotion of a version that was not proved needs a reason, which
    the form asks for.

    Pushes {answer, despite, who} as the XCom :data:`ANSWER`: a branching task ends by an exception of Airflow's, and returns nothing.

    :param verdict: the new version's own verdict, as the task that judged it returned it
    :param comparison: with the active version, as the task that compared them returned it
    :param hours: a number or its text: how long an answer is waited for
    :param tasks: the ids of the tasks that promote and discard
    """

    template_fields = ("subject", "body", "verdict", "comparison", "hours")

    def __init__(self, *, pipeline: str, verdict: Any, comparison: Any, hours: Any, tasks: Mapping[Answer, str], **kwargs: Any) -> None:
        kwargs.pop("params", None)  # the DAG's, which Airflow gives to each of its tasks: they are no fields of this form
        super().__init__(
            subject=f"Shall the new version of {pipeline} be promoted?",
            options=[answer.value for answer in Answer],
            options_mapping={answer.value: task for answer, task in tasks.items()},
            params={
                "despite": Param(
                    "",
                    type="string",
                    maxLength=REASON_CHARACTERS,
                    title="Despite",
                    description="Why it is promoted although it was not proved; kept in the events. Empty where it was.",
                )
            },
            **kwargs,
        )
        self.pipeline = pipeline
        self.verdict = verdict
        self.comparison = comparison
        self.hours = hours

    def execute(self, context: Context) -> None:
        self.body = approval_text(self.verdict, self.comparison)
        self.response_timeout = timedelta(hours=float(self.hours))
        super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        reason = str((event.get("params_input") or {}).get("despite") or "").strip()
        unproved = problems(self.verdict, self.comparison)
        if event.get("chosen_options") == [Answer.PROMOTE.value] and unproved and not reason:
            raise AirflowFailException(
                f"Version {self.comparison['version']} of {self.pipeline} was not proved: {'; '.join(unproved)}. Nothing has changed. "
                "Clear this task to be asked again, and give the reason for a promotion in the field Despite, or discard it."
            )
        if "error" not in event:
            user = event.get("responded_by_user") or {}
            answer = {"answer": event["chosen_options"][0], "despite": reason, "who": str(user.get("name") or user.get("id") or "")}
            context["ti"].xcom_push(key=ANSWER, value=answer)
        return super().execute_complete(context, event)

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        """:raises AirflowFailException: a retry would ask again without anybody's having said so"""
        name, version = self.pipeline, self.comparison["version"]
        if event["error_type"] == "timeout":
            raise AirflowFailException(
                f"Nobody answered within {float(self.hours):g} hours. Nothing has changed: version {version} of {name} goes on beside the "
                f"active one. Clear this task to ask again, or use `hindcast promote {name} --version {version}` or `hindcast discard`."
            )
        raise AirflowFailException(f"The answer cannot be used: {event.get('error')}. Nothing has changed. Clear this task to ask again.")


def problems(verdict: Mapping[str, Any], comparison: Mapping[str, Any]) -> list[str]:
    """Why the version is not proved; empty where it is."""
    failed = "; ".join(verdict["failed"]) or f"{verdict['unexplained']} differences are unexplained"
    return [
        *([] if verdict["passed"] else [f"its verdict failed: {failed}"]),
        *([] if comparison["passed"] else [f"the comparison failed: {'; '.join(comparison['failed'])}"]),
    ]


def approval_text(verdict: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """What a person needs for the decision, as Markdown. Whatever comes from data is escaped."""
    new, old = f"version {comparison['version']}", f"version {comparison['with']}"
    unproved = problems(verdict, comparison)
    proof = f"**Not proved.** {escaped('; '.join(unproved))}. To promote it all the same, say why in *Despite*." if unproved else "Proved."
    captured = verdict.get("captured")
    share = f", captured {captured:.4%} of its input" if isinstance(captured, float) else ""
    same, changed = comparison["same"], comparison["changed"]
    columns = [", ".join(comparison[key]) for key in ("columns_only_old", "columns_only_new")]
    tables = [
        _table(
            ["", old, new],
            [
                ["rows", same + changed + comparison["only_old"], same + changed + comparison["only_new"]],
                ["rows that the other lacks", comparison["only_old"], comparison["only_new"]],
                ["columns that the other lacks", columns[0] or "none", columns[1] or "none"],
            ],
        ),
        _table(["column", "differs in rows"], sorted(comparison["by_column"].items(), key=lambda item: (-item[1], item[0]))),
        _table(["cause", "differing rows"], [[_CAUSES.get(cause, cause), count] for cause, count in comparison["causes"].items()]),
        _table(
            ["sample row", "kind", "column", old, new],
            [[row["keys"], row["kind"], row["column"], row["old"], row["new"]] for row in comparison["samples"][:SHOWN_SAMPLES]],
        ),
    ]
    intro = (
        f"{new.capitalize()} of {escaped(comparison['pipeline'])} beside {old}, at equal offsets, over {comparison['windows']} windows "
        f"that both have closed (the last ends at {escaped(comparison['until'])}); only the old one has {comparison['missing_windows']} "
        f"of them. {same} rows are the same, {changed} changed."
    )
    own = f"{proof} Its own verdict, {escaped(verdict['run_id'])}: {verdict['unexplained']} unexplained differences{share}."
    choice = (
        f"*{Answer.PROMOTE}* makes {new} the active one: readers switch at once, {old} is kept warm, and a verdict that fails within the "
        f"watch returns to it. *{Answer.DISCARD}* removes {new} with its shards, checkpoints and tables."
    )
    return "\n\n".join([intro, own, *(table for table in tables if table), choice])


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]) if lines else ""


def escaped(value: Any) -> str:
    """As text that Markdown takes for text: every sign with a meaning is escaped, breaks are spaces, and the long is cut."""
    text = " ".join(("" if value is None else str(value)).split())
    if len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS] + "…"
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)
