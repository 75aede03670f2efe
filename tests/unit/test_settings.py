"""Settings from variables and a file: all that is wrong is said at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hindcast.cli.main import run
from hindcast.errors import SettingsRefusedError
from hindcast.settings import Settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HINDCAST_HOME", str(tmp_path))
    return tmp_path


def test_all_wrong_settings_are_said_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its variable, its value, what is wrong and a valid form; a secret is not shown."""
    (home / "settings.json").write_text(json.dumps({"warm_seconds": -1}))
    wrong = {
        "WORKERS": "none",
        "LEASE_SECONDS": "0",
        "FLEET": "a/b",
        "SPARK_DRIVER_MEMORY": "much",
        "STORAGE_OPTIONS": "key=hidden",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(f"HINDCAST_{name}", value)
    with pytest.raises(SettingsRefusedError, match="6 of the settings are wrong") as caught:
        Settings()
    said = str(caught.value)
    assert caught.value.exit_code == 2
    for name, value in wrong.items():
        shown = (
            f"HINDCAST_{name}: it is not JSON" if name == "STORAGE_OPTIONS" else f"HINDCAST_{name}={value}: "
        )
        assert shown in said
        assert f"Write e.g. HINDCAST_{name}=" in said
    assert f"warm_seconds (HINDCAST_WARM_SECONDS, or in {home / 'settings.json'})=-1: " in said
    assert "hidden" not in said


@pytest.mark.usefixtures("home")
def test_a_command_says_what_is_wrong_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad settings are bad input: exit code 2 and one message."""
    monkeypatch.setenv("HINDCAST_WORKERS", "0")
    monkeypatch.setenv("HINDCAST_LEASE_SECONDS", "soon")
    assert run(["leases"]) == 2
    said = capsys.readouterr().err
    assert "HINDCAST_WORKERS=0: " in said
    assert "HINDCAST_LEASE_SECONDS=soon: " in said


def test_a_settings_file_that_is_no_json_is_named(home: Path) -> None:
    """A file cut short is told by its path."""
    (home / "settings.json").write_text('{"workers": ')
    with pytest.raises(SettingsRefusedError, match="is not JSON"):
        Settings()


@pytest.mark.usefixtures("home")
def test_storage_options_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a variable they are one JSON object, as children of a command are given them."""
    monkeypatch.setenv("HINDCAST_STORAGE_OPTIONS", '{"region": "eu-west-1"}')
    assert Settings().storage_options == {"region": "eu-west-1"}
    assert json.loads(Settings().environment()["HINDCAST_STORAGE_OPTIONS"]) == {"region": "eu-west-1"}


@pytest.mark.usefixtures("home")
def test_a_misspelt_variable_is_named_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value would have no effect, and nobody would know. It is said together with what else is wrong."""
    monkeypatch.setenv("HINDCAST_LEASE_SECOND", "30")
    monkeypatch.setenv("HINDCAST_TABLE_URL", "s3://somewhere")
    monkeypatch.setenv("HINDCAST_WORKERS", "none")
    with pytest.raises(SettingsRefusedError, match="3 of the settings are wrong") as caught:
        Settings()
    assert "HINDCAST_LEASE_SECOND: there is no such setting. Write HINDCAST_LEASE_SECONDS" in str(
        caught.value
    )
    assert "HINDCAST_TABLE_URL: there is no such setting. Write HINDCAST_TABLES_URL" in str(caught.value)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "variable",
    ["HINDCAST_IMAGE", "HINDCAST_DAYS", "HINDCAST_CRASH_AT", "HINDCAST_SERVICE", "HINDCAST_FOLLOWS_STDIN"],
)
def test_a_variable_that_is_like_no_setting_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """A deployment's own variables may begin like Hindcast's."""
    monkeypatch.setenv(variable, "anything")
    Settings()
