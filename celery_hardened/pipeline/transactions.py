"""Open transactions, as far as a publish has to wait for them: Django's connections, SQLAlchemy's sessions.

Both libraries are used if the process has them, and imported by nobody here.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from celery_hardened.pipeline.waiting import Batch, Hook

#: Where a session keeps what waits for it: ``Session.info``, which goes with it.
_IN_SESSION = "celery_hardened.on_commit"


class Transaction(Protocol):
    """What a publish can wait for."""

    def hold(self, make: Callable[[Batch], Hook]) -> Hook:
        """Make a hook and hold it: called after the commit, forgotten with a rollback.

        The only reference to it is the transaction's; see ``Waiting``.
        """
        ...


# --- Django ------------------------------------------------------------------------------------------


def django_transactions() -> list[Transaction]:
    """Every connection of this thread that is inside ``atomic()``.

    Not those where only a ``TestCase`` has opened a transaction, because the code under test has
    none there; nor those with autocommit off, where Django runs no hook at a commit.
    """
    conf, db = sys.modules.get("django.conf"), sys.modules.get("django.db")
    if conf is None or db is None or not conf.settings.configured:
        return []
    return [_Connection(one) for one in db.connections.all(initialized_only=True) if _is_inside_atomic(one)]


def _is_inside_atomic(connection: Any) -> bool:
    if not connection.in_atomic_block or not connection.commit_on_exit:
        return False
    return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


class _Connection:
    """A Django connection inside ``atomic()``."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def hold(self, make: Callable[[Batch], Hook]) -> Hook:
        hook = make(self._batch())
        self.connection.on_commit(hook)
        return hook

    def _batch(self) -> Batch:
        """Of the hooks that wait with this transaction already, else a new one."""
        for _, callback, _ in reversed(self.connection.run_on_commit):
            if isinstance(callback, Hook):
                return callback.batch
        connection = self.connection
        # A hook runs inside a transaction only if a test runs it, which may run it alone.
        return Batch(is_over=lambda: not connection.in_atomic_block)


# --- SQLAlchemy ----------------------------------------------------------------------------------------


def session_transaction(given: Any) -> Transaction:
    """The transaction of a session: a ``Session``, a ``scoped_session`` or an ``AsyncSession``.

    Raises:
        TypeError: *given* is none of these.
    """
    session = given
    if hasattr(session, "registry") and callable(session):
        session = session()  # scoped_session
    session = getattr(session, "sync_session", session)
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is None or not isinstance(session, orm.Session):
        raise TypeError(
            f"on_commit={type(given).__name__}(...): it is True, False or a SQLAlchemy session, whose commit "
            f"sends the task."
        )
    waiting: _Session | None = session.info.get(_IN_SESSION)
    if waiting is None or waiting.session() is not session:  # a session may be made with the info of another
        waiting = session.info[_IN_SESSION] = _Session(session)
    return _SessionNow(session, waiting)


class _SessionNow:
    """What a session is inside of at this moment."""

    def __init__(self, session: Any, waiting: _Session) -> None:
        self.session = session
        self.waiting = waiting

    def hold(self, make: Callable[[Batch], Hook]) -> Hook:
        session, waiting = self.session, self.waiting
        hook = make(waiting.batch)
        inside = session.get_nested_transaction() or session.get_transaction()
        if inside is None:
            waiting.watch(session)
        waiting.held.append((inside, hook))
        return hook


#: Methods that end what a session has not begun, of which SQLAlchemy tells nobody.
_ENDINGS = ("rollback", "close", "reset", "invalidate")


class _Session:
    """What waits for the commits of one session, by the savepoint it was published in.

    ``None`` stands for the transaction that the session will begin with its next statement, ``begin()`` or
    ``commit()``. It is not begun here: ``with session.begin()`` after the publish would find it begun.
    """

    def __init__(self, session: Any) -> None:
        self.session = weakref.ref(session)
        self.held: list[tuple[Any, Hook]] = []
        self.batch = Batch()
        self._committed: Any = None
        event = sys.modules["sqlalchemy.event"]
        event.listen(session, "after_transaction_create", self._after_create)
        event.listen(session, "after_commit", self._after_commit)
        event.listen(session, "after_transaction_end", self._after_end)

    def watch(self, session: Any) -> None:
        """Until *session* begins, its methods that would drop a transaction drop what waits for one."""
        for name in _ENDINGS:
            if name not in session.__dict__ and hasattr(session, name):
                session.__dict__[name] = _Ending(self, name)

    def unwatch(self, session: Any) -> None:
        for name in _ENDINGS:
            if isinstance(session.__dict__.get(name), _Ending):
                del session.__dict__[name]

    def drop(self) -> None:
        """Forget what waits for a transaction that never began."""
        self.held, self.batch = [pair for pair in self.held if pair[0] is not None], Batch()

    def _after_create(self, session: Any, begun: Any) -> None:
        if begun.parent is None:
            self.unwatch(session)
            self.held = [(begun if inside is None else inside, hook) for inside, hook in self.held]

    def _after_commit(self, session: Any) -> None:
        """A savepoint was released, or the transaction committed; the session is in no state to raise from."""
        self._committed = session.get_nested_transaction() or session.get_transaction()

    def _after_end(self, _session: Any, ended: Any) -> None:
        """A transaction, a savepoint or a flush is over."""
        root = ended.parent is None
        if not root and not ended.nested:
            return  # a flush
        committed, self._committed = self._committed is ended, None
        if not root:
            held = [(ended.parent if inside is ended else inside, hook) for inside, hook in self.held]
            self.held = held if committed else [pair for pair in self.held if pair[0] is not ended]
            return
        held, self.held, self.batch = self.held, [], Batch()
        if not committed:
            return
        while held:
            # Held by this list alone, as with Django.
            held.pop(0)[1]()


class _Ending:
    """``rollback()`` or ``close()`` of a session that has not begun, and that publishes wait for."""

    def __init__(self, waiting: _Session, name: str) -> None:
        self._waiting = waiting  # not the session, which has this among its attributes
        self._name = name

    def __call__(self, *args: Any, **options: Any) -> Any:
        session = self._waiting.session()
        if session is None:  # this was taken from it, and it is gone: nothing is left to end
            return None
        self._waiting.unwatch(session)
        self._waiting.drop()
        return getattr(session, self._name)(*args, **options)
