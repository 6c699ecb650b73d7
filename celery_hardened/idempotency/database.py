"""Claims in the project's own database: the marker commits together with the effect.

::

    claim     begin the transaction · lock the key, or come back later · insert the marker
    (body)    writes in the same transaction
    finish    complete the marker · commit: marker and effect, or neither
    release   roll back: neither

There is no lease: a run that dies takes its transaction along, and the database undoes it. A zombie
cannot commit what was rolled back. So the effect is exactly once, for effects in this database.

A run belongs to the thread (or greenlet) that claimed it, as its connection does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from celery import Celery

from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.idempotency.contract import Answer, Busy, Done, Mismatch, Won
from celery_hardened.idempotency.database_contract import Database, Transaction
from celery_hardened.idempotency.database_contract import DatabaseStore as DatabaseStore
from celery_hardened.idempotency.database_sql import STATEMENTS, TABLE, keepalive, lock_number
from celery_hardened.settings import Settings

logger = logging.getLogger("celery_hardened.idempotency")

#: Seconds after which to ask again: the database does not say when a transaction will end.
BUSY_FOR = 5.0

#: Keys of this process whose last run's end is remembered, so that ending it twice answers the same.
_REMEMBERED = 512

#: Rows that one statement of a sweep deletes.
SWEEP_BATCH = 1000

#: Statements of one sweep at most; the next one goes on.
SWEEP_MOST = 100

End: TypeAlias = Literal["finished", "released"]


def open_database(app: Celery, settings: Settings, *, using: str = "default") -> DatabaseStore:  # noqa: ARG001
    """
    The store of ``store="database"``: SQLAlchemy's if ``hardened_database`` is set, else Django's.

    Connects to nothing yet.

    Args:
        using: Django's alias of the database that the effect goes to.

    Raises:
        ConfigurationError: Neither is configured, or Django lacks our app.
    """
    if settings.database is not None:
        from celery_hardened.idempotency.database_sqlalchemy import SqlAlchemyDatabase

        return TransactionStore(SqlAlchemyDatabase.load(settings.database))
    from celery_hardened.idempotency.database_django import DjangoDatabase

    return TransactionStore(DjangoDatabase(using))


@dataclass(slots=True)
class _Run:
    owner: str
    task_id: str
    transaction: Transaction | None = None
    """``None`` while it asks."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a claim asks for."""

    key: str
    task_id: str
    fingerprint: str
    lease: float
    lifetime: float

    def of(self, transaction: Transaction) -> Answer:
        """Lock the key and insert the marker, or find out why not."""
        sql = STATEMENTS[transaction.vendor]
        if sql.lock is not None:
            work, message = lock_number(self.key), lock_number(self.key, self.task_id)
            locks = transaction.row(sql.lock, work=work, message=message, **keepalive(self.lease))
            # Whoever runs holds both, so a message whose own lock is taken may be running elsewhere. That an asker
            # takes one of them for a moment makes another one wait, and nobody run twice.
            if locks is None or not (locks[0] and locks[1]):
                return Busy(BUSY_FOR, same=locks is None or not locks[1])
        inserted = transaction.change(
            sql.begin, key=self.key, task_id=self.task_id, fingerprint=self.fingerprint, lifetime=self.lifetime
        )
        if inserted:
            return Won(None)
        found = transaction.row(sql.look, key=self.key)
        if found is None:
            return Busy(BUSY_FOR, same=True)
        before, task_id, result = found
        if task_id != self.task_id and self.fingerprint and before and self.fingerprint != before:
            return Mismatch()
        return Done(None if result is None else bytes(result))


