"""The lines of a file as records."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import Column

from hindcast.errors import BadInputError
from hindcast.pipeline import Format, Topic
from hindcast_sandbox.file_records import file_records
from hindcast_sandbox.generators.record import Record

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
JSON = Topic("trades", schema="ticker string", key="ticker")


def parse(line: Column) -> Column:
    """Stands for what takes a line apart."""
    return line


TEXT = Topic("lines", schema="line string", format=Format.TEXT, parse=parse)


def records(path: Path, topic: Topic, rate: float = 10.0) -> list[Record]:
    """All records of the file."""
    return list(file_records(path, topic).make(1, rate, START))


def test_each_line_is_a_record(tmp_path: Path) -> None:
    """As it is, whatever its bytes; its key is the topic's key column, if it has one."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"ticker": "A"}\n{"ticker": 7}\r\n\n{"other": 1}\n[1]\n\xff not JSON\n"last"')
    made = records(path, JSON)
    assert [(one.key, one.value) for one in made] == [
        (b"A", b'{"ticker": "A"}'),
        (b"7", b'{"ticker": 7}'),
        (None, b'{"other": 1}'),
        (None, b"[1]"),
        (None, b"\xff not JSON"),
        (None, b'"last"'),
    ]
    assert [one.due_seconds for one in made] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_compressed_log_is_read_line_by_line(tmp_path: Path) -> None:
    """A line of text has no key, though it looks like JSON."""
    path = tmp_path / "access.log.gz"
    path.write_bytes(gzip.compress(b'one\n{"ticker": "A"}\n'))
    made = [(one.key, one.value) for one in records(path, TEXT)]
    assert made == [(None, b"one"), (None, b'{"ticker": "A"}')]


def test_what_has_no_lines_is_refused(tmp_path: Path) -> None:
    """Before anything is sent: a file that is not there, and records that are no lines."""
    with pytest.raises(BadInputError, match="cannot be read"):
        file_records(tmp_path / "missing.jsonl", JSON)
    avro = Topic("orders", schema="", format=Format.AVRO, avro_schema="{}")
    (tmp_path / "orders.avro").touch()
    with pytest.raises(BadInputError, match="no record of orders"):
        file_records(tmp_path / "orders.avro", avro)
