"""Words that come one by one, in order within a speaker, joined into sentences that end at a full stop.

The joining of words from Storm's Kafka example. It shows state of a pipeline's own (``transformWithState``):
the words of an unfinished sentence wait in it for the next batch. Where a batch ends must not matter, so the
words of a batch are put into the order of their offsets first, and re-execution holds the stream to that.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from hindcast import Table, Topic, pipeline

#: A speaker who never ends a sentence must not fill the state: it is cut after so many words.
MOST_WORDS = 1000
RESULT = "speaker string, sentence string, words int, partition int, first_offset long, last_offset long"


class Sentences(StatefulProcessor):
    """One speaker's unfinished sentence."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.begun = handle.getValueState("begun", "words array<string>, first_offset long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803, ARG002 - Spark's names
        begun = self.begun.get() if self.begun.exists() else None
        words, first = (list(begun[0]), begun[1]) if begun else ([], None)
        for row in sorted(rows, key=lambda row: row["_offset"]):
            first = row["_offset"] if first is None else first
            words.append(row["word"])
            if row["word"].endswith(".") or len(words) == MOST_WORDS:
                yield Row(
                    speaker=key[0],
                    sentence=" ".join(words),
                    words=len(words),
                    partition=row["_partition"],
                    first_offset=first,
                    last_offset=row["_offset"],
                )
                words, first = [], None
        if words:
            self.begun.update((words, first))
        else:
            self.begun.clear()

    def close(self) -> None:
        pass


@pipeline(
    source=Topic(
        "spoken",
        schema="speaker string NOT NULL, word string NOT NULL, seq long, ts timestamp",
        key="speaker",
    ),
    event_time="ts",
    watermark="10 seconds",
    sink=Table("sentences", keys=["partition", "last_offset"]),
    version=1,
    paused=True,
    re_execute=True,
)
def sentences(spoken: DataFrame) -> DataFrame:
    """Each sentence, with the offsets of its first and last word."""
    return spoken.groupBy("speaker").transformWithState(
        statefulProcessor=Sentences(), outputStructType=RESULT, outputMode="append", timeMode="None"
    )
