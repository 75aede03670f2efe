"""Set rows as a table: one line a row, cut to a terminal's width only if there is a terminal.

Names, numbers and instants stay whole. Prose (messages, cures, values) is folded: inside its column if there
is room for it, else below its row. If that does not fit, spare columns are left out; the caller prints their
names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len, set_cell_size

_GAP = "  "
_INDENT = "  "
#: A narrower column of prose is hard to read, so its prose goes below the row.
_PROSE_WIDTH = 32
#: No column is cut to less.
_LEAST_WIDTH = 8
_LARGE = 1000  # from here on a table leaves fractions out
#: A control character would move the cursor or change the terminal, so it is printed as an escape.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

#: By column, the texts of its cells from the first row to the last.
Cells = Mapping[str, Sequence[str]]
#: By column, its width in cells of the terminal.
Widths = Mapping[str, int]


@dataclass(frozen=True)
class Columns:
    """The columns of a listing.

    :param shown: the columns in their order
    :param prose: the columns whose text is folded
    :param spare: the columns that a narrow terminal leaves out, the first to go first
    """

    shown: Sequence[str]
    prose: frozenset[str] = frozenset()
    spare: Sequence[str] = ()

    def every(self, rows: Iterable[Mapping[str, Any]]) -> Columns:
        """These columns, then all other columns of the rows."""
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
    """The table of the rows, at most ``width`` cells wide; as wide as its contents if ``width`` is None."""
    cells: dict[str, list[str]] = {}
    widths: dict[str, int] = {}
    numeric = set()
    for name in columns.shown:
        texts = [cell(row.get(name)) for row in rows]
        cells[name] = texts
        widths[name] = max(map(cell_len, [name, *texts]))
        if _is_numeric(rows, name):
            numeric.add(name)
    if width is None:
        return Table(_lines(cells, widths, numeric, len(rows)))
    return _fit(cells, widths, numeric, columns, width, len(rows))


def _is_numeric(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return all(isinstance(row.get(name), int | float | None) for row in rows)


def _fit(
    cells: Cells, widths: Widths, numeric: Collection[str], columns: Columns, width: int, count: int
) -> Table:
    """A table of at most ``width`` cells, of ``count`` rows: spare columns go first, then prose is folded."""
    prose = [name for name in columns.shown if name in columns.prose]
    left_out = _spare(widths, prose, columns.spare, width)
    dropped = {*prose, *left_out}
    kept = {name: wide for name, wide in widths.items() if name not in dropped}
    firm = _cut(kept, width)
    filled = [name for name in prose if any(cells[name])]
    folded = _fold(firm, {name: widths[name] for name in filled}, width)
    if folded is None:
        below = {name: cells[name] for name in filled}
        return Table(_lines(cells, firm, numeric, count, below=below, width=width), left_out)
    fitted = {**firm, **folded}
    ordered: dict[str, int] = {}
    for name in columns.shown:
        if name in fitted:
            ordered[name] = fitted[name]
    return Table(_lines(cells, ordered, numeric, count, fold=frozenset(folded)), left_out)


def cell(value: Any) -> str:
    """A value as the one line of a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        if abs(value) < _LARGE:
            return f"{value:.4g}"
        return f"{value:,.0f}"
    text = str(value)
    if isinstance(value, dict | list):
        text = json.dumps(value, default=str, ensure_ascii=False)
    return _CONTROL.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]


def _total(widths: Collection[int]) -> int:
    gaps = max(len(widths) - 1, 0)
    return sum(widths) + len(_GAP) * gaps


def _spare(widths: Widths, prose: Sequence[str], spare: Sequence[str], width: int) -> list[str]:
    """The columns that must go for the others to fit."""
    kept = {name: wide for name, wide in widths.items() if name not in prose}
    left_out = []
    for name in spare:
        if _total(kept.values()) <= width:
            break
        if kept.pop(name, None) is not None:
            left_out.append(name)
    return left_out


