"""The commit of the sink by which a rewind restores an older version, and the one that calls the rewind off.

Each raises the fence of every shard that ended to its new epoch, so one of the two lands, never both.
"""

from __future__ import annotations

import time
from functools import partial

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from hindcast.delta.commit import METADATA_KEY, commits_down
from hindcast.delta.open_table import open_table
from hindcast.errors import StoreUnavailableError
from hindcast.partitions import app_id
from hindcast.pipeline import Pipeline
from hindcast.recovery.begun_rewind import BegunRewind
from hindcast.recovery.restorable_version import find_version, live_files
from hindcast.recovery.retried_commit import retry_commit
from hindcast.recovery.rewind_point import RewindRequest
from hindcast.settings import Settings
from hindcast.tables.compaction import COMPACTION
from hindcast.tables.fenced_sink import BatchCommit, Fence

#: How far from the sink's retention a file must be that the commit names again. It covers the longest vacuum
#: and what the clocks of two hosts differ by.
RESTORE_MARGIN_HOURS = 1
#: In the information of a commit of the sink: the id of the rewind that made it.
_REWIND_KEY = "hindcast_reset"
_RESTORED = "reset"
_CALLED_OFF = "reset-abandoned"


class SinkRestore:
    """The sink of a pipeline, as a rewind that has begun changes it."""

    def __init__(self, settings: Settings, pipeline: Pipeline, begun: BegunRewind) -> None:
        self.url = settings.sink(pipeline)
        self._storage_options = settings.storage_options
        self._pipeline = pipeline
        self._begun = begun
        self._request = RewindRequest(pipeline.name, begun.record["to"])

    def restore(self) -> int:
        """Name the files of the version that is kept, and no others.

        :returns: the version of the commit, also if it had landed before
        :raises RewindRefusedError: if the rewind was called off, or the files are gone or near the retention
        :raises StoreUnavailableError: if the store does not answer
        """
        return retry_commit(self.url, self._restore_once)

    def call_off(self) -> None:
        """Take the place of :meth:`restore` by a commit that changes no row; nothing if that is done.

        :raises RewindRefusedError: if the version is restored already
        :raises StoreUnavailableError: if the store does not answer
        """
        retry_commit(self.url, self._call_off_once)

    def was_called_off(self) -> bool:
        """Whether this rewind was called off, once it has ended in one way or the other.

        :raises StoreUnavailableError: if the store does not answer, or the table's log has lost the end
        """
        return self._landed(self._open()).kind == _CALLED_OFF

    def _restore_once(self) -> int:
        cure = f"`hindcast rewind {self._pipeline.name} --abandon` calls it off."
        refused = partial(self._request.refused, cure=cure)
        table = self._open()
        if self._is_fenced(table):
            landed = self._landed(table)
            if landed.kind == _CALLED_OFF:
                raise refused("it was called off")
            return landed.sink_version
        version = find_version(self.url, self._storage_options, self._begun.record["sink_version"], refused)
        version.check_age(table, RESTORE_MARGIN_HOURS, refused)
        kept = {file.path: file for file in version.files}
        named = {file.path for file in live_files(table)}
        now_ms = time.time_ns() // 1_000_000
        added = [kept[path].as_action() for path in sorted(kept.keys() - named)]
        removed = [RemoveAction(path, True, now_ms) for path in sorted(named - kept.keys())]
        # No compaction under way may land after this: it would bring back the rows of files that are gone.
        return self._commit(table, _RESTORED, [*added, *removed], [Transaction(COMPACTION, table.version())])

    def _call_off_once(self) -> None:
        table = self._open()
        if not self._is_fenced(table):
            self._commit(table, _CALLED_OFF, [], [])
        elif self._landed(table).kind != _CALLED_OFF:
            raise self._request.refused(
                "its table is restored already, so the rewind cannot be called off",
                f"`hindcast rewind {self._pipeline.name}` completes it: no file that it needs could be gone.",
            )

    def _open(self) -> DeltaTable:
        return open_table(self.url, self._storage_options)

    def _recorded(self, table: DeltaTable, shard: str) -> Fence:
        """The shard's place in the table; epoch 0 and batch 0 before its first commit."""
        number = table.transaction_version(app_id(self._pipeline.name, shard))
        return Fence.of(number) or Fence(0, 0)

    def _is_fenced(self, table: DeltaTable) -> bool:
        """Whether the fence of each shard is in its new epoch: one of the two commits has landed."""
        epochs = self._begun.epochs
        return all(self._recorded(table, shard).epoch >= epochs[shard] for shard in epochs)

    def _landed(self, table: DeltaTable) -> BatchCommit:
        """The commit of this rewind that has landed."""
        for entry in commits_down(self.url, self._storage_options, table.version()):
            if entry.get(_REWIND_KEY) == self._begun.id:
                return BatchCommit.from_history(entry)
        reason = f"its log has lost the commit of the rewind {self._begun.id}"
        raise StoreUnavailableError(table=self.url, action="read", reason=reason)

    def _commit(
        self,
        table: DeltaTable,
        kind: str,
        actions: list[AddAction | RemoveAction],
        transactions: list[Transaction],
    ) -> int:
        """Commit the actions together with the fence of each shard, its batch in the new epoch.

        :param transactions: of other applications, in the same commit
        :returns: the version of the commit
        :raises CommitFailedError: if another commit has landed since the table was read
        """
        fences = []
        for shard, epoch in self._begun.epochs.items():
            fence = Fence(epoch, self._recorded(table, shard).batch)
            fences.append(Transaction(app_id(self._pipeline.name, shard), fence.number))
        commit = BatchCommit(
            kind=kind,
            pipeline=self._pipeline.name,
            version=self._pipeline.version,
            shard="",
            epoch=0,
            batch=0,
            worker=self._begun.record["by"],
            start_offsets=self._begun.offsets,
            end_offsets=self._begun.offsets,
            late_watermark_ms=0,
            watermark_ms=0,
        )
        properties = CommitProperties(
            custom_metadata={METADATA_KEY: commit.as_metadata(), _REWIND_KEY: self._begun.id},
            max_commit_retries=0,
            app_transactions=fences + transactions,
        )
        version = table.version() + 1
        table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
        return version
