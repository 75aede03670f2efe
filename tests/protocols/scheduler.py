"""Who goes on next: threads of simulated processes, of which one runs at a time.

A thread is a greenlet. It runs until it calls :meth:`Scheduler.pause`, which every call of a store and every
step of Spark does. Then the world decides which thread goes on, and how its call ends. So a seed repeats a
history to the step, and a process can be killed between any two of its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Any

import greenlet


class Order(Enum):
    """How the call ends at whose place a thread waits."""

    GO = auto()
    #: The store does not answer, and nothing was done.
    FAIL = auto()
    #: It was done, and the answer is lost.
    LOSE_THE_ANSWER = auto()


class Killed(BaseException):
    """SIGKILL. It is raised at the place where a thread waits, and again at each later one."""


class Process:
    """One simulated process: its threads live and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.asleep = 0  #: for so many more looks of the world
        self.threads: list[Thread] = []

    @property
    def ended(self) -> bool:
        """Whether none of its threads goes on any more."""
        return self.dead or all(thread.ended for thread in self.threads)


class Thread:
    """One thread of a process, and the place where it waits."""

    def __init__(self, process: Process, run: Callable[[], None], hub: greenlet.greenlet) -> None:
        self.process = process
        self.place = "its beginning"
        self.greenlet = greenlet.greenlet(run, parent=hub)
        process.threads.append(self)

    @property
    def ended(self) -> bool:
        return self.greenlet.dead


class Scheduler:
    """All threads of a world."""

    def __init__(self) -> None:
        self._hub = greenlet.getcurrent()
        self._running: Thread | None = None
        self.processes: list[Process] = []

    def process(self, name: str) -> Process:
        made = Process(name)
        self.processes.append(made)
        return made

    def thread(self, process: Process, run: Callable[[], None]) -> Thread:
        """A thread that begins when it is first resumed."""

        def guarded() -> None:
            with suppress(Killed):
                run()

        return Thread(process, guarded, self._hub)

    @property
    def current(self) -> Thread | None:
        """The thread that runs; None while the world itself does."""
        return self._running

    def waiting(self) -> list[Thread]:
        """The threads that can go on. Processes that have ended are forgotten."""
        self.processes = [process for process in self.processes if not process.ended]
        found = []
        for process in self.processes:
            if process.asleep:
                process.asleep -= 1
            else:
                found += [thread for thread in process.threads if not thread.ended]
        return found

    def pause(self, place: str) -> Order:
        """Let others go on until the world resumes this thread.

        :param place: where the thread is, for people
        :raises Killed: if the process was killed meanwhile
        """
        thread = self._running
        if thread is None:
            return Order.GO
        if thread.process.dead:
            raise Killed
        thread.place = place
        order: Order = self._hub.switch()
        return order

    def resume(self, thread: Thread, order: Order = Order.GO) -> None:
        """Let a thread go on until its next pause.

        :raises Exception: whatever ends the thread
        """
        self._running = thread
        try:
            if thread.greenlet.gr_frame is None and not thread.greenlet.dead:
                thread.greenlet.switch()
            else:
                thread.greenlet.switch(order)
        finally:
            self._running = None

    def kill(self, process: Process) -> None:
        """Let no thread of the process take another step."""
        process.dead = True
        for thread in process.threads:
            if thread.ended:
                continue
            self._running = thread
            try:
                with suppress(Killed):  # that of a thread that had not begun
                    thread.greenlet.throw(Killed)
            finally:
                self._running = None

    def call(self, place: str, effect: Callable[[], Any], failure: Callable[[str], Exception]) -> Any:
        """One call of a store: it may be delayed, fail, or lose its answer.

        :param failure: makes the error that a caller sees, from a reason
        """
        if self.pause(place) is Order.FAIL:
            raise failure("the simulation said so")
        result = effect()
        if self.pause(f"{place}, done") is Order.LOSE_THE_ANSWER:
            raise failure("the simulation lost the answer")
        return result
