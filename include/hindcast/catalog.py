"""Load the pipelines that users own, one module at a time, so that a broken one never takes the others down."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hindcast.errors import HindcastError, PipelineError, PipelinesRefusedError, UnknownPipelineError, UnknownVersionError, together
from hindcast.pipeline import FORM, Pipeline, check_name
from hindcast.pipeline_modules import Folder

#: Python has one table of modules: folders are loaded one after the other, whichever threads ask.
_LOADING = threading.RLock()


@dataclass(frozen=True)
class Catalog(Mapping[str, Pipeline]):
    """The pipelines by name, and what was refused.

    A name may be declared in several versions, each in a file and with tables of its own. As a mapping it has the lowest of them: the one
    that is wanted where nothing was ever wanted of the pipeline. Which one is active is a matter of the control plane
    (:func:`hindcast.control.standing.active_pipeline`).

    ``errors`` maps a file to all that is wrong in it.
    """

    declared: dict[tuple[str, int], Pipeline] = field(default_factory=dict)
    errors: dict[str, HindcastError] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Pipeline:
        return self.of(name, min(self.versions(name)))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self.declared))

    def __len__(self) -> int:
        return len(set(self))

    def versions(self, name: str) -> list[int]:
        """The versions in which a pipeline is declared, in order.

        :raises UnknownPipelineError: where it is in none
        """
        check_name("pipeline", name)
        found = sorted(version for known, version in self.declared if known == name)
        if not found:
            known = ", ".join(sorted(self)) or "none"
            raise UnknownPipelineError(pipeline=name, known=known + "".join(f"; {error}" for error in self.errors.values()))
        return found

    def of(self, name: str, version: int) -> Pipeline:
        """One version of a pipeline.

        :raises UnknownPipelineError: where no file declares the pipeline
        :raises UnknownVersionError: where none declares that version
        """
        known = self.versions(name)
        if version not in known:
            others = ", ".join(map(str, known)) + "".join(f"; {error}" for error in self.errors.values())
            raise UnknownVersionError(pipeline=name, version=version, known=others)
        return self.declared[name, version]

    def every(self) -> list[Pipeline]:
        """Every version of every pipeline."""
        return list(self.declared.values())

    def refused(self) -> PipelinesRefusedError | None:
        """One error that lists every file that was refused and all that is wrong in it; None if none was."""
        if not self.errors:
            return None
        problems = "".join(f"\n{error}" for error in self.errors.values())
        return PipelinesRefusedError(count=len(self.errors), problems=problems)

    def admit(self, file: str, found: list[Pipeline]) -> list[PipelineError]:
        """Add what a file declares, or nothing of it; returns what is in the way of it."""
        known = self.every()
        errors: list[PipelineError] = []
        for number, pipeline in enumerate(found):
            errors += _in_the_way(pipeline, [*known, *found[:number]])
        if errors:
            self.errors[file] = together(errors)
        else:
            self.declared.update({(pipeline.name, pipeline.version): pipeline for pipeline in found})
        return errors


def load(folder: Path) -> Catalog:
    """Load every ``*.py`` of the folder, in the order of the names; what takes the place of an earlier file is refused in the later one.

    A file without a pipeline is a module that others import; so is one whose name begins with ``_``, which is not loaded by itself.
    """
    catalog = Catalog()
    with _LOADING:
        modules = Folder(folder)
        for path in sorted(folder.glob("*.py")):
            if path.name.startswith("_"):
                continue
            found, errors = _load(modules, path)
            if errors:
                catalog.errors[str(path)] = together(errors)
            else:
                catalog.admit(str(path), found)
    return catalog


def _load(modules: Folder, path: Path) -> tuple[list[Pipeline], list[PipelineError]]:
    """What a file declares, and all that is wrong in it."""
    try:
        found = modules.load(path)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever a user's module raises must not reach the other pipelines
        known = modules.declared_by(path)
        return [], [*known.errors, _not_imported(modules.folder, path, error)]
    return found.pipelines, found.errors


def _not_imported(folder: Path, path: Path, error: BaseException) -> PipelineError:
    if isinstance(error, PipelineError):
        return error
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)]
    line = next((frame.lineno for frame in reversed(own) if frame.filename == str(path)), None)
    raised_in, raised_at = (own[-1].filename, own[-1].lineno) if own else (str(path), None)
    if isinstance(error, SyntaxError):
        raised_in, raised_at = error.filename or raised_in, error.lineno
    problem = f"the module does not import: {type(error).__name__}: {error}"
    if raised_in != str(path) and Path(raised_in).is_relative_to(folder):
        problem += f" ({raised_in}:{raised_at})"
    elif line is None:
        line = raised_at
    return PipelineError(file=str(path), line=line or 0, pipeline=path.stem, problem=problem, form=FORM)


def _in_the_way(pipeline: Pipeline, others: Iterable[Pipeline]) -> Iterator[PipelineError]:
    """An error for each other declaration that is of the same version, or has one of the pipeline's names or tables.

    Names are compared without their case: some stores and disks do not tell `Orders` from `orders`.
    """
    own = _folded(table.name for table in pipeline.tables)
    for other in others:
        where = f"{other.file}:{other.line}"
        shared = own & _folded(table.name for table in other.tables)
        if other.name == pipeline.name and other.version == pipeline.version:
            problem = f"the name is already taken by {where}, in the same version"
            form = "give each pipeline's function its own name, or the later one of a name a higher version"
        elif other.name != pipeline.name and other.name.casefold() == pipeline.name.casefold():
            problem = f"the name differs only by case from that of {other.name}, {where}: both would have one folder on some stores"
            form = "give each pipeline's function a name of its own"
        elif shared and other.name == pipeline.name:
            problem = f"its table {', '.join(sorted(shared))} is that of version {other.version}, {where}"
            form = f'each version writes tables of its own: sink=Table("{pipeline.sink.name}_v{pipeline.version}", ...)'
        elif shared:
            problem = f"its table {', '.join(sorted(shared))} is that of the pipeline {other.name}, {where}"
            form = f'each pipeline writes tables of its own: sink=Table("{pipeline.name}", ...)'
        else:
            continue
        yield PipelineError(file=pipeline.file, line=pipeline.line, pipeline=pipeline.name, problem=problem, form=form)


def _folded(names: Iterable[str]) -> set[str]:
    return {name.casefold() for name in names}
