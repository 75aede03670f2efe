"""The demo's judgement, without a demo: what it waits for, and what it lets pass."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hindcast import catalog
from hindcast.errors import ServiceError, VerdictFailedError
from hindcast.installation import Installation
from hindcast.pipeline import Window
from hindcast.settings import Settings
from hindcast.tables.ledger import LedgerRow
from hindcast_sandbox import airflow
from hindcast_sandbox.demo import (
    LEAST_WINDOWS,
    Demo,
    Progress,
    Wait,
    check,
    covering_batches,
    least_windows,
    unpause,
)

Batch = Callable[[str, int, dict[int, int]], LedgerRow]


@pytest.fixture
def batch() -> Batch:
    """One row of the ledger: shard, batch, end offsets."""

    def make(shard: str, number: int, end_offsets: dict[int, int]) -> LedgerRow:
        return LedgerRow(
            pipeline="p",
            version=1,
            shard=shard,
            epoch=1,
            batch=number,
            worker="w",
            topic="t",
            start_offsets=dict.fromkeys(end_offsets, 0),
            end_offsets=end_offsets,
            late_watermark_ms=0,
            watermark_ms=0,
            min_event_ms=None,
            max_event_ms=None,
            input_rows=1,
            poison_rows=0,
            output_rows=0,
            batch_seconds=None,
            cpu_seconds=None,
            sink_version=1,
            started_at=None,
            committed_at=datetime(2026, 1, 31, tzinfo=UTC),
        )

    return make


def test_waits_for_every_partition_of_every_shard(batch: Batch) -> None:
    """What was sent is covered by each shard's first batch that has reached all its ends; one partition short
    is not there yet.
    """
    sent = {0: 10, 1: 20, 2: 30, 3: 40}
    rows = [
        batch("s0", 1, {0: 9, 2: 30}),
        batch("s0", 2, {0: 10, 2: 31}),
        batch("s0", 3, {0: 50, 2: 50}),
        batch("s1", 1, {1: 20, 3: 39}),
    ]
    assert covering_batches(rows, sent) is None
    assert covering_batches([*rows, batch("s1", 2, {1: 20, 3: 40})], sent) == {"s0": 2, "s1": 2}


def test_a_shard_without_batches_is_not_forgotten(batch: Batch) -> None:
    """Where nobody has committed a partition yet, nothing is covered; a partition that was sent nothing need
    not be.
    """
    assert covering_batches([], {0: 1}) is None
    assert covering_batches([batch("s0", 1, {0: 10})], {0: 10, 1: 1}) is None
    assert covering_batches([batch("s0", 1, {0: 10, 1: 0})], {0: 10}) == {"s0": 1}


GOOD: dict[str, Any] = {
    "pipeline": "p",
    "run_id": "r",
    "unexplained": 0,
    "captured": 0.99,
    "passed": True,
    "failed": "",
    "dead_letters": 5,
    "dead_letters_sent": 5,
    "windows_compared": 200,
    "windows_needed": 200,
}


def test_a_good_summary_passes() -> None:
    """All counts right: no error."""
    check(GOOD)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"passed": False, "failed": "unexplained is not 0"}, "unexplained is not 0"),
        ({"passed": False}, "did not pass"),
        ({"dead_letters": 4}, "5 unusable rows were sent and 4"),
        ({"dead_letters": 6}, "5 unusable rows were sent and 6"),
        ({"windows_compared": 199}, "only 199 of 200 windows"),
    ],
)
def test_anything_wrong_fails(wrong: dict[str, Any], said: str) -> None:
    """A failed verdict, a lost or invented dead letter, too few windows: exit code 3, and why."""
    with pytest.raises(VerdictFailedError, match=said) as raised:
        check({**GOOD, **wrong})
    assert raised.value.exit_code == 3


def test_windows_needed_follow_the_slide(settings: Settings) -> None:
    """200 at one a second or more; fewer where windows are rarer, at least one; none without windows."""
    stock_stats = catalog.load(settings.pipelines_dir)["stock_stats"]
    assert least_windows(stock_stats) == LEAST_WINDOWS
    assert (
        least_windows(replace(stock_stats, window=Window("1 second", slide="100 milliseconds")))
        == LEAST_WINDOWS
    )
    assert least_windows(replace(stock_stats, window=Window("1 minute"))) == 1
    assert least_windows(replace(stock_stats, window=Window("10 seconds"))) == 18
    assert least_windows(replace(stock_stats, window=Window("1 hour"))) == 1
    assert least_windows(replace(stock_stats, window=None)) == 0


def test_a_busy_airflow_is_asked_again(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer, and a DAG that is not parsed yet, are waited for, and named where they last; the end of a
    connection is no stack trace.
    """
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ServiceError, match="did not answer GET /x"):
            airflow.request(address, "GET", "/x")
    answers = [
        ServiceError(service="airflow", problem="did not answer", log=""),
        ServiceError(service="airflow", problem="404", log=""),
    ]

    def request(*_: object, **__: object) -> None:
        if answers:
            raise answers.pop(0)

    monkeypatch.setattr(airflow, "request", request)
    monkeypatch.setattr(airflow, "login", lambda _: "token")
    demo = Demo(installation, installation.catalog["stock_stats"], Progress(installation))
    polls: list[str] = []
    monkeypatch.setattr(Wait, "poll", lambda _, detail: polls.append(detail))
    unpause(demo, "supervise")
    assert len(polls) == 2
    assert "did not answer" in polls[0]
