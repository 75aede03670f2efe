"""The batch that somebody would write with Spark alone: the same windows over what a topic holds, into a table.

``python plain_batch.py`` imports nothing of Hindcast. It is :mod:`benchmarks.speed.plain_stream`, tuned, as a
batch.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.speed.plain_stream import TUNED, session, stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--jars", type=Path, required=True, help="Spark's extra jars")
    asked = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = session("plain-batch", asked.jars, TUNED)
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", asked.servers)
        .option("subscribe", asked.topic)
        .load()
    )
    stats(records).write.format("delta").save(str(asked.table))
    spark.stop()


if __name__ == "__main__":
    main()
