"""The triggers of a reprocessing: one waits until a new version has caught up, one watches a promoted
version.

Their events are ``{"news": ...}`` with what belongs to it.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import structlog

from hindcast.airflow.deferred_trigger import DeferredTrigger
from hindcast.errors import HindcastError
from hindcast.installation import Installation
from hindcast.shards import resharding
from hindcast.shards.pipeline_row import InactiveState
from hindcast.shards.shard_row import ShardDetail
from hindcast.shards.version_changes import Versions
from hindcast.tables.table_names import ControlTable

#: Between two reads of the tables: at first, and at most. Catching up takes minutes to days.
FIRST_WAIT_SECONDS = 1.0
MOST_WAIT_SECONDS = 20.0

_log = structlog.get_logger(__name__)


class News(StrEnum):
    """What ends a wait."""

    LIVE = "live"  # the version has caught up
    GONE = "gone"  # it is not, or no longer, a shadow
    FAILED = "failed"  # a verdict of the promoted version failed
    INACTIVE = "inactive"  # another version was made active
    OVER = "over"  # the watch lasted its whole time


def look_at_shadow(installation: Installation, pipeline: str, version: int) -> dict[str, Any] | None:
    """The news of a shadow; None while it catches up.

    :returns: {news: live, since: the id of the change that made it live} or {news: gone}
    """
    store = installation.lease_table
    rollout = Versions(store).of(pipeline)
    beside = rollout.beside
    if beside is None or beside.version != version:
        return {"news": News.GONE.value}
    if beside.leaving or beside.state is InactiveState.WARM:
        return {"news": News.GONE.value}
    if beside.state is InactiveState.LIVE:
        assert rollout.change is not None
        return {"news": News.LIVE.value, "since": rollout.change.id}

    lag = 0
    held = 0
    for lease in resharding.newest_of_version(store.leases(), pipeline, version):
        lag += ShardDetail.of(lease).lag_records or 0
        if lease.lease_owner:
            held += 1
    _log.info(f"Version {version} of {pipeline} catches up.", lag_records=lag, held=held)
    return None


def look_at_promoted(
    installation: Installation, pipeline: str, version: int, since: int, until: datetime
) -> dict[str, Any] | None:
    """The news of a promoted version; None while it is active, none of its verdicts failed, and time is left.

    :param since: the number of the pipeline's change that promoted it; only verdicts begun since then count
    :param until: when the watch ends, by this host's clock
    :returns: {news: inactive}, {news: failed, run_id, unexplained} or {news: over, verdicts: how many it had}
    """
    if Versions(installation.lease_table).of(pipeline).active != version:
        return {"news": News.INACTIVE.value}
    now = datetime.now(UTC)  # before the read: a verdict that comes after it belongs to the next poll
    conditions: list[tuple[str, str, Any]] = [
        ("pipeline", "=", pipeline),
        ("version", "=", version),
        ("change", ">=", since),
    ]
    verdicts = installation.tables.rows(ControlTable.VERDICTS, conditions)
    verdicts.sort(key=lambda row: row["number"])
    for row in verdicts:
        if not row["passed"]:
            return {"news": News.FAILED.value, "run_id": row["run_id"], "unexplained": row["unexplained"]}
    if now >= until:
        return {"news": News.OVER.value, "verdicts": len(verdicts)}
    return None


class _VersionTrigger(DeferredTrigger):
    def __init__(self, pipeline: str, version: int) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.version = version

    def arguments(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "version": self.version}

    @abstractmethod
    def look(self) -> dict[str, Any] | None:
        """The news; None while there is none. Each poll calls it, in a thread."""

    async def wait(self) -> dict[str, Any]:
        wait = FIRST_WAIT_SECONDS
        while True:
            news = None
            try:
                news = await asyncio.to_thread(self.look)
            except (HindcastError, OSError) as error:  # a store that is away says nothing about the version
                _log.warning("The version cannot be read just now; the trigger retries.", reason=str(error))
            if news is not None:
                return news
            await asyncio.sleep(wait)
            wait = min(wait * 2, MOST_WAIT_SECONDS)


class ShadowTrigger(_VersionTrigger):
    """Fires once the shadow has caught up or is no longer a shadow."""

    def look(self) -> dict[str, Any] | None:
        return look_at_shadow(Installation(), self.pipeline, self.version)


class PromotedTrigger(_VersionTrigger):
    """Fires once a verdict of the promoted version failed, it is no longer active, or the watch is over.

    :param since: the number of the change that promoted it
    :param until: when the watch ends, ISO 8601
    """

    def __init__(self, pipeline: str, version: int, since: int, until: str) -> None:
        super().__init__(pipeline, version)
        self.since = since
        self.until = until

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "since": self.since, "until": self.until}

    def look(self) -> dict[str, Any] | None:
        until = datetime.fromisoformat(self.until)
        return look_at_promoted(Installation(), self.pipeline, self.version, self.since, until)
