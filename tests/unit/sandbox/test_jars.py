"""Fetching the jars, with a Maven that is a small script: idempotent, atomic, and clear where it fails."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hindcast.errors import PrerequisiteError
from hindcast.settings import Settings
from hindcast_sandbox import jars

WORKS = """#!/bin/sh
for argument; do case "$argument" in -DoutputDirectory=*) folder="${argument#*=}";; esac; done
echo called >> "$(dirname "$0")/calls"
: > "$folder/one.jar"; : > "$folder/two.jar"
"""
FAILS = """#!/bin/sh
for argument; do case "$argument" in -DoutputDirectory=*) folder="${argument#*=}";; esac; done
: > "$folder/half.jar"
echo "[ERROR] the repository is not reachable"
exit 1
"""


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a script called mvn first on PATH; returns its folder."""

    def install(script: str) -> Path:
        path = tmp_path / "bin" / "mvn"
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(path.parent), prepend=":")
        return path.parent

    return install


@pytest.fixture
def fresh(settings_factory: Callable[..., Settings]) -> Settings:
    """Settings whose jars have not been fetched."""
    return settings_factory(jars_dir=None)


def test_fetches_once(maven: Callable[[str], Path], fresh: Settings) -> None:
    """The first call fetches both sets and says so; the second does nothing."""
    folder = maven(WORKS)
    said: list[str] = []
    jars.fetch(fresh, said.append)
    jars.fetch(fresh, said.append)
    assert (folder / "calls").read_text().count("called") == 2
    assert len(said) == 4
    assert [path.name for path in sorted(fresh.spark_jars_dir.glob("*.jar"))] == ["one.jar", "two.jar"]
    assert jars.missing(fresh) == []
    assert not list(fresh.spark_jars_dir.parent.glob(".*"))


def test_a_changed_pom_fetches_again(maven: Callable[[str], Path], fresh: Settings) -> None:
    """Jars of another POM than today's are replaced, whole."""
    maven(WORKS)
    jars.fetch(fresh, lambda _: None)
    (fresh.spark_jars_dir / "old.jar").touch()
    (fresh.spark_jars_dir / ".pom-sha256").write_text("of another pom")
    assert jars.missing(fresh) == ["spark"]
    jars.fetch(fresh, lambda _: None)
    assert not (fresh.spark_jars_dir / "old.jar").exists()


def test_a_failure_leaves_nothing_half_done(maven: Callable[[str], Path], fresh: Settings) -> None:
    """Where Maven fails, its words are in the error, and the next call starts anew."""
    maven(FAILS)
    with pytest.raises(PrerequisiteError, match="the repository is not reachable"):
        jars.fetch(fresh, lambda _: None)
    assert jars.missing(fresh) == ["spark", "kafka"]
    assert list(fresh.spark_jars_dir.parent.iterdir()) == []


def test_without_maven_the_cure_is_named(
    fresh: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mvn on PATH: what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrerequisiteError, match="Install Maven"):
        jars.fetch(fresh, lambda _: None)
