"""A record on which the pipeline's function raises: it is found, left out, filed, and in neither answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.crashes import CrashError, crash_at
from support.live_stream import delete_records, ledger
from support.raising_shape import raising, spoil
from support.shapes import APPEND, Join, Shape, Upsert, placed
from support.shard_harness import WAIT_SECONDS, Shard, parts
from support.waiting import wait_until

from hindcast.archive.copy_topic import archive_topic
from hindcast.errors import RaisingRecordsError
from hindcast.installation import Installation
from hindcast.recovery.raising_records import FailedBatch, LeftOut, RaisingRecords
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import run_replay
from hindcast.stream.shard_runner import Phase, ShardRunner
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.excluded_records import Excluded, together
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.judge import judge

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]


def failed(shard: Shard) -> ShardRunner:
    """An owner whose query has failed."""
    owner = shard.start()
    wait_until(lambda: owner.failure, WAIT_SECONDS, "the query has failed")
    owner.stop()
    return owner


def search(shard: Shard, owner: ShardRunner, excluded: Excluded | None = None) -> RaisingRecords:
    """The search for what the owner failed with, after its end.

    :param excluded: what it left out
    """
    planned = owner.planned_next()
    assert planned is not None
    assert owner.failure is not None
    start, end = planned
    batch = FailedBatch(owner.lease.status_value, start, end, owner.floors, owner.failure, excluded or {})
    made = RaisingRecords(shard.spark, Installation(shard.settings), shard.pipeline, batch, shard.clock)
    wait_until(lambda: made.ended, WAIT_SECONDS, "the search has ended")
    return made


def places_of(excluded: Excluded) -> set[tuple[int, int]]:
    return {(partition, offset) for partition, offsets in excluded.items() for offset in offsets}


def _is_done(shard: Shard, owner: ShardRunner) -> bool:
    owner.go_on()
    read = owner.phase is Phase.CONSUMING and owner.end_offsets == shard.reached()
    return read or owner.failure is not None


def serve(shard: Shard) -> LeftOut:
    """Owners come until all is read; each leaves out what was found before it. What was found."""
    found = LeftOut()
    while True:
        owner = shard.start(excluded=found.excluded)
        wait_until(partial(_is_done, shard, owner), WAIT_SECONDS, "it has read all or failed")
        if owner.failure is None:
            shard.renew()
            shard.retire(owner)
            return found
        owner.stop()
        searched = search(shard, owner)
        assert searched.found, searched.reason
        found = found.and_those(searched.found)


def left_out(shard: Shard) -> Excluded:
    """What the ledger names."""
    return together(row.excluded for row in ledger(shard.settings, shard.pipeline.name))


def verdict(shard: Shard) -> dict[str, object]:
    installation = Installation(shard.settings)
    request = ReplayRequest(pipeline=shard.pipeline.name, run_id="once", everything=True)
    run_replay(lambda: shard.spark, installation, shard.pipeline, request)
    return judge(lambda: shard.spark, installation, shard.pipeline, "once")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("shape", [APPEND, Upsert(), Join()], ids=lambda shape: shape.name)
def test_the_stream_goes_on_without_records_that_raise(
    shard_of: Callable[[Shape], Shard], shape: Shape
) -> None:
    """They are found among their neighbours, in two batches, and named in the ledger and the dead letters;
    every other record is where it belongs. Stream and batch agree.
    """
    shard = shard_of(raising(shape))
    feed = placed(shape.spread(parts()[0]))
    spoilt, places = spoil(feed, 60, 62, 180, shape=shape)
    shard.send(spoilt)
    found = serve(shard)
    assert places_of(found.excluded) == places
    shard.tracebacks = found.tracebacks
    shard.check()
    assert places_of(left_out(shard)) == places
    letters = ControlTables(shard.settings).rows(ControlTable.DEAD_LETTERS)
    code = Path(shard.pipeline.file).read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(code) if "raise ValueError" in text)
    reasons = {(row["partition"], row["offset"]): row["reason"] for row in letters}
    for place in places:
        assert reasons[place] == f"the function raised ValueError (shaped.py, line {line})"
    tracebacks = [row["traceback"] for row in letters if row["traceback"]]
    assert len(tracebacks) == len(places)
    ends = {text.splitlines()[-1] for text in tracebacks}
    assert ends == {"ValueError: the ask -1.0 is negative"}
    judged = verdict(shard)
    assert (judged["unexplained"], judged["passed"]) == (0, True)
    assert judged["dead_letters"] == len(letters)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "step", ["exclude.1", "exclude.2", "exclude.3", "exclude.4", "sink.4", "sink.5", "sink.6"]
)
def test_a_death_at_any_step_loses_and_doubles_nothing(
    shard_of: Callable[[Shape], Shard], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The set lives in the owner's memory until the commit. The next owner searches again, or knows it from
    the commit.
    """
    shard = shard_of(raising(APPEND))
    spoilt, places = spoil(parts()[0], 180)
    shard.send(spoilt)
    owner = failed(shard)
    if step in {"exclude.1", "exclude.2"}:
        crash_at(monkeypatch, step, 1)
        died = search(shard, owner)
        assert not died.found
        assert "CrashError" in died.reason
    else:
        found = search(shard, owner).found.excluded
        assert places_of(found) == places
        # The seal of the take-over is a commit of its own.
        crash_at(monkeypatch, step, 2 if step == "sink.4" else 1)
        if step.startswith("exclude"):
            with pytest.raises(CrashError):
                shard.start(excluded=found)
        else:
            owner = shard.start(excluded=found)
            wait_until(lambda: owner.failure, WAIT_SECONDS, f"the owner has died at {step}")
            shard.die(owner)
    crash_at(monkeypatch, "", 1)
    found_again = serve(shard)
    assert places_of(found_again.excluded) == (set() if step in {"sink.5", "sink.6"} else places)
    shard.check()
    assert places_of(left_out(shard)) == places


