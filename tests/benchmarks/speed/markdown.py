"""Lines of Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def line(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def spread(ratios: Sequence[float]) -> str:
    """The median with the least and the greatest, if there are any."""
    if not ratios:
        return ""
    median = f"{statistics.median(ratios):.2f}"
    if len(ratios) == 1:
        return median
    return f"{median} ({min(ratios):.2f} to {max(ratios):.2f})"
