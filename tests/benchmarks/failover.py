"""How long a shard stands still when its owner is killed: from ``kill -9`` to the first commit of the next
owner.

``make failover``: for each lease duration a fleet of two workers consumes a live topic in two shards. Again
and again one owner and its JVM are killed, at a random moment of its renewal period, and another worker is
started in its place; the next kill waits until both owners have worked for a while. Prints each time, the
distribution, and as its last line one JSON object. The ledger is checked at the end: a chain without gaps up
to the topic's end, so nothing was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import structlog
from support.benchmark_figures import percentile
from support.fleet import START_SECONDS, Fleet, Stream, Worker, fleet_settings
from support.live_stream import check_chain, declare, ledger
from support.waiting import wait_until

from hindcast.settings import Settings, project_root
from hindcast_sandbox import broker, jars
from hindcast_sandbox.failover import Killed
from hindcast_sandbox.load import Load, ensure_topic

ROWS_PER_SECOND = 100.0
#: What each owner has committed before one is killed: a fleet at work, not one that is being put together.
BATCHES = 5
#: Between two looks at the tables. What is measured comes from their stamps; looks take CPU from the fleet
#: (each 0.5 s: a third of a core).
LOOK_SECONDS = 3.0
BAR = 40


def kill_one(stream: Stream, rng: random.Random) -> Killed:
    """Kill a worker that owns shards; start another, which is ready only long after the survivor has taken
    over.
    """
    victim: Worker = rng.choice(
        [
            process
            for process in stream.fleet.alive()
            if process.pid in stream.fleet.owners(stream.name).values()
        ]
    )
    time.sleep(rng.uniform(0.0, stream.settings.lease_seconds / 4))  # any moment between two renewals
    owner = stream.fleet.id_of(victim)
    epochs = {lease.status_value: lease.epoch for lease in stream.leases() if lease.lease_owner == owner}
    at = datetime.now(UTC)
    stream.fleet.kill(victim)
    return Killed(owner, victim.pid, epochs, at)


def taken_over(killed: Killed, stream: Stream) -> float | None:
    """Seconds until each orphan was committed by another owner; None before that."""
    return killed.failover_seconds(ledger(stream.settings, stream.name))


def settled(stream: Stream) -> bool:
    """Whether two workers own a shard each and have committed some batches in their epochs."""
    leases = stream.leases()  # one read: between two of them a shard may change hands
    done = Counter((row.shard, row.epoch) for row in ledger(stream.settings, stream.name))
    owners = {lease.lease_owner for lease in leases}
    return all(done[lease.status_value, lease.epoch] >= BATCHES for lease in leases) and owners == {
        stream.fleet.id_of(process) for process in stream.fleet.alive()
    }


def measure(base: Settings, lease_seconds: float, times: int, seed: int) -> list[float]:
    """The seconds of so many kills."""
    rng = random.Random(seed)
    home = base.home / f"lease-{lease_seconds:g}"
    settings = fleet_settings(base.model_copy(update={"home": home}), base.bootstrap_servers)
    defaults = {name: Settings.model_fields[name].default for name in ("trigger_seconds", "audit_seconds")}
    settings = settings.model_copy(update={"lease_seconds": lease_seconds, **defaults})
    topic = f"trades-{lease_seconds:g}"
    ensure_topic(settings.bootstrap_servers, topic)
    declare(settings, topic, shards=2)
    fleet = Fleet(settings)
    stream = Stream(fleet, topic)
    load = Load(
        settings.bootstrap_servers,
        topic,
        home / "report.json",
        generator="trades",
        seed=seed,
        rows_per_second=ROWS_PER_SECOND,
    )
    sending = threading.Thread(target=load.run)
    found: list[float] = []
    try:
        stream.want()
        fleet.whole(2)
        sending.start()
        while len(found) < times:
            wait_until(
                lambda: settled(stream),
                START_SECONDS,
                "both workers own a shard and commit",
                every=LOOK_SECONDS,
            )
            killed = kill_one(stream, rng)
            heard = lambda killed=killed: taken_over(killed, stream) is not None  # noqa: E731 - of this kill
            wait_until(heard, START_SECONDS, "the next owner has committed", every=LOOK_SECONDS)
            seconds = taken_over(killed, stream)
            assert seconds is not None
            found.append(seconds)
            print(  # noqa: T201
                f"lease {lease_seconds:g} s, kill {len(found)} of {times}: {seconds:.2f} s",
                file=sys.stderr,
                flush=True,
            )
            fleet.start()
        load.stop()
        sending.join()
        wait_until(
            lambda: stream.committed() == load.report.end_offsets,
            START_SECONDS,
            "everything sent is in the ledger",
        )
        check_chain(ledger(settings, stream.name))
    finally:
        load.stop()
        fleet.end()
    return found


def show(lease_seconds: float, values: list[float]) -> dict[str, float]:
    """Print the distribution in steps of half a second."""
    print(f"\nlease {lease_seconds:g} s, {len(values)} kills, seconds to the first commit of the next owner:")  # noqa: T201
    counts = {
        step: sum(step <= value * 2 < step + 1 for value in values)
        for step in range(int(min(values) * 2), int(max(values) * 2) + 1)
    }
    for step, count in counts.items():
        print(  # noqa: T201
            f"  {step / 2:5.1f} to {(step + 1) / 2:4.1f}  {count:3d} {'#' * round(BAR * count / max(counts.values()))}"
        )
    return {
        "kills": len(values),
        "least": round(min(values), 2),
        "median": round(statistics.median(values), 2),
        "p95": round(percentile(values, 0.95), 2),
        "greatest": round(max(values), 2),
    }


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lease", type=float, action="append", help="lease durations in seconds; 3 and 10 by default"
    )
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    named = os.environ.get("HINDCAST_JARS_DIR")
    jars_dir = Path(named) if named else project_root() / ".hindcast" / "jars" / "spark"
    with tempfile.TemporaryDirectory(prefix="hindcast-failover-") as folder:
        settings = Settings(home=Path(folder), jars_dir=jars_dir)
        jars.fetch(settings)
        settings = settings.model_copy(update={"bootstrap_servers": broker.address(broker.start(settings))})
        try:
            results = {
                f"{lease_seconds:g}": show(
                    lease_seconds, measure(settings, lease_seconds, asked.times, asked.seed)
                )
                for lease_seconds in asked.lease or [3.0, 10.0]
            }
        finally:
            broker.stop(settings)
    print(json.dumps({"failover_seconds_by_lease": results, "seed": asked.seed}))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
