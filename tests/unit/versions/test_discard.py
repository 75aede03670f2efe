"""A discard, step by step, on a local disk and on an object store."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.inactive_version import NAME, at, begin, caught_up, event_kinds, put, seen
from support.opened_tables import record_opened_tables
from support.shard_harness import CrashError, crash_at

from hindcast import catalog
from hindcast.errors import StoreUnavailableError, TryLaterError, VersionRefusedError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease
from hindcast.leases.store import Snapshot, swap
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.shards.version_changes import Versions
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.testing import FakeClock
from hindcast.versions import discard as discard_module
from hindcast.versions.discard import BATCH_SECONDS, POLL_SECONDS, discard
from hindcast.versions.listing import list_versions
from hindcast.versions.promote import promote


def test_a_discarded_version_leaves_nothing(two: Settings) -> None:
    """Its shards, checkpoints and tables go. The active version's stay, and so does the history."""
    caught_up(two)
    folders = [Path(two.checkpoint(NAME, name)) for name in ("v1.g0.s0", "v2.g0.s0", "v2.g0.s0.r1.e2")]
    for folder in folders:
        folder.mkdir(parents=True)
    done = discard(Installation(two), NAME, 2, who="ada")
    deleted = [f"checkpoints/{NAME}/v2.g0.s0", f"checkpoints/{NAME}/v2.g0.s0.r1.e2", f"sinks/{NAME}_v2"]
    assert done == {"pipeline": NAME, "version": 2, "active": 1, "deleted": deleted}
    assert [folder.exists() for folder in folders] == [True, False, False]
    assert not Path(two.table("sinks", f"{NAME}_v2")).exists()
    assert [lease.status_value for lease in LeaseTable(two).leases()] == ["active", "v1.g0.s0"]
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    (event,) = ControlTables(two).rows(ControlTable.EVENTS, [("kind", "=", "version_discarded")])
    assert json.loads(event["detail"])["who"] == "ada"
    with pytest.raises(VersionRefusedError, match="it is not the inactive version"):
        discard(Installation(two), NAME, 2)


@pytest.mark.parametrize("step", [f"discard.{number}" for number in range(1, 6)])
def test_a_discard_that_was_killed_is_finished_by_the_next(two: Settings, step: str) -> None:
    """Nobody can promote what is half gone. The same command, repeated, resumes where the kill ended it."""
    caught_up(two)
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, step, 1)
        with pytest.raises(CrashError):
            discard(Installation(two), NAME, 2)
    assert seen(two) == {(end, "one"): 1 for end in range(5, 10)}
    if step != "discard.1":
        with pytest.raises(VersionRefusedError, match="it is not a shadow"):
            promote(Installation(two), NAME, 2)
    if step == "discard.5":
        versions = Versions(LeaseTable(two))
        assert versions.keep_warm(versions.of(NAME), 0.0) is None
        assert list_versions(Installation(two), NAME)[1]["state"] == "declared"
    else:
        discard(Installation(two), NAME, 2)
        assert event_kinds(two).count("version_discarded") == 1
    assert not Path(two.table("sinks", f"{NAME}_v2")).exists()


def test_a_shard_that_is_held_is_waited_for_until_its_lease_has_expired(two: Settings) -> None:
    """Its owner may be writing. The lease of a dead owner does not change for the time of a whole lease; that
    of a living one does.
    """
    caught_up(two)
    at(two, 2, 50, 9_000, owner="dead")
    clock = FakeClock()
    discard(Installation(two), NAME, 2, clock=clock, sleep=lambda _: clock.advance(1.0))
    assert two.lease_seconds <= clock.monotonic() <= two.lease_seconds + 2


def renew_held(settings: Settings) -> None:
    """Each owner renews its leases."""

    def renewed(snapshot: Snapshot) -> list[Lease]:
        return [lease.renewed() for lease in snapshot.leases.values() if lease.lease_owner]

    swap(LeaseTable(settings), renewed)


def test_a_shard_whose_owner_keeps_renewing_is_not_deleted(two: Settings) -> None:
    """The discard gives up after a lease and a batch; nothing was deleted."""
    caught_up(two)
    at(two, 2, 50, 9_000, owner="alive")
    clock = FakeClock()
    waits = [two.lease_seconds * 1.25 + BATCH_SECONDS - 1.0, 1.0]

    def renew(seconds: float) -> None:
        assert seconds == POLL_SECONDS
        clock.advance(waits.pop(0))
        renew_held(two)

    with pytest.raises(TryLaterError, match=f"{NAME} version 2 are still held by alive"):
        discard(Installation(two), NAME, 2, clock=clock, sleep=renew)
    assert clock.monotonic() == two.lease_seconds * 1.25 + BATCH_SECONDS
    assert Path(two.table("sinks", f"{NAME}_v2")).exists()


