"""The rules of the house that no linter knows. Each rule is a function over files, so each is also shown a
breach it must find.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from hindcast.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CODE = ("include/", "spark_apps/", "dags/", "plugins/")
VAGUE = frozenset({"util", "utils", "helper", "helpers", "common", "manager", "managers", "base", "misc"})
#: Joined here, so that this file does not name them either.
REGISTRIES = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("packages", "confluent", "io"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("npmjs", "org"),
    )
)
#: A path of one machine: the home of a person, or a folder that only some build host has.
MACHINE_PATH = re.compile(r"(?<![\w./$}-])/(?:work|root|home|Users|private|tmp/jars)/")
#: Words that make a reader translate: `again`, a name or `a person`, `each process that`, `of it`.
STILTED = (
    "anew",
    "hereby",
    "heretofore",
    "somebody",
    "therein",
    "thereof",
    "whereof",
    "wherefrom",
    "whoever",
    "whomever",
)
_STILTED = re.compile(rf"\b(?:{'|'.join(STILTED)})\b", re.IGNORECASE)
#: The pages that the rule of words leaves alone: history, and figures that a command writes.
NOT_PROSE = frozenset({"CHANGELOG.md", "docs/runs.md"})
BUILT = frozenset({".whl", ".jar", ".zip", ".gz", ".tar", ".class", ".so", ".pyc", ".jsa"})
HEAVY = frozenset({"pyspark", "great_expectations", "delta"})
CLOCKS = frozenset({"time", "asyncio", "threading"})

Files = Mapping[str, str]
Rule = Callable[[Files], Iterator[str]]


def _tracked() -> dict[str, str]:
    """Every text file that git has or would add, path to text."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [path for path in listing.stdout.split("\0") if path and (ROOT / path).is_file()]
    return {path: (ROOT / path).read_text(encoding="utf-8", errors="ignore") for path in paths}


def _python(files: Files, *folders: str) -> Iterator[tuple[str, str]]:
    return ((path, text) for path, text in files.items() if path.endswith(".py") and path.startswith(folders))


def vague_names(files: Files) -> Iterator[str]:
    """Names that do not say what is inside."""
    for path, _ in _python(files, *CODE, "tests/"):
        words = {word for part in Path(path).with_suffix("").parts for word in part.split("_")}
        if found := sorted(words & VAGUE):
            yield f"{path} is named {found[0]}: name it after what it holds"


def registry_hosts(files: Files) -> Iterator[str]:
    """Addresses of package registries: where packages come from is the machine's business."""
    for path, text in files.items():
        yield from (f"{path} names the registry {host}" for host in REGISTRIES if host in text)


def machine_paths(files: Files) -> Iterator[str]:
    """Absolute paths that exist on one machine."""
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if match := MACHINE_PATH.search(line):
                yield f"{path}:{number} has the path {match[0]} of one machine"


def built_files(files: Files) -> Iterator[str]:
    """What was built or fetched: packages are depended on, and builds are made again."""
    for path in files:
        if Path(path).suffix in BUILT:
            yield f"{path} was built or fetched: leave it out"


def unexplained_sleeps(files: Files) -> Iterator[str]:
    """Calls of sleep in tests without a comment on the line or the one before: a test waits for a condition,
    not for a time.
    """
    for path, text in _python(files, "tests/"):
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep"
            ):
                nearby = lines[max(node.lineno - 2, 0) : node.lineno]
                if not any("#" in line for line in nearby):
                    yield f"{path}:{node.lineno} sleeps and does not say why"


def clocks_of_all_threads(files: Files) -> Iterator[str]:
    """Stand-ins for what a module of clocks and threads holds: every thread of the process gets them, also
    those of libraries. A test replaces the name in the module under test.
    """
    for path, text in _python(files, "tests/"):
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "setattr" or not node.args:
                continue
            target = node.args[0]
            if getattr(target, "attr", getattr(target, "id", "")) in CLOCKS:
                yield f"{path}:{node.lineno} replaces what other threads use"


