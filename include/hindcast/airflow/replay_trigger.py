"""The trigger behind which a replay waits for a stream that is behind. It only reads tables, so it may run twice and stop at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import structlog
from airflow.triggers.base import BaseTrigger, TriggerEvent

from hindcast.errors import HindcastError
from hindcast.replay.awaited import Awaited, Progress, look
from hindcast.settings import Settings

#: From one look at the tables to the next: at first, and at most.
FIRST_WAIT_SECONDS = 2.0
MOST_WAIT_SECONDS = 30.0

_log = structlog.get_logger(__name__)


class Wait(StrEnum):
    """What ends a wait."""

    MET = "met"  # the stream is far enough, as its tables say
    OVER = "over"  # the limit came first


class ConsumedTrigger(BaseTrigger):
    """Fires once the stream has what a replay waits for, or at the limit.

    Its event is JSON: {wait: met or over, paused: whether the pipeline is paused, text: how far it is}.

    :param awaited: :meth:`hindcast.replay.awaited.Awaited.to_json`
    :param until: the limit, ISO 8601
    :param tries: how often this replay has waited before; each time the first look comes later, so that a wait that the replay
        itself does not find met costs little
    """

    def __init__(self, awaited: dict[str, Any], until: str, tries: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.awaited = awaited
        self.until = until
        self.tries = tries

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"awaited": self.awaited, "until": self.until, "tries": self.tries}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        awaited, until = Awaited.from_json(self.awaited), datetime.fromisoformat(self.until)
        wait = min(FIRST_WAIT_SECONDS * 2.0**self.tries, MOST_WAIT_SECONDS)
        told = ""
        progress = Progress(met=False, paused=False, text="nothing is known of the stream yet")
        while True:
            left = (until - datetime.now(UTC)).total_seconds()
            await asyncio.sleep(max(min(wait, left), 0.0))
            try:
                progress = await asyncio.to_thread(look, Settings(), awaited)
            except (HindcastError, OSError) as error:  # a store that is away is no news of the stream
                _log.warning("The stream cannot be seen just now; looking again.", reason=str(error))
            if progress.met:
                yield TriggerEvent({"wait": Wait.MET.value, "paused": progress.paused, "text": progress.text})
                return
            if datetime.now(UTC) >= until:
                yield TriggerEvent({"wait": Wait.OVER.value, "paused": progress.paused, "text": progress.text})
                return
            said = f"Waiting for the stream of {awaited.pipeline}: {progress.text}."
            if progress.paused:
                said += f" It is paused: `hindcast resume {awaited.pipeline}` lets it go on."
            if said != told:
                _log.info(said, until=self.until)
            told = said
            wait = min(wait * 2, MOST_WAIT_SECONDS)
