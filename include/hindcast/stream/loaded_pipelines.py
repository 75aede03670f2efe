"""The pipelines that a worker can consume.

If a version is deployed while the worker runs, it is loaded once it is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hindcast import catalog
from hindcast.catalog import Catalog
from hindcast.leases.lease import Lease, LeaseKey
from hindcast.partitions import ShardId
from hindcast.pipeline import Pipeline
from hindcast.shards.pipeline_row import rows_of


class LoadedPipelines:
    """The versions in a folder, each as it was first loaded: a query keeps the code with which it started.

    ``look`` is called by one thread; the others may ask at any time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = self._stamps()
        self.catalog = catalog.load(folder)

    def has(self, name: str, version: int) -> bool:
        return (name, version) in self.catalog.declared

    def of(self, name: str, version: int) -> Pipeline:
        """:raises UnknownPipelineError, UnknownVersionError: if it is not deployed"""
        return self.catalog.of(name, version)

    def of_shard(self, key: LeaseKey) -> Pipeline:
        """The pipeline of a shard, in the shard's version.

        :raises UnknownPipelineError, UnknownVersionError: if it is not deployed
        """
        return self.of(key.stream_id, ShardId.parse(key.status_value).version)

    def look(self, leases: Iterable[Lease]) -> list[tuple[str, int]]:
        """Load the folder again if a wanted version was not in it and its files have changed since.

        :returns: the pipelines and versions that are wanted and not deployed
        """
        wanted = _wanted(leases)
        if not self._missing(wanted):
            return []
        files = self._stamps()
        if files != self._files:
            found = catalog.load(self._folder)
            self._files = files
            self.catalog = _merged(self.catalog, found)
        return self._missing(wanted)

    def _missing(self, wanted: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        return [(name, version) for name, version in wanted if not self.has(name, version)]

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """Path -> when the file was changed, and its size."""
        found = {}
        for path in self._folder.rglob("*.py"):  # also what pipelines import
            with suppress(FileNotFoundError):  # a file may go during the walk
                stat = path.stat()
                found[str(path)] = (stat.st_mtime_ns, stat.st_size)
        return found


def _wanted(leases: Iterable[Lease]) -> list[tuple[str, int]]:
    wanted: list[tuple[str, int]] = []
    for row in rows_of(leases):
        wanted.extend((row.pipeline, version) for version in row.wanted_versions)
    return wanted


def _merged(before: Catalog, found: Catalog) -> Catalog:
    """All that was loaded before, as it was, and the new versions that conflict with none of it."""
    merged = Catalog(dict(before.declared), dict(found.errors))
    by_file: dict[str, list[Pipeline]] = {}
    for key, pipeline in found.declared.items():
        if key not in before.declared:
            by_file.setdefault(pipeline.file, []).append(pipeline)
    for file, pipelines in by_file.items():
        merged.admit(file, pipelines)
    return merged
