"""Keepers on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hindcast.control.keeper import Keeper
from hindcast.control.store import LeaseStore
from hindcast.testing import FakeClock, MemoryStore

LEASE = 10.0
Make = Callable[..., Keeper]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def keeper(store: MemoryStore, clock: FakeClock) -> Make:
    """Make a keeper that has a slot."""

    def make(
        owner: str,
        *,
        of: LeaseStore | None = None,
        slots: int = 4,
        wanted: Callable[..., bool] = lambda *_: True,
        slot: bool = True,
        identity: dict[str, object] | None = None,
        **options: Any,
    ) -> Keeper:
        made = Keeper(
            of or store,
            clock,
            owner=owner,
            fleet="f",
            slots=slots,
            lease_seconds=LEASE,
            wanted=wanted,
            identity=identity,
            sleep=lambda _: None,
            **options,
        )
        if slot:
            assert made.acquire_slot(clock.advance)
        return made

    return make
