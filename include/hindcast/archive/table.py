"""The Delta table of an archive. It grows only at its end, and by one writer at a time.

Each commit carries the :class:`~hindcast.archive.manifest.Manifest` of the whole archive in its metadata, so
that the newest one says all. A commit lands on the very version of the table that it was decided on, or not
at all. It takes the next number of the table's application transaction (see
:mod:`hindcast.tables.fenced_sink`): of two archivers that read the same manifest one writes, and the other
reads again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from hindcast.archive.manifest import Manifest
from hindcast.delta.commit import KEEP_THE_LOG, METADATA_KEY, commits_down, until_it_lands
from hindcast.delta.empty_commits import refuse_empty_commits
from hindcast.delta.files import DataFile
from hindcast.delta.open_table import create_table, find_table
from hindcast.errors import ArchiveRefusedError, StoreUnavailableError, UnknownArchiveError
from hindcast.pipeline import check_topic
from hindcast.processes.crash_points import reach
from hindcast.settings import Settings
from hindcast.tables.archive_schema import ARCHIVE_SCHEMA, archive_url

APP = "archive"


class ArchiveTable:
    """One topic's archive. Not for threads: each user opens its own."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self.topic = check_topic(topic)
        self.url = archive_url(settings, topic)
        self.storage_options = settings.storage_options

    def create(self) -> None:
        """Make the table if there is none.

        :raises SchemaVersionError: if there is one with other columns
        """
        if "://" not in self.url:
            Path(self.url).mkdir(parents=True, exist_ok=True)
        cure = "It was not written by this Hindcast: move it away."
        name = f"archive of {self.topic}"
        create_table(self.url, ARCHIVE_SCHEMA, self.storage_options, cure, name, KEEP_THE_LOG)

    def open(self) -> DeltaTable:
        """The table at its newest version.

        :raises UnknownArchiveError: if there is none
        :raises StoreUnavailableError: if the store does not answer
        """
        refuse_empty_commits(self.url)
        table = find_table(self.url, self.storage_options)
        if table is None:
            raise UnknownArchiveError(topic=self.topic)
        return table

    def manifest(self) -> Manifest:
        """What the archive holds now.

        :raises UnknownArchiveError: if there is none
        :raises ArchiveRefusedError: if the table's log has lost the answer
        """
        return self.manifest_of(self.open())

    def manifest_of(self, table: DeltaTable) -> Manifest:
        """What the archive held in the version of this handle."""
        recorded = table.transaction_version(APP)
        if recorded is None:
            return Manifest(topic=self.topic)
        manifest = self._newest_manifest(table.version())
        if manifest is not None and manifest.number == recorded:
            return manifest
        lost = f"commit {recorded} of {self.url} is no longer in the table's log"
        problem = f"{lost}, so where the archive ends is not known"
        raise ArchiveRefusedError(
            topic=self.topic, problem=problem, cure="Restore the files of its _delta_log."
        )

    def _newest_manifest(self, version: int) -> Manifest | None:
        """The manifest of the newest commit up to this version that has one."""
        for entry in commits_down(self.url, self.storage_options, version):
            if METADATA_KEY in entry:
                return Manifest.from_metadata(entry[METADATA_KEY])
        return None

    def commit(self, before: Manifest, after: Manifest, files: Sequence[DataFile]) -> bool:
        """Write the files and the manifest ``after`` in one commit; return whether they are written.

        They are not written if another archiver has committed since ``before`` was read. A compaction of the
        table does not count as such a commit.

        :raises StoreUnavailableError: if the store does not answer; the next reading of the manifest then
            shows whether they are written
        """
        return until_it_lands(
            self.url, lambda: self._commit_once(before, after, files), StoreUnavailableError
        )

    def _commit_once(self, before: Manifest, after: Manifest, files: Sequence[DataFile]) -> bool:
        reach("archive.3")  # 3. on one handle: does the archive still end where this step begins?
        table = self.open()
        now = self.manifest_of(table)
        if now.step == after.step:
            return True  # this commit's own earlier attempt, whose outcome was unknown
        if now.number != before.number:
            return False
        reach("archive.4")  # 4. commit files and manifest on that handle, or not at all
        properties = CommitProperties(
            custom_metadata={METADATA_KEY: after.as_metadata()},
            max_commit_retries=0,
            app_transactions=[Transaction(APP, after.number)],
        )
        actions: list[AddAction | RemoveAction] = [file.as_action() for file in files]
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), [], commit_properties=properties
            )
        except CommitFailedError:
            raise
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=self.url, action="written", reason=error) from error
        return True