def _cut(widths: Widths, width: int) -> dict[str, int]:
    """The widths, the widest made narrower until all fit."""
    cut = dict(widths)
    while cut and _total(cut.values()) > width:
        widest = max(cut, key=lambda name: cut[name])
        if cut[widest] <= _LEAST_WIDTH:
            break
        cut[widest] -= 1
    return cut


def _fold(firm: Widths, prose: Widths, width: int) -> dict[str, int] | None:
    """The widths of the columns of prose next to the firm ones; None if they would be too narrow."""
    gaps = len(_GAP) * len(prose)
    room = width - _total(firm.values()) - gaps
    if sum(prose.values()) <= room:
        return dict(prose)
    folded: dict[str, int] = {}
    by_width = sorted(prose.items(), key=lambda item: item[1])
    for number, (name, wide) in enumerate(by_width):
        columns_left = len(by_width) - number
        share = min(wide, room // columns_left)
        if share < min(wide, _PROSE_WIDTH):
            return None
        folded[name] = share
        room -= share
    return folded


def _lines(
    cells: Cells,
    widths: Widths,
    numeric: Collection[str],
    count: int,
    *,
    fold: frozenset[str] = frozenset(),
    below: Cells | None = None,
    width: int = 0,
) -> list[str]:
    """The header, the rule, and the lines of each row.

    :param count: the number of rows
    :param fold: the columns that are folded inside their widths
    :param below: the prose that is printed below its row, in lines of ``width`` cells
    """
    names = {name: name for name in widths}
    rule = _GAP.join("─" * wide for wide in widths.values())
    lines = [_line(names, widths, numeric), rule]
    for number in range(count):
        parts: dict[str, list[str]] = {}
        for name, wide in widths.items():
            parts[name] = _wrapped(cells[name][number], wide, fold=name in fold)
        lines += _lines_of_row(parts, widths, numeric)
        if below is not None:
            prose = {name: texts[number] for name, texts in below.items()}
            lines += _below(prose, width)
    return lines


def _lines_of_row(parts: Cells, widths: Widths, numeric: Collection[str]) -> list[str]:
    """One row, as high as its highest cell."""
    height = max(map(len, parts.values()), default=0)
    lines = []
    for number in range(height):
        texts: dict[str, str] = {}
        for name, part in parts.items():
            if number < len(part):
                texts[name] = part[number]
        lines.append(_line(texts, widths, numeric))
    return lines


def _wrapped(text: str, width: int, *, fold: bool) -> list[str]:
    if fold and cell_len(text) > width:
        return _folded(text, width)
    return [_shortened(text, width)]


def _shortened(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…"


def _folded(text: str, width: int) -> list[str]:
    """The text in lines of at most so many cells, broken between words if possible."""
    lines = [""]
    for word in text.split(" "):
        joined = word
        if lines[-1]:
            joined = f"{lines[-1]} {word}"
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


def _below(prose: Mapping[str, str], width: int) -> list[str]:
    """The prose of one row, each text with its name before it; empty texts are left out."""
    filled = {name: text for name, text in prose.items() if text}
    name_width = max(map(len, filled), default=0)
    text_width = max(width - len(_INDENT) - name_width - len(_GAP), _LEAST_WIDTH)
    lines = []
    for name, text in filled.items():
        label = name
        for line in _folded(text, text_width):
            lines.append(f"{_INDENT}{label:<{name_width}}{_GAP}{line}")
            label = ""
    return lines


def _line(texts: Mapping[str, str], widths: Widths, numeric: Collection[str]) -> str:
    padded = []
    for name, wide in widths.items():
        text = _shortened(texts.get(name, ""), wide)
        space = " " * (wide - cell_len(text))
        if name in numeric:
            padded.append(space + text)
        else:
            padded.append(text + space)
    return _GAP.join(padded).rstrip()
