"""Two services on one SQLite file: a savepoint that reads and then writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from hindcast_sandbox import sqlite


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
