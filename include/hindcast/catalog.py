"""Load the pipelines that users own, one module at a time, so that a broken one never takes the others down."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hindcast.errors import HindcastError, PipelineError, UnknownPipelineError, UnknownVersionError
from hindcast.pipeline import FORM, Pipeline, check_name, declared


@dataclass(frozen=True)
class Catalog(Mapping[str, Pipeline]):
    """The pipelines by name, and what was refused.

    A name may be declared in several versions, each in a file and with tables of its own. As a mapping it has the lowest of them: the one
    that is wanted where nothing was ever wanted of the pipeline. Which one is active is a matter of the control plane
    (:func:`hindcast.control.standing.active_pipeline`).

    ``errors`` maps a file to what is wrong in it.
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


def load(folder: Path) -> Catalog:
    """Load every ``*.py`` of the folder, in the order of the names; what takes the place of an earlier file is refused in the later one."""
    catalog = Catalog()
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith("_"):
            continue
        try:
            found = _load_module(path)
            for number, pipeline in enumerate(found):
                _check_place(pipeline, [*catalog.every(), *found[:number]])
        except HindcastError as error:
            catalog.errors[str(path)] = error
            continue
        catalog.declared.update({(pipeline.name, pipeline.version): pipeline for pipeline in found})
    return catalog


def _check_place(pipeline: Pipeline, others: Iterable[Pipeline]) -> None:
    """:raises PipelineError: if the version is declared already, or another declaration has one of its names or tables

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
        raise PipelineError(file=pipeline.file, line=pipeline.line, pipeline=pipeline.name, problem=problem, form=form)


def _folded(names: Iterable[str]) -> set[str]:
    return {name.casefold() for name in names}


def _load_module(path: Path) -> list[Pipeline]:
    found: list[Pipeline] = []
    token = declared.set(found)
    try:
        # A name of its own: a pipeline called like a library must not take that library's place in sys.modules.
        spec = importlib.util.spec_from_file_location(f"hindcast_pipelines.{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except HindcastError:
        raise
    except Exception as error:  # whatever a user's module raises must not reach the other pipelines
        line = next(
            (frame.lineno for frame in reversed(traceback.extract_tb(error.__traceback__)) if frame.filename == str(path)),
            getattr(error, "lineno", 0),
        )
        raise PipelineError(
            file=str(path), line=line, pipeline=path.stem, problem=f"the module does not import: {type(error).__name__}: {error}", form=FORM
        ) from error
    finally:
        declared.reset(token)
    return found
