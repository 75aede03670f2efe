"""The load's report against what the broker really holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer, TopicPartition
from support.waiting import wait_until

from hindcast import catalog
from hindcast.errors import ServiceError
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.processes.environment import basic_environment
from hindcast.settings import Settings, project_root
from hindcast.spark import parsed_records
from hindcast_sandbox import broker as brokers
from hindcast_sandbox import jars
from hindcast_sandbox.generators import GENERATORS, Generator
from hindcast_sandbox.generators.flaws import POISON
from hindcast_sandbox.generators.record import Record
from hindcast_sandbox.generators.trades import trades
from hindcast_sandbox.load import Load, LoadReport, LoadState, report_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.conftest import Broker


def _records(
    address: str, topic: str, partitions: int = 4
) -> list[tuple[int, int, bytes | None, bytes | None, int]]:
    """Every record of the topic: (partition, offset, key, value, broker timestamp in milliseconds)."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    consumer = KafkaConsumer(
        bootstrap_servers=address, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    try:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found = []
        deadline = time.monotonic() + 60
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < deadline
            for place, records in consumer.poll(timeout_ms=500).items():
                found += [
                    (place.partition, record.offset, record.key, record.value, record.timestamp)
                    for record in records
                ]
        return found
    finally:
        consumer.close()


def test_the_account_names_every_offset(broker: Broker, topic: str, settings: Settings) -> None:
    """Each partition holds exactly the offsets of the report, and all counts are those of what was
    generated.
    """
    path = report_path(settings, topic)
    load = Load(
        broker.bootstrap_servers,
        topic,
        path,
        generator="trades",
        seed=5,
        rows_per_second=1_000_000,
        rows=20_000,
    )
    report = load.run()
    records = _records(broker.bootstrap_servers, topic)
    assert report.state is LoadState.FINISHED
    assert report.sent == len(records) == 20_000
    offsets: dict[int, list[int]] = {}
    for partition, offset, *_ in records:
        offsets.setdefault(partition, []).append(offset)
    assert set(offsets) == {0, 1, 2, 3}
    for partition, found in offsets.items():
        part = report.partitions[partition]
        assert sorted(found) == list(range(part.first_offset or 0, part.end_offset or 0))
        assert part.sent == len(found)
    generated = list(islice(trades(5, 1_000_000, datetime.fromisoformat(report.started_at)), 20_000))
    assert report.late == sum(record.late for record in generated)
    assert report.poison == Counter(record.poison for record in generated if record.poison)
    assert Counter((key, value) for _, _, key, value, _ in records) == Counter(
        (record.key, record.value) for record in generated
    )
    assert LoadReport.read(path) == report


def test_the_account_numbers_the_partitions_across_the_topics(
    broker: Broker, topic: str, settings: Settings
) -> None:
    """Payments and their retries are in two topics of 4 partitions; the report names each one's offsets, the
    second's from 10,000 on.
    """
    path = report_path(settings, topic)
    report = Load(
        broker.bootstrap_servers, topic, path, generator="payments", rows_per_second=3000, rows=20_000
    ).run()
    for first, name in ((0, topic), (TOPIC_STRIDE, "payments-retry")):
        offsets: dict[int, list[int]] = {}
        for partition, offset, *_ in _records(broker.bootstrap_servers, name):
            offsets.setdefault(first + partition, []).append(offset)
        assert set(offsets) == {first + partition for partition in range(4)}
        for number, found in offsets.items():
            part = report.partitions[number]
            assert part.sent == len([offset for offset in found if offset >= (part.first_offset or 0)])
            assert part.end_offset == max(found) + 1
    assert len(report.partitions) == 8
    assert sum(part.sent for part in report.partitions.values()) == report.sent == 20_000


def test_a_second_load_goes_on_where_the_first_ended(broker: Broker, topic: str, settings: Settings) -> None:
    """The second report begins at the first one's ends: together they name every offset once."""
    path = report_path(settings, topic)
    first = Load(
        broker.bootstrap_servers, topic, path, generator="trades", rows_per_second=1_000_000, rows=500
    ).run()
    second = Load(
        broker.bootstrap_servers, topic, path, generator="trades", rows_per_second=1_000_000, rows=500
    ).run()
    assert second.start_offsets == first.end_offsets


def test_rows_are_sent_when_they_are_due(broker: Broker, topic: str, settings: Settings) -> None:
    """Over three seconds the pace is kept without drift, and each good row's time is within a second of the
    broker's.
    """
    report = Load(
        broker.bootstrap_servers,
        topic,
        report_path(settings, topic),
        generator="trades",
        rows_per_second=500,
        seconds=3.0,
    ).run()
    assert 1400 <= report.sent <= 1501
    behind = []
    for _, _, _, value, timestamp in _records(broker.bootstrap_servers, topic):
        try:
            behind.append(
                timestamp / 1000 - datetime.fromisoformat(json.loads(value or b"")["ts"]).timestamp()
            )
        except (ValueError, KeyError, TypeError):
            continue
    assert sum(-0.1 < delay < 1.0 for delay in behind) > 0.9 * len(behind)
    assert any(5.0 < delay < 61.0 for delay in behind)


