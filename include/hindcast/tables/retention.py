"""Keep the tables small: join what was appended in pieces, and delete what no version within the retention
needs.

This is safe while others read and write. A compaction moves rows and changes none. Nothing younger than its
table's own retention is deleted, so a verdict that reads an older version of a sink finds it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from hindcast.delta.arrow_dataset import Condition
from hindcast.delta.intervals import hours_of
from hindcast.delta.older_log import expire_older_log, shorten_log
from hindcast.delta.open_table import find_table
from hindcast.errors import SchemaVersionError, StoreUnavailableError
from hindcast.partitions import AppShard
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings
from hindcast.tables.archive_schema import BOUNDED, archive_url, archived_topics
from hindcast.tables.compaction import compact
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import FencedTable, sink_end
from hindcast.tables.ledger import Ledger, LedgerRow
from hindcast.tables.ledger_bases import LedgerBases, fenced_by
from hindcast.tables.proofs import FOLDER as PROOFS_FOLDER
from hindcast.tables.proofs import Proofs
from hindcast.tables.run_states import BENCHMARKS, RunState
from hindcast.tables.schema import ORDERED_BY, REPLACED
from hindcast.tables.sink_files import FOLDER
from hindcast.tables.table_names import ControlTable

_log = structlog.get_logger(__name__)

#: Hindcasts are kept this long: they can be made again from the topic while it holds the range. The newest
#: benchmark of each version stays. Its version may not run any more, so it could not be made again.
HINDCAST_DAYS = 7
#: A folder that no proof names is deleted after so long.
_UNNAMED_SECONDS = 86_400
#: Each commit rewrites the leases whole, and a row of these others: there is nothing to join.
_REWRITTEN = frozenset({ControlTable.LEASES, *REPLACED})
#: What the upkeep of one table may raise: the store does not answer, a writer was faster, a file is torn, or
#: the table is another Hindcast's. None of these says anything about the other tables.
_FAILURES = (DeltaError, OSError, pa.ArrowException, StoreUnavailableError, SchemaVersionError)

#: The property that says for how long a table's log is kept, and Delta's own default, in hours.
_LOG_RETENTION = "delta.logRetentionDuration"
_LOG_HOURS = 30 * 24

#: Opens a table; None if there is none.
_Find = Callable[[], DeltaTable | None]
#: Joins a table's small files.
_Join = Callable[[DeltaTable], None]


def maintain(
    settings: Settings, tables: ControlTables, pipelines: Iterable[Pipeline]
) -> list[dict[str, Any]]:
    """Maintain the control tables, the sinks of all pipelines and the archives of topics. Delete old
    hindcasts.

    :param pipelines: every declared version of each
    :returns: for each table {table, version, files_before, files_after, files_deleted, seconds, skipped};
        ``skipped`` is the reason if the table was not maintained, else empty. ``version`` is None if the
        table could not be read.
    """
    pipelines = list(pipelines)
    reports = []
    for name, find, join in _tables(settings, tables, pipelines):
        report = _maintain(name, find, join)
        if report is not None:
            reports.append(report)
    _delete_old_hindcasts(settings, tables)
    _delete_old_file_lists(settings)
    _delete_forgotten_proofs(settings, tables)
    _keep_ledger_bases(settings, tables, pipelines)
    return reports


def check_maintained(reports: Iterable[dict[str, Any]]) -> None:
    """:raises StoreUnavailableError: naming the tables that could not be read"""
    unread = [report for report in reports if report["version"] is None]
    if unread:
        names = ", ".join(report["table"] for report in unread)
        raise StoreUnavailableError(table=names, action="maintained", reason=unread[0]["skipped"])


def _tables(
    settings: Settings, tables: ControlTables, pipelines: Iterable[Pipeline]
) -> Iterator[tuple[str, _Find, _Join | None]]:
    """Each table's name, how it is found, and how its small files are joined."""
    options = settings.storage_options
    join = partial(compact, storage_options=options)
    for control_table in ControlTable:
        find = partial(tables.open, control_table)
        if control_table in _REWRITTEN:
            yield control_table.value, find, None
        else:
            ordered = partial(join, ordered_by=ORDERED_BY.get(control_table, ()))
            yield control_table.value, find, ordered
    sinks = sorted({pipeline.sink.name for pipeline in pipelines if not pipeline.sink.url})
    ledger = Ledger(tables)
    for sink in sinks:
        url = settings.table("sinks", sink)
        tidy = partial(
            _file_join_and_shorten,
            ledger=ledger,
            url=url,
            storage_options=options,
            log_hours=settings.sink_log_hours,
        )
        yield f"sinks/{sink}", partial(find_table, url, options), tidy
    for sink in sorted({pipeline.late_sink.name for pipeline in pipelines if pipeline.late_sink}):
        url = settings.table("sinks", sink)
        join_and_shorten = partial(
            _join_and_shorten, url=url, storage_options=options, log_hours=settings.sink_log_hours
        )
        yield f"sinks/{sink}", partial(find_table, url, options), join_and_shorten
    for sink in sinks:
        url = settings.table("corrections", sink)
        yield f"corrections/{sink}", partial(find_table, url, options), join
    served: dict[str, _Find] = {}
    for pipeline in pipelines:
        if pipeline.sink.served is not None and not pipeline.sink.served.url:
            url = settings.served(pipeline)
            # Its files are those of the sink: it is not joined by itself.
            served[f"served/{pipeline.name}"] = partial(find_table, url, options)
    for name in sorted(served):
        yield name, served[name], None
    join_archive = partial(join, bounded=BOUNDED)
    for topic in archived_topics(settings):
        yield f"archive/{topic}", partial(find_table, archive_url(settings, topic), options), join_archive


