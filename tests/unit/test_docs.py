"""What the papers say is so: their links lead somewhere, and the commands, targets and events that they name
exist.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import python_reference, reference_pages
from typer.main import get_command

import hindcast
from hindcast import catalog
from hindcast.cli.main import app
from hindcast.shards.pipeline_row import ChangeKind
from hindcast.tables.event_log import EventKind

ROOT = Path(__file__).resolve().parents[2]
PAPERS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")
COMMAND = re.compile(r"(?:^\$ \S*|`)hindcast ((?!\.)[a-z-]+)([^`\n#]*)", re.MULTILINE)
TARGET = re.compile(r"(?:^\$ |`)make ([a-z-]+)", re.MULTILINE)
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def _id(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("paper", PAPERS, ids=_id)
def test_links_lead_somewhere(paper: Path) -> None:
    """Each link to a file of the repository leads to one."""
    broken = [target for target in LINK.findall(paper.read_text()) if not (paper.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("paper", PAPERS, ids=_id)
def test_commands_exist(paper: Path) -> None:
    """Each `hindcast` command that is named is one, and has the options that are named with it. What comes after
    two dashes is another command's.
    """
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, said in COMMAND.findall(paper.read_text()):
        rest, _, _ = said.partition(" -- ")
        assert name in commands
        command = commands[name]
        if hasattr(command, "commands") and (words := rest.split()) and words[0] in command.commands:
            command = command.commands[words[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, name


@pytest.mark.parametrize("paper", PAPERS, ids=_id)
def test_targets_exist(paper: Path) -> None:
    """Each `make` target that is named is one."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(TARGET.findall(paper.read_text())) <= targets


def test_events_exist() -> None:
    """The events that the paper on operating explains are written by the platform under these names."""
    table = (ROOT / "docs/how-to/operate.md").read_text().partition("| event |")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)
    assert named
    assert set(named) <= {kind.value for kind in EventKind}


def test_every_kind_of_event_is_written() -> None:
    """And has its meaning. The reference would else explain what never happens, or nothing."""
    package = (ROOT / "include/hindcast").rglob("*.py")
    code = "\n".join(path.read_text() for path in package if path.name != "event_log.py")
    of_versions = {kind.value for kind in ChangeKind}
    unwritten = [
        kind.name
        for kind in EventKind
        if kind not in of_versions and not re.search(rf"EventKind\.{kind.name}\b", code)
    ]
    assert unwritten == []
    assert all(kind.meaning for kind in EventKind)


def test_the_example_loads(tmp_path: Path) -> None:
    """The README's pipeline loads as it is printed, and is the one that the how-to explains."""
    example = EXAMPLE.findall((ROOT / "README.md").read_text())[0]
    assert EXAMPLE.findall((ROOT / "docs/how-to/your-own-pipeline.md").read_text())[0] == example
    (tmp_path / "big_trades.py").write_text(example)
    loaded = catalog.load(tmp_path)
    assert loaded.errors == {}
    assert list(loaded) == ["big_trades"]


@pytest.mark.parametrize("file", sorted(reference_pages.PAGES))
def test_the_reference_is_what_the_code_says(file: str) -> None:
    """`make reference` wrote the page, and nothing has changed since."""
    assert (reference_pages.FOLDER / file).read_text() == reference_pages.PAGES[file]()


def test_the_reference_has_no_other_page() -> None:
    """One that nothing makes would age."""
    assert {path.name for path in reference_pages.FOLDER.iterdir()} == set(reference_pages.PAGES)


def test_every_declaration_is_in_the_reference() -> None:
    """What a file of pipelines may import from the package."""
    described = set(re.findall(r"^## (\w+)", python_reference.declarations(), flags=re.MULTILINE))
    assert described == set(hindcast.__all__) - {"Hindcast", "Pipeline", "read"}


def test_the_reference_describes_every_member() -> None:
    """Each public method and attribute has a docstring, and each parameter that its name does not explain a
    line.
    """
    undescribed = re.findall(r"^### `(.*)`\n\n\n", python_reference.reference(), flags=re.MULTILINE)
    assert undescribed == []


def test_the_papers_name_commands() -> None:
    """The patterns find something: a paper without commands would please every test above."""
    assert len(COMMAND.findall((ROOT / "docs/how-to/operate.md").read_text())) >= 10
    assert TARGET.findall((ROOT / "README.md").read_text())
