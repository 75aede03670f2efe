"""Pipelines that import what lies beside them: each folder is a package of its own, and its modules are as
they were deployed.
"""

from __future__ import annotations

import pickle
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hindcast import catalog
from hindcast.leases.delta_store import LeaseTable
from hindcast.pipeline_modules import PACKAGE
from hindcast.settings import Settings
from hindcast.shards.desired_state import DesiredStates
from hindcast.stream.loaded_pipelines import LoadedPipelines

PIPELINE = """
from hindcast import Table, Topic, pipeline
{imports}

@pipeline(source=Topic("t", "ts timestamp"), event_time="ts", watermark="1 second", sink=Table("{name}"), version={version})
def {name}(rows):
    return {result}
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def pipeline_of(folder: Path, imports: str, result: str, name: str = "one", version: int = 1) -> Path:
    return write(
        folder, f"{name}.py", PIPELINE.format(imports=imports, result=result, name=name, version=version)
    )


def answer(folder: Path, name: str = "one") -> Any:
    """What the pipeline's function returns."""
    found = catalog.load(folder)
    assert found.errors == {}
    transform: Any = found[name].transform
    return transform(None)


@pytest.mark.parametrize(
    ("imports", "result"),
    [
        ("import prices", "prices.RATE"),
        ("import prices as p", "p.RATE"),
        ("from prices import RATE", "RATE"),
        ("from . import prices", "prices.RATE"),
        ("from .prices import RATE as r", "r"),
        ("import rules.tax", "rules.tax.RATE"),
        ("import rules.tax as tax", "tax.RATE"),
        ("from rules import tax", "tax.RATE"),
        ("from rules.tax import RATE", "RATE"),
        ("from plain.deep import RATE", "RATE"),
        ("import json, prices, os.path", "prices.RATE"),
        ("from _hidden import RATE", "RATE"),
        (
            "def later():\n    import prices\n    from rules.tax import RATE\n    return max(RATE, prices.RATE)",
            "later()",
        ),
    ],
)
def test_a_pipeline_imports_what_lies_beside_it(tmp_path: Path, imports: str, result: str) -> None:
    """Modules, packages and folders without `__init__.py`, in each way that Python has, at the top or in a
    function.
    """
    for name in ("prices.py", "_hidden.py", "rules/__init__.py", "plain/deep.py"):
        write(tmp_path, name, "RATE = 7")
    write(tmp_path, "rules/tax.py", "from . import rates\nimport prices\nRATE = min(rates.RATE, prices.RATE)")
    write(tmp_path, "rules/rates.py", "RATE = 7")
    pipeline_of(tmp_path, imports, result)
    path = list(sys.path)
    assert answer(tmp_path) == 7
    assert sys.path == path
    assert not {"prices", "rules", "plain"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("imports", "result"),
    [
        ("from . import rates", "rates.RATE"),
        ("from .rates import RATE", "RATE"),
        ("from sales.rates import RATE", "RATE"),
        ("from ..prices import RATE", "RATE - 1"),
        ("import prices", "prices.RATE - 1"),
    ],
)
@pytest.mark.parametrize("file", ["sales/one.py", "sales/one.v2.py"])
@pytest.mark.parametrize("package", [True, False], ids=["package", "folder"])
def test_a_pipeline_lies_in_a_folder_below(
    tmp_path: Path, imports: str, result: str, file: str, package: bool
) -> None:
    """Its own folder's modules are beside it, those of the pipelines folder have their plain names."""
    write(tmp_path, "prices.py", "RATE = 8")
    write(tmp_path, "sales/rates.py", "RATE = 7")
    if package:
        write(tmp_path, "sales/__init__.py", "")
    write(tmp_path, file, PIPELINE.format(imports=imports, result=result, name="one", version=1))
    assert answer(tmp_path) == 7


def test_a_folder_that_is_hidden_has_no_pipelines(tmp_path: Path) -> None:
    """Caches of tools, environments, and what is set aside."""
    for file in ("_old/one.py", ".venv/lib/one.py", "sales/__pycache__/one.py", "sales/_one.py"):
        write(tmp_path, file, "raise RuntimeError")
    found = catalog.load(tmp_path)
    assert (dict(found), found.errors) == ({}, {})


def test_a_file_in_a_folder_below_is_refused_alone(tmp_path: Path) -> None:
    """With its path and line."""
    pipeline_of(tmp_path, "", "1")
    bad = write(tmp_path, "sales/two.py", "\n\n1 / 0\n")
    found = catalog.load(tmp_path)
    assert list(found) == ["one"]
    assert f"{bad}:3" in str(found.errors[str(bad)])


def test_two_folders_do_not_see_each_others_modules(tmp_path: Path) -> None:
    """Not while they are loaded, and not when a function imports later; what one lacks it does not find in
    the other.
    """
    imports = "def later():\n    import prices\n    return prices.RATE"
    for number in (1, 2):
        write(tmp_path, f"{number}/prices.py", f"RATE = {number}")
        pipeline_of(tmp_path / str(number), imports, "later()")
    loaded = [catalog.load(tmp_path / str(number))["one"].transform for number in (1, 2)]
    assert [transform(None) for transform in loaded] == [1, 2]  # type: ignore[arg-type]
    third = pipeline_of(tmp_path / "3", "import prices", "prices.RATE")
    assert "No module named 'prices'" in str(catalog.load(tmp_path / "3").errors[str(third)])


