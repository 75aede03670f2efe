"""Leases as rows of a table, and rows as leases, at the price of what has changed.

A worker renews all it holds several times a lease, and nearly everything in those rows is as it was: the same names, the same JSON.
So what was last read or written is remembered. A row that reads the same gives the same :class:`Lease` again, and one with the same
JSON parses none of it. A lease whose ``checkpoint`` and ``detail`` are equal to what the remembered texts say is written with those
texts, and a column in which nothing has changed is written as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from hindcast.leases.lease import Lease, LeaseKey
from hindcast.tables.schema import INSTANT, SCHEMA_VERSION, SCHEMAS, ControlTable

_SCHEMA = SCHEMAS[ControlTable.LEASES]
#: How to find each column's value in a lease, or, of those that hold JSON, in its texts.
_OF_KEYS = {name: attrgetter(name) for name in LeaseKey._fields}
_OF_TEXTS = {"checkpoint": itemgetter(0), "detail": itemgetter(1)}
_OTHERS = {name: attrgetter(name) for name in _SCHEMA.names if name not in {*_OF_KEYS, *_OF_TEXTS, "schema_version"}}
_others = attrgetter(*_OTHERS)
_NAMES = [*_OF_KEYS, *_OTHERS, *_OF_TEXTS, "schema_version"]
#: Columns in which nothing has changed in nearly every version.
_SELDOM = [*_OF_KEYS, *_OF_TEXTS, "schema_version"]
_json = attrgetter("checkpoint", "detail")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_to_json = json.JSONEncoder(sort_keys=True).encode

#: By name, the values of a column and the same as Arrow has them.
_Columns = dict[str, tuple[tuple[Any, ...], pa.Array]]


class _Texts(NamedTuple):
    """The JSON of a lease and what it says: the very objects that the lease has, which equal themselves without a look inside."""

    checkpoint_text: str
    detail_text: str
    checkpoint: Any
    detail: Any


_says = itemgetter(2, 3)
#: Of a lease that is not known: equal to no checkpoint and no detail.
_NONE = _Texts("", "", None, None)


@dataclass(frozen=True)
class LeaseRows:
    """The rows of one version of the table, remembered to make the next one. Never changed.

    Columns are remembered of rows that are in the order of their keys, as all are that we write.
    """

    leases: Mapping[LeaseKey, Lease] = field(default_factory=dict)
    _texts: Mapping[LeaseKey, _Texts] = field(default_factory=dict)
    _columns: _Columns = field(default_factory=dict)

    def read(self, data: pa.Table, table: str) -> LeaseRows:
        """The rows of a whole table that is another version of this one.

        :param table: its address, for errors
        :raises SchemaVersionError: where a newer Hindcast wrote a row
        """
        columns = {name: self._read_column(name, data.column(name).combine_chunks()) for name in _NAMES}
        if len(self.leases) == data.num_rows and all(columns[name] is self._columns.get(name) for name in _SELDOM):
            before, after = (zip(*(version[name][0] for name in _OTHERS), strict=True) for version in (self._columns, columns))
            found = zip(self.leases.items(), before, after, strict=True)
            same = {key: lease if was == now else _changed(lease, now) for (key, lease), was, now in found}
            return LeaseRows(same, self._texts, columns)
        leases: dict[LeaseKey, Lease] = {}
        texts: dict[LeaseKey, _Texts] = {}
        for row in zip(*(values for values, _ in columns.values()), strict=True):
            key, others = LeaseKey(*row[:3]), row[3:-3]
            known = self.leases.get(key)
            if known is None or self._texts[key][:2] != row[-3:-1] or row[-1] != SCHEMA_VERSION:
                leases[key] = lease = Lease.from_row(dict(zip(_NAMES, row, strict=True)), table)
                texts[key] = _Texts(row[-3], row[-2], lease.checkpoint, lease.detail)
            else:
                leases[key] = known if _others(known) == others else _changed(known, others)
                texts[key] = self._texts[key]
        return LeaseRows(leases, texts, columns if [*leases] == sorted(leases) else {})

    def write(self, leases: Mapping[LeaseKey, Lease]) -> tuple[pa.Table, LeaseRows]:
        """The whole table of these leases, and its rows, which are what a reader of it will find."""
        same_keys = bool(self._columns) and [*leases] == [*self.leases]
        keys = [*leases] if same_keys else sorted(leases)
        ordered = [*leases.values()] if same_keys else [leases[key] for key in keys]
        known = [*self._texts.values()] if same_keys else [self._texts.get(key, _NONE) for key in keys]
        said = [*map(_says, known)]
        same_texts = same_keys and said == [*map(_json, ordered)]
        for index, lease in enumerate(ordered) if not same_texts else ():
            if said[index] != _json(lease):
                # New JSON: what a reader finds is what the text says, where e.g. a tuple has become a list.
                checkpoint, detail = map(_to_json, _json(lease))
                known[index] = text = _Texts(checkpoint, detail, json.loads(checkpoint), json.loads(detail))
                ordered[index] = lease.evolve(checkpoint=text.checkpoint, detail=text.detail)
        columns = self._written(_OTHERS, ordered)
        columns |= self._kept(_OF_KEYS) if same_keys else self._written(_OF_KEYS, ordered)
        columns |= self._kept(_OF_TEXTS) if same_texts else self._written(_OF_TEXTS, known)
        columns["schema_version"] = self._written_column("schema_version", (SCHEMA_VERSION,) * len(keys))
        data = pa.table([columns[name][1] for name in _SCHEMA.names], schema=_SCHEMA)
        texts = self._texts if same_texts else dict(zip(keys, known, strict=True))
        return data, LeaseRows(dict(zip(keys, ordered, strict=True)), texts, columns)

    def _kept(self, names: Iterable[str]) -> _Columns:
        """Columns of the same rows, in which nothing has changed."""
        return {name: self._columns[name] for name in names}

    def _written(self, found: Mapping[str, Callable[[Any], Any]], rows: Sequence[Any]) -> _Columns:
        return {name: self._written_column(name, tuple(map(find, rows))) for name, find in found.items()}

    def _read_column(self, name: str, array: pa.Array) -> tuple[tuple[Any, ...], pa.Array]:
        known = self._columns.get(name)
        return known if known is not None and known[1].equals(array) else (_values(array), array)

    def _written_column(self, name: str, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], pa.Array]:
        known = self._columns.get(name)
        if known is not None and known[0] == values:
            return known
        kind = _SCHEMA.field(name).type
        if values and values.count(values[0]) == len(values):  # as the instant of a renewal, which is slow to convert
            return values, pa.repeat(pa.scalar(values[0], type=kind), len(values))
        return values, pa.array(values, type=kind)


def _changed(lease: Lease, others: tuple[Any, ...]) -> Lease:
    """The lease with the values that a row has in :data:`_OTHERS`."""
    changes = dict(zip(_OTHERS, others, strict=True))
    return lease.evolve(**changes | {"parent_shard_ids": list(changes["parent_shard_ids"] or [])})


def _values(array: pa.Array) -> tuple[Any, ...]:
    """The column's values. Instants, of which many rows have the same, are each converted once."""
    if not pa.types.is_timestamp(array.type):
        return tuple(array.to_pylist())
    since = array.cast(INSTANT).cast(pa.int64()).to_pylist()
    instants = {value: None if value is None else _EPOCH + timedelta(microseconds=value) for value in {*since}}
    return tuple(map(instants.__getitem__, since))
