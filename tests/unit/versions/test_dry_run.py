"""A dry run says what its command does, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from support.inactive_version import NAME, PROMOTED, at, begin, caught_up, proved, put, reshard
from support.live_stream import MODULE

from hindcast.errors import UnknownPipelineError, VersionRefusedError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.partitions import app_id
from hindcast.settings import Settings
from hindcast.shards.version_changes import Versions
from hindcast.tables.fenced_sink import BatchCommit, Fence, FencedTable
from hindcast.versions.discard import discard
from hindcast.versions.dry_run import DryRun, plan_back_out, plan_discard, plan_promotion
from hindcast.versions.promote import back_out, promote


def test_a_dry_run_says_what_the_promotion_does(two: Settings) -> None:
    """Once the version is promoted, it says that this is done. The dry run itself changes nothing."""
    begin(two)
    at(two, 1, 60, 9_000)
    at(two, 2, 50, 9_000)
    before = LeaseTable(two).leases()
    began = datetime.now(UTC)
    plan = plan_promotion(Installation(two), NAME, 2, despite="version 1 is wrong")
    warm_until = datetime.fromisoformat(plan.row["warm_until"]) - timedelta(seconds=two.warm_seconds)
    assert began <= warm_until <= datetime.now(UTC)
    row = {"pipeline": NAME, "version": 2, "before": 1, "promoted": True, "behind_records": 10}
    warm = "version 1 is kept warm for 3600 s"
    sentence = f"{NAME}: version 2 becomes the active one, readers switch at once, {warm}"
    assert plan == DryRun(sentence, {**row, "warm_until": plan.row["warm_until"]})
    assert LeaseTable(two).leases() == before
    done = promote(Installation(two), NAME, 2, despite="version 1 is wrong")
    assert {name: done[name] for name in row} == row
    again = plan_promotion(Installation(two), NAME, 2)
    row = {"pipeline": NAME, "version": 2, "before": 2, "promoted": False}
    assert again == DryRun(f"{NAME}: version 2 is active already", row, done=True)


def committed(settings: Settings, version: int, table: str, end: int) -> None:
    """The version's shard has committed a batch up to there. Its lease does not know that yet."""
    shard = f"v{version}.g0.s0"
    said = BatchCommit(
        kind="batch",
        pipeline=NAME,
        version=version,
        shard=shard,
        epoch=1,
        batch=1,
        worker="w",
        start_offsets={0: 0},
        end_offsets={0: end},
        late_watermark_ms=0,
        watermark_ms=9_000,
    )
    fenced = FencedTable(settings.table("sinks", table), {}, app_id(NAME, shard))
    fenced.commit(Fence(1, 1), [], said.as_metadata(), after=None)


def test_commits_count_before_the_leases_know_of_them(two: Settings) -> None:
    """The dry run and the promotion both ask each version's own table how far the version has come."""
    begin(two)
    put(two, f"{NAME}_v2", range(5, 10), "two")
    for version in (1, 2):
        at(two, version, 50, 9_000)
    committed(two, 1, NAME, 90)
    committed(two, 2, f"{NAME}_v2", 70)
    assert plan_promotion(Installation(two), NAME, 2, despite="a drill").row["behind_records"] == 20
    done = promote(Installation(two), NAME, 2, despite="a drill")
    assert (done["barrier"], done["behind_records"]) == ({"0": 90}, 20)
    change = Versions(LeaseTable(two)).of(NAME).change
    assert change is not None
    assert (change.offsets, change.who) == ({0: 90}, "")


def test_a_dry_run_is_refused_if_the_promotion_would_be(two: Settings) -> None:
    """So it is without a proof and in the middle of a reshard. With a reason neither matters."""
    begin(two)
    for version in (1, 2):
        at(two, version, 50, 9_000)
    with pytest.raises(VersionRefusedError, match="it has not caught up") as caught:
        plan_promotion(Installation(two), NAME, 2)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == PROMOTED
    proved(two)
    assert plan_promotion(Installation(two), NAME, 2).row["promoted"]
    with pytest.raises(VersionRefusedError, match="it is not a shadow") as caught:
        plan_promotion(Installation(two), NAME, 3)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == {
        **PROMOTED,
        "version": 3,
    }
    reshard(two, 1)
    with pytest.raises(VersionRefusedError, match="version 1 is being resharded"):
        plan_promotion(Installation(two), NAME, 2)
    assert plan_promotion(Installation(two), NAME, 2, despite="version 1 never ends").row["promoted"]


def test_a_dry_run_says_what_the_back_out_and_the_discard_do(two: Settings) -> None:
    """The dry runs themselves change nothing."""
    caught_up(two)
    promote(Installation(two), NAME, 2)
    before = LeaseTable(two).leases()
    row = {"pipeline": NAME, "version": 1, "before": 2, "backed_out": True}
    sentence = f"{NAME}: readers return to version 1 at once, version 2 runs on as the inactive one"
    back = DryRun(sentence, row)
    assert plan_back_out(Installation(two), NAME) == back
    assert LeaseTable(two).leases() == before
    back_out(Installation(two), NAME)
    done = DryRun(f"{NAME}: version 1 is active again already", {**row, "backed_out": False}, done=True)
    assert plan_back_out(Installation(two), NAME) == done
    before = LeaseTable(two).leases()
    tables = [f"sinks/{NAME}_v2", f"corrections/{NAME}_v2"]
    parts = "the shards, checkpoints and tables of version 2"
    sentence = f"{NAME}: {parts} are deleted (sinks/{NAME}_v2, corrections/{NAME}_v2)"
    row = {"pipeline": NAME, "version": 2, "active": 1, "deletes": tables}
    assert plan_discard(Installation(two), NAME, 2) == DryRun(sentence, row)
    assert LeaseTable(two).leases() == before
    discard(Installation(two), NAME, 2)
    with pytest.raises(VersionRefusedError, match="no version before it is kept warm"):
        plan_back_out(Installation(two), NAME)


@pytest.mark.parametrize(
    ("plan", "version", "action"),
    [
        (lambda settings: plan_promotion(Installation(settings), "idle", 7), 7, "promoted"),
        (lambda settings: plan_back_out(Installation(settings), "idle"), 3, "backed out"),
        (lambda settings: plan_discard(Installation(settings), "idle", 7), 7, "discarded"),
    ],
)
def test_a_dry_run_of_a_pipeline_that_was_never_started_is_refused(
    two: Settings, plan: Callable[[Settings], DryRun], version: int, action: str
) -> None:
    """If the pipeline is declared, the error says how it is started. If it is not, it is unknown."""
    (two.pipelines_dir / "idle.py").write_text(MODULE.format(topic="t", name="idle", version=3, shards=1))
    with pytest.raises(VersionRefusedError, match="`hindcast resume idle` starts version 3") as caught:
        plan(two)
    fields = caught.value.fields
    assert (fields["pipeline"], fields["version"], fields["action"]) == ("idle", version, action)
    assert fields["problem"] == "the pipeline was never started"
    (two.pipelines_dir / "idle.py").unlink()
    with pytest.raises(UnknownPipelineError):
        plan(two)
