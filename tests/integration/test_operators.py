"""Joins of streams, sessions, deduplication, Avro and tables that are joined: streamed by several owners,
then judged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support.live_stream import delete_records, ledger
from support.shard_harness import WAIT_SECONDS, CrashError, crash_at
from support.waiting import wait_until
from support.workload_harness import Workload, at

from hindcast import Format, Lookup, Table, Topic, pipeline
from hindcast.errors import CheckpointRefusedError, OffsetsLostError, PipelineError
from hindcast.tables.table_names import ControlTable

pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

SCHEMA = "id string, user string, ts timestamp"
CLICKS, ORDERS = Topic("clicks", SCHEMA, key="user"), Topic("orders", SCHEMA, key="user")
RECORD = """{"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}, {"name": "user", "type": "string"},
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""


@pipeline(
    source=CLICKS,
    event_time="ts",
    watermark="10 seconds",
    sink=Table("visits", ["user", "session"]),
    version=1,
    re_execute=True,
)
def visits(clicks: DataFrame) -> DataFrame:
    """Clicks of a user with no gap of 5 seconds between them."""
    return clicks.groupBy("user", F.session_window("ts", "5 seconds").alias("session")).count()


@pipeline(
    source=CLICKS,
    event_time="ts",
    watermark="10 seconds",
    sink=Table("first", ["id"]),
    version=1,
    re_execute=True,
)
def first(clicks: DataFrame) -> DataFrame:
    """Each id once."""
    return clicks.dropDuplicatesWithinWatermark(["id"]).select("id", "user")


@pipeline(
    source=CLICKS,
    joined=[ORDERS],
    event_time="ts",
    watermark="10 seconds",
    sink=Table("led", ["id"]),
    version=1,
    re_execute=True,
)
def led(clicks: DataFrame, orders: DataFrame) -> DataFrame:
    """Each click with an order of the same user in the 5 seconds after it, if there was one."""
    bought = orders.select(
        F.col("id").alias("order"), F.col("user").alias("buyer"), F.col("ts").alias("bought_at")
    )
    soon = F.expr("user = buyer AND bought_at BETWEEN ts AND ts + INTERVAL 5 SECONDS")
    return clicks.join(bought, soon, "left_outer").select("id", "user", "order")


@pipeline(
    source=replace(CLICKS, format=Format.AVRO, avro_schema=RECORD),
    joined=[Lookup("homes", 0)],
    event_time="ts",
    watermark="10 seconds",
    sink=Table("at_home", ["id"]),
    version=1,
)
def at_home(clicks: DataFrame, homes: DataFrame) -> DataFrame:
    """Each click with the user's home: a stream without state, joined with a table that stands still."""
    return clicks.join(F.broadcast(homes), "user", "left").select("id", "user", "home")


Make = Callable[..., Workload]


def click(identity: str, second: float, user: str = "u") -> dict[str, Any]:
    return {"id": identity, "user": user, "ts": at(second)}


def word(second: float, text: str) -> dict[str, Any]:
    return {"speaker": "s", "word": text, "ts": at(second)}


def avro(identity: str, user: str, micros: int) -> bytes:
    def zigzag(number: int) -> bytes:
        number, out = (number << 1) ^ (number >> 63), bytearray()
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*out, number])

    return b"".join(
        [zigzag(len(identity)), identity.encode(), zigzag(len(user)), user.encode(), zigzag(micros)]
    )


def sessions(made: Workload) -> list[tuple[str, int, int]]:
    """The user, the second of the beginning and the clicks of each session, in order."""
    return sorted((row["user"], row["session"]["start"].second, row["count"]) for row in made.rows())


def with_an_open_session(workload: Make) -> Workload:
    """Two clicks were read by two owners, and the third of the session waits in the topic."""
    made = workload(visits)
    for second in (0, 4):
        made.put([click(str(second), second)])
        made.read()
    made.put([click("8", 8)])
    return made


