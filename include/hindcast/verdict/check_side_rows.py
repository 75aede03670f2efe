"""Hold the stream's own account of late and poison records against what the replay found, offset by offset."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pandas as pd
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.replay.batch import side_rows_url
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables, arrow_dataset
from hindcast.tables.schema import ControlTable
from hindcast.verdict.compare import Cause, Difference, Kind

#: What the replay calls it, the table in which the audit files it, and the kind of a difference between them.
ACCOUNTS = (("late", ControlTable.LATE_ROWS, Kind.LATE_ROWS_TABLE), ("poison", ControlTable.DEAD_LETTERS, Kind.DEAD_LETTERS_TABLE))
PLACE = ["partition", "offset"]


def check_accounts(
    settings: Settings, pipeline: str, version: int, run_id: str, start: Mapping[int, int], end: Mapping[int, int], samples: int
) -> tuple[int, list[Difference]]:
    """How many offsets of [start, end) ``late_rows`` and ``dead_letters`` lack, have too many of or have twice; up to ``samples`` of them.

    Both sides are sets of (partition, offset), 16 bytes a row in memory.
    """
    tables, count, named = ControlTables(settings), 0, list[Difference]()
    own = arrow_dataset(DeltaTable(side_rows_url(settings, pipeline, run_id), storage_options=settings.storage_options or None))
    for kind, table, difference in ACCOUNTS:
        mine = own.to_table(columns=PLACE, filter=(pc.field("kind") == kind) & pc.field("inside")).to_pandas()
        of_pipeline = (pc.field("pipeline") == pipeline) & (pc.field("version") == version)
        filed = arrow_dataset(tables.open(table)).to_table(columns=PLACE, filter=of_pipeline).to_pandas()
        wrong = mismatches(mine, within(filed, start, end))
        count += len(wrong)
        named += [_named(difference, row) for row in wrong.head(samples).to_dict("records")]
    return count, named


def within(places: pd.DataFrame, start: Mapping[int, int], end: Mapping[int, int]) -> pd.DataFrame:
    """The rows of ``places`` (partition, offset) that lie in [start, end)."""
    first, last = places["partition"].map(dict(start)).fillna(0), places["partition"].map(dict(end)).fillna(0)
    return places[(places["offset"] >= first) & (places["offset"] < last)]


def mismatches(found: pd.DataFrame, filed: pd.DataFrame) -> pd.DataFrame:
    """The places whose number of rows differs, with ``found`` and ``filed``: how often the replay and the table have each; in order."""
    counts = [frame.astype("int64").groupby(PLACE).size().rename(name) for frame, name in ((found, "found"), (filed, "filed"))]
    both = pd.concat(counts, axis=1).fillna(0).astype("int64").reset_index()
    return both[both["found"] != both["filed"]].sort_values(PLACE)


def _named(kind: Kind, row: Mapping[object, int]) -> Difference:
    keys = json.dumps({name: int(row[name]) for name in PLACE})
    return Difference(
        kind=kind, cause=Cause.UNEXPLAINED, keys=keys, stream_value=f"{row['filed']} rows", hindcast_value=f"{row['found']} rows"
    )
