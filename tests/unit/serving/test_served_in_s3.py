"""The served table in an object store: conditional puts, whatever the store answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from support.s3_server import Fault, S3Server, s3_server
from support.served_world import World

from hindcast.errors import StoreUnavailableError
from hindcast.serving import served_table
from hindcast.settings import Settings


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as made:
        yield made


@pytest.fixture
def world(settings: Settings, store: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    options = {**store.options, "max_retries": "2", "backoff_config.init_backoff": "10ms"}
    folder = {"tables_url": store.folder(uuid.uuid4().hex), "storage_options": options}
    made = World(settings.model_copy(update=folder))
    monkeypatch.setattr(served_table, "newest", made.newest)
    yield made
    store.fail()


def history(world: World) -> Iterator[None]:
    """Something of all that can happen, step by step."""
    world.append(1, [1, 2, 3])
    world.append(1, [4])
    yield
    world.append(2, [3, 4, 5], 7)
    world.join(1)
    world.correct(1, 1, 2, 3)
    yield
    world.promote(3)
    yield


def test_files_are_copied(world: World) -> None:
    """There are no links in a store."""
    for _ in history(world):
        world.publisher().publish()
        world.check()


@pytest.mark.parametrize("done", [False, True], ids=["before it was written", "after it was written"])
@pytest.mark.parametrize("status", [409, 412, 500, 503])
def test_a_commit_that_fails(world: World, store: S3Server, status: int, *, done: bool) -> None:
    """It is tried again, and whatever had landed stays as it is."""
    for _ in history(world):
        store.fail(Fault(status, "PUT", ("/served/", "/_delta_log/", ".json"), done=done, times=2))
        publisher = world.publisher()
        try:
            publisher.publish()
        except StoreUnavailableError:
            store.fail()
            publisher.publish()
        world.check()
