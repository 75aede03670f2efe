"""Which rewinds are planned, what a plan says, and which are refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.crashes import die_before
from support.paused_pipeline import EPOCH, Paused, write_as
from support.simulated_platform import SINK_SCHEMA

from hindcast.archive.archive_or_live import HeldRecords
from hindcast.delta.application_ids import applications
from hindcast.errors import RewindRefusedError
from hindcast.installation import Installation
from hindcast.partitions import offsets_to_json
from hindcast.pipeline import Table
from hindcast.recovery import plan_rewind
from hindcast.recovery.plan_rewind import other_writers
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import DesiredState
from hindcast.tables.compaction import COMPACTION, compact
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import Fence
from hindcast.tables.ledger import Ledger
from hindcast.tables.ledger_history import History
from hindcast.tables.table_names import ControlTable

#: Hours for which Delta keeps a file that was replaced.
WEEK = 7 * 24


@pytest.mark.parametrize("app", ["bar/v1/v1.g0.s0", "stock_stats/v2/v2.g0.s0"])
@pytest.mark.parametrize("late", [False, True], ids=["sink", "late_sink"])
def test_a_table_that_another_writes_to_is_not_restored(paused: Paused, app: str, late: bool) -> None:
    """A rewind replaces all files of a table: if another pipeline or version has committed to it, nothing is
    changed and it is named.
    """
    url = paused.settings.table("sinks", "stock_stats")
    if late:
        url = paused.settings.table("sinks", "too_late")
        DeltaTable.create(url, SINK_SCHEMA)
        paused.pipeline = replace(paused.pipeline, late=lambda rows: rows, late_sink=Table("too_late"))
    write_as(url, app)
    before = DeltaTable(url).version()
    name, version, _ = app.split("/")
    refusal = paused.refusal(None)
    assert refusal["problem"].startswith(f"{name}, version {version[1:]}, has written to {url}")
    assert "a table of its own" in refusal["cure"]
    assert DeltaTable(url).version() == before


def test_who_wrote_before_a_checkpoint_is_still_known(paused: Paused) -> None:
    """A table's log drops old commits; the applications stay in its checkpoint. Tidying a table is no one's
    writing.
    """
    write_as(paused.sink_url, "bar/v1/v1.g0.s0")
    compact(paused.sink, {})
    paused.sink.create_checkpoint()
    log = Path(paused.sink_url) / "_delta_log"
    *old, _ = sorted(log.glob("*.json"))
    assert len(old) > 10
    for commit in old:
        commit.unlink()
    write_as(paused.sink_url, "zed/v3/v3.g0.s0")
    assert applications(paused.sink_url, {}) >= {"bar/v1/v1.g0.s0", "zed/v3/v3.g0.s0", COMPACTION}
    found = other_writers(paused.settings, paused.pipeline)
    assert found == {("bar", 1): paused.sink_url, ("zed", 3): paused.sink_url}


def test_what_is_not_exact_is_refused_with_the_cure(paused: Paused) -> None:
    """State that depends on batches begins again, or not at all; the same for late rows in a table of its
    own, which do not say which batch they are of.
    """
    pipeline = paused.pipeline
    paused.pipeline = replace(pipeline, re_execute=True)
    refusal = paused.refusal(paused.middle)
    assert "depends on which rows came together, so only the beginning is possible" in refusal["problem"]
    assert "`--to earliest`" in refusal["cure"]
    assert paused.plan(None).rows_kept == 0
    paused.pipeline = replace(pipeline, late=lambda rows: rows, late_sink=Table("too_late"))
    refusal = paused.refusal(paused.middle)
    assert "the rows in too_late do not say which batch they are of" in refusal["problem"]
    assert "`--to earliest`" in refusal["cure"]
    assert paused.plan(None).rows_kept == 0


def test_a_time_leads_to_the_offsets_that_it_had(paused: Paused) -> None:
    """No further than the stream has read, and whatever records a partition has that it has not read at
    all.
    """
    paused.broker.at = {**paused.middle, 0: 1_000_000, 9: 7}
    paused.broker.latest[9] = 8
    at = datetime.now(UTC) - timedelta(hours=1)
    offsets = {**paused.middle, 0: paused.broker.latest[0]}
    by_time = paused.plan(at)
    by_offsets = paused.plan(offsets)
    assert by_time.point == by_offsets.point
    assert by_time.to == at.isoformat()
    assert by_offsets.to == offsets_to_json(offsets)
    assert paused.plan(None).to == "the beginning"


def test_a_time_that_is_now_has_come(paused: Paused) -> None:
    """All that the stream has read came before it."""
    paused.broker.at = dict(paused.broker.latest)
    assert paused.refusal(datetime.now(UTC))["problem"] == "nothing was read after it"


def test_a_rewind_does_not_lead_to_a_time_that_has_not_come(paused: Paused) -> None:
    """The cure is an earlier one."""
    at = datetime.now(UTC) + timedelta(hours=1)
    refusal = paused.refusal(at)
    assert (refusal["to"], refusal["problem"]) == (at.isoformat(), "that time has not come")
    assert "earlier time" in refusal["cure"]


def test_a_rewind_does_not_lead_to_a_partition_that_is_not_there(paused: Paused) -> None:
    """Those that are there are named, in order."""
    paused.broker.latest = dict(reversed(paused.broker.latest.items()))
    refusal = paused.refusal({8: 0, 7: 0, 1: 0})
    assert refusal["problem"] == "it has no partition 7, 8"
    assert refusal["cure"] == "Its partitions are 0, 1, 2, 3."


def test_a_rewind_does_not_lead_forward(paused: Paused) -> None:
    """Past what is read, or to all that is read."""
    end = paused.broker.latest[2]
    refusal = paused.refusal({2: end + 1})
    assert refusal["problem"] == f"partition 2 has been read up to {end} only, not up to {end + 1}"
    assert "smaller offsets" in refusal["cure"]
    refusal = paused.refusal(paused.broker.latest)
    assert refusal["problem"] == "nothing was read after it"
    assert "earlier place" in refusal["cure"]
    paused.broker.latest[9] = 3
    assert paused.refusal({9: 1})["problem"] == "partition 9 has been read up to 0 only, not up to 1"
    assert paused.refusal({9: 0})["problem"] == "nothing was read after it"


def test_a_topic_that_was_created_again_is_not_read_again(paused: Paused) -> None:
    """It ends before the place, or lacks the partition: the records that would be read are others."""
    place = paused.plan(paused.middle).point.offsets[1]
    paused.broker.latest[1] = place
    paused.plan(paused.middle)
    paused.broker.latest[1] = place - 1
    refusal = paused.refusal(paused.middle)
    assert refusal["problem"] == f"the topic's partition 1 ends before offset {place}: it was created again"
    del paused.broker.latest[1]
    refusal = paused.refusal(None)
    assert refusal["problem"] == "the topic's partition 1 ends before offset 0: it was created again"
    assert "Restore the topic" in refusal["cure"]


def test_what_the_topic_has_dropped_is_not_read_again(paused: Paused) -> None:
    """If no archive has it."""
    paused.broker.earliest[3] = 1
    refusal = paused.refusal(None)
    assert "not all of it could be read again" in refusal["problem"]
    assert "all shards" in refusal["problem"]
    assert "later place" in refusal["cure"]
    assert offsets_to_json(paused.broker.earliest) in refusal["cure"]


def test_what_an_archive_holds_may_be_read_again(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic has dropped the first record of a partition, and its archive has that one."""
    paused.broker.earliest[3] = 1
    whole = HeldRecords(dict(paused.broker.earliest), dict(paused.broker.latest), {3: ((0, 1),)})
    monkeypatch.setattr(plan_rewind, "held_records", lambda *_: whole)
    assert paused.plan(None).point.offsets[3] == 0


