"""The two answers of what depends on batches: hindsight by one batch query, and the online one when a verdict
asks for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.live_stream import ledger
from support.workload_harness import Workload, at

from hindcast import Mode, Pipeline, Table, Topic, pipeline
from hindcast.installation import Installation
from hindcast.replay import hindsight_in_one_query
from hindcast.replay.batch import answers_url, run_batch
from hindcast.replay.online_answer import keep_online
from hindcast.replay.recorded_batches import RecordedBatches, recorded_batches
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import plan_replay
from hindcast.settings import Settings
from hindcast.spark import parsed_records, transformation
from hindcast.tables.ledger import LedgerRow

#: A batch of words through a pipeline with state of its own, in a session that has had no stream: what a
#: replay is.
ALONE = """
from hindcast import catalog
from hindcast.settings import Settings, project_root
from hindcast.spark import parsed_records, session, transformation
spark = session.build(Settings(), "alone")
pipeline = catalog.load(project_root() / "include" / "pipelines")["sentences"]
session.keep_state_for(spark, pipeline)
columns = "speaker string, word string, _partition int, _offset long"
words = spark.createDataFrame([("ann", "It", 0, 0), ("bob", "Yes.", 0, 1), ("ann", "works.", 0, 2)], columns)
print(sorted(row["sentence"] for row in transformation.transform([words], pipeline).collect()))
spark.stop()
"""

Make = Callable[..., Workload]
Transform = Callable[..., DataFrame]

SCHEMA = "id string, user string, ts timestamp"


@pipeline(
    source=Topic("seen", SCHEMA),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("stays", ["user", "stay"]),
    version=1,
    re_execute=True,
)
def stays(seen: DataFrame) -> DataFrame:
    """Sightings of a user with no gap of 5 seconds between them."""
    return seen.groupBy("user", F.session_window("ts", "5 seconds").alias("stay")).agg(
        F.count("*").alias("sightings")
    )


@pipeline(
    source=Topic("seen", SCHEMA),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("users", ["user"]),
    version=1,
    re_execute=True,
)
def users(seen: DataFrame) -> DataFrame:
    """Each user once."""
    return seen.select("user").dropDuplicates(["user"])


JOINED = replace(users, joined=(Topic("left", SCHEMA),))


def joined(how: str) -> Transform:
    def join(seen: DataFrame, left: DataFrame) -> DataFrame:
        gone = left.select(F.col("user").alias("who"), F.col("ts").alias("at"))
        return seen.join(
            gone, F.expr("user = who AND at BETWEEN ts AND ts + INTERVAL 5 SECONDS"), how
        ).select("user", "who")

    return join


def twice_counted(seen: DataFrame) -> DataFrame:
    windows = seen.groupBy(F.window("ts", "5 seconds"), "user").count()
    return windows.groupBy(F.window("window", "1 minute"), "user").agg(F.max("count").alias("most"))


def without_its_time(seen: DataFrame) -> DataFrame:
    return seen.groupBy(F.window("ts", "5 seconds"), "user").count().select("user", "count")


def with_what_is_not_known(seen: DataFrame) -> DataFrame:
    return seen.mapInPandas(lambda frames: frames, seen.select("user").schema)


def recorded(shard: str = "g0.s0") -> LedgerRow:
    zeros: dict[str, Any] = dict.fromkeys(
        ("epoch", "batch", "late_watermark_ms", "watermark_ms", "output_rows", "sink_version"), 0
    )
    nothing: dict[str, Any] = dict.fromkeys(LedgerRow.__dataclass_fields__)
    return LedgerRow(**{**nothing, **zeros, "shard": shard, "start_offsets": {}, "end_offsets": {}})


@pytest.mark.parametrize(
    ("declared", "shards", "how"),
    [
        (users, 2, "all"),
        (replace(JOINED, transform=joined("inner")), 2, "all"),
        (stays, 1, "closed"),
        (stays, 2, "engine"),
        (replace(JOINED, transform=joined("left_outer")), 1, "engine"),
        (replace(users, transform=lambda seen: seen.dropDuplicatesWithinWatermark(["user"])), 1, "engine"),
        (replace(stays, transform=twice_counted), 1, "engine"),
        (replace(stays, transform=without_its_time), 1, "engine"),
        (replace(users, transform=with_what_is_not_known), 1, "engine"),
        (replace(users, sink=Table("users", ["user"], mode=Mode.UPSERT)), 1, "engine"),
    ],
)
def test_a_batch_says_only_what_it_can_tell(
    spark: SparkSession, declared: Pipeline, shards: int, how: str
) -> None:
    """Operators that wait for nothing: all rows. One aggregation on one shard: the closed groups. Whatever
    else there is: the engine.
    """
    everything = transformation.transform(parsed_records.empty(spark, declared), declared)
    said = hindsight_in_one_query.said(
        everything, declared, [recorded(f"g0.s{number}") for number in range(shards)]
    )
    assert (said is None) == (how == "engine")
    if said is not None:
        assert (said is everything) == (how == "all")


def seen(identity: str, second: float, user: str = "u") -> dict[str, Any]:
    return {"id": identity, "user": user, "ts": at(second)}


def answer(made: Workload, name: str) -> list[str]:
    rows = DeltaTable(answers_url(made.settings, made.pipeline.name, "once")).to_pyarrow_table().to_pylist()
    return sorted(
        json.dumps({key: value for key, value in row.items() if key != "answer"}, default=str)
        for row in rows
        if row["answer"] == name
    )


@pytest.mark.parametrize("declared", [stays, users])
def test_a_batch_says_what_the_engine_says_at_once(workload: Make, declared: Pipeline) -> None:
    """Three batches; a stay goes on over two of them, and the last is still open. No row is late."""
    made = workload(declared)
    for batch in (
        [seen("1", 0), seen("2", 4)],
        [seen("3", 8), seen("4", 20, "v")],
        [seen("5", 41)],
        [seen("6", 42)],
    ):
        made.put(batch)
        made.read()
    made.file()
    _, plan = plan_replay(
        Installation(made.settings),
        made.pipeline,
        ReplayRequest(pipeline=made.pipeline.name, run_id="once", everything=True),
    )
    assert run_batch(made.spark, made.settings, made.pipeline, plan, "once").late_rows == 0
    with recorded_batches(
        made.spark, made.settings, made.pipeline, plan.start, plan.end, plan.recorded, at_once=True
    ) as again:
        engine = sorted(json.dumps(row, default=str) for row in again.run().toArrow().to_pylist())
    assert answer(made, "hindsight") == engine
    assert len(engine) == 2
    assert answer(made, "online") == []  # nobody has judged it


def test_the_online_answer_is_made_once(workload: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two verdicts at the same moment: the one that comes second takes what the first has kept, and so does
    any later one.
    """
    made = workload(users)
    made.put([seen("1", 0), seen("2", 1, "v")])
    made.read()
    made.file()
    _, plan = plan_replay(
        Installation(made.settings),
        made.pipeline,
        ReplayRequest(pipeline=made.pipeline.name, run_id="once", everything=True),
    )
    run_batch(made.spark, made.settings, made.pipeline, plan, "once")
    runs, run = list[int](), RecordedBatches.run

    def keep() -> None:
        keep_online(
            made.spark, made.settings, made.pipeline, "once", plan.to_record(), ledger(made.settings, "users")
        )

    def beside_another(batches: RecordedBatches) -> DataFrame:
        runs.append(1)
        if len(runs) == 1:
            keep()
        return run(batches)

    monkeypatch.setattr(RecordedBatches, "run", beside_another)
    keep()
    keep()
    assert len(runs) == 2
    assert answer(made, "online") == answer(made, "hindsight")
    assert len(answer(made, "online")) == 2


def test_a_session_that_has_run_no_stream_has_what_state_needs(settings: Settings) -> None:
    """Stores of state ask a coordinator that Spark starts with a session's first stream. A replay has
    none.
    """
    command, environment = [sys.executable, "-c", ALONE], {**os.environ, **settings.environment()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["['It works.', 'Yes.']"], done.stderr[-3000:]