def test_sessions_go_on_over_batches_and_end_at_a_gap(workload: Make) -> None:
    """A session of three clicks in two batches; one that comes when the watermark has passed its session is
    dropped, and filed.
    """
    made = workload(visits)
    made.put([click("1", 0), click("2", 4)])
    made.read()
    made.put([click("3", 8), click("4", 14)])
    made.read()
    for second in (40, 41):
        made.put([click("end", second, "x")])
        made.read()
    made.put([click("late", 1)])
    made.read()
    assert sessions(made) == [("u", 0, 3), ("u", 14, 1)]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["late_rows"], verdict["passed"]) == (
        0,
        7,
        1,
        True,
    )
    assert [row["offset"] for row in made.filed(ControlTable.LATE_ROWS)] == [6]


def test_late_rows_go_to_the_pipelines_own_handler_once(workload: Make) -> None:
    """The handler's table is fenced like the sink: whoever files them again adds nothing."""
    made = workload(
        replace(
            visits,
            late=lambda rows: rows.select("id", F.upper("user").alias("who")),
            late_sink=Table("too_late"),
        )
    )
    for second in (40, 41):
        made.put([click("end", second, "x")])
        made.read()
    made.put([click("late", 1), click("later", 2)])
    made.read()
    for _ in range(2):
        made.file()
        found = DeltaTable(made.settings.table("sinks", "too_late")).to_pyarrow_table().to_pylist()
        assert sorted((row["id"], row["who"]) for row in found) == [("late", "U"), ("later", "U")]


def test_a_duplicate_is_dropped_while_its_first_is_remembered(workload: Make) -> None:
    """The second of one batch, and the one that comes in a later batch."""
    made = workload(first)
    made.put([click("a", 0), click("a", 1), click("b", 2)])
    made.read()
    made.put([click("b", 3), click("c", 4)])
    made.read()
    assert sorted(row["id"] for row in made.rows()) == ["a", "b", "c"]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["captured_results"]) == (0, 5, 1.0)


def test_two_streams_are_joined_within_their_time(workload: Make) -> None:
    """An order that comes in a later batch is found; a click without one is let go of once none can come."""
    made = workload(led)
    made.put([click("c1", 0), click("c2", 1, "v")])
    made.read()
    made.put([click("o1", 4)], topic=1)
    made.read()
    for second in (60, 61):
        made.put([click(f"end{second}", second, "x")])
        made.put([click(f"end{second}", second, "y")], topic=1)
        made.read()
    assert sorted((row["id"], row["order"]) for row in made.rows()) == [("c1", "o1"), ("c2", None)]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["passed"]) == (0, 7, True)


def test_a_row_is_joined_with_a_table_of_one_version(workload: Make) -> None:
    """A later version of the table changes nothing; what is no Avro is a dead letter."""
    made = workload(at_home)
    homes = made.settings.table("lookups", "homes")
    write_deltalake(homes, pa.table({"user": ["u"], "home": ["Oslo"]}))
    write_deltalake(homes, pa.table({"user": ["u", "v"], "home": ["Rome", "Bern"]}), mode="overwrite")
    made.put(
        [
            avro("1", "u", 1_767_614_400_000_000),
            b"\xff" * 5,
            avro("2", "v", 1_767_614_400_000_000),
            struct.pack("q", 7),
        ]
    )
    made.read()
    assert sorted((row["id"], row["home"]) for row in made.rows()) == [("1", "Oslo"), ("2", None)]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["dead_letters"]) == (0, 4, 2)


def test_a_session_goes_on_in_state_that_was_made_anew(workload: Make) -> None:
    """Killed before the new state was taken into use: the next owner makes it once more, and the open session
    is all there.
    """
    made = with_an_open_session(workload)
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, "rerun.3", 1)
        owner = made.start("it was asked for")
        wait_until(lambda: owner.failure is not None, WAIT_SECONDS, "it has crashed")
        assert isinstance(owner.failure, CrashError)
        made.die(owner)
    made.read("it was asked for")
    made.put([click("end", 40, "x")])
    made.read()
    made.put([click("end", 41, "x")])
    made.read("it was asked for")  # the life after a new one, too
    assert sessions(made) == [("u", 0, 3)]
    assert [row.batch for row in ledger(made.settings, visits.name)] == list(
        range(1, len(ledger(made.settings, visits.name)) + 1)
    )
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["passed"]) == (0, 5, True)