def silent_tests(files: Files) -> Iterator[str]:
    """Tests whose docstring does not say what behaviour they hold."""
    for path, text in _python(files, "tests/"):
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.startswith("test_")
                and not ast.get_docstring(node)
            ):
                yield f"{path}:{node.lineno} {node.name} has no docstring"


def heavy_dag_files(files: Files) -> Iterator[str]:
    """Imports that the DAG processor would pay for again and again."""
    for path, text in _python(files, "dags/", "plugins/"):
        for module, line in _imports(text):
            if module.split(".")[0] in HEAVY:
                yield f"{path}:{line} imports {module}"


def folder_imports(files: Files) -> Iterator[str]:
    """Imports of the library by its folder: a second copy of every class would come to life."""
    for path, text in _python(files, *CODE, "tests/"):
        for module, line in _imports(text):
            if module == "include" or module.startswith("include."):
                yield f"{path}:{line} imports {module}; the library is imported as hindcast"


def crowded_plugins(files: Files) -> Iterator[str]:
    """Files beside the one plugin: each .py there becomes a top-level module of Airflow and may hijack a
    library.
    """
    yield from (
        f"{path} is in plugins/, where only hindcast_plugin.py may be"
        for path, _ in _python(files, "plugins/")
        if Path(path).name != "hindcast_plugin.py"
    )


def dead_settings(files: Files) -> Iterator[str]:
    """Settings that nothing reads."""
    code = "\n".join(text for _, text in _python(files, *CODE))
    for name in Settings.model_fields:
        if not re.search(rf"(?:settings|self)\.{name}\b", code):
            yield f"nothing reads the setting {name}"


def helpless_events(files: Files) -> Iterator[str]:
    """Events that may be a warning or an error and name no cure."""
    for path, text in _python(files, *CODE):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "record":
                given = {keyword.arg for keyword in node.keywords}
                if "severity" in given and "cure" not in given:
                    yield f"{path}:{node.lineno} records a warning or an error without a cure"


def own_readings(files: Files) -> Iterator[str]:
    """Delta tables read in another way than by the one function that finds every row, and lets a process end
    as soon as it has read.
    """
    for path, text in _python(files, *CODE):
        if path != "include/hindcast/delta/arrow_dataset.py" and "to_pyarrow_" in text:
            yield f"{path} reads a Delta table by deltalake's own dataset: use hindcast.delta.arrow_dataset"


def stilted_words(files: Files) -> Iterator[str]:
    """Words in the pages that no engineer says."""
    for path, text in files.items():
        if not path.endswith(".md") or path in NOT_PROSE:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for match in _STILTED.finditer(line):
                yield f"{path}:{number} says {match[0]!r}: say it in plain words"


def lost_names(files: Files) -> Iterator[str]:
    """Names that a test takes from a module of the library which does not have them. mypy does not read tests,
    and of a module that few tests use nobody thinks.
    """
    for path, text in _python(files, "tests/"):
        tree = ast.parse(text)
        modules = dict(_modules_of(tree, files))
        for node in ast.walk(tree):  # a name that is bound again is no module everywhere
            if isinstance(node, ast.arg):
                modules.pop(node.arg, None)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                modules.pop(node.id, None)
        known = {name: _bound(files[file]) for name, file in modules.items()}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names = known.get(node.value.id)
                if names is not None and node.attr not in names and not node.attr.startswith("__"):
                    yield f"{path}:{node.lineno} takes {node.attr} from {modules[node.value.id]}"


