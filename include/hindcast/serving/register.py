"""Give a served table a name in the catalog of a Spark session: Hive's metastore, or Unity Catalog."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from hindcast.errors import RegistrationRefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A name of a catalog, a schema or a table.
_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: Catalog, schema and table.
_MOST_PARTS = 3


def statement(name: str, url: str) -> str:
    """The SQL that registers the table at a path or URL.

    :param name: ``table``, ``schema.table`` or ``catalog.schema.table``
    :raises RegistrationRefusedError: if that is no such name
    """
    return f"CREATE TABLE IF NOT EXISTS {_quoted(name)} USING DELTA LOCATION {_literal(url)}"


def register(session: SparkSession, name: str, url: str) -> None:
    """Register the table. Nothing changes if it is registered by that name.

    :raises RegistrationRefusedError: if another table has the name
    """
    session.sql(statement(name, url))
    [found] = session.sql(f"DESCRIBE DETAIL {_quoted(name)}").select("location").collect()
    if _place(found.location) != _place(url):
        raise RegistrationRefusedError(
            name=name,
            problem=f"it is the name of the table at {found.location}",
            cure="Choose another name, or drop that one.",
        )


def _quoted(name: str) -> str:
    parts = name.split(".")
    if len(parts) > _MOST_PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise RegistrationRefusedError(
            name=name,
            problem="it is no name of a table",
            cure="Write table, schema.table or catalog.schema.table, of letters, digits and _.",
        )
    return ".".join(f"`{part}`" for part in parts)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _place(url: str) -> str:
    """Without what differs between two ways to write an address."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return unquote(parts.path).rstrip("/")
    return f"{parts.scheme.replace('s3a', 's3')}://{parts.netloc}{parts.path}".rstrip("/")
