"""Leases as rows of a table, and rows as leases, at the price of what has changed.

A worker renews all it holds several times a lease, and nearly everything in those rows is as it was: the same names, the same JSON.
So what was last read or written is remembered. A row that reads the same gives the same :class:`Lease` again, a lease whose
``checkpoint`` and ``detail`` are equal to what the remembered texts say is written with those texts, and a column in which nothing
has changed is written as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from hindcast.control.leases import Lease, LeaseKey
from hindcast.control.schema import SCHEMA_VERSION, SCHEMAS, ControlTable

_SCHEMA = SCHEMAS[ControlTable.LEASES]
#: The columns that hold a lease's fields as they are; the others hold JSON, or are the same in all rows.
_PLAIN = [name for name in _SCHEMA.names if name not in {"checkpoint", "detail", "schema_version"}]
_NAMES = [*_PLAIN, "checkpoint", "detail", "schema_version"]
_plain = attrgetter(*_PLAIN)
_to_json = json.JSONEncoder(sort_keys=True).encode


_checkpoint, _detail = itemgetter(0), itemgetter(1)


class _Texts(NamedTuple):
    """The JSON of a lease and what it says: copies of our own, which nobody who was given the lease can change."""

    checkpoint_text: str
    detail_text: str
    checkpoint: Any
    detail: Any

    @classmethod
    def of(cls, checkpoint: str, detail: str) -> _Texts:
        return cls(checkpoint, detail, json.loads(checkpoint or "{}"), json.loads(detail or "{}"))


#: Of a lease that is not known: equal to no checkpoint and no detail.
_NONE = _Texts("", "", None, None)


@dataclass(frozen=True)
class LeaseRows:
    """The rows of one version of the table, remembered to make the next one. Never changed."""

    leases: Mapping[LeaseKey, Lease] = field(default_factory=dict)
    _texts: Mapping[LeaseKey, _Texts] = field(default_factory=dict)
    _columns: Mapping[str, tuple[tuple[Any, ...], pa.Array]] = field(default_factory=dict)

    def read(self, data: pa.Table, table: str) -> LeaseRows:
        """The rows of a whole table that is another version of this one.

        :param table: its address, for errors
        :raises SchemaVersionError: where a newer Hindcast wrote a row
        """
        leases: dict[LeaseKey, Lease] = {}
        texts: dict[LeaseKey, _Texts] = {}
        columns = {name: self._read_column(name, data.column(name).combine_chunks()) for name in _NAMES}
        for row in zip(*(values for values, _ in columns.values()), strict=True):
            key = LeaseKey(*row[:3])
            known, text = self.leases.get(key), self._texts.get(key, _NONE)
            if known is not None and text[:2] == row[-3:-1] and row[-1] == SCHEMA_VERSION and _plain(known) == row[:-3]:
                leases[key], texts[key] = known, text
            else:
                leases[key] = Lease.from_row(dict(zip(_NAMES, row, strict=True)), table)
                texts[key] = _Texts.of(*row[-3:-1])
        return LeaseRows(leases, texts, columns)

    def write(self, leases: Mapping[LeaseKey, Lease]) -> tuple[pa.Table, LeaseRows]:
        """The whole table of these leases, and its rows, which are what a reader of it will find."""
        keys = sorted(leases)
        ordered = [leases[key] for key in keys]
        known = [self._texts.get(key, _NONE) for key in keys]
        same = [text[2] == lease.checkpoint and text[3] == lease.detail for text, lease in zip(known, ordered, strict=True)]
        for index in [index for index, unchanged in enumerate(same) if not unchanged]:
            # New JSON: what a reader finds is what the text says, where e.g. a tuple has become a list.
            text = _Texts.of(_to_json(ordered[index].checkpoint), _to_json(ordered[index].detail))
            known[index], ordered[index] = text, ordered[index].evolve(checkpoint=json.loads(text[0]), detail=json.loads(text[1]))
        rows = [*zip(*map(_plain, ordered), strict=True)] or [()] * len(_PLAIN)
        values = (*rows, tuple(map(_checkpoint, known)), tuple(map(_detail, known)), (SCHEMA_VERSION,) * len(keys))
        columns = {name: self._written_column(name, column) for name, column in zip(_NAMES, values, strict=True)}
        data = pa.table([columns[name][1] for name in _SCHEMA.names], schema=_SCHEMA)
        return data, LeaseRows(dict(zip(keys, ordered, strict=True)), dict(zip(keys, known, strict=True)), columns)

    def _read_column(self, name: str, array: pa.Array) -> tuple[tuple[Any, ...], pa.Array]:
        known = self._columns.get(name)
        return known if known is not None and known[1].equals(array) else (tuple(array.to_pylist()), array)

    def _written_column(self, name: str, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], pa.Array]:
        known = self._columns.get(name)
        if known is not None and known[0] == values:
            return known
        kind = _SCHEMA.field(name).type
        if values and values.count(values[0]) == len(values):  # as the instant of a renewal, which is slow to convert
            return values, pa.repeat(pa.scalar(values[0], type=kind), len(values))
        return values, pa.array(values, type=kind)
