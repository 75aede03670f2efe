"""One contract for every lease store: the table on Delta and its twin in memory."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from hindcast.errors import CommitConflictError, CommitUnknownError, HindcastError, SchemaVersionError, StoreUnavailableError
from hindcast.leases.delta_store import LeaseTable, read_leases
from hindcast.leases.lease import REMOVED, TRANSITIONS, Lease, LeaseKey, ShardState, StatusType
from hindcast.leases.store import ATTEMPTS, LeaseStore, Snapshot, after, shuffled, swap
from hindcast.processes.end_with_parent import exit_now
from hindcast.settings import Settings
from hindcast.tables.schema import SCHEMA_VERSION, SCHEMAS, ControlTable
from hindcast.testing import MemoryStore, Outcome

KEY = LeaseKey("trades", "shard", "v1.g0.s0")


def lease(**changes: object) -> Lease:
    return Lease(**{"stream_id": KEY[0], "status_type": StatusType.SHARD, "status_value": KEY[2], **changes})


@pytest.fixture(params=["delta", "memory"])
def stores(request: pytest.FixtureRequest, settings: Settings) -> Callable[[], LeaseStore]:
    """Makes clients of one and the same store."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    return lambda: LeaseTable(settings)


def test_a_new_store_is_empty(stores: Callable[[], LeaseStore]) -> None:
    """Reading a store that nobody has written gives no leases."""
    assert stores().read().leases == {}


def test_what_is_committed_is_read_back_whole(stores: Callable[[], LeaseStore]) -> None:
    """Each column of a lease survives the store."""
    store = stores()
    written = lease(
        checkpoint={"batch": 7},
        lease_counter=3,
        lease_owner="a",
        lease_stealer="b",
        parent_shard_ids=["p"],
        epoch=2,
        state="CLOSING",
        detail={"x": [1]},
    )
    store.commit(store.read(), [written.evolve(state="OPEN")])
    store.commit(store.read(), [written])
    assert stores().read().leases == {written.key: written}


@pytest.mark.parametrize("first", ["", *TRANSITIONS])
@pytest.mark.parametrize("second", [*TRANSITIONS, REMOVED])
def test_every_step_of_a_shards_life_is_in_the_table(first: str, second: str) -> None:
    """A commit with another step is refused whole. A shard begins waiting or open, and what is gone may be removed again."""
    before = {row.key: row for row in [lease(state=first)] if first}
    allowed = TRANSITIONS[first] | {first} if first else {ShardState.WAIT, ShardState.OPEN, REMOVED}
    slot = lease(status_type=StatusType.SLOT, status_value="0")
    if second in allowed:
        assert {row.state for row in after(before, [lease(state=second), slot]).values()} - {slot.state} <= {second}
    else:
        with pytest.raises(ValueError, match=f"trades/v1.g0.s0 cannot go from {first or 'no row'} to {second}"):
            after(before, [lease(state=second), slot])


@pytest.mark.parametrize("state", [ShardState.OPEN, ShardState.CLOSING, ShardState.CLOSED])
def test_only_a_rewind_that_is_called_off_brings_an_ended_shard_back(state: ShardState) -> None:
    """The shard that was to follow it is removed in the same commit. Others of the same name, or of another parent, are no reason."""
    ended = lease(state=ShardState.TERMINATED)
    back = ended.evolve(state=state)
    follower = lease(status_value="v1.g1.s0", state=ShardState.WAIT, parent_shard_ids=[ended.status_value])
    rows = {row.key: row for row in (ended, follower)}
    assert after(rows, [follower.evolve(state=REMOVED), back]) == {back.key: back}
    for other in (
        follower,
        follower.evolve(state=REMOVED, parent_shard_ids=["v1.g0.s1"]),
        follower.evolve(state=REMOVED, stream_id="another"),
    ):
        with pytest.raises(ValueError, match="TERMINATED"):
            after(rows, [other, back])
    with pytest.raises(ValueError, match="TERMINATED to WAIT"):
        after(rows, [follower.evolve(state=REMOVED), ended.evolve(state=ShardState.WAIT)])


