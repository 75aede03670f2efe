"""The versions of a pipeline: one row, one active version, and readers that get each window once.

That holds whatever is done in whatever order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.live_stream import MODULE

from hindcast import catalog
from hindcast.errors import (
    PipelineError,
    TryLaterError,
    UnknownPipelineError,
    UnknownVersionError,
    VersionRefusedError,
)
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import REMOVED, Lease, StatusType
from hindcast.leases.store import swap
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.active_version import Rollout, active_pipeline, caught_up
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.pipeline_row import (
    Change,
    ChangeKind,
    DesiredState,
    InactiveState,
    InactiveVersion,
    PipelineRow,
    ServedUntil,
    desired_key,
)
from hindcast.shards.version_changes import Versions, check_room
from hindcast.shards.version_events import record_changes
from hindcast.shards.warm_time import NOTED_SECONDS, WarmTime
from hindcast.stream.loaded_pipelines import LoadedPipelines
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.ledger_history import History
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock, MemoryStore, Outcome
from hindcast.versions.start import seam_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "p"


def declare(folder: Path, version: int = 1, *, name: str = NAME, table: str = "") -> Pipeline:
    text = MODULE.replace('Table("{name}"', f'Table("{table or f"{name}_{version}"}"')
    (folder / f"{name}_{version}.py").write_text(text.format(topic="t", name=name, version=version, shards=1))
    return catalog.load(folder).of(name, version)


def wanting(store: MemoryStore, folder: Path) -> Versions:
    """Version 1 is wanted, and has its shard."""
    DesiredStates(store).declare(declare(folder), 1)
    resharding.create(store, NAME, 1, 1, {0: 0})
    return Versions(store)


def shadow(version: int = 2, seam_ms: int | None = None) -> InactiveVersion:
    return InactiveVersion(
        version=version,
        state=InactiveState.CATCHING_UP,
        shards=1,
        tables=(f"sinks/p_{version}",),
        seam_ms=seam_ms,
    )


def begun(versions: Versions, version: int = 2, seam_ms: int | None = None, active: int = 1) -> Rollout:
    return versions.begin(NAME, shadow(version, seam_ms), {0: 0}, columns_from=active)


def promoted(versions: Versions, version: int = 2) -> Rollout:
    since = versions.of(NAME).change
    assert since is not None
    return versions.promote(NAME, version, ("sinks/p_1",), warm_seconds=0.0, barrier={0: 7}, since=since.id)


def test_a_folder_may_hold_several_versions_of_a_name(tmp_path: Path) -> None:
    """The lowest is wanted first. Each has tables of its own. The same version twice is refused as before."""
    declare(tmp_path)
    declare(tmp_path, 2)
    (tmp_path / "p_9.py").write_text((tmp_path / "p_1.py").read_text())
    found = catalog.load(tmp_path)
    assert (list(found), len(found), found[NAME].version, found.versions(NAME)) == ([NAME], 1, 1, [1, 2])
    assert [one.version for one in found.every()] == [1, 2]
    assert "in the same version" in str(found.errors[str(tmp_path / "p_9.py")])
    with pytest.raises(UnknownVersionError, match="version 3 of p; there are: 1, 2"):
        found.of(NAME, 3)


def test_two_versions_never_share_a_table(tmp_path: Path) -> None:
    """The later file is refused. The error says how to write it."""
    declare(tmp_path, table="same")
    with pytest.raises(UnknownVersionError, match="its table same is that of version 1"):
        declare(tmp_path, 2, table="same")
    (error,) = catalog.load(tmp_path).errors.values()
    assert isinstance(error, PipelineError)


def test_the_active_version_is_the_wanted_one(tmp_path: Path) -> None:
    """The row decides, whatever is deployed; the lowest version if there is no row. An active version that is
    not deployed is an error.
    """
    store, folder = MemoryStore(), tmp_path
    versions = wanting(store, folder)
    declare(folder, 2)
    found = catalog.load(folder)

    def active(version: int = 0) -> int:
        return active_pipeline(found, store.read().leases.values(), NAME, version).version

    assert (active(), active(2), active_pipeline(found, [], NAME).version) == (1, 2, 1)
    begun(versions)
    promoted(versions)
    assert active() == 2
    (folder / "p_2.py").unlink()
    with pytest.raises(UnknownVersionError, match="version 2"):
        active_pipeline(catalog.load(folder), store.read().leases.values(), NAME)


def test_a_shadow_is_consumed_at_the_same_time_as_the_active_version(tmp_path: Path) -> None:
    """Its shards come with it in one commit. Both versions are wanted until one is discarded or retired."""
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    commits = store.commits
    begun(versions)
    assert store.commits == commits + 1
    (first, second) = (
        resharding.of_version(store.read().leases.values(), NAME, version)[0] for version in (1, 2)
    )

    def wanted() -> tuple[bool, ...]:
        return tuple(resharding.wanted(lease, store.read(), lambda *_: True) for lease in (first, second))

    assert wanted() == (True, True)
    DesiredStates(store).set_state(NAME, DesiredState.PAUSED)
    assert wanted() == (False, False)
    DesiredStates(store).set_state(NAME, DesiredState.RUNNING)
    promoted(versions)
    assert wanted() == (True, True)
    assert retired(versions) is not None
    assert wanted() == (False, True)


def test_a_promotion_leaves_every_lease_as_it_is(tmp_path: Path) -> None:
    """Workers of both versions keep what they hold: only the pipeline's row changes, and it changes once."""
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    begun(versions)
    key = resharding.of_version(store.read().leases.values(), NAME, 1)[0].key
    swap(store, lambda snapshot: [snapshot.leases[key].given_to("w")])
    before, commits = dict(store.read().leases), store.commits
    promoted(versions)
    after = dict(store.read().leases)
    assert store.commits == commits + 1
    assert [one for one in after if after[one] != before[one]] == [desired_key(NAME)]
    versions.back_out(NAME)
    assert store.commits == commits + 2
    assert versions.of(NAME).active == 1


