"""Fetch the jars that Spark and the broker need, once, with Maven."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from hindcast.errors import PrerequisiteError
from hindcast.processes.environment import basic_environment
from hindcast.settings import Settings
from hindcast_sandbox.broker import kafka_jars_dir

NO_MAVEN = "there is no `mvn` on PATH"
INSTALL_MAVEN = "Install Maven (on Debian and Ubuntu: apt-get install maven)."
_STAMP = ".pom-sha256"  # of the POM that the folder was filled from
_SHOWN_LINES = 20  # of what Maven said


def folders(settings: Settings) -> dict[str, Path]:
    """The folder for the jars of each POM in ``poms`` that is needed."""
    needed = {"spark": settings.spark_jars_dir, "kafka": kafka_jars_dir(settings)}
    if settings.uses_s3:
        needed["s3"] = settings.s3_jars_dir
    return needed


def missing(settings: Settings) -> list[str]:
    """The sets that are not there.

    A folder that Hindcast did not fill is taken as it is; one that it filled must match its POM.
    """
    return [name for name, folder in folders(settings).items() if not _fetched(name, folder)]


def fetch(settings: Settings, say: Callable[[str], None] = print) -> None:
    """Fetch what is missing or of another POM.

    No folder is ever half full: the jars are copied to a draft, which then replaces the folder.

    :param say: is given one line before and after each set that is fetched
    :raises PrerequisiteError: if there is no Maven, or it fails; the message ends with its own
    """
    for name in missing(settings):
        folder = folders(settings)[name]
        maven = shutil.which("mvn")
        if not maven:
            raise PrerequisiteError(what="Maven", problem=NO_MAVEN, cure=INSTALL_MAVEN)
        say(f"Fetching the jars of {name} with Maven into {folder} ...")
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            _copy(maven, name, draft)
            (draft / _STAMP).write_text(_digest(name))
            draft.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        count = len(list(folder.glob("*.jar")))
        say(f"Fetched {count} jars of {name}.")


def _copy(maven: str, name: str, folder: Path) -> None:
    pom = _pom(name)
    goal = "dependency:copy-dependencies"
    arguments = [maven, "-B", "-q", goal, "-f", str(pom), f"-DoutputDirectory={folder}"]
    environment = basic_environment()
    for variable, value in os.environ.items():
        if variable.startswith("MAVEN_"):
            environment[variable] = value
    ended = subprocess.run(
        arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
    )
    if ended.returncode != 0 or not any(folder.glob("*.jar")):
        lines = (ended.stdout + ended.stderr).strip().splitlines()
        said = "\n".join(lines[:_SHOWN_LINES])
        raise PrerequisiteError(
            what=f"The set of jars for {name}",
            problem=f"Maven ended with {ended.returncode}:\n{said}\n",
            cure="Check that Maven can reach its repository (~/.m2/settings.xml names a mirror), "
            "then run `hindcast jars` again.",
        )


def _fetched(name: str, folder: Path) -> bool:
    if not any(folder.glob("*.jar")):
        return False
    stamp = folder / _STAMP
    return not stamp.exists() or stamp.read_text() == _digest(name)


def _pom(name: str) -> Path:
    return Path(__file__).with_name("poms") / name / "pom.xml"


def _digest(name: str) -> str:
    return hashlib.sha256(_pom(name).read_bytes()).hexdigest()
