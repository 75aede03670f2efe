"""A death at a crash point that a test survives: an exception takes the place of the signal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hindcast.processes import crash_points


class CrashError(Exception):
    """Stands in for SIGKILL inside this process: nothing after it runs."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: str, time: int) -> None:
    """Die when the step is reached for the given time; an empty step ends that."""

    def die(*_: object) -> None:
        raise CrashError(step)

    monkeypatch.setattr(crash_points, "_step", step)
    monkeypatch.setattr(crash_points, "_count", str(time))
    monkeypatch.setattr(crash_points.os, "kill", die)
    crash_points._reached.clear()


def die_before(monkeypatch: pytest.MonkeyPatch, step: str, action: Callable[[], Any]) -> None:
    """Do it and die before the step."""
    crash_at(monkeypatch, step, 1)
    with pytest.raises(CrashError):
        action()
    crash_at(monkeypatch, "", 1)
