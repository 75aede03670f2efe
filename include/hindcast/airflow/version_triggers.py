"""The triggers behind which a reprocessing waits: until a new version has caught up, and while a promoted one is watched.

They only read tables and never write one, so one may run twice at once and be stopped at any moment. Their news is JSON:
``{"news": ...}`` with what belongs to it.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import structlog
from airflow.triggers.base import BaseTrigger, TriggerEvent

from hindcast.control import shards
from hindcast.control.lease_table import LeaseTable
from hindcast.control.schema import ControlTable
from hindcast.control.standing import BesideState
from hindcast.control.tables import ControlTables
from hindcast.control.versions import Versions
from hindcast.errors import HindcastError
from hindcast.settings import Settings

#: From one look at the tables to the next: at first, and at most. Catching up takes minutes to days.
FIRST_WAIT_SECONDS = 1.0
MOST_WAIT_SECONDS = 20.0

_log = structlog.get_logger(__name__)


class News(StrEnum):
    """What ends a wait."""

    LIVE = "live"  # the version has caught up
    GONE = "gone"  # it is no shadow (any more)
    FAILED = "failed"  # a verdict of the promoted version failed
    INACTIVE = "inactive"  # somebody returned to another version
    OVER = "over"  # it was watched for the whole time


def look_at_shadow(settings: Settings, pipeline: str, version: int) -> dict[str, Any] | None:
    """None while the version beside the active one catches up.

    :returns: {news: live, since: the id of the change since which it is} or {news: gone}
    """
    store = LeaseTable(settings)
    standing = Versions(store).of(pipeline)
    beside = standing.beside
    if beside is None or beside.version != version or beside.leaving or beside.state is BesideState.WARM:
        return {"news": News.GONE.value}
    if beside.state is BesideState.LIVE:
        assert standing.change is not None
        return {"news": News.LIVE.value, "since": standing.change.id}
    own = shards.newest_of_version(store.leases(), pipeline, version)
    lag = sum(int(lease.detail.get("lag_records") or 0) for lease in own)
    _log.info(f"Version {version} of {pipeline} catches up.", lag_records=lag, held=sum(bool(lease.lease_owner) for lease in own))
    return None


def look_at_promoted(settings: Settings, pipeline: str, version: int, since: int, until: datetime) -> dict[str, Any] | None:
    """None while the version is active, none of its verdicts failed that were begun since the pipeline's change number ``since``, and
    ``until`` has not come by this host's clock.

    :returns: {news: inactive}, {news: failed, run_id, unexplained} or {news: over, verdicts: how many it had}
    """
    if Versions(LeaseTable(settings)).of(pipeline).active != version:
        return {"news": News.INACTIVE.value}
    now = datetime.now(UTC)
    where: list[tuple[str, str, Any]] = [("pipeline", "=", pipeline), ("version", "=", version), ("change", ">=", since)]
    verdicts = sorted(ControlTables(settings).rows(ControlTable.VERDICTS, where), key=lambda row: row["number"])
    failed = next((row for row in verdicts if not row["passed"]), None)
    if failed is not None:
        return {"news": News.FAILED.value, "run_id": failed["run_id"], "unexplained": failed["unexplained"]}
    return {"news": News.OVER.value, "verdicts": len(verdicts)} if now >= until else None


class _VersionTrigger(BaseTrigger):
    def __init__(self, pipeline: str, version: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.version = version

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", self.arguments()

    def arguments(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "version": self.version}

    @abstractmethod
    def look(self) -> dict[str, Any] | None:
        """The news; None while there is none. Called in a thread, again and again."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                news = await asyncio.to_thread(self.look)
            except (HindcastError, OSError) as error:  # a store that is away is no news of the version
                _log.warning("The version cannot be seen just now; looking again.", reason=str(error))
                news = None
            if news is not None:
                yield TriggerEvent(news)
                return
            await asyncio.sleep(wait)
            wait = min(wait * 2, MOST_WAIT_SECONDS)


class ShadowTrigger(_VersionTrigger):
    """Fires once the version beside the active one has caught up, or is not there any more."""

    def look(self) -> dict[str, Any] | None:
        return look_at_shadow(Settings(), self.pipeline, self.version)


class PromotedTrigger(_VersionTrigger):
    """Fires once a verdict of the promoted version failed, it is active no more, or the time is over.

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
        return look_at_promoted(Settings(), self.pipeline, self.version, self.since, until)
