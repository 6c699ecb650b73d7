"""A database connection that is in no transaction, and no longer open than Django would have it.

A letter is written whatever becomes of the transaction around it. Inside one the work is done by a thread of its own,
which has a connection of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from threading import Thread
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction

from celery_hardened.errors import ConfigurationError, StoreUnavailableError

T = TypeVar("T")

_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def outside(alias: str, operation: str, work: Callable[[int], T], *, write: bool = False) -> T:
    """Do *work*, which is told the time there in microseconds, by a connection to *alias* that is in no transaction.

    Args:
        write: In a transaction of its own.

    Raises:
        StoreUnavailableError: The database did not answer, or has not our tables; nothing was changed.
    """
    if _in_transaction(alias):
        return _elsewhere(alias, lambda: _here(alias, operation, work, write))
    return _here(alias, operation, work, write)


def _in_transaction(alias: str) -> bool:
    """Also with autocommit switched off: there is no block then, and a rollback would take the letter with it."""
    connection = connections[alias]
    if connection.connection is None:
        return connection.in_atomic_block or not connection.settings_dict["AUTOCOMMIT"]
    return connection.in_atomic_block or not connection.get_autocommit()


def _here(alias: str, operation: str, work: Callable[[int], T], write: bool) -> T:
    connection = connections[alias]
    idle = connection.connection is None
    if connection.errors_occurred:
        connection.close_if_unusable_or_obsolete()
    asked = False

    def once() -> T:
        nonlocal asked
        with writing(alias) if write else nullcontext():
            now = now_us(alias)
            asked = True
            return work(now)

    try:
        try:
            return once()
        except (OperationalError, InterfaceError):
            if idle or asked:
                raise
            # Ended by the server since it was used last, which nobody is told before the first statement.
            connection.close_if_unusable_or_obsolete()
            if connection.connection is not None:
                raise
            return once()
    except (DatabaseError, InterfaceError) as problem:
        # A driver's message may quote what was to be written.
        said = str(problem).strip().partition("\n")[0][:200]
        if "no such table" in said or "does not exist" in said:
            said = f"{said}; run `manage.py migrate celery_hardened`"
        where = f"the database {alias!r} of DATABASES"
        raise StoreUnavailableError(operation, f"{type(problem).__name__}: {said}", where) from problem
    finally:
        if idle:
            # Nobody else closes what was opened here: the main process of a worker has no tasks.
            with suppress(DatabaseError, InterfaceError):
                connection.close_if_unusable_or_obsolete()


def _elsewhere(alias: str, work: Callable[[], T]) -> T:
    answers: list[T] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            # Where DATABASES switches autocommit off: nobody would commit here.
            connections[alias].settings_dict = {**connections[alias].settings_dict, "AUTOCOMMIT": True}
            answers.append(work())
        except BaseException as problem:  # noqa: BLE001 - raised again where it was asked for
            problems.append(problem)
        finally:
            connections.close_all()

    thread = Thread(target=run, name="celery_hardened-letters", daemon=True)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return answers[0]


def now_us(alias: str) -> int:
    """The database server's time, in microseconds."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        # All who share the file share this machine's clock. SQLite tells it to the millisecond, in which a second
        # letter may be written: it would be of the same time as one that was shown before it came.
        return time.time_ns() // 1000
    with connection.cursor() as cursor:
        cursor.execute(_CLOCK)
        return int(cursor.fetchone()[0])


def require_known(alias: str) -> None:
    """Raises ``ConfigurationError`` if *alias* is a database whose locks and clock we do not know."""
    vendor = connections[alias].vendor
    if vendor not in ("postgresql", "sqlite"):
        raise ConfigurationError(
            f"hardened_dead_letter_store = 'django' works on PostgreSQL and SQLite; Django's database {alias!r} is "
            f"{vendor}. Use hardened_dead_letter_store = 'redis'."
        )


def writing(alias: str) -> Any:
    """A transaction that has the right to write from its first statement on, where that could be refused later."""
    if connections[alias].vendor == "sqlite":
        return _Immediate(alias)
    return transaction.atomic(using=alias, durable=True)


class _Immediate:
    """SQLite refuses, at once, to let a transaction write that has read what another one has changed since."""

    def __init__(self, alias: str) -> None:
        self._connection = connections[alias]
        self._atomic = transaction.atomic(using=alias, durable=True)

    def __enter__(self) -> None:
        self._connection.ensure_connection()  # which sets the mode
        mode, self._connection.transaction_mode = self._connection.transaction_mode, "IMMEDIATE"
        try:
            self._atomic.__enter__()
        finally:
            self._connection.transaction_mode = mode

    def __exit__(self, *raised: Any) -> Any:
        return self._atomic.__exit__(*raised)