def test_the_state_of_a_desired_state_is_no_state_of_a_shard() -> None:
    """Rows of pipelines and slots have words of their own."""
    row = lease(status_type=StatusType.PIPELINE, state="running")
    changed = row.evolve(state="paused")
    assert after({row.key: row}, [changed]) == {row.key: changed}


def test_a_commit_with_a_step_that_is_none_writes_nothing(stores: Callable[[], LeaseStore]) -> None:
    """The store is as it was, and the next commit on the same snapshot lands."""
    store = stores()
    store.commit(store.read(), [lease(state=ShardState.OPEN)])
    snapshot = store.read()
    with pytest.raises(ValueError, match="OPEN to WAIT"):
        store.commit(snapshot, [lease(state=ShardState.WAIT)])
    assert stores().read().leases[KEY].state == ShardState.OPEN
    store.commit(snapshot, [lease(state=ShardState.CLOSED)])
    assert stores().read().leases[KEY].state == ShardState.CLOSED


def test_a_commit_on_an_old_snapshot_is_refused(stores: Callable[[], LeaseStore]) -> None:
    """Of two commits decided on the same snapshot one wins, and the other changes nothing."""
    one, two = stores(), stores()
    first, second = one.read(), two.read()
    one.commit(first, [lease(lease_owner="a")])
    with pytest.raises(CommitConflictError):
        two.commit(second, [lease(lease_owner="b")])
    assert [row.lease_owner for row in stores().read().leases.values()] == ["a"]


def test_a_snapshot_serves_one_commit(stores: Callable[[], LeaseStore]) -> None:
    """A client must read again after its own commit, too."""
    store = stores()
    snapshot = store.read()
    store.commit(snapshot, [lease(lease_owner="a")])
    with pytest.raises(CommitConflictError):
        store.commit(snapshot, [lease(lease_owner="b")])


def test_other_leases_stay(stores: Callable[[], LeaseStore]) -> None:
    """A commit replaces the leases it names and keeps the others."""
    store = stores()
    store.commit(store.read(), [lease(), lease(status_value="v1.g0.s1")])
    store.commit(store.read(), [lease(lease_owner="a")])
    assert sorted(row.lease_owner for row in store.read().leases.values()) == ["", "a"]


def _raise_counter(home: Path, times: int) -> None:
    store = LeaseTable(Settings(home=home))
    for _ in range(times):
        swap(store, lambda snapshot: [row.renewed() for row in snapshot.leases.values()])
    exit_now(0)


