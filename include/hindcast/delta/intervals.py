"""Times in the properties of Delta tables."""

from __future__ import annotations

import re

_FORM = re.compile(r"interval (\d+) (hour|day|week)s?")
_HOURS = {"hour": 1, "day": 24, "week": 7 * 24}


def hours_of(interval: str) -> int:
    """The hours of a property such as ``interval 1 week``; 0 if it is shorter, or has another form."""
    found = _FORM.fullmatch(interval.strip().lower())
    if found is None:
        return 0
    return int(found[1]) * _HOURS[found[2]]
