"""Keep the state of a query that ran recorded batches, and go on from it in another job.

What is kept of a checkpoint is what Spark needs to run the next batch: the plans of the last two batches,
their commits, and the state that the last one left. RocksDB writes the whole state with each batch: batch N
leaves version N + 1 of each store, a zip file that names the SST files which belong to it.

A query that reads files names them in its checkpoint, and they are gone after the job. So in a new job's
folder each source has a log of one entry without a file, which the last plan has read. All files that are
lined up then are new ones.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

from hindcast.spark.scratch import Folder

#: Spark's log of the files that a source has read: its version, then a line for each file.
_NO_FILES = b"v1\n"
_BEFORE_THE_ENTRY = json.dumps({"logOffset": -1})
_AFTER_THE_ENTRY = json.dumps({"logOffset": 0})

_STATE = "state/"
#: Where Spark describes the operators that have a state of their own. Their schemas are named by whole paths.
_DESCRIPTIONS = f"{_STATE}*/_metadata/v2/*"
_STORES = "stateStoreInfo"
_SCHEMAS = "stateSchemaFilePaths"


def keep(job: Folder, checkpoint: str, batch: int, to: Folder) -> None:
    """Copy what a checkpoint holds after its last batch.

    :param checkpoint: its name in the job's folder
    :param batch: Spark's number of its last batch
    :param to: a folder that has nothing yet
    :raises FileNotFoundError: if the batch left no state in one of the stores
    """
    plans = [f"offsets/{batch}", f"commits/{batch}"]
    if batch > 0:
        plans += [f"offsets/{batch - 1}", f"commits/{batch - 1}"]
    for name in ("metadata", *plans):
        job.copy(f"{checkpoint}/{name}", to, name)
    for path in _state_files(job, checkpoint, batch + 1):
        job.copy(path, to, path.removeprefix(f"{checkpoint}/"))


def restore(kept: Folder, batch: int, job: Folder, checkpoint: str) -> None:
    """Make a checkpoint in a job's folder, from which a query goes on after the batch that was kept."""
    for name in kept.names("*"):
        kept.copy(name, job, f"{checkpoint}/{name}")
    for number, read_to in ((batch - 1, _BEFORE_THE_ENTRY), (batch, _AFTER_THE_ENTRY)):
        if number < 0:
            continue
        plan = f"{checkpoint}/offsets/{number}"
        lines = job.read(plan).decode().splitlines()
        sources = len(lines) - 2
        job.write(plan, "\n".join([*lines[:2], *[read_to] * sources]).encode())
        for source in range(sources):
            job.write(f"{checkpoint}/sources/{source}/0", _NO_FILES)
    name_schemas(job, checkpoint)


def name_schemas(folder: Folder, checkpoint: str) -> None:
    """Let the descriptions of a copied checkpoint name the schemas that were copied with it."""
    for name in folder.names(f"{checkpoint}/{_DESCRIPTIONS}"):
        version, described = _description(folder, name)
        for store in described[_STORES]:
            names = [f"{checkpoint}/{_within(path)}" for path in store[_SCHEMAS]]
            store[_SCHEMAS] = [folder.uri(schema) for schema in names]
        folder.write(name, f"{version}\n{json.dumps(described)}".encode())


def _description(folder: Folder, name: str) -> tuple[str, dict[str, Any]]:
    """What Spark says of an operator: the version of the format, and the JSON."""
    version, described = folder.read(name).decode().split("\n", 1)
    return version, json.loads(described)


def _within(path: str) -> str:
    """A path of the state, by its name in the checkpoint."""
    return _STATE + path.rsplit(f"/{_STATE}", 1)[1]


def _state_files(job: Folder, checkpoint: str, version: int) -> Iterator[str]:
    """The files of the state at this version, by their names in the job's folder."""
    for operator in job.names(f"{checkpoint}/{_STATE}*"):
        yield from _descriptions(job, operator)
        for store in _stores(job, operator):
            yield from _store_files(job, store, version)


def _descriptions(job: Folder, operator: str) -> Iterator[str]:
    """What Spark knows of an operator. One with a state of its own is described once for each start of its
    query, and the newest description counts.
    """
    first_format = job.names(f"{operator}/_metadata/metadata")
    if first_format:
        yield from first_format
        return
    numbered = {int(name.rsplit("/", 1)[1]): name for name in job.names(f"{operator}/_metadata/v2/*")}
    newest = numbered[max(numbered)]
    yield newest
    checkpoint = operator.rsplit(f"/{_STATE}", 1)[0]
    _, described = _description(job, newest)
    for store in described[_STORES]:
        for path in store[_SCHEMAS]:
            yield f"{checkpoint}/{_within(path)}"


def _stores(job: Folder, operator: str) -> list[str]:
    """The folders of an operator's stores: one a partition, or several in a partition's folder."""
    found = set()
    for pattern in (f"{operator}/*/*.zip", f"{operator}/*/*/*.zip"):
        for name in job.names(pattern):
            found.add(name.rsplit("/", 1)[0])
    return sorted(found)


def _store_files(job: Folder, store: str, version: int) -> Iterator[str]:
    snapshot = f"{store}/{version}.zip"
    if not job.names(snapshot):
        raise FileNotFoundError(f"{job.at(snapshot)} is missing: the batch left no state there")
    yield snapshot
    yield from job.names(f"{store}/_metadata/*")
    with zipfile.ZipFile(io.BytesIO(job.read(snapshot))) as archive:
        described = json.loads(archive.read("metadata").decode().split("\n", 1)[1])
    for file in described["sstFiles"]:
        yield f"{store}/SSTs/{file['dfsSstFileName']}"
    for file in described.get("logFiles", []):
        yield f"{store}/logs/{file['dfsLogFileName']}"
