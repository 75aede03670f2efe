"""Parts of Airflow without its processes."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nothing_is_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of a task has to end before a trigger may fire."""
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "0")
