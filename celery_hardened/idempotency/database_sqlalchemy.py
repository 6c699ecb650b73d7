"""The project's database as SQLAlchemy knows it: one session from the claim to the finish.

``hardened_database = "module:Session"`` names the ``sessionmaker``. The body writes through
``self.execution.session``; it may flush and use savepoints, and does not commit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    DateTime,
    Engine,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
    text,
)
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from celery_hardened.errors import ConfigurationError
from celery_hardened.idempotency.database_problem import Problem, problem_of
from celery_hardened.idempotency.database_sql import LOCK_WAIT, STATEMENTS, TABLE

logger = logging.getLogger("celery_hardened.idempotency")

metadata = MetaData()

#: The same table as Django's ``FinishedWork``. Alembic: add ``metadata`` to your ``target_metadata``.
finished_work = Table(
    TABLE,
    metadata,
    Column("key", Text, primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("task_id", Text, nullable=False),
    Column("result", LargeBinary),
    Column("finished", Boolean, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False, index=True),
)

_current: ContextVar[Session | None] = ContextVar("celery_hardened_session", default=None)


def create_tables(bind: Engine | Connection) -> None:
    """Make the table, if it is not there. For projects with migrations it is in `metadata`."""
    metadata.create_all(bind)


def current_session() -> Session | None:
    """The session of the run that goes on in this thread (or greenlet); ``None`` outside of one."""
    return _current.get()


class SqlAlchemyDatabase:
    """A database that a ``sessionmaker`` leads to.

    Args:
        factory: Called for each run; returns a ``Session`` with no transaction open.
    """

    table_hint = "Call celery_hardened.idempotency.database_sqlalchemy.create_tables(engine), or migrate its metadata."

    def __init__(self, factory: Callable[[], Session]) -> None:
        self._factory = factory
        self._process = os.getpid()

    @classmethod
    def load(cls, name: str) -> SqlAlchemyDatabase:
        """The database of ``hardened_database``. Raises ``ConfigurationError`` if it leads to no sessionmaker."""
        module, _, attribute = name.partition(":")
        try:
            factory = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as problem:
            raise ConfigurationError(
                f"hardened_database is {name!r}: it must be 'module:attribute' of a SQLAlchemy sessionmaker, and this "
                f"one could not be loaded ({problem})."
            ) from problem
        if not callable(factory) or isinstance(factory, Session):
            raise ConfigurationError(
                f"hardened_database is {name!r}, which is {type(factory).__name__} and makes no sessions. "
                f"Name a sessionmaker."
            )
        return cls(factory)

    def begin(self) -> SqlAlchemyTransaction:
        """Open a session and its transaction; on SQLite with the write lock.

        Raises:
            ConfigurationError: The database is another one than these two, or it commits by itself.
        """
        session = self._factory()
        if not isinstance(session, Session):
            raise ConfigurationError(f"hardened_database makes {type(session).__name__}, not Session.")
        if session.in_transaction():
            raise ConfigurationError(
                "hardened_database gave a session with an open transaction, so the effect would be committed by "
                "whoever began it. Name a sessionmaker, or end a scoped_session's transaction before the task."
            )
        begun = SqlAlchemyTransaction(session)
        try:
            self._leave_the_parents_connections(session)
            begun.enter()
        except BaseException:
            begun.rollback()
            raise
        return begun

    def problem(self, error: Exception) -> Problem | None:
        return problem_of(error)

    def sweep(self, *, most: int) -> int:
        """Delete expired rows on a connection that goes back into no pool: children may be forked later."""
        session = self._factory()
        try:
            connection = _connection(session)
            connection.detach()
            swept = connection.execute(text(STATEMENTS[_vendor(session)].sweep), {"most": most}).rowcount
            session.commit()
            return int(swept)
        finally:
            session.close()

    @property
    def session(self) -> Session:
        """The current run's. Raises ``ConfigurationError`` outside of one."""
        found = current_session()
        if found is None:
            raise ConfigurationError(
                "there is no session here: only the thread that runs the task has one, from the start of its body "
                "to the end."
            )
        return found

    def _leave_the_parents_connections(self, session: Session) -> None:
        """After a fork: connections in the pool are the parent's, who goes on using them."""
        if self._process == os.getpid():
            return
        bind = session.get_bind(clause=finished_work)
        if isinstance(bind, Engine):
            bind.dispose(close=False)
        self._process = os.getpid()


