"""The built package by itself: in a virtual environment of its own, in a folder that is no checkout, with an
Airflow and a broker of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from hindcast.settings import project_root

pytestmark = pytest.mark.acceptance

ROWS = 4000
#: What a person's shell has, and nothing of this checkout's.
_INHERITED = ("PATH", "HOME", "JAVA_HOME", "LANG")

Command = Callable[..., str]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a virtual environment with the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run(["make", "bare", f"BARE={folder}"], cwd=project_root(), check=True)
    return folder / "bin"


@pytest.fixture
def command(bare: Path, tmp_path: Path, jars_dir: Path) -> Iterator[Command]:
    """Run a program of the environment in a project's folder that holds one pipeline, and return what it prints."""
    project = tmp_path / "project"
    (project / "pipelines").mkdir(parents=True)
    shutil.copy(project_root() / "include" / "pipelines" / "stock_stats.py", project / "pipelines")
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment["HINDCAST_JARS_DIR"] = str(jars_dir)

    def run(program: str, *arguments: str, **variables: str) -> str:
        ended = subprocess.run(
            [str(bare / program), *arguments],
            cwd=project,
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{program} {arguments} ended with {ended.returncode}: {ended.stdout}"
        return ended.stdout

    yield run
    run("hindcast", "down")


def test_a_folder_of_pipelines_is_all_that_the_package_needs(command: Command, tmp_path: Path) -> None:
    """Broker, Airflow, worker and load start; Airflow has the DAGs and the plugin; the verdict passes."""
    command("hindcast", "up", "--no-load", "--workers", "1")
    command("hindcast", "load", "stock_stats", "--rows", str(ROWS))

    home = tmp_path / "project" / ".hindcast"

    def listed(*arguments: str) -> Any:
        return json.loads(command("hindcast", *arguments, "--output", "json"))

    def airflow(*arguments: str) -> Any:
        said = command("airflow", *arguments, "--output", "json", AIRFLOW_HOME=str(home / "airflow"))
        return json.loads(said.splitlines()[-1])  # warnings come before

    dags = airflow("dags", "list", "--local")
    assert {dag["dag_id"] for dag in dags} == {
        "maintain",
        "replay.stock_stats",
        "reprocess.stock_stats",
        "supervise",
        "validate.stock_stats",
    }
    plugins = airflow("plugins")
    assert [plugin["name"] for plugin in plugins if "hindcast" in plugin["source"]] == ["hindcast"]

    def read() -> int:
        return sum(batch["input_rows"] for batch in listed("checkpoints", "--limit", "1000"))

    wait_until(lambda: read() == ROWS, 180, "the worker has read all rows", every=1.0)
    verdict = listed("validate", "stock_stats", "--all", "--wait")
    assert (verdict["passed"], verdict["unexplained"]) == (True, 0)
