"""What a worker's serving thread does: bring served tables up to what readers get, every few seconds.

The worker that runs the shard with a pipeline's first partition does it. If two take themselves for that, or
none does for a while, nothing is lost: each pass makes the table right
(:mod:`hindcast.serving.served_table`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from hindcast.errors import BadInputError, HindcastError, ServedTableRefusedError, UnknownVersionError
from hindcast.installation import Installation
from hindcast.serving.served_table import ServedTable, is_served
from hindcast.settings import Settings
from hindcast.stream.running_shard import RunningShard
from hindcast.stream.warn_once import WarnOnce
from hindcast.stream.worker_threads import WorkerThreads
from hindcast.tables.event_log import EventKind

_log = structlog.get_logger(__name__)

_FIRST_PARTITION = 0


class ServedLoop:
    """Publishes the served tables of one worker's pipelines. Its serving thread calls it."""

    def __init__(
        self,
        settings: Settings,
        running: Callable[[], Iterable[RunningShard]],
        threads: WorkerThreads,
        warnings: WarnOnce,
    ) -> None:
        """:param running: the shards whose queries were started"""
        self._settings = settings
        self._running = running
        self._threads = threads
        self._warnings = warnings
        self._installation = Installation(settings)
        self._tables: dict[str, ServedTable] = {}

    def run(self) -> None:
        """Publish until the worker has ended."""
        while not self._threads.ended.wait(self._settings.served_seconds):
            self.publish()

    def publish(self) -> None:
        """Publish what has changed. A failure is left to the next pass."""
        for pipeline in sorted(self._pipelines()):
            if not is_served(self._installation.catalog, pipeline):
                continue
            if pipeline not in self._tables:
                self._tables[pipeline] = ServedTable(self._installation, pipeline)
            try:
                self._tables[pipeline].publish()
            except UnknownVersionError:
                # Its file was deployed after this process had read them.
                self._read_files_again()
            except ServedTableRefusedError as error:
                kind = EventKind.SERVED_TABLE_REFUSED
                cure = "Correct it; the table is brought up to date within seconds."
                self._warnings.record(kind, str(error), cure, pipeline, case=str(error))
            except BadInputError:
                continue  # it has no results yet
            except HindcastError as error:
                message = "A served table was not brought up to date; the next look does it."
                _log.warning(message, pipeline=pipeline, reason=str(error))

    def _pipelines(self) -> set[str]:
        """The pipelines whose first partition this worker reads."""
        return {
            shard.runner.lease.key.stream_id
            for shard in self._running()
            if _FIRST_PARTITION in shard.runner.end_offsets
        }

    def _read_files_again(self) -> None:
        self._installation = Installation(self._settings)
        self._tables.clear()
