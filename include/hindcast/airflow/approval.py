"""Ask a person whether to promote a new version, in the form of Airflow's human-in-the-loop task."""

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

#: How many of a comparison's sample rows the text shows, and how much of each value.
SHOWN_SAMPLES = 5
SHOWN_CHARACTERS = 160
REASON_CHARACTERS = 500
#: The XCom that holds the answer.
DECISION = "answer"

_CAUSES = {
    "late_in_one_version": "a row came late for one of the versions alone",
    "version": "the versions' own rules",
}


class Decision(StrEnum):
    """What a person may answer, each with the task that does it."""

    PROMOTE = "Promote"
    DISCARD = "Discard"


class ApprovePromotionOperator(HITLBranchOperator):
    """Ask, then let the task run that does what was answered.

    Without an answer in time nothing is changed and the task fails. A promotion of a version that was not
    proved needs a reason; the form asks for it.

    Pushes {answer, despite, who} as the XCom :data:`DECISION`: a branching task ends by an exception of
    Airflow's, so it returns nothing.

    :param verdict: the new version's own verdict, as the task that judged it returned it
    :param comparison: with the active version, as the task that compared them returned it
    :param hours: how long the task waits for an answer; a number or its text
    :param tasks: the ids of the tasks that promote and discard
    """

    template_fields = ("subject", "body", "verdict", "comparison", "hours")

    def __init__(
        self,
        *,
        pipeline: str,
        verdict: Any,
        comparison: Any,
        hours: Any,
        tasks: Mapping[Decision, str],
        **kwargs: Any,
    ) -> None:
        # Airflow gives the DAG's params to each of its tasks; they are no fields of this form.
        kwargs.pop("params", None)
        despite = Param(
            "",
            type="string",
            maxLength=REASON_CHARACTERS,
            title="Despite",
            description="Why it is promoted although it was not proved; kept in the events. Empty if it was.",
        )
        super().__init__(
            subject=f"Shall the new version of {pipeline} be promoted?",
            options=[answer.value for answer in Decision],
            options_mapping={answer.value: task for answer, task in tasks.items()},
            params={"despite": despite},
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
        """Check the answer and push it.

        :raises AirflowFailException: if a version that was not proved is to be promoted without a reason
        """
        params = event.get("params_input") or {}
        despite = str(params.get("despite") or "").strip()
        promotes = event.get("chosen_options") == [Decision.PROMOTE.value]
        unproved = problems(self.verdict, self.comparison)
        if promotes and unproved and not despite:
            raise AirflowFailException(
                f"Version {self.comparison['version']} of {self.pipeline} was not proved: "
                f"{'; '.join(unproved)}. Nothing has changed. Clear this task to be asked again, "
                "and give the reason for a promotion in the field Despite, or discard the version."
            )
        if "error" not in event:
            user = event.get("responded_by_user") or {}
            who = str(user.get("name") or user.get("id") or "")
            answer = {"answer": event["chosen_options"][0], "despite": despite, "who": who}
            context["ti"].xcom_push(key=DECISION, value=answer)
        return super().execute_complete(context, event)

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        """:raises AirflowFailException: always: a retry would ask again although no person asked for that"""
        name = self.pipeline
        version = self.comparison["version"]
        if event["error_type"] == "timeout":
            raise AirflowFailException(
                f"Nobody answered within {float(self.hours):g} hours. Nothing has changed: "
                f"version {version} of {name} stays a shadow. Clear this task to ask again, or use "
                f"`hindcast promote {name} --version {version}` or `hindcast discard`."
            )
        raise AirflowFailException(
            f"The answer cannot be used: {event.get('error')}. Nothing has changed. "
            "Clear this task to ask again."
        )


def problems(verdict: Mapping[str, Any], comparison: Mapping[str, Any]) -> list[str]:
    """Why the version is not proved; empty if it is."""
    found = []
    if not verdict["passed"]:
        failed = "; ".join(verdict["failed"]) or f"{verdict['unexplained']} differences are unexplained"
        found.append(f"its verdict failed: {failed}")
    if not comparison["passed"]:
        found.append(f"the comparison failed: {'; '.join(comparison['failed'])}")
    return found


def approval_text(verdict: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """What a person needs for the decision, as Markdown. What comes from data is escaped."""
    new = f"version {comparison['version']}"
    old = f"version {comparison['with']}"
    paragraphs = [_summary(comparison, new, old), _proof(verdict, comparison)]
    tables = [_bounds(verdict), *_tables(comparison, new, old)]
    paragraphs.extend(table for table in tables if table)
    paragraphs.append(
        f"*{Decision.PROMOTE}* makes {new} the active one: readers switch at once, {old} is kept warm, "
        "and a verdict that fails within the watch returns to it. "
        f"*{Decision.DISCARD}* removes {new} with its shards, checkpoints and tables."
    )
    return "\n\n".join(paragraphs)


def _summary(comparison: Mapping[str, Any], new: str, old: str) -> str:
    pipeline = escaped(comparison["pipeline"])
    until = escaped(comparison["until"])
    return (
        f"{new.capitalize()} of {pipeline} compared with {old}, at equal offsets, "
        f"over {comparison['windows']} windows that both have closed (the last ends at {until}); "
        f"only the old one has {comparison['missing_windows']} of them. "
        f"{comparison['same']} rows are the same, {comparison['changed']} changed."
        f"{_share(comparison)}"
    )


def _share(comparison: Mapping[str, Any]) -> str:
    """Which share of the keys differs, and which may."""
    share = comparison.get("changed_share")
    if share is None:
        return ""
    most = comparison.get("changed_at_most")
    if most is None:
        return f" {share:.4%} of the keys differ."
    return f" {share:.4%} of the keys differ; at most {most:.4%} may (changed\\_at\\_most)."


def _proof(verdict: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """Whether the version is proved, and what its own verdict says."""
    proof = "Proved."
    unproved = problems(verdict, comparison)
    if unproved:
        why = escaped("; ".join(unproved))
        proof = f"**Not proved.** {why}. To promote it all the same, say why in *Despite*."
    captured = verdict.get("captured")
    share = ""
    if isinstance(captured, float):
        share = f", captured {captured:.4%} of its input"
    run_id = escaped(verdict["run_id"])
    return f"{proof} Its own verdict, {run_id}: {verdict['unexplained']} unexplained differences{share}."


def _bounds(verdict: Mapping[str, Any]) -> str:
    """What the verdict measured against each bound that the version declares; empty if it declares none."""
    rows = []
    for kind, columns in (verdict.get("bounds") or {}).items():
        for column, found in columns.items():
            rows.append([kind, column, found["greatest"], found["bound"], found["beyond"]])
    return _table(["bound", "column", "measured", "allowed", "rows beyond it"], rows)


def _tables(comparison: Mapping[str, Any], new: str, old: str) -> list[str]:
    """Rows of both versions, differing rows by column and by cause, and sample rows."""
    only_old = comparison["only_old"]
    only_new = comparison["only_new"]
    common = comparison["same"] + comparison["changed"]
    old_columns = ", ".join(comparison["columns_only_old"]) or "none"
    new_columns = ", ".join(comparison["columns_only_new"]) or "none"
    totals = [
        ["rows", common + only_old, common + only_new],
        ["rows that the other lacks", only_old, only_new],
        ["columns that the other lacks", old_columns, new_columns],
    ]
    # The column that differs most comes first.
    by_column = sorted(comparison["by_column"].items(), key=lambda item: (-item[1], item[0]))
    causes = [[_CAUSES.get(cause, cause), count] for cause, count in comparison["causes"].items()]
    sampled = ("keys", "kind", "column", "old", "new")
    samples = []
    for row in comparison["samples"][:SHOWN_SAMPLES]:
        cells = [row[name] for name in sampled]
        samples.append(cells)
    return [
        _table(["", old, new], totals),
        _table(["column", "differs in rows"], by_column),
        _table(["cause", "differing rows"], causes),
        _table(["sample row", "kind", "column", old, new], samples),
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of Markdown; empty if it has no rows."""
    lines = []
    for row in rows:
        cells = " | ".join(escaped(cell) for cell in row)
        lines.append(f"| {cells} |")
    if not lines:
        return ""
    rule = "|" + "---|" * len(head)
    return "\n".join([f"| {' | '.join(head)} |", rule, *lines])


def escaped(value: Any) -> str:
    """The value as plain text in Markdown: signs are escaped, breaks are spaces, a long text is cut."""
    if value is None:
        return ""
    text = " ".join(str(value).split())
    if len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS] + "…"
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)
