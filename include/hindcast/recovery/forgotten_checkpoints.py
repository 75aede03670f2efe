"""Delete the folders of checkpoints that no shard goes on from any more.

A rebuild, a search for records that raise, and a reshard each begin a new folder. The last batch of a shard
says which folder it goes on from.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from hindcast.errors import HindcastError
from hindcast.installation import Installation
from hindcast.leases.lease import StatusType
from hindcast.pipeline import Pipeline

_log = structlog.get_logger(__name__)

#: A folder that nothing names is deleted if nothing was written to it for so long: a query that has not
#: committed its first batch yet may be about to name it.
FORGOTTEN_DAYS = 7
_OF_VERSION = re.compile(r"v(\d+)\..+")


def delete_forgotten_checkpoints(installation: Installation, pipelines: Iterable[Pipeline]) -> list[str]:
    """Delete them; return their paths.

    :param pipelines: every declared version of each
    """
    deleted = []
    for name in sorted({pipeline.name for pipeline in pipelines}):
        root = installation.settings.checkpoint(name)
        if "://" in root:
            continue  # an object store expires folders by its own lifecycle rules
        old = list(_old_folders(Path(root)))
        if not old:
            continue
        try:
            named = _named(installation, name, {version for version, _ in old})
        except HindcastError as error:
            message = "No forgotten checkpoint was deleted: it is not known which ones are."
            _log.warning(message, pipeline=name, reason=str(error))
            continue
        for _, folder in old:
            if not named.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
                deleted.append(str(folder))
                _log.info("A forgotten checkpoint was deleted.", folder=str(folder))
    return deleted


def _old_folders(root: Path) -> Iterator[tuple[int, Path]]:
    """The pipeline's version and the folder, of those that nothing was written to lately."""
    oldest = time.time() - FORGOTTEN_DAYS * 86_400
    for folder in sorted(root.glob("v*")):
        of_version = _OF_VERSION.fullmatch(folder.name)
        if of_version and folder.is_dir() and _last_written(folder) < oldest:
            yield int(of_version[1]), folder


def _last_written(folder: Path) -> float:
    """When a file was made in the folder or in one of those in it (Spark's logs are such)."""
    at = folder.stat().st_mtime
    for inner in folder.iterdir():
        with suppress(FileNotFoundError):
            at = max(at, inner.stat().st_mtime)
    return at


def _named(installation: Installation, pipeline: str, versions: Iterable[int]) -> re.Pattern[str]:
    """The names of the folders from which shards go on: of each the one of its last batch, be it in effect or
    taken back; of one without a batch its first; and those that its present owner has made, which no batch
    may name yet.
    """
    named = []
    for version in versions:
        last = installation.ledger.reached(pipeline, version)
        rows = [*last.values(), *installation.ledger.newest(pipeline, version)]
        # A row of an older Hindcast does not say which folder.
        named += [re.escape(row.checkpoint or row.shard) for row in rows]
    for lease in installation.lease_table.leases_if_any():
        if lease.stream_id == pipeline and lease.status_type is StatusType.SHARD:
            shard = re.escape(lease.status_value)
            named.append(shard)
            named.append(rf"{shard}\..*\.e{lease.epoch}(\..*)?")
    return re.compile("|".join(named))
