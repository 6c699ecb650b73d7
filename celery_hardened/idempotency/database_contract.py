"""What the database store needs of a database, and what it is for the pipelines."""

from __future__ import annotations

from typing import Any, Protocol

from celery_hardened.idempotency.contract import Answer
from celery_hardened.idempotency.database_problem import Problem


class Transaction(Protocol):
    """One open transaction of the project's database, in this thread."""

    vendor: str
    """``postgresql`` or ``sqlite``."""

    nested: bool
    """Is it a savepoint within another one, which decides in the end?"""

    def change(self, sql: str, **parameters: Any) -> int:
        """Run a statement; how many rows it changed."""

    def row(self, sql: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Run a query; its first row."""

    def commit(self) -> None:
        """Commit. Raises the driver's own error, and then nothing is committed (or the connection is gone)."""

    def rollback(self) -> None:
        """Undo everything. Never raises: a connection that cannot even do that is closed, which undoes it too."""


class Database(Protocol):
    """How the project reaches its database."""

    table_hint: str
    """What to do if the table is not there."""

    def begin(self) -> Transaction:
        """Begin a transaction. Raises ``ConfigurationError`` if this one cannot hold marker and effect together."""

    def problem(self, error: Exception) -> Problem | None:
        """What *error* of the first statements means; ``None``: something else."""

    def sweep(self, *, most: int) -> int:
        """Delete up to *most* expired rows, committed at once; how many."""

    @property
    def session(self) -> Any:
        """What the body writes through. Raises ``ConfigurationError`` if there is no such thing."""


class DatabaseStore(Protocol):
    """A ``ClaimStore`` whose records nobody expires but us."""

    def claim(self, key: str, *, owner: str, task_id: str, fingerprint: str, lease: float, lifetime: float) -> Answer:
        """See ``ClaimStore``. Afterwards, if it was won, the calling thread is inside the transaction."""

    def renew(self, key: str, *, owner: str, lease: float) -> bool:
        """Always ``True``: the transaction is the lease."""

    def finish(self, key: str, *, owner: str, result: bytes | None, lifetime: float) -> bool:
        """Commit marker and effect.

        Whatever it raises is the failure of the task: nothing was committed, or, if the connection broke
        at the very commit, the next claim finds out what happened.
        """

    def release(self, key: str, *, owner: str) -> bool:
        """Roll back. Harmless after ``finish``, whatever came of it."""

    @property
    def session(self) -> Any:
        """The SQLAlchemy session of the run that goes on in this thread. Raises ``ConfigurationError``."""

    def sweep(self) -> int:
        """Delete expired rows, in batches; how many. Leaves no connection open. Raises ``StoreUnavailableError``."""
