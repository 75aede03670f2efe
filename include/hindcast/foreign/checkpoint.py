"""The checkpoint folder of a query that others run: what each batch was planned to read, and under
which watermark.

Spark writes ``offsets/N`` before batch N runs and ``commits/N`` after it, and deletes all but the newest
(``spark.sql.streaming.minBatchesToRetain``, 100 by default). The files are read, never written, and no JVM is
needed for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError, TableNotFoundError

from hindcast.delta.files import filesystem
from hindcast.errors import ForeignStreamError, StoreUnavailableError
from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline

_FORMAT = "v1"
#: What Spark writes for a source that has no offset yet.
_NO_OFFSET = "-"


@dataclass(frozen=True)
class FinishedBatch:
    """A batch that the query has finished, by Spark's number of it, which begins at 0.

    ``watermark_ms``: the watermark under which it emitted, 0 before the first. ``next_watermark_ms``: that of
    the batch after it; None if Spark has not said so yet. ``planned_ms``: when it was planned, in epoch
    milliseconds.
    """

    number: int
    end_offsets: Offsets
    watermark_ms: int
    next_watermark_ms: int | None
    planned_ms: int


class ForeignCheckpoint:
    """Reads one folder.

    :raises ForeignStreamError: if there is none
    :raises StoreUnavailableError: if the store does not answer; so does every method
    """

    def __init__(self, pipeline: Pipeline, url: str, storage_options: dict[str, str]) -> None:
        self.url = url
        self._pipeline = pipeline
        try:
            self._files = filesystem(self.url, storage_options)
        except TableNotFoundError as error:
            raise self._refused("there is no such folder, or it cannot be read") from error
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=self.url, action="opened", reason=error) from error

    def query_id(self) -> str:
        """The id that Spark gave the query when it first ran.

        :raises ForeignStreamError: if this is no checkpoint
        """
        text = self._read("metadata")
        if text is None:
            raise self._refused("it has no file `metadata`, so no query has ever run with it")
        try:
            return str(json.loads(text)["id"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._refused(f"its file `metadata` is not understood ({error})") from error

    def finished(self) -> Sequence[int]:
        """The numbers of the finished batches that the folder still has, in order."""
        return sorted(self._numbers("offsets") & self._numbers("commits"))

    def batch(self, number: int) -> FinishedBatch | None:
        """A batch that is in the table; None if Spark has deleted it.

        :raises ForeignStreamError: if its files are not understood
        """
        planned = self._read(f"offsets/{number}")
        committed = self._read(f"commits/{number}")
        if planned is None:
            return None
        try:
            lines = self._lines(planned)
            head = json.loads(lines[1])
            after_ms = None
            if committed is not None:
                after_ms = int(json.loads(self._lines(committed)[1]).get("nextBatchWatermarkMs", 0))
            return FinishedBatch(
                number=number,
                end_offsets=self._offsets(lines[2:]),
                watermark_ms=int(head["batchWatermarkMs"]),
                next_watermark_ms=after_ms,
                planned_ms=int(head["batchTimestampMs"]),
            )
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._refused(f"its batch {number} is not understood ({error})") from error

    def first_offsets(self) -> Offsets | None:
        """Where the query's first batch began; None if the folder does not say."""
        text = self._read("sources/0/0")
        if text is None:
            return None
        try:
            # Spark's Kafka source has a zero byte before the version of its format.
            return self._offsets(self._lines(text.lstrip("\0"))[1:])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._refused(f"its file sources/0/0 is not understood ({error})") from error

    def _lines(self, text: str) -> list[str]:
        lines = text.splitlines()
        if lines[0] != _FORMAT:
            raise ValueError(f"it is of the format {lines[0]!r}")
        return lines

    def _offsets(self, sources: Sequence[str]) -> Offsets:
        """The offsets of the one source, which reads the one topic."""
        (text,) = sources
        if text == _NO_OFFSET:
            return {}
        by_topic: dict[str, Any] = json.loads(text)
        topic = self._pipeline.source.name
        if set(by_topic) != {topic}:
            raise ValueError(f"it reads {', '.join(by_topic)}, and not {topic} alone")
        return {int(partition): int(offset) for partition, offset in by_topic[topic].items()}

    def _numbers(self, folder: str) -> set[int]:
        names = pafs.FileSelector(folder, allow_not_found=True)
        try:
            found = self._files.get_file_info(names)
        except OSError as error:
            raise StoreUnavailableError(table=self.url, action="read", reason=error) from error
        return {int(info.base_name) for info in found if info.base_name.isdecimal()}

    def _read(self, name: str) -> str | None:
        try:
            with self._files.open_input_stream(name) as file:
                text: bytes = file.read()
                return text.decode()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailableError(table=self.url, action="read", reason=error) from error

    def _refused(self, problem: str) -> ForeignStreamError:
        cure = "Name the checkpoint folder of a query that reads this topic and nothing else."
        name = self._pipeline.name
        return ForeignStreamError(pipeline=name, problem=f"{self.url}: {problem}", cure=cure)