def test_no_update_of_four_processes_is_lost(settings: Settings) -> None:
    """Four processes that each raise one counter 15 times leave it at 60."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease()])
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_raise_counter, args=(settings.home, 15)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert next(iter(store.read().leases.values())).lease_counter == 60


def test_an_unknown_outcome_that_was_written_is_not_written_twice() -> None:
    """After a commit whose answer was lost, the next decision sees its own work."""
    outcomes = iter([Outcome.UNKNOWN_WRITTEN, Outcome.OK])
    store = MemoryStore(lambda: next(outcomes))

    def take(snapshot: Snapshot) -> list[Lease]:
        found = list(snapshot.leases.values())
        return [] if found else [lease().given_to("a")]

    assert swap(store, take, sleep=lambda _: None) == []
    assert [(row.lease_owner, row.epoch) for row in store.read().leases.values()] == [("a", 1)]


def test_attempts_wait_longer_and_longer_but_never_long() -> None:
    """The first waits are short and differ, so that writers do not meet again; no wait is longer than half a second."""
    first: list[float] = []
    for _ in range(5):
        slept: list[float] = []
        with pytest.raises(CommitConflictError):
            swap(MemoryStore(lambda: Outcome.CONFLICT), lambda _: [lease()], sleep=slept.append)
        assert len(slept) == ATTEMPTS - 1
        assert 0.05 < max(slept) <= 0.5
        first.append(slept[0])
    assert max(first) <= 0.01
    assert len(set(first)) == 5


def test_who_names_no_way_to_wait_waits_for_real() -> None:
    """A conflict is tried again all the same."""
    outcomes = [Outcome.CONFLICT]
    assert len(swap(MemoryStore(lambda: outcomes.pop() if outcomes else Outcome.OK), lambda _: [lease()])) == 1


def test_a_store_that_does_not_answer_is_asked_once() -> None:
    """Whoever keeps a lease must know at once that it was not renewed."""
    asked: list[Outcome] = []

    def outcome() -> Outcome:
        asked.append(Outcome.FAIL)
        return Outcome.FAIL

    with pytest.raises(StoreUnavailableError):
        swap(MemoryStore(outcome), lambda _: [lease()], sleep=lambda _: None)
    assert len(asked) == 1


def test_what_is_gone_may_be_removed_again() -> None:
    """A removal whose first answer was lost finds nothing to remove."""
    gone, kept = lease(state=REMOVED), lease(status_value="kept")
    assert after({kept.key: kept}, [gone]) == {kept.key: kept}
    assert after({kept.key: kept, gone.key: lease()}, [gone]) == {kept.key: kept}


def test_two_workers_see_leases_in_orders_of_their_own() -> None:
    """Also two leases, and each worker always in the same order."""
    pair = [lease(status_value=name) for name in "ab"]
    orders = {seed: [one.status_value for one in shuffled(pair, seed)] for seed in map(str, range(20))}
    assert sorted(map(tuple, {tuple(order) for order in orders.values()})) == [("a", "b"), ("b", "a")]
    assert orders == {seed: [one.status_value for one in shuffled(reversed(pair), seed)] for seed in orders}


def test_a_writer_remembers_what_a_reader_finds(settings: Settings) -> None:
    """The leases that a client gives back without reading a file are those that another client reads."""
    one = LeaseTable(settings)
    one.commit(one.read(), [lease(checkpoint={7: (1, 2)}, detail={"a": None}), lease(status_value="other")])
    snapshot = one.read()
    assert snapshot.leases == LeaseTable(settings).read().leases
    one.commit(snapshot, [row.renewed(detail={"b": [row.lease_counter]}) for row in snapshot.leases.values()])
    assert one.read().leases == LeaseTable(settings).read().leases


def test_new_json_of_a_lease_that_was_read_is_written(stores: Callable[[], LeaseStore]) -> None:
    """What is remembered of a lease's JSON gives way to what the caller has put there."""
    store = stores()
    store.commit(store.read(), [lease(detail={"list": [1]})])
    snapshot = store.read()
    store.commit(snapshot, [snapshot.leases[lease().key].renewed(detail={"list": [1, 2]})])
    assert stores().read().leases[lease().key].detail == {"list": [1, 2]}


def test_clients_that_take_turns_see_each_other(stores: Callable[[], LeaseStore]) -> None:
    """What a client remembers never hides what another has written."""
    one, two = stores(), stores()
    one.commit(one.read(), [lease(), lease(status_value="other", detail={"x": 1})])
    for number in range(1, 4):
        swap(two, lambda snapshot: [snapshot.leases[lease().key].renewed(lease_owner="two")])
        swap(one, lambda snapshot: [snapshot.leases[lease().key].renewed(lease_owner="one")])
        assert one.read().leases == two.read().leases == stores().read().leases
        assert one.read().leases[lease().key].lease_counter == 2 * number


def test_a_lease_has_no_other_fields() -> None:
    """A change of a field that a lease does not have is refused, and a new name gives a new key."""
    with pytest.raises(TypeError, match="lease_ownr"):
        lease().evolve(lease_ownr="a")
    old = lease()
    assert old.key != old.evolve(status_value="other").key == lease(status_value="other").key


def test_a_row_of_a_newer_schema_is_refused(settings: Settings) -> None:
    """A table that a newer Hindcast has written is refused with the cure, not guessed at; the error tells both schemas and the table."""
    with pytest.raises(SchemaVersionError, match="Upgrade") as refused:
        Lease.from_row({"schema_version": 99}, "the table")
    assert refused.value.fields | {"cure": ""} == {"table": "the table", "found": 99, "supported": SCHEMA_VERSION, "cure": ""}


