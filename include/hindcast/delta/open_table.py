"""Open a Delta table, or create it: the one place where errors of opening get their form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from hindcast.errors import SchemaVersionError, StoreUnavailableError


def find_table(url: str, storage_options: dict[str, str], version: int | None = None) -> DeltaTable | None:
    """The table; None if there is none. Searching creates no folder.

    :param storage_options: deltalake options of an object store; empty for the local disk
    :param version: the newest by default
    :raises StoreUnavailableError: if the store does not answer, or the table has no such version
    """
    try:
        return DeltaTable(url, version=version, storage_options=storage_options or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=url, action="opened", reason=error) from error


def open_table(url: str, storage_options: dict[str, str], version: int | None = None) -> DeltaTable:
    """The table, which must exist; see :func:`find_table`.

    :raises StoreUnavailableError: if there is no table, too
    """
    table = find_table(url, storage_options, version)
    if table is None:
        raise StoreUnavailableError(table=url, action="opened", reason="there is no table")
    return table


def open_or_create(
    url: str,
    schema: pa.Schema,
    storage_options: dict[str, str],
    name: str | None = None,
    configuration: Mapping[str, str] | None = None,
) -> DeltaTable:
    """The table, created if there is none. Another process may create it at the same moment.

    A table that exists keeps its columns, its name and its configuration: the caller checks them.

    :raises StoreUnavailableError: if the store does not answer
    """
    table = find_table(url, storage_options)
    if table is not None:
        return table
    try:
        with suppress(CommitFailedError):  # another process created it after this one had searched
            DeltaTable.create(
                url,
                schema,
                mode="ignore",
                name=name,
                configuration=configuration,
                storage_options=storage_options or None,
            )
    except (DeltaError, OSError) as error:
        raise StoreUnavailableError(table=url, action="created", reason=error) from error
    return open_table(url, storage_options)


def create_table(
    url: str,
    schema: pa.Schema,
    storage_options: dict[str, str],
    cure: str,
    name: str | None = None,
    configuration: Mapping[str, str] | None = None,
) -> DeltaTable:
    """The table with exactly these columns, created if there is none; see :func:`open_or_create`.

    :param cure: what to do about a table with other columns
    :raises SchemaVersionError: if the table has other columns
    :raises StoreUnavailableError: if the store does not answer
    """
    table = open_or_create(url, schema, storage_options, name, configuration)
    check_columns(url, [field.name for field in table.schema().fields], schema, cure)
    return table


def check_columns(url: str, found: Sequence[str], schema: pa.Schema, cure: str) -> None:
    """:raises SchemaVersionError: if the table has other columns than these"""
    if list(found) != schema.names:
        raise SchemaVersionError(
            table=url,
            found=f"with the columns {', '.join(found)}",
            supported=", ".join(schema.names),
            cure=cure,
        )