@pytest.mark.parametrize("version", [1, 2])
def test_no_version_is_promoted_in_the_middle_of_a_reshard(tmp_path: Path, version: int) -> None:
    """A command that looked before the new generation was written is refused by the row itself. With a reason
    given it is promoted all the same.
    """
    versions = wanting(store := MemoryStore(), tmp_path)
    begun(versions)
    (child,) = resharding.reshard(store, NAME, version, 2, {0: 0, 1: 0})
    with pytest.raises(
        VersionRefusedError, match=f"version {version} is being resharded: {child.status_value} must wait"
    ):
        promoted(versions)
    since = versions.of(NAME).change
    assert since is not None
    versions.promote(NAME, 2, (), warm_seconds=0.0, barrier={}, since=since.id, despite="it never ends")
    assert versions.of(NAME).active == 2


def test_each_change_writes_the_whole_rollout(tmp_path: Path) -> None:
    """The row says what is active, what is inactive, where older windows come from, and who changed what:
    each as it was given.
    """
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    ids: set[str] = set()

    def seen() -> Rollout:
        """What a reader finds, without the change's own id and time, which are never given."""
        rollout = versions.of(NAME)
        assert rollout.change is not None
        assert abs((datetime.now(UTC) - rollout.change.at).total_seconds()) < 600
        assert len(rollout.change.id) == 12
        ids.add(rollout.change.id)
        return replace(rollout, change=replace(rollout.change, id="", at=NOW))

    def change(kind: ChangeKind, version: int, active: int, number: int, **fields: Any) -> Change:
        return Change(id="", kind=kind, version=version, active=active, at=NOW, number=number, **fields)

    def last() -> Change:
        found = versions.of(NAME).change
        assert found is not None
        return found

    two = InactiveVersion(
        version=2, state=InactiveState.CATCHING_UP, shards=3, tables=("sinks/p_2",), seam_ms=5
    )
    versions.begin(NAME, two, {0: 3}, columns_from=1, who="me")
    expected = Rollout(
        pipeline=NAME,
        active=1,
        shards=1,
        beside=two,
        change=change(ChangeKind.STARTED, 2, 1, 1, who="me", offsets={0: 3}),
    )
    assert seen() == expected
    versions.note_caught_up(versions.of(NAME))
    two = replace(two, state=InactiveState.LIVE)
    expected = replace(expected, beside=two, change=change(ChangeKind.CAUGHT_UP, 2, 1, 2))
    assert seen() == expected
    versions.promote(
        NAME,
        2,
        ("sinks/p_1",),
        warm_seconds=60.0,
        barrier={0: 7},
        since=last().id,
        who="me",
        despite="it is late",
    )
    one = InactiveVersion(
        version=1,
        state=InactiveState.WARM,
        shards=1,
        tables=("sinks/p_1",),
        until=last().at + timedelta(seconds=60),
    )
    expected = Rollout(
        pipeline=NAME,
        active=2,
        shards=3,
        tables=("sinks/p_2",),
        beside=one,
        earlier=(ServedUntil(1, 5),),
        change=change(ChangeKind.PROMOTED, 2, 2, 3, who="me", despite="it is late", offsets={0: 7}),
    )
    assert seen() == expected
    for _ in range(2):
        versions.keep_warm(versions.of(NAME), 20.0)
    assert seen() == replace(expected, beside=replace(one, warmed_seconds=40.0))
    versions.back_out(NAME, who="me", since=last().id)
    expected = Rollout(
        pipeline=NAME,
        active=1,
        shards=1,
        tables=("sinks/p_1",),
        beside=two,
        change=change(ChangeKind.BACKED_OUT, 2, 1, 4, who="me"),
    )
    assert seen() == expected
    versions.leave(NAME, 2)
    assert seen() == replace(expected, beside=replace(two, leaving=True))
    versions.remove(NAME, 2, who="me")
    assert seen() == replace(expected, beside=None, change=change(ChangeKind.DISCARDED, 2, 1, 5, who="me"))
    assert resharding.of_version(store.read().leases.values(), NAME, 2) == []
    assert len(ids) == 5
    assert store.read().leases[desired_key(NAME)].updated_at == last().at


