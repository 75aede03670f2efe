"""A new version of a pipeline beside the old: it catches up, is compared and judged, promoted, read, backed
out and discarded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from support.live_stream import MODULE, delete_records, ends
from support.shard_harness import WAIT_SECONDS, Shard, parts
from support.simulated_stream import Clockwork, Record
from support.waiting import wait_until

from hindcast import catalog
from hindcast.archive.copy_topic import archive_topic
from hindcast.errors import BadRangeError, TryLaterError, UnknownVersionError, VersionRefusedError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import run_replay
from hindcast.serving.reading import read
from hindcast.settings import Settings
from hindcast.shards.active_version import caught_up
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.version_changes import Versions
from hindcast.shards.version_events import record_changes
from hindcast.spark import kafka_source
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock
from hindcast.verdict.judge import judge
from hindcast.versions.compare_versions import compare_versions
from hindcast.versions.discard import discard
from hindcast.versions.listing import list_versions
from hindcast.versions.promote import back_out, promote
from hindcast.versions.start import start_version

if TYPE_CHECKING:
    from conftest import Broker
    from pyspark.sql import SparkSession

#: Great Expectations and what it imports are not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
]

NAME = "stock_stats"
#: The greatest ask as well, and a least ask with a fee on top.
SECOND = (
    MODULE.replace('Table("{name}"', 'Table("{name}_v2"')
    .replace('F.avg("ask").alias("avg_ask")', 'F.avg("ask").alias("avg_ask"), F.max("ask").alias("max_ask")')
    .replace('F.min("ask").alias', '(F.min("ask") + 1).alias')
)
#: The same, declaring that at most 1 % of the keys may change.
CAREFUL = SECOND.replace("version={version}", "version={version}, changed_at_most=0.01")
#: The rules of version 1.
SAME = MODULE.replace('Table("{name}"', 'Table("{name}_v2"')


@dataclass
class Two:
    """A pipeline whose version 1 has read the first half of a feed."""

    first: Shard
    second: Shard

    @property
    def settings(self) -> Settings:
        return self.first.settings

    @property
    def versions(self) -> Versions:
        return Versions(LeaseTable(self.settings))

    def begin(self, start: str = "earliest", **given: Any) -> dict[str, Any]:
        return start_version(lambda: self.first.spark, Installation(self.settings), NAME, 2, start, **given)

    def catch_up(self) -> None:
        """Version 2 reads all that was sent, and what it set aside is filed."""
        self.second.sent = self.first.sent
        owner = self.second.start()
        self.second.consume(owner)
        newest_ms = max(record.event_ms for record in self.first.sent if record.event_ms is not None)
        closed_ms = (
            newest_ms - Clockwork().delay_ms
        )  # by a batch without records, where the last one moved the watermark
        wait_until(lambda: owner.watermark_ms >= closed_ms, WAIT_SECONDS, "it has closed all")
        self.second.retire(owner)
        self.second.renew()
        self.second.file()
        for seen in caught_up(LeaseTable(self.settings).leases()):
            noted = self.versions.note_caught_up(seen)
            assert noted is not None
            record_changes(ControlTables(self.settings), noted)

    def send(self, records: list[Record]) -> None:
        """More of the feed, read by version 1."""
        self.first.serve(records)
        self.first.file()

    def judge(self, run_id: str) -> dict[str, Any]:
        pipeline = catalog.load(self.settings.pipelines_dir).of(NAME, 2)
        run_replay(
            lambda: self.first.spark,
            Installation(self.settings),
            pipeline,
            ReplayRequest(pipeline=NAME, run_id=run_id, everything=True),
        )
        return judge(lambda: self.first.spark, Installation(self.settings), pipeline, run_id)

    def compare(self) -> dict[str, Any]:
        return compare_versions(lambda: self.first.spark, Installation(self.settings), NAME)

    def told(self) -> list[str]:
        events = ControlTables(self.settings).rows(ControlTable.EVENTS, [("pipeline", "=", NAME)])
        return [
            row["kind"]
            for row in sorted(events, key=lambda row: row["at"])
            if row["kind"].startswith(("version", "reprocess"))
        ]

    def state(self, version: int) -> str:
        (row,) = [
            row for row in list_versions(Installation(self.settings), NAME) if row["version"] == version
        ]
        return str(row["state"])


@pytest.fixture
def two(
    spark: SparkSession,
    broker: Broker,
    topic_factory: Callable[..., str],
    settings_factory: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Callable[[str], Two]]:
    """Make both versions on a topic of two partitions; version 1 has read the first half."""
    monkeypatch.setattr(kafka_source, "MAX_RECORDS_PER_BATCH", 80)
    made: list[Shard] = []

    def make(second: str) -> Two:
        settings = settings_factory(
            bootstrap_servers=broker.bootstrap_servers, trigger_seconds=0.0, pipelines_dir=tmp_path
        )
        topic, store = topic_factory(partitions=2), LeaseTable(settings)
        for version, text in ((1, MODULE), (2, second)):
            declaration = text.format(topic=topic, name=NAME, version=version, shards=1)
            declaration = declaration.replace("keys=", "served=Served(), keys=")
            (tmp_path / f"{NAME}_{version}.py").write_text(f"from hindcast import Served\n{declaration}")
        declared = catalog.load(tmp_path)
        made.extend(
            Shard(spark, settings, declared.of(NAME, version), broker.bootstrap_servers, 2, store=store)
            for version in (1, 2)
        )
        DesiredStates(store).declare(declared[NAME], 1)
        pair = Two(*made)
        pair.send(parts()[0])
        return pair

    yield make
    for shard in made:
        for owner in shard.running:
            shard.die(owner)


def windows(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter((row["window"]["end"], row["ticker"]) for row in rows)


def served(settings: Settings) -> list[str]:
    """The rows of the served table, in an order of their own."""
    rows = DeltaTable(settings.table("served", NAME)).to_pyarrow_table().to_pylist()
    return sorted(str(sorted(row.items(), key=lambda item: item[0])) for row in rows)


def as_readers_get_it(settings: Settings) -> list[str]:
    rows = read(NAME, settings).arrow().to_pylist()
    return sorted(str(sorted(row.items(), key=lambda item: item[0])) for row in rows)


def until(found: Counter[Any], end_ms: int) -> Counter[Any]:
    return Counter({key: count for key, count in found.items() if key[0].timestamp() * 1000 <= end_ms})


def test_a_version_is_started_proved_promoted_backed_out_and_discarded(
    two: Callable[[str], Two], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its whole life: each step is refused before its time, readers change over at once and back, and nothing
    is left in the end.
    """
    pair = two(SECOND)
    settings = pair.settings
    before = read(NAME, settings).arrow().to_pylist()
    with pytest.raises(VersionRefusedError, match=r"max_ask is added.*--new-table"):
        pair.begin()
    with pytest.raises(BadRangeError, match="in the future"):
        pair.begin('{"0": 100000, "1": 0}', new_table=True)
    with pytest.raises(BadRangeError, match="in the future"):
        pair.begin("2999-01-01T00:00:00+00:00", new_table=True)
    with pytest.raises(UnknownVersionError, match="No file declares version 3"):
        start_version(lambda: pair.first.spark, Installation(settings), NAME, 3, "earliest")
    assert pair.told() == []
    assert pair.begin(new_table=True)["seam_ms"] is None
    with pytest.raises(
        VersionRefusedError, match="there is an inactive version already: version 2 is catching up"
    ):
        pair.begin(new_table=True)
    with pytest.raises(VersionRefusedError, match="has not caught up"):
        promote(Installation(settings), NAME, 2)
    pair.catch_up()
    with pytest.raises(VersionRefusedError, match="no verdict"):
        promote(Installation(settings), NAME, 2)
    verdict = pair.judge("second")
    assert (verdict["unexplained"], verdict["version"]) == (0, 2)
    with pytest.raises(VersionRefusedError, match="not compared"):
        promote(Installation(settings), NAME, 2)
    compared = pair.compare()
    assert compared["passed"], compared["failed"]
    assert compared["columns_only_new"] == ["max_ask"]
    assert compared["by_column"]["min_ask"] == compared["changed"] > 0
    assert compared["missing_windows"] == 0
    assert compared["samples"]
    pair.first.send(parts()[1])  # nobody has read it yet: version 1 is first
    pair.first.serve([])
    monkeypatch.setattr("hindcast.versions.promote.WAIT_SECONDS", 0.3)
    with pytest.raises(VersionRefusedError, match="records behind version 1"):
        promote(Installation(settings), NAME, 2)
    pair.catch_up()
    assert read(NAME, settings).pipeline.version == 1
    promoted = promote(Installation(settings), NAME, 2, who="ada")
    assert promoted["promoted"]
    assert 0 <= promoted["seconds"] < 60
    after = read(NAME, settings)
    assert "max_ask" in after.arrow().column_names
    assert max(windows(after.arrow().to_pylist()).values()) == 1
    assert windows(before).total() <= windows(after.arrow().to_pylist()).total()
    assert (pair.state(1), pair.state(2)) == ("warm", "active")
    assert served(settings) == as_readers_get_it(settings)
    assert not promote(Installation(settings), NAME, 2)["promoted"]
    with pytest.raises(VersionRefusedError, match="version 2 is active"):
        pair.begin(new_table=True)
    back = back_out(Installation(settings), NAME)
    assert back["version"] == 1 and 0 <= back["seconds"] < 60
    assert "max_ask" not in read(NAME, settings).arrow().column_names
    assert (pair.state(1), pair.state(2)) == ("active", "live")
    with pytest.raises(VersionRefusedError, match="it is the active one"):
        discard(Installation(settings), NAME, 1)
    clock = FakeClock()  # the lease of its last owner, which has stopped without giving it back, expires
    gone = discard(Installation(settings), NAME, 2, clock=clock, sleep=lambda _: clock.advance(5.0))
    assert gone["deleted"]
    assert not Path(settings.table("sinks", f"{NAME}_v2")).exists()
    assert not list(Path(settings.checkpoint(NAME)).glob("v2.*"))
    assert not [lease for lease in LeaseTable(settings).leases() if lease.status_value.startswith("v2.")]
    with pytest.raises(VersionRefusedError, match="it was consumed before"):
        pair.begin(new_table=True)
    assert pair.told() == [
        "reprocess_started",
        "reprocess_caught_up",
        "versions_compared",
        "version_promoted",
        "version_backed_out",
        "version_discarded",
    ]


