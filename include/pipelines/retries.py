"""Payments that are processed one by one, fail, and come again on a retry topic: what became of each.

Single-event processing with a retry topic, and events out of sequence, from *Kafka: The Definitive Guide*
(2nd edition, chapter 14). It shows two topics in one pipeline. Events of one payment may overtake each other,
so those of a window of 30 seconds are judged together, by their sequence number and not by their arrival.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast import Table, Topic, pipeline

SCHEMA = "payment string NOT NULL, seq int NOT NULL, attempt int, amount double, ok boolean, ts timestamp"


@pipeline(
    source=Topic("payments", schema=SCHEMA, key="payment"),
    joined=[Topic("payments-retry", schema=SCHEMA, key="payment")],
    event_time="ts",
    watermark="10 seconds",
    sink=Table("payment_results", keys=["window", "payment"]),
    version=1,
    paused=True,
    re_execute=True,
)
def retries(payments: DataFrame, again: DataFrame) -> DataFrame:
    """Of each payment in each window: how often it was tried, whether the last try went well, and whether it
    came out of sequence.
    """
    events = payments.withColumn("retry", F.lit(0)).unionByName(again.withColumn("retry", F.lit(1)))
    by_seq = F.sort_array(F.collect_list(F.struct("seq", "attempt", "ok", "amount", "_timestamp")))
    last = F.element_at("events", -1)
    arrived = F.transform("events", lambda event: event["_timestamp"])
    found = events.groupBy(F.window("ts", "30 seconds"), "payment").agg(
        by_seq.alias("events"), F.sum("retry").alias("retries")
    )
    return found.select(
        "window",
        "payment",
        F.size("events").alias("tries"),
        "retries",
        last["ok"].alias("ok"),
        last["amount"].alias("amount"),
        (F.array_sort(arrived) != arrived).alias("out_of_sequence"),
    )