def test_rows_of_open_windows_must_be_read_again_too(paused: Paused) -> None:
    """Reading begins before the place by the records that its open windows need: those must still be
    there.
    """
    point = paused.plan(paused.middle).point
    paused.broker.earliest = dict(point.offsets)
    refusal = paused.refusal(paused.middle)
    assert "not all of it could be read again" in refusal["problem"]
    paused.pipeline = replace(paused.pipeline, window=None)
    assert paused.plan(paused.middle).point == point


def test_late_and_poison_rows_of_what_is_kept_must_be_filed(paused: Paused) -> None:
    """Those that are not filed yet would be lost; the beginning keeps none."""
    shutil.rmtree(ControlTables(paused.settings).url(ControlTable.LATE_ROWS))
    refusal = paused.refusal(paused.middle)
    assert refusal["problem"].startswith("late and poison rows of v1.g0.s")
    assert "`hindcast resume stock_stats`" in refusal["cure"]
    assert paused.plan(None).rows_kept == 0


def test_what_is_filed_up_to_the_last_batch_that_is_kept_is_enough(paused: Paused) -> None:
    """Late rows of batches that are taken back need not be filed."""
    point = paused.plan(paused.middle).point
    shutil.rmtree(ControlTables(paused.settings).url(ControlTable.LATE_ROWS))
    tables = ControlTables(paused.settings)
    tables.open(ControlTable.LATE_ROWS)
    for shard, batch in point.last.items():
        paused.app(shard, tables.url(ControlTable.LATE_ROWS)).commit(Fence(EPOCH, batch), [])
    assert paused.plan(paused.middle).point == point


