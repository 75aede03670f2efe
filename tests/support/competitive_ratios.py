"""How much the online algorithms pay against the batch in hindsight: through the example pipelines' own
functions, on many inputs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import catalog
from hindcast.pipeline import Pipeline
from hindcast.settings import project_root
from hindcast.spark.session import keep_state_for
from hindcast.spark.transformation import transform
from hindcast_sandbox.generators.parcels import BAD_SIZES

#: First fit never uses more than 1.7 times the optimum (Dosa and Sgall, 2013), and first fit decreasing never
#: fewer than it.
FIRST_FIT_BOUND = 1.7
INPUTS = 1000


@dataclass(frozen=True)
class Ratios:
    """Online cost / cost in hindsight, one for each input. ``adversary``: on the input made to be worst."""

    bound: float
    random: list[float]
    adversary: list[float]


def ratios(spark: SparkSession, seed: int = 1) -> dict[str, Ratios]:
    """By rule."""
    return {**_renting(spark, seed), "first_fit": _packing(spark, seed)}


def _renting(spark: SparkSession, seed: int) -> dict[str, Ratios]:
    pipeline, rng = _pipeline("rent_or_buy"), random.Random(seed)
    chance = {f"r{number}": rng.randint(1, 40) for number in range(INPUTS)}
    worst = {"a1": 1, "a10": 10}
    days = [(skier, day) for skier, count in {**chance, **worst}.items() for day in range(1, count + 1)]
    frame = spark.createDataFrame(days, "skier string, day int")
    found = {}
    for rule, bound in pipeline.transform.__globals__["BOUNDS"].items():
        by_input = _paid(pipeline, frame, "skier", rule)
        adversary = by_input["a10" if rule == "rent_until_equal" else "a1"]
        found[rule] = Ratios(
            bound, [ratio for name, ratio in by_input.items() if name in chance], [adversary]
        )
    return found


def _packing(spark: SparkSession, seed: int) -> Ratios:
    pipeline, rng = _pipeline("bin_packing"), random.Random(seed)
    loads: dict[str, Sequence[int]] = {
        f"r{number}": [rng.randint(1, 100) for _ in range(rng.randint(5, 60))] for number in range(INPUTS)
    }
    loads |= {f"a{each}": [size for size in BAD_SIZES for _ in range(6 * each)] for each in range(1, 5)}
    parcels = [(load, number, size) for load, sizes in loads.items() for number, size in enumerate(sizes)]
    by_input = _paid(
        pipeline,
        spark.createDataFrame(parcels, "truck_load string, _offset long, size int"),
        "truck_load",
        "trucks",
    )
    sides: dict[str, list[float]] = {"r": [], "a": []}
    for load, ratio in by_input.items():
        sides[load[0]].append(ratio)
    return Ratios(FIRST_FIT_BOUND, sides["r"], sides["a"])


def _paid(pipeline: Pipeline, frame: DataFrame, key: str, cost: str) -> dict[str, float]:
    keep_state_for(frame.sparkSession, pipeline)
    assert (
        not frame.sparkSession.streams.active
    )  # asking starts what keeps track of state stores, which a batch with state needs, too
    online = transform([frame], pipeline).select(key, F.col(cost).alias("paid"))
    best = transform([frame], pipeline, hindsight=True).select(key, F.col(cost).alias("least"))
    return {row[key]: row["paid"] / row["least"] for row in online.join(best, key).collect()}


def _pipeline(name: str) -> Pipeline:
    return catalog.load(project_root() / "include" / "pipelines")[name]
