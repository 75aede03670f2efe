"""Load the pipelines that users own, one module at a time, so that a broken one never stops the others."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hindcast.errors import (
    HindcastError,
    PipelineError,
    PipelinesRefusedError,
    UnknownPipelineError,
    UnknownVersionError,
    together,
)
from hindcast.pipeline import FORM, Pipeline, check_name
from hindcast.pipeline_modules import Folder

#: Python has one table of modules: folders are loaded one after the other, whichever threads ask.
_LOADING = threading.RLock()


@dataclass(frozen=True)
class Catalog(Mapping[str, Pipeline]):
    """The pipelines by name, and what was refused.

    A name may be declared in several versions, each in a file and with tables of its own. As a mapping it has
    the lowest version of each name: the desired one while the pipeline has no desired state. The control
    plane decides which version is active (:func:`hindcast.shards.active_version.active_pipeline`).

    ``errors`` maps a file to all that is wrong in it.
    """

    declared: dict[tuple[str, int], Pipeline] = field(default_factory=dict)
    errors: dict[str, HindcastError] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Pipeline:
        return self.of(name, min(self.versions(name)))

    def __iter__(self) -> Iterator[str]:
        names = [name for name, _ in self.declared]
        return iter(dict.fromkeys(names))

    def __len__(self) -> int:
        return len(set(self))

    def versions(self, name: str) -> list[int]:
        """The versions in which a pipeline is declared, in order.

        :raises UnknownPipelineError: if it is in none
        """
        check_name("pipeline", name)
        found = sorted(version for known, version in self.declared if known == name)
        if not found:
            names = ", ".join(sorted(self)) or "none"
            raise UnknownPipelineError(pipeline=name, known=self._with_errors(names))
        return found

    def of(self, name: str, version: int) -> Pipeline:
        """One version of a pipeline.

        :raises UnknownPipelineError: if no file declares the pipeline
        :raises UnknownVersionError: if none declares that version
        """
        known = self.versions(name)
        if version not in known:
            versions = ", ".join(map(str, known))
            raise UnknownVersionError(pipeline=name, version=version, known=self._with_errors(versions))
        return self.declared[name, version]

    def _with_errors(self, known: str) -> str:
        """The known names or versions, and why files were refused: one of them may declare what is
        missing.
        """
        return "; ".join([known, *map(str, self.errors.values())])

    def every(self) -> list[Pipeline]:
        """Every version of every pipeline."""
        return list(self.declared.values())

    def consumed(self) -> list[Pipeline]:
        """The lowest version of each pipeline that workers consume: all but those of streams that others
        run.
        """
        return [pipeline for pipeline in self.values() if not pipeline.is_foreign]

    def refused(self) -> PipelinesRefusedError | None:
        """One error that lists every file that was refused and all that is wrong in it; None if none was."""
        if not self.errors:
            return None
        problems = "".join(f"\n{error}" for error in self.errors.values())
        return PipelinesRefusedError(count=len(self.errors), problems=problems)

    def admit(self, file: str, found: list[Pipeline]) -> list[PipelineError]:
        """Add all that a file declares, or nothing of it; return its conflicts with other declarations."""
        known = self.every()
        errors: list[PipelineError] = []
        for pipeline in found:
            errors += _conflicts(pipeline, known)
            known.append(pipeline)
        if errors:
            self.errors[file] = together(errors)
            return errors
        for pipeline in found:
            self.declared[pipeline.name, pipeline.version] = pipeline
        return errors


def load(folder: Path) -> Catalog:
    """Load every ``*.py`` of the folder and of those below it, in the order of their paths. Of two files in
    conflict the later one is refused.

    A file without a pipeline is a module that others import. So is one whose name, or whose folder's name,
    begins with ``_`` or a dot; it is loaded only if another file imports it.
    """
    catalog = Catalog()
    with _LOADING:
        modules = Folder(folder)
        for path in _files(folder):
            found, errors = _load(modules, path)
            if errors:
                catalog.errors[str(path)] = together(errors)
            else:
                catalog.admit(str(path), found)
    return catalog


def _files(folder: Path) -> list[Path]:
    found = []
    for path in folder.rglob("*.py"):
        names = path.relative_to(folder).parts
        if not any(name.startswith(("_", ".")) for name in names):
            found.append(path)
    return sorted(found)


def _load(modules: Folder, path: Path) -> tuple[list[Pipeline], list[PipelineError]]:
    """What a file declares, and all that is wrong in it."""
    try:
        found = modules.load(path)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a user's module must not stop other pipelines
        known = modules.declared_by(path)
        return [], [*known.errors, _not_imported(modules.folder, path, error)]
    return found.pipelines, found.errors


def _not_imported(folder: Path, path: Path, error: BaseException) -> PipelineError:
    """The error of a file that raised while it was imported, with the line in the file or in a module that it
    imports.
    """
    if isinstance(error, PipelineError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    line = _last_line(own, path)
    raised_in = str(path)
    raised_at: int | None = None
    if own:
        raised_in = own[-1].filename
        raised_at = own[-1].lineno
    if isinstance(error, SyntaxError):
        raised_in = error.filename or raised_in
        raised_at = error.lineno
    problem = f"the module does not import: {type(error).__name__}: {error}"
    if raised_in != str(path) and Path(raised_in).is_relative_to(folder):
        problem += f" ({raised_in}:{raised_at})"
    elif line is None:
        line = raised_at
    return PipelineError(file=str(path), line=line or 0, pipeline=path.stem, problem=problem, form=FORM)


def _last_line(frames: list[traceback.FrameSummary], path: Path) -> int | None:
    for frame in reversed(frames):
        if frame.filename == str(path):
            return frame.lineno
    return None


def _conflicts(pipeline: Pipeline, others: Iterable[Pipeline]) -> Iterator[PipelineError]:
    """An error for each other declaration of the same version, and for each with one of the pipeline's names
    or tables.
    """
    for other in others:
        found = _conflict(pipeline, other)
        if found is None:
            continue
        problem, form = found
        file, line = pipeline.file, pipeline.line
        yield PipelineError(file=file, line=line, pipeline=pipeline.name, problem=problem, form=form)


def _conflict(pipeline: Pipeline, other: Pipeline) -> tuple[str, str] | None:
    """The problem and the valid form; None if the two can live together.

    Names are compared without their case: some stores and disks do not tell `Orders` from `orders`.
    """
    name = pipeline.name
    place = f"{other.file}:{other.line}"
    if other.name == name and other.version == pipeline.version:
        problem = f"the name is already taken by {place}, in the same version"
        form = "give each pipeline's function its own name, or the later one of a name a higher version"
        return problem, form
    if other.name != name and other.name.casefold() == name.casefold():
        problem = f"the name differs only by case from that of {other.name}, {place}"
        problem += ": both would have one folder on some stores"
        return problem, "give each pipeline's function a name of its own"
    shared = _table_names(pipeline) & _table_names(other)
    if not shared:
        return None
    tables = ", ".join(sorted(shared))
    if other.name == name:
        problem = f"its table {tables} is that of version {other.version}, {place}"
        table = f"{pipeline.sink.name}_v{pipeline.version}"
        return problem, f'each version writes tables of its own: sink=Table("{table}", ...)'
    problem = f"its table {tables} is that of the pipeline {other.name}, {place}"
    return problem, f'each pipeline writes tables of its own: sink=Table("{name}", ...)'


def _table_names(pipeline: Pipeline) -> set[str]:
    """What no two declarations may share: the names of tables, and the places of those that have one."""
    names = {table.name.casefold() for table in pipeline.tables}
    return names | {table.url for table in pipeline.tables if table.url}
