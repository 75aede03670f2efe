"""A Delta table that only the owner of the newest epoch can write: the heart of exactly-once.

Each shard is one *application* of Delta's transaction identifiers (Delta protocol, "Transaction
Identifiers"). The table's log keeps one number for each application, here ``epoch << 32 | batch``. A commit
reads that number and replaces it on the same version of the table. So two owners can never both write, and an
owner can never write a batch twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import pyarrow as pa
import structlog
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from hindcast.clock import utc_from_ms
from hindcast.delta.application_log import application_log, log_end
from hindcast.delta.commit import METADATA_KEY, commits_down, commits_up, read_commit, until_it_lands
from hindcast.delta.files import DataFile
from hindcast.delta.older_log import shorten_log
from hindcast.delta.open_table import check_columns, create_table
from hindcast.errors import FenceMovedError, LeaseLostError, SinkSharedError, StoreUnavailableError
from hindcast.partitions import Offsets, offsets_from_json, offsets_to_json
from hindcast.processes.crash_points import reach
from hindcast.tables.excluded_records import Excluded, excluded_from_json, excluded_to_json
from hindcast.tables.ledger import LedgerRow

_logger = structlog.get_logger(__name__)

_BY_PARTITION = ("start_offsets", "end_offsets", "floors")
#: The log itself has these of each commit.
_OF_THE_LOG = ("sink_version", "committed_ms")
_NOT_IN_LEDGER = frozenset({"kind", "committed_ms"})


class Fence(NamedTuple):
    """A place in the order of an application's commits: by epoch, then by batch."""

    epoch: int
    batch: int

    @property
    def number(self) -> int:
        return self.epoch << 32 | self.batch

    @classmethod
    def from_number(cls, number: int) -> Fence:
        return cls(number >> 32, number & 0xFFFFFFFF)

    @classmethod
    def of(cls, number: int | None) -> Fence | None:
        if number is None:
            return None
        return cls.from_number(number)


@dataclass(frozen=True, kw_only=True)
class BatchCommit:
    """What a commit says of itself in the table's log. Watermarks are epoch milliseconds of event time; ends
    are exclusive.

    ``checkpoint``, ``base`` and ``floors`` are the
    :class:`~hindcast.recovery.rebuild_state.CheckpointRef` that wrote it. ``excluded`` are the records that
    the batch left out.
    """

    kind: str
    pipeline: str
    version: int
    shard: str
    epoch: int
    batch: int
    worker: str
    start_offsets: Offsets
    end_offsets: Offsets
    late_watermark_ms: int
    watermark_ms: int
    checkpoint: str = ""
    base: int = 1
    floors: Offsets = field(default_factory=dict)
    output_rows: int = 0
    excluded: Excluded = field(default_factory=dict)
    sink_version: int = -1
    committed_ms: int = 0

    def as_metadata(self) -> str:
        values = asdict(self)
        for name in _OF_THE_LOG:
            del values[name]
        for name in _BY_PARTITION:
            values[name] = offsets_to_json(values[name])
        del values["excluded"]
        if self.excluded:
            values["excluded"] = excluded_to_json(self.excluded)
        return json.dumps(values)

    def as_ledger_row(self, topic: str) -> LedgerRow:
        """The batch as a row of the ledger, without what only Spark could measure."""
        names = type(self).__dataclass_fields__.keys() - _NOT_IN_LEDGER
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        committed_at = utc_from_ms(self.committed_ms)
        return LedgerRow.unmeasured(**shared, topic=topic, committed_at=committed_at)

    @classmethod
    def from_ledger_row(cls, row: LedgerRow) -> Self:
        """The batch of a row that names its checkpoint."""
        assert row.checkpoint is not None and row.base is not None
        names = cls.__dataclass_fields__.keys() - _NOT_IN_LEDGER
        shared: dict[str, Any] = {name: getattr(row, name) for name in names}
        committed_ms = int(row.committed_at.timestamp() * 1000)
        return cls(kind="batch", committed_ms=committed_ms, **shared)

    @classmethod
    def from_history(cls, entry: dict[str, Any]) -> Self:
        values = json.loads(entry[METADATA_KEY])
        for name in _BY_PARTITION:
            values[name] = offsets_from_json(values[name])
        values["excluded"] = excluded_from_json(values.get("excluded"))
        values["sink_version"] = entry["version"]
        values["committed_ms"] = entry["timestamp"]
        return cls(**values)


#: Delta keeps a log for 30 days by default. Files that a compaction replaced are kept for a week, so an older
#: version could not be restored anyway; a day is for the upkeep that is late.
_LOG_RETENTION = {"delta.logRetentionDuration": "interval 8 days"}
#: In an object store delta-rs reads every entry since the last checkpoint again for each commit, so they are
#: kept few. On a local disk the log is followed, and Delta's own default of 100 stays.
_CHECKPOINT_OFTEN = {"delta.checkpointInterval": "10"}


