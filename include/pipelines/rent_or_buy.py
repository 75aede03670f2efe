"""Rent skis or buy them, not knowing how often one will ski: two rules that decide day by day, against the
batch in hindsight.

The ski-rental problem of *Stream Processing with Apache Spark* (chapter 3). A day's rent costs 1, a pair of
skis 10. A skier who rents until the rent paid would equal the price pays at most 2 - 1/10 times the
optimum. One who buys on the first day pays at most 10 times that. The stream keeps what each rule has cost so
far; in hindsight the days are known and the cheaper way is taken. A verdict's ratios are the competitive
ratios, and it fails if one is beyond what was proven.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast import Mode, Table, Topic, pipeline

RENT, PRICE = 1.0, 10.0
#: Proven bounds of cost / optimum.
BOUNDS = {"rent_until_equal": 2 - RENT / PRICE, "always_buy": PRICE / RENT}


def _days(days: DataFrame) -> DataFrame:
    return days.groupBy("skier").agg(F.count("*").alias("days"))


def _rent_until_equal(days: Column) -> Column:
    """Rent while the rent paid, with today's, stays below the price; buy on the day on which it would reach
    it.
    """
    last_rented = PRICE / RENT - 1
    return F.when(days <= last_rented, days * RENT).otherwise(last_rented * RENT + PRICE)


def optimum(days: DataFrame) -> DataFrame:
    """Rent for few days, buy for many: known once the last day is."""
    best = F.least(F.col("days") * RENT, F.lit(PRICE))
    return _days(days).select("skier", "days", best.alias("rent_until_equal"), best.alias("always_buy"))


@pipeline(
    source=Topic("ski_days", schema="skier string NOT NULL, day int, ts timestamp", key="skier"),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("ski_costs", keys=["skier"], mode=Mode.UPSERT),
    version=1,
    paused=True,
    shards=2,
    hindsight=optimum,
    ratio_bound=BOUNDS,
)
def rent_or_buy(days: DataFrame) -> DataFrame:
    """What each rule has cost each skier so far."""
    return _days(days).select(
        "skier",
        "days",
        _rent_until_equal(F.col("days")).alias("rent_until_equal"),
        F.lit(PRICE).alias("always_buy"),
    )