def test_a_row_without_texts_or_parents_has_empty_ones() -> None:
    """A row that was written by hand, with nulls, is a lease like any other."""
    row = {**lease().__dict__, "schema_version": SCHEMA_VERSION, "checkpoint": None, "detail": "", "parent_shard_ids": None}
    read = Lease.from_row(row, "the table")
    assert (read.checkpoint, read.detail, read.parent_shard_ids) == ({}, {}, [])


def test_a_foreign_table_is_refused(settings: Settings) -> None:
    """A Delta table of other columns in the place of the leases is refused and left alone."""
    url = settings.table("control", "leases")
    write_deltalake(url, pa.table({"x": [1]}))
    with pytest.raises(SchemaVersionError, match="HINDCAST_TABLES_URL"):
        LeaseTable(settings).read()


def test_a_torn_log_is_an_error_that_names_the_table(settings: Settings) -> None:
    """An unreadable commit file is reported, and no version is skipped."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease(lease_owner="a")])
    log = Path(settings.table("control", "leases")) / "_delta_log"
    newest = max(log.glob("*.json"))
    newest.write_text(newest.read_text()[:40])
    with pytest.raises(StoreUnavailableError, match="leases"):
        LeaseTable(settings).read()


def broken(settings: Settings, which: int) -> str:
    """Empty one commit of three; return its name."""
    store = LeaseTable(settings)
    for owner in "abc":
        store.commit(store.read(), [lease(lease_owner=owner)])
    commit = sorted((Path(settings.table("control", "leases")) / "_delta_log").glob("*.json"))[which]
    commit.write_text("")
    return commit.name


def test_an_empty_newest_commit_is_refused(settings: Settings) -> None:
    """What delta-rs would take for a commit that did nothing is reported by its name."""
    name = broken(settings, -1)
    with pytest.raises(StoreUnavailableError, match=name):
        LeaseTable(settings).read()


def test_nothing_is_written_after_an_empty_commit(settings: Settings) -> None:
    """The newest commit has all leases, whatever was before it; but who would write on such a log is refused, and told why."""
    name = broken(settings, -2)
    store = LeaseTable(settings)
    snapshot = store.read()
    assert [found.lease_owner for found in snapshot.leases.values()] == ["c"]
    with pytest.raises(StoreUnavailableError, match=name):
        store.commit(snapshot, [lease(lease_owner="d")])


@pytest.mark.parametrize(("which", "refused"), [(2, False), (4, True)])
def test_only_commits_since_the_last_checkpoint_are_looked_at(settings: Settings, which: int, refused: bool) -> None:
    """An empty commit before the checkpoint harms nobody, as no reader of the newest version reads it; one after it is refused."""
    store = LeaseTable(settings)
    for owner in "abcd":
        store.commit(store.read(), [lease(lease_owner=owner)])
    url = settings.table("control", "leases")
    DeltaTable(url, version=3).create_checkpoint()
    sorted((Path(url) / "_delta_log").glob("*.json"))[which].write_text("")
    if refused:
        with pytest.raises(StoreUnavailableError, match=f"{which:020d}.json"):
            LeaseTable(settings).read()
    else:
        assert [found.lease_owner for found in LeaseTable(settings).leases()] == ["d"]


def test_clients_of_an_object_store_take_turns(settings: Settings) -> None:
    """They cannot follow a log in a folder: Delta's own reader tells each what the other has written."""
    one, two = LeaseTable(settings), LeaseTable(settings)
    one._folder = two._folder = None
    one.commit(one.read(), [lease(), lease(status_value="other")])
    for number in range(1, 4):
        swap(two, lambda snapshot: [snapshot.leases[lease().key].renewed(lease_owner="two")])
        swap(one, lambda snapshot: [snapshot.leases[lease().key].renewed(lease_owner="one")])
        assert one.read() == two.read() == LeaseTable(settings).read()
        assert one.read().leases[lease().key].lease_counter == 2 * number
    stale = two.read()
    swap(one, lambda _: [lease(status_value="third")])
    with pytest.raises(CommitConflictError):
        two.commit(stale, [lease(lease_owner="two")])
    assert len(two.read().leases) == 3