class SqlAlchemyTransaction:
    """A session with its transaction, until the end of both."""

    nested = False

    def __init__(self, session: Session) -> None:
        self.vendor = ""
        self.session = session
        self._ending = False
        self._outer: Session | None = None
        event.listen(session, "before_commit", self._refuse)

    def enter(self) -> None:
        """Begin, and be the current session of this thread."""
        self.vendor = _vendor(self.session)
        connection = _connection(self.session)
        raw: Any = connection.connection.dbapi_connection
        if self.vendor == "sqlite":
            _take_the_write_lock(connection)
        commits_by_itself = not raw.in_transaction if self.vendor == "sqlite" else raw.autocommit is True
        if commits_by_itself:
            raise ConfigurationError(
                "the engine behind hardened_database has isolation level AUTOCOMMIT, so marker and effect could not "
                "be committed together. Name a sessionmaker of an engine with transactions."
            )
        self._outer = _current.get()
        _current.set(self.session)

    def change(self, sql: str, **parameters: Any) -> int:
        return int(_connection(self.session).execute(text(sql), parameters).rowcount)

    def row(self, sql: str, **parameters: Any) -> tuple[Any, ...] | None:
        found = _connection(self.session).execute(text(sql), parameters).fetchone()
        return None if found is None else tuple(found)

    def commit(self) -> None:
        self._ending = True
        try:
            self.session.commit()
        except BaseException:
            self.rollback()
            raise
        self._end()
        self.session.close()

    def rollback(self) -> None:
        self._end()
        try:
            self.session.close()  # rolls back
        except Exception as problem:  # noqa: BLE001 - whatever it was: without its connection it is undone
            logger.debug("a transaction is undone by closing its connection: %s", problem)
            self.session.invalidate()
        except BaseException:
            self.session.invalidate()
            raise

    def _end(self) -> None:
        self._ending = True
        if _current.get() is self.session:
            _current.set(self._outer)
        if event.contains(self.session, "before_commit", self._refuse):
            event.remove(self.session, "before_commit", self._refuse)

    def _refuse(self, session: Session) -> None:
        """The body commits: marker and half of the effect would be there, and the rest might never be."""
        if self._ending or session.in_nested_transaction():
            return
        raise ConfigurationError(
            "the body commits the session it was given. With store='database' the worker commits it, together with "
            "the marker, when the body returns. Use flush() to see generated values, begin_nested() for a part "
            "that may fail, and a session of your own for what must stay even if the task fails."
        )


def _connection(session: Session) -> Connection:
    try:
        return session.connection(bind_arguments={"clause": finished_work})
    except UnboundExecutionError as problem:
        raise ConfigurationError(
            f"the sessionmaker of hardened_database has no engine for table {TABLE}. Give it bind=, or in binds= "
            f"celery_hardened.idempotency.database_sqlalchemy.finished_work the engine of the effect's tables."
        ) from problem


def _vendor(session: Session) -> str:
    name = _connection(session).dialect.name
    if name not in STATEMENTS:
        raise ConfigurationError(
            f"store='database' works on PostgreSQL and SQLite; hardened_database leads to {name}. "
            f"Use store='redis' for this task."
        )
    return name


def _take_the_write_lock(connection: Connection) -> None:
    """Write first, and do not wait longer than `LOCK_WAIT` for SQLite's one write lock.

    How a transaction begins there depends on the driver's settings and on listeners of the project; that a
    write has begun one, and has the lock from then on, does not.
    """
    patience = int(connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {min(patience, round(LOCK_WAIT * 1000))}")
    try:
        connection.exec_driver_sql(f"DELETE FROM {TABLE} WHERE FALSE")  # noqa: S608
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience}")
