"""Records from a file of one's own: each line is the value of one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from hindcast.errors import BadInputError
from hindcast.pipeline import Format, Topic
from hindcast_sandbox.generators import Generator
from hindcast_sandbox.generators.record import Record


def file_records(path: Path, topic: Topic) -> Generator:
    """The lines of a file, in their order and as they are, without the end of the line. Empty lines are left
    out.

    A line of JSON has the topic's key column as its key. A line of text has no key, and neither has one that
    cannot be read: the producer chooses their partitions.

    :param path: plain, or compressed with gzip if it ends so
    :raises BadInputError: if it cannot be read, or the topic's records are no lines
    """
    if topic.format not in (Format.JSON, Format.TEXT):
        problem = f"A line of {path} is no record of {topic.name}, whose format is {topic.format}"
        raise BadInputError(
            problem=problem, cure="A file can have the records of a topic of JSON or of text."
        )
    try:
        _opened(path).close()
    except OSError as error:
        raise BadInputError(
            problem=f"{path} cannot be read: {error}", cure="Name a file of lines."
        ) from error
    key_of: Callable[[bytes], bytes | None] = _no_key
    if topic.format is Format.JSON and topic.key:
        key_of = partial(_column, topic.key)

    def make(_seed: int, rows_per_second: float, _start: datetime) -> Iterator[Record]:
        number = 0
        with _opened(path) as lines:
            for line in lines:
                value = line.rstrip(b"\r\n")
                if value:
                    yield Record(number / rows_per_second, key_of(value), value)
                    number += 1

    return Generator(path.name, (topic.name,), make)


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    return path.open("rb")


def _no_key(_: bytes) -> None:
    return None


def _column(name: str, line: bytes) -> bytes | None:
    """The column's value as text; None if the line has none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or row.get(name) is None:
        return None
    return str(row[name]).encode()
