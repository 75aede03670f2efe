"""Keep the tables small: compact what was appended in pieces, drop what no version within the retention needs.

Safe beside writers and readers: compaction moves rows without changing any, and nothing younger than its table's own retention is
deleted, so a verdict that reads an older version of a sink finds it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from hindcast import catalog
from hindcast.settings import Settings
from hindcast.tables.archive_schema import BOUNDED, archive_url, archived_topics
from hindcast.tables.compaction import compact
from hindcast.tables.control_tables import Condition, ControlTables
from hindcast.tables.run_states import BENCHMARKS, RunState
from hindcast.tables.schema import ControlTable

_log = structlog.get_logger(__name__)

#: Hindcasts are kept this long: they can be made again from the topic while it holds the range. The newest benchmark of each version
#: stays: its version may not run any more, so that it could not be made again.
HINDCAST_DAYS = 7
#: Rewritten whole by each commit, so there is nothing to compact.
_WHOLE = frozenset({ControlTable.LEASES})


def maintain(settings: Settings) -> list[dict[str, Any]]:
    """Maintain the control tables, the sinks of all pipelines and the archives of topics; return for each what was done to it.

    :returns: {table, version, files_before, files_after, files_deleted, seconds, skipped}; ``skipped`` says why where it is not empty
    """
    tables = ControlTables(settings)
    join = partial(compact, storage_options=settings.storage_options)
    done = [_maintain(name, tables.open(name), None if name in _WHOLE else join) for name in ControlTable]
    sinks = sorted({pipeline.sink.name for pipeline in catalog.load(settings.pipelines_dir).every()})
    for folder, sink in product(("sinks", "corrections"), sinks):
        try:
            table = DeltaTable(settings.table(folder, sink), storage_options=settings.storage_options or None)
        except TableNotFoundError:
            continue
        done.append(_maintain(f"{folder}/{sink}", table, join))
    for topic in archived_topics(settings):
        try:
            table = DeltaTable(archive_url(settings, topic), storage_options=settings.storage_options or None)
        except TableNotFoundError:
            continue
        done.append(_maintain(f"archive/{topic}", table, partial(join, bounded=BOUNDED)))
    for old in _old_hindcasts(settings, _newest_benchmarks(tables)):
        shutil.rmtree(old)
        _log.info("An old hindcast was deleted.", folder=str(old))
    return done


def _maintain(name: str, table: DeltaTable, join: Callable[[DeltaTable], None] | None) -> dict[str, Any]:
    started = time.monotonic()
    before, deleted, skipped = len(table.file_uris()), 0, ""
    try:
        if join is not None:
            join(table)
        table.create_checkpoint()
        table.cleanup_metadata()
        # "full" also finds files that no commit ever named: those of a batch whose worker died before its commit.
        deleted = len(table.vacuum(dry_run=False, full=True))
    except (DeltaError, OSError, pa.ArrowException) as error:
        skipped = str(error)  # a writer was faster, or a file is torn; the next run finds the same work
    table.update_incremental()
    seconds = round(time.monotonic() - started, 3)
    _log.info("A table was maintained.", table=name, files_before=before, files_deleted=deleted, seconds=seconds, skipped=skipped)
    return {
        "table": str(name),
        "version": table.version(),
        "files_before": before,
        "files_after": len(table.file_uris()),
        "files_deleted": deleted,
        "seconds": seconds,
        "skipped": skipped,
    }


def _old_hindcasts(settings: Settings, kept: frozenset[tuple[str, str]]) -> Iterator[Path]:
    """The folders of runs that are past their age.

    :param kept: pipeline and run id of those that stay whatever their age
    """
    oldest = time.time() - HINDCAST_DAYS * 86_400
    for root in (settings.table("hindcasts"), settings.table("hindcast_rows")):
        if "://" in root:
            return  # an object store expires folders by its own lifecycle rules
        for folder in Path(root).glob("*/*"):
            if (folder.parent.name, folder.name) in kept:
                continue
            if folder.is_dir() and folder.stat().st_mtime < oldest:
                yield folder


def _newest_benchmarks(tables: ControlTables) -> frozenset[tuple[str, str]]:
    """Pipeline and run id of the newest benchmark of each version, be it of the pipeline, of Spark or of Hindcast.

    The next version is compared with it, whenever that comes.
    """
    kinds = sorted(kind.value for kind in BENCHMARKS)
    of_interest: list[Condition] = [("kind", "in", kinds), ("state", "=", RunState.SUCCEEDED.value)]
    columns = ["pipeline", "kind", "version", "versions", "run_id", "finished_at"]
    newest: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in tables.read(ControlTable.RUNS, of_interest, columns).to_pylist():
        of = (row["pipeline"], row["kind"], row["version"], row["versions"])
        if of not in newest or row["finished_at"] > newest[of]["finished_at"]:
            newest[of] = row
    return frozenset((row["pipeline"], row["run_id"]) for row in newest.values())
