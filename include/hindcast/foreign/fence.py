"""Fence off a query that others run: from one commit on its table takes none of its batches.

Delta's streaming sink records the number of each batch under the query's id, in the commit that brings the
batch (``txn`` of PROTOCOL.md, "Transaction Identifiers"), and leaves out a batch whose number is not above
the recorded one. So a commit with the greatest of numbers ends the query's writing, wherever the query runs
and whether or not it was stopped. It says which batch was the last.
"""

from __future__ import annotations

from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from hindcast.delta.commit import commits_down, until_it_lands
from hindcast.delta.open_table import find_table, open_table
from hindcast.errors import StoreUnavailableError

#: No query gets as far.
_LAST_NUMBER = 2**62
#: The key by which the fence's commit says which batch of a query was the last.
_LAST_BATCH = "hindcast.last_batch.{query}"


def last_batch(url: str, storage_options: dict[str, str], query: str) -> int | None:
    """The query's last batch in the table, if the query is fenced off; None if it is not, or if there is no
    table.

    :raises StoreUnavailableError: if the store does not answer
    """
    table = find_table(url, storage_options)
    if table is None or table.transaction_version(query) != _LAST_NUMBER:
        return None
    return _told(url, storage_options, query, table.version())


def last_in_table(url: str, storage_options: dict[str, str], query: str) -> int | None:
    """The query's last batch in the table as it is now, fenced off or not; None if it has none there.

    :raises StoreUnavailableError: if the store does not answer
    """
    table = find_table(url, storage_options)
    if table is None:
        return None
    last = table.transaction_version(query)
    if last == _LAST_NUMBER:
        return _told(url, storage_options, query, table.version())
    return last


def fence_off(url: str, storage_options: dict[str, str], query: str) -> int:
    """Fence a query off that has a batch in the table, unless that was done before.

    :returns: its last batch in the table, which no other follows any more
    :raises StoreUnavailableError: if the store does not answer
    """

    def attempt() -> int:
        table = open_table(url, storage_options)
        last = table.transaction_version(query)
        assert last is not None
        if last == _LAST_NUMBER:
            return _told(url, storage_options, query, table.version())
        properties = CommitProperties(
            custom_metadata={_LAST_BATCH.format(query=query): str(last)},
            max_commit_retries=0,  # a batch that lands meanwhile is the last one: read again
            app_transactions=[Transaction(query, _LAST_NUMBER)],
        )
        hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        try:
            table.create_write_transaction(
                [], "append", table.schema(), commit_properties=properties, post_commithook_properties=hooks
            )
        except CommitFailedError:
            raise
        except (DeltaError, OSError) as error:
            raise StoreUnavailableError(table=url, action="written", reason=error) from error
        return last

    return until_it_lands(url, attempt, StoreUnavailableError)


def _told(url: str, storage_options: dict[str, str], query: str, version: int) -> int:
    """What the commit says that fenced the query off, in a version of the table that has it."""
    key = _LAST_BATCH.format(query=query)
    for entry in commits_down(url, storage_options, version):
        if key in entry:
            return int(entry[key])
    reason = "its log has lost the commit that fenced the query off"
    raise StoreUnavailableError(table=url, action="read", reason=reason)
