"""Version 2 of the stock statistics: the greatest ask as well, and an odd lot (fewer than a hundred shares)
counts nowhere.

A file may declare it while version 1 runs: `hindcast reprocess stock_stats --version 2 --from earliest
--new-table` starts it. Readers get it once it is promoted.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast import Table, Topic, Window, pipeline


@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp, ask double, size int", key="ticker"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("5 seconds", slide="1 second"),
    sink=Table("stock_stats_v2", keys=["window", "ticker"]),
    version=2,
    shards=2,
    captured_floor=0.9,
    expectations=[
        {"type": "expect_column_values_to_not_be_null", "column": "ticker"},
        {"type": "expect_column_values_to_be_between", "column": "trades", "min_value": 1},
        {
            "type": "expect_column_values_to_be_between",
            "column": "min_ask",
            "min_value": 0,
            "strict_min": True,
        },
    ],
)
def stock_stats(trades: DataFrame) -> DataFrame:
    """Minimum, maximum and average ask and the number of trades of each ticker in each window."""
    return (
        trades.where("size >= 100")
        .groupBy("window", "ticker")
        .agg(
            F.min("ask").alias("min_ask"),
            F.max("ask").alias("max_ask"),
            F.count("*").alias("trades"),
            F.avg("ask").alias("avg_ask"),
        )
    )