@pytest.mark.parametrize("shard", ["v1.g0.s0", "v1.g0.s1"])
def test_the_last_batch_of_each_shard_must_be_in_the_ledger(paused: Paused, shard: str) -> None:
    """A batch that the ledger lacks would come back."""
    last = paused.app(shard).recorded()
    assert last is not None
    paused.app(shard).commit(Fence(last.epoch, last.batch + 1), [], after=last)
    refusal = paused.refusal(None)
    assert refusal["problem"] == f"the ledger lacks the last batch of {shard}"
    assert "`hindcast resume stock_stats`" in refusal["cure"]


def test_a_shard_without_a_batch_lacks_none(paused: Paused) -> None:
    """Unless the sink has one of it."""
    paused.add_idle_shard("v1.g0.s2")
    assert len(paused.plan(paused.middle).shards) == 3
    paused.app("v1.g0.s2").commit(Fence(EPOCH, 1), [])
    assert paused.refusal(paused.middle)["problem"] == "the ledger lacks the last batch of v1.g0.s2"


def test_a_rewind_that_was_cut_short_comes_first(paused: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways out are named."""
    die_before(monkeypatch, "reset.2", lambda: paused.rewind(None))
    refusal = paused.refusal(paused.middle)
    assert refusal["problem"] == "an earlier rewind was cut short"
    assert "`hindcast rewind stock_stats` completes it" in refusal["cure"]
    assert "`hindcast rewind stock_stats --abandon` calls it off" in refusal["cure"]


def test_a_pipeline_that_runs_is_not_rewound(paused: Paused) -> None:
    """The place is in the refusal."""
    DesiredStates(paused.store).set_state("stock_stats", DesiredState.RUNNING)
    refusal = paused.refusal(None)
    assert (refusal["to"], refusal["problem"]) == ("the beginning", "it is not paused")


def test_batches_of_others_are_no_matter(paused: Paused) -> None:
    """Neither another pipeline's nor those of another version are read again."""
    plan = paused.plan(paused.middle)
    row = plan.point.undone[-1]
    others = [replace(row, pipeline="bar"), replace(row, version=2, shard="v2.g0.s0")]
    Ledger(ControlTables(paused.settings)).append(others)
    assert paused.plan(paused.middle).point == plan.point


def test_a_plan_has_the_shards_of_its_own_version(paused: Paused) -> None:
    """As they are when it is made; the commit of the leases compares them."""
    plan = paused.plan(None)
    assert [shard.status_value for shard in plan.shards] == ["v1.g0.s0", "v1.g0.s1"]
    assert plan.committed == History.of(paused.stream.ledger).committed


def test_a_plan_says_what_it_would_do(paused: Paused) -> None:
    """By partition, where reading would resume and where it is; the batches and the rows that are taken
    back.
    """
    ends = History.of(paused.stream.ledger).committed
    plan = paused.plan({p: end * 9 // 10 for p, end in ends.items()})
    said = plan.as_dict()
    assert said["partitions"] == {str(p): [offset, ends[p]] for p, offset in plan.point.offsets.items()}
    assert (said["pipeline"], said["to"]) == ("stock_stats", plan.to)
    assert said["batches_taken_back"] == len(plan.point.undone)
    assert said["sink_version"] == plan.point.sink_version
    assert said["rows_kept"] == plan.rows_kept == paused.rows(plan.point.sink_version).total()
    assert said["rows_replaced"] + said["rows_kept"] == paused.rows().total()
    final = datetime.fromtimestamp(min(plan.point.floors.values()) / 1000, UTC)
    assert said["windows_after"] == final.isoformat()
    assert paused.plan(None).as_dict()["windows_after"] is None


def test_records_are_counted_by_batches_that_were_measured_or_by_offsets(paused: Paused) -> None:
    """One batch that was not measured is enough to count offsets. A partition that no batch has read has
    none.
    """
    plan = paused.plan(paused.middle)
    first, *rest = plan.point.undone
    assert plan.as_dict()["records_estimated"] == sum(row.input_rows or 0 for row in plan.point.undone)
    offsets = sum(plan.committed[p] - offset for p, offset in plan.point.offsets.items())
    unmeasured = replace(plan.point, undone=(replace(first, input_rows=None), *rest))
    assert replace(plan, point=unmeasured).as_dict()["records_estimated"] == offsets
    unread = replace(plan, point=replace(unmeasured, offsets={**plan.point.offsets, 9: 4}))
    assert unread.as_dict()["records_estimated"] == offsets
    assert unread.as_dict()["partitions"]["9"] == [4, 4]


def test_a_final_instant_of_a_millisecond_is_one(paused: Paused) -> None:
    """Only 0 says that no window is final."""
    plan = paused.plan(paused.middle)
    point = replace(plan.point, floors={0: 1, 1: 5})
    assert replace(plan, point=point).as_dict()["windows_after"] == "1970-01-01T00:00:00.001000+00:00"
    point = replace(plan.point, floors={0: 0, 1: 5})
    assert replace(plan, point=point).as_dict()["windows_after"] is None


@pytest.mark.parametrize(
    ("hours", "refused"), [(WEEK + 1, True), (WEEK - 23, True), (WEEK - 25, False), (0, False)]
)
def test_files_near_the_retention_are_refused(paused: Paused, hours: float, refused: bool) -> None:
    """They are still there, but a vacuum may delete them meanwhile. Files that are still named have no
    age.
    """
    found = paused.plan(paused.middle)
    paused.replace_files(hours)
    if not refused:
        assert paused.rewind(paused.middle)["rows_kept"] == found.rows_kept == paused.rows().total()
        return
    refusal = paused.refusal(paused.middle)
    expected = f"version {found.point.sink_version} of its sink is too near to Delta's retention"
    assert expected in refusal["problem"]
    assert refusal["cure"] == "Rewind to a later place, or to the beginning."
    assert paused.rewind(None)["rows_kept"] == 0, "the beginning needs no file"


def test_the_retention_of_the_table_itself_counts(paused: Paused) -> None:
    """In whatever unit it is written; nothing is far enough from one that is shorter than the margin."""
    paused.replace_files(30)
    for retention, refused in (
        ("interval 3 days", False),
        ("interval 53 hours", True),
        ("interval 2 weeks", False),
        ("interval 9 minutes", True),
    ):
        paused.sink.alter.set_table_properties({"delta.deletedFileRetentionDuration": retention})
        if refused:
            with pytest.raises(RewindRefusedError, match="retention"):
                paused.plan(paused.middle)
        else:
            assert paused.plan(paused.middle).rows_kept > 0


def test_a_version_whose_files_are_gone_is_refused(paused: Paused) -> None:
    """A vacuum has deleted them; the beginning needs no file."""
    paused.replace_files(hours=0)
    paused.vacuum()
    refusal = paused.refusal(paused.middle)
    assert "of its sink is gone (Delta's retention)" in refusal["problem"]
    assert refusal["cure"] == "Rewind to a later place, or to the beginning."
    assert paused.plan(None).rows_kept == 0


def test_each_access_has_the_stores_options(paused: Paused, options_seen: list[Any]) -> None:
    """To the ledger, to the sink and its older version, to late and poison rows."""
    options = {"allow_http": "true"}
    paused.installation = Installation(paused.settings.model_copy(update={"storage_options": options}))
    options_seen.clear()
    paused.plan(paused.middle)
    assert len(options_seen) > 10
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}