def test_a_version_begins_in_the_archive_and_goes_live(two: Callable[[str], Two]) -> None:
    """The topic has dropped all that version 1 has read. Version 2 reads it in the archive, goes on in the
    topic, is judged from the first record on, compared and promoted, and readers see no seam.
    """
    pair = two(SAME)
    shard = pair.first
    settings = pair.settings
    archive_topic(lambda: shard.spark, Installation(settings), shard.pipeline.source.name)
    delete_records(shard.servers, shard.pipeline.source.name, ends(shard.sent))
    started = pair.begin()
    assert (started["offsets"], started["seam_ms"]) == ({"0": 0, "1": 0}, None)
    pair.send(parts()[1])
    pair.catch_up()
    verdict = pair.judge("from-the-archive")
    assert (verdict["unexplained"], verdict["input_rows"]) == (0, len(shard.sent))
    compared = pair.compare()
    assert compared["passed"], compared["failed"]
    assert compared["missing_windows"] == 0
    assert promote(Installation(settings), NAME, 2)["promoted"]
    # Its batches are others than those of version 1, so other rows came late: that is what was judged above.
    after = read(NAME, settings)
    assert after.pipeline.version == 2
    assert max(windows(after.arrow().to_pylist()).values()) == 1


def test_a_version_that_changes_more_keys_than_it_declares_is_promoted_only_with_a_reason(
    two: Callable[[str], Two],
) -> None:
    """The comparison fails with the figure and the bound, and so does the promotion. The reason that overrides
    it is recorded.
    """
    pair = two(CAREFUL)
    settings = pair.settings
    pair.begin(new_table=True)
    pair.catch_up()
    assert pair.judge("second")["passed"]
    compared = pair.compare()
    assert (compared["passed"], compared["changed_at_most"]) == (False, 0.01)
    differing = sum(compared[kind] for kind in ("changed", "only_old", "only_new"))
    assert compared["changed_share"] == pytest.approx(differing / compared["rows"])
    assert compared["changed"] > 0
    (failed,) = compared["failed"]
    assert f"({differing} of {compared['rows']}" in failed
    with pytest.raises(
        VersionRefusedError, match=r"keys changed .*changed_at_most of version 2 is 0\.01"
    ) as caught:
        promote(Installation(settings), NAME, 2)
    assert "--despite" in str(caught.value)
    assert read(NAME, settings).pipeline.version == 1
    promote(Installation(settings), NAME, 2, despite="each ask has a fee now", who="ada")
    assert read(NAME, settings).pipeline.version == 2
    (event,) = ControlTables(settings).rows(ControlTable.EVENTS, [("kind", "=", "version_promoted")])
    assert "although it was not proved: each ask has a fee now" in event["message"]
    assert "ada" in event["detail"]