@dataclass(frozen=True)
class Upsert:
    """Rows to merge. Each replaces the row with its keys, or is added. No two have the same keys, and keys
    are plain columns.

    ``deleted``: a boolean column that the table does not have. A row in which it is true takes the row with
    its keys out of the table.
    """

    rows: pa.Table
    keys: Sequence[str]
    deleted: str = ""

    def merge_into(
        self, table: DeltaTable, properties: CommitProperties, hooks: PostCommitHookProperties
    ) -> None:
        conditions = []
        for key in self.keys:
            column = _quoted(key)
            # In parentheses: delta-rs takes what follows FROM, up to the end, for the other side of the
            # comparison.
            conditions.append(f"(target.{column} IS NOT DISTINCT FROM source.{column})")
        merger = table.merge(
            self.rows,
            " AND ".join(conditions),
            source_alias="source",
            target_alias="target",
            commit_properties=properties,
            post_commithook_properties=hooks,
        )
        if self.deleted:
            is_deleted = f"COALESCE(source.{_quoted(self.deleted)}, FALSE)"
            merger = merger.when_matched_delete(is_deleted)
            merger = merger.when_matched_update_all(except_cols=[self.deleted])
            merger = merger.when_not_matched_insert_all(f"NOT {is_deleted}", except_cols=[self.deleted])
        else:
            merger = merger.when_matched_update_all().when_not_matched_insert_all()
        merger.execute()


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


#: Versions of a table between two commits that shorten its log.
_SHORTEN_EVERY = 100

#: What one commit brings: files that are written but in no commit yet, or rows to merge.
Data = Sequence[DataFile] | Upsert


@dataclass(frozen=True)
class SinkEnd:
    """A sink's newest version, and the place of each application in it."""

    version: int
    fences: Mapping[str, Fence]


def sink_end(url: str, storage_options: dict[str, str]) -> SinkEnd | None:
    """Where all that write to a table are; None if there is no table. The log is read once.

    :raises StoreUnavailableError: if the store does not answer
    """
    end = log_end(url, storage_options)
    if end is None:
        return None
    return SinkEnd(end.version, {app: Fence.from_number(number) for app, number in end.numbers.items()})


