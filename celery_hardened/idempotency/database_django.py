"""The project's database as Django knows it: ``transaction.atomic`` from the claim to the finish.

Inside it the body's own ``atomic()`` blocks are savepoints, ``transaction.commit()`` is refused by
Django, and what ``on_commit`` registers runs at the commit of the finish.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from celery_hardened.errors import ConfigurationError
from celery_hardened.idempotency.database_problem import Problem, problem_of
from celery_hardened.idempotency.database_sql import LOCK_WAIT, STATEMENTS

try:
    from django.apps import apps
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections, transaction
except ImportError as missing:
    raise ConfigurationError(
        "store='database' needs Django, or hardened_database: 'module:attribute' of a SQLAlchemy sessionmaker. "
        f"Neither is here ({missing})."
    ) from missing

logger = logging.getLogger("celery_hardened.idempotency")

_APP = "celery_hardened.contrib.django"


class DjangoDatabase:
    """One of ``DATABASES``, by the connection of the calling thread."""

    table_hint = "Run `manage.py migrate celery_hardened`, with --database for another alias than 'default'."

    def __init__(self, alias: str) -> None:
        self._alias = alias
        try:
            known = settings.configured and apps.is_installed(_APP)
        except ImproperlyConfigured:
            known = False
        if not known:
            raise ConfigurationError(
                f"store='database' needs {_APP!r} in Django's INSTALLED_APPS, or hardened_database: "
                f"'module:attribute' of a SQLAlchemy sessionmaker."
            )
        if alias not in connections.settings:
            raise ConfigurationError(
                f"@idempotent(..., using={alias!r}): Django's DATABASES has no such alias; "
                f"it has {', '.join(map(repr, connections.settings))}."
            )

    def begin(self) -> DjangoTransaction:
        """Enter ``atomic``; on SQLite with the write lock.

        Raises:
            ConfigurationError: The database is another one than these two, or ``AUTOCOMMIT`` is off.
        """
        connection = connections[self._alias]
        if connection.vendor not in STATEMENTS:
            raise ConfigurationError(
                f"store='database' works on PostgreSQL and SQLite; Django's database {self._alias!r} "
                f"is {connection.vendor}. Use store='redis' for this task."
            )
        if connection.closed_in_transaction:
            # A block whose connection was closed under it, and which nobody left: a signal came between
            # two lines. Nothing can come of it any more, and nothing else would begin beside it.
            _forget_block(connection)
        nested = bool(connection.in_atomic_block)
        if not nested and not connection.get_autocommit():
            raise ConfigurationError(
                f"Django's database {self._alias!r} has AUTOCOMMIT off, so atomic() would not commit, and the effect "
                f"would be lost. Remove AUTOCOMMIT from DATABASES."
            )
        atomic = transaction.atomic(using=self._alias)
        if connection.vendor == "sqlite" and not nested:
            with _write_lock_soon(connection):
                atomic.__enter__()
        else:
            atomic.__enter__()
        return DjangoTransaction(connection, atomic, nested=nested)

    def problem(self, error: Exception) -> Problem | None:
        return problem_of(error)

    def sweep(self, *, most: int) -> int:
        """Delete expired rows in a transaction of its own, and leave no connection behind that was not there."""
        connection = connections[self._alias]
        idle = connection.connection is None
        try:
            return _run(connection, STATEMENTS[connection.vendor].sweep, {"most": most})
        finally:
            if idle:
                connection.close()

    @property
    def session(self) -> Any:
        raise ConfigurationError(
            f"this run is inside atomic(using={self._alias!r}) of Django: models write there by themselves. A session "
            f"is there with hardened_database, 'module:attribute' of a SQLAlchemy sessionmaker."
        )


class DjangoTransaction:
    """An ``atomic`` block that was entered."""

    def __init__(self, connection: Any, atomic: Any, *, nested: bool) -> None:
        self.vendor: str = connection.vendor
        self.nested = nested
        self._connection = connection
        self._atomic = atomic

    def change(self, sql: str, **parameters: Any) -> int:
        return _run(self._connection, sql, parameters)

    def row(self, sql: str, **parameters: Any) -> tuple[Any, ...] | None:
        with self._connection.cursor() as cursor:
            cursor.execute(_django(sql), parameters)
            found: tuple[Any, ...] | None = cursor.fetchone()
            return found

    def commit(self) -> None:
        try:
            self._atomic.__exit__(None, None, None)
        except BaseException:
            self._drop()
            raise

    def rollback(self) -> None:
        undone = _UndoneError()
        try:
            self._atomic.__exit__(_UndoneError, undone, None)
        except Exception as problem:  # noqa: BLE001 - whatever it was: without its connection it is undone
            logger.debug("a transaction is undone by closing its connection: %s", problem)
            self._drop()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Close a connection whose state nobody knows: the server rolls back what it did not commit.

        Django would take what follows for nested in a block that is not there any more, and never
        commit it. A connection that is made anew begins with no block.
        """
        if self.nested:
            return  # the block around it decides
        self._connection.in_atomic_block = False
        try:
            self._connection.close()
        except Exception as problem:  # noqa: BLE001 - then it is closed as well as it can be
            logger.debug("a connection could not be closed: %s", problem)
        _forget_block(self._connection)


class _UndoneError(Exception):
    """Tells ``atomic`` to roll back; nobody sees it."""


def _forget_block(connection: Any) -> None:
    """Have the connection made anew at its next use; Django begins with no block then."""
    connection.in_atomic_block = False
    connection.connection = None


@contextmanager
def _write_lock_soon(connection: Any) -> Iterator[None]:
    """Take SQLite's write lock with BEGIN, and do not wait longer than `LOCK_WAIT` for it.

    Taken later, a transaction that has read already could be refused in the middle of the body.
    """
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout")
        patience = int(cursor.fetchone()[0])
        cursor.execute(f"PRAGMA busy_timeout = {min(patience, round(LOCK_WAIT * 1000))}")
    mode, connection.transaction_mode = connection.transaction_mode, "IMMEDIATE"
    try:
        yield
    finally:
        connection.transaction_mode = mode
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {patience}")


def _run(connection: Any, sql: str, parameters: dict[str, Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_django(sql), parameters)
        return int(cursor.rowcount)


@lru_cache
def _django(sql: str) -> str:
    """Parameters as Django writes them: ``%(name)s``."""
    return re.sub(r":(\w+)", r"%(\1)s", sql.replace("%", "%%"))
