"""A record's key and headers reach the pipeline's function, and so do tombstones: in the stream, in replays,
from an archive, and in what a proof goes on from. A delete takes its row out of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from support.intervals import Intervals
from support.workload_harness import Workload, at

from hindcast import Metadata, Mode, Table, Topic, pipeline
from hindcast.archive.copy_topic import archive_topic
from hindcast.installation import Installation
from hindcast.stream.sample_records import sample_batches
from hindcast.tables.table_names import ControlTable
from hindcast.testing import Record, run_pipeline

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

Make = Callable[..., Workload]

CUSTOMERS = Topic(
    "customers",
    schema="id string NOT NULL, name string, ts timestamp",
    key="id",
    metadata=[Metadata.KEY, Metadata.HEADERS],
    tombstones=True,
)


def header(name: str) -> Column:
    """The value of a record's header of this name; null without one."""
    return F.expr(f"cast(get(filter(_headers, h -> h.key = '{name}'), 0).value as string)")


@pipeline(source=CUSTOMERS, event_time="ts", watermark="10 seconds", sink=Table("changes"), version=1)
def changes(rows: DataFrame) -> DataFrame:
    """Every change of a customer, deletes among them, and where it was made."""
    return rows.select(
        F.col("_key").cast("string").alias("customer"),
        "name",
        F.col("_tombstone").alias("deleted"),
        header("origin").alias("origin"),
    )


@pipeline(
    source=CUSTOMERS,
    event_time="ts",
    watermark="10 seconds",
    sink=Table("newest", keys=["customer"], mode=Mode.UPSERT, deleted="deleted"),
    version=1,
)
def newest(rows: DataFrame) -> DataFrame:
    """What a customer is called now. Those who were deleted are not in the table."""
    customer = F.col("_key").cast("string").alias("customer")
    last = F.max_by(F.struct("name", "_tombstone", header("origin").alias("origin")), "_offset")
    found = rows.groupBy(customer).agg(last.alias("last"))
    return found.select("customer", "last.name", F.col("last._tombstone").alias("deleted"), "last.origin")


def named(customer: str, name: str, second: float = 0, origin: str = "") -> Record:
    headers = [("trace", b"1"), ("origin", origin.encode())] if origin else []
    return Record({"id": customer, "name": name, "ts": at(second)}, customer.encode(), headers)


def deleted(customer: str) -> Record:
    return Record(None, customer.encode())


CHANGES = [
    named("a", "Ada", 0, "web"),
    named("b", "Bob", 1),
    deleted("a"),
    Record({"id": None, "name": "nobody", "ts": at(2)}, b"c"),
    named("b", "Bert", 3, "desk"),
]


def changes_of(made: Workload) -> list[tuple[Any, ...]]:
    rows = [(row["customer"], row["name"], row["deleted"], row["origin"]) for row in made.rows()]
    return sorted(rows, key=str)


def newest_of(made: Workload) -> dict[str, tuple[str, str | None]]:
    rows = made.rows()
    assert all(row.keys() == {"customer", "name", "origin"} for row in rows)
    assert len({row["customer"] for row in rows}) == len(rows)
    return {row["customer"]: (row["name"], row["origin"]) for row in rows}


def test_keys_headers_and_tombstones_reach_the_function(workload: Make) -> None:
    """What must not be null may be so in a tombstone, and in no other record."""
    made = workload(changes)
    made.put(CHANGES)
    made.read()
    assert changes_of(made) == [
        ("a", "Ada", False, "web"),
        ("a", None, True, None),
        ("b", "Bert", False, "desk"),
        ("b", "Bob", False, None),
    ]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["dead_letters"]) == (0, 5, 1)
    assert [row["reason"] for row in made.filed(ControlTable.DEAD_LETTERS)] == ["no id"]


def test_an_archive_has_them_too(workload: Make) -> None:
    """A shard whose records are gone from the topic reads them from the archive, and is judged from it."""
    intervals = Intervals(workload(changes))
    made = intervals.made
    made.put(CHANGES)
    archive_topic(lambda: made.spark, Installation(made.settings), made.pipeline.source.name)
    intervals.lose_the_beginning()
    intervals.stream({0: [named("c", "Cem", 5, "web")]})
    assert ("a", None, True, None) in changes_of(made)
    assert ("c", "Cem", False, "web") in changes_of(made)
    verdict = intervals.judge(everything=True)
    assert (verdict["unexplained"], verdict["input_rows"]) == (0, 6)


def test_a_delete_of_a_change_feed_reaches_the_table(workload: Make) -> None:
    """Verdicts say so, too: each goes on from the proof of the one before, whose records the topic has lost. A
    row that a person puts back is found.
    """
    intervals = Intervals(workload(newest))
    made = intervals.made
    intervals.stream({0: CHANGES})
    assert newest_of(made) == {"b": ("Bert", "desk")}
    verdict = intervals.judge()
    assert (verdict["unexplained"], verdict["passed"]) == (0, True), made.differences(verdict["run_id"])
    intervals.lose_the_beginning()
    intervals.stream(
        {0: [deleted("b"), deleted("nobody"), named("a", "Ann", 9, "web"), named("d", "Dia", 9)]}
    )
    assert newest_of(made) == {"a": ("Ann", "web"), "d": ("Dia", None)}
    back = pa.table({"customer": ["b"], "name": ["Bert"], "origin": ["desk"]})
    write_deltalake(intervals.sink, back, mode="append")
    intervals.stream({0: [named("a", "Ada", 12)]})
    verdict = intervals.judge()
    assert (verdict["extra"], verdict["unexplained"]) == (1, 1), made.differences(verdict["run_id"])


def test_a_state_is_rebuilt_with_them(workload: Make) -> None:
    """The newest owner reads the records again, tombstones included."""
    made = workload(newest)
    made.put(CHANGES)
    made.read()
    made.put([deleted("b")])
    made.read("it was asked for")
    assert newest_of(made) == {}


def test_a_trial_sends_records_with_keys_and_headers(spark: SparkSession) -> None:
    """Without a broker, for an author's own tests; and the samples of `hindcast test` have all three."""
    instant = datetime(2026, 1, 5, 12, tzinfo=UTC)
    trial = run_pipeline(spark, newest, [{"customers": CHANGES}, {"customers": [Record(None)]}], at=instant)
    assert trial.rows.to_pylist() == [{"customer": "b", "name": "Bert", "origin": "desk"}]
    assert trial.comparison.unexplained == 0
    reasons = {letter.offset: letter.reason for letter in trial.dead_letters}
    assert reasons == {3: "no id", 5: "neither a key nor a value"}
    samples = sample_batches(newest, batches=3, rows=40, seed=1)
    sent = [record for batch in samples for record in batch["customers"]]
    assert all(isinstance(record, Record) and record.key and record.headers for record in sent)
    assert any(record.value is None for record in sent if isinstance(record, Record))
    assert run_pipeline(spark, newest, samples).comparison.unexplained == 0
