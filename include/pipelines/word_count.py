"""How often each word was said so far: a running result, one row a word, in a table that each batch updates.

The word count of *Kafka: The Definitive Guide* (2nd edition, chapter 14) and of *Stream Processing with
Apache Spark* (chapter 8). It shows an upsert table: no window closes, so there is nothing to wait for and
nothing is late; a word's row is replaced as it is said again.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast import Mode, Table, Topic, pipeline


@pipeline(
    source=Topic("words", schema="word string NOT NULL, ts timestamp", key="word"),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("word_counts", keys=["word"], mode=Mode.UPSERT),
    version=1,
    paused=True,
    shards=2,
    expectations=[{"type": "expect_column_values_to_be_between", "column": "count", "min_value": 1}],
)
def word_count(words: DataFrame) -> DataFrame:
    """The number of times each word was said, and when it was said last."""
    return words.groupBy("word").agg(F.count("*").alias("count"), F.max("ts").alias("last_said_at"))
