"""Compare the side tables of the stream, ``late_rows`` and ``dead_letters``, with what the replay found,
offset by offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pandas as pd
import pyarrow.compute as pc

from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.delta.open_table import open_table
from hindcast.installation import Installation
from hindcast.replay.batch import side_rows_url
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.compare import Cause, Difference, Kind

#: What the replay calls such a record, the table in which the audit files it, and the kind of a difference
#: between the two.
SIDE_TABLES = (
    ("late", ControlTable.LATE_ROWS, Kind.LATE_ROWS_TABLE),
    ("poison", ControlTable.DEAD_LETTERS, Kind.DEAD_LETTERS_TABLE),
)
PLACE = ["partition", "offset"]


def check_side_rows(
    installation: Installation,
    pipeline: str,
    version: int,
    run_id: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    samples: int,
) -> tuple[int, list[Difference]]:
    """Count the offsets of [start, end) that ``late_rows`` and ``dead_letters`` lack, have too many of or
    have twice. Return the count, and up to ``samples`` differences for each table.

    Both sides are sets of (partition, offset), 16 bytes a row in memory.
    """
    settings = installation.settings
    side_rows = open_table(side_rows_url(settings, pipeline, run_id), settings.storage_options)
    of_replay = arrow_dataset(side_rows)
    count = 0
    differences: list[Difference] = []
    for kind, table, difference in SIDE_TABLES:
        of_kind = (pc.field("kind") == kind) & pc.field("inside")
        found = of_replay.to_table(columns=PLACE, filter=of_kind).to_pandas()
        wrong = mismatches(found, places_filed(installation, table, pipeline, version, start, end))
        count += len(wrong)
        named = wrong.head(samples).to_dict("records")
        differences += [_difference(difference, row) for row in named]
    return count, differences


def places_filed(
    installation: Installation,
    table: ControlTable,
    pipeline: str,
    version: int,
    start: Mapping[int, int],
    end: Mapping[int, int],
) -> pd.DataFrame:
    """The places in [start, end) of the rows that a version has in a side table: partition, offset."""
    of_range = [
        ("pipeline", "=", pipeline),
        ("version", "=", version),
        ("offset", ">=", min(start.values(), default=0)),
        ("offset", "<", max(end.values(), default=0)),
    ]
    filed = installation.tables.read(table, of_range, PLACE).to_pandas()
    return within(filed, start, end)


def within(places: pd.DataFrame, start: Mapping[int, int], end: Mapping[int, int]) -> pd.DataFrame:
    """The rows of ``places`` (partition, offset) that lie in [start, end)."""
    first = places["partition"].map(dict(start)).fillna(0)
    last = places["partition"].map(dict(end)).fillna(0)
    return places[(places["offset"] >= first) & (places["offset"] < last)]


def mismatches(found: pd.DataFrame, filed: pd.DataFrame) -> pd.DataFrame:
    """The places whose number of rows differs, in order. The columns ``found`` and ``filed`` say how often
    the replay and the table have each.
    """
    counts = [_rows_by_place(found, "found"), _rows_by_place(filed, "filed")]
    both = pd.concat(counts, axis=1).fillna(0).astype("int64").reset_index()
    different = both["found"] != both["filed"]
    return both[different].sort_values(PLACE)


def _rows_by_place(places: pd.DataFrame, name: str) -> pd.Series[int]:
    return places.astype("int64").groupby(PLACE).size().rename(name)


def _difference(kind: Kind, row: Mapping[object, int]) -> Difference:
    keys = {name: int(row[name]) for name in PLACE}
    return Difference(
        kind=kind,
        cause=Cause.UNEXPLAINED,
        keys=json.dumps(keys),
        stream_value=f"{row['filed']} rows",
        hindcast_value=f"{row['found']} rows",
    )
