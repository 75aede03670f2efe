"""What the package does without its extras, and what it says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow.plugins_manager import is_valid_plugin

from hindcast.airflow.plugin import HindcastPlugin
from hindcast.airflow.provider import provider_info
from hindcast.settings import Settings, project_root

PROJECT = tomllib.loads((project_root() / "pyproject.toml").read_text())["project"]
#: Python that finds none of these packages from here on.
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {absent!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
sys.argv[1:] = {arguments!r}
"""
SPARK = ("delta", "pandas", "py4j", "pyspark")
OTHERS = ("airflow", "great_expectations", "plotly")


@pytest.mark.parametrize("arguments", [["--help"], ["status"], ["pipelines"], ["doctor", "--help"]])
def test_the_command_line_needs_no_extra(tmp_path: Path, arguments: list[str]) -> None:
    """An operator's machine has the commands without Spark, Airflow or Great Expectations."""
    without = WITHOUT.format(absent=(*SPARK, *OTHERS), arguments=arguments)
    code = f"{without}from hindcast.cli.main import main\nmain()\n"
    (tmp_path / "pipelines").mkdir()
    environment = {
        **os.environ,
        "HINDCAST_HOME": str(tmp_path),
        "HINDCAST_PIPELINES_DIR": str(tmp_path / "pipelines"),
    }
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_worker_needs_the_extra_of_spark_alone() -> None:
    """Its machine has neither Airflow nor Great Expectations."""
    without = WITHOUT.format(absent=OTHERS, arguments=["--help"])
    start = "runpy.run_module('hindcast.apps.consume', run_name='__main__')"
    code = f"{without}import runpy\nimport hindcast.stream.worker\n{start}\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_airflow_finds_the_plugin_and_the_provider() -> None:
    """The entry points name what is there."""
    points = PROJECT["entry-points"]
    assert points["airflow.plugins"] == {
        "hindcast": f"{HindcastPlugin.__module__}:{HindcastPlugin.__qualname__}"
    }
    assert is_valid_plugin(HindcastPlugin)
    named = points["apache_airflow_provider"]
    assert named == {"provider_info": f"{provider_info.__module__}:{provider_info.__name__}"}
    assert provider_info()["package-name"] == PROJECT["name"]


def test_a_child_finds_the_library_and_what_its_parent_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PYTHONPATH: the checkout's library once, then the user's own folders."""
    library = str(project_root() / "include")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}")
    assert Settings().environment()["PYTHONPATH"] == f"{library}{os.pathsep}{tmp_path}"
    monkeypatch.setenv("PYTHONPATH", library)
    assert Settings().environment()["PYTHONPATH"] == library