def test_no_record_is_left_out_if_the_function_raises_on_all(shard_of: Callable[[Shape], Shard]) -> None:
    """A service that the function calls is away, say: it raises on records that it took before, too. Nor is a
    record left out of the first batch of a stream if no other passes. Once the service is back all goes on.
    """
    shard = shard_of(raising(APPEND))
    shard.settings = shard.settings.model_copy(update={"raising_records_per_hour": 3})
    first, second = parts(200)
    away = Path(shard.pipeline.file).with_suffix(".away")
    away.touch()
    shard.send(first)
    searched = search(shard, failed(shard))
    assert not searched.found
    assert "has not taken any before" in searched.reason
    away.unlink()
    shard.serve([])
    away.touch()
    shard.send(second)
    searched = search(shard, failed(shard))
    assert (searched.found, searched.refusal) == (LeftOut(), None)
    assert "raises on records that it took before" in searched.reason
    away.unlink()
    searched = search(shard, shard.running[-1])
    assert not searched.found
    assert "takes the batch if it is run again" in searched.reason
    shard.serve([])
    shard.check()


def test_what_is_left_out_already_is_not_found_again(shard_of: Callable[[Shape], Shard]) -> None:
    """If the batch fails once more for another reason, no record is to blame: the shard is given back, and not
    searched for ever.
    """
    shard = shard_of(raising(APPEND))
    spoilt, places = spoil(parts()[0], 60)
    shard.send(spoilt)
    owner = failed(shard)
    found = search(shard, owner).found.excluded
    assert places_of(found) == places
    searched = search(shard, owner, found)
    assert not searched.found
    assert "takes the batch if it is run again" in searched.reason


def test_a_shard_stops_if_more_records_raise_than_may_be_left_out(shard_of: Callable[[Shape], Shard]) -> None:
    """The bound is for an hour: what was left out before counts. The error says what to do."""
    shard = shard_of(raising(APPEND))
    shard.settings = shard.settings.model_copy(update={"raising_records_per_hour": 1})
    first, second = parts()
    spoilt, places = spoil(first, 60)
    shard.send(spoilt)
    assert places_of(serve(shard).excluded) == places
    spoilt, _ = spoil(second, 20)
    shard.send(spoilt)
    searched = search(shard, failed(shard))
    assert not searched.found
    assert isinstance(searched.refusal, RaisingRecordsError)
    assert "1 an hour, and 1 were in the last hour" in str(searched.refusal)


def test_a_record_of_an_archive_is_left_out_too(shard_of: Callable[[Shape], Shard]) -> None:
    """A shard that was paused beyond retention reads it from the archive; so do the search and the filing."""
    shard = shard_of(raising(APPEND))
    first, second = parts()
    shard.serve(first)
    spoilt, places = spoil(second, 50)
    shard.send(spoilt)
    for topic in shard.pipeline.topics:
        archive_topic(lambda: shard.spark, Installation(shard.settings), topic.name)
    delete_records(shard.servers, shard.pipeline.source.name, shard.reached())
    assert places_of(serve(shard).excluded) == places
    shard.check()
    assert places_of(left_out(shard)) == places


def test_a_state_is_rebuilt_without_the_records(shard_of: Callable[[Shape], Shard]) -> None:
    """The rows of open windows are read again, and the record among them would raise again."""
    shard = shard_of(raising(APPEND))
    first, second = parts()
    spoilt, places = spoil(first, 240)
    shard.send(spoilt)
    assert places_of(serve(shard).excluded) == places
    assert shard.serve(second, "it was asked for") == "it was asked for"
    shard.check()
