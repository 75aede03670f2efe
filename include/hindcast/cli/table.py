"""Set rows as a table: one line a row, cut to a terminal's width only if there is a terminal.

Names, numbers and instants stay whole. Prose (messages, cures, values) is folded: inside its column if there is room for it, else below its
row. If all that does not fit, the columns that a listing can spare are left out, and the caller says which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len, set_cell_size

_GAP = "  "
_INDENT = "  "
#: A column of prose that is narrower than this is read with pain: it goes below its row.
_PROSE_WIDTH = 32
#: No column is cut to less.
_LEAST_WIDTH = 8
_LARGE = 1000  # from here on a table leaves fractions out
#: A control character would move the cursor or change the terminal: data is printed, never obeyed.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Columns:
    """What a listing shows.

    :param shown: the columns in their order
    :param prose: those of them that are folded
    :param spare: those that a narrow terminal does without, the first to go first
    """

    shown: Sequence[str]
    prose: frozenset[str] = frozenset()
    spare: Sequence[str] = ()

    def every(self, rows: Iterable[Mapping[str, Any]]) -> Columns:
        """These, then whatever else the rows have."""
        names = dict.fromkeys(self.shown)
        for row in rows:
            names.update(dict.fromkeys(row))
        return Columns(list(names))


@dataclass(frozen=True)
class Table:
    """The lines of a table, its header first, and the columns that had no room."""

    lines: list[str]
    left_out: list[str] = field(default_factory=list)


def lay_out(rows: Sequence[Mapping[str, Any]], columns: Columns, width: int | None) -> Table:
    """The table of the rows, at most ``width`` cells wide; None: as wide as it is."""
    cells = {name: [cell(row.get(name)) for row in rows] for name in columns.shown}
    numeric = {name for name in columns.shown if all(isinstance(row.get(name), int | float | None) for row in rows)}
    widths = {name: max(cell_len(text) for text in [name, *cells[name]]) for name in columns.shown}
    if width is None:
        return Table(_lines(cells, widths, numeric, len(rows)))
    prose = [name for name in columns.shown if name in columns.prose]
    left_out = _spare(widths, prose, columns.spare, width)
    firm = {name: wide for name, wide in widths.items() if name not in prose and name not in left_out}
    firm = _cut(firm, width)
    said = [name for name in prose if any(cells[name])]
    folded = _fold(firm, {name: widths[name] for name in said}, width)
    if folded is None:
        below = {name: cells[name] for name in said}
        return Table(_lines(cells, firm, numeric, len(rows), below=below, width=width), left_out)
    order = {name: {**firm, **folded}[name] for name in columns.shown if name in firm or name in folded}
    return Table(_lines(cells, order, numeric, len(rows), fold=frozenset(folded)), left_out)


def cell(value: Any) -> str:
    """A value as the one line of a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        text = f"{value:,.0f}"
        if abs(value) < _LARGE:
            text = f"{value:.4g}"
        return text
    if isinstance(value, dict | list):
        return json.dumps(value, default=str, ensure_ascii=False)
    return _CONTROL.sub(_visible, str(value))


def _visible(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]


def _total(widths: Iterable[int]) -> int:
    every = list(widths)
    return sum(every) + len(_GAP) * max(len(every) - 1, 0)


def _spare(widths: Mapping[str, int], prose: Sequence[str], spare: Sequence[str], width: int) -> list[str]:
    """The columns that must go for the others to fit."""
    kept = {name: wide for name, wide in widths.items() if name not in prose}
    left_out = []
    for name in spare:
        if _total(kept.values()) <= width:
            break
        if kept.pop(name, None) is not None:
            left_out.append(name)
    return left_out


def _cut(widths: Mapping[str, int], width: int) -> dict[str, int]:
    """The widths, the widest made narrower until all fit."""
    cut = dict(widths)
    while cut and _total(cut.values()) > width:
        widest = max(cut, key=lambda name: cut[name])
        if cut[widest] <= _LEAST_WIDTH:
            break
        cut[widest] -= 1
    return cut


def _fold(firm: Mapping[str, int], prose: Mapping[str, int], width: int) -> dict[str, int] | None:
    """The widths of the columns of prose beside the others; None if they would be too narrow."""
    gaps = len(_GAP) * len(prose)
    room = width - _total(firm.values()) - gaps
    if sum(prose.values()) <= room:
        return dict(prose)
    folded: dict[str, int] = {}
    for count, (name, wide) in zip(range(len(prose), 0, -1), sorted(prose.items(), key=lambda item: item[1]), strict=True):
        folded[name] = min(wide, room // count)
        if folded[name] < min(wide, _PROSE_WIDTH):
            return None
        room -= folded[name]
    return folded


def _lines(
    cells: Mapping[str, Sequence[str]],
    widths: Mapping[str, int],
    numeric: Iterable[str],
    count: int,
    *,
    fold: frozenset[str] = frozenset(),
    below: Mapping[str, Sequence[str]] | None = None,
    width: int = 0,
) -> list[str]:
    lines = [_line({name: name for name in widths}, widths, numeric)]
    lines.append(_GAP.join("─" * wide for wide in widths.values()))
    for number in range(count):
        parts = {name: _wrapped(cells[name][number], wide, fold=name in fold) for name, wide in widths.items()}
        height = max((len(part) for part in parts.values()), default=0)
        for part in range(height):
            texts = {name: found[part] for name, found in parts.items() if part < len(found)}
            lines.append(_line(texts, widths, numeric))
        lines += _below({name: texts[number] for name, texts in (below or {}).items() if texts[number]}, width)
    return lines


def _wrapped(text: str, width: int, *, fold: bool) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    if not fold:
        return [set_cell_size(text, width - 1) + "…"]
    return _folded(text, width)


def _folded(text: str, width: int) -> list[str]:
    """The text in lines of at most so many cells, broken between words where it can be."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        rest = word
        while cell_len(rest) > width:
            head = set_cell_size(rest, width).rstrip(" ")
            lines[-1] = head
            lines.append("")
            rest = rest[len(head) :]
        lines[-1] = rest
    return lines


def _below(said: Mapping[str, str], width: int) -> list[str]:
    """The prose of one row, each text with its name before it."""
    names = max((len(name) for name in said), default=0)
    lines = []
    for name, text in said.items():
        first, *others = _folded(text, max(width - len(_INDENT) - names - len(_GAP), _LEAST_WIDTH))
        lines.append(f"{_INDENT}{name:<{names}}{_GAP}{first}")
        lines += [f"{_INDENT}{'':<{names}}{_GAP}{other}" for other in others]
    return lines


def _line(texts: Mapping[str, str], widths: Mapping[str, int], numeric: Iterable[str]) -> str:
    padded = []
    for name, wide in widths.items():
        text = texts.get(name, "")
        if cell_len(text) > wide:
            text = set_cell_size(text, wide - 1) + "…"
        space = " " * (wide - cell_len(text))
        if name in numeric:
            padded.append(space + text)
        else:
            padded.append(text + space)
    return _GAP.join(padded).rstrip()
