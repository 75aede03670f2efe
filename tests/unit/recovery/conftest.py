"""A paused pipeline of a test's own."""

from __future__ import annotations

import pytest
from support.paused_pipeline import Paused, paused_pipeline

from hindcast.recovery import plan_rewind
from hindcast.settings import Settings


@pytest.fixture
def paused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Paused:
    """A pipeline of two shards that has streamed, and is paused."""
    made = paused_pipeline(settings)
    monkeypatch.setattr(plan_rewind, "TopicOffsets", made.broker.connection())
    return made
