"""What a verdict of an hour costs after many hours, beside what it cost in the first ones: ``make
bench-intervals``.

Each example pipeline streams hour after hour of generated records (event times an hour apart). After each
hour a verdict judges what came since the last one; then the topics lose what it did not need, the sink's small
files are joined and its log is cut to nothing. In one hour a row of the sink is deleted, another doubled and
a third changed. That hour's verdict must find all three, and no other verdict anything. Only the doubled row
of a table of running results may be found again: a batch with its key writes both copies.

The first hour is from the beginning and warms up, so it is left out; so is the hour of the planted errors.
For each pipeline one line: the medians of the seconds and CPU-seconds of the earlier and the later half, and
their ratios. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pyarrow as pa
import structlog
from benchmarks.pipeline_cost import session_and_broker
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from support.intervals import Intervals
from support.shard_harness import WAIT_SECONDS
from support.waiting import wait_until
from support.workload_harness import Value, Workload, renamed

from hindcast import catalog
from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.pipeline import Mode, Pipeline
from hindcast.replay.cost import Meter
from hindcast.settings import Settings, project_root
from hindcast_sandbox.generators import GENERATORS

#: The goal of the ratio of the later hours to the earlier ones.
GOAL = 1.1
#: What the verdict of the hour with the planted errors must find: the deleted, the changed and the doubled row.
PLANTED = {"missing": 1, "changed": 1, "doubled": 1}
_HOUR = timedelta(hours=1)
#: In place of a tombstone, which needs a key. It is a dead letter as well.
_NO_VALUE = b"no value"


@dataclass(frozen=True)
class Hour:
    """What one verdict cost, and how many of its differences of each kind are unexplained."""

    seconds: float
    cpu_seconds: float
    unexplained: dict[str, int]
    rows_read: int


def hours_of(pipeline: Pipeline, hours: int, rows: int) -> Iterator[Mapping[int, list[Value]]]:
    """The records of each hour by the topic's number. The last hour has just ended."""
    generator = GENERATORS[pipeline.source.name]
    topics = {name: index for index, name in enumerate(generator.topics)}
    begin = datetime.now(UTC) - (hours + 1) * _HOUR
    records = generator.make(1, rows / _HOUR.total_seconds(), begin)
    for _ in range(hours):
        sent: dict[int, list[Value]] = defaultdict(list)
        for record in islice(records, rows):
            value = record.value
            if value is None:
                value = _NO_VALUE
            sent[topics[record.topic or pipeline.source.name]].append(value)
        yield sent


def measure(
    spark: SparkSession, settings: Settings, name: str, hours: int, rows: int, planted: int
) -> list[Hour]:
    """The verdicts of one pipeline, hour by hour."""
    declared = catalog.load(project_root() / "include" / "pipelines")[name]
    pipeline = renamed(declared, f"hours-{name}".replace("_", "-"))
    workload = Workload(spark, settings, pipeline, settings.bootstrap_servers, 1)
    workload.begin()
    intervals = Intervals(workload)
    found = []
    for number, sent in enumerate(hours_of(declared, hours, rows)):
        before = _rows(intervals.sink) if found and number == planted else []
        intervals.stream(sent)
        if number == planted:
            _plant(intervals, before)
            intervals.wait_for_ledger()
        meter = Meter()
        verdict = intervals.judge()
        hour = Hour(
            meter.seconds(),
            meter.cpu_seconds(),
            intervals.kinds(verdict),
            intervals.counted(verdict).rows_read,
        )
        found.append(hour)
        print(f"{name:18} hour {number:2}  {hour}", file=sys.stderr, flush=True)  # noqa: T201 -- progress
        if pipeline.window is None:
            intervals.lose_the_beginning()
        else:
            intervals.lose_what_was_judged_before()
        intervals.tidy()
    workload.retire(intervals.owner)
    return found


def _rows(sink: DeltaTable) -> list[dict[str, Any]]:
    return arrow_dataset(sink).to_table().to_pylist()


