"""The pipelines that a worker can consume. A version that is deployed while it runs is loaded once it is wanted."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hindcast import catalog
from hindcast.catalog import Catalog
from hindcast.leases.lease import Lease
from hindcast.pipeline import Pipeline
from hindcast.shards.desired_state import rows_of, wanted_versions


class LoadedPipelines:
    """The versions in a folder, each as it was when it was first loaded: a query goes on with the code that it was started with.

    ``look`` is called by one thread; the others may ask at any time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = self._stamps()
        self.catalog = catalog.load(folder)

    def has(self, name: str, version: int) -> bool:
        return (name, version) in self.catalog.declared

    def of(self, name: str, version: int) -> Pipeline:
        """:raises UnknownPipelineError, UnknownVersionError: where it is not deployed"""
        return self.catalog.of(name, version)

    def look(self, leases: Iterable[Lease]) -> list[tuple[str, int]]:
        """Load the folder again where something is wanted that was not in it, and its files have changed since.

        :returns: the pipelines and versions that are wanted and not deployed
        """
        wanted = [(row.stream_id, version) for row in rows_of(leases) for version in wanted_versions(row)]
        if all(self.has(*one) for one in wanted):
            return []
        if (files := self._stamps()) != self._files:
            found = catalog.load(self._folder)
            self._files = files
            self.catalog = _merged(self.catalog, found)
        return [one for one in wanted if not self.has(*one)]

    def _stamps(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self._folder.rglob("*.py"):  # also what pipelines import
            with suppress(FileNotFoundError):  # it may go while this looks
                stat = path.stat()
                found[str(path)] = (stat.st_mtime_ns, stat.st_size)
        return found


def _merged(before: Catalog, found: Catalog) -> Catalog:
    """What was loaded before, as it was, and what is new and in the way of none of it."""
    merged = Catalog(dict(before.declared), dict(found.errors))
    by_file: dict[str, list[Pipeline]] = {}
    for key, pipeline in found.declared.items():
        if key not in before.declared:
            by_file.setdefault(pipeline.file, []).append(pipeline)
    for file, pipelines in by_file.items():
        merged.admit(file, pipelines)
    return merged
