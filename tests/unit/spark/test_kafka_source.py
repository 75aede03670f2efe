"""How Spark is told to read a topic."""

from __future__ import annotations

from collections.abc import Callable

from hindcast.settings import Settings
from hindcast.spark.kafka_source import kafka_options


def test_no_task_waits_at_the_broker_for_records_beyond_its_own(
    settings_factory: Callable[..., Settings],
) -> None:
    """Kafka holds a fetch without records for half a second by default, and what Spark asks next waits behind
    it: so each partition of a quiet topic cost each batch a wait.
    """
    options = kafka_options(settings_factory(), "trades", [1, 0])
    assert options["kafka.fetch.max.wait.ms"] == "0"
    assert options["kafka.max.poll.records"] == "10000"
    assert options["assign"] == '{"trades": [0, 1]}'
    assert options["kafka.isolation.level"] == "read_committed"
