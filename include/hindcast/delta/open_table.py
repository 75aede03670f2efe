"""Open a Delta table that others write: one way to do it, and one form of its errors."""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from hindcast.errors import StoreUnavailableError


def find_table(url: str, storage_options: dict[str, str], version: int | None = None) -> DeltaTable | None:
    """The table; None if nobody has made it. Looking makes no folder.

    :param storage_options: deltalake options of an object store; empty for the local disk
    :param version: the newest by default
    :raises StoreUnavailableError: if the store does not answer, or the table has no such version
    """
    try:
        return DeltaTable(url, version=version, storage_options=storage_options or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=url, action="read", reason=error) from error


def open_table(url: str, storage_options: dict[str, str], version: int | None = None) -> DeltaTable:
    """The table, which there is; see :func:`find_table`.

    :raises StoreUnavailableError: if there is no table, too
    """
    table = find_table(url, storage_options, version)
    if table is None:
        raise StoreUnavailableError(table=url, action="read", reason="there is no table")
    return table
