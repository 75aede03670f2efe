"""A shard's batches reach the sink exactly once, whichever step its owner dies at."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support.live_stream import ledger, sink_rows
from support.shard_harness import WAIT_SECONDS, CrashError, Shard, crash_at, newest_file, parts
from support.waiting import wait_until

from hindcast.errors import CheckpointRefusedError, OffsetGapError
from hindcast.spark.query_signature import signature_of

SINK_STEPS = ["sink.1", "sink.2", "sink.3", "sink.4", "sink.5", "sink.6"]
TAKEOVER_STEPS = ["takeover.2", "takeover.3", "takeover.4", "takeover.5"]


def test_an_undisturbed_stream_is_exact(shard: Shard) -> None:
    """Every closed window stands in the sink once with the right values; the ledger has each batch; the rest
    is filed.
    """
    first, second = parts()
    shard.send(first)
    owner = shard.start()
    shard.consume(owner)
    shard.send(second)
    shard.consume(owner)
    shard.retire(owner)
    shard.check()
    batches = ledger(shard.settings)
    assert sum(row.input_rows or 0 for row in batches) == len(shard.sent)
    assert sum(row.poison_rows or 0 for row in batches) == sum(
        record.event_ms is None for record in shard.sent
    )
    assert len(sink_rows(shard.settings)) > 20


@pytest.mark.drawn(2)
@pytest.mark.parametrize("step", SINK_STEPS)
def test_a_death_at_any_step_of_a_commit_loses_and_doubles_nothing(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The owner dies at its third batch, at the given step; the next owner's result is exact."""
    first, second = parts()
    shard.send(first)
    crash_at(monkeypatch, step, 3)
    owner = shard.start()
    wait_until(lambda: owner.failure, WAIT_SECONDS, f"the owner has died at {step}")
    assert "CrashError" in str(owner.failure)
    shard.die(owner)
    crash_at(monkeypatch, "", 1)
    shard.serve(second)
    shard.check()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("step", TAKEOVER_STEPS)
def test_a_death_at_any_step_of_a_take_over_loses_and_doubles_nothing(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The heir of a killed owner dies while it takes over; the heir's heir goes on exactly."""
    first, second = parts()
    shard.send(first)
    owner = shard.start()
    shard.consume(owner)
    shard.die(owner)
    crash_at(monkeypatch, step, 1)
    with pytest.raises(CrashError):
        shard.start()
    crash_at(monkeypatch, "", 1)
    shard.serve(second)
    shard.check()
    assert {row.epoch for row in ledger(shard.settings)} == {1, 3}


def test_the_newest_commit_of_sparks_log_may_be_missing(shard: Shard) -> None:
    """A batch that the sink holds and Spark does not know as done is run again and written once (F2)."""
    first, second = parts()
    shard.serve(first)
    commits = shard.checkpoint / "commits"
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    shard.serve(second)
    shard.check()


def test_a_changed_query_on_an_old_checkpoint_is_refused(shard: Shard) -> None:
    """The same version with another transformation does not start, and says which file to look at (F23)."""
    first, _ = parts(200)
    shard.serve(first)
    transform = shard.pipeline.transform
    shard.pipeline = replace(shard.pipeline, transform=lambda frame: transform(frame.where("ask > 2")))
    with pytest.raises(CheckpointRefusedError, match=r"stock_stats\.py"):
        shard.start()


def test_a_gap_is_never_written(shard: Shard) -> None:
    """A Spark checkpoint that stands elsewhere than the sink stops the shard instead of losing or repeating
    rows.
    """
    first, second = parts()
    shard.serve(first)
    folder = shard.checkpoint
    last = folder / "offsets" / newest_file(folder, "commits").name
    while (planned := newest_file(folder, "offsets")) != last:
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
    shard.send(second[:10])
    heir = shard.start()
    wait_until(lambda: heir.failure, WAIT_SECONDS, "the shard has stopped")
    assert isinstance(heir.failure, OffsetGapError)
    assert "hindcast rebuild" in str(heir.failure)
    assert sorted(sink_rows(shard.settings)) == before
    shard.serve(second[10:], "it was asked for")
    shard.check()


def test_a_change_in_the_last_of_many_columns_is_a_change_of_the_query(shard: Shard) -> None:
    """Spark's text of a plan names the first 25 columns of an operator, if nobody asks for more."""
    transform = shard.pipeline.transform

    def wide(last: int) -> Callable[..., DataFrame]:
        columns = {f"c{number}": F.lit(number) for number in range(40)}
        return lambda frame: transform(frame).withColumns({**columns, "last": F.lit(last)})

    made = [replace(shard.pipeline, transform=wide(last)) for last in (1, 1, 2)]
    prints = [signature_of(shard.spark, pipeline).fingerprint for pipeline in made]
    assert prints[0] == prints[1] != prints[2]


def test_a_seed_that_spark_draws_is_no_change_of_the_query(shard: Shard) -> None:
    """A random column gets another seed in each session; that is the verdict's matter, and keeps no owner
    from taking over.
    """
    transform = shard.pipeline.transform
    random = replace(shard.pipeline, transform=lambda frame: transform(frame.withColumn("ask", F.rand())))
    prints = {signature_of(shard.spark, replace(random)).fingerprint for _ in range(3)}
    assert len(prints) == 1
    assert prints != {signature_of(shard.spark, shard.pipeline).fingerprint}
