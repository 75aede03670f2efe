"""Whether a running version has read a record that another version could not use.

A record on which one version's function raises is a dead letter of that version. A mended version that begins
before it reads the record itself. Sent back into the topic, the letter would be read there twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hindcast.errors import BadInputError
from hindcast.installation import Installation
from hindcast.partitions import Offsets
from hindcast.pipeline import Pipeline
from hindcast.replay.inputs import read_ledger
from hindcast.shards.active_version import rollouts
from hindcast.tables.table_names import ControlTable

#: The columns that are read: letters may be large.
_NARROW = ["topic", "partition", "offset", "version"]
#: A topic, one of the pipeline's own partitions, an offset.
Letter = tuple[str, int, int]


def refuse_letters_read(installation: Installation, pipeline: Pipeline, letters: Sequence[Letter]) -> None:
    """Check that no running version has read one of these dead letters without filing it as one, too.

    :raises BadInputError: naming the letter and the version
    """
    if not letters:
        return
    filed = _filed_by(installation, pipeline, letters)
    for version in _running(installation, pipeline):
        first, committed = _read_by(installation, pipeline, version)
        for letter in letters:
            _, partition, offset = letter
            if partition not in committed or not first[partition] <= offset < committed[partition]:
                continue
            if version not in filed[letter]:
                _refuse(pipeline, letter, version)


def _running(installation: Installation, pipeline: Pipeline) -> list[int]:
    """The versions that are consumed: the active one, and one beside it."""
    rollout = rollouts(installation.lease_table.leases_if_any()).get(pipeline.name)
    if rollout is None:
        return []
    versions = [rollout.active]
    if rollout.beside is not None:
        versions.append(rollout.beside.version)
    return versions


def _read_by(installation: Installation, pipeline: Pipeline, version: int) -> tuple[Offsets, Offsets]:
    """From where to where a version has read its topics."""
    of_version = installation.catalog.of(pipeline.name, version)
    history = next(read_ledger(installation, of_version).histories())
    return history.first, history.committed


def _filed_by(
    installation: Installation, pipeline: Pipeline, letters: Sequence[Letter]
) -> dict[Letter, set[int]]:
    """By letter the versions that have filed it."""
    topics = sorted({topic for topic, _, _ in letters})
    offsets = sorted({offset for _, _, offset in letters})
    where = [("pipeline", "=", pipeline.name), ("topic", "in", topics), ("offset", "in", offsets)]
    found: dict[Letter, set[int]] = defaultdict(set)
    for row in installation.tables.read(ControlTable.DEAD_LETTERS, where, _NARROW).to_pylist():
        found[row["topic"], row["partition"], row["offset"]].add(row["version"])
    return found


def _refuse(pipeline: Pipeline, letter: Letter, version: int) -> None:
    topic, partition, offset = letter
    problem = f"{topic}/{partition}/{offset} is no dead letter of version {version} of {pipeline.name}"
    problem += ", which has read it: sent again, it would count twice there"
    raise BadInputError(problem=problem, cure="Leave it out of the file.")
