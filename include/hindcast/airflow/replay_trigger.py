"""The trigger behind which a replay waits for its stream."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import structlog

from hindcast.airflow.deferred_trigger import DeferredTrigger
from hindcast.errors import HindcastError
from hindcast.installation import Installation
from hindcast.replay.wait_for_stream import Awaited, Progress, read_progress

#: Between two reads of the tables: at first, and at most.
FIRST_WAIT_SECONDS = 2.0
MOST_WAIT_SECONDS = 30.0

_log = structlog.get_logger(__name__)


class Wait(StrEnum):
    """What ends a wait."""

    MET = "met"  # the stream is far enough, as its tables say
    OVER = "over"  # the limit came first


class ConsumedTrigger(DeferredTrigger):
    """Fires once the stream has what a replay waits for, or at the limit.

    Its event is JSON: {wait: met or over, paused: whether the pipeline is paused, text: how far it is}.

    :param awaited: :meth:`hindcast.replay.wait_for_stream.Awaited.to_json`
    :param until: the limit, ISO 8601
    :param tries: how often this replay has waited before. Each time the first read comes later: the trigger
        may call a wait met although the replay disagrees, and such a wait must cost little
    """

    def __init__(self, awaited: dict[str, Any], until: str, tries: int = 0) -> None:
        super().__init__()
        self.awaited = awaited
        self.until = until
        self.tries = tries

    def arguments(self) -> dict[str, Any]:
        return {"awaited": self.awaited, "until": self.until, "tries": self.tries}

    async def wait(self) -> dict[str, Any]:
        awaited = Awaited.from_json(self.awaited)
        until = datetime.fromisoformat(self.until)
        wait = min(FIRST_WAIT_SECONDS * 2.0**self.tries, MOST_WAIT_SECONDS)
        last_said = ""
        progress = Progress(met=False, paused=False, text="nothing is known of the stream yet")
        while True:
            left = (until - datetime.now(UTC)).total_seconds()
            await asyncio.sleep(max(min(wait, left), 0.0))
            try:
                progress = await asyncio.to_thread(read_progress, Installation(), awaited)
            except (HindcastError, OSError) as error:  # a store that is away says nothing about the stream
                _log.warning("The stream cannot be read just now; the trigger retries.", reason=str(error))
            if progress.met:
                return _event(Wait.MET, progress)
            if datetime.now(UTC) >= until:
                return _event(Wait.OVER, progress)
            said = _status(awaited.pipeline, progress)
            if said != last_said:
                _log.info(said, until=self.until)
            last_said = said
            wait = min(wait * 2, MOST_WAIT_SECONDS)


def _event(wait: Wait, progress: Progress) -> dict[str, Any]:
    return {"wait": wait.value, "paused": progress.paused, "text": progress.text}


def _status(pipeline: str, progress: Progress) -> str:
    """The line of the log that says how far the stream is."""
    said = f"Waiting for the stream of {pipeline}: {progress.text}."
    if progress.paused:
        said += f" It is paused; `hindcast resume {pipeline}` resumes it."
    return said
