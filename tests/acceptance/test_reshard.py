"""A live pipeline dealt anew: another number of shards, and a topic that grows under load. The result stays
exact.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

from kafka import KafkaAdminClient
from support.commands import run_command
from support.fleet import START_SECONDS, Stream, feed
from support.simulated_stream import Record
from support.waiting import wait_until

from hindcast.leases.lease import ShardState
from hindcast.partitions import ShardId


def hindcast(stream: Stream, *arguments: str, exit_code: int = 0) -> str:
    """Run a command as a user types it; what it printed, or its error where it is to fail."""
    ended = run_command(stream.settings, *arguments)
    assert ended.returncode == exit_code, ended.stderr
    return ended.stderr if exit_code else ended.stdout


def generation(stream: Stream, number: int) -> list[ShardState]:
    return [
        ShardState(lease.state)
        for lease in stream.leases()
        if ShardId.parse(lease.status_value).generation == number
    ]


def wait_generation(stream: Stream, number: int, count: int) -> None:
    """Until that generation is open in so many shards, and the one before it has ended."""

    def done() -> bool:
        ended = generation(stream, number - 1)
        return generation(stream, number) == [ShardState.OPEN] * count and set(ended) == {
            ShardState.TERMINATED
        }

    wait_until(done, START_SECONDS, f"generation {number} has {count} open shards")


def regrown(records: list[Record], partitions: int, sent: list[Record]) -> list[Record]:
    """The records as a producer places them once the topic has so many partitions: the same hash, another
    modulus.
    """
    offsets = Counter(record.partition for record in sent)
    placed = []
    for record in records:
        partition = int(record.ticker.removeprefix("T")) % partitions
        placed.append(replace(record, partition=partition, offset=offsets[partition]))
        offsets[partition] += 1
    return placed


def test_a_live_pipeline_is_dealt_into_more_shards_and_its_topic_grows(stream: Stream) -> None:
    """From 2 shards to 3, then 4 partitions to 8 with keys that move, then a rebuild of everything, rows
    coming all the while.

    Plain Python and the platform's own verdict over the whole run agree on the result.
    """
    first, second, third, fourth = feed(4)
    stream.send(first)
    one, two = stream.fleet.start(), stream.fleet.start()
    stream.wait_owned_by(one, two)
    stream.wait_read()

    assert "number of shards is now 3" in hindcast(stream, "reshard", stream.name, "--shards", "3")
    stream.send(second)
    wait_generation(stream, 1, 3)
    stream.wait_owned_by(one, two)
    stream.wait_read()

    with KafkaAdminClient(bootstrap_servers=stream.settings.bootstrap_servers) as admin:
        admin.create_partitions({stream.topic: 8})
    stream.send(regrown(third, 8, stream.sent))
    wait_generation(stream, 2, 3)
    stream.wait_read()

    hindcast(stream, "rebuild", stream.name)
    stream.send(regrown(fourth, 8, stream.sent))
    wait_until(lambda: len(rebuilt_on_request(stream)) == 3, START_SECONDS, "every shard's state was rebuilt")
    stream.wait_read()

    stream.pause()
    stream.check()
    verdict = json.loads(hindcast(stream, "validate", stream.name, "--all", "--output", "json"))
    assert (verdict["unexplained"], verdict["passed"], verdict["input_rows"]) == (0, True, len(stream.sent))
    assert len(stream.events("shard_ended")) == 5
    assert {row["severity"] for row in stream.events()} == {"info"}


def rebuilt_on_request(stream: Stream) -> set[str]:
    return {row["shard"] for row in stream.events("shard_rebuilt") if "asked for" in row["message"]}


def test_a_number_of_shards_that_would_split_keys_is_refused(stream: Stream) -> None:
    """Dealing is checked like a declaration, before anything is written."""
    assert "shards 0 is not from 1" in hindcast(stream, "reshard", stream.name, "--shards", "0", exit_code=2)
