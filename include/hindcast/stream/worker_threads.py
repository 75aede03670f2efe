"""The threads of one worker: how they wake and stop each other, and what happens if one fails or is stuck.

If a thread fails the process ends. Without renewal the worker would own nothing, without audit nothing would
be filed, and it would keep its slot from a whole worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from hindcast.clock import Clock
from hindcast.processes.end_with_parent import exit_now

#: A main thread that has not come round for so long is stuck (a JVM that is stopped or dead): renewing for it
#: would keep its shards from workers that can consume them. Starting Spark and taking a shard over stay well
#: below it.
STUCK_SECONDS = 60.0


class WorkerThreads:
    """What the threads of one worker know of each other. Safe for threads.

    The main thread starts the others, and it is the one that ends the worker.
    """

    def __init__(self, clock: Clock, say_that_it_failed: Callable[[str, BaseException], object]) -> None:
        """:param say_that_it_failed: is given a thread's name and its error, if the main thread is stuck"""
        self.stop = threading.Event()  # the worker is to stop
        self.ended = threading.Event()  # the main thread serves no longer, so the others end
        self.woken = threading.Event()  # the main thread need not wait for its next tick
        self._clock = clock
        self._say_that_it_failed = say_that_it_failed
        self.came_round_at = clock.monotonic()
        self._failure: BaseException | None = None  # what ended another thread than the main one, and which:
        self._failed_thread = ""

    def come_round(self) -> None:
        """The main thread says that it is not stuck."""
        self.came_round_at = self._clock.monotonic()

    def main_is_stuck(self, now: float) -> bool:
        """Whether the main thread has not come round for too long. The renewal thread asks."""
        return now - self.came_round_at > STUCK_SECONDS

    def ask_to_stop(self, *_: object) -> None:
        """Let the main thread stop the worker. It is the handler of SIGTERM and SIGINT."""
        self.stop.set()
        self.woken.set()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Run it in a thread.

        If it fails, the main thread ends the worker. If that is stuck, this thread does.
        """

        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - no other code would see it; delta-rs panics with one
                self._failed_thread = name
                self._failure = error
                self.woken.set()
                if not self.ended.wait(STUCK_SECONDS):
                    try:
                        self._say_that_it_failed(name, error)
                    finally:
                        exit_now(1)

        threading.Thread(target=guarded, name=name, daemon=True).start()

    def raise_failure(self) -> None:
        """The main thread asks whether another thread has failed.

        :raises BaseException: what ended the other thread
        """
        if self._failure is not None:
            raise self._failure

    def failed_thread(self, error: BaseException) -> str:
        """Which thread an error that has reached the main thread comes from."""
        if error is self._failure:
            return self._failed_thread
        return "main"