def test_the_next_owner_loads_the_state_that_was_made_anew(workload: Make) -> None:
    """The owner that made it dies before its second batch: the next one has only what the first batch left on
    disk. That is not the state of a batch that ended the re-execution.
    """
    made = with_an_open_session(workload)
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, "sink.1", 2)
        owner = made.start("it was asked for")

        def crashed() -> bool:
            owner.go_on()
            return owner.failure is not None

        wait_until(crashed, WAIT_SECONDS, "it has crashed before its second batch")
        made.die(owner)
    for second in (40, 41):
        made.put([click("end", second, "x")])
        made.read()
    assert sessions(made) == [("u", 0, 3)]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["passed"]) == (0, 5, True)


def test_a_join_finds_what_came_before_its_state_was_made_anew(workload: Make) -> None:
    """Two topics: each source goes on at its own offsets. The clicks that wait for an order are there; others
    were let go of.
    """
    made = workload(led)
    made.put([click("c1", 0), click("c2", 1, "v")])
    made.read()
    made.put([click("o1", 4)], topic=1)
    made.read("it was asked for")
    for second in (60, 61):
        made.put([click(f"end{second}", second, "x")])
        made.put([click(f"end{second}", second, "y")], topic=1)
        made.read("it was asked for" if second == 61 else "")
    assert sorted((row["id"], row["order"]) for row in made.rows()) == [("c1", "o1"), ("c2", None)]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["passed"]) == (0, 7, True)


def test_state_of_a_pipelines_own_is_made_anew(workload: Make) -> None:
    """Half a sentence is kept by a Python function in RocksDB; it is whole when the rest comes to the new
    state.
    """
    made = workload("sentences")
    made.put([word(1, "Streams"), word(2, "are")])
    made.read()
    made.put([word(3, "replayed.")])
    made.read("its checkpoint is gone")
    assert [row["sentence"] for row in made.rows()] == ["Streams are replayed."]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["passed"]) == (0, 3, True)


def test_state_is_not_made_anew_where_its_rows_are_gone(workload: Make) -> None:
    """The topic has lost the first batch: refused, and the sink is as it was."""
    made = workload(first)
    made.put([click("a", 0), click("b", 1)])
    made.read()
    before = made.rows()
    delete_records(made.servers, made.pipeline.source.name, {0: 1})
    with pytest.raises(OffsetsLostError, match="windows that are still open need them"):
        made.start("it was asked for")
    assert made.rows() == before


def test_state_that_is_not_declared_is_refused(workload: Make) -> None:
    """Taken for a pipeline without state it would be judged, and rebuilt, wrongly."""
    made = workload(replace(first, re_execute=False))
    made.put([click("a", 0)])
    with pytest.raises(PipelineError, match="it keeps state"):
        made.start()


def test_a_query_that_was_changed_is_refused_of_every_kind(workload: Make) -> None:
    """Another key of a deduplication, under the same version."""
    made = workload(first)
    made.put([click("a", 0)])
    made.read()
    made.pipeline = replace(
        made.pipeline,
        transform=lambda clicks: clicks.dropDuplicatesWithinWatermark(["user"]).select("id", "user"),
    )
    with pytest.raises(CheckpointRefusedError, match="the query has changed"):
        made.start()


def test_what_is_not_deterministic_is_named_with_its_columns(workload: Make) -> None:
    """A random column differs between stream and re-execution, and between two of these: the verdict fails
    and says which it is.
    """
    dice = replace(
        first,
        transform=lambda clicks: clicks.dropDuplicatesWithinWatermark(["id"]).select(
            "id", F.rand().alias("dice")
        ),
    )
    made = workload(dice)
    made.put([click("a", 0), click("b", 1)])
    made.read()
    verdict = made.verdict()
    assert (verdict["passed"], verdict["changed"], verdict["missing"], verdict["extra"]) == (False, 2, 0, 0)
    assert "the same batches run twice differ in dice" in verdict["failed"]