class TransactionStore:
    """Claims by transactions of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._ended: OrderedDict[str, tuple[str, End]] = OrderedDict()

    # --- the contract -----------------------------------------------------------------------

    def claim(self, key: str, *, owner: str, task_id: str, fingerprint: str, lease: float, lifetime: float) -> Answer:
        run = _Run(owner, task_id)
        twin = self._enter(key, run)
        if twin is not None:
            # Within one connection a lock can be taken twice, so runs of this process are told apart here.
            return Won(None) if twin.owner == owner else Busy(BUSY_FOR, same=twin.task_id == task_id)
        try:
            answer, run.transaction = self._begin(_Ask(key, task_id, fingerprint, lease, lifetime))
        finally:
            if run.transaction is None:
                self._leave(key)
            else:
                self._ended.pop(key, None)
        return answer

    def renew(self, key: str, *, owner: str, lease: float) -> bool:  # noqa: ARG002
        return True

    def finish(self, key: str, *, owner: str, result: bytes | None, lifetime: float) -> bool:
        run = self._mine(key, owner)
        if run is None or run.transaction is None:
            return self._ended.get(key) == (owner, "finished")
        transaction = run.transaction
        try:
            completed = transaction.change(
                STATEMENTS[transaction.vendor].finish, key=key, task_id=run.task_id, result=result, lifetime=lifetime
            )
            if completed != 1:
                raise ConfigurationError(
                    f"the marker of {key} is gone: the body ended the transaction it ran in. With store='database' "
                    f"commit and rollback are the worker's: marker and effect must commit together. "
                    f"Remove them from the body; what it wrote since was rolled back."
                )
        except BaseException:
            self._leave(key)
            transaction.rollback()
            raise
        try:
            transaction.commit()  # ends the transaction, whatever comes of it
            self._remember(key, owner, "finished")
        finally:
            self._leave(key)
        return True

    def release(self, key: str, *, owner: str) -> bool:
        run = self._mine(key, owner)
        if run is None or run.transaction is None:
            return self._ended.get(key) == (owner, "released")
        try:
            run.transaction.rollback()
            self._remember(key, owner, "released")
        finally:
            self._leave(key)
        return True

    @property
    def session(self) -> Any:
        return self._database.session

    # --- upkeep -----------------------------------------------------------------------------

    def sweep(self) -> int:
        swept = 0
        for _ in range(SWEEP_MOST):
            try:
                batch = self._database.sweep(most=SWEEP_BATCH)
            except Exception as error:
                raise self._named("sweeping finished work", error) or error from error
            swept += batch
            if batch < SWEEP_BATCH:
                break
        return swept

    # --- what a claim does ------------------------------------------------------------------

    def _begin(self, asked: _Ask, *, again: bool = True) -> tuple[Answer, Transaction | None]:
        """The answer, and if it is ``Won`` the open transaction."""
        try:
            transaction = self._database.begin()
            try:
                answer = asked.of(transaction)
            except BaseException:
                transaction.rollback()
                raise
        except Exception as error:
            problem = self._database.problem(error)
            if problem == "away" and again:
                # A connection that was idle may have been cut long ago. Nothing was done on it.
                return self._begin(asked, again=False)
            if problem == "locked":
                # By whom, the database does not say: perhaps by this very message's first run.
                return Busy(BUSY_FOR, same=True), None
            named = self._named("claiming a key", error)
            if named is None:
                raise
            raise named from error
        if isinstance(answer, Won):
            return answer, transaction
        transaction.rollback()
        return answer, None

    def _named(self, operation: str, error: Exception) -> Exception | None:
        """*error* in our words, if it is about the database and not about a statement."""
        problem = self._database.problem(error)
        if problem == "no table":
            return ConfigurationError(f"table {TABLE} is not there ({error}). {self._database.table_hint}")
        if problem is not None:
            return StoreUnavailableError(operation, f"the project's database: {error}")
        return None

    # --- runs of this process ---------------------------------------------------------------

    def _enter(self, key: str, run: _Run) -> _Run | None:
        """Note that *run* asks for *key*, unless another run of this process has it: that one."""
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                self._runs.clear()  # they are the parent's
            if key in self._runs:
                return self._runs[key]
            self._runs[key] = run
            return None

    def _mine(self, key: str, owner: str) -> _Run | None:
        run = self._runs.get(key)
        return run if run is not None and run.owner == owner and run.transaction is not None else None

    def _leave(self, key: str) -> None:
        with self._lock:
            self._runs.pop(key, None)

    def _remember(self, key: str, owner: str, end: End) -> None:
        with self._lock:
            self._ended.pop(key, None)
            self._ended[key] = owner, end
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
