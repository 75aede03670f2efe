"""The archive of Spark's classes: its name, and that making it leaves a whole one or none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hindcast.errors import PrerequisiteError
from hindcast.settings import Settings
from hindcast.spark import jvm_class_archive, session


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JVM that is only looked at."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return program


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    (tmp_path / "jars").mkdir()
    return Settings(home=tmp_path / "home", jars_dir=tmp_path / "jars")


def practice_that(monkeypatch: pytest.MonkeyPatch, code: int, content: str) -> None:
    """Stands for the practice session: it writes so much and ends so; with -1 it hangs."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if content:
            Path(command[-1]).write_text(content)
        if code == -1:
            raise subprocess.TimeoutExpired(command, 1.0)
        return subprocess.CompletedProcess(command, code, "", "java.lang.Trouble")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.usefixtures("java")
def test_another_jvm_has_another_archive(own: Settings, java: Path) -> None:
    """An archive fits one JVM alone: where that one was replaced, sessions look for a name that is not
    there.
    """
    before = session.class_archive(own)
    assert session.class_archive(own) == before
    java.write_text("#!/bin/sh\n# an update\n")
    assert session.class_archive(own) != before


@pytest.mark.usefixtures("java")
def test_it_is_made_once_and_replaces_the_one_of_another_jvm(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one would never be used again."""
    old = own.spark_jars_dir / "classes-0123456789ab.jsa"
    old.write_text("old")
    practice_that(monkeypatch, 0, "new")
    said: list[str] = []
    jvm_class_archive.make(own, said.append)
    jvm_class_archive.make(own, said.append)
    assert [path.read_text() for path in own.spark_jars_dir.iterdir()] == ["new"]
    assert len(said) == 1


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(("code", "content"), [(1, ""), (1, "half"), (0, ""), (-1, "half")])
def test_a_practice_session_that_breaks_leaves_nothing(
    own: Settings, monkeypatch: pytest.MonkeyPatch, code: int, content: str
) -> None:
    """Its last words are told, and no half archive is left for a session to find."""
    practice_that(monkeypatch, code, content)
    with pytest.raises(PrerequisiteError, match=r"java\.lang\.Trouble|took more than"):
        jvm_class_archive.make(own, lambda _: None)
    assert not list(own.spark_jars_dir.iterdir())


@pytest.mark.usefixtures("java")
def test_beside_a_folder_of_settings_there_is_no_archive(
    own: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Class-data sharing refuses a class path with a folder that has files. So nobody waits a minute for it."""
    folder = tmp_path / "conf"
    folder.mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    (folder / "spark-defaults.conf").write_text("")
    practice_that(monkeypatch, 0, "new")
    said: list[str] = []
    jvm_class_archive.make(own, said.append)
    assert not list(own.spark_jars_dir.iterdir())
    assert "SPARK_CONF_DIR" in said[0]
    (folder / "spark-defaults.conf").unlink()
    jvm_class_archive.make(own, said.append)
    assert len(list(own.spark_jars_dir.iterdir())) == 1


@pytest.mark.usefixtures("java")
def test_it_practises_on_this_machine_alone(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cluster, store and settings of Spark the deployment has: they change no class, and a practice
    with them would need them to be there.
    """
    deployed = {
        "spark_master": "spark://far:7077",
        "checkpoints_url": "s3://lake/c",
        "spark_conf": {"a": "b"},
    }
    monkeypatch.setenv("HINDCAST_SPARK_MASTER", "spark://far:7077")
    monkeypatch.setenv("HINDCAST_STORAGE_OPTIONS", '{"aws_region": "here"}')
    given: dict[str, str] = {}

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        given.update(env)
        Path(command[-1]).write_text("classes")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    jvm_class_archive.make(own.model_copy(update=deployed), lambda _: None)
    assert given["HINDCAST_SPARK_MASTER"].startswith("local")
    assert given["HINDCAST_JARS_DIR"] == str(own.jars_dir)
    assert given["HINDCAST_SPARK_CONF"] == given["HINDCAST_STORAGE_OPTIONS"] == "{}"
    assert "HINDCAST_CHECKPOINTS_URL" not in given
