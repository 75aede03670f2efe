"""Statistics of ask prices for each ticker, in windows of 5 seconds that advance by 1 second.

The stock statistics example of *Kafka: The Definitive Guide* (2nd edition, chapter 14): minimum ask price,
number of trades and average ask price. A trade belongs to five windows at once, so a trade that comes late
can be late for some of them only.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast import Table, Topic, Window, pipeline


@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp, ask double", key="ticker"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("5 seconds", slide="1 second"),
    sink=Table("stock_stats", keys=["window", "ticker"]),
    version=1,
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
    """Minimum and average ask and the number of trades of each ticker in each window."""
    return trades.groupBy("window", "ticker").agg(
        F.min("ask").alias("min_ask"), F.count("*").alias("trades"), F.avg("ask").alias("avg_ask")
    )