def test_the_end_of_a_warm_version_is_a_change(tmp_path: Path) -> None:
    """Once its time is over nobody consumes it, and the active version stays what it is."""
    versions = wanting(MemoryStore(), tmp_path)
    begun(versions)
    promoted(versions)
    assert retired(versions) is not None
    rollout = versions.of(NAME)
    assert rollout.change is not None
    assert (rollout.active, rollout.beside) == (2, None)
    assert (rollout.change.kind, rollout.change.version, rollout.change.active) == (ChangeKind.RETIRED, 1, 2)
    assert retired(versions) is None


def test_only_the_promotion_that_was_meant_is_undone(tmp_path: Path) -> None:
    """A watcher that names its promotion backs out of no later one."""
    versions = wanting(MemoryStore(), tmp_path)
    begun(versions)
    promotion = promoted(versions).change
    assert promotion is not None
    with pytest.raises(VersionRefusedError, match="something changed since that promotion"):
        versions.back_out(NAME, since="another")
    assert versions.back_out(NAME, since=promotion.id).active == 1


def retired(versions: Versions) -> Rollout | None:
    return versions.keep_warm(versions.of(NAME), 0.0)


def leave(versions: Versions, version: int = 2) -> Rollout:
    return versions.leave(NAME, version)


def back_out(versions: Versions) -> Rollout:
    return versions.back_out(NAME)


