"""Tables and checkpoints in an object store: a stream, its replay and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.s3_server import S3Server, in_store, s3_server
from support.workload_harness import Workload, at

from hindcast.spark import object_store, session

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]


@pytest.fixture
def store() -> Iterator[S3Server]:
    with s3_server() as made:
        yield made


def trade(second: float) -> dict[str, Any]:
    return {"ticker": "a", "ask": 1.5, "ts": at(second)}


def test_a_stream_its_replay_and_its_verdict(
    workload: Callable[..., Workload], store: S3Server, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    """With the options of deltalake alone; Spark gets its own from them. A second owner goes on in the first
    one's checkpoint. Its files are written as a session for such a store writes them.
    """
    made = workload("stock_stats")
    made.settings = in_store(made.settings, store)
    object_store.configure(spark, made.settings)
    spark.conf.set(session.CHECKPOINT_FILES, session.S3_CHECKPOINTS)
    request.addfinalizer(lambda: spark.conf.set(session.CHECKPOINT_FILES, session.LOCAL_CHECKPOINTS))
    made.put([trade(second) for second in range(20)])
    made.read()
    made.put([trade(100)])
    made.read()
    made.put([trade(101)])
    made.read()
    sink = DeltaTable(made.settings.sink(made.pipeline), storage_options=store.options)
    assert sink.to_pyarrow_table().num_rows == 24
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["rows_compared"], verdict["passed"]) == (0, 24, True)