class FencedTable:
    """One table as one application sees it. Not for threads: each user opens its own."""

    def __init__(
        self, url: str, storage_options: dict[str, str], app: str, log_hours: float | None = None
    ) -> None:
        """:param log_hours: the commits keep the table's log so short; None for a table whose log has another
        keeper
        """
        self.url = url
        self.app = app
        self.storage_options = storage_options
        self._log = application_log(url, storage_options, app)
        self._log_hours = log_hours

    def create(self, schema: pa.Schema) -> None:
        """Create the table if there is none.

        :raises SchemaVersionError: if there is one with other columns
        :raises StoreUnavailableError: if the store does not answer
        """
        cure = "Give the pipeline's new result its own table, or drop the old one."
        columns = self._log.columns()
        if columns is None:
            properties = dict(_LOG_RETENTION)
            if "://" in self.url:
                properties |= _CHECKPOINT_OFTEN
            made = create_table(self.url, schema, self.storage_options, cure, configuration=properties)
            self._log.adopt(made)
        else:
            check_columns(self.url, columns, schema, cure)

    def recorded(self) -> Fence | None:
        """The application's place in the newest version of the table; None before its first commit.

        :raises TableNotFoundError: if there is no table
        :raises StoreUnavailableError: if the store does not answer
        """
        recorded, _ = self.reached()
        return recorded

    def version(self) -> int:
        """The table's newest version."""
        _, version = self.reached()
        return version

    def reached(self) -> tuple[Fence | None, int]:
        """The application's place in the newest version of the table, and that version; see
        :meth:`recorded`.
        """
        number, version = self._log.reached()
        return Fence.of(number), version

    def commit(self, fence: Fence, data: Data, metadata: str = "", *, after: Fence | None = None) -> int:
        """Write the data and the fence in one commit; return its version, also if it had landed before.

        The steps are those of the sink's protocol (see :mod:`hindcast.stream.batch_commits`).

        :param after: the place that must be recorded when the commit lands; any other place raises an error
        :raises LeaseLostError: if a later epoch is recorded; nothing was written
        :raises SinkSharedError: if this fence is recorded, and another worker than the one in the metadata
            wrote it
        :raises FenceMovedError: if another place than ``after`` is recorded, and its epoch is no later;
            nothing was written
        :raises StoreUnavailableError: if the store does not answer; the next attempt reads whether the data
            was written
        """
        version = until_it_lands(
            self.url, lambda: self._commit_once(fence, data, metadata, after), StoreUnavailableError
        )
        if self._log_hours is not None and version % _SHORTEN_EVERY == 0:
            self._shorten_log(self._log_hours)
        return version

    def _shorten_log(self, hours: float) -> None:
        """The commit has landed, so a failure is left to a later one."""
        try:
            shorten_log(self.url, hours)
        except OSError as error:
            message = "The log of a table could not be shortened; a later commit tries again."
            _logger.warning(message, table=self.url, reason=str(error))

    def _commit_once(self, fence: Fence, data: Data, metadata: str, after: Fence | None) -> int:
        reach("sink.3")  # 3. at the end of the log: what is recorded?
        recorded, newest = self.reached()
        if recorded == fence:
            return self._landed_before(fence, metadata, newest)
        if recorded is not None and recorded.epoch > fence.epoch:
            reason = f"epoch {recorded.epoch} has written to {self.url}"
            raise LeaseLostError(owner="this worker", lease=self.app, epoch=fence.epoch, reason=reason)
        if recorded != after:
            raise FenceMovedError(table=self.url, app=self.app, recorded=recorded, expected=after)
        reach("sink.4")  # 4. commit data and fence as the version after that one, or not at all
        try:
            if isinstance(data, Upsert):
                has_changed = self._log.write(data.merge_into, fence.number, metadata)
                if not has_changed:  # then there is no commit yet that records the fence
                    self._log.append([], fence.number, metadata)
            else:
                self._log.append(data, fence.number, metadata)
        except CommitFailedError:
            raise
        except (DeltaError, OSError) as error:
            self._log.forget()
            raise StoreUnavailableError(table=self.url, action="written", reason=error) from error
        return newest + 1

    def _landed_before(self, fence: Fence, metadata: str, newest: int) -> int:
        """The version of this commit's own earlier attempt, whose outcome was unknown.

        One lease table gives an epoch one owner. If a fleet with leases of its own writes to the same sink,
        the two may have the same fence and different batches.

        :param newest: the version in which the fence was found: what lands after it may be a newer owner's
        :returns: the newest version if the commit says nothing of itself, or the log has lost it
        :raises SinkSharedError: if another worker has recorded the fence
        """
        if not metadata:
            return newest
        last = next(self.commits(newest), None)
        if last is None:
            return newest
        worker = json.loads(metadata)["worker"]
        if last.worker != worker:
            raise SinkSharedError(
                table=self.url, app=self.app, epoch=fence.epoch, found=last.worker, worker=worker
            )
        return last.sink_version

    def commits(self, newest: int, *, stop_after: int | None = None) -> Iterator[BatchCommit]:
        """This application's commits, newest first, from a version of the table down to and including batch
        ``stop_after``.
        """
        for commit in self._own(commits_down(self.url, self.storage_options, newest)):
            yield commit
            if stop_after is not None and commit.kind == "batch" and commit.batch <= stop_after:
                return

    def since(
        self, recorded: Fence, version: int, known: LedgerRow | None
    ) -> tuple[BatchCommit | None, list[BatchCommit]]:
        """The commit that says where the application is, and its batches that the ledger lacks.

        The log is not searched if the ledger has the recorded batch. Else the few commits after the ledger's
        last row are read; a batch comes into the ledger seconds after it came into the table. If the ledger
        has none of the application, or they are gone from the log, the log is read down to the first batch
        that the ledger lacks.

        :param recorded: the application's place
        :param version: of the table, in which that is the place. Others may commit meanwhile
        :param known: the ledger's last row of it, read before
        :returns: None before the first batch, or if neither ledger nor log says; the batches, the oldest
            first
        """
        filed = 0
        if known is not None:
            filed = known.batch
        if recorded.batch == filed:
            return self._of_row(known), []
        if known is not None and recorded.batch > filed:
            missing = []
            for commit in self._own(commits_up(self.url, self.storage_options, known.sink_version + 1)):
                if commit.kind == "batch" and commit.batch > filed:
                    missing.append(commit)
                    if commit.batch == recorded.batch:
                        return commit, missing
        last = None
        missing = []
        # A shard's batches have no gap, so nothing before the first missing one is missing.
        for commit in self.commits(version, stop_after=filed + 1):
            last = last or commit
            if commit.kind == "batch" and commit.batch > filed:
                missing.insert(0, commit)
        return last, missing

    def _of_row(self, row: LedgerRow | None) -> BatchCommit | None:
        """The batch of a row. A row that an older Hindcast wrote does not name the checkpoint: its commit
        does.
        """
        if row is None:
            return None
        if row.checkpoint is not None and row.base is not None:
            return BatchCommit.from_ledger_row(row)
        entry = read_commit(self.url, self.storage_options, row.sink_version)
        if entry is not None:
            for commit in self._own([entry]):
                return commit
        # The log has lost that commit. Without a name the state is rebuilt.
        return BatchCommit.from_ledger_row(replace(row, checkpoint="", base=0))

    def _own(self, entries: Iterable[dict[str, Any]]) -> Iterator[BatchCommit]:
        """The commits of this application among these."""
        for entry in entries:
            if METADATA_KEY not in entry:
                continue
            commit = BatchCommit.from_history(entry)
            if f"{commit.pipeline}/v{commit.version}/{commit.shard}" == self.app:
                yield commit
