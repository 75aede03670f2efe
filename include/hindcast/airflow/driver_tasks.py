"""What all tasks that start a Spark driver have in common."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hindcast.airflow.scheduling import ASKED_FIRST
from hindcast.settings import Settings

#: Replays of one pipeline at once, backfills included: each is a Spark driver that uses every core it is
#: given.
REPLAYS_AT_ONCE = 1
#: For faults that end by themselves, e.g. a broker that is away for a moment. A stream that is behind needs
#: no retry.
RETRIES: dict[str, Any] = {
    "retries": 6,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}


def driver_arguments() -> dict[str, Any]:
    """Arguments of a task that starts a Spark driver: retries, a slot of the drivers' pool, its weight."""
    return {**RETRIES, "pool": Settings().spark_pool, "weight_rule": ASKED_FIRST}
