"""A pipeline in two versions with a served table: real Delta tables, and no stream."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import write_deltalake

from hindcast.delta.open_table import open_table
from hindcast.pipeline import Served, Table, Window
from hindcast.serving.corrected_windows import CorrectedRange, Corrections, stamped
from hindcast.serving.reading import Part, Reading
from hindcast.serving.served_table import ServedTable
from hindcast.settings import Settings
from hindcast.tables.compaction import compact

INSTANT = pa.timestamp("us", tz="UTC")
WINDOW = pa.struct([("start", INSTANT), ("end", INSTANT)])
SCHEMA = pa.schema([("window", WINDOW), ("k", pa.string()), ("n", pa.int64())])
#: Windows of a test end at 1, 2, ... milliseconds up to this.
LAST = 12


def window(end_ms: int) -> dict[str, datetime]:
    start = datetime.fromtimestamp((end_ms - 1) / 1000, UTC)
    return {"start": start, "end": datetime.fromtimestamp(end_ms / 1000, UTC)}


def rows_of(ends: list[int], value: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([{"window": window(end), "k": f"k{end}", "n": value} for end in ends], schema)


def counted(rows: pa.Table) -> Counter[str]:
    """The rows, each as often as it is there. A column that is null is as good as none."""
    found = [{name: value for name, value in row.items() if value is not None} for row in rows.to_pylist()]
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in found)


class World:
    """A pipeline in two versions, and what readers get of it."""

    def __init__(
        self,
        settings: Settings,
        served: Served | None = None,
        schemas: tuple[pa.Schema, ...] = (SCHEMA, SCHEMA),
    ) -> None:
        self.settings = settings
        self.schemas = dict(enumerate(schemas, start=1))
        self.pipelines: dict[int, Any] = {}
        for version in (1, 2):
            sink = Table(f"s{version}", served=served or Served())
            self.pipelines[version] = SimpleNamespace(
                name="p", version=version, sink=sink, window=Window("1 second")
            )
        self.active = 1
        self.seam = 0
        self.installation: Any = SimpleNamespace(settings=settings)
        for version in (1, 2):
            self._write(version, self.schemas[version].empty_table())

    def append(self, version: int, ends: list[int], value: int = 0) -> None:
        rows = rows_of(ends, value, self.schemas[version])
        self._write(version, rows)

    def _write(self, version: int, rows: pa.Table) -> None:
        options = self.settings.storage_options or None
        write_deltalake(
            self.settings.sink(self.pipelines[version]), rows, mode="append", storage_options=options
        )

    def join(self, version: int) -> None:
        options = self.settings.storage_options
        table = open_table(self.settings.sink(self.pipelines[version]), options)
        compact(table, options)

    def correct(self, version: int, after: int, to: int, run: int) -> None:
        """By a run that has read as far as its number says."""
        by = CorrectedRange(after, to, f"run{run}", {0: run})
        rows = ds.dataset(rows_of(list(range(after + 1, to + 1)), 100 + run, self.schemas[version]))
        scanner = stamped(rows, ds.scalar(True), by.run_id, self.schemas[version].names)
        Corrections(self.settings, self.pipelines[version]).replace(scanner, by)

    def promote(self, seam: int) -> None:
        self.active = 2
        self.seam = seam

    def back_out(self) -> None:
        self.active = 1

    def newest(self, *_: object) -> Reading:
        if self.active == 1:
            return Reading.pin(self.settings, self.pipelines[1])
        earlier = (Part(Reading.pin(self.settings, self.pipelines[1]), None, self.seam),)
        return replace(Reading.pin(self.settings, self.pipelines[2]), earlier=earlier)

    @property
    def url(self) -> str:
        return self.settings.served(self.pipelines[1])

    def publisher(self) -> ServedTable:
        return ServedTable(self.installation, "p")

    def rows(self, version: int | None = None) -> Counter[str]:
        table = open_table(self.url, self.settings.storage_options, version)
        return counted(table.to_pyarrow_table())

    def changes(self) -> Counter[str]:
        """What somebody has who follows the changes of the table, on a local disk, from its beginning."""
        found: Counter[str] = Counter()
        for entry in sorted(Path(self.url, "_delta_log").glob("*.json")):
            for action in map(json.loads, entry.read_text().splitlines()):
                for kind in ("add", "remove"):
                    if kind not in action or not action[kind]["dataChange"]:
                        continue
                    rows = counted(pq.read_table(Path(self.url, action[kind]["path"])))
                    found.update(rows) if kind == "add" else found.subtract(rows)
        return +found

    def check(self) -> None:
        assert self.rows() == counted(self.newest().arrow())
        if "://" not in self.url:
            assert self.changes() == self.rows()
