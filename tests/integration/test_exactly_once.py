"""A shard's batches reach the sink exactly once, whichever step its owner dies at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_stream import check_answer, check_filed, ends, ledger, on_topic, produce, sink_rows
from simulated_stream import Clockwork, Record, Simulated, trades
from waiting import wait_until

from hindcast import catalog
from hindcast.control import shards
from hindcast.control.keeper import Keeper
from hindcast.control.ledger import Ledger
from hindcast.control.tables import ControlTables
from hindcast.errors import CheckpointRefusedError, OffsetGapError
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings, project_root
from hindcast.stream import consumer as consumer_module
from hindcast.stream import steps
from hindcast.stream.audit import Audit
from hindcast.stream.consumer import ShardConsumer
from hindcast.testing import FakeClock, MemoryStore

if TYPE_CHECKING:
    from conftest import Broker
    from pyspark.sql import SparkSession

SINK_STEPS = ["sink.1", "sink.2", "sink.3", "sink.4", "sink.5", "sink.6"]
TAKEOVER_STEPS = ["takeover.2", "takeover.3", "takeover.4", "takeover.5"]
WAIT_SECONDS = 60.0


class CrashError(Exception):
    """Stands in for SIGKILL inside this process: nothing after it runs."""


@dataclass
class Shard:
    """One shard of a pipeline on a real topic, consumed by one owner after the other."""

    spark: SparkSession
    settings: Settings
    pipeline: Pipeline
    servers: str
    partitions: int
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: FakeClock = field(default_factory=FakeClock)
    owners: int = 0
    sent: list[Record] = field(default_factory=list)
    running: list[ShardConsumer] = field(default_factory=list)

    def send(self, records: list[Record]) -> None:
        produce(self.servers, self.pipeline.source.name, records)
        self.sent += records

    def own(self) -> ShardConsumer:
        """A new owner takes the shard over; the one before is dead and its lease expired."""
        shards.create(self.store, self.pipeline.name, self.pipeline.version, 1, dict.fromkeys(range(self.partitions), 0))
        keeper = Keeper(
            self.store,
            self.clock,
            owner=f"w{self.owners}",
            fleet="f",
            slots=50,
            lease_seconds=10.0,
            wanted=lambda *_: True,
            sleep=lambda _: None,
        )
        self.owners += 1
        assert keeper.acquire_slot(self.clock.advance)
        keeper.step()
        self.clock.advance(10.5)
        keeper.step()
        (lease,) = keeper.step().gained or [row for row in self.store.read().leases.values() if row.status_type == "shard"]
        assert lease.lease_owner == keeper.owner
        ledger_of = Ledger(ControlTables(self.settings))
        made = ShardConsumer(self.spark, self.settings, self.pipeline, lease, keeper, ledger_of, self.clock, lambda: 0.0)
        self.running.append(made)
        return made

    def consume(self, owner: ShardConsumer) -> None:
        """Wait until the owner has committed all that was sent."""
        wait_until(lambda: owner.failure or owner.end_offsets == ends(self.sent), WAIT_SECONDS, "the shard has read everything")
        assert owner.failure is None

    def die(self, owner: ShardConsumer) -> None:
        """Stop the query and forget what the owner had queued, as a killed process would."""
        if owner._query is not None:
            owner._query.stop()

    def retire(self, owner: ShardConsumer) -> None:
        """Stop cleanly once idle."""
        owner.drain()
        wait_until(lambda: owner.drained, WAIT_SECONDS, "the batch in hand has ended")
        owner.stop()

    def check(self) -> None:
        oracle = Simulated(Clockwork(), self.sent)
        check_answer(self.settings, self.sent, oracle)
        audit = Audit(self.spark, self.settings, self.pipeline, self.running[-1].app, self.running[-1].lease.epoch)
        batches = ledger(self.settings)
        while audit.run(batches) < batches[-1].batch:
            pass
        check_filed(self.settings, self.sent, oracle)


@pytest.fixture
def shard(
    spark: SparkSession,
    broker: Broker,
    topic_factory: Callable[..., str],
    settings_factory: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shard]:
    """A shard of two partitions whose batches are small."""
    monkeypatch.setattr(consumer_module, "MAX_RECORDS_PER_BATCH", 80)
    settings = settings_factory(bootstrap_servers=broker.bootstrap_servers, trigger_seconds=0.0)
    example = catalog.load(project_root() / "include" / "pipelines")["stock_stats"]
    made = Shard(spark, settings, on_topic(example, topic_factory(partitions=2)), broker.bootstrap_servers, 2)
    yield made
    for owner in made.running:
        made.die(owner)


def parts(count: int = 500) -> tuple[list[Record], list[Record]]:
    """Two halves of one feed with late and poison rows."""
    records = trades(7, count=count, partitions=2, rate_ms=100.0)
    return records[: count // 2], records[count // 2 :]


def crash_at(monkeypatch: pytest.MonkeyPatch, step: str, time: int) -> None:
    def die(*_: object) -> None:
        raise CrashError(step)

    monkeypatch.setattr(steps, "_step", step)
    monkeypatch.setattr(steps, "_count", str(time))
    monkeypatch.setattr(steps.os, "kill", die)
    steps._reached.clear()


def test_an_undisturbed_stream_is_exact(shard: Shard) -> None:
    """Every closed window stands in the sink once with the right values; the ledger has each batch; the rest is filed."""
    first, second = parts()
    shard.send(first)
    owner = shard.own()
    owner.start()
    shard.consume(owner)
    shard.send(second)
    shard.consume(owner)
    shard.retire(owner)
    shard.check()
    batches = ledger(shard.settings)
    assert sum(row.input_rows or 0 for row in batches) == len(shard.sent)
    assert sum(row.poison_rows or 0 for row in batches) == sum(record.event_ms is None for record in shard.sent)
    assert len(sink_rows(shard.settings)) > 20


@pytest.mark.parametrize("step", SINK_STEPS)
def test_a_death_at_any_step_of_a_commit_loses_and_doubles_nothing(shard: Shard, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The owner dies at its third batch, at the given step; the next owner's result is exact."""
    first, second = parts()
    shard.send(first)
    crash_at(monkeypatch, step, 3)
    owner = shard.own()
    owner.start()
    wait_until(lambda: owner.failure, WAIT_SECONDS, f"the owner has died at {step}")
    assert "CrashError" in str(owner.failure)
    shard.die(owner)
    crash_at(monkeypatch, "", 1)
    shard.send(second)
    heir = shard.own()
    heir.start()
    shard.consume(heir)
    shard.retire(heir)
    shard.check()


