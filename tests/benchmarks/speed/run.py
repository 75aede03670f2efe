"""Run the sides by turns on the same load and print what each costs: ``make bench``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.speed.consumer import rows_per_cpu_second
from benchmarks.speed.goals import table_of_goals
from benchmarks.speed.install import install
from benchmarks.speed.jobs import JOBS, WINDOWS, Job
from benchmarks.speed.measure import Sample, cpu_seconds, latencies, read_at_ms, records_in
from benchmarks.speed.record import OURS, Record, record_of
from benchmarks.speed.report import RECORDS, table, write_page
from benchmarks.speed.sides import SIDES, USUAL, Flink, Ours, Side, Stock, Tuned, bench_folder
from benchmarks.speed.workload import Workload
from kafka import KafkaAdminClient
from support.benchmark_figures import percentile
from support.benchmark_home import home_with_broker, memory_bytes, with_children
from support.fault_runs import work_tree
from support.waiting import wait_until

from hindcast.settings import Settings

_SEND = Path(__file__).with_name("send.py")
#: From the moment at which a side is ready to the first record: encoding is done then.
_LEAD_SECONDS = 3.0
_READ_SECONDS = 120.0
_QUICK = (Ours, Tuned, Stock, Flink)
#: Records of the last seconds are not measured: a side may commit nothing more once no window closes.
_TAIL_SECONDS = 5.0


def run_once(
    settings: Settings, kind: type[Side], job: Job, load: Workload, warm_up: float, folder: Path
) -> dict[str, Any]:
    """One side, one load on a topic of its own: what it cost from ``warm_up`` seconds after the first record on,
    and how fast it read what came at once after that.

    :raises SystemExit: if it did not read all of it, or its answer is wrong
    """
    topic = folder.name
    create_topic(settings.bootstrap_servers, topic, load.partitions)
    side = kind(settings, topic, folder, job)
    file = folder.with_suffix(".load")
    try:
        side.start()
        began = time.time()
        start = began + load.rows * 12e-6 + _LEAD_SECONDS
        start_ms = int(start * 1000)
        load.encode(file, start_ms)
        with sender(settings, [topic], file, load, start) as sending:
            time.sleep(max(start + warm_up - time.time(), 0.0))  # until it is warm
            before = cpu_seconds(side.processes)
            time.sleep(max(start + load.seconds - time.time(), 0.0))  # what it uses meanwhile is measured
            steady = cpu_seconds(side.processes)
            report = report_of(sending)
        wait_read(side, load)
        burst = cpu_seconds(side.processes) - steady
        memory = memory_bytes(with_children(side.processes))
        commits = side.commits()
    finally:
        side.end()
        file.unlink(missing_ok=True)
    seconds = latencies(measured_samples(report["samples"][topic], load, start_ms, warm_up), commits)
    rows = load.rate * (load.seconds - warm_up)
    used = steady - before
    at_once: dict[str, float] = {}
    if load.burst:
        seconds_of_burst = read_at_ms(commits, load.rows) / 1000 - (start + load.seconds)
        at_once = {"burst": load.burst / seconds_of_burst, "burst_per_cpu_second": load.burst / burst}
        if kind.name == OURS:
            of_consumer = rows_per_cpu_second(settings, topic, load.rows)
            at_once["of_consumer"] = at_once["burst_per_cpu_second"] / of_consumer
    written = side.rows()
    answered = 0
    if written is not None:
        answered = job.check(load, start_ms, written)
    return {
        "side": kind.name,
        "p50": percentile(seconds, 0.5),
        "p99": percentile(seconds, 0.99),
        "rows_per_cpu_second": rows / used,
        "cpu": used / (load.seconds - warm_up),
        "memory": memory / 2**20,
        "answers": answered,
        "behind": report["behind_seconds"],
        **at_once,
    }


def create_topic(servers: str, topic: str, partitions: int) -> None:
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        configs = {"message.timestamp.type": "LogAppendTime"}
        made = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        admin.create_topics({topic: made}, wait_for_metadata=True)


@contextmanager
def sender(
    settings: Settings, topics: Sequence[str], file: Path, load: Workload, start: float
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that sends the load to each of the topics, at the rate to each. It ends with the context."""
    python = bench_folder(settings) / "bin" / "python"
    arguments = [str(python), str(_SEND), "--servers", settings.bootstrap_servers]
    for topic in topics:
        arguments += ["--topic", topic]
    arguments += ["--file", str(file), "--rate", str(load.rate), "--steady", str(load.steady)]
    arguments += ["--start", str(start)]
    sending = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        yield sending
    finally:
        sending.kill()
        sending.wait()


