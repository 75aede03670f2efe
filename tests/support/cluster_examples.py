"""Run examples on the Spark master of the settings, each from its first batch to its verdict.

Spark allows one session a process, and that of the tests is a local one; so this is a program. It reads the
names of examples, one a line, and answers each with a JSON object in one line: what failed, or what was not
rehearsed, the rows of the sink, a limit that executors have, and the verdict.
"""

from __future__ import annotations

import json
import sys
import traceback
import uuid
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import structlog
from kafka import KafkaProducer
from structlog.testing import capture_logs
from support import shard_harness
from support.workload_harness import Workload, renamed

from hindcast import catalog
from hindcast.installation import Installation
from hindcast.pipeline import TOPIC_STRIDE, Topic
from hindcast.settings import Settings, project_root
from hindcast.spark import session
from hindcast.stream import warmup
from hindcast_sandbox.generators import GENERATORS
from hindcast_sandbox.generators.record import Record

SEED = 5
PARTITIONS = 2
#: Two parts of a feed in which windows of minutes end.
PARTS, PART_ROWS, ROWS_PER_SECOND = 2, 120, 0.25
WAIT_SECONDS, OWNERS = 240.0, 3
#: What an executor's JVM says; Spark does not compute it on the driver.
_AVRO_LIMIT = "reflect('java.lang.System', 'getProperty', 'org.apache.avro.limits.bytes.maxLength')"


def generated(topic: Topic) -> Iterator[Record]:
    """What the load would send to the topic and to those that are joined with it; it began an hour ago."""
    return GENERATORS[topic.name].make(SEED, ROWS_PER_SECOND, datetime.now(UTC) - timedelta(hours=1))


def send(workload: Workload, names: dict[str, int], records: list[Record]) -> None:
    """:param names: a generator's topic -> the number of the pipeline's topic"""
    producer = KafkaProducer(bootstrap_servers=workload.servers.split(","), acks="all")
    for record in records:
        topic, partition = names[record.topic], zlib.crc32(record.key) % PARTITIONS
        producer.send(
            workload.pipeline.topics[topic].name, value=record.value, key=record.key, partition=partition
        )
        workload.counts[topic * TOPIC_STRIDE + partition] += 1
    producer.flush()
    producer.close()


def read(workload: Workload, rebuild: str = "") -> None:
    """One owner after the other, as in a fleet: Spark gives a Python worker ten seconds to start, which a
    busy machine may not manage.
    """
    for attempt in range(1, OWNERS + 1):
        try:
            workload.read(rebuild)
        except AssertionError:
            failed = workload.running[-1]
            if failed.failure is None or attempt == OWNERS:
                raise
            structlog.get_logger().warning(
                "An owner failed; the next one follows.", reason=str(failed.failure)
            )
            workload.die(failed)
        else:
            return


def run(spark: Any, settings: Settings, name: str) -> dict[str, Any]:
    """Rehearse, read, make the state anew, go on from it, judge."""
    declared = catalog.load(project_root() / "include" / "pipelines")[name]
    names = {"" if number == 0 else topic.name: number for number, topic in enumerate(declared.topics)}
    workload = Workload(
        spark, settings, renamed(declared, f"c{uuid.uuid4().hex[:6]}"), settings.bootstrap_servers, PARTITIONS
    )
    workload.begin()
    feed = generated(declared.source)
    parts = [list(islice(feed, PART_ROWS)) for _ in range(PARTS)]
    send(workload, names, parts[0])
    with capture_logs() as said:
        warmup.warm_up(spark, Installation(settings), workload.pipeline)
    unrehearsed = [
        line["event"] + " " + str(line.get("reason", "")) for line in said if line["log_level"] == "warning"
    ]
    read(workload)
    send(workload, names, parts[1])
    read(workload, "it was asked for")
    return {
        "unrehearsed": unrehearsed,
        "sink_rows": len(workload.rows()),
        "sent": PARTS * PART_ROWS,
        "executors_avro_limit": spark.range(1).selectExpr(_AVRO_LIMIT).first()[0],
        **workload.verdict(),
    }


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    warmup.BATCHES, warmup.TIMEOUT_SECONDS = 2, WAIT_SECONDS  # to the end, however slow the machine
    shard_harness.WAIT_SECONDS = WAIT_SECONDS
    settings = Settings(trigger_seconds=0.0)
    spark = session.build(settings, "examples", options=session.QUICK_COMPILER)
    for line in sys.stdin:
        try:
            found = run(spark, settings, line.strip())
        except Exception:  # noqa: BLE001 - the next example says what it says
            found = {"failed_with": traceback.format_exc()}
        print(json.dumps({"example": line.strip(), **found}, default=str), flush=True)  # noqa: T201 - for the test that asked
    spark.stop()


if __name__ == "__main__":
    main()
