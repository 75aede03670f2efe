"""The verdict of `make mutants`: each survivor has a reason, and each reason a survivor."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from mutants import run, survivors
from mutants.survivors import Mutant, Outcome, Reason, Verdict

SURVIVOR = Mutant("leases/lease", "Lease.free", "return a > b", "return a >= b", Outcome.SURVIVED)
CAUGHT = replace(SURVIVOR, becomes="return a < b", outcome=Outcome.CAUGHT)
REASON = Reason(
    module="leases/lease",
    function="Lease.free",
    was="return a > b",
    becomes="return a >= b",
    why="They are never equal.",
)
WORDS = Reason(words=True, why="Wording.")


def _record(folder: Path, text: str) -> Path:
    record = folder / "survivors.toml"
    record.write_text(text)
    return record


def test_a_survivor_with_its_reason_passes() -> None:
    """What is caught needs no reason; the report counts both and tells the reason."""
    verdict = Verdict([CAUGHT, SURVIVOR], [REASON], whole=False)
    assert verdict.exit_code == 0
    report = "\n".join(verdict.lines())
    assert "leases/lease: 2 mutants, 1 caught, 1 survived" in report
    assert "They are never equal.\n  leases/lease: Lease.free: return a > b -> return a >= b" in report


@pytest.mark.parametrize("outcome", [Outcome.SURVIVED, Outcome.UNREACHED])
def test_a_survivor_without_a_reason_fails_and_is_told_as_an_entry(outcome: Outcome, tmp_path: Path) -> None:
    """What is printed can be put into the record: with a reason it is the survivor's."""
    survivor = replace(SURVIVOR, becomes='return "a\\b" >= b', outcome=outcome)
    verdict = Verdict([CAUGHT, survivor], [REASON], whole=False)
    assert verdict.exit_code == 1
    entry = survivors.as_entry(survivor)
    assert entry in "\n".join(verdict.lines())
    reasons = survivors.read(_record(tmp_path, entry.replace('why = ""', 'why = "Harmless."')))
    assert Verdict([survivor], reasons, whole=False).exit_code == 0


def test_a_reason_whose_mutant_is_caught_or_gone_fails() -> None:
    """Nobody keeps an excuse for what needs none."""
    for mutants in ([CAUGHT, replace(SURVIVOR, outcome=Outcome.CAUGHT)], [CAUGHT]):
        verdict = Verdict(mutants, [REASON], whole=False)
        assert (verdict.exit_code, verdict.stale) == (1, [REASON])
        assert "leases/lease: Lease.free: return a > b -> return a >= b" in "\n".join(verdict.lines())


def test_reasons_of_other_modules_are_not_judged() -> None:
    """A run of one module says nothing of the others, and only a whole run of a reason for all modules."""
    other = replace(REASON, module="shards/coordinator")
    assert Verdict([CAUGHT], [other, WORDS], whole=False).exit_code == 0
    assert Verdict([CAUGHT], [other, WORDS], whole=True).stale == [WORDS]


def test_a_mutant_that_could_not_be_tried_fails() -> None:
    """It is neither caught nor a survivor."""
    verdict = Verdict([CAUGHT, replace(SURVIVOR, outcome=Outcome.UNTRIED)], [], whole=False)
    assert (verdict.exit_code, verdict.unexplained) == (1, [])
    assert "Could not be tried" in "\n".join(verdict.lines())


def test_no_mutants_at_all_fail() -> None:
    """A run that has tried nothing has shown nothing."""
    assert Verdict([], [], whole=False).exit_code == 1


def test_a_reason_names_one_change_several_or_a_whole_function(tmp_path: Path) -> None:
    """Each of several changes that are named must have survived; a line, or a function, stands for all its
    changes.
    """
    text = """
        [[survivor]]
        module = "leases/lease"
        function = "Lease.free"
        was = "return a > b"
        becomes = ["return a >= b", "return a != b"]
        why = "They are never equal."
        [[survivor]]
        module = "leases/lease"
        function = "Lease.key"
        why = "Only a real broker reaches it."
    """
    reasons = survivors.read(_record(tmp_path, text))
    assert [reason.becomes for reason in reasons] == ["return a >= b", "return a != b", None]
    of_key = replace(SURVIVOR, function="Lease.key", was="x", becomes="y", outcome=Outcome.UNREACHED)
    verdict = Verdict([SURVIVOR, of_key], reasons, whole=False)
    assert verdict.unexplained == []
    assert verdict.stale == [reasons[1]]


