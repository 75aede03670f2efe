"""How listings are printed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from hindcast.cli.output import Format, Output

ROW = {
    "at": datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC),
    "end_offsets": '{"0": 12}',
    "value": b"caf\xc3\xa9 \xff",
    "message": '{"not": "decoded"}',
    "captured": 0.99871,
    "missing": None,
}


def test_json_is_an_array_of_objects(capsys: pytest.CaptureFixture[str]) -> None:
    """Instants are ISO 8601 with an offset, JSON columns are decoded, other text is left alone, bytes are readable."""
    Output(Format.JSON).rows([ROW], columns=["at"])
    assert json.loads(capsys.readouterr().out) == [
        {
            "at": "2026-01-31T12:00:00.123000+00:00",
            "end_offsets": {"0": 12},
            "value": "café \\xff",
            "message": '{"not": "decoded"}',
            "captured": 0.99871,
            "missing": None,
        }
    ]


def test_json_of_nothing_is_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    """A program gets an array even where there are no rows."""
    Output(Format.JSON).rows([])
    assert json.loads(capsys.readouterr().out) == []


def test_instants_of_other_zones_are_printed_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    """An aware instant is the same instant in UTC."""
    Output(Format.JSON).row({"at": datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1)))})
    assert json.loads(capsys.readouterr().out) == {"at": "2026-01-31T12:00:00+00:00"}


def test_a_table_shows_the_chosen_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """People see the columns of the listing; the rest is for JSON."""
    Output(Format.TABLE).rows([ROW], columns=["at", "captured", "missing"])
    out = capsys.readouterr().out
    assert "2026-01-31T12:00:00.123000+00:00" in out
    assert "0.9987" in out
    assert "decoded" not in out


def test_data_is_never_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """A value that looks like rich's markup is printed as it is."""
    Output(Format.TABLE).rows([{"value": "[red]x[/red]"}])
    assert "[red]x[/red]" in capsys.readouterr().out


def test_an_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there are no rows a person reads a sentence."""
    Output(Format.TABLE).rows([], empty="There are none.")
    assert capsys.readouterr().out == "There are none.\n"
