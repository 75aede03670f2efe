"""A shard whose topic has dropped what comes next goes on in the archive, and then on the topic, to the
record.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from support.crashes import CrashError, crash_at
from support.live_stream import delete_records, ends, ledger
from support.shapes import SHAPES, Shape
from support.shard_harness import WAIT_SECONDS, Shard, parts
from support.waiting import wait_until
from support.workload_harness import Workload, at

from hindcast.archive.copy_topic import archive_topic
from hindcast.errors import OffsetsLostError
from hindcast.installation import Installation
from hindcast.recovery import rebuild_from_batches
from hindcast.spark import kafka_source
from hindcast.stream.shard_runner import ShardRunner
from hindcast.versions.start import start_offsets

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

Make = Callable[..., Workload]
WORDS = ("Streams", "are", "replayed.", "They", "live.")


def archive(shard: Shard) -> None:
    """Archive all topics of the shard, up to their present ends."""
    for topic in shard.pipeline.topics:
        archive_topic(lambda: shard.spark, Installation(shard.settings), topic.name)


def drop(shard: Shard, keep: int = 0, topic: int = 0) -> None:
    """What retention does: the topic forgets all but the last records of each partition."""
    latest = shard.reached()
    name = shard.pipeline.topics[topic].name
    places = {}
    for partition, end in latest.items():
        if partition // 1000 == topic:
            places[partition % 1000] = max(end - keep, 0)
    delete_records(shard.servers, name, places)


def die_at(shard: Shard, patched: pytest.MonkeyPatch, step: str, time: int) -> ShardRunner:
    """The next owner dies at a step, somewhere on its way from the archive to the topic."""
    crash_at(patched, step, time)
    owner = shard.start()

    def crashed() -> bool:
        owner.go_on()
        return owner.failure is not None

    wait_until(crashed, WAIT_SECONDS, f"it has died at {step}")
    shard.die(owner)
    return owner


def test_a_batch_from_the_archive_has_many_tasks(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads a part of the batch's file, and together they read all of it once."""
    monkeypatch.setattr(kafka_source, "MAX_RECORDS_PER_TASK", 10)
    monkeypatch.setattr(rebuild_from_batches, "_TASK_BYTES", 500)
    first, second = parts()
    shard.serve(first)
    shard.send(second[:-20])
    archive(shard)
    drop(shard, keep=5)
    shard.serve(second[-20:])
    shard.check()


def test_a_paused_shard_goes_on_in_the_archive(shard: Shard) -> None:
    """It has read half of a feed; the topic has dropped nearly all of the rest. Batch follows batch, and each
    is measured.
    """
    first, second = parts()
    shard.serve(first)
    shard.send(second[:-20])
    archive(shard)
    drop(shard, keep=5)
    reason = shard.serve(second[-20:])
    assert "its archive holds it" in reason
    shard.check()
    rows = ledger(shard.settings)
    assert [row.batch for row in rows] == list(range(1, len(rows) + 1))
    assert all(row.input_rows is not None for row in rows)
    assert sum(row.input_rows or 0 for row in rows) == len(shard.sent)


def test_a_shard_begins_in_the_archive(shard: Shard) -> None:
    """At the first offsets of its topic, of which nothing is left there."""
    first, second = parts()
    shard.send(first)
    archive(shard)
    drop(shard)
    shard.serve(second)
    shard.check()


def test_a_state_is_rebuilt_from_the_archive(shard: Shard) -> None:
    """The topic still holds what comes next, and no longer what open windows have counted."""
    first, second = parts()
    shard.serve(first)
    archive(shard)
    drop(shard)
    assert shard.serve(second, "it was asked for") == "it was asked for"
    shard.check()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("step", "time"),
    [
        ("base.1", 1),
        ("sink.1", 2),
        ("sink.4", 3),
        ("sink.5", 2),
        ("base.2", 1),
        ("rerun.3", 1),
        ("sink.1", 3),
    ],
)
def test_a_death_on_the_way_loses_and_doubles_nothing(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, step: str, time: int
) -> None:
    """The next owner goes on where the sink ends, in the archive or in the topic."""
    first, second = parts()
    shard.serve(first)
    shard.send(second[:-20])
    archive(shard)
    drop(shard, keep=5)
    owner = die_at(shard, monkeypatch, step, time)
    assert CrashError.__name__ in repr(owner.failure) or step in str(owner.failure)
    crash_at(monkeypatch, "", 1)
    shard.serve(second[-20:])
    shard.check()


def test_what_no_archive_holds_is_refused(shard: Shard) -> None:
    """The archive ends before the topic begins: the gap is named, and nothing is read or written."""
    first, second = parts()
    shard.serve(first)
    shard.send(second[:100])
    archive(shard)
    archived = ends(shard.sent)
    shard.send(second[100:])
    drop(shard)
    owner = shard.start()
    wait_until(lambda: owner.failure, WAIT_SECONDS, "it is refused")
    assert isinstance(owner.failure, OffsetsLostError)
    assert "neither the topic nor its archive holds them" in str(owner.failure)
    assert owner.failure.fields["start"] == archived[owner.failure.fields["partition"]]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["upsert", "avro"])
def test_each_shape_goes_on_in_the_archive(shard_of: Callable[[Shape], Shard], name: str) -> None:
    """Running results need all rows again, and Avro is parsed there as it is in the topic."""
    shard = shard_of(SHAPES[name])
    first, second = parts(300)
    shard.serve(first)
    shard.send(second[:-20])
    archive(shard)
    drop(shard, keep=5)
    shard.serve(second[-20:])
    shard.check()


def test_state_of_a_pipelines_own_goes_on_in_the_archive(workload: Make) -> None:
    """Half a sentence was read before, the other half is in the archive alone, and the verdict holds: also
    that of a second life that begins with the first word.
    """
    made = workload("sentences")
    rows = [{"speaker": "s", "word": text, "ts": at(second)} for second, text in enumerate(WORDS)]
    made.put(rows[:2])
    made.read()
    made.put(rows[2:4])
    archive(made)
    drop(made)
    made.put(rows[4:])
    made.read()
    assert sorted(row["sentence"] for row in made.rows()) == ["Streams are replayed.", "They live."]
    verdict = made.verdict()
    assert (verdict["unexplained"], verdict["input_rows"], verdict["passed"]) == (0, len(rows), True)


def test_a_version_may_begin_in_the_archive(shard: Shard) -> None:
    """At its first record, at offsets, and at a time that only the archive knows."""
    first, _ = parts()
    shard.send(first)
    archive(shard)
    drop(shard)
    now = datetime.now(UTC)
    zero = dict.fromkeys(shard.reached(), 0)
    assert start_offsets(shard.settings, shard.pipeline, "earliest", now) == zero
    assert start_offsets(shard.settings, shard.pipeline, '{"0": 3, "1": 4}', now) == {0: 3, 1: 4}
