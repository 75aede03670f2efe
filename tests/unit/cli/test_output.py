"""How listings are printed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from hindcast.cli.output import Format, Output
from hindcast.cli.text_table import Columns, cell, lay_out

ROW = {
    "at": datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC),
    "end_offsets": '{"0": 12}',
    "value": b"caf\xc3\xa9 \xff",
    "message": '{"not": "decoded"}',
    "captured": 0.99871,
    "missing": None,
}


def test_json_is_an_array_of_objects(capsys: pytest.CaptureFixture[str]) -> None:
    """Instants are ISO 8601 with an offset, JSON columns are decoded, other text is left alone, bytes that
    are no text are in base64.
    """
    Output(Format.JSON).rows([ROW], Columns(["at"]))
    assert json.loads(capsys.readouterr().out) == [
        {
            "at": "2026-01-31T12:00:00.123000+00:00",
            "end_offsets": {"0": 12},
            "value": None,
            "value_base64": "Y2Fmw6kg/w==",
            "message": '{"not": "decoded"}',
            "captured": 0.99871,
            "missing": None,
        }
    ]


def test_bytes_that_are_text_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads and mends them as they are; what they might be mistaken for stays apart."""
    Output(Format.JSON).row({"value": "café".encode(), "key": b"\\xff"})
    assert json.loads(capsys.readouterr().out) == {
        "value": "café",
        "value_base64": None,
        "key": "\\xff",
        "key_base64": None,
    }


def test_json_of_nothing_is_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    """A program gets an array even where there are no rows."""
    Output(Format.JSON).rows([])
    assert json.loads(capsys.readouterr().out) == []


def test_instants_of_other_zones_are_printed_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    """An aware instant is the same instant in UTC."""
    Output(Format.JSON).row({"at": datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1)))})
    assert json.loads(capsys.readouterr().out) == {"at": "2026-01-31T12:00:00+00:00"}


def test_a_table_shows_the_chosen_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """People see the columns of the listing, instants to the second; `wide` has the rest."""
    Output(Format.TABLE).rows([ROW], Columns(["at", "captured", "missing"]))
    out = capsys.readouterr().out
    assert "2026-01-31T12:00:00Z" in out
    assert "0.9987" in out
    assert "decoded" not in out
    for output in (Output(Format.WIDE), Output(Format.TABLE, wide=True)):
        output.rows([ROW], Columns(["at", "captured", "missing"]))
        out = capsys.readouterr().out
        assert "2026-01-31T12:00:00.123000+00:00" in out
        assert "decoded" in out


def test_data_is_never_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """A value that looks like rich's markup is printed as it is."""
    Output(Format.TABLE).rows([{"value": "[red]x[/red]"}])
    assert "[red]x[/red]" in capsys.readouterr().out


def test_an_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """If there are no rows a person reads a sentence, and a pipe gets nothing."""
    Output(Format.TABLE).rows([], empty="There are none.")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "There are none.\n")


LONG = (
    "The query of v1.g0.s0 failed: the brokers at 10.0.0.1:9092 did not answer within 60 s, so the shard was given up. "
    * 2
)
EVENTS = [
    {
        "at": "2026-01-31T12:00:00Z",
        "severity": "warning",
        "kind": "reprocess_caught_up",
        "shard": "v1.g0.s0",
        "message": LONG,
        "cure": "Wait.",
    },
    {
        "at": "2026-01-31T12:00:01Z",
        "severity": "error",
        "kind": "query_failed",
        "shard": "v12.g3.s199",
        "message": "No.",
        "cure": None,
    },
]
FITTED = Columns(
    ["at", "severity", "kind", "shard", "message", "cure"],
    prose=frozenset({"message", "cure"}),
    spare=("shard",),
)


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200, 1000])
def test_a_table_fits_its_terminal(width: int) -> None:
    """No line is wider, and every word of the prose is there: beside its row if there is room, else below
    it.
    """
    table = lay_out(EVENTS, FITTED, width)
    assert max(len(line) for line in table.lines) <= width
    words = " ".join(table.lines).split()
    assert [word for word in words if word in LONG.split()] != []
    assert sum(word == "answer" for word in words) == 2
    assert "Wait." in words
    assert all(kind in " ".join(table.lines) for kind in ("reprocess_caught_up", "query_failed"))
    assert table.left_out == (["shard"] if width == 60 else [])


def test_what_is_cut_has_an_ellipsis() -> None:
    """If not even the columns that cannot be spared fit, the widest is cut; the others stay whole."""
    table = lay_out(
        [{"name": "n" * 64, "state": "OPEN", "other": 1}], Columns(["name", "state", "other"]), 40
    )
    assert max(len(line) for line in table.lines) <= 40
    assert "nn…  OPEN       1" in table.lines[-1]


def test_a_piped_table_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a row, as long as it is."""
    Output(Format.TABLE).rows(EVENTS, FITTED)
    _, _, first, second = capsys.readouterr().out.splitlines()
    assert LONG.strip() in first
    assert second.endswith("No.")


def test_data_never_moves_the_cursor() -> None:
    """What a record holds is printed, not obeyed, and no line of a table is broken by it."""
    table = lay_out([{"value": "a\nb\x1b[2Jc\x9b"}], Columns(["value"]), 80)
    assert table.lines[-1] == r"a\nb\x1b[2Jc\x9b"


def test_neither_does_data_inside_a_structure() -> None:
    """A record's key is shown as JSON, and JSON leaves the control codes after the ASCII ones as they are."""
    assert cell({"key": "\x9b2J"}) == '{"key": "\\x9b2J"}'
    assert cell(["\x7f", "\n"]) == '["\\x7f", "\\n"]'


def test_wide_characters_are_counted_as_wide() -> None:
    """Columns stay in line, and the line within the terminal."""
    table = lay_out([{"a": "漢" * 30, "b": "x"}, {"a": "y", "b": "z"}], Columns(["a", "b"]), 40)
    assert table.lines[-1].index("z") == 39