@pytest.mark.parametrize("step", TAKEOVER_STEPS)
def test_a_death_at_any_step_of_a_take_over_loses_and_doubles_nothing(shard: Shard, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The heir of a killed owner dies while it takes over; the heir's heir goes on exactly."""
    first, second = parts()
    shard.send(first)
    owner = shard.own()
    owner.start()
    shard.consume(owner)
    shard.die(owner)
    crash_at(monkeypatch, step, 1)
    heir = shard.own()
    with pytest.raises(CrashError):
        heir.start()
    crash_at(monkeypatch, "", 1)
    shard.send(second)
    last = shard.own()
    last.start()
    shard.consume(last)
    shard.retire(last)
    shard.check()
    assert {row.epoch for row in ledger(shard.settings)} == {1, 3}


def test_the_newest_commit_of_sparks_log_may_be_missing(shard: Shard) -> None:
    """A batch that the sink holds and Spark does not know as done is run again and written once (F2)."""
    first, second = parts()
    shard.send(first)
    owner = shard.own()
    owner.start()
    shard.consume(owner)
    shard.retire(owner)
    commits = Path(shard.settings.checkpoint(shard.pipeline.name, "v1.g0.s0")) / "commits"
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    shard.send(second)
    heir = shard.own()
    heir.start()
    shard.consume(heir)
    shard.retire(heir)
    shard.check()


def _gone(folder: Path) -> None:
    shutil.rmtree(folder)


def _without_metadata(folder: Path) -> None:
    (folder / "metadata").unlink()


def _newest(folder: Path, log: str) -> Path:
    return max((path for path in (folder / log).iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def _empty_offsets(folder: Path) -> None:
    _newest(folder, "offsets").write_text("")


def _torn_offsets(folder: Path) -> None:
    path = _newest(folder, "offsets")
    path.write_text(path.read_text()[:20])


def _no_plan(folder: Path) -> None:
    """Of the last batch that the sink holds; a later one that never ran would not be missed."""
    (folder / "offsets" / _newest(folder, "commits").name).unlink()


def _empty_commits(folder: Path) -> None:
    _newest(folder, "commits").write_text("")


@pytest.mark.parametrize("damage", [_gone, _without_metadata, _empty_offsets, _torn_offsets, _no_plan, _empty_commits])
def test_a_damaged_spark_checkpoint_is_refused(shard: Shard, damage: Callable[[Path], None]) -> None:
    """A torn, empty or missing file of Spark's checkpoint is named, with the cure, and nothing is read or written."""
    first, _ = parts(300)
    shard.send(first)
    owner = shard.own()
    owner.start()
    shard.consume(owner)
    shard.retire(owner)
    before = sorted(sink_rows(shard.settings))
    folder = Path(shard.settings.checkpoint(shard.pipeline.name, "v1.g0.s0"))
    for crc in folder.rglob("*.crc"):
        crc.unlink()
    damage(folder)
    with pytest.raises(CheckpointRefusedError, match="raise the pipeline's version"):
        shard.own().start()
    assert sorted(sink_rows(shard.settings)) == before


def test_a_changed_query_on_an_old_checkpoint_is_refused(shard: Shard) -> None:
    """The same version with another transformation does not start, and says which file to look at (F23)."""
    first, _ = parts(200)
    shard.send(first)
    owner = shard.own()
    owner.start()
    shard.consume(owner)
    owner._keeper.step()  # the lease learns the fingerprint
    shard.retire(owner)
    transform = shard.pipeline.transform
    shard.pipeline = replace(shard.pipeline, transform=lambda frame: transform(frame.where("ask > 2")))
    with pytest.raises(CheckpointRefusedError, match=r"stock_stats\.py"):
        shard.own().start()


def test_a_gap_is_never_written(shard: Shard) -> None:
    """A Spark checkpoint that stands elsewhere than the sink stops the shard instead of losing or repeating rows."""
    first, second = parts()
    shard.send(first)
    owner = shard.own()
    owner.start()
    shard.consume(owner)
    shard.retire(owner)
    folder = Path(shard.settings.checkpoint(shard.pipeline.name, "v1.g0.s0"))
    last = folder / "offsets" / _newest(folder, "commits").name
    while (planned := _newest(folder, "offsets")) != last:
        planned.unlink()
    text = last.read_text().splitlines()
    topic = shard.pipeline.source.name
    ends_at = json.loads(text[2])
    ends_at[topic]["0"] -= 1  # one record that the sink holds would be read again
    text[2] = json.dumps(ends_at)
    for crc in folder.rglob("*.crc"):
        crc.unlink()
    last.write_text("\n".join(text))
    before = sorted(sink_rows(shard.settings))
    shard.send(second)
    heir = shard.own()
    heir.start()
    wait_until(lambda: heir.failure, WAIT_SECONDS, "the shard has stopped")
    assert isinstance(heir.failure, OffsetGapError)
    assert sorted(sink_rows(shard.settings)) == before