@pytest.mark.parametrize(
    ("before", "act", "says"),
    [
        ([], lambda v: begun(v, 1), "version 1 is active"),
        ([begun], lambda v: begun(v, 3), "there is an inactive version already: version 2 is catching up"),
        ([begun, leave], lambda v: begun(v, 3), "version 2 is being discarded"),
        ([begun, promoted], lambda v: begun(v, 3, active=2), "it is kept warm until then"),
        ([], lambda v: begun(v, active=9), "version 1 became active meanwhile"),
        ([begun], lambda v: promoted(v, 3), "it is not a shadow"),
        (
            [begun],
            lambda v: v.promote(NAME, 2, (), warm_seconds=0.0, barrier={}, since="old"),
            "something changed while it was looked at",
        ),
        ([begun, promoted], promoted, "it is active already"),
        ([begun, promoted], lambda v: promoted(v, 1), "it is not a shadow"),
        ([begun, leave], promoted, "it is not a shadow"),
        ([lambda v: resharding.create(v._store, NAME, 2, 1, {0: 0})], begun, "it has shards already"),
        ([], back_out, "no version before it is kept warm"),
        ([begun], back_out, "no version before it is kept warm"),
        ([begun, promoted, retired], back_out, "no version before it is kept warm"),
        ([begun, promoted, lambda v: leave(v, 1)], back_out, "no version before it is kept warm"),
        (
            [begun, promoted],
            lambda v: v.back_out(NAME, since="another"),
            "something changed since that promotion",
        ),
        ([], lambda v: leave(v, 1), "it is the active one"),
        ([], leave, "it is not the inactive version"),
        ([lambda v: begun(v, seam_ms=5), promoted], lambda v: leave(v, 1), "readers get windows that end by"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, before: list[Callable[[Versions], object]], act: Callable[[Versions], object], says: str
) -> None:
    """Each refusal is bad input, says what is wrong, and writes nothing."""
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    for step in before:
        step(versions)
    commits = store.commits
    with pytest.raises(VersionRefusedError, match=says) as caught:
        act(versions)
    assert (caught.value.exit_code, store.commits) == (2, commits)
    assert caught.value.fields["pipeline"] == NAME
    assert {type(caught.value.fields[name]) for name in ("action", "problem", "cure")} == {str}
    assert caught.value.fields["action"] in {"started", "promoted", "backed out", "discarded"}
    assert isinstance(caught.value.fields["version"], int)


def test_a_refused_start_names_what_makes_room(tmp_path: Path) -> None:
    """A shadow may be discarded, a warm version ends by itself."""
    versions = wanting(MemoryStore(), tmp_path)
    begun(versions)

    def cure() -> object:
        with pytest.raises(VersionRefusedError) as caught:
            check_room(versions.of(NAME), 3)
        return caught.value.fields["cure"]

    assert cure() == "`hindcast discard p --version 2` makes room for it."
    beside = promoted(versions).beside
    assert beside is not None
    assert beside.until is not None
    assert cure() == f"Wait until {beside.until.isoformat()}: it is kept warm until then."


def test_all_shards_that_wait_are_named(tmp_path: Path) -> None:
    """A promotion waits for each of them."""
    store = MemoryStore()
    DesiredStates(store).declare(declare(tmp_path), 1)
    resharding.create(store, NAME, 1, 1, {0: 0, 1: 0})
    versions = Versions(store)
    begun(versions)
    resharding.reshard(store, NAME, 1, 2, {0: 0, 1: 0})
    with pytest.raises(
        VersionRefusedError, match=r"version 1 is being resharded: v1\.g1\.s0, v1\.g1\.s1 must wait"
    ) as caught:
        promoted(versions)
    fields = caught.value.fields
    assert (fields["pipeline"], fields["version"], fields["action"]) == (NAME, 2, "promoted")
    assert "--despite" in str(fields["cure"])


def test_a_pipeline_of_which_nothing_is_wanted_is_unknown(tmp_path: Path) -> None:
    """The error names the known pipelines, in order."""
    store = MemoryStore()
    for known in ("none", "a, p"):
        with pytest.raises(UnknownPipelineError) as caught:
            Versions(store).of("q")
        assert caught.value.fields == {"pipeline": "q", "known": known}
        for name in ("p", "a"):
            DesiredStates(store).declare(replace(declare(tmp_path), name=name), 1)


def test_a_discarded_shadow_makes_no_other_live(tmp_path: Path) -> None:
    """A process saw a shadow at its topic's end, and the shadow was discarded meanwhile. That makes no other
    shadow live.
    """
    versions = wanting(store := MemoryStore(), tmp_path)
    seen = begun(versions)
    leave(versions)
    versions.remove(NAME, 2)
    commits = store.commits
    assert versions.note_caught_up(seen) is None
    assert versions.note_caught_up(versions.of(NAME)) is None
    assert store.commits == commits
    begun(versions, 3)
    assert versions.note_caught_up(seen) is None
    assert versions.note_caught_up(replace(seen, beside=None)) is None


def test_a_warm_version_that_is_being_discarded_is_not_ended(tmp_path: Path) -> None:
    """Its shards and tables go first. The same holds for a shadow, which has no time that could be over."""
    versions = wanting(store := MemoryStore(), tmp_path)
    begun(versions)
    commits = store.commits
    assert retired(versions) is None
    promoted(versions)
    leave(versions, 1)
    assert retired(versions) is None
    assert store.commits == commits + 2


@pytest.mark.parametrize("who", ["", "ada"])
def test_the_sentence_of_a_change_says_who_did_what(who: str) -> None:
    """Each kind has its own sentence. No person is named who is not known."""
    by = f" by {who}" if who else ""
    change = Change(id="", kind=ChangeKind.STARTED, version=2, active=1, at=NOW, who=who, offsets={0: 3})
    said = {kind: replace(change, kind=kind).sentence for kind in ChangeKind}
    assert (
        said[ChangeKind.STARTED]
        == f"Version 2 is started{by} at the offsets {{0: 3}}; version 1 stays active."
    )
    assert said[ChangeKind.BACKED_OUT] == f"Version 1 is active again{by}; version 2 is still consumed."
    assert said[ChangeKind.PROMOTED] == f"Version 2 is active{by} from the offsets {{0: 3}} on."


def test_a_version_is_discarded_once_and_no_other_with_it(tmp_path: Path) -> None:
    """Leaving twice writes nothing. Nor does removing what does not leave, or is not there."""
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    assert versions.remove(NAME, 2) is None
    begun(versions)
    assert versions.remove(NAME, 2) is None
    left = versions.leave(NAME, 2)
    commits = store.commits
    assert versions.leave(NAME, 2) == left
    assert versions.remove(NAME, 3) is None
    assert store.commits == commits
    assert versions.remove(NAME, 2) is not None
    assert versions.remove(NAME, 2) is None


def test_nobody_is_named_who_did_not_say_who_they_are(tmp_path: Path) -> None:
    """Commands are given by people and by schedules; what a person did not say is not made up."""
    versions = wanting(MemoryStore(), tmp_path)
    steps = (begun, promoted, back_out, lambda one: one.leave(NAME, 2), lambda one: one.remove(NAME, 2))
    for step in steps:
        change = step(versions).change
        assert (change.who, change.despite) == ("", "")


@pytest.mark.parametrize("outcome", [Outcome.CONFLICT, Outcome.UNKNOWN_LOST, Outcome.UNKNOWN_WRITTEN])
def test_a_commit_of_unknown_outcome_is_made_once(outcome: Outcome) -> None:
    """After conflicts and lost answers the version is started, promoted and backed out of once each, and
    never refused because of its own commit.
    """
    plan: list[Outcome] = []
    store = MemoryStore(lambda: plan.pop(0) if plan else Outcome.OK)
    detail = {"version": 1, "shards": 1, "workers": 1}

    row = Lease(
        stream_id=NAME,
        status_type=StatusType.PIPELINE,
        status_value="active",
        state=DesiredState.RUNNING,
        detail=detail,
    )
    swap(store, lambda _: [row])
    versions = Versions(store)
    for act, active in ((begun, 1), (promoted, 2), (lambda one: one.back_out(NAME), 1)):
        plan.append(outcome)
        act(versions)
        assert versions.of(NAME).active == active
        plan.clear()


def test_a_shadow_has_caught_up_once_it_has_read_what_there_is(tmp_path: Path) -> None:
    """Its last plan took all of the topic, or it is as far as the active version. A shard without a batch has
    not caught up.
    """
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    begun(versions)

    def at(version: int, end: int, *, added: int | None = None, **detail: int) -> bool:
        """The version has read up to there, and of an added partition so far."""
        (lease,) = resharding.of_version(store.read().leases.values(), NAME, version)
        ends = {"0": end}
        if added is not None:
            ends["1"] = added
        changed = lease.evolve(
            checkpoint={**lease.checkpoint, "end_offsets": ends, "batch": 1},
            detail={**lease.detail, **detail},
        )
        swap(store, lambda _: [changed])
        return bool(caught_up(store.read().leases.values()))

    assert not caught_up(store.read().leases.values())
    assert not at(1, 50)
    assert not at(2, 40, lag_records=10)
    leases = store.read().leases
    alone = [lease for key, lease in leases.items() if not key.status_value.startswith("v1.")]
    assert len(alone) == len(leases) - 1
    assert not caught_up(alone), "an active version without a shard has read nothing that could be reached"
    assert at(2, 45, lag_records=0)
    assert not at(2, 46, lag_records=5)
    assert at(2, 50, lag_records=5)
    for added in (0, 7):
        assert at(2, 50, lag_records=5, added=added), (
            "a partition that the active version does not know yet keeps it from nothing"
        )
    (seen,) = caught_up(store.read().leases.values())
    noted = versions.note_caught_up(seen)
    assert noted is not None
    assert noted.beside is not None
    assert noted.beside.state is InactiveState.LIVE
    assert versions.note_caught_up(seen) is None
    assert not caught_up(store.read().leases.values())


def test_a_shadow_has_caught_up_whatever_other_pipelines_do(tmp_path: Path) -> None:
    """A pipeline without an inactive version, and one whose shadow is being discarded, are passed over."""
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    begun(versions)
    leases = store.read().leases
    (own,) = resharding.of_version(leases.values(), NAME, 2)
    own = own.evolve(checkpoint={**own.checkpoint, "batch": 1}, detail={**own.detail, "lag_records": 0})
    row = leases[desired_key(NAME)]
    idle = row.evolve(stream_id="idle", detail={"version": 1, "shards": 1, "workers": 1})
    beside = {**row.detail["beside"], "leaving": True}
    leaving = [
        row.evolve(stream_id="leaving", detail={**row.detail, "beside": beside}),
        own.evolve(stream_id="leaving"),
    ]
    assert [rollout.pipeline for rollout in caught_up([idle, *leaving, row, own])] == [NAME]


def test_a_rollout_is_written_as_it_was_read(tmp_path: Path) -> None:
    """That holds too if no change of its versions ever came: the row stays what it was, and as old."""
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    for written_down in (False, True):
        if written_down:
            begun(versions)
        row = store.read().leases[desired_key(NAME)]
        rollout = Rollout.of(PipelineRow.of(row))
        again = rollout.written(row, "t")
        assert PipelineRow.of(again).written_by == "t"
        assert (Rollout.of(PipelineRow.of(again)), again.updated_at) == (rollout, row.updated_at)


def test_a_shadow_has_not_caught_up_with_a_part_of_what_is_being_resharded() -> None:
    """What a shard is to take over once its parents end was read by its parents. The shadow has to reach
    that, too.
    """
    store = MemoryStore()
    detail = {"version": 1, "shards": 2, "workers": 1}
    row = Lease(
        stream_id=NAME,
        status_type=StatusType.PIPELINE,
        status_value="active",
        state=DesiredState.RUNNING,
        detail=detail,
    )
    swap(store, lambda _: [row])
    first, second = resharding.create(store, NAME, 1, 2, {0: 0, 1: 0})
    Versions(store).begin(NAME, shadow(), {0: 0, 1: 0}, columns_from=1)
    (own,) = resharding.of_version(store.read().leases.values(), NAME, 2)
    detail = {**own.detail, "lag_records": 990}
    own = own.evolve(
        checkpoint={**own.checkpoint, "end_offsets": {"0": 50, "1": 10}, "batch": 1}, detail=detail
    )
    first = first.evolve(checkpoint={"end_offsets": {"0": 50}})
    second = second.evolve(checkpoint={"end_offsets": {"1": 1000}})
    swap(store, lambda _: [first, second, own])
    assert not caught_up(store.read().leases.values())
    resharding.reshard(store, NAME, 1, 4, {0: 0, 1: 0, 2: 0, 3: 0})
    swap(store, lambda _: [first.evolve(state="TERMINATED")])
    swap(store, lambda snapshot: resharding.opened(snapshot.leases))
    assert not caught_up(store.read().leases.values())


class Observers:
    """Workers on hosts whose wall clocks differ by years, each with its own monotonic clock."""

    def __init__(self, store: MemoryStore, count: int) -> None:
        self.store, self.versions = store, Versions(store)
        self.clocks = [FakeClock() for _ in range(count)]
        for number, clock in enumerate(self.clocks):
            clock.wall_offset = timedelta(days=(-1000, 1000)[number % 2])
        self.observers = [WarmTime(clock) for clock in self.clocks]

    def look(self, *who: int) -> bool:
        """These workers observe twice and note what they see; whether the version is still kept warm."""
        for number in who * 2:
            for seen, seconds in self.observers[number].seen(self.store.read().leases.values()):
                self.versions.keep_warm(seen, seconds)
        return self.versions.of(NAME).beside is not None

    def wait(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)


def warm(tmp_path: Path, seconds: float, workers: int = 2) -> Observers:
    """Version 2 was just promoted, and version 1 is kept warm for so long."""
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    started = begun(versions)
    assert started.change is not None
    versions.promote(NAME, 2, (), warm_seconds=seconds, barrier={}, since=started.change.id)
    return Observers(store, workers)


def test_a_warm_version_is_ended_by_time_that_was_seen_to_pass(tmp_path: Path) -> None:
    """It is ended neither by the clock of the host that promoted, nor by the wall clock of the host that
    observes.
    """
    workers = warm(tmp_path, 100.0)
    assert workers.look(0, 1)
    workers.wait(99.0)
    assert workers.look(0, 1)
    workers.wait(1.0)
    assert not workers.look(1, 0)


def test_a_warm_version_outlives_every_worker_that_sees_it(tmp_path: Path) -> None:
    """What was seen is noted in the row every ten minutes, once, however many see it. A restart loses what
    came after the last note.
    """
    workers = warm(tmp_path, 3000.0, workers=4)
    assert workers.look(0, 1)
    commits = workers.store.commits
    workers.wait(NOTED_SECONDS)
    assert workers.look(0, 1)
    assert workers.store.commits == commits + 1
    assert workers.versions.of(NAME).warm_seconds_left == 2400.0
    workers.wait(500.0)
    assert workers.look(0, 1)
    assert workers.look(2, 3), "both others have ended, and so has what they saw"
    for _ in range(3):
        workers.wait(NOTED_SECONDS)
        assert workers.look(2, 3)
    workers.wait(NOTED_SECONDS - 1.0)
    assert workers.look(2, 3)
    workers.wait(1.0)
    assert not workers.look(2, 3)


def test_each_warm_version_has_its_own_time(tmp_path: Path) -> None:
    """Other pipelines do not matter, with or without a version that is kept warm."""
    workers = warm(tmp_path, 100.0)
    row = workers.store.read().leases[desired_key(NAME)]
    swap(workers.store, lambda _: [row.evolve(stream_id="q")])
    idle = row.evolve(stream_id="a", detail={"version": 1, "shards": 1, "workers": 1})
    leases = [idle, *workers.store.read().leases.values()]
    (seeing, _) = workers.observers
    assert seeing.seen(leases) == []
    workers.wait(100.0)
    assert {(rollout.pipeline, seconds) for rollout, seconds in seeing.seen(leases)} == {
        (NAME, 100.0),
        ("q", 100.0),
    }


def test_the_time_of_another_promotion_counts_for_none(tmp_path: Path) -> None:
    """The version is backed out of and promoted again while nobody observes. The old version is kept warm for
    the whole time again.
    """
    workers = warm(tmp_path, 100.0)
    assert workers.look(0)
    workers.wait(100.0)
    workers.versions.back_out(NAME)
    since = workers.versions.of(NAME).change
    assert since is not None
    workers.versions.promote(NAME, 2, (), warm_seconds=100.0, barrier={}, since=since.id)
    assert workers.look(0)
    workers.wait(99.0)
    assert workers.look(0)
    workers.wait(1.0)
    assert not workers.look(0)


def test_a_removed_row_is_gone_from_the_table(settings: Settings) -> None:
    """In memory and in Delta: a row that is committed as removed is in no later read, and may be written
    again.
    """
    for store in (MemoryStore(), LeaseTable(settings)):
        (lease,) = resharding.create(store, NAME, 1, 1, {0: 0})
        swap(store, lambda snapshot: [one.evolve(state=REMOVED) for one in snapshot.leases.values()])
        assert lease.key not in store.read().leases
        assert resharding.create(store, NAME, 1, 1, {0: 0})


def test_an_event_is_written_once_also_after_a_kill(settings: Settings, tmp_path: Path) -> None:
    """The next process writes the event of a change whose author was killed. Nobody writes it twice."""
    store, tables = MemoryStore(), ControlTables(settings)
    versions = wanting(store, tmp_path)
    begun(versions)
    for _ in range(2):
        record_changes(tables, versions.of(NAME))
    (event,) = tables.rows(ControlTable.EVENTS)
    assert (event["kind"], event["pipeline"]) == ("reprocess_started", NAME)
    assert "Version 2 is started" in event["message"]


def test_an_event_says_what_the_change_says(settings: Settings, tmp_path: Path) -> None:
    """It says who did what, at which offsets, and leaves out what is not known. A promotion without a proof
    is a warning, with the way back.
    """
    tables = ControlTables(settings)
    versions = wanting(MemoryStore(), tmp_path)
    started = record_changes(tables, begun(versions)).change
    assert started is not None
    versions.promote(
        NAME, 2, (), warm_seconds=0.0, barrier={0: 7}, since=started.id, who="me", despite="it is late"
    )
    promotion = record_changes(tables, versions.of(NAME)).change
    assert promotion is not None
    first, second = sorted(
        tables.rows(ControlTable.EVENTS), key=lambda event: json.loads(event["detail"])["number"]
    )
    assert json.loads(first["detail"]) == {
        "change": started.id,
        "version": 2,
        "active": 1,
        "at": started.at.isoformat(),
        "offsets": {"0": 0},
        "number": 1,
    }
    assert json.loads(second["detail"]) == {
        "change": promotion.id,
        "version": 2,
        "active": 2,
        "at": promotion.at.isoformat(),
        "who": "me",
        "despite": "it is late",
        "offsets": {"0": 7},
        "number": 2,
    }
    assert (first["severity"], first["cure"]) == ("info", "")
    assert (second["severity"], second["cure"]) == (
        "warning",
        "`hindcast back-out p` returns to the version before.",
    )


def test_no_event_is_written_for_a_pipeline_whose_versions_never_changed(
    settings: Settings, tmp_path: Path
) -> None:
    """It is wanted, and that is all."""
    versions = wanting(MemoryStore(), tmp_path)
    rollout = versions.of(NAME)
    assert record_changes(ControlTables(settings), rollout) == rollout
    assert ControlTables(settings).rows(ControlTable.EVENTS) == []


def test_a_version_that_is_deployed_while_a_worker_runs_is_loaded_once_it_is_wanted(tmp_path: Path) -> None:
    """What was loaded stays as it was: a query that runs keeps the code that it was started with."""
    store = MemoryStore()
    versions = wanting(store, tmp_path)
    deployed = LoadedPipelines(tmp_path)
    first = deployed.of(NAME, 1)
    declare(tmp_path, 2)
    assert deployed.look(store.read().leases.values()) == []
    assert not deployed.has(NAME, 2)
    begun(versions)
    assert deployed.look(store.read().leases.values()) == []
    assert deployed.has(NAME, 2)
    versions.leave(NAME, 2)
    versions.remove(NAME, 2)
    begun(versions, 3)
    assert deployed.look(store.read().leases.values()) == [(NAME, 3)]
    assert deployed.of(NAME, 1) is first


def row(shard: str, batch: int, start: int, end: int, **measured: int | None) -> LedgerRow:
    values = {
        "late_watermark_ms": 0,
        "watermark_ms": 0,
        "min_event_ms": 0,
        "max_event_ms": None,
        "input_rows": end - start,
        "poison_rows": 0,
        **measured,
    }
    return LedgerRow(
        **values,  # type: ignore[arg-type]
        pipeline=NAME,
        version=1,
        shard=shard,
        epoch=1,
        batch=batch,
        worker="w",
        topic="t",
        start_offsets={0: start},
        end_offsets={0: end},
        output_rows=0,
        batch_seconds=None,
        cpu_seconds=None,
        sink_version=batch,
        started_at=None,
        committed_at=NOW,
    )


def test_the_seam_lies_after_every_window_that_lacks_rows(tmp_path: Path) -> None:
    """No window that ends after the seam has a row before the start: the seam is a window's length past the
    newest event before the start.
    """
    old, new = declare(tmp_path), declare(tmp_path, 2)
    history = History.of(
        [row("v1.g0.s0", 1, 0, 10, max_event_ms=20_000), row("v1.g0.s0", 2, 10, 20, max_event_ms=90_000)]
    )
    assert seam_of(new, old, history, {0: 0}) is None
    assert seam_of(new, old, history, {0: 5}) == 25_000
    assert seam_of(new, old, history, {0: 10}) == 25_000
    assert seam_of(new, old, history, {0: 11}) == 95_000
    assert seam_of(new, old, history, {0: 20}) == 95_000
    assert seam_of(new, old, history, {}) is None, "a partition that the topic has no more lacks nothing"
    with pytest.raises(TryLaterError, match="up to 20"):
        seam_of(new, old, history, {0: 21})
    assert seam_of(new, old, History.of([]), {0: 21}) is None


def test_the_longer_window_of_both_versions_makes_the_seam(tmp_path: Path) -> None:
    """It does not matter which version has it: a row before the start may be in windows of either that end as
    much later.
    """
    old, new = declare(tmp_path), declare(tmp_path, 2)
    assert old.window is not None
    longer = replace(old.window, duration="60 seconds")
    history = History.of([row("v1.g0.s0", 1, 0, 10, max_event_ms=20_000)])
    assert seam_of(replace(new, window=longer), old, history, {0: 5}) == 80_000
    assert seam_of(new, replace(old, window=longer), history, {0: 5}) == 80_000


@pytest.mark.parametrize("which", ["old", "new"])
def test_a_version_without_windows_begins_where_the_active_one_did(tmp_path: Path, which: str) -> None:
    """There is no window at which readers could switch from one version to the other."""
    old, new = declare(tmp_path), declare(tmp_path, 2)
    if which == "old":
        old = replace(old, window=None)
    else:
        new = replace(new, window=None)
    history = History.of([row("v1.g0.s0", 1, 3, 10, max_event_ms=20_000)])
    assert seam_of(new, old, history, {0: 3}) is None
    with pytest.raises(
        VersionRefusedError, match="without windows it must begin where the active version did"
    ) as caught:
        seam_of(new, old, history, {0: 4})
    fields = caught.value.fields
    assert (fields["pipeline"], fields["version"], fields["action"]) == (NAME, 2, "started")
    assert "Version 1 began at {0: 3}" in str(fields["cure"])


def test_a_seam_follows_from_the_next_watermark_if_nothing_was_measured(tmp_path: Path) -> None:
    """A worker that died took its last batch's measurements with it. The next batch's watermark is the newest
    event less the delay.
    """
    old, new = declare(tmp_path), declare(tmp_path, 2)
    lost = row("v1.g0.s0", 1, 0, 10, input_rows=None, poison_rows=None)
    with pytest.raises(TryLaterError, match="not known yet"):
        seam_of(new, old, History.of([lost]), {0: 5})
    known = History.of([lost, row("v1.g0.s0", 2, 10, 20, watermark_ms=30_000, max_event_ms=50_000)])
    assert seam_of(new, old, known, {0: 5}) == 30_000 + 10_000 + 5_000
    others = [
        row("v1.g0.s1", 2, 0, 0, watermark_ms=70_000),
        row("v1.g0.s0", 2, 10, 20, watermark_ms=30_000, max_event_ms=50_000),
    ]
    assert (
        seam_of(
            new,
            old,
            History.of([lost, *(replace(one, sink_version=2 + n) for n, one in enumerate(others))]),
            {0: 5},
        )
        == 45_000
    )


def test_a_batch_that_read_nothing_usable_moves_no_seam(tmp_path: Path) -> None:
    """All of its records were poison: no event happened in it."""
    old, new = declare(tmp_path), declare(tmp_path, 2)
    assert seam_of(new, old, History.of([row("v1.g0.s0", 1, 0, 10, poison_rows=10)]), {0: 5}) == 5_000


def test_what_was_backed_out_of_lacks_what_it_lacked_before(tmp_path: Path) -> None:
    """If it is promoted again, readers get no window from it that ends by its seam. They get those from the
    version that has them.
    """
    versions = wanting(MemoryStore(), tmp_path)
    begun(versions, 2, 50)
    assert promoted(versions).earlier == (ServedUntil(1, 50),)
    back = versions.back_out(NAME)
    assert back.beside is not None
    assert (back.earlier, back.beside.seam_ms) == ((), 50)
    assert promoted(versions).earlier == (ServedUntil(1, 50),)


def test_earlier_windows_come_from_the_version_that_has_them(tmp_path: Path) -> None:
    """Version 3 began before version 2 did: readers get the oldest windows from version 1, and none from
    version 2.
    """
    versions = wanting(MemoryStore(), tmp_path)
    begun(versions, 2, 50)
    assert promoted(versions).earlier == (ServedUntil(1, 50),)
    retired(versions)
    begun(versions, 3, 80, active=2)
    assert promoted(versions, 3).earlier == (ServedUntil(1, 50), ServedUntil(2, 80))
    assert versions.back_out(NAME).earlier == (ServedUntil(1, 50),)
    versions.leave(NAME, 3)
    versions.remove(NAME, 3)
    begun(versions, 4, 30, active=2)
    assert promoted(versions, 4).earlier == (ServedUntil(1, 30),)
