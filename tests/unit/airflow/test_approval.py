"""The task that asks a person, with Airflow's own waiting and resuming stood in for by its two calls."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow.providers.standard.operators import hitl
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError, TaskAwaitingInput

from hindcast.airflow.approval import ApprovePromotionOperator, Decision, approval_text, escaped

pytestmark = pytest.mark.filterwarnings("ignore")

VERDICT = {"run_id": "r-1", "passed": True, "failed": [], "unexplained": 0, "captured": 0.99931}
COMPARISON = {
    "pipeline": "stock_stats", "version": 2, "with": 1, "windows": 40, "until": "2026-11-20T10:00:00+00:00", "missing_windows": 0,
    "same": 100, "changed": 7, "only_old": 3, "only_new": 1, "by_column": {"trades": 7, "min_ask": 2},
    "columns_only_old": [], "columns_only_new": ["max_ask"], "causes": {"late_in_one_version": 1, "version": 10},
    "samples": [{"kind": "changed", "keys": '{"ticker": "NVDA"}', "column": "trades", "old": "12", "new": "9"}] * 7,
    "failed": [], "passed": True,
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was put before a person."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **fields: found.append(fields))
    return found


@pytest.fixture
def branched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks that it goes on with."""
    found: list[str] = []
    monkeypatch.setattr(
        ApprovePromotionOperator,
        "do_branch",
        lambda _, context, branches_to_execute: found.extend(branches_to_execute),
    )
    return found


@pytest.fixture
def approve() -> Callable[..., ApprovePromotionOperator]:
    def make(
        verdict: dict[str, Any] | None = None, comparison: dict[str, Any] | None = None
    ) -> ApprovePromotionOperator:
        return ApprovePromotionOperator(
            task_id="approve",
            pipeline="stock_stats",
            verdict={**VERDICT, **(verdict or {})},
            comparison={**COMPARISON, **(comparison or {})},
            hours="2.5",
            tasks={Decision.PROMOTE: "promote", Decision.DISCARD: "discard"},
        )

    return make


def answer(option: Decision, despite: str = "") -> dict[str, Any]:
    """How Airflow resumes the task."""
    return {
        "chosen_options": [option.value],
        "params_input": {"despite": despite},
        "responded_at": datetime.now(UTC),
        "responded_by_user": {"id": "7", "name": "mira"},
        "timedout": False,
    }


class Instance:
    """What a task instance is to the operator."""

    id = "ti-1"

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def test_it_waits_for_the_stated_time_and_holds_no_slot(
    approve: Callable[..., Any], asked: list[dict[str, Any]]
) -> None:
    """Airflow parks the task; no default answer is there to be taken when the time is over."""
    with pytest.raises(TaskAwaitingInput) as waiting:
        approve().execute({"task_instance": Instance()})
    assert waiting.value.timeout == timedelta(hours=2.5)
    assert asked[0]["options"] == ["Promote", "Discard"]
    assert asked[0]["defaults"] is None
    assert list(asked[0]["params"]) == ["despite"]
    assert asked[0]["body"] == approval_text(VERDICT, COMPARISON)


@pytest.mark.parametrize(("option", "task"), [(Decision.PROMOTE, "promote"), (Decision.DISCARD, "discard")])
def test_an_answer_leads_to_its_task(
    approve: Callable[..., Any], branched: list[str], option: Decision, task: str
) -> None:
    """And says who gave it."""
    instance = Instance()
    approve().execute_complete({"ti": instance}, answer(option))
    assert instance.pushed == {"answer": {"answer": option.value, "despite": "", "who": "mira"}}
    assert branched == [task]


@pytest.mark.parametrize(
    ("verdict", "comparison", "words"),
    [
        ({"passed": False, "unexplained": 3}, {}, "3 differences are unexplained"),
        (
            {},
            {"passed": False, "failed": ["2 windows are only in version 1"]},
            "2 windows are only in version 1",
        ),
    ],
)
def test_what_is_not_proved_needs_a_reason(
    approve: Callable[..., Any],
    branched: list[str],
    verdict: dict[str, Any],
    comparison: dict[str, Any],
    words: str,
) -> None:
    """Without one nothing is begun; with one it is handed on; to discard needs none."""
    task = approve(verdict, comparison)
    for blank in ("", "  "):
        with pytest.raises(AirflowFailException, match=words) as refused:
            task.execute_complete({}, answer(Decision.PROMOTE, blank))
    assert "Nothing has changed. Clear this task" in str(refused.value)
    assert branched == []
    instance = Instance()
    task.execute_complete({"ti": instance}, answer(Decision.PROMOTE, " the old one was wrong "))
    assert instance.pushed["answer"]["despite"] == "the old one was wrong"
    task.execute_complete({"ti": instance}, answer(Decision.DISCARD))
    assert branched == ["promote", "discard"]


