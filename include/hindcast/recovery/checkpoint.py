"""Read Spark's own checkpoint of a query: what each batch was planned to read, and under which watermark.

Spark writes ``offsets/N`` before batch N runs and ``commits/N`` after it (its write-ahead and commit logs). A
batch that is run again after a crash is planned from ``offsets/N``, so it is the same batch. The files are
read through Hadoop, on a local disk and on an object store alike.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from hindcast.errors import CheckpointDamagedError
from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE, Pipeline, Topic
from hindcast.spark.kafka_source import of_topic, offsets_option
from hindcast.spark.scratch import paths_of

_FORMAT = "v1"
_SHUFFLES = "spark.sql.shuffle.partitions"
#: Before Spark's first batch, which has the number 0.
_NONE = -1
#: If the rebuilding that follows is not possible, its own error says so.
CURE = (
    "Nothing was read or written. The state is rebuilt from the topic, if the topic still holds what open "
    "windows need."
)
#: The name of a batch's file.
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class PlannedBatch:
    """One entry of Spark's offset log. ``watermark_ms`` is the watermark under which the batch emits and
    evicts; 0 before the first.
    """

    end_offsets: Offsets
    watermark_ms: int


class BatchPlans(Protocol):
    """Knows what each batch of a query was planned to read."""

    def planned(self, spark_batch: int) -> PlannedBatch:
        """The plan of a batch, by Spark's number of it."""