def report_of(sending: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What the sender says once all is sent: ``samples`` by topic, and ``behind_seconds``.

    :raises SystemExit: if it breaks
    """
    said, _ = sending.communicate()
    if sending.returncode:
        raise SystemExit(f"The load ended with {sending.returncode}.")
    report: dict[str, Any] = json.loads(said)
    return report


def measured_samples(
    samples: Iterable[Sequence[int]], load: Workload, start_ms: int, warm_up: float
) -> list[Sample]:
    """Those of which the latency is measured: from ``warm_up`` seconds after the first record on."""
    first_ms = start_ms + warm_up * 1000
    last_ms = start_ms + (load.seconds - _TAIL_SECONDS) * 1000
    return [(partition, offset, at) for partition, offset, at in samples if first_ms <= at < last_ms]


def wait_read(side: Side, load: Workload, seconds: float = _READ_SECONDS) -> None:
    """Wait until the side has committed all of the load, for at most so long."""
    wait_until(
        lambda: records_in(side.commits()) >= load.rows,
        seconds,
        f"{side.name} has read {load.rows} records",
        every=1.0,
    )


def keep(record: Record, partitions: int, *, is_recorded: bool) -> Path:
    """Write the record, and the page if it is recorded. Returns where it is."""
    name = f"{record.rate:.0f}"
    if record.job != WINDOWS.name:
        name += f"-{record.job}"
    if partitions != Workload.partitions:
        name += f"-{partitions}-partitions"
    written = Settings().home / "bench-results" / f"{name}.json"
    record.write(written)
    if is_recorded:
        record.write(RECORDS / written.name)
        write_page()
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", action="append", choices=sorted(SIDES), help="one of those that run")
    parser.add_argument("--job", choices=sorted(JOBS), default=WINDOWS.name, help="that all sides do")
    parser.add_argument("--rate", type=float, default=4000.0, help="records a second")
    parser.add_argument("--warm-up", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="that are measured")
    parser.add_argument("--burst", type=int, default=600_000, help="records that come at once in the end")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="one run each of four sides, 30 s after 30: below ten minutes"
    )
    parser.add_argument("--record", action="store_true", help="keep the figures, and put them into the page")
    asked = parser.parse_args()
    if asked.quick:
        asked.burst = min(asked.burst, 200_000)
        asked.warm_up = asked.seconds = 30.0
        asked.pairs = 1
    job = JOBS[asked.job]
    sides = [SIDES[name] for name in asked.side or ()]
    if Flink in sides and not job.does_flink:
        parser.error(f"flink has no {job.name}")
    if not sides:
        usual = _QUICK if asked.quick else USUAL
        sides = [kind for kind in usual if job.does_flink or kind is not Flink]
    load = Workload(asked.rate, asked.warm_up + asked.seconds, partitions=asked.partitions, burst=asked.burst)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    commit, dirty = work_tree()
    with home_with_broker("bench") as settings:
        install(settings)
        for number in range(asked.pairs):
            for kind in sides if number % 2 == 0 else reversed(sides):
                name = kind.name.replace(" ", "-")
                result = run_once(
                    settings, kind, job, load, asked.warm_up, settings.home / f"{name}-{number}"
                )
                found[kind.name].append(result)
                print(json.dumps(result), file=sys.stderr, flush=True)  # noqa: T201 - progress
            # After each pair, so that a long benchmark that is interrupted has measured something.
            record = record_of(
                {kind.name: found[kind.name] for kind in sides},
                rate=asked.rate,
                warm_up=asked.warm_up,
                seconds=asked.seconds,
                commit=commit,
                dirty=dirty,
                on=f"{datetime.now(UTC):%Y-%m-%d}",
                cpus=os.cpu_count(),
                job=job.name,
            )
            written = keep(record, asked.partitions, is_recorded=asked.record)
    print("\n".join([*table(record), "", *table_of_goals(record)]))  # noqa: T201 - the result
    print(f"Written to {written}.", file=sys.stderr)  # noqa: T201 - progress


if __name__ == "__main__":
    main()