def _plant(intervals: Intervals, before: list[dict[str, Any]]) -> None:
    """Delete a row of the sink that was not there before, double another one and change a third."""
    pipeline = intervals.made.pipeline
    known = {repr(row) for row in before}
    new: list[dict[str, Any]] = []

    def there_are_some() -> bool:
        new[:] = [row for row in _rows(intervals.sink) if repr(row) not in known]
        return len(new) >= len(PLANTED)

    # Windows that the hour has closed come with the batch after its records.
    wait_until(there_are_some, WAIT_SECONDS, "the hour has brought rows")
    if pipeline.window is not None:
        new.sort(key=lambda row: row["window"]["end"], reverse=True)
    deleted, doubled, changed = new[:3]
    keys = pipeline.sink.keys
    gone = intervals.by_hand(lambda sink: sink.delete(_condition(deleted, keys)))
    if gone["num_deleted_rows"] != 1:
        raise SystemExit(f"One row was to be deleted, and these were: {gone}")
    schema = arrow_dataset(intervals.sink).schema
    copy = pa.Table.from_pylist([doubled], schema=schema)
    intervals.by_hand(lambda sink: write_deltalake(sink, copy, mode="append"))
    intervals.change(_another_value(changed, keys), _condition(changed, keys))


def _condition(row: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The predicate of delta-rs that is true of the row with these keys."""
    conditions = []
    for key in keys:
        if key == "window":
            moment = row["window"]["end"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            conditions.append(
                f"window['end'] = arrow_cast('{moment}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
            )
        elif isinstance(row[key], str):
            text = row[key].replace("'", "''")
            conditions.append(f"\"{key}\" = '{text}'")
        else:
            conditions.append(f'"{key}" = {row[key]}')
    return " AND ".join(conditions)


def _another_value(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    """An update of the row's first column that is no key and can be changed."""
    for name, value in row.items():
        if name in keys or name.startswith("_"):
            continue
        if isinstance(value, str):
            return {name: "'another'"}
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {name: f'"{name}" + 1'}
    raise SystemExit(f"No column of this row can be changed: {dict(row)}")


def is_exact(hours: list[Hour], planted: int, *, is_upsert: bool) -> bool:
    """Whether the planted errors were found in their hour, and nothing else was."""
    for number, hour in enumerate(hours):
        if number == planted:
            wanted = [PLANTED]
        elif is_upsert and number > planted:
            wanted = [{}, {"doubled": 1}]
        else:
            wanted = [{}]
        if hour.unexplained not in wanted:
            return False
    return True


def summary(hours: list[Hour], planted: int) -> dict[str, Any]:
    """The medians of both halves and their ratios, and what was unexplained in which hours."""
    counted = [hour for number, hour in enumerate(hours) if number not in {0, planted}]
    middle = len(counted) // 2
    shown: dict[str, Any] = {}
    for unit in ("seconds", "cpu_seconds"):
        early = statistics.median(getattr(hour, unit) for hour in counted[:middle])
        late = statistics.median(getattr(hour, unit) for hour in counted[middle:])
        shown |= {f"early_{unit}": round(early, 2), f"late_{unit}": round(late, 2)}
        shown[f"{unit}_ratio"] = round(late / early, 2)
    shown["unexplained"] = {number: hour.unexplained for number, hour in enumerate(hours) if hour.unexplained}
    shown["rows_read"] = [hour.rows_read for hour in hours]
    return shown


def main() -> int:
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(40),
    )
    pipelines = catalog.load(project_root() / "include" / "pipelines")
    every = sorted(pipelines)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pipeline", action="append", choices=every, help="all by default")
    parser.add_argument("--hours", type=int, default=10)
    parser.add_argument("--rows", type=int, default=2_000, help="records of an hour")
    parser.add_argument("--planted", type=int, default=7, help="the hour of the planted errors")
    asked = parser.parse_args()
    report: dict[str, Any] = {}
    exact = True
    with session_and_broker("interval-cost", spark_driver_memory="2g") as (spark, settings):
        for name in asked.pipeline or every:
            hours = measure(spark, settings, name, asked.hours, asked.rows, asked.planted)
            report[name] = summary(hours, asked.planted)
            exact &= is_exact(hours, asked.planted, is_upsert=pipelines[name].sink.mode is Mode.UPSERT)
            ratio = report[name]["cpu_seconds_ratio"]
            goal = "ok" if ratio <= GOAL else "MISSED"
            print(f"{name:18} {json.dumps(report[name])}  CPU at most {GOAL}: {goal}", flush=True)  # noqa: T201 -- the result
    print(json.dumps({"exact": exact, **report}))  # noqa: T201 -- the result
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
