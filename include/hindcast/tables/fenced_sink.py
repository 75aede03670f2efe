"""A Delta table that only the owner of the newest epoch can write: the heart of exactly-once.

Each shard is one *application* of Delta's transaction identifiers (Delta protocol, "Transaction Identifiers"): the table's log keeps,
for each application, one number, here ``epoch << 32 | batch``. A commit reads that number and replaces it on the same version of
the table, so two owners can never both write, and an owner can never write a batch twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from hindcast.delta.commit import METADATA_KEY, commits_down, create_table, until_it_lands
from hindcast.delta.files import DataFile
from hindcast.errors import FenceMovedError, LeaseLostError, SinkSharedError, StoreUnavailableError
from hindcast.partitions import Offsets, offsets_from_json, offsets_to_json
from hindcast.processes.crash_points import reach
from hindcast.tables.control_tables import refuse_empty_commits, utc_from_ms
from hindcast.tables.ledger import LedgerRow

_BY_PARTITION = ("start_offsets", "end_offsets", "floors")
_NOT_IN_LEDGER = frozenset({"kind", "committed_ms", "checkpoint", "base"})


class Fence(NamedTuple):
    """A place in the order of an application's commits: epochs first, batches within them."""

    epoch: int
    batch: int

    @property
    def number(self) -> int:
        return self.epoch << 32 | self.batch

    @classmethod
    def of(cls, number: int | None) -> Fence | None:
        return None if number is None else cls(number >> 32, number & 0xFFFFFFFF)


@dataclass(frozen=True, kw_only=True)
class BatchCommit:
    """What a commit says of itself in the table's log. Watermarks are epoch milliseconds of event time; ends are exclusive.

    ``checkpoint``, ``base`` and ``floors`` are the :class:`~hindcast.recovery.rebuild_state.CheckpointRef` that wrote it.
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
    sink_version: int = -1
    committed_ms: int = 0

    def as_metadata(self) -> str:
        values = {name: value for name, value in asdict(self).items() if name not in {"sink_version", "committed_ms"}}
        return json.dumps({**values, **{name: offsets_to_json(values[name]) for name in _BY_PARTITION}})

    def as_ledger_row(self, topic: str) -> LedgerRow:
        """The batch as the ledger has it, without what only Spark could measure."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in type(self).__dataclass_fields__ if name not in _NOT_IN_LEDGER}
        return LedgerRow.unmeasured(**shared, topic=topic, committed_at=utc_from_ms(self.committed_ms))

    @classmethod
    def from_history(cls, entry: dict[str, Any]) -> Self:
        values = json.loads(entry[METADATA_KEY])
        offsets = {name: offsets_from_json(values[name]) for name in _BY_PARTITION}
        return cls(**{**values, **offsets, "sink_version": entry["version"], "committed_ms": entry["timestamp"]})


@dataclass(frozen=True)
class Upsert:
    """Rows of which each replaces the one with its keys, or is added; no two have the same keys, and keys are plain columns."""

    rows: pa.Table
    keys: Sequence[str]

    def merge_into(self, table: DeltaTable, properties: CommitProperties) -> None:
        quoted = ['"' + key.replace('"', '""') + '"' for key in self.keys]
        # In parentheses: delta-rs takes what follows FROM, up to the end, for the other side of the comparison.
        same = " AND ".join(f"(target.{key} IS NOT DISTINCT FROM source.{key})" for key in quoted)
        merger = table.merge(self.rows, same, source_alias="source", target_alias="target", commit_properties=properties)
        merger.when_matched_update_all().when_not_matched_insert_all().execute()


#: What one commit brings: files that are written and not named yet, or rows to merge.
Data = Sequence[DataFile] | Upsert


