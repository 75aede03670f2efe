"""What happens to Spark's checkpoints, to the query on them, and to the topic's partitions below them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import fault_oracles
from support.check_all_oracles import CheckAllOracles
from support.evidence import collect
from support.fleet import HEALED_SECONDS, PARTITIONS, SHARDS, START_SECONDS, Worker, fleet_settings
from support.live_stream import declare, ends, ledger
from support.shapes import OF_ONE_TOPIC, Shape
from support.simulated_stream import Record, trades
from support.waiting import wait_until
from support.warm_fleet import WarmFleet, WarmStream

from hindcast.settings import Settings
from hindcast.shards.pipeline_row import DesiredState
from hindcast_sandbox.load import ensure_topic

if TYPE_CHECKING:
    from conftest import Broker

HEALING_SECONDS = 2 * HEALED_SECONDS


def _newest(folder: Path, log: str) -> Path:
    return max(
        (path for path in (folder / log).iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )


def everything_gone(folder: Path) -> None:
    shutil.rmtree(folder)


def metadata_missing(folder: Path) -> None:
    (folder / "metadata").unlink()


def metadata_empty(folder: Path) -> None:
    (folder / "metadata").write_text("")


def newest_plan_empty(folder: Path) -> None:
    _newest(folder, "offsets").write_text("")


def newest_plan_torn(folder: Path) -> None:
    path = _newest(folder, "offsets")
    path.write_text(path.read_text()[:20])


def newest_commit_torn(folder: Path) -> None:
    _newest(folder, "commits").write_text("v")


def state_file_torn(folder: Path) -> None:
    path = max((folder / "state").rglob("*.delta"), key=lambda path: path.stat().st_mtime_ns)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def state_gone(folder: Path) -> None:
    shutil.rmtree(folder / "state")


DAMAGES = [
    everything_gone,
    metadata_missing,
    metadata_empty,
    newest_plan_empty,
    newest_plan_torn,
    newest_commit_torn,
    state_file_torn,
    state_gone,
]


@pytest.mark.row("F12")
@pytest.mark.parametrize("checksums", ["kept", "gone"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_spark_checkpoint(
    stream: WarmStream,
    pair: tuple[Worker, Worker],
    prove: CheckAllOracles,
    seed: int,
    damage: Callable[[Path], None],
    checksums: str,
) -> None:
    """Each shard is rebuilt from topic and ledger to the exact result, without anybody's help; an event says
    why.
    """
    stream.pause()
    for lease in stream.leases():
        folder = Path(stream.settings.checkpoint(stream.name, lease.status_value))
        if checksums == "gone":
            for crc in folder.rglob(".*.crc"):
                crc.unlink()
        damage(folder)
    stream.want()
    stream.send_more(200)
    stream.wait_read(HEALING_SECONDS)
    rebuilt = {event["shard"] for event in stream.events("shard_rebuilt")}
    assert rebuilt == {lease.status_value for lease in stream.leases()}, "each shard says that it was rebuilt"
    prove(stream, "shard_rebuilt", healing_seconds=HEALING_SECONDS, live=False)


@pytest.mark.row("F12")
def test_a_first_plan_that_was_never_whole(stream: WarmStream, prove: CheckAllOracles, seed: int) -> None:
    """A worker that is killed while Spark writes the first plan of a query leaves a file that was not renamed
    to its name yet.
    """
    stream.fleet.whole()
    for number in range(SHARDS):
        plans = Path(stream.settings.checkpoint(stream.name, f"v1.g0.s{number}")) / "offsets"
        plans.mkdir(parents=True)
        (plans / ".0.b876e988-df87-4852-8ddd-e06919735b44.tmp").write_text("v1\n")
    stream.want()
    stream.send_more()
    stream.wait_read(HEALING_SECONDS)
    prove(stream, healing_seconds=HEALING_SECONDS, live=False)


@pytest.mark.shapes("append", "upsert", "late_sink")
@pytest.mark.row("F23")
@pytest.mark.parametrize("change", ["filter", "aggregate", "source"])
def test_a_changed_query_on_an_old_checkpoint(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int, change: str
) -> None:
    """The same version with another query is refused before it starts, naming the file; the old query goes on
    exactly.
    """
    stream.pause()
    path = stream.settings.pipelines_dir / f"{stream.name}.py"
    text = path.read_text()
    changed = {
        "filter": text.replace("return trades.", 'return trades.where("ask > 2").'),
        "aggregate": text.replace('F.min("ask")', 'F.max("ask")'),
        "source": text.replace("NOT NULL", "NOT NULL, venue string"),
    }[change]
    assert changed != text
    path.write_text(changed)
    _restart(stream)
    event = stream.wait_event("shard_refused")
    assert path.name in event["message"]
    assert event["cure"]
    stream.want(DesiredState.PAUSED)
    path.write_text(text)
    _restart(stream)
    prove(stream, "shard_refused", live=False, healing_seconds=HEALING_SECONDS)


def _restart(stream: WarmStream) -> None:
    """Workers load the pipelines when they start."""
    for process in stream.fleet.alive():
        stream.fleet.kill(process)
    stream.fleet.whole()
    stream.want()


@pytest.fixture
def twins(
    broker: Broker,
    topic: str,
    settings_factory: Callable[..., Settings],
    shape: Shape,
    seed: int,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[WarmStream, WarmStream]]:
    """Two platforms, each with control tables of its own, that were given the same checkpoints, and the same
    sinks where it is asked.
    """
    first = WarmFleet(fleet_settings(settings_factory(workers=1), broker.bootstrap_servers), spares=0)
    second = WarmFleet(fleet_settings(settings_factory(workers=1), broker.bootstrap_servers), spares=0)
    second.settings = second.settings.model_copy(
        update={"checkpoints_url": first.settings.checkpoint("x").removesuffix("/x")}
    )
    for own in shape.topics(topic)[1:]:
        ensure_topic(broker.bootstrap_servers, own, PARTITIONS)
    made = []
    for fleet in (first, second):
        declare(fleet.settings, topic, shards=1, shape=shape)
        made.append(WarmStream(fleet, topic, seed=seed, shape=shape))
    if request.param == "one application id":
        sinks = first.settings.home / "tables" / "sinks"
        sinks.mkdir(parents=True)
        other = second.settings.home / "tables"
        other.mkdir(parents=True)
        (other / "sinks").symlink_to(sinks)
    yield made[0], made[1]
    for fleet in (first, second):
        fleet.end()
        fleet.history.stop()


#: How a worker says that there is another on its checkpoint or its sink.
TELLING = ("shard_refused", "query_failed", "lease_lost", "shard_rebuilt")


@pytest.mark.row("F24")
@pytest.mark.parametrize("twins", ["one checkpoint", "one application id"], indirect=True)
def test_two_queries_on_one_checkpoint(
    twins: tuple[WarmStream, WarmStream], prove: CheckAllOracles, seed: int, request: pytest.FixtureRequest
) -> None:
    """Nobody becomes the writer of a sink unseen; with a sink of its own the second platform makes its own
    state, and both are exact.
    """
    one, two = twins
    one.fleet.whole(1)
    one.want()
    one.send_more()
    one.wait_owned(seconds=START_SECONDS)
    one.wait_read()
    two.sent = list(one.sent)
    two.fleet.whole(1)
    two.want()
    wait_until(
        lambda: two.events(*TELLING) or one.events(*TELLING),
        START_SECONDS,
        "one of the two says that there is another",
    )
    one.send_more()
    two.sent = list(one.sent)
    if "one checkpoint" in request.node.name:
        # A sink of its own: whichever state is in the folder, each takes what it needs from topic and ledger.
        two.wait_read(HEALING_SECONDS)
        two.pause()
        two.check()
    two.fleet.end()
    one.fleet.whole(1)
    one.want()
    one.send_more()
    one.wait_read(HEALING_SECONDS)
    one.pause()
    one.check()
    prove.record("oracles", "I1 I2 I5 I7")


@pytest.mark.row("F24")
def test_a_deleted_checkpoint_whose_application_id_stays(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """Spark's numbers begin again at 0 below what the sink has recorded: never skipped in silence, as an
    equal number would be.
    """
    stream.pause()
    for lease in stream.leases():
        shutil.rmtree(stream.settings.checkpoint(stream.name, lease.status_value))
    recorded = {row.shard: row.batch for row in ledger(stream.settings, stream.name)}
    stream.want()
    stream.send_more(300)
    stream.wait_read(HEALING_SECONDS)
    newest = {row.shard: row.batch for row in ledger(stream.settings, stream.name)}
    assert all(newest[shard] > batch for shard, batch in recorded.items())
    prove(stream, live=False, healing_seconds=HEALING_SECONDS)


@pytest.mark.shapes(*OF_ONE_TOPIC)
@pytest.mark.row("F17")
def test_partitions_grow_while_keys_move(
    broker: Broker, stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """4 -> 8 partitions during the run, half of the keys move: a new generation of shards reads on exactly
    where the old one stopped.
    """
    from kafka import KafkaAdminClient
    from kafka.admin import NewPartitions

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_partitions({stream.topic: NewPartitions(total_count=8)})
    admin.close()
    stream.send(_moved(stream))
    stream.wait_read(HEALING_SECONDS)
    evidence = collect(stream.settings, stream.name, stream.began_at, stream.fleet.history)
    fault_oracles.parents_first(evidence)
    assert {seen.shard for seen in evidence.leases if seen.parents}, "there is a new generation"
    prove(stream, "shards_created", sends=False, live=False, healing_seconds=HEALING_SECONDS)


def _moved(stream: WarmStream, count: int = 400) -> list[Record]:
    """Records of the feed's continuation, with the tickers T4 to T7 in the new partitions from now on, as a
    hash of the key deals them.
    """
    from dataclasses import replace

    offsets = {**dict.fromkeys(range(8), 0), **ends(stream.sent)}
    made = []
    for record in trades(stream.seed, count=len(stream.sent) + count, partitions=4)[len(stream.sent) :]:
        partition = int(record.ticker[1:]) % 8
        made.append(replace(record, partition=partition, offset=offsets[partition]))
        offsets[partition] += 1
    return made
