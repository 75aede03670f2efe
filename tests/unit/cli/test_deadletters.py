"""Dead letters that are listed as JSON can be repaired and sent back as they are."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from support.arrow_memory import arrow_memory

from hindcast import catalog
from hindcast.cli.main import run
from hindcast.errors import BadInputError
from hindcast.installation import Installation
from hindcast.kafka import redrive
from hindcast.kafka.redrive import Repaired, check_letters, letters_of
from hindcast.settings import Settings, project_root
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable

NAME = "stock_stats"
#: (key, value) of the letters: text, bytes that are no UTF-8, what looks like an escape, no value, a byte
#: order mark, all bytes.
RECORDS: list[tuple[bytes | None, bytes | None]] = [
    (b"ACME", b'{"ticker": "ACME", "size": "x"}'),
    (b"\xff\x00", b"caf\xc3\xa9 \xff"),
    (rb"\xff", rb'{"a": "\xff"}'),
    (b"gone", None),
    (b"", b""),
    (b"\xef\xbb\xbfk", b"\xef\xbb\xbf{}\r\n"),
    (b"null", bytes(range(256))),
]


@pytest.fixture
def dead(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home with these letters; two versions of the pipeline have filed each."""
    rows = [
        {
            "pipeline": NAME,
            "version": version,
            "topic": "trades",
            "partition": 0,
            "offset": offset,
            "key": key,
            "value": value,
        }
        for version in (1, 2)
        for offset, (key, value) in enumerate(RECORDS)
    ]
    ControlTables(settings).append(
        ControlTable.DEAD_LETTERS, [{**row, "broker_at": datetime.now(UTC)} for row in rows]
    )
    monkeypatch.setenv("HINDCAST_HOME", str(settings.home))
    return settings


Replay = Callable[[str], list[Repaired]]


@pytest.fixture
def replay(dead: Settings, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Give a text to `deadletters replay` on stdin; what would be sent."""
    sent: list[Repaired] = []

    def take(installation: Installation, pipeline: Any, mended: list[Repaired]) -> tuple[int, int]:
        check_letters(installation.tables, pipeline, mended)
        sent.extend(mended)
        return len(mended), 0

    monkeypatch.setattr(redrive, "redrive", create_autospec(redrive.redrive, side_effect=take))

    def give(text: str) -> list[Repaired]:
        sent.clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run(["deadletters", "replay", NAME, "--file", "-"]) == 0
        return list(sent)

    return give


@pytest.mark.parametrize("form", ["as listed", "one a line", "one after the other"])
def test_what_is_listed_is_sent_back_byte_for_byte(
    replay: Replay, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """As the array of `-o json`, and as jq prints it in its two forms."""
    assert run(["deadletters", "list", "-p", NAME, "-n", "1000", "-o", "json"]) == 0
    listed = capsys.readouterr().out
    rows = json.loads(listed)
    text = {
        "as listed": listed,
        "one a line": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows),
        "one after the other": "\n".join(json.dumps(row, indent=2) for row in rows),
    }[form]
    sent = {letter.place: letter for letter in replay(text)}
    assert [sent["trades", 0, offset].value for offset in range(len(RECORDS))] == [
        value for _, value in RECORDS
    ]
    assert [sent["trades", 0, offset].key for offset in range(len(RECORDS))] == [key for key, _ in RECORDS]
    assert len(sent) == len(RECORDS)


def test_a_value_that_was_mended_counts(replay: Replay, capsys: pytest.CaptureFixture[str]) -> None:
    """As text or as an object; what the bytes in base64 were matters no more."""
    run(["deadletters", "list", "-n", "1000", "-o", "json"])
    rows = [
        row for row in json.loads(capsys.readouterr().out) if row["version"] == 1 and row["offset"] in (0, 1)
    ]
    mended = [{**row, "value": value} for row, value in zip(rows, ({"size": 1}, "plain"), strict=True)]
    assert sorted(letter.value or b"" for letter in replay(json.dumps(mended))) == [b"plain", b'{"size":1}']


def test_a_dry_run_sends_nothing(dead: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It checks the letters, without a broker, and says how many there are."""
    file = tmp_path / "letters.jsonl"
    file.write_text('{"topic": "trades", "partition": 0, "offset": 0, "value": "x"}')
    assert run(["deadletters", "replay", NAME, "--file", str(file), "--dry-run", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pipeline": NAME, "letters": 1, "dry_run": True}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"topic": "t", "partition": 0, "offset": 1, "value": "x"}\n\n{"topic": "t"}',
            "Line 3 is no repaired letter",
        ),
        ('[{"topic": "t", "partition": 0}]', "Object 1 of the array in line 1"),
        ('\n{"topic"', "Line 2 is no repaired letter"),
        ('{"topic": "t", "partition": 0, "offset": 1, "value": null, "value_base64": "?"}', "Line 1"),
        ("7", "Line 1"),
    ],
)
def test_what_is_no_letter_is_told_by_its_line(text: str, said: str) -> None:
    """Nothing is sent, and a person finds the place."""
    with pytest.raises(BadInputError, match=said):
        letters_of(text)