def test_a_changed_helper_is_loaded_anew(tmp_path: Path) -> None:
    """Also if it changes within a second and keeps its length."""
    pipeline_of(tmp_path, "from prices import RATE", "RATE")
    for rate in (1, 2, 3):
        write(tmp_path, "prices.py", f"RATE = {rate}")
        assert answer(tmp_path) == rate
    write(tmp_path, "more.py", "RATE = 9")
    pipeline_of(tmp_path, "from more import RATE", "RATE")
    assert answer(tmp_path) == 9
    assert not list(tmp_path.rglob("*.pyc"))


def test_a_file_of_the_folder_takes_no_librarys_place(tmp_path: Path) -> None:
    """Python's own modules and installed libraries come first; a relative import means the file beside."""
    write(tmp_path, "json.py", "RATE = 1")
    write(tmp_path, "yaml.py", "RATE = 2")
    pipeline_of(
        tmp_path,
        "import json, yaml\nfrom . import yaml as own",
        "(hasattr(json, 'dumps'), hasattr(yaml, 'dump'), own.RATE)",
    )
    assert answer(tmp_path) == (True, True, 2)


def test_a_pipeline_may_import_another(tmp_path: Path) -> None:
    """Each file has the pipelines that it declares itself, in whatever order they are imported."""
    pipeline_of(tmp_path, "from two import RATE", "RATE")
    pipeline_of(tmp_path, "RATE = 3", "RATE", name="two")
    found = catalog.load(tmp_path)
    assert found.errors == {}
    assert {name: Path(found[name].file).name for name in found} == {"one": "one.py", "two": "two.py"}


def test_a_helper_that_fails_is_told_with_its_place(tmp_path: Path) -> None:
    """The pipeline is refused at the line of its import; the helper's own line is named, and the others
    load.
    """
    helper = write(tmp_path, "prices.py", "RATE = 1\nRATE / 0\n")
    path = pipeline_of(tmp_path, "import prices", "prices.RATE")
    pipeline_of(tmp_path, "", "1", name="two")
    found = catalog.load(tmp_path)
    assert list(found) == ["two"]
    assert f"{path}:3: pipeline one: the module does not import: ZeroDivisionError" in str(
        found.errors[str(path)]
    )
    assert f"({helper}:2)" in str(found.errors[str(path)])
    assert f"{helper}:2:" in str(found.errors[str(helper)])


def test_a_file_without_pipelines_is_no_error(tmp_path: Path) -> None:
    """It is a helper."""
    write(tmp_path, "prices.py", "RATE = 1")
    found = catalog.load(tmp_path)
    assert (len(found), found.errors) == (0, {})


def test_a_module_that_ends_the_program_takes_none_down(tmp_path: Path) -> None:
    """SystemExit of a user's module is an error of its file."""
    path = write(tmp_path, "bad.py", "import sys\nsys.exit(3)")
    pipeline_of(tmp_path, "", "1")
    found = catalog.load(tmp_path)
    assert list(found) == ["one"]
    assert f"{path}:2:" in str(found.errors[str(path)])


def test_a_new_version_with_a_new_helper_is_deployed(tmp_path: Path, settings: Settings) -> None:
    """A change below the folder is seen; what was loaded before keeps its code, and a new file in its way is
    refused.
    """
    folder = tmp_path / "pipelines"
    write(folder, "lib/prices.py", "RATE = 1")
    pipeline_of(folder, "from lib.prices import RATE", "RATE")
    deployed, store = LoadedPipelines(folder), LeaseTable(settings)
    before: Any = deployed.of("one", 1).transform
    DesiredStates(store).declare(deployed.of("one", 1), 1)
    write(folder, "lib/prices.py", "RATE = 2")
    assert deployed.look(store.leases()) == []
    text = PIPELINE.format(imports="from lib.prices import RATE", result="RATE", name="two", version=1)
    clash = write(folder, "clash.py", text.replace('Table("two")', 'Table("one")'))
    (folder / "one.py").unlink()
    pipeline_of(folder, "from lib.prices import RATE", "RATE", name="three")
    DesiredStates(store).declare(catalog.load(folder)["three"], 1)
    assert deployed.look(store.leases()) == []
    after: Any = deployed.of("three", 1).transform
    assert (before(None), after(None)) == (1, 2)
    assert "its table one is that of the pipeline one" in str(deployed.catalog.errors[str(clash)])


def test_a_helpers_functions_are_pickled_by_value(tmp_path: Path) -> None:
    """A process that has neither the folder nor Hindcast runs them, with the modules that they refer to."""
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    from hindcast.spark.user_code import carry_code

    write(tmp_path, "rates.py", "RATE = 6\n")
    write(
        tmp_path,
        "prices.py",
        "import rates\n\nclass Price:\n    def up(self):\n        return rates.RATE + 1\n\ndef up():\n    return Price().up()",
    )
    pipeline_of(tmp_path, "import prices", "prices.up")
    function = answer(tmp_path)
    carry_code()
    sent = cloudpickle.dumps(function)
    assert b"hindcast.pipeline_modules" not in sent
    modules = [name for name in sys.modules if name.startswith(PACKAGE)]
    kept = {name: sys.modules.pop(name) for name in modules}
    try:
        assert pickle.loads(sent)() == 7  # noqa: S301 -- its own
    finally:
        sys.modules.update(kept)