def _file_join_and_shorten(
    table: DeltaTable, *, ledger: Ledger, url: str, storage_options: dict[str, str], log_hours: float
) -> None:
    """Put into the ledger what only the sink's log knows; join the small files; then shorten the log.

    A worker writes its batches into the ledger some seconds after their commits. If it died in between, and
    nobody took the shard since, the log alone says where the shard is.
    """
    ledger.append(_unfiled(ledger, url, storage_options))
    _join_and_shorten(table, url=url, storage_options=storage_options, log_hours=log_hours)


def _join_and_shorten(
    table: DeltaTable, *, url: str, storage_options: dict[str, str], log_hours: float
) -> None:
    compact(table, storage_options)
    table.create_checkpoint()
    shorten_log(url, log_hours)
    expire_older_log(url, hours_of(table.metadata().configuration.get(_LOG_RETENTION, "")) or _LOG_HOURS)


def _unfiled(ledger: Ledger, url: str, storage_options: dict[str, str]) -> list[LedgerRow]:
    """The batches of a sink that the ledger lacks. A batch that its worker is about to file may be among
    them: the ledger's readers count it once.
    """
    rows: list[LedgerRow] = []
    reached: dict[tuple[str, int], dict[str, LedgerRow]] = {}
    end = sink_end(url, storage_options)
    if end is None:
        return rows
    for app, recorded in sorted(end.fences.items()):
        named = AppShard.parse(app)
        if named is None:
            continue
        sink = FencedTable(url, storage_options, app)
        version = (named.pipeline, named.version)
        if version not in reached:
            reached[version] = ledger.reached(*version)
        known = reached[version].get(named.shard)
        if known is None:
            continue
        _, missing = sink.since(recorded, end.version, known)
        rows += [commit.as_ledger_row(known.topic) for commit in missing]
    return rows


def _maintain(name: str, find: _Find, join: _Join | None) -> dict[str, Any] | None:
    """Maintain one table; return what was done to it, None if there is no table. A failure is reported, and
    the next run finds the same work.
    """
    started = time.monotonic()
    report: dict[str, Any] = {
        "table": name,
        "version": None,
        "files_before": 0,
        "files_after": 0,
        "files_deleted": 0,
        "skipped": "",
    }
    try:
        table = find()
        if table is None:
            return None
        report["files_before"] = len(table.file_uris())
        try:
            report["files_deleted"] = _tidy(table, join)
        except _FAILURES as error:
            report["skipped"] = str(error)
        table.update_incremental()
        report["version"] = table.version()
        report["files_after"] = len(table.file_uris())
    except _FAILURES as error:
        report["skipped"] = str(error)
        _log.warning("A table could not be read; the others are maintained.", table=name, reason=str(error))
    report["seconds"] = round(time.monotonic() - started, 3)
    figures = {key: report[key] for key in ("files_before", "files_deleted", "seconds", "skipped")}
    _log.info("A table was maintained.", table=name, **figures)
    return report


