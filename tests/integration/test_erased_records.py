"""What streams, replays and verdicts make of records that were erased from an archive."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.live_stream import delete_records, ends
from support.shard_harness import Shard, parts
from support.simulated_stream import Record

from hindcast.archive.copy_topic import archive_topic
from hindcast.archive.erase_keys import Erased, erase_keys
from hindcast.archive.verify import verify
from hindcast.errors import ErasedRecordsError
from hindcast.installation import Installation
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import run_replay
from hindcast.tables.control_tables import Row
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.judge import judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Great Expectations imports what Python and its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

KEY = "Ann"


def feed() -> tuple[list[Record], list[Record], Record]:
    """Two halves of a feed, and a usable record near its beginning, the only one with its key."""
    first, second = parts()
    number = next(n for n, record in enumerate(first) if n > 20 and record.event_ms is not None)
    first[number] = replace(first[number], ticker=KEY)
    return first, second, first[number]


class Home:
    """A shard's home, with the commands of a person."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.installation = Installation(shard.settings)
        self.topic = shard.pipeline.source.name

    def _session(self) -> SparkSession:
        return self.shard.spark

    def archive(self) -> None:
        archive_topic(self._session, self.installation, self.topic)

    def erase(self) -> Erased:
        return erase_keys(self.installation, self.topic, [KEY.encode()])

    def agrees(self) -> bool:
        return bool(verify(self._session, self.installation, self.topic)["equal"])

    def drop(self, records: list[Record]) -> None:
        """What retention does: the topic forgets these first records."""
        delete_records(self.shard.servers, self.topic, ends(records))

    def verdict(self, run_id: str, start: dict[int, int] | None = None) -> Row:
        end = self.shard.reached() if start else None
        asked = ReplayRequest(
            pipeline=self.shard.pipeline.name,
            run_id=run_id,
            from_offsets=start,
            to_offsets=end,
            everything=start is None,
        )
        run_replay(self._session, self.installation, self.shard.pipeline, asked)
        return judge(self._session, self.installation, self.shard.pipeline, run_id)

    def letters(self) -> list[Row]:
        return self.installation.tables.rows(ControlTable.DEAD_LETTERS)


@pytest.fixture
def home(shard: Shard) -> Home:
    return Home(shard)


def test_a_verdict_over_what_was_erased_is_refused_by_name(home: Home) -> None:
    """Only once the topic has dropped the record, and only over its offset: what comes after is judged."""
    first, second, record = feed()
    home.shard.serve(first)
    home.archive()
    home.shard.serve(second)
    home.shard.file()
    late = home.installation.tables.rows(ControlTable.LATE_ROWS)
    assert late
    assert all(row["key"].startswith(b"T") for row in late)

    assert home.erase().archived == 1
    assert home.agrees()
    assert home.verdict("from-the-topic")["passed"]
    home.drop(first)
    place = f"offset {record.offset} of partition {record.partition} of {home.topic}"
    with pytest.raises(ErasedRecordsError, match=f"1 of its records were erased .* first at {place}"):
        home.verdict("refused")
    after = home.verdict("after", start=ends(first))
    assert (after["passed"], after["unexplained"]) == (True, 0)
    assert after["rows_compared"] > 0


def test_a_stream_that_reads_the_erased_archive_is_judged(home: Home) -> None:
    """For it the record is a dead letter, as it is for the replay."""
    first, second, record = feed()
    home.shard.send(first)
    home.archive()
    assert home.erase().archived == 1
    home.drop(first)
    home.shard.serve(second)
    at = home.shard.sent.index(record)
    home.shard.sent[at] = replace(record, event_ms=None)  # so the oracle takes it for poison
    home.shard.check()
    (letter,) = [row for row in home.letters() if (row["partition"], row["offset"]) == record.place]
    assert (letter["reason"], letter["key"], letter["value"]) == ("no value", None, None)
    found = home.verdict("whole")
    assert (found["passed"], found["unexplained"], found["input_rows"]) == (True, 0, len(home.shard.sent))