class SparkCheckpoint:
    """The checkpoint folder of one query on a pipeline's topics. Offsets are by the pipeline's own
    partitions.
    """

    def __init__(self, spark: SparkSession, url: str, *, pipeline: Pipeline, shard: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        # Looked up once: each name on the way to a class is a call into the JVM.
        self._path = self._jvm.org.apache.hadoop.fs.Path
        self._io = self._jvm.org.apache.commons.io.IOUtils
        self._root = self._path(url)
        self._fs = self._root.getFileSystem(context._jsc.hadoopConfiguration())
        self.url = url
        self._pipeline = pipeline
        self._shard = shard

    def planned(self, spark_batch: int) -> PlannedBatch:
        """The plan of a batch.

        :raises CheckpointDamagedError: if its file is missing, empty or torn
        """
        with self._understood(spark_batch) as lines:
            batch = json.loads(lines[1])
            ends = self._ends([json.loads(line) for line in lines[2:]])
            return PlannedBatch(ends, int(batch["batchWatermarkMs"]))

    def watermark_ms(self, spark_batch: int) -> int:
        """The watermark under which a batch emits, of whatever sources it reads; 0 before the first.

        :raises CheckpointDamagedError: if its file is missing, empty or torn
        """
        with self._understood(spark_batch) as lines:
            return int(json.loads(lines[1])["batchWatermarkMs"])

    @contextmanager
    def _understood(self, spark_batch: int) -> Iterator[list[str]]:
        """The lines of a batch's plan, for reading them: what is not understood is damage."""
        text = self._read(f"offsets/{spark_batch}")
        lines = (text or "").splitlines()
        try:
            if lines[0] != _FORMAT:
                raise self._damaged(f"offsets/{spark_batch} is of the format {lines[0]!r}")
            yield lines
        except (IndexError, KeyError, TypeError, ValueError) as error:
            problem = f"is torn or not understood ({error})"
            if text is None:
                problem = "is missing"
            raise self._damaged(f"offsets/{spark_batch} {problem}") from error

    def _ends(self, sources: list[dict[str, dict[str, int]]]) -> Offsets:
        """One entry a source, in the order of the query's plan; a source whose topic had no record yet is
        null.
        """
        indexes = {topic.name: index for index, topic in enumerate(self._pipeline.topics)}
        ends: Offsets = {}
        for entry in sources:
            for topic, offsets in (entry or {}).items():
                if topic not in indexes:
                    raise ValueError(f"it reads {entry}, and no topic of the pipeline")
                for number, offset in offsets.items():
                    partition = indexes[topic] * TOPIC_STRIDE + int(number)
                    if ends.setdefault(partition, int(offset)) != int(offset):
                        raise ValueError(
                            f"{topic} is read twice, to different offsets: join the frame of one topic once"
                        )
        return ends

    def check(self, last_batch: int | None) -> None:
        """Refuse a folder from which Spark could not resume exactly where the sink ends.

        :param last_batch: Spark's number of the last batch that the sink holds, None before the first
        :raises CheckpointDamagedError: naming the file that is wrong
        """
        planned = self._numbers("offsets")
        committed = self._numbers("commits")
        if last_batch is None:
            self._check_unused(planned, committed)
            return
        self._check_metadata()
        newest_plan = planned[-1] if planned else _NONE
        newest_commit = committed[-1] if committed else _NONE
        in_sink = f"but the sink holds batch {last_batch}"
        if newest_plan < last_batch:
            raise self._damaged(f"its newest plan is of batch {_number(newest_plan)}, {in_sink}")
        for number in range(max(last_batch - 1, 0), newest_plan + 1):
            self.planned(number)
        if newest_commit > newest_plan:
            raise self._damaged(f"it has committed batch {newest_commit} without a plan of it")
        if newest_commit < last_batch - 1:
            raise self._damaged(f"it has committed up to batch {_number(newest_commit)}, {in_sink}")
        if committed:
            self._check_commit(newest_commit)

    def _check_unused(self, planned: list[int], committed: list[int]) -> None:
        """Check the folder of a query whose sink holds no batch yet.

        If it has planned nothing, the folder is emptied: Spark begins a query only if nothing is left of a
        plan that was not written whole.
        """
        if committed:
            problem = f"it has committed batch {committed[-1]}, of which the sink knows nothing"
            raise self._damaged(problem)
        if not planned:
            self.remove()
            return
        self._check_metadata()
        self.planned(planned[-1])

    def _check_commit(self, number: int) -> None:
        text = self._read(f"commits/{number}") or ""
        if not text.startswith(_FORMAT):
            raise self._damaged(f"commits/{number} is torn or empty")

    def _check_metadata(self) -> None:
        text = self._read("metadata")
        if text is None:
            raise self._damaged("its file `metadata` is missing, though the query has planned batches")
        try:
            json.loads(text)["id"]
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"its file `metadata` is torn or not understood ({error})") from error

    def _numbers(self, folder: str) -> list[int]:
        path = self._path(self._root, folder)
        if not self._fs.exists(path):
            return []
        names = [path.rpartition("/")[2] for path in paths_of(self._jvm, self._fs.listStatus(path))]
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def _read(self, name: str) -> str | None:
        """The file's text, None if there is no such file.

        :raises CheckpointDamagedError: if its checksum is of another text
        """
        path = self._path(self._root, name)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "ChecksumException":
                raise self._damaged(f"{name} is torn: it does not agree with its checksum") from error
            raise
        finally:
            stream.close()

    def _damaged(self, problem: str) -> CheckpointDamagedError:
        return CheckpointDamagedError(
            pipeline=self._pipeline.name, shard=self._shard, path=self.url, problem=problem, cure=CURE
        )

    # -- a checkpoint that is made, not found ----------------------------------------------------------------

    def begin(self, spark: SparkSession, end_offsets: Offsets) -> None:
        """Make a new checkpoint whose first batch reads up to ``end_offsets``, whatever its length.

        It begins at the query's own starting offset. What was in the folder is removed.
        """
        now_ms = time.time_ns() // 1_000_000
        metadata = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
        # The configuration that Spark pins for a query: without it a restarted query falls back to the state
        # layout of old versions.
        batch = json.loads(metadata.apply(0, now_ms, spark._jsparkSession.conf()).json())
        # Spark takes it from the query's own session, which does not exist yet.
        batch["conf"][_SHUFFLES] = spark.conf.get(_SHUFFLES)
        ends = offsets_option(self._pipeline.source.name, end_offsets)
        self.remove()
        self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        self._write("offsets/0", "\n".join([_FORMAT, json.dumps(batch), ends]))

    def adopt(self, last_batch: int, sources: Sequence[Topic], end_offsets: Offsets) -> None:
        """Let a query whose batches read files resume on the topics, after ``last_batch``.

        :param sources: the topic of each source, in the order of the query's plan
        :param end_offsets: up to where the records of that batch went, by the pipeline's partitions
        :raises CheckpointDamagedError: if the batch was not run, or if another came after it: that batch's
            state would stand in the way of the state of the query's own next batch
        """
        lines = (self._read(f"offsets/{last_batch}") or "").splitlines()
        if len(lines) != 2 + len(sources):
            raise self._damaged(f"batch {last_batch} was not run again")
        for folder in ("offsets", "commits"):  # Spark keeps the newest ones alone
            newest = self._numbers(folder)[-1:]
            if newest != [last_batch]:
                raise self._damaged(f"the batches were run again up to {newest}, not to {last_batch}")
        self._delete("sources")
        ends = [offsets_option(topic.name, of_topic(self._pipeline, topic, end_offsets)) for topic in sources]
        self._write(f"offsets/{last_batch}", "\n".join([*lines[:2], *ends]))

    def remove(self) -> None:
        """Delete the folder and all in it."""
        self._fs.delete(self._root, True)

    def _delete(self, name: str) -> None:
        self._fs.delete(self._path(self._root, name), True)

    def _write(self, name: str, text: str) -> None:
        stream = self._fs.create(self._path(self._root, name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


def _number(batch: int) -> str:
    return "none" if batch == _NONE else str(batch)
