"""The pinned requirements: one file to run the platform, one that adds what its tests need."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Tools of the tests that packages of the platform need too.
ALSO_AT_RUN_TIME = frozenset({"pyyaml"})
#: Modules of Airflow's own, and of its web server and database, which its pages and the embedded one use in
#: Airflow's versions.
AIRFLOWS = frozenset({"airflow", "fastapi", "jinja2", "sqlalchemy", "starlette"})
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def _pins(name: str) -> dict[str, str]:
    """Package name -> its pin with its hashes, of one requirements file."""
    pins = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
    return {_package(pin): pin for pin in pins}


def _package(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _declared() -> set[str]:
    """What the package needs with the extras of its users."""
    lines = list(PROJECT["dependencies"])
    for extra in ("airflow", "gx", "registry", "spark"):
        lines += EXTRAS[extra]
    return {_package(line) for line in lines}


def _imported() -> set[str]:
    """The top-level modules that the library, its apps, DAGs, plugin and pipelines import."""
    found: set[str] = set()
    for folder in ("include", "spark_apps", "dags", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.split(".")[0])
    return found


def test_what_runs_is_what_is_tested() -> None:
    """Each package of requirements.txt has the same pin in requirements-dev.txt."""
    tested = _pins("requirements-dev.txt")
    assert [line for line in _pins("requirements.txt").values() if line not in tested.values()] == []


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_each_pin_has_hashes(name: str) -> None:
    """So nobody installs another file under that name and version."""
    without = [package for package, pin in _pins(name).items() if "--hash=sha256:" not in pin]
    assert without == []


def test_no_tool_of_the_tests_is_needed_to_run() -> None:
    """The file that an image installs names no package of the extra `dev`."""
    tools = {_package(line) for line in EXTRAS["dev"]} - ALSO_AT_RUN_TIME
    assert tools & _pins("requirements.txt").keys() == set()


def test_each_declared_package_is_pinned() -> None:
    """A package in pyproject.toml's lists stands in the file for it."""
    runs = _declared() | {_package(line) for line in EXTRAS["deploy"]}
    assert runs - _pins("requirements.txt").keys() == set()
    dev = {_package(line) for line in EXTRAS["dev"]}
    assert dev - _pins("requirements-dev.txt").keys() == set()


def test_what_is_imported_is_declared() -> None:
    """Each module that is imported comes from a declared package, and the packages that must do real work are
    imported.
    """
    declared = _declared()
    owners = packages_distributions()
    foreign = _imported() - set(sys.stdlib_module_names) - {"hindcast", "hindcast_sandbox", "__future__"}
    undeclared = {
        module
        for module in foreign - AIRFLOWS
        if not {_package(owner) for owner in owners.get(module, [module])} & declared
    }
    assert undeclared == set()
    assert {"airflow", "pyspark", "delta", "kafka", "great_expectations"} <= foreign


def test_the_package_has_its_licence_and_says_that_it_is_typed() -> None:
    """Its metadata names the file of the licence, and a type checker of those who install it finds the types."""
    assert PROJECT["license"] == "Apache-2.0"
    (licence,) = PROJECT["license-files"]
    assert "Apache License" in (ROOT / licence).read_text()
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for name in packaged["hindcast"]:
        assert any((ROOT / "include/hindcast").glob(name))
    assert "py.typed" in packaged["hindcast"]