def _tidy(table: DeltaTable, join: _Join | None) -> int:
    """Join the table's small files, shorten its log and delete the files that no version needs; return the
    number of deleted files.
    """
    if join is not None:
        join(table)
    table.create_checkpoint()
    table.cleanup_metadata()
    # "full" also finds files that no commit ever named: those of a batch whose worker died before its commit.
    deleted = table.vacuum(dry_run=False, full=True)
    return len(deleted)


def _delete_old_hindcasts(settings: Settings, tables: ControlTables) -> None:
    """Delete the folders of old runs, unless it is not known which of them must stay."""
    try:
        kept = _newest_benchmarks(tables)
    except (StoreUnavailableError, SchemaVersionError) as error:
        message = "No old hindcast was deleted, because the table of runs could not be read."
        _log.warning(message, reason=str(error))
        return
    for folder in _old_hindcasts(settings, kept):
        shutil.rmtree(folder)
        _log.info("An old hindcast was deleted.", folder=str(folder))


def _old_hindcasts(settings: Settings, kept: frozenset[tuple[str, str]]) -> Iterator[Path]:
    """The folders of runs that are older than :data:`HINDCAST_DAYS`.

    :param kept: pipeline and run id of those that stay, whatever their age
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


def _delete_old_file_lists(settings: Settings) -> None:
    """Delete the lists of a sink's files that are as old as the files which a vacuum deletes."""
    oldest = time.time() - HINDCAST_DAYS * 86_400
    root = settings.table(FOLDER)
    if "://" in root:
        return  # an object store expires files by its own lifecycle rules
    for path in Path(root).glob("*/*/*.parquet"):
        if path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)


def _delete_forgotten_proofs(settings: Settings, tables: ControlTables) -> None:
    """Delete the folders that no proof names, unless one may be about to name them.

    A proof is named once its folder is whole, so a folder stays for a day before it is deleted.
    """
    root = settings.table(PROOFS_FOLDER)
    if "://" in root:
        return  # an object store expires folders by its own lifecycle rules
    oldest = time.time() - _UNNAMED_SECONDS
    folders = [folder for folder in Path(root).glob("*/*") if folder.stat().st_mtime < oldest]
    if not folders:
        return
    try:
        named = Proofs(tables).urls()
    except (StoreUnavailableError, SchemaVersionError) as error:
        message = "No forgotten proof was deleted, because the table of proofs could not be read."
        _log.warning(message, reason=str(error))
        return
    for folder in folders:
        if str(folder) not in named:
            shutil.rmtree(folder)
            _log.info("A forgotten proof was deleted.", folder=str(folder))


def _keep_ledger_bases(settings: Settings, tables: ControlTables, pipelines: Iterable[Pipeline]) -> None:
    """Keep what the batches of the days before come to, so that the first plan after a long time does not
    read them all.
    """
    before = datetime.now(UTC) - timedelta(days=1)
    bases = LedgerBases(tables)
    for pipeline in pipelines:
        url = settings.sink(pipeline)
        fenced = fenced_by(url, settings.storage_options, pipeline.name, pipeline.version)
        try:
            bases.keep_older(pipeline.name, pipeline.version, fenced, before)
        except _FAILURES as error:
            message = "No base of the ledger was kept; plans read more of it."
            _log.warning(message, pipeline=pipeline.name, version=pipeline.version, reason=str(error))


def _newest_benchmarks(tables: ControlTables) -> frozenset[tuple[str, str]]:
    """Pipeline and run id of the newest benchmark of each version, be it of the pipeline, of Spark or of
    Hindcast.

    The next version is compared with it, whenever that comes.
    """
    kinds = sorted(kind.value for kind in BENCHMARKS)
    where: list[Condition] = [("kind", "in", kinds), ("state", "=", RunState.SUCCEEDED.value)]
    newest: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in tables.rows(ControlTable.RUNS, where):
        versions = (row["pipeline"], row["kind"], row["version"], row["versions"])
        known = newest.get(versions)
        if known is None or row["finished_at"] > known["finished_at"]:
            newest[versions] = row
    return frozenset((row["pipeline"], row["run_id"]) for row in newest.values())
