"""Two services on one SQLite file: a savepoint that reads and then writes, and an event loop that writes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from structlog.testing import capture_logs

from hindcast_sandbox import sqlite


class Base(DeclarativeBase):
    """What the tables of these tests are declared under."""


class AuditRow(Base):
    """A row of the table in which Airflow notes requests."""

    __tablename__ = "log"
    id: Mapped[int] = mapped_column(primary_key=True)


class Run(Base):
    """A row of another table."""

    __tablename__ = "dag_run"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """One service, which would wait a minute for a lock."""
    engine = create_engine(f"sqlite:///{tmp_path / 'airflow.db'}?timeout=60")
    with Session(engine) as made:
        made.execute(text("CREATE TABLE runs (n INTEGER)"))
        made.commit()
        yield made
    engine.dispose()


@pytest.fixture
def other(session: Session, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another service, which never waits."""
    with closing(sqlite3.connect(tmp_path / "airflow.db", timeout=0, isolation_level=None)) as connection:
        yield connection


def test_what_sqlite_does_by_itself(session: Session, other: sqlite3.Connection) -> None:
    """It refuses at once, though it was told to wait: the two would wait for each other."""
    with session.begin_nested():
        session.execute(text("SELECT n FROM runs")).all()
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="database is locked"):
            session.execute(text("INSERT INTO runs VALUES (1)"))
        other.execute("ROLLBACK")


def test_a_savepoint_is_the_writer_from_its_beginning(session: Session, other: sqlite3.Connection) -> None:
    """Nobody else can begin to write between what it reads and what it writes, and a savepoint inside it asks
    for nothing more.
    """
    sqlite.lock_before_savepoints()
    try:
        with session.begin_nested():
            session.execute(text("SELECT n FROM runs")).all()
            with pytest.raises(sqlite3.OperationalError, match="database is locked"):
                other.execute("BEGIN IMMEDIATE")
            with session.begin_nested():
                session.execute(text("INSERT INTO runs VALUES (1)"))
        session.commit()
    finally:
        event.remove(Engine, "savepoint", sqlite._lock)
    assert other.execute("SELECT n FROM runs").fetchall() == [(1,)]


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """One service, which waits a second for a lock, and writes its audit rows beside the event loop."""
    engine = create_engine(f"sqlite:///{tmp_path / 'airflow.db'}?timeout=1")
    Base.metadata.create_all(engine)
    writer = ThreadPoolExecutor(max_workers=1)
    monkeypatch.setattr(sqlite, "_audit_writer", writer)
    sqlite.write_audit_rows_beside_the_event_loop()
    yield engine
    event.remove(Session, "before_flush", sqlite._hand_over)
    writer.shutdown()
    engine.dispose()


async def add_while_a_thread_has_written(engine: Engine, row: Base) -> None:
    """Commit a row on the event loop, while a thread that has written waits for the loop to tell it to
    commit.
    """
    written, told = asyncio.Event(), asyncio.Event()

    async def thread_of_a_request() -> None:
        with Session(engine) as own:
            await asyncio.to_thread(own.execute, text("INSERT INTO dag_run VALUES (7)"))
            written.set()
            await told.wait()
            await asyncio.to_thread(own.commit)

    request = asyncio.create_task(thread_of_a_request())
    await written.wait()
    try:
        with Session(engine) as session:
            session.add(row)
            session.commit()
    finally:
        told.set()
        await request


def test_an_event_loop_that_waits_for_a_thread_that_waits_for_it(impatient: Engine) -> None:
    """What happens with any other row: the loop stands still until its wait has timed out."""
    with pytest.raises(OperationalError, match="database is locked"):
        asyncio.run(add_while_a_thread_has_written(impatient, Run(id=1)))


def test_an_audit_row_is_written_beside_the_event_loop(impatient: Engine) -> None:
    """The loop goes on, the thread commits, and then the row is written."""
    asyncio.run(add_while_a_thread_has_written(impatient, AuditRow(id=1)))
    sqlite._audit_writer.shutdown()
    with Session(impatient) as session:
        assert session.scalars(text("SELECT id FROM log")).all() == [1]
        assert session.scalars(text("SELECT id FROM dag_run")).all() == [7]


def test_without_an_event_loop_an_audit_row_is_written_at_once(impatient: Engine) -> None:
    """As the commands of Airflow write it."""
    with Session(impatient) as session:
        session.add(AuditRow(id=1))
        session.commit()
        assert session.scalars(text("SELECT id FROM log")).all() == [1]


def test_an_audit_row_that_cannot_be_written_is_logged(impatient: Engine) -> None:
    """The request that it notes goes on without it."""
    with Session(impatient) as session:
        session.add(AuditRow(id=1))
        session.commit()
    with capture_logs() as said:
        asyncio.run(add_while_a_thread_has_written(impatient, AuditRow(id=1)))
        sqlite._audit_writer.shutdown()
    assert [line["event"] for line in said] == ["An audit row of Airflow was not written."]
