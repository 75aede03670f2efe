"""The classic workloads, each streamed in several batches by several owners, with values worked out by hand,
and judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.workload_harness import Workload, at

from hindcast import catalog
from hindcast.errors import PipelineError
from hindcast.installation import Installation
from hindcast.settings import project_root
from hindcast.tables.table_names import ControlTable
from hindcast.tables.verdict_trends import VerdictTrends
from hindcast.verdict.judge import judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

Make = Callable[..., Workload]


def exact(verdict: dict[str, Any], *, input_rows: int) -> None:
    assert verdict["passed"], verdict
    assert (verdict["unexplained"], verdict["input_rows"]) == (0, input_rows)


def test_word_count_keeps_one_row_a_word(workload: Make) -> None:
    """Running counts over two batches; a line that is no JSON and one without its word are dead letters."""
    words = workload("word_count", 2)

    def said(*spoken: str) -> list[dict[str, str]]:
        return [{"word": word, "ts": at(second)} for second, word in enumerate(spoken)]

    words.put(said("to", "be", "or", "not", "to", "be"))
    words.put(said("that"), partition=1)
    words.read()
    assert {row["word"]: row["count"] for row in words.rows()} == {
        "to": 2,
        "be": 2,
        "or": 1,
        "not": 1,
        "that": 1,
    }
    words.put([*said("to", "question"), b"no json", {"ts": at(0)}])
    words.read()
    assert {row["word"]: row["count"] for row in words.rows()} == {
        "to": 3,
        "be": 2,
        "or": 1,
        "not": 1,
        "that": 1,
        "question": 1,
    }
    exact(words.verdict(), input_rows=11)
    assert sorted(row["reason"] for row in words.filed(ControlTable.DEAD_LETTERS)) == [
        "does not parse as the topic's schema",
        "no word",
    ]


def test_a_running_result_is_rebuilt_from_the_whole_topic(workload: Make) -> None:
    """The state comes anew from the first offset, and the table is neither doubled nor reset."""
    words = workload("word_count", 2)
    words.put([{"word": word, "ts": at(0)} for word in ("a", "b", "a")])
    words.read()
    words.put([{"word": word, "ts": at(0)} for word in ("b", "c")])
    owner = words.start("it was asked for")
    assert owner.rebuilt == "it was asked for"
    words.consume(owner)
    words.retire(owner)
    assert {row["word"]: row["count"] for row in words.rows()} == {"a": 2, "b": 2, "c": 1}
    exact(words.verdict(), input_rows=5)


def test_sentences_go_on_where_a_batch_ended(workload: Make) -> None:
    """A sentence that spans three batches of three owners is one sentence."""
    spoken = workload("sentences", 2)

    def said(speaker: str, text: str) -> list[dict[str, str]]:
        return [{"speaker": speaker, "word": word, "ts": at(0)} for word in text.split()]

    spoken.put(said("ann", "the sea is high. and the"))
    spoken.put(said("bob", "we wait. for"), partition=1)
    spoken.read()
    spoken.put(said("ann", "wind is"))
    spoken.read()
    spoken.put(said("ann", "strong. good."))
    spoken.put(said("bob", "noon."), partition=1)
    spoken.read()
    found = sorted(
        (row["speaker"], row["first_offset"], row["last_offset"], row["sentence"], row["words"])
        for row in spoken.rows()
    )
    assert found == [
        ("ann", 0, 3, "the sea is high.", 4),
        ("ann", 4, 8, "and the wind is strong.", 5),
        ("ann", 9, 9, "good.", 1),
        ("bob", 0, 1, "we wait.", 2),
        ("bob", 2, 3, "for noon.", 2),
    ]
    verdict = spoken.verdict()
    exact(verdict, input_rows=14)
    assert (verdict["rows_compared"], verdict["captured_results"]) == (5, 1.0)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('h1 - - [05/Jan/2026:12:00:01 +0000] "GET /a.html HTTP/1.0" 200 512', "/a.html"),
        ('h1 - - [05/Jan/2026:13:00:01 +0100] "GET /say"hi".html HTTP/1.0" 404 -', '/say"hi".html'),
        ('h1 id user [05/Jan/2026:12:00:01 +0000] "GET /docs/intro" 200 9', "/docs/intro"),
        ('h1 - - [05/Jan/2026:12:00:01 +0000] "GET /q.htm?x=1 HTTP/1.0" 200 1', "/q.htm"),
    ],
)
def test_a_dirty_line_is_parsed(spark: SparkSession, line: str, found: str) -> None:
    """What real log lines have that the format does not mention."""
    pipeline = catalog.load(project_root() / "include" / "pipelines")["web_log"]
    from pyspark.sql import functions as F

    assert pipeline.source.parse is not None
    module = pipeline.transform.__globals__
    parsed = (
        spark.createDataFrame([(line,)], "line string")
        .select(pipeline.source.parse(F.col("line")).alias("r"))
        .select("r.*")
    )
    (row,) = parsed.withColumn("page", module["page"]()).collect()
    assert (row["page"], row["ts"].hour) == (found, 12)


def test_web_log_counts_content_pages_and_loses_no_line(workload: Make) -> None:
    """Each request in its five windows, pictures in none, broken lines in the dead letters."""
    log = workload("web_log", 2)

    def line(minute: int, request: bytes, status: int = 200, size: str = "100") -> bytes:
        return b'host - - [05/Jan/2026:12:%02d:30 +0000] "%s" %d %s' % (
            minute,
            request,
            status,
            size.encode(),
        )

    log.put(
        [
            line(0, b"GET /a.html HTTP/1.0"),
            line(1, b"GET /a.html HTTP/1.0", 404, "-"),
            line(1, b"GET /logo.gif HTTP/1.0"),
        ]
    )
    log.put(
        [line(2, b"GET /caf\xe9.html"), b"no log line", line(3, b"GET /a.html HTTP/1.0")[:30]], partition=1
    )
    log.read()
    for minute in (20, 21):  # the second batch lets go of what the first one closed
        log.put([line(minute, b"GET /end HTTP/1.0")])
        log.read()
    found = {
        (row["window"]["end"].minute, row["page"]): (row["requests"], row["errors"], row["bytes"])
        for row in log.rows()
    }
    assert [found[minute, "/a.html"] for minute in range(1, 7)] == [
        (1, 0, 100),
        *[(2, 1, 100)] * 4,
        (1, 1, None),
    ]
    assert found[3, "/caf\ufffd.html"] == (1, 0, 100)
    assert not any(page == "/logo.gif" for _, page in found)
    exact(log.verdict(), input_rows=8)
    assert len(log.filed(ControlTable.DEAD_LETTERS)) == 2


def test_retries_follow_a_payment_through_its_retry_topic(workload: Make) -> None:
    """A failure and its retry are one payment; events that overtook each other are put in order."""
    payments = workload("retries", 2)

    def event(payment: str, seq: int, second: float, *, ok: bool, attempt: int = 1) -> dict[str, Any]:
        return {
            "payment": payment,
            "seq": seq,
            "attempt": attempt,
            "amount": 10.0 * seq,
            "ok": ok,
            "ts": at(second),
        }

    payments.put([event("p1", 1, 1, ok=False), event("p2", 1, 2, ok=True)])
    payments.read()
    payments.put([event("p1", 2, 5, ok=True, attempt=2)], topic=1)
    payments.put([event("p3", 2, 6, ok=True)])
    payments.read()
    payments.put([event("p3", 1, 5.5, ok=False)])
    payments.read()
    for second in (100, 101):  # the second batch lets go of what the first one closed
        payments.put([event("end", 1, second, ok=True)])
        payments.put([event("end", 2, second, ok=True)], topic=1)
        payments.read()
    found = {row["payment"]: row for row in payments.rows()}
    assert {
        name: (row["tries"], row["retries"], row["ok"], row["amount"], row["out_of_sequence"])
        for name, row in found.items()
    } == {"p1": (2, 1, True, 20.0, False), "p2": (1, 0, True, 10.0, False), "p3": (2, 0, True, 20.0, True)}
    exact(payments.verdict(), input_rows=9)


def test_rent_or_buy_pays_at_most_its_bound(workload: Make) -> None:
    """3 days rented; 9 rented and bought on the tenth: 19 against the optimum of 10."""
    skiing = workload("rent_or_buy", 2)
    skiing.put([{"skier": "few", "day": day, "ts": at(day)} for day in range(1, 4)])
    skiing.put([{"skier": "many", "day": day, "ts": at(day)} for day in range(1, 10)], partition=1)
    skiing.read()
    skiing.put([{"skier": "many", "day": day, "ts": at(day)} for day in range(10, 13)], partition=1)
    skiing.read()
    found = {row["skier"]: (row["days"], row["rent_until_equal"], row["always_buy"]) for row in skiing.rows()}
    assert found == {"few": (3, 3.0, 10.0), "many": (12, 19.0, 10.0)}
    verdict = skiing.verdict()
    exact(verdict, input_rows=15)
    ratios = json.loads(verdict["ratios"])
    assert ratios["rent_until_equal"] == {"worst": 1.9, "mean": pytest.approx((1 + 1.9) / 2)}
    assert ratios["always_buy"]["worst"] == pytest.approx(10 / 3)
    kept = json.loads(verdict["bounds"])["ratio_bound"]
    assert kept["rent_until_equal"] == {"bound": 1.9, "greatest": 1.9, "beyond": 0, "without_figure": 0}
    assert (kept["always_buy"]["bound"], kept["always_buy"]["beyond"]) == (10.0, 0)


def test_a_ratio_beyond_its_bound_fails_the_verdict_and_names_the_row(workload: Make) -> None:
    """The stream is right and pays more than was declared: nothing is unexplained. The sentence, the event and
    the page of Data Docs have the figure and the bound; the trend keeps the worst.
    """
    skiing = workload("rent_or_buy", 2)
    skiing.put([{"skier": "few", "day": day, "ts": at(day)} for day in range(1, 4)])
    skiing.put([{"skier": "many", "day": day, "ts": at(day)} for day in range(1, 13)], partition=1)
    skiing.read()
    assert skiing.verdict()["passed"]
    tight = replace(skiing.pipeline, ratio_bound={"rent_until_equal": 1.8999, "always_buy": 10.0})
    installation = Installation(skiing.settings)
    verdict = judge(lambda: skiing.spark, installation, tight, "once")
    assert (verdict["passed"], verdict["unexplained"]) == (False, 0)
    (sentence,) = json.loads(verdict["failed"])
    assert "rent_until_equal: the ratio to hindsight is up to 1.9, its ratio_bound is 1.8999" in sentence
    assert "`hindcast verdicts --run once --differences`" in sentence
    (named,) = [row for row in skiing.differences() if row["cause"] == "bound"]
    assert (json.loads(named["keys"]), named["kind"]) == ({"skier": "many"}, "ratio")
    assert (named["stream_value"], named["hindcast_value"]) == ("19.0", "10.0")
    (event,) = installation.tables.rows(ControlTable.EVENTS, [("kind", "=", "verdict_failed")])
    assert sentence in event["message"]
    page = (skiing.settings.home / "data_docs" / verdict["data_docs"]).read_text()
    assert "ratio_bound rent_until_equal" in page
    (trend,) = VerdictTrends(installation.tables).read("rent_or_buy")
    assert (trend.verdicts, trend.worst["ratio_greatest.rent_until_equal"].value) == (1, 1.9)
    unknown = replace(skiing.pipeline, ratio_bound={"fees": 2.0})
    with pytest.raises(PipelineError, match=r"'fees'.*those are: days, rent_until_equal, always_buy"):
        judge(lambda: skiing.spark, installation, unknown, "once")


def test_bin_packing_opens_a_truck_for_what_fits_in_none(workload: Make) -> None:
    """First fit needs a truck more than hindsight, and a parcel that fits nowhere is left out by both."""
    parcels = workload("bin_packing", 2)

    def parcel(size: int) -> dict[str, Any]:
        return {"truck_load": "north", "parcel": size, "size": size, "ts": at(0)}

    parcels.put([parcel(size) for size in (40, 40, 40)])
    parcels.read()
    parcels.put([parcel(size) for size in (60, 60, 60, 101)])
    parcels.read()
    (row,) = parcels.rows()
    assert row == {
        "truck_load": "north",
        "parcels": 6,
        "volume": 300,
        "trucks": 4,
    }  # [40 40] [40 60] [60] [60]; sorted: three of 60 + 40
    verdict = parcels.verdict()
    exact(verdict, input_rows=7)
    assert json.loads(verdict["ratios"])["trucks"] == {
        "worst": pytest.approx(4 / 3),
        "mean": pytest.approx(4 / 3),
    }
    kept = json.loads(verdict["bounds"])["ratio_bound"]["trucks"]
    assert (kept["bound"], kept["greatest"], kept["beyond"]) == (1.7, pytest.approx(4 / 3), 0)


def test_clicks_get_what_was_known_and_hindsight_knows_more(workload: Make) -> None:
    """The profile that held, a search of the last second, and one view whose profile came too late."""
    clicks = workload("click_enrichment", 2)
    searches, profiles = 1, 2
    clicks.put([{"user": "u", "city": "Oslo", "age": 30, "ts": at(0)}], topic=profiles)
    clicks.put([{"search": "s1", "user": "u", "words": "boats", "ts": at(9.5)}], topic=searches)
    clicks.put(
        [
            {"view": "v1", "user": "u", "page": "/a", "ts": at(10)},
            {"view": "v2", "user": "u", "page": "/b", "ts": at(11)},
        ]
    )
    clicks.put([{"view": "v3", "user": "x", "page": "/c", "ts": at(10)}], partition=1)
    clicks.read()
    clicks.put(
        [
            {"user": "u", "city": "Rome", "age": 31, "ts": at(12)},
            {"user": "x", "city": "Bern", "age": 9, "ts": at(5)},
        ],
        topic=profiles,
    )
    clicks.put(
        [
            {"view": "v4", "user": "u", "page": "/d", "ts": at(13)},
            {"view": "v5", "user": "u", "page": "/e", "ts": at(11.5)},
        ]
    )
    clicks.read()
    found = {row["view"]: (row["city"], row["age"], row["words"]) for row in clicks.rows()}
    assert found == {
        "v1": ("Oslo", 30, "boats"),
        "v2": ("Oslo", 30, None),
        "v3": (None, None, None),
        "v4": ("Rome", 31, None),
        "v5": ("Oslo", 30, None),
    }
    verdict = clicks.verdict()
    exact(verdict, input_rows=9)
    assert verdict["captured_results"] == pytest.approx(4 / 5)  # v3's profile came late
    assert [(row["cause"], row["keys"]) for row in clicks.differences()] == [("online", '{"view":"v3"}')]
