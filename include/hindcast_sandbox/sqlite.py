"""SQLite under several services: a savepoint takes the writer's lock before it reads.

Airflow opens a savepoint, reads in it, and writes. SQLite begins such a transaction as a reader. If another
service has become the writer by then, the two would wait for each other for ever; so SQLite refuses at once
with "database is locked", whatever timeout was set. A transaction that asks for the lock as it begins waits
for its turn instead (https://www.sqlite.org/lang_transaction.html, "DEFERRED, IMMEDIATE, and EXCLUSIVE
transactions").
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event


def lock_before_savepoints() -> None:
    """From now on, a savepoint of this process that begins a transaction on SQLite begins it as the
    writer.
    """
    event.listen(Engine, "savepoint", _lock)


def _lock(connection: Connection, _name: Any) -> None:
    if connection.dialect.name != "sqlite":
        return
    driver = connection.connection.driver_connection
    if driver is not None and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
