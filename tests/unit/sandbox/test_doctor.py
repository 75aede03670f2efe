"""What `hindcast doctor` finds."""

from __future__ import annotations

import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hindcast.errors import PrerequisiteError
from hindcast.settings import Settings
from hindcast_sandbox import doctor
from hindcast_sandbox.doctor import Finding, State


def _found(settings: Settings) -> dict[str, Finding]:
    return {finding.what: finding for finding in doctor.examine(settings)}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_java_version(text: str, version: int | None) -> None:
    """The major version is read from what every JDK prints."""
    assert doctor.java_version(text) == version


def test_every_finding_that_is_not_ok_names_a_cure(
    settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with nothing on PATH, what is missing is said, each with what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = _found(settings_factory(jars_dir=None))
    assert found["JDK"].state is State.MISSING
    assert found["Maven"].state is State.MISSING
    assert found["make"].state is State.WARNING
    assert found["jars"].state is State.WARNING
    assert all(finding.cure for finding in found.values() if finding.state is not State.OK)


def test_an_old_jdk_is_missing(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JDK before 17 does not count, and the one that was found is named."""
    launcher = tmp_path / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = _found(settings)["JDK"]
    assert finding.state is State.MISSING
    assert "11" in finding.found
    assert str(launcher) in finding.found


def test_maven_is_not_needed_once_the_jars_are_there(
    settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jars that somebody put there count, with or without Maven."""
    for name in ("spark", "kafka"):
        (tmp_path / "jars" / name).mkdir(parents=True)
        (tmp_path / "jars" / name / "some.jar").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    found = _found(settings_factory(jars_dir=tmp_path / "jars" / "spark"))
    assert found["jars"].state is found["Maven"].state is State.OK


def test_what_is_missing_stops_a_start(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` and `demo` ask the doctor first: the error is of exit code 2 and names the cure."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(PrerequisiteError, match="JDK") as raised:
        list(doctor.require(settings))
    assert raised.value.exit_code == 2


def test_it_finds_this_python_and_its_airflow(settings: Settings) -> None:
    """The tests' own environment is found whole."""
    found = _found(settings)
    assert found["Python"].state is State.OK
    assert found["Airflow"].found == shutil.which("airflow", path=str(Path(sys.executable).parent))