def test_only_readers_make_no_table(settings: Settings) -> None:
    """Where nothing was ever leased there is nothing to read; else the leases come in the order of their keys."""
    assert read_leases(settings) == [] and not LeaseTable(settings).exists()
    assert not Path(settings.table("control", "leases")).exists()
    store = LeaseTable(settings)
    store.commit(store.read(), [lease(status_value=name) for name in "bca"])
    assert store.exists()
    assert [found.status_value for found in read_leases(settings)] == ["a", "b", "c"]
    assert [found.status_value for found in store.leases()] == ["a", "b", "c"]


def test_a_store_of_leases_that_does_not_answer_is_named(settings: Settings) -> None:
    """Whether it is asked for its leases or whether there are any, with the store's own reason."""
    nothing_listens = "http://127.0.0.1:9"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "s", "region": "us-east-1"}
    options = {"aws_endpoint": nothing_listens, "allow_http": "true", "max_retries": "0", **keys}
    store = LeaseTable(settings.model_copy(update={"tables_url": "s3://bucket/tables", "storage_options": options}))
    with pytest.raises(StoreUnavailableError, match=nothing_listens) as caught:
        store.exists()
    assert (caught.value.fields["table"], caught.value.fields["action"]) == ("s3://bucket/tables/control/leases", "read")
    with pytest.raises(StoreUnavailableError, match=nothing_listens):
        store.read()


def test_a_file_that_is_gone_is_an_error_and_no_lease(settings: Settings) -> None:
    """Nobody may think that there are none; once it is back they are read."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease(lease_owner="a")])
    (file,) = Path(settings.table("control", "leases")).glob("*.parquet")
    file.rename(file.with_suffix(".gone"))
    other = LeaseTable(settings)
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        other.read()
    assert caught.value.fields["table"] == settings.table("control", "leases")
    assert caught.value.fields["reason"] is caught.value.__cause__
    file.with_suffix(".gone").rename(file)
    assert other.leases() == store.leases() == [lease(lease_owner="a")]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CommitFailedError("a writer was faster"), CommitConflictError),
        (DeltaError("no answer"), CommitUnknownError),
        (OSError("no answer"), CommitUnknownError),
    ],
)
def test_a_commit_that_fails_is_decided_on_what_the_table_holds(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception, told: type[HindcastError]
) -> None:
    """A conflict has written nothing. What ended without an answer may have landed, as here, and is read, not assumed."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease()])
    commit = DeltaTable.create_write_transaction

    def fails(*arguments: object, **options: object) -> None:
        monkeypatch.undo()
        if told is CommitUnknownError:
            commit(*arguments, **options)
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails)
    with pytest.raises(told) as caught:
        swap(store, lambda snapshot: [row.renewed() for row in snapshot.leases.values()], attempts=1)
    assert caught.value.fields["table"] == settings.table("control", "leases")
    assert told is CommitConflictError or caught.value.fields["reason"] is error
    assert store.leases()[0].lease_counter == (1 if told is CommitUnknownError else 0)
    swap(store, lambda snapshot: [row.renewed(lease_owner="a") for row in snapshot.leases.values()])
    assert LeaseTable(settings).leases() == store.leases()
    assert store.leases()[0].lease_owner == "a"


