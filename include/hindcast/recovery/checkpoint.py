"""Read Spark's own checkpoint of a query: what each batch was planned to read, and under which watermark.

Spark writes ``offsets/N`` before batch N runs and ``commits/N`` after it (its write-ahead and commit logs). A
batch that is run again after a crash is planned from ``offsets/N``, so it is the same batch. The files are
read through Hadoop, wherever they are.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from hindcast.errors import CheckpointDamagedError
from hindcast.partitions import Offsets
from hindcast.pipeline import TOPIC_STRIDE, Pipeline, Topic
from hindcast.spark.kafka_source import of_topic, offsets_option

_FORMAT = "v1"
_SHUFFLES = "spark.sql.shuffle.partitions"
#: Where the rewinding that follows is not possible, its own error says so.
CURE = "Nothing was read or written. It is made anew from the topic where that still holds what open windows need."


@dataclass(frozen=True)
class PlannedBatch:
    """One entry of Spark's offset log. ``watermark_ms`` is the watermark under which the batch emits and
    evicts; 0 before the first.
    """

    end_offsets: Offsets
    watermark_ms: int


class SparkCheckpoint:
    """The checkpoint folder of one query on a pipeline's topics. Offsets are by the pipeline's own
    partitions.
    """

    def __init__(self, spark: SparkSession, url: str, *, pipeline: Pipeline, shard: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        # Looked up once: each name on the way to a class is a call into the JVM.
        self._path, self._io = self._jvm.org.apache.hadoop.fs.Path, self._jvm.org.apache.commons.io.IOUtils
        self._root = self._path(url)
        self._fs = self._root.getFileSystem(context._jsc.hadoopConfiguration())
        self.url, self._pipeline, self._shard = url, pipeline, shard

    def planned(self, spark_batch: int) -> PlannedBatch:
        """The plan of a batch.

        :raises CheckpointDamagedError: where its file is missing, empty or torn
        """
        text = self._read(f"offsets/{spark_batch}")
        lines = (text or "").splitlines()
        try:
            if lines[0] != _FORMAT:
                raise self._damaged(f"offsets/{spark_batch} is of the format {lines[0]!r}")
            about, ends = json.loads(lines[1]), self._ends([json.loads(line) for line in lines[2:]])
            return PlannedBatch(ends, int(about["batchWatermarkMs"]))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            what = "is missing" if text is None else f"is torn or not understood ({error})"
            raise self._damaged(f"offsets/{spark_batch} {what}") from error

    def _ends(self, sources: list[dict[str, dict[str, int]]]) -> Offsets:
        """One entry a source, in the order of the query's plan; a source whose topic had no record yet is
        null.
        """
        indexes = {topic.name: index for index, topic in enumerate(self._pipeline.topics)}
        ends: Offsets = {}
        for entry in sources:
            for topic, offsets in (entry or {}).items():
                for number, offset in offsets.items():
                    partition = indexes[topic] * TOPIC_STRIDE + int(number)
                    if ends.setdefault(partition, int(offset)) != int(offset):
                        raise ValueError(
                            f"{topic} is read twice, to different offsets: join the frame of one topic once"
                        )
        return ends

    def check(self, last_batch: int | None) -> None:
        """Refuse a folder from which Spark could not go on exactly where the sink stands.

        One whose query planned nothing yet is emptied: Spark begins it only where nothing is left of a plan
        that was not written whole.

        :param last_batch: Spark's number of the last batch that the sink holds, None before the first
        :raises CheckpointDamagedError: naming the file that is wrong
        """
        planned, committed = self._numbers("offsets"), self._numbers("commits")
        if last_batch is None:
            if committed:
                raise self._damaged(
                    f"it has committed batch {committed[-1]}, of which the sink knows nothing"
                )
            if not planned:
                self.remove()
                return
            self._check_metadata()
            self.planned(planned[-1])
            return
        self._check_metadata()
        if not planned or planned[-1] < last_batch:
            raise self._damaged(
                f"its newest plan is of batch {planned[-1] if planned else 'none'}, but the sink holds batch {last_batch}"
            )
        for number in range(max(last_batch - 1, 0), planned[-1] + 1):
            self.planned(number)
        if committed and committed[-1] > planned[-1]:
            raise self._damaged(f"it has committed batch {committed[-1]} without a plan of it")
        if (committed[-1] if committed else -1) < last_batch - 1:
            raise self._damaged(
                f"it has committed up to batch {committed[-1] if committed else 'none'}, but the sink holds batch {last_batch}"
            )
        for number in committed[-1:]:
            if not (self._read(f"commits/{number}") or "").startswith(_FORMAT):
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
        found = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(self._fs.listStatus(path))
        # As one string, "{.../offsets/0,.../offsets/1}": asked for one by one, a hundred names are several
        # hundred calls into the JVM.
        text = self._jvm.org.apache.commons.lang3.ArrayUtils.toString(found)
        return sorted(int(number) for number in re.findall(rf"/{folder}/(\d+)(?=[,}}])", text))

    def _read(self, name: str) -> str | None:
        """The file's text, None where there is none.

        :raises CheckpointDamagedError: where it is not what its checksum is of
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

    # -- a checkpoint that is made, not found
    # ----------------------------------------------------------------------------------

    def begin(self, spark: SparkSession, end_offsets: Offsets) -> None:
        """Make a new checkpoint whose first batch reads up to ``end_offsets``, whatever its length; where it
        begins is the query's own starting offset. What was in the folder is removed.
        """
        now_ms = time.time_ns() // 1_000_000
        metadata = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
        # The configuration that Spark pins for a query: without it a restarted query falls back to the state
        # layout of old versions.
        about = json.loads(metadata.apply(0, now_ms, spark._jsparkSession.conf()).json())
        about["conf"][_SHUFFLES] = spark.conf.get(
            _SHUFFLES
        )  # Spark takes it from the query's own session, which is not there yet
        self.remove()
        self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        self._write(
            "offsets/0",
            "\n".join([_FORMAT, json.dumps(about), offsets_option(self._pipeline.source.name, end_offsets)]),
        )

    def adopt(self, last_batch: int, sources: Sequence[Topic], end_offsets: Offsets) -> None:
        """Of a checkpoint whose batches read files: let the query go on on the topics, after ``last_batch``.

        :param sources: the topic of each source, in the order of the query's plan
        :param end_offsets: up to where the records of that batch went, by the pipeline's partitions
        :raises CheckpointDamagedError: where the batch was not run
        """
        lines = (self._read(f"offsets/{last_batch}") or "").splitlines()
        if len(lines) != 2 + len(sources) or last_batch not in self._numbers("commits"):
            raise self._damaged(f"batch {last_batch} was not run again")
        for folder in (
            "offsets",
            "commits",
        ):  # after the last batch Spark runs one more, to let go of what its watermark closed
            for number in self._numbers(folder):
                if number > last_batch:
                    self._delete(f"{folder}/{number}")
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