def test_a_file_that_is_not_there_is_refused(
    dead: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and its name; a folder, and bytes that are no text, in the same way."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for path in (tmp_path / "missing", tmp_path, binary):
        assert run(["deadletters", "replay", NAME, "--file", str(path)]) == 2
        assert str(path) in capsys.readouterr().err


def test_a_letter_keeps_its_key(dead: Settings) -> None:
    """Its key chose its partition: another one would be lost among the others of that partition."""
    pipeline = catalog.load(project_root() / "include/pipelines")[NAME]
    with pytest.raises(BadInputError, match="another key"):
        check_letters(ControlTables(dead), pipeline, [Repaired(("trades", 0, 0), b"x", key=b"OTHER")])
    check_letters(
        ControlTables(dead),
        pipeline,
        [Repaired(("trades", 0, 0), b"x", key=b"ACME"), Repaired(("trades", 0, 1), b"x")],
    )


def test_a_letter_without_key_and_value_is_refused(
    dead: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No producer sends such a record: the dry run says so, too, and what to do."""
    row = {"pipeline": NAME, "topic": "trades", "partition": 0, "offset": 99, "broker_at": datetime.now(UTC)}
    ControlTables(dead).append(ControlTable.DEAD_LETTERS, [row])
    file = tmp_path / "letters.jsonl"
    file.write_text('{"topic": "trades", "partition": 0, "offset": 99, "value": null}')
    assert run(["deadletters", "replay", NAME, "--file", str(file), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "trades/0/99 has neither a key nor a value" in said
    assert "leave it out" in said
    file.write_text('{"topic": "trades", "partition": 0, "offset": 99, "value": {}}')
    assert run(["deadletters", "replay", NAME, "--file", str(file), "--dry-run"]) == 0


def test_letters_are_checked_without_their_values(dead: Settings) -> None:
    """However many and large the pipeline's dead letters are."""
    tables = ControlTables(dead)
    for offset in range(100, 112):
        row = {"pipeline": NAME, "topic": "trades", "partition": 0, "offset": offset, "key": b"k"}
        tables.append(ControlTable.DEAD_LETTERS, [{**row, "value": os.urandom(1_000_000)}])
    pipeline = catalog.load(project_root() / "include/pipelines")[NAME]
    with arrow_memory() as memory:
        check_letters(tables, pipeline, [Repaired(("trades", 0, 105), b"x", key=b"k")])
    assert memory.max_memory() < 5_000_000


def test_no_letters_are_nothing_to_do(dead: Settings) -> None:
    """An empty file is no mistake; an offset that no topic has is one."""
    pipeline = catalog.load(project_root() / "include/pipelines")[NAME]
    check_letters(ControlTables(dead), pipeline, letters_of("\n"))
    with pytest.raises(BadInputError, match="Line 1 is no repaired letter"):
        letters_of('{"topic": "trades", "partition": 0, "offset": 9223372036854775808, "value": "x"}')


def test_two_values_for_one_letter_are_refused(dead: Settings) -> None:
    """Which of them is meant is not known; the same value twice is one letter."""
    pipeline = catalog.load(project_root() / "include/pipelines")[NAME]
    line = '{"topic": "trades", "partition": 0, "offset": 0, "value": "%s"}\n'
    assert len(letters_of(line % "x" + line % "x")) == 1
    with pytest.raises(BadInputError, match="named twice"):
        check_letters(ControlTables(dead), pipeline, letters_of(line % "x" + line % "y"))
