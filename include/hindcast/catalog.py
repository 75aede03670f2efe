"""Load the pipelines that users own, one module at a time, so that a broken one never takes the others down."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hindcast.errors import HindcastError, PipelineError, UnknownPipelineError
from hindcast.pipeline import FORM, Pipeline, check_name, declared


@dataclass(frozen=True)
class Catalog(Mapping[str, Pipeline]):
    """The pipelines by name, and what was refused. ``errors`` maps a file to what is wrong in it."""

    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    errors: dict[str, HindcastError] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Pipeline:
        check_name("pipeline", name)
        if name not in self.pipelines:
            known = ", ".join(sorted(self.pipelines)) or "none"
            raise UnknownPipelineError(pipeline=name, known=known + "".join(f"; {error}" for error in self.errors.values()))
        return self.pipelines[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.pipelines)

    def __len__(self) -> int:
        return len(self.pipelines)


def load(folder: Path) -> Catalog:
    """Load every ``*.py`` of the folder, in the order of the names; a name declared twice is refused in the later file."""
    catalog = Catalog()
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith("_"):
            continue
        try:
            found = _load_module(path)
            for pipeline in found:
                if pipeline.name in catalog.pipelines:
                    first = catalog.pipelines[pipeline.name]
                    problem = f"the name is already taken by {first.file}:{first.line}"
                    raise PipelineError(
                        file=str(path),
                        line=pipeline.line,
                        pipeline=pipeline.name,
                        problem=problem,
                        form="give each pipeline's function its own name",
                    )
        except HindcastError as error:
            catalog.errors[str(path)] = error
            continue
        catalog.pipelines.update({pipeline.name: pipeline for pipeline in found})
    return catalog


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