@pytest.mark.parametrize("follows", [True, False])
def test_rows_of_a_newer_hindcast_are_refused(settings: Settings, follows: bool) -> None:
    """The error names the table, also if the lease was known before."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease()])
    url = settings.table("control", "leases")
    handle = DeltaTable(url)
    rows = [{**row, "schema_version": SCHEMA_VERSION + 1} for row in handle.to_pyarrow_table().to_pylist()]
    write_deltalake(handle, pa.Table.from_pylist(rows, schema=SCHEMAS[ControlTable.LEASES]), mode="overwrite")
    other = LeaseTable(settings)
    for client in (store, other):
        if not follows:
            client._folder = None
        with pytest.raises(SchemaVersionError, match="Upgrade") as refused:
            client.read()
        assert (refused.value.fields["table"], refused.value.fields["found"]) == (url, SCHEMA_VERSION + 1)


def test_what_a_client_has_written_it_reads_no_file_for(settings: Settings) -> None:
    """Not even if somebody has deleted it; and it commits on that version at once."""
    store = LeaseTable(settings)
    store.commit(store.read(), [lease()])
    for file in Path(settings.table("control", "leases")).glob("*.parquet"):
        file.unlink()
    snapshot = store.read()
    assert snapshot.leases == {lease().key: lease()}
    store.commit(snapshot, [lease(lease_owner="a")])
    assert LeaseTable(settings).leases() == [lease(lease_owner="a")]


def test_a_conflict_names_the_table(settings: Settings) -> None:
    """Whether this client has read a newer version since, or another has written one."""
    one, two = LeaseTable(settings), LeaseTable(settings)
    first = one.read()
    one.commit(first, [lease()])
    snapshot = two.read()
    swap(one, lambda _: [lease(lease_owner="a")])
    for client, old in ((one, first), (two, snapshot)):
        with pytest.raises(CommitConflictError) as caught:
            client.commit(old, [lease(lease_owner="b")])
        assert caught.value.fields["table"] == settings.table("control", "leases")
    assert two.leases() == [lease(lease_owner="a")]


def test_a_store_that_does_not_answer_before_a_commit_is_named(settings: Settings) -> None:
    """Nothing is written, and once it answers the same decision lands."""
    one, two = LeaseTable(settings), LeaseTable(settings)
    for client in (one, two, one):
        swap(client, lambda snapshot: [lease(lease_counter=len(snapshot.leases))])
    snapshot = two.read()
    log = Path(settings.table("control", "leases")) / "_delta_log"
    torn = log / f"{snapshot.token + 1:020d}.json"
    torn.write_text("no commit")
    with pytest.raises(StoreUnavailableError, match="could not be read") as caught:
        two.commit(snapshot, [lease(lease_owner="a")])
    assert caught.value.fields["table"] == settings.table("control", "leases")
    assert caught.value.fields["reason"] is caught.value.__cause__
    torn.unlink()
    assert two.leases() == [lease(lease_counter=1)]
    swap(two, lambda _: [lease(lease_owner="a")])
    assert one.leases() == [lease(lease_owner="a")]


def test_each_version_is_one_plain_file(settings: Settings) -> None:
    """Written whole, small and dated; every fifth version has a checkpoint, and no commit waits for old logs to be deleted."""
    store, began = LeaseTable(settings), int(time.time() * 1000)
    told: list[int] = []
    store.upkeep.committed = told.append  # type: ignore[method-assign]
    for number in range(6):
        store.commit(store.read(), [lease(status_value=str(number))])
    assert told == [1, 2, 3, 4, 5, 6]
    folder = Path(settings.table("control", "leases"))
    for version in told:
        actions = [json.loads(line) for line in (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()]
        (added,) = [action["add"] for action in actions if "add" in action]
        file = folder / added["path"]
        assert added["size"] == file.stat().st_size and json.loads(added["stats"]) == {"numRecords": version}
        assert added["dataChange"] and began <= added["modificationTime"] <= time.time() * 1000
        column = pq.ParquetFile(file).metadata.row_group(0).column(0)
        assert (column.compression, column.is_stats_set, set(column.encodings)) == ("LZ4", False, {"PLAIN", "RLE"})
    assert len(DeltaTable(folder).file_uris()) == 1
    assert [path.name for path in (folder / "_delta_log").glob("*.checkpoint.parquet")] == [f"{4:020d}.checkpoint.parquet"]


def test_every_access_to_the_leases_has_the_stores_options(settings: Settings, options_seen: list[Any]) -> None:
    """To the table and to its files, of whoever follows the log and of Delta's own reader."""
    mine = settings.model_copy(update={"storage_options": {"allow_http": "true"}})
    one, two = LeaseTable(mine), LeaseTable(mine)
    two._folder = None
    for store in (one, two, one):
        swap(store, lambda snapshot: [lease(lease_counter=len(snapshot.leases))])
    assert len(read_leases(mine)) == 1
    assert len(options_seen) > 5 and set(map(str, options_seen)) == {"{'allow_http': 'true'}"}
