"""Which streams can be taken over, and that nothing else consumes their topics before they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from hindcast import Table, Topic, pipeline, verified
from hindcast.errors import ForeignStreamError, RewindRefusedError
from hindcast.foreign.adopt import find
from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.recovery.plan_rewind import make_plan
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.stream.shard_creation import _check_new_table

Factory = Callable[..., Settings]
QUERY = "8a6a0dd4-4bd7-4b9e-a3f1-0c9b8f0f9d11"
SOURCE = Topic("t", schema="ts timestamp")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A table with batch 4 of the query, and the query's checkpoint."""
    properties = CommitProperties(app_transactions=[Transaction(QUERY, 4)])
    write_deltalake(str(tmp_path / "table"), pa.table({"n": [1]}), commit_properties=properties)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text(json.dumps({"id": QUERY}))
    return tmp_path


def own(url: str) -> Pipeline:
    """A pipeline that is to be run from here."""

    @pipeline(source=SOURCE, event_time="ts", watermark="10 seconds", sink=Table("stats", url=url), version=1)
    def stats(rows: Any) -> Any:
        return rows

    return stats


def test_a_query_of_deltas_sink_can_be_taken_over(lake: Path, settings: Settings) -> None:
    """To look changes nothing."""
    found = find(Installation(settings), own(str(lake / "table")), str(lake / "checkpoint"))
    assert (found.query, found.last_batch) == (QUERY, 4)
    assert DeltaTable(str(lake / "table")).version() == 0


def test_what_cannot_be_taken_over_is_told(lake: Path, settings: Settings) -> None:
    """A declaration that only judges, a table of one's own, another query's table, and shards that are there."""
    installation = Installation(settings)
    table, checkpoint = str(lake / "table"), str(lake / "checkpoint")

    @verified(table=table, checkpoint=checkpoint, source=SOURCE, event_time="ts", watermark="10 seconds")
    def judged(rows: Any) -> Any:
        return rows

    for declared in (judged, own("")):
        with pytest.raises(ForeignStreamError, match="does not say that Hindcast is to run it"):
            find(installation, declared, checkpoint)
    with pytest.raises(ForeignStreamError, match="has no batch of the query"):
        find(installation, own(str(lake / "other")), checkpoint)
    with pytest.raises(ForeignStreamError, match="no query has ever run with it"):
        find(installation, own(table), str(lake))
    resharding.create(installation.lease_table, "stats", 1, 1, {0: 0})
    with pytest.raises(ForeignStreamError, match="has shards already"):
        find(installation, own(table), checkpoint)


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ({"min_writer_version": 4}, "version 4 of the protocol"),
        ({"min_writer_version": 7, "writer_features": ["appendOnly", "rowTracking"]}, "rowTracking"),
        ({"min_writer_version": 7, "writer_features": ["appendOnly", "invariants"]}, ""),
    ],
)
def test_a_table_that_asks_more_of_its_writers_is_not_taken_over(
    lake: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, protocol: dict[str, Any], said: str
) -> None:
    """What Hindcast adds are files with the plain columns of the result."""
    table, checkpoint = str(lake / "table"), str(lake / "checkpoint")
    asks = DeltaTable(table).protocol()._replace(**protocol)
    monkeypatch.setattr(DeltaTable, "protocol", lambda _: asks)
    if not said:
        assert find(Installation(settings), own(table), checkpoint).last_batch == 4
        return
    with pytest.raises(ForeignStreamError, match=said):
        find(Installation(settings), own(table), checkpoint)


def test_a_partitioned_table_is_not_taken_over(lake: Path, settings: Settings) -> None:
    """Its files lack the columns by which it is partitioned."""
    table = str(lake / "parts")
    properties = CommitProperties(app_transactions=[Transaction(QUERY, 1)])
    write_deltalake(table, pa.table({"n": [1], "p": [1]}), partition_by=["p"], commit_properties=properties)
    with pytest.raises(ForeignStreamError, match="partitions by p"):
        find(Installation(settings), own(table), str(lake / "checkpoint"))


def test_a_table_with_rows_gets_no_shards_from_the_beginning(lake: Path, settings: Settings) -> None:
    """They would add all of its rows once more."""
    with pytest.raises(ForeignStreamError, match="no shard has written it") as raised:
        _check_new_table(settings, own(str(lake / "table")))
    assert "hindcast adopt stats --checkpoint" in str(raised.value)
    _check_new_table(settings, own(str(lake / "new")))
    _check_new_table(settings, own(""))


def test_a_table_in_a_lake_of_ones_own_is_not_rewound(lake: Path, settings: Settings) -> None:
    """Nothing is taken back there."""
    with pytest.raises(RewindRefusedError, match="a lake of your own"):
        make_plan(Installation(settings), own(str(lake / "table")), None)


@pytest.mark.parametrize("url", ["lake/stats", "stats", "./stats"])
def test_a_place_is_named_whole(url: str) -> None:
    """Workers and tasks have other working directories."""
    with pytest.raises(Exception, match="neither a URL nor an absolute path"):
        own(url)
    with pytest.raises(Exception, match="neither a URL nor an absolute path"):
        verified(table=url, checkpoint="/c", source=SOURCE, event_time="ts", watermark="1 second")(
            lambda rows: rows
        )


def test_the_place_of_a_table_is_no_change_of_the_query() -> None:
    """A table that has moved does not make its checkpoint another query's."""
    assert repr(Table("stats", url="/a")) == repr(Table("stats"))