@pytest.mark.parametrize(
    "fields", ['module = "a"\nfunction = "f"\nwhy = " "', 'module = "a"\nwhy = "w"', 'why = "w"']
)
def test_an_entry_that_says_too_little_is_refused(tmp_path: Path, fields: str) -> None:
    """Neither a survivor without a reason nor a reason for whole modules can be recorded."""
    with pytest.raises(ValueError, match="an entry needs"):
        survivors.read(_record(tmp_path, f"[[survivor]]\n{fields}"))


@pytest.mark.parametrize(
    ("was", "becomes", "words"),
    [
        ('raise E("it is gone", 3)', 'raise E("XXit is goneXX", 3)', True),
        ("raise E('it is gone', 3)", "raise E('IT IS GONE', 3)", True),
        ('raise E("it is gone", 3)', 'raise E("it is gone", 4)', False),
        ('raise E("it is gone", 3)', "raise E(None, 3)", False),
        ('row["state"]', 'row["XXstateXX"]', False),
        ('f("a b", row["state"])', 'f("a b", row["STATE"])', False),
        ('", ".join(names)', '"XX, XX".join(names)', False),
    ],
)
def test_whether_only_words_differ(was: str, becomes: str, words: bool) -> None:
    """A sentence in quotes is words; a number, a name, a separator and the absence of a sentence are not."""
    mutant = replace(SURVIVOR, was=was, becomes=becomes)
    assert WORDS.holds(mutant) is words


def test_a_diff_becomes_the_lines_text() -> None:
    """Of a change of several lines each side is one text; what is only taken away leaves nothing."""
    head = "--- src/a.py\n+++ src/a.py\n@@ -1,3 +1,3 @@\n def f():\n"
    assert run.changed_lines(f"{head}-    a = 1\n+    a = 2\n b\n") == ("a = 1", "a = 2")
    assert run.changed_lines(f"{head}-    g(\n-        a)\n+    g(\n+        None)\n") == (
        "g( a)",
        "g( None)",
    )
    assert run.changed_lines(f"{head}-    key=a,\n") == ("key=a,", "")


def test_the_scratch_tree_is_one_that_the_tool_understands(tmp_path: Path) -> None:
    """The code, its tests and its pipelines lie as deep as they did, and the settings are TOML."""
    tree = tmp_path / "tree"
    run.prepare(tree, ["leases/lease"], ["tests/unit/shards/test_coordinator.py"], ["a_slow_test"])
    settings = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["mutmut"]
    assert settings["only_mutate"] == ["src/hindcast/leases/lease.py"]
    needed = [
        *settings["only_mutate"],
        *settings["pytest_add_cli_args_test_selection"],
        "mutants/src",
        "include/pipelines",
    ]
    assert [name for name in needed if not (tree / name).exists()] == []
    assert "not a_slow_test" in settings["pytest_add_cli_args"]


def _spec() -> tuple[list[str], list[str], dict[str, str], list[str]]:
    """The modules that are examined, those that are to be, those that are left out, and the tests."""
    spec = tomllib.loads(run.MODULES.read_text())
    examined = [module for group in spec["group"] for module in group.get("examined", [])]
    not_yet = [module for group in spec["group"] for module in group.get("not_yet", [])]
    return examined, not_yet, spec["left_out"], [path for group in spec["group"] for path in group["tests"]]


def test_each_module_of_the_protocols_has_its_place() -> None:
    """A module of tables, leases, shards, streams or versions is examined, is still to be examined, or has a
    reason not to be. Modules of other rooms may be examined, too.
    """
    examined, not_yet, left_out, _ = _spec()
    named = sorted([*examined, *not_yet, *left_out])
    rooms = ("delta", "leases", "recovery", "shards", "spark", "stream", "tables", "versions")
    folders = [run.ROOT / "include/hindcast" / room for room in rooms]
    found = [
        f"{folder.name}/{path.stem}"
        for folder in folders
        for path in folder.glob("*.py")
        if path.stem != "__init__"
    ]
    assert [name for name in named if name.split("/")[0] in rooms] == sorted(found)
    assert [name for name in named if not (run.ROOT / f"include/hindcast/{name}.py").is_file()] == []
    assert all(left_out.values())


def test_what_is_recorded_is_of_modules_that_are_examined() -> None:
    """No reason is kept that no run would judge, and the tests that are named are there."""
    examined, _, _, tests = _spec()
    assert {reason.module for reason in survivors.read_all()} <= {"", *examined}
    assert [path for path in tests if not (run.ROOT / path).is_file()] == []