def test_sigterm_ends_it_with_a_final_account(broker: Broker, topic: str, settings: Settings) -> None:
    """The service ends with 0 on SIGTERM, and its report is that of the broker, to the row."""
    path = report_path(settings, topic)
    environment = {
        **basic_environment(),
        **settings.model_copy(update={"bootstrap_servers": broker.bootstrap_servers}).environment(),
    }
    command = [
        sys.executable,
        "-m",
        "hindcast_sandbox.load",
        "--topic",
        topic,
        "--generator",
        "trades",
        "--rows-per-second",
        "3000",
    ]
    process = subprocess.Popen(command, env=environment)
    try:
        wait_until(lambda: path.exists() and LoadReport.read(path).sent > 2000, 60, "2000 rows are sent")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    report = LoadReport.read(path)
    assert report.state is LoadState.FINISHED
    assert report.sent == len(_records(broker.bootstrap_servers, topic))


def test_a_broker_that_dies_and_comes_back_loses_no_row(settings: Settings) -> None:
    """Through kill -9 of the broker and its restart every row is acknowledged, and is there exactly once."""
    jars.fetch(settings)
    service = brokers.start(settings)
    address, topic = brokers.address(service), "through-a-kill"
    load = Load(
        address, topic, report_path(settings, topic), generator="trades", rows_per_second=500, rows=6000
    )
    ended: list[LoadReport] = []
    thread = threading.Thread(target=lambda: ended.append(load.run()))
    try:
        thread.start()
        wait_until(lambda: load.report.sent >= 1500, 60, "1500 rows are sent")
        os.kill(service.pid, signal.SIGKILL)
        brokers.start(settings)
        thread.join(120)
        assert ended
        assert ended[0].sent == 6000
        values = Counter((key, value) for _, _, key, value, _ in _records(address, topic) if value)
        generated = islice(trades(1, 500, datetime.fromisoformat(ended[0].started_at)), 6000)
        assert values == Counter((record.key, record.value) for record in generated if record.value)
    finally:
        load.stop()
        thread.join(60)
        brokers.stop(settings)


def test_a_load_whose_broker_is_gone_ends_at_the_second_signal(settings: Settings) -> None:
    """The first Ctrl-C waits for the rows in flight, the second gives them up: the report counts what was
    acknowledged before.
    """
    jars.fetch(settings)
    service = brokers.start(settings)
    topic = "without-a-broker"
    path = report_path(settings, topic)
    environment = {
        **basic_environment(),
        **settings.model_copy(update={"bootstrap_servers": brokers.address(service)}).environment(),
    }
    command = [sys.executable, "-m", "hindcast_sandbox.load", "--topic", topic, "--generator", "trades"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: path.exists() and LoadReport.read(path).sent >= 2000, 60, "2000 rows are sent")
        os.kill(service.pid, signal.SIGKILL)
        acknowledged = LoadReport.read(path).sent
        os.kill(process.pid, signal.SIGINT)
        wait_until(lambda: LoadReport.read(path).state is LoadState.WAITING, 60, "it waits for the rows")
        assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert "were given up" in errors
        assert process.returncode == ServiceError.exit_code
    finally:
        process.kill()
        process.wait()
        brokers.stop(settings)
    report = LoadReport.read(path)
    assert report.state is LoadState.FAILED
    assert report.sent >= acknowledged


def test_a_lost_row_is_never_counted_and_fails_loudly(
    broker: Broker, topic: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that the broker refuses (too large for it) ends the load with an error and the state `failed`."""

    def oversized(seed: int, rows_per_second: float, start: datetime):  # type: ignore[no-untyped-def] # noqa: ANN202
        yield Record(0.0, b"k", b"fits")
        yield Record(0.0, b"k", b"x" * 2_000_000)

    monkeypatch.setitem(GENERATORS, "oversized", Generator("oversized", ("oversized",), oversized))
    load = Load(broker.bootstrap_servers, topic, report_path(settings, topic), generator="oversized")
    with pytest.raises(ServiceError, match="lost rows"):
        load.run()
    report = LoadReport.read(report_path(settings, topic))
    assert (report.state, report.sent) == (LoadState.FAILED, 1)


@pytest.mark.parametrize("name", sorted(catalog.load(project_root() / "include" / "pipelines")))
def test_every_kind_of_poison_is_poison_to_the_stream(spark: SparkSession, name: str) -> None:
    """By the pipeline's own rules no poison row of any of its topics is usable, and every other generated row
    is, late or not.
    """
    pipeline = catalog.load(project_root() / "include" / "pipelines")[name]
    generator, now = GENERATORS[pipeline.source.name], datetime.now(UTC)
    assert generator.topics == tuple(topic.name for topic in pipeline.topics)
    sent = list(islice(generator.make(3, 2000.0, now), 120_000))
    generated = [record for number, record in enumerate(sent) if record.poison or number < 5_000]
    if name == "stock_stats":
        assert {record.poison for record in generated} == {"", *POISON}
    for topic in pipeline.topics:
        ours = [record for record in generated if (record.topic or pipeline.source.name) == topic.name]
        assert ours
        rows = [(topic.name, 0, number, now, record.key, record.value) for number, record in enumerate(ours)]
        raw = spark.createDataFrame(
            rows, "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"
        )
        found = {
            row["_offset"]: row["_reason"]
            for row in parsed_records.parse(raw, pipeline, topic).select("_offset", "_reason").collect()
        }
        wrong = {
            (record.poison, found[number], record.value)
            for number, record in enumerate(ours)
            if bool(record.poison) != bool(found[number])
        }
        assert wrong == set()