def _modules_of(tree: ast.Module, files: Files) -> Iterator[tuple[str, str]]:
    """The library's modules that a file imports as such: the name in the file, and the module's path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                file = f"include/{node.module}.{alias.name}".replace(".", "/") + ".py"
                if file in files:
                    yield alias.asname or alias.name, file


def _bound(text: str) -> set[str]:
    """All names that are bound anywhere in a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def _imports(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno


#: Each rule with files that break it in exactly one place.
RULES: list[tuple[Rule, dict[str, str]]] = [
    (vague_names, {"include/hindcast/leases/lease_utils.py": "", "include/hindcast/leases/lease.py": ""}),
    (registry_hosts, {"Makefile": f"INDEX = https://{REGISTRIES[0]}/simple", "docs/a.md": "the registry"}),
    (
        machine_paths,
        {"docs/a.md": "cd /" + "root/hindcast", "docs/b.md": "https://host/root/page and $HOME/root/x"},
    ),
    (built_files, {"package-1.0-py3-none-any.whl": "", "docs/wheel.md": ""}),
    (
        unexplained_sleeps,
        {"tests/a.py": "time.sleep(1)\n", "tests/b.py": "# the clock itself is under test\ntime.sleep(1)\n"},
    ),
    (
        clocks_of_all_threads,
        {
            "tests/a.py": "monkeypatch.setattr(output.time, 'sleep', quick)\n",
            "tests/b.py": "monkeypatch.setattr(output, 'sleep', quick)\n",
        },
    ),
    (
        silent_tests,
        {
            "tests/a.py": "def test_x():\n    assert True\n",
            "tests/b.py": 'def test_x():\n    """It holds."""\n',
        },
    ),
    (
        heavy_dag_files,
        {
            "dags/a.py": "def f():\n    from pyspark.sql import DataFrame\n",
            "spark_apps/a.py": "import pyspark\n",
        },
    ),
    (
        folder_imports,
        {
            "dags/a.py": "from include.hindcast import settings\n",
            "dags/b.py": "from hindcast import settings\n",
        },
    ),
    (crowded_plugins, {"plugins/kafka.py": "", "plugins/hindcast_plugin.py": ""}),
    (
        helpless_events,
        {
            "include/a.py": "log.record(K, 'm', severity=W)\n",
            "include/b.py": "log.record(K, 'm')\nlog.record(K, 'm', severity=W, cure='c')\n",
        },
    ),
    (
        own_readings,
        {
            "include/a.py": "DeltaTable(url).to_pyarrow_table()",
            "include/b.py": "arrow_dataset(DeltaTable(url)).to_table()",
        },
    ),
    (
        lost_names,
        {
            "include/hindcast/a.py": "import time\nKEPT: int = 1\ndef made():\n    pass\n",
            "tests/a.py": "from hindcast import a\na.KEPT, a.made, a.time, a.__name__, a.lost\n",
            "tests/b.py": "from hindcast import a\ndef test_x(a):\n    a.anything\n",
        },
    ),
    (
        stilted_words,
        {
            "docs/a.md": "Whoever reads it.\nJaneway, a renewal.",
            "docs/runs.md": "anew",
            "CHANGELOG.md": "anew",
            "a.py": "anew",
        },
    ),
    (
        dead_settings,
        {"include/hindcast/a.py": "\n".join(f"settings.{name}" for name in list(Settings.model_fields)[1:])},
    ),
]


def _name(value: object) -> str:
    return getattr(value, "__name__", "breach")


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """The repository's text files, read once."""
    return _tracked()


@pytest.mark.parametrize("rule", [rule for rule, _ in RULES], ids=_name)
def test_the_repository_keeps_the_rule(rule: Rule, files: dict[str, str]) -> None:
    """No file of the repository breaks the rule."""
    assert list(rule(files)) == []


@pytest.mark.parametrize(("rule", "breach"), RULES, ids=_name)
def test_the_rule_finds_a_breach(rule: Rule, breach: dict[str, str]) -> None:
    """Files that break the rule in one place are found once, so that the rule is known to be able to fail."""
    assert len(list(rule(breach))) == 1


def test_the_files_are_really_read(files: dict[str, str]) -> None:
    """The rules see the library, the tests and the papers: an empty list would please every rule."""
    assert {
        "include/hindcast/settings.py",
        "tests/unit/test_house.py",
        "Makefile",
        "requirements.txt",
    } <= files.keys()
