"""What in a query makes two runs over the same records differ, by the text of its plan.

A verdict compares the stream with a batch over the same offsets. A clock, a random number or an order that
nobody fixed makes them differ without an error, and the rows are then called unexplained.
"""

from __future__ import annotations

import re

_CLOCKS = ("current_timestamp", "current_date", "localtimestamp", "now", "unix_timestamp")
_RANDOM = ("rand", "randn", "random", "randstr", "uuid", "shuffle", "monotonically_increasing_id")
_UNORDERED = ("any_value", "collect_list", "first", "first_value", "last", "last_value", "listagg")
_OF_PLACE = ("spark_partition_id", "input_file_name")
_KINDS = {
    "reads a clock": _CLOCKS,
    "draws a random value": _RANDOM,
    "depends on the order of rows": _UNORDERED,
    "depends on how rows are dealt out": _OF_PLACE,
}
#: An order is fixed there, whatever the order of its argument.
_SORTED = re.compile(r"\b(?:array_sort|sort_array)\(collect_list\(")
_CALLS = re.compile(r"\b([a-z_]+)\(")


def suspects(plan: str) -> list[str]:
    """What the analysed plan calls that differs from run to run, each as a phrase: ``uuid() draws a random
    value``.
    """
    called = set(_CALLS.findall(_SORTED.sub("sorted(", plan)))
    found = []
    for kind, functions in _KINDS.items():
        found += [f"{function}() {kind}" for function in functions if function in called]
    return found