def test_readers_get_each_window_once_across_the_seam(two: Callable[[str], Two]) -> None:
    """A version that began in the middle: what it lacks comes from the one before, as Spark and as Arrow; so
    does backing out.
    """
    pair = two(SAME)
    settings = pair.settings
    half = {partition: end // 2 for partition, end in pair.first.reached().items()}
    begun = pair.begin(json.dumps({str(partition): offset for partition, offset in half.items()}))
    assert begun["seam_ms"] is not None
    with pytest.raises(TryLaterError):
        pair.compare()
    pair.send(parts()[1])
    pair.catch_up()
    compared = pair.compare()
    assert compared["windows_after_ms"] == begun["seam_ms"]
    assert compared["passed"], compared["failed"]
    assert compared["causes"]["version"] == 0
    assert pair.judge("seam")["unexplained"] == 0
    old = read(NAME, settings).arrow().to_pylist()
    promote(Installation(settings), NAME, 2)
    reading = read(NAME, settings)
    rows = reading.arrow().to_pylist()
    new = DeltaTable(settings.table("sinks", f"{NAME}_v2")).to_pyarrow_table().to_pylist()
    assert max(windows(rows).values()) == 1
    assert windows(rows) == until(windows(old), begun["seam_ms"]) + (
        windows(new) - until(windows(new), begun["seam_ms"])
    )
    assert reading.spark(pair.first.spark).count() == len(rows)
    assert served(settings) == as_readers_get_it(settings)
    with pytest.raises(VersionRefusedError, match="readers get windows that end by"):
        discard(Installation(settings), NAME, 1)
    back_out(Installation(settings), NAME)
    assert windows(read(NAME, settings).arrow().to_pylist()) == windows(old)
    assert served(settings) == as_readers_get_it(settings)
