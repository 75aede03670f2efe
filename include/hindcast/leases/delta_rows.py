"""Leases as rows of a table, and rows as leases. The work is that of what has changed.

A worker renews all its leases several times in the life of a lease, and nearly everything in those rows stays
as it was: the same names, the same JSON. So the rows that were last read or written are remembered:

- a row that reads the same is the same :class:`Lease` object again;
- JSON that reads the same is not parsed again;
- a lease whose ``checkpoint`` and ``detail`` say the same is written with the same texts;
- a column in which nothing has changed is written as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from hindcast.leases.lease import Lease, LeaseKey
from hindcast.tables.schema import INSTANT, SCHEMAS
from hindcast.tables.table_names import SCHEMA_VERSION, ControlTable

_SCHEMA = SCHEMAS[ControlTable.LEASES]
_json = attrgetter("checkpoint", "detail")
_to_json = json.JSONEncoder(sort_keys=True).encode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Texts(NamedTuple):
    """The JSON of a lease, as the table has it."""

    checkpoint: str
    detail: str


class _Others(NamedTuple):
    """The other columns of a row, besides its name and the version of its schema."""

    lease_counter: int
    lease_owner: str
    lease_stealer: str
    parent_shard_ids: list[str] | None
    epoch: int
    state: str
    updated_at: datetime | None


_others = attrgetter(*_Others._fields)


class _Column(NamedTuple):
    """A column's values, one a row, and the same as Arrow has them."""

    values: tuple[Any, ...]
    array: pa.Array


@dataclass(frozen=True)
class LeaseRows:
    """The rows of one version of the table, remembered to make the next version. Never changed.

    ``_texts`` has the texts that each of the ``leases`` was made of or written with.
    """

    leases: Mapping[LeaseKey, Lease] = field(default_factory=dict)
    _texts: Mapping[LeaseKey, _Texts] = field(default_factory=dict)
    _columns: Mapping[str, _Column] = field(default_factory=dict)

    def read(self, data: pa.Table, table: str) -> LeaseRows:
        """The rows of a whole table that is another version of this one.

        :param table: its address, for errors
        :raises SchemaVersionError: if a newer Hindcast wrote a row
        """
        columns: dict[str, _Column] = {}
        for name in _SCHEMA.names:
            columns[name] = self._read_column(name, data.column(name).combine_chunks())
        leases: dict[LeaseKey, Lease] = {}
        texts: dict[LeaseKey, _Texts] = {}
        keys = map(LeaseKey, *(columns[name].values for name in LeaseKey._fields))
        all_texts = map(_Texts, *(columns[name].values for name in _Texts._fields))
        all_others = map(_Others, *(columns[name].values for name in _Others._fields))
        versions = columns["schema_version"].values
        for index, (key, text, others) in enumerate(zip(keys, all_texts, all_others, strict=True)):
            lease = self.leases.get(key)
            if lease is None or text != self._texts[key] or versions[index] != SCHEMA_VERSION:
                row = {name: column.values[index] for name, column in columns.items()}
                lease = Lease.from_row(row, table)
            elif others != _others(lease):
                lease = _changed(lease, others)
            leases[key] = lease
            texts[key] = text
        return LeaseRows(leases, texts, columns)

    def write(self, leases: Mapping[LeaseKey, Lease]) -> tuple[pa.Table, LeaseRows]:
        """The whole table of these leases, and its rows, which are what a reader of it will find."""
        written: dict[LeaseKey, Lease] = {}
        texts: dict[LeaseKey, _Texts] = {}
        for key in sorted(leases):
            written[key], texts[key] = self._write_json(leases[key])
        columns: dict[str, _Column] = {}
        for name in [*LeaseKey._fields, *_Others._fields]:
            columns[name] = self._write_column(name, tuple(map(attrgetter(name), written.values())))
        for name in _Texts._fields:
            columns[name] = self._write_column(name, tuple(map(attrgetter(name), texts.values())))
        columns["schema_version"] = self._write_column("schema_version", (SCHEMA_VERSION,) * len(written))
        data = pa.table([columns[name].array for name in _SCHEMA.names], schema=_SCHEMA)
        return data, LeaseRows(written, texts, columns)

    def _write_json(self, lease: Lease) -> tuple[Lease, _Texts]:
        """The lease as a reader will find it, and the texts to write it with."""
        known = self.leases.get(lease.key)
        if known is not None and _json(known) == _json(lease):
            return lease, self._texts[lease.key]
        texts = _Texts(_to_json(lease.checkpoint), _to_json(lease.detail))
        # A reader finds what the text says: e.g. a tuple has become a list.
        found = lease.evolve(checkpoint=json.loads(texts.checkpoint), detail=json.loads(texts.detail))
        return found, texts

    def _read_column(self, name: str, array: pa.Array) -> _Column:
        known = self._columns.get(name)
        if known is not None and known.array.equals(array):
            return known
        return _Column(_values(array), array)

    def _write_column(self, name: str, values: tuple[Any, ...]) -> _Column:
        known = self._columns.get(name)
        if known is not None and known.values == values:
            return known
        return _Column(values, pa.array(values))


def _changed(lease: Lease, others: _Others) -> Lease:
    """The lease with the values that a row has in its other columns."""
    changes = others._asdict()
    changes["parent_shard_ids"] = list(others.parent_shard_ids or [])
    return lease.evolve(**changes)


def _values(array: pa.Array) -> tuple[Any, ...]:
    """The column's values. Many rows have the same instant, so each instant is converted once."""
    if not pa.types.is_timestamp(array.type):
        return tuple(array.to_pylist())
    microseconds = array.cast(INSTANT).cast(pa.int64()).to_pylist()
    instants: dict[int | None, datetime | None] = {None: None}
    for since in set(microseconds) - {None}:
        instants[since] = _EPOCH + timedelta(microseconds=since)
    return tuple(map(instants.__getitem__, microseconds))
