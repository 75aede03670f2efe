"""SQLite under several services: who waits for the writer's lock, and when.

**A savepoint takes the lock before it reads.**
Airflow opens a savepoint, reads in it, and writes. SQLite begins such a transaction as a reader. If another
service has become the writer by then, the two would wait for each other for ever; so SQLite refuses at once
with "database is locked", whatever timeout was set. A transaction that asks for the lock as it begins waits
for its turn instead (https://www.sqlite.org/lang_transaction.html, "DEFERRED, IMMEDIATE, and EXCLUSIVE
transactions").

**An event loop never waits for the lock.** Before a request of the API server runs in a thread, Airflow
notes it in its audit table, and writes that row on the event loop itself. A thread that has written keeps
the lock until the event loop tells it to commit. So if another request is in that state, the event loop
waits for the thread and the thread for the event loop, and the whole API server stands still until the wait
for the lock has timed out. Here the row is written by a thread of its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

#: The table of Airflow's audit rows.
_AUDIT_TABLE = "log"

_log = structlog.get_logger(__name__)
_audit_writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit-rows")


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


def write_audit_rows_beside_the_event_loop() -> None:
    """From now on, an audit row that an event loop of this process adds to SQLite is written by a thread.

    The row is there soon after the loop's commit, not at once. If it cannot be written, the error is logged.
    """
    event.listen(Session, "before_flush", _hand_over)


def _hand_over(session: Session, _context: Any, _instances: Any) -> None:
    bind = session.get_bind()
    if bind.dialect.name != "sqlite" or not _is_in_event_loop():
        return
    for row in list(session.new):
        if row.__tablename__ == _AUDIT_TABLE:
            session.expunge(row)
            _audit_writer.submit(_write, bind.engine, row)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _write(engine: Engine, row: Any) -> None:
    try:
        with Session(engine) as session:
            session.add(row)
            session.commit()
    except SQLAlchemyError:
        _log.exception("An audit row of Airflow was not written.")
