"""A pipeline of one topic, declared with or without a window; its function is never run."""

from __future__ import annotations

from typing import Any

from hindcast import Mode, Table, Topic, Window, pipeline
from hindcast.pipeline import Pipeline


def trades_stats(window: Window | None, *, re_execute: bool = False) -> Pipeline:
    keys = ["ticker"]
    if window is not None:
        keys.append("window")

    @pipeline(
        source=Topic("trades", schema="ticker string, ts timestamp"),
        event_time="ts",
        watermark="10 seconds",
        window=window,
        re_execute=re_execute,
        sink=Table("stats", mode=Mode.APPEND, keys=keys),
        version=1,
    )
    def stats(frame: Any) -> Any:
        return frame

    return stats