def test_no_answer_in_time_changes_nothing(approve: Callable[..., Any], branched: list[str]) -> None:
    """The task fails without a retry, which would ask again, and says what to do."""
    with pytest.raises(AirflowFailException, match=r"within 2\.5 hours\. Nothing has changed") as failed:
        approve().execute_complete({}, {"error": "The time has passed.", "error_type": "timeout"})
    assert "hindcast promote stock_stats --version 2" in str(failed.value)
    assert branched == []


@pytest.mark.parametrize("despite", [5, "x" * 501])
def test_an_answer_that_is_no_text_is_refused(
    approve: Callable[..., Any], branched: list[str], despite: Any
) -> None:
    """The REST API takes anything; the form's rule is kept here."""
    with pytest.raises(ParamValidationError):
        approve().execute_complete(
            {"ti": Instance()}, {**answer(Decision.PROMOTE), "params_input": {"despite": despite}}
        )
    assert branched == []


def test_the_text_says_what_a_person_decides_by() -> None:
    """Rows of both, differing rows by column and by cause, some sample rows, and whether it is proved."""
    text = approval_text(VERDICT, COMPARISON)
    for line in (
        "| rows | 110 | 108 |",
        "| rows that the other lacks | 3 | 1 |",
        r"| columns that the other lacks | none | max\_ask |",
        "| trades | 7 |",
        "| a row came late for one of the versions alone | 1 |",
        r"| \{\"ticker\"\: \"NVDA\"\} | changed | trades | 12 | 9 |",
    ):
        assert line in text
    assert text.index("| trades | 7 |") < text.index(r"| min\_ask | 2 |")
    assert text.count("NVDA") == 5
    assert (
        "Proved. Its own verdict, r\\-1: 0 unexplained differences, captured 99.9310% of its input." in text
    )
    assert "**Not proved.** the comparison failed" in approval_text(
        VERDICT, {**COMPARISON, "passed": False, "failed": ["x"]}
    )


def test_the_text_shows_what_the_version_declares() -> None:
    """The share of keys that differ and may, and each bound with its figure. Runs that were asked before an
    upgrade lack both.
    """
    found = {"bound": 1.7, "greatest": 1.6, "beyond": 0, "without_figure": 0}
    verdict = {**VERDICT, "bounds": {"ratio_bound": {"trucks": found}}}
    text = approval_text(verdict, {**COMPARISON, "changed_share": 0.05, "changed_at_most": None})
    assert " 5.0000% of the keys differ.\n" in text
    assert r"| ratio\_bound | trucks | 1\.6 | 1\.7 | 0 |" in text
    text = approval_text(VERDICT, {**COMPARISON, "changed_share": 0.05, "changed_at_most": 0.01})
    assert r"5.0000% of the keys differ; at most 1.0000% may (changed\_at\_most)." in text
    assert "of the keys differ" not in approval_text(VERDICT, COMPARISON)


def test_data_stays_text() -> None:
    """A value may hold markup, a break or a bar: none of it forms the page."""
    hostile = "<img src=x onerror=alert(1)>|\n# [a](javascript:b) `c` **d** {{ e }} &lt; https://f.example"
    text = approval_text(VERDICT, {**COMPARISON, "samples": [{**COMPARISON["samples"][0], "old": hostile}]})
    row = next(line for line in text.splitlines() if "img" in line)
    assert row.count("|") - row.count("\\|") == 6
    assert "\\<img" in row
    assert "\\[a\\]\\(javascript\\:b\\)" in row
    assert "https\\:" in row
    assert escaped(None) == ""
    assert escaped("x" * 1000) == "x" * 160 + "…"
