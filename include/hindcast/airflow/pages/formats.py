"""How figures are written for people. Each takes None for "not known" and answers with a dash."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

UNKNOWN = "\N{EN DASH}"
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z")
#: The picture of a trend, in its own units; the page scales it.
TREND_WIDTH, TREND_HEIGHT = 160, 28
_TREND_MARGIN = 3
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def count(value: float | None) -> str:
    """12345 as ``12,345``."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def number(value: float | None, digits: int = 1) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """0.99931 as ``99.931 %``: rounded down, so that what is below 1 never reads 100."""
    if value is None:
        return UNKNOWN
    return "100 %" if value >= 1 else f"{int(value * 100_000) / 1000:.3f} %"


def figure(value: float | None, measure: str) -> str:
    """A figure of a verdict's trend, as its measure asks."""
    if value is None:
        return UNKNOWN
    if measure in {"captured", "captured_results"}:
        return share(value)
    if measure.endswith("_seconds"):
        return seconds(value)
    return f"{value:.6g}"


def trend_lines(values: Sequence[float | None]) -> list[str]:
    """The lines of a trend's picture, as the points of SVG polylines: from left to right, the greatest value
    on top. A value that is not known interrupts the line.
    """
    known = [value for value in values if value is not None]
    if not known:
        return []
    least = min(known)
    height = TREND_HEIGHT - 2 * _TREND_MARGIN
    width = TREND_WIDTH - 2 * _TREND_MARGIN
    scale = (max(known) - least) or 1.0
    flat = max(known) == least
    lines: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            lines.append([])
            continue
        x = _TREND_MARGIN + width * number / max(len(values) - 1, 1)
        share_of_height = 0.5 if flat else (value - least) / scale
        lines[-1].append(f"{x:.1f},{_TREND_MARGIN + height * (1 - share_of_height):.1f}")
    # A line of one point would not be drawn.
    return [" ".join(points * 2 if len(points) == 1 else points) for points in lines if points]


def size(value: float | None) -> str:
    """Bytes as ``1.4 GiB``."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:  # noqa: PLR2004 - the step between the units
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def seconds(value: float | None) -> str:
    """A duration: ``0.4 s``, ``12 s``, ``3 min``, ``2 h``, ``5 d``."""
    if value is None:
        return UNKNOWN
    if value < 10:  # noqa: PLR2004 - below it a tenth matters
        return f"{max(value, 0):.1f} s"
    if value < 2 * _MINUTE:
        return f"{value:.0f} s"
    if value < 2 * _HOUR:
        return f"{value / _MINUTE:.0f} min"
    return f"{value / _HOUR:.0f} h" if value < 2 * _DAY else f"{value / _DAY:.0f} d"


def instant(value: datetime | None) -> str:
    return UNKNOWN if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def event_time(milliseconds: int | None) -> str:
    """Epoch milliseconds of event time; 0 stands for "none yet"."""
    return UNKNOWN if not milliseconds else instant(datetime.fromtimestamp(milliseconds / 1000, UTC))


def age_seconds(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else max((now - at).total_seconds(), 0.0)


def fields(text: str | None) -> dict[str, Any]:
    """A JSON object of a table's column; empty where it is none."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def texts(text: str | None) -> list[str]:
    """A JSON list of a table's column, each item as text; a text that is no such list is its only item."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return [str(text)]
    return [str(item) for item in found] if isinstance(found, list) else [str(text)]


def keys(text: str | None) -> str:
    """The columns of a row on one line; a text that is no JSON object stays as it is.

    E.g. ``ticker A, window 2026-11-20 10:00:00 to 2026-11-20 10:00:05``.
    """
    found = fields(text)
    if not found:
        return text or UNKNOWN
    return ", ".join(f"{name} {_value(value)}" for name, value in found.items())


def differing(stream: str | None, hindcast: str | None) -> tuple[list[str], str, str]:
    """The columns in which two rows differ, and those columns of both; all of a row that stands alone."""
    left, right = fields(stream), fields(hindcast)
    if not left or not right:
        return [], keys(stream), keys(hindcast)
    names = [name for name in left | right if left.get(name) != right.get(name)]

    def only(row: dict[str, Any]) -> str:
        return ", ".join(f"{name} {_value(row.get(name))}" for name in names)

    return names, only(left), only(right)


def _value(value: Any) -> str:
    if isinstance(value, dict) and value.keys() >= {"start", "end"}:
        return f"{_value(value['start'])} to {_value(value['end'])}"
    if isinstance(value, str) and _INSTANT.fullmatch(value):
        return value.replace("T", " ").removesuffix("Z").removesuffix(".000")
    return UNKNOWN if value is None else str(value)
