"""The table of leases in an object store: a conditional put decides who has committed, whatever the store
answers.
"""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.s3_server import Fault, S3Server, s3_server

from hindcast.errors import CommitConflictError, CommitUnknownError, StoreUnavailableError
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.leases.store import Snapshot, swap
from hindcast.processes.end_with_parent import exit_now
from hindcast.settings import Settings

#: What is in the path of a commit.
COMMIT = ("/_delta_log/", ".json")
KEY = LeaseKey("trades", "shard", "v1.g0.s0")


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with s3_server() as made:
        yield made


@pytest.fixture
def store(running: S3Server) -> Iterator[S3Server]:
    yield running
    running.fail()


@pytest.fixture
def settings_in_s3(settings: Settings, store: S3Server) -> Settings:
    options = {**store.options, "max_retries": "2", "backoff_config.init_backoff": "10ms"}
    return settings.model_copy(
        update={"tables_url": store.folder(uuid.uuid4().hex), "storage_options": options}
    )


def lease() -> Lease:
    return Lease(stream_id=KEY[0], status_type=StatusType.SHARD, status_value=KEY[2])


def taken_by(owner: str) -> Lease:
    return replace(lease(), lease_owner=owner, lease_counter=1)


def _raise_counter(settings: Settings, times: int) -> None:
    leases = LeaseTable(settings)
    for _ in range(times):
        swap(leases, lambda snapshot: [row.renewed() for row in snapshot.leases.values()], attempts=100)
    exit_now(0)


def test_no_update_of_four_processes_is_lost(settings_in_s3: Settings) -> None:
    """Four processes that each raise one counter three times leave it at 12."""
    leases = LeaseTable(settings_in_s3)
    leases.commit(leases.read(), [lease()])
    context = multiprocessing.get_context("spawn")
    arguments = (settings_in_s3, 3)
    processes = [context.Process(target=_raise_counter, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert leases.read().leases[KEY].lease_counter == 12


@pytest.mark.parametrize("done", [False, True], ids=["before it was written", "after it was written"])
@pytest.mark.parametrize("status", [409, 412, 500, 503])
def test_a_put_that_fails_once_is_no_second_commit(
    settings_in_s3: Settings, store: S3Server, status: int, done: bool
) -> None:
    """It may have been written or not: who reads again sees which, and the lease has one owner and one count."""
    leases = LeaseTable(settings_in_s3)
    leases.commit(leases.read(), [lease()])
    before = store.requests()["PUT"]
    store.fail(Fault(status, "PUT", COMMIT, done=done))

    def take(snapshot: Snapshot) -> list[Lease]:
        held = snapshot.leases[KEY]
        return [] if held.lease_owner == "me" else [replace(held, lease_owner="me", lease_counter=1)]

    swap(leases, take)
    assert store.requests()["PUT"] > before
    found = LeaseTable(settings_in_s3).read().leases[KEY]
    assert (found.lease_owner, found.lease_counter) == ("me", 1)


def test_a_commit_whose_answer_was_lost_is_never_called_done_by_another(
    settings_in_s3: Settings, store: S3Server
) -> None:
    """Two ask for one lease. The first one's put is written, and answered with an error: the second one's must not be."""
    one, other = LeaseTable(settings_in_s3), LeaseTable(settings_in_s3)
    one.commit(one.read(), [lease()])
    seen = one.read(), other.read()
    store.fail(Fault(503, "PUT", COMMIT, done=True, times=-1))
    with pytest.raises((CommitConflictError, CommitUnknownError)):
        one.commit(seen[0], [taken_by("one")])
    store.fail()
    with pytest.raises(CommitConflictError):
        other.commit(seen[1], [taken_by("other")])
    assert LeaseTable(settings_in_s3).read().leases[KEY].lease_owner == "one"


def test_a_store_that_is_throttled_or_away_is_said_to_be(settings_in_s3: Settings, store: S3Server) -> None:
    """And nothing is written."""
    leases = LeaseTable(settings_in_s3)
    leases.commit(leases.read(), [lease()])
    snapshot = leases.read()
    store.fail(Fault(503, times=-1))
    with pytest.raises((CommitUnknownError, StoreUnavailableError)):
        leases.commit(snapshot, [taken_by("me")])
    with pytest.raises(StoreUnavailableError):
        LeaseTable(settings_in_s3).read()
    store.fail()
    assert LeaseTable(settings_in_s3).read().leases[KEY].lease_owner == ""


def test_a_poll_asks_once(settings_in_s3: Settings, store: S3Server) -> None:
    """For the entry that would come next. It finds what another has written, also after several commits."""
    one, other = LeaseTable(settings_in_s3), LeaseTable(settings_in_s3)
    one.commit(one.read(), [lease()])
    other.read()
    before = sum(store.requests().values())
    for _ in range(5):
        assert other.read().leases[KEY].lease_counter == 0
    assert sum(store.requests().values()) == before + 5
    for _ in range(3):
        swap(one, lambda snapshot: [row.renewed() for row in snapshot.leases.values()])
    assert other.read().leases[KEY].lease_counter == 3
    swap(other, lambda snapshot: [row.renewed() for row in snapshot.leases.values()])
    assert one.read().leases[KEY].lease_counter == 4
