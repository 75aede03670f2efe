"""One real worker that is given far more shards than it can start in the time of a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from support.fleet import Fleet, Stream, feed, fleet_settings
from support.live_stream import declare
from support.waiting import wait_until

from hindcast.leases.lease import StatusType
from hindcast.settings import Settings

if TYPE_CHECKING:
    from conftest import Broker

PIPELINES, SHARDS_EACH = 6, 4
#: Practice for six queries and the starts of 24, on a busy machine of two cores.
SETTLING_SECONDS = 420.0


def test_24_shards_on_one_worker_are_each_taken_once(
    broker: Broker, topic: str, settings_factory: Callable[..., Settings]
) -> None:
    """With a lease of 3 s their starts take many leases. None is lost, all are read to the end, and a stop
    gives all of them back.
    """
    fleet = Fleet(fleet_settings(settings_factory(), broker.bootstrap_servers))
    try:
        names = [f"stock_stats_{number}" for number in range(PIPELINES)]
        for name in names:
            declare(fleet.settings, topic, shards=SHARDS_EACH, name=name)
        streams = [Stream(fleet, topic, name) for name in names]
        for stream in streams:
            stream.want()
        (records,) = feed(1)
        streams[0].send(records)
        one = fleet.start()
        for stream in streams:
            stream.sent = records
            stream.wait_read(SETTLING_SECONDS)
        shards = fleet.leases(StatusType.SHARD)
        assert len(shards) == PIPELINES * SHARDS_EACH
        assert {lease.lease_owner for lease in shards} == {fleet.id_of(one)}
        assert {lease.epoch for lease in shards} == {1}
        assert "lease_lost" not in {row["kind"] for row in fleet.events()}
        one.terminate()
        wait_until(lambda: one.poll() is not None, SETTLING_SECONDS, "the worker has stopped")
        assert one.returncode == 0
        assert {lease.lease_owner for lease in fleet.leases(StatusType.SHARD)} == {""}
    finally:
        fleet.end()
