"""Eight pipelines in two workers, with Airflow beside them: ``make bench-many``.

Each pipeline has a topic of its own, with windows and a load as in ``make bench``, at 500 records a second. All
of it runs on this machine: the broker, Airflow, the workers and the client that sends to all topics.

Measured are the latency from the broker's timestamp of a record to the commit that has it, over all pipelines,
and the memory of all processes of the installation (each shared page counted once, as Linux's PSS has it). Every
answer is checked to the row.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path

import psutil
from benchmarks.speed.install import install
from benchmarks.speed.jobs import WINDOWS
from benchmarks.speed.measure import Commit, commits_of_ledger, latencies, records_in
from benchmarks.speed.run import create_topic, measured_samples, report_of, sender
from benchmarks.speed.workload import Workload
from support.benchmark_figures import Figure, percentile, print_figures
from support.benchmark_home import benchmark_home, memory_bytes
from support.waiting import wait_until

from hindcast.installation import Installation
from hindcast.leases.lease import StatusType
from hindcast.settings import Settings
from hindcast_sandbox import broker, stack

_WORKERS = 2
_OWNED_SECONDS = 400.0
_READ_SECONDS = 120.0
#: From the encoding of the loads to the first record.
_LEAD_SECONDS = 20.0
_LOOK_SECONDS = 5.0
_GIB = 2**30
#: Goals.
_P50_SECONDS = 2.0
_MEMORY_GIB = 5.0


def measure(settings: Settings, count: int, rate: float, warm_up: float, seconds: float) -> Iterator[Figure]:
    names = [f"stats_{number}" for number in range(count)]
    load = Workload(rate, warm_up + seconds)
    settings.pipelines_dir.mkdir(parents=True)
    for name in names:
        create_topic(settings.bootstrap_servers, name, load.partitions)
        (settings.pipelines_dir / f"{name}.py").write_text(WINDOWS.module(name, topic=name, shards=1))
    with redirect_stdout(sys.stderr):
        settings = stack.up(settings, topic=None)
        installation = Installation(settings)
        stack.start_workers(installation, _WORKERS)

    def owned() -> bool:
        leases = installation.lease_table.leases()
        return (
            sum(lease.status_type is StatusType.SHARD and bool(lease.lease_owner) for lease in leases)
            == count
        )

    wait_until(owned, _OWNED_SECONDS, f"{count} shards are owned", every=1.0)
    start = time.time() + _LEAD_SECONDS
    start_ms = int(start * 1000)
    file = settings.home / "load"
    load.encode(file, start_ms)
    with sender(settings, names, file, load, start) as sending:
        time.sleep(max(start + warm_up - time.time(), 0.0))  # until it is warm
        memory = []
        while time.time() < start + load.seconds:
            memory.append(memory_bytes(_processes(settings.home)))
            time.sleep(_LOOK_SECONDS)  # between two looks
        samples = report_of(sending)["samples"]
    found: list[float] = []
    for name in names:
        wait_until(
            lambda name=name: records_in(_commits(installation, name)) >= load.rows,
            _READ_SECONDS,
            f"{name} is read",
        )
        measured = measured_samples(samples[name], load, start_ms, warm_up)
        found += latencies(measured, _commits(installation, name))
        WINDOWS.check(load, start_ms, WINDOWS.rows_of_delta(settings.table("sinks", name)))
    yield Figure("latency, p50", percentile(found, 0.5), _P50_SECONDS, "s")
    yield Figure("latency, p99", percentile(found, 0.99), unit="s")
    yield Figure("memory of all processes, median", statistics.median(memory) / _GIB, _MEMORY_GIB, "GiB")
    yield Figure("memory of all processes, most", max(memory) / _GIB, unit="GiB")


def _commits(installation: Installation, name: str) -> list[Commit]:
    return commits_of_ledger(installation.ledger.batches(name))


def _processes(home: Path) -> Iterator[psutil.Process]:
    """All of the installation."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("HINDCAST_HOME") == str(home):
                yield process


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pipelines", type=int, default=8)
    parser.add_argument("--rate", type=float, default=500.0, help="records a second of each pipeline")
    parser.add_argument("--warm-up", type=float, default=120.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="that are measured")
    asked = parser.parse_args()
    with benchmark_home("many") as own:
        install(own)
        address = broker.address(broker.start(own))
        settings = own.model_copy(
            update={"pipelines_dir": own.home / "pipelines", "bootstrap_servers": address}
        )
        try:
            return print_figures(measure(settings, asked.pipelines, asked.rate, asked.warm_up, asked.seconds))
        finally:
            with redirect_stdout(sys.stderr):
                stack.down(settings)


if __name__ == "__main__":
    sys.exit(main())