class FencedTable:
    """One table as one application sees it. Not for threads: each user opens its own."""

    def __init__(self, url: str, storage_options: dict[str, str], app: str) -> None:
        self.url = url
        self.app = app
        self.storage_options = storage_options
        self._table: DeltaTable | None = None

    def create(self, schema: pa.Schema) -> None:
        """Make the table where there is none.

        :raises SchemaVersionError: where there is one with other columns
        """
        refuse_empty_commits(self.url)
        cure = "Give the pipeline's new result its own table, or drop the old one."
        self._table = create_table(self.url, schema, self.storage_options, cure)

    def recorded(self) -> Fence | None:
        """The application's place in the newest version of the table; None before its first commit."""
        return Fence.of(self._open().transaction_version(self.app))

    def version(self) -> int:
        """The table's newest version."""
        return self._open().version()

    def commit(self, fence: Fence, data: Data, metadata: str = "", *, after: Fence | None = None) -> int:
        """Write the data and the fence in one commit; return its version, or -1 where this very fence is recorded already.

        The steps are those of the sink's protocol (see :mod:`hindcast.stream.shard_runner`).

        :param after: the place that must be recorded when the commit lands; another one raises
        :raises LeaseLostError: where a later epoch is recorded; nothing was written
        :raises SinkSharedError: where this fence is recorded, and another worker than the one in the metadata wrote it
        :raises FenceMovedError: where an epoch no later than this one, but another place than ``after``, is recorded; nothing was written
        :raises StoreUnavailableError: where the store does not answer; the outcome is settled by the next attempt's read
        """
        return until_it_lands(self.url, lambda: self._commit_once(fence, data, metadata, after), StoreUnavailableError)

    def _commit_once(self, fence: Fence, data: Data, metadata: str, after: Fence | None) -> int:
        reach("sink.3")  # 3. on one handle: what is recorded?
        table = self._open()
        recorded = Fence.of(table.transaction_version(self.app))
        if recorded == fence:
            self._check_own(fence, metadata)
            return -1  # this commit's own earlier attempt, whose outcome was unknown
        if recorded is not None and recorded.epoch > fence.epoch:
            raise LeaseLostError(
                owner="this worker", lease=self.app, epoch=fence.epoch, reason=f"epoch {recorded.epoch} has written to {self.url}"
            )
        if recorded != after:
            raise FenceMovedError(table=self.url, app=self.app, recorded=recorded, expected=after)
        reach("sink.4")  # 4. commit data and fence on that handle, or not at all
        properties = CommitProperties(
            custom_metadata={METADATA_KEY: metadata} if metadata else None,
            max_commit_retries=0,
            app_transactions=[Transaction(self.app, fence.number)],
        )
        version = table.version() + 1
        try:
            if isinstance(data, Upsert):
                data.merge_into(table, properties)
            else:
                actions: list[AddAction | RemoveAction] = [file.as_action() for file in data]
                table.create_write_transaction(actions, "append", table.schema(), [], commit_properties=properties)
        except CommitFailedError:
            raise
        except (DeltaError, OSError) as error:
            self._table = None
            raise StoreUnavailableError(table=self.url, action="written", reason=error) from error
        return version

    def _check_own(self, fence: Fence, metadata: str) -> None:
        """An epoch has one owner, by one lease table; where two write to the sink, their fences may be equal and their batches not."""
        last = next(self.commits(), None) if metadata else None
        if last is not None and last.worker != (worker := json.loads(metadata)["worker"]):
            raise SinkSharedError(table=self.url, app=self.app, epoch=fence.epoch, found=last.worker, worker=worker)

    def commits(self, stop_after: int | None = None) -> Iterator[BatchCommit]:
        """This application's commits, newest first, down to and including batch ``stop_after``."""
        for entry in commits_down(self._open()):
            if METADATA_KEY not in entry:
                continue
            commit = BatchCommit.from_history(entry)
            if f"{commit.pipeline}/v{commit.version}/{commit.shard}" != self.app:
                continue
            yield commit
            if stop_after is not None and commit.kind == "batch" and commit.batch <= stop_after:
                return

    def _open(self) -> DeltaTable:
        try:
            if self._table is None:
                refuse_empty_commits(self.url)
                self._table = DeltaTable(self.url, storage_options=self.storage_options or None)
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            raise
        except (DeltaError, OSError) as error:
            self._table = None
            raise StoreUnavailableError(table=self.url, action="read", reason=error) from error
        return self._table
