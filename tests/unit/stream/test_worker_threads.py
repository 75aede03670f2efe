"""A thread of a worker that fails ends the process, though its main thread is stuck."""

from __future__ import annotations

import sys
import threading

import pytest

from hindcast.stream import worker_threads
from hindcast.stream.worker_threads import STUCK_SECONDS, WorkerThreads
from hindcast.testing import FakeClock

WAIT_SECONDS = 30.0


def _broken() -> None:
    raise TypeError("this was not thought of")


def test_a_thread_that_fails_ends_the_process_though_the_main_thread_is_stuck(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits as long as a main thread may take to come round, and then for nothing. What is said of it may
    fail as well.
    """
    ended = threading.Event()
    codes: list[int] = []
    said: list[str] = []

    def leave(code: int) -> None:
        codes.append(code)
        ended.set()

    def say(thread: str, error: Exception) -> None:
        said.append(f"{thread}: {error}")

    monkeypatch.setattr(worker_threads, "exit_now", leave)
    monkeypatch.setattr(worker_threads, "STUCK_SECONDS", 0.05)
    WorkerThreads(clock, say).start("audit", _broken)
    assert ended.wait(WAIT_SECONDS)
    assert codes == [1]
    assert said == ["audit: this was not thought of"]


def test_the_main_thread_learns_which_thread_has_failed(clock: FakeClock) -> None:
    """It is woken, and raises the same error."""
    said: list[object] = []
    threads = WorkerThreads(clock, lambda *words: said.append(words))
    threads.raise_failure()
    threads.start("renewal", _broken)
    assert threads.woken.wait(WAIT_SECONDS)
    with pytest.raises(TypeError, match="not thought of") as raised:
        threads.raise_failure()
    threads.ended.set()
    assert threads.failed_thread(raised.value) == "renewal"
    assert threads.failed_thread(TypeError("this was not thought of")) == "main"
    assert not said


def test_a_thread_that_exits_or_panics_has_failed(clock: FakeClock) -> None:
    """Neither is an Exception. Without its renewal thread a worker would own nothing and keep its slot."""
    threads = WorkerThreads(clock, lambda *_: None)
    threads.start("renewal", lambda: sys.exit("no more"))
    assert threads.woken.wait(WAIT_SECONDS)
    with pytest.raises(SystemExit, match="no more"):
        threads.raise_failure()
    threads.ended.set()


def test_a_main_thread_that_does_not_come_round_is_stuck(clock: FakeClock) -> None:
    """It counts from the last time it came round; the first counts from the worker's start."""
    clock.advance(100)
    threads = WorkerThreads(clock, lambda *_: None)
    assert not threads.main_is_stuck(clock.monotonic())
    clock.advance(STUCK_SECONDS)
    assert not threads.main_is_stuck(clock.monotonic())
    clock.advance(1)
    assert threads.main_is_stuck(clock.monotonic())
    threads.come_round()
    assert not threads.main_is_stuck(clock.monotonic())


def test_a_signal_wakes_the_main_thread_and_stops_the_worker(clock: FakeClock) -> None:
    """It need not wait for its next tick."""
    threads = WorkerThreads(clock, lambda *_: None)
    threads.ask_to_stop(15, None)
    assert threads.stop.is_set()
    assert threads.woken.is_set()
    assert not threads.ended.is_set()
