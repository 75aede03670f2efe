"""Load parcels into trucks as they arrive, each into the first that has room, against the batch that knows
them all.

Bin packing from *Stream Processing with Apache Spark* (chapter 3). First fit decides for each parcel at once
and uses at most 1.7 times the optimum (Dosa and Sgall, 2013). In hindsight the parcels can be sorted first:
first fit decreasing uses at most 11/9 of the optimum + 6/9 (Dosa, 2007). A verdict's ratio of ``trucks`` is
the price of not knowing what comes. It fails if a load pays more than the proven bound.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from hindcast import Mode, Table, Topic, pipeline

CAPACITY = 100
#: First fit against the optimum, of which hindsight uses no fewer.
BOUND = 1.7
RESULT = "truck_load string, parcels long, volume long, trucks int"


def first_fit(sizes: Iterable[int], free: list[int]) -> list[int]:
    """Put each parcel into the first truck that has room, or into a new one.

    :param free: the room left in each truck; changed, and returned
    """
    for size in sizes:
        truck = next((number for number, room in enumerate(free) if room >= size), None)
        if truck is None:
            free.append(CAPACITY - size)
        else:
            free[truck] -= size
    return free


class FirstFit(StatefulProcessor):
    """The trucks of one load."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.trucks = handle.getValueState("trucks", "free array<int>, parcels long, volume long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803, ARG002 - Spark's names
        held = self.trucks.get() if self.trucks.exists() else None
        free, parcels, volume = (list(held[0]), held[1], held[2]) if held else ([], 0, 0)
        sizes = [row["size"] for row in sorted(rows, key=lambda row: row["_offset"])]
        first_fit(sizes, free)
        parcels, volume = parcels + len(sizes), volume + sum(sizes)
        self.trucks.update((free, parcels, volume))
        yield Row(truck_load=key[0], parcels=parcels, volume=volume, trucks=len(free))

    def close(self) -> None:
        pass


def first_fit_decreasing(parcels: DataFrame) -> DataFrame:
    """The largest parcels first."""

    def pack(load: pd.DataFrame) -> pd.DataFrame:
        sizes = sorted(load["size"].tolist(), reverse=True)
        trucks = len(first_fit(sizes, []))
        return pd.DataFrame(
            {
                "truck_load": load["truck_load"].iloc[:1],
                "parcels": len(sizes),
                "volume": sum(sizes),
                "trucks": trucks,
            }
        )

    return _fitting(parcels).groupBy("truck_load").applyInPandas(pack, RESULT)


def _fitting(parcels: DataFrame) -> DataFrame:
    return parcels.where(f"size BETWEEN 1 AND {CAPACITY}")


@pipeline(
    source=Topic(
        "parcels",
        schema="truck_load string NOT NULL, parcel int, size int NOT NULL, ts timestamp",
        key="truck_load",
    ),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("truck_loads", keys=["truck_load"], mode=Mode.UPSERT),
    version=1,
    paused=True,
    re_execute=True,
    hindsight=first_fit_decreasing,
    ratio_bound={"trucks": BOUND},
)
def bin_packing(parcels: DataFrame) -> DataFrame:
    """The trucks that each load has filled so far, parcel by parcel in the order of arrival."""
    return (
        _fitting(parcels)
        .groupBy("truck_load")
        .transformWithState(
            statefulProcessor=FirstFit(), outputStructType=RESULT, outputMode="update", timeMode="None"
        )
    )
