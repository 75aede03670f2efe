"""State is a cache: a shard whose Spark checkpoint is lost or wrong goes on from the topic and the ledger
alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.live_stream import delete_records, ends, ledger, sink_rows
from support.shard_harness import WAIT_SECONDS, CrashError, Shard, crash_at, newest_file, parts
from support.waiting import wait_until

from hindcast.errors import CheckpointRefusedError, OffsetGapError, OffsetsLostError


def _gone(folder: Path) -> None:
    shutil.rmtree(folder)


def _torn_offsets(folder: Path) -> None:
    path = newest_file(folder, "offsets")
    path.write_text(path.read_text()[:20])


def _no_plan(folder: Path) -> None:
    """Of the last batch that the sink holds; a later one that never ran would not be missed."""
    (folder / "offsets" / newest_file(folder, "commits").name).unlink()


def _empty_commits(folder: Path) -> None:
    newest_file(folder, "commits").write_text("")


def _empty_metadata(folder: Path) -> None:
    (folder / "metadata").write_text("")


#: The others are in `make faults`, row F12.
DAMAGES = [_gone, _torn_offsets, _no_plan, _empty_commits, _empty_metadata]


def damaged(shard: Shard, damage: Callable[[Path], None] = _gone, *, checksums: bool = False) -> None:
    """A shard that has committed the first half of a feed, and whose Spark checkpoint then broke while nobody
    owned it.
    """
    first, _ = parts()
    shard.serve(first)
    if not checksums:
        for crc in shard.checkpoint.rglob(".*.crc"):
            crc.unlink()
    damage(shard.checkpoint)


def finish(shard: Shard, rebuild: str = "") -> str:
    """The next owner consumes the second half and the whole is exact; returns why the state was made anew."""
    _, second = parts()
    reason = shard.serve(second, rebuild)
    shard.check()
    return reason


@pytest.mark.drawn(2)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_spark_checkpoint_is_made_anew(shard: Shard, damage: Callable[[Path], None]) -> None:
    """Where a file of Spark's checkpoint is torn, empty or missing, the state comes from topic and ledger, to
    the same results (F12).
    """
    damaged(shard, damage)
    assert "damaged" in finish(shard)
    assert {row.epoch for row in ledger(shard.settings)} == {1, 2}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("damage", [_torn_offsets, _empty_commits, _empty_metadata])
def test_a_file_that_its_checksum_is_not_of_is_damage(shard: Shard, damage: Callable[[Path], None]) -> None:
    """As a disk leaves it, whose checksums Hadoop keeps beside the files: no reading of it that fails for
    ever (F12).
    """
    damaged(shard, damage, checksums=True)
    assert "damaged" in finish(shard)


def test_a_death_while_spark_writes_its_first_plan_keeps_nobody_from_beginning(shard: Shard) -> None:
    """Spark refuses to begin in a folder that holds anything of a plan, be it a file that was never renamed
    to its name (F1).
    """
    folder = shard.checkpoint
    for name in ("commits", "offsets", "sources/0", "state"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"6a73ce4e-2222-4783-8769-d8b6bc7be815"}')
    (folder / "offsets" / ".0.b876e988-df87-4852-8ddd-e06919735b44.tmp").write_text("v1\n")
    first, _ = parts()
    assert shard.serve(first) == ""
    shard.check()


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("step", "time"), [("takeover.5", 1), ("sink.1", 1), ("sink.4", 2), ("sink.5", 1)]
)  # the seal reaches sink.4 once
def test_a_death_while_rewinding_loses_and_doubles_nothing(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, step: str, time: int
) -> None:
    """Whoever dies between making a new state and the first batch that goes on from it leaves the next owner
    all it needs.
    """
    damaged(shard)
    crash_at(monkeypatch, step, time)
    if step.startswith("takeover"):
        with pytest.raises(CrashError):
            shard.start()
    else:
        heir = shard.start()
        wait_until(lambda: heir.failure, WAIT_SECONDS, f"the heir has died at {step}")
        shard.die(heir)
    crash_at(monkeypatch, "", 1)
    finish(shard)


def test_a_shard_is_rebuilt_again_and_again(shard: Shard) -> None:
    """Each rebuilding goes on from the last one's numbers and floors."""
    first, second = parts()
    for part in (first[:120], first[120:], second[:120], second[120:]):
        shard.serve(part, "it was asked for")
    shard.check()


def test_a_rebuild_that_the_topic_cannot_feed_is_refused(shard: Shard) -> None:
    """Where retention has taken rows of windows that are still open, the range is named and nothing is read
    or written.
    """
    damaged(shard)
    before = sorted(sink_rows(shard.settings))
    earliest = {partition: end - 1 for partition, end in ends(shard.sent).items()}
    delete_records(shard.servers, shard.pipeline.source.name, earliest)
    with pytest.raises(OffsetsLostError, match="windows that are still open need them"):
        shard.start()
    assert sorted(sink_rows(shard.settings)) == before


def test_a_sink_that_lost_batches_is_refused(shard: Shard) -> None:
    """A sink that was replaced by an older one is not written to: the ledger knows of more batches than it
    holds.
    """
    first, _ = parts(300)
    shard.serve(first)
    shutil.rmtree(shard.settings.table("sinks", "stock_stats"))
    with pytest.raises(OffsetGapError, match="Restore the table"):
        shard.start()


def test_a_sink_that_gets_its_lost_commit_back_goes_on(shard: Shard) -> None:
    """The refusal writes nothing on top of the damage, so restoring the file is all that is needed (F11)."""
    first, second = parts()
    shard.serve(first)
    newest = max((Path(shard.settings.table("sinks", "stock_stats")) / "_delta_log").glob("*.json"))
    text = newest.read_text()
    newest.unlink()
    with pytest.raises(OffsetGapError, match="Restore the table"):
        shard.start()
    assert not newest.exists(), "no seal stands in its place"
    newest.write_text(text)
    assert shard.serve(second) == ""
    shard.check()


def test_a_rebuild_accepts_another_query(shard: Shard) -> None:
    """A query that Spark plans in another way, to the same results, goes on after a rebuild."""
    first, _ = parts()
    shard.serve(first)
    transform = shard.pipeline.transform
    shard.pipeline = replace(shard.pipeline, transform=lambda frame: transform(frame.where("ask > -1")))
    with pytest.raises(CheckpointRefusedError, match="hindcast rebuild"):
        shard.start()
    finish(shard, "it was asked for")
