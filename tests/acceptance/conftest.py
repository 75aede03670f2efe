"""A live stream whose workers the test starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from support.fleet import Fleet, Stream, fleet_settings
from support.live_stream import declare

from hindcast.settings import Settings

if TYPE_CHECKING:
    from conftest import Broker


@pytest.fixture
def stream(broker: Broker, topic: str, settings_factory: Callable[..., Settings]) -> Iterator[Stream]:
    """A topic of four partitions in two shards, and a fleet whose workers the test starts."""
    fleet = Fleet(fleet_settings(settings_factory(), broker.bootstrap_servers))
    declare(fleet.settings, topic, shards=2)
    made = Stream(fleet, topic)
    made.want()
    yield made
    fleet.end()
