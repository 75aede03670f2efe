"""`make mutants`: change the code in small ways, one at a time, and see whether the tests notice. MODULE
names one module.

mutmut makes the mutants and tries each with the tests that call its function. It wants the code beside the
tests, so this copies both into a temporary folder, calls it there, and reads what it found. `modules.toml`
says which modules are examined, and by which tests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from mutants import survivors
from mutants.survivors import Mutant, Outcome, Verdict

ROOT = Path(__file__).resolve().parents[2]
MODULES = Path(__file__).with_name("modules.toml")
#: The code's folder in the scratch tree: as deep as include/, so that the code finds what is beside it.
SOURCE = Path("src/hindcast")
#: mutmut's folder in the scratch tree.
MUTATED = Path("mutants")
#: Drawn histories of the simulation that each mutant meets.
HISTORIES = 20
#: A test takes seconds. One that takes longer waits for something that the mutant took away, which is a
#: catch.
TEST_SECONDS = 120
#: Beside five times what its tests take, so long may a mutant take before it counts as one that never ends.
#: Long enough for a machine that has much else to do: with 6 s, one mutant in five of a slow run was called
#: caught that no test had failed on.
IDLE_SECONDS = 60.0
_OUTCOMES = {
    "killed": Outcome.CAUGHT,
    "timeout": Outcome.CAUGHT,
    "survived": Outcome.SURVIVED,
    "no tests": Outcome.UNREACHED,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--module", default="", help="examine these only, e.g. leases/lease,shards/coordinator"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        help="mutants that are tried at the same time; by default one for each core",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        help="make the scratch tree in this new folder and leave it there, for `mutmut browse`",
    )
    options = parser.parse_args()
    began = time.monotonic()
    spec = tomllib.loads(MODULES.read_text())
    examined = [module for group in spec["group"] for module in group.get("examined", [])]
    not_yet = [module for group in spec["group"] for module in group.get("not_yet", [])]
    chosen = options.module.split(",") if options.module else examined
    if unknown := set(chosen) - {*examined, *not_yet}:
        parser.error(
            f"{min(unknown)} is in no group of {MODULES.name}; there are {', '.join([*examined, *not_yet])}"
        )
    mutants: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="hindcast-mutants-") as temporary:
        for group in spec["group"]:
            modules = [
                module
                for module in (*group.get("examined", []), *group.get("not_yet", []))
                if module in chosen
            ]
            if not modules:
                continue
            tree = (options.keep or Path(temporary)) / modules[0].replace("/", "-")
            prepare(tree, modules, group["tests"], spec["skipped"]["names"])
            print(f"{', '.join(modules)}:", flush=True)
            if code := call_mutmut(tree, options.jobs):
                print(f"mutants: mutmut ended with exit code {code}; what it says is above.")
                return 2
            mutants += read_results(tree, modules)
    verdict = Verdict(mutants, survivors.read_all(), whole=set(examined) == set(chosen))
    print("\n".join(verdict.lines()))
    if not options.module:
        print(f"Not examined yet: {', '.join(not_yet) or 'none'}.")
    print(f"{time.monotonic() - began:.0f} s.")
    return verdict.exit_code


def prepare(tree: Path, modules: Sequence[str], tests: Sequence[str], skipped: Sequence[str]) -> None:
    """Copy code, tests and pipelines into a new folder, with a pyproject.toml that says what mutmut is to
    do.
    """
    caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "include/hindcast", tree / SOURCE, ignore=caches)
    for beside in ("include/pipelines", "include/hindcast_sandbox"):
        shutil.copytree(ROOT / beside, tree / beside, ignore=caches)
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=caches)
    # Python asks a folder of PYTHONPATH once: one that is made later stays unknown, and the code that is not
    # mutated would be tested.
    for folder in (SOURCE.parent, Path("include"), Path("tests")):
        (tree / MUTATED / folder).mkdir(parents=True)
    settings = "".join(
        f"{name} = {json.dumps(value)}\n" for name, value in mutmut_settings(modules, tests, skipped).items()
    )
    (tree / "pyproject.toml").write_text(
        f"{(ROOT / 'pyproject.toml').read_text()}\n[tool.mutmut]\n{settings}"
    )


def mutmut_settings(modules: Sequence[str], tests: Sequence[str], skipped: Sequence[str]) -> dict[str, Any]:
    """The table [tool.mutmut]. JSON's values are TOML's."""
    chosen = " and ".join(f"not {name}" for name in skipped)
    return {
        "source_paths": [str(SOURCE)],
        "only_mutate": [str(SOURCE / f"{module}.py") for module in modules],
        "also_copy": ["include/"],
        "pytest_add_cli_args": [
            *("--hypothesis-profile", "mutants", "--timeout", str(TEST_SECONDS), "-k", chosen),
            *("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "mutants.quick_catch"),
            *(
                "-p",
                "no:unraisableexception",
            ),  # it collects garbage ten times, which takes as long as all else of a quick test
        ],
        "pytest_add_cli_args_test_selection": tests,
        # Delta's and Arrow's threads do not survive a fork: a mutant's process comes from one that has run no
        # test.
        "process_isolation": "forkserver",
        "timeout_constant": IDLE_SECONDS,
        "timeout_multiplier": 5.0,
        "use_git_change_detection": False,
    }


def call_mutmut(tree: Path, jobs: int) -> int:
    """Make the mutants and try them; mutmut tells how far it is."""
    mutated = (tree / MUTATED).resolve()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(mutated / SOURCE.parent), str(mutated / "include"), str(mutated / "tests")]
        ),
        "PYTHONHASHSEED": "0",
        "HISTORIES": str(HISTORIES),
    }
    command = [str(Path(sys.executable).with_name("mutmut")), "run"]
    if jobs:
        command += ["--max-children", str(jobs)]
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


def read_results(tree: Path, modules: Sequence[str]) -> list[Mutant]:
    """All mutants of these modules, in the order of the code."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.format_utils import orig_function_and_class_names_from_key

    found = []
    with chdir(tree):
        for module in modules:
            path = SOURCE / f"{module}.py"
            meta = json.loads((MUTATED / f"{path}.meta").read_text())
            for name, exit_code in meta["exit_code_by_key"].items():
                function, of_class = orig_function_and_class_names_from_key(name)
                full_name = f"{of_class}.{function}" if of_class else function
                was, becomes = changed_lines(get_diff_for_mutant(name, path=path))
                outcome = _OUTCOMES.get(status_by_exit_code[exit_code], Outcome.UNTRIED)
                found.append(Mutant(module, full_name, was, becomes, outcome))
    return found


def changed_lines(diff: str) -> tuple[str, str]:
    """What a unified diff takes away and what it adds, each as one line without the indentation."""
    body = diff.splitlines()[2:]
    was, becomes = (" ".join(line[1:].strip() for line in body if line.startswith(sign)) for sign in "-+")
    return was, becomes


if __name__ == "__main__":
    raise SystemExit(main())