def test_all_owners_of_held_shards_are_named(two: Settings) -> None:
    """Each is named once, however many shards it holds."""
    caught_up(two)
    (shard,) = resharding.of_version(LeaseTable(two).leases(), NAME, 2)
    held = []
    for number, owner in ((0, "one"), (1, "two"), (2, "two")):
        held.append(shard.evolve(status_value=f"v2.g0.s{number}", lease_owner=owner))
    swap(LeaseTable(two), lambda _: held)
    clock = FakeClock()

    def renew(_: float) -> None:
        clock.advance(10.0)
        renew_held(two)

    with pytest.raises(TryLaterError, match=f"Shards of {NAME} version 2 are still held by one, two"):
        discard(Installation(two), NAME, 2, clock=clock, sleep=renew)


def test_the_later_of_two_discards_at_once_finds_the_version_gone(
    two: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends well, and the event is written once."""
    caught_up(two)

    def finish(reached: str) -> None:
        if reached == "discard.4":
            Versions(LeaseTable(two)).remove(NAME, 2, who="ada")

    monkeypatch.setattr(discard_module, "reach", finish)
    assert discard(Installation(two), NAME, 2, who="bob")["active"] == 1
    (event,) = ControlTables(two).rows(ControlTable.EVENTS, [("kind", "=", "version_discarded")])
    assert json.loads(event["detail"])["who"] == "ada"


def test_two_discards_may_delete_the_same_folder(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the other has deleted meanwhile stops neither of them."""
    caught_up(two)
    checkpoint = Path(two.checkpoint(NAME, "v2.g0.s0"))
    checkpoint.mkdir(parents=True)
    deletes = shutil.rmtree
    interrupted = []

    def interrupted_once(folder: Path, **options: Any) -> None:
        if folder not in interrupted:
            interrupted.append(folder)
            raise FileNotFoundError(folder)
        deletes(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted_once)
    table = Path(two.table("sinks", f"{NAME}_v2"))
    deleted = [f"checkpoints/{NAME}/v2.g0.s0", f"sinks/{NAME}_v2"]
    assert discard(Installation(two), NAME, 2)["deleted"] == deleted
    assert interrupted == [checkpoint, table]
    assert not checkpoint.exists()
    assert not table.exists()


def test_a_discard_fails_if_a_file_cannot_be_deleted(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is not removed before its data. Repeated, the discard finishes."""
    caught_up(two)
    deletes = os.unlink

    def unlink(name: str, **options: Any) -> None:
        if str(name).endswith(".parquet"):
            raise PermissionError(name)
        deletes(name, **options)

    table = two.table("sinks", f"{NAME}_v2")
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        with pytest.raises(StoreUnavailableError, match=f"The table {table} could not be deleted: .*parquet"):
            discard(Installation(two), NAME, 2)
    assert Path(table).exists()
    inactive = Versions(LeaseTable(two)).of(NAME).beside
    assert inactive is not None
    assert inactive.leaving
    assert discard(Installation(two), NAME, 2)["deleted"] == [f"sinks/{NAME}_v2"]


def test_a_discard_opens_tables_with_the_stores_options(
    two: Settings, settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them an object store refuses to delete a table's rows."""
    store = settings_factory(pipelines_dir=two.pipelines_dir, tables_url=f"file://{tmp_path}/tables")
    DesiredStates(LeaseTable(store)).declare(catalog.load(two.pipelines_dir)[NAME], 1)
    begin(store)
    put(store, f"{NAME}_v2", range(5, 10), "two")
    options = {"allow_http": "true"}
    seen = record_opened_tables(monkeypatch)
    discard(Installation(store.model_copy(update={"storage_options": options})), NAME, 2)
    assert [given for url, given in seen if url.split("/")[-2] in {"sinks", "corrections"}] == [options] * 2


def test_an_object_store_deletes_the_files_itself(
    two: Settings, settings_factory: Callable[..., Settings], tmp_path: Path
) -> None:
    """The rows of a discarded version go. Its checkpoints and files are left to the store's own rules. A
    table that was not there is not named.
    """
    store = settings_factory(
        pipelines_dir=two.pipelines_dir,
        tables_url=f"file://{tmp_path}/tables",
        checkpoints_url=f"file://{tmp_path}/checkpoints",
    )
    DesiredStates(LeaseTable(store)).declare(catalog.load(two.pipelines_dir)[NAME], 1)
    begin(store)
    put(store, f"{NAME}_v2", range(5, 10), "two")
    folder = tmp_path / "checkpoints" / NAME / "v2.g0.s0"
    folder.mkdir(parents=True)
    assert discard(Installation(store), NAME, 2)["deleted"] == [f"sinks/{NAME}_v2"]
    assert DeltaTable(store.table("sinks", f"{NAME}_v2")).to_pyarrow_table().num_rows == 0
    assert folder.exists()
