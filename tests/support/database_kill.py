"""Runs with the database store that are killed: at each point, in a process of their own.

``python -m tests.support.database_kill`` forks a run for every point it can be killed at (before and after
each statement, and the commit), then runs the same key to its end, and prints what the tables hold.
It has no connection itself. Used by `tests/chaos/test_database_kill.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal, TypeAlias

from celery_hardened.errors import ConfigurationError
from celery_hardened.idempotency.contract import Busy, Done, Won
from celery_hardened.idempotency.database import DatabaseStore, TransactionStore

#: When the marker is written: with the effect, or wrongly in a transaction of its own.
Marker: TypeAlias = Literal["with", "before", "after"]


class Points:
    """Counts the points of a run, and kills this process at one of them.

    Args:
        deadly: Its number; ``None``: none.
    """

    def __init__(self, deadly: int | None = None) -> None:
        self.begin(deadly)

    def begin(self, deadly: int | None, last_words: Callable[[], object] = lambda: None) -> None:
        """Count from nought again; before it dies it calls *last_words*."""
        self._deadly = deadly
        self._last_words = last_words
        self.passed: list[str] = []

    def reach(self, name: str) -> None:
        if len(self.passed) == self._deadly:
            self._last_words()
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed.append(name)

    @contextmanager
    def around(self, what: str) -> Iterator[None]:
        self.reach(f"before {what}")
        yield
        self.reach(f"after {what}")


class DjangoSide:
    """The shop's tables by Django, in database *alias*."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def store(self) -> DatabaseStore:
        from celery_hardened.idempotency.database_django import DjangoDatabase

        return TransactionStore(DjangoDatabase(self._alias))

    def watch(self, points: Points) -> None:
        """Reach a point before and after each statement of this thread."""
        from django.db import connections

        connection = connections[self._alias]
        commit = connection._commit

        def watched(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            with points.around(sql[:40]):
                return execute(sql, params, many, context)

        def watched_commit() -> None:
            with points.around("COMMIT"):
                commit()

        connection.execute_wrappers.append(watched)
        connection._commit = watched_commit

    def effect(self, key: str) -> None:
        """Three writes, one of them in a block of its own."""
        from django.db import transaction

        from tests.support.django_shop.models import Invoice

        made = Invoice.objects.using(self._alias).create(number=key)
        with transaction.atomic(using=self._alias):
            Invoice.objects.using(self._alias).create(number=f"{key}/copy")
        Invoice.objects.using(self._alias).filter(pk=made.pk).update(note="sent")

    def alone(self, work: Callable[[], None]) -> None:
        """Do *work* in a transaction of its own."""
        from django.db import transaction

        with transaction.atomic(using=self._alias):
            work()

    def effects(self, key: str) -> list[str]:
        from tests.support.django_shop.models import Invoice

        rows = Invoice.objects.using(self._alias).filter(number__startswith=key)
        return sorted(f"{row.number.removeprefix(key)} {row.note}".strip() for row in rows)


class SqlAlchemySide:
    """The same by SQLAlchemy, at *url*."""

    def __init__(self, url: str) -> None:
        from sqlalchemy.pool import NullPool

        from tests.support import sqlalchemy_shop

        self._shop = sqlalchemy_shop.Shop(url, poolclass=NullPool)

    @property
    def sessions(self) -> Any:
        return self._shop.sessions

    def store(self) -> DatabaseStore:
        from celery_hardened.idempotency.database_sqlalchemy import SqlAlchemyDatabase

        return TransactionStore(SqlAlchemyDatabase(self._shop.sessions))

    def watch(self, points: Points) -> None:
        """Reach a point before and after each statement of this process."""
        from sqlalchemy import event

        engine = self._shop.engine
        commit = engine.dialect.do_commit

        def watched_commit(connection: Any) -> None:
            with points.around("COMMIT"):
                commit(connection)

        event.listen(engine, "before_cursor_execute", lambda c, cur, sql, *_: points.reach(f"before {sql[:40]}"))
        event.listen(engine, "after_cursor_execute", lambda c, cur, sql, *_: points.reach(f"after {sql[:40]}"))
        engine.dialect.do_commit = watched_commit  # type: ignore[assignment]

    def effect(self, key: str) -> None:
        """Three writes, one of them in a savepoint."""
        from celery_hardened.idempotency.database_sqlalchemy import current_session
        from tests.support.sqlalchemy_shop import Invoice

        session = current_session() or self._alone
        made = Invoice(number=key)
        session.add(made)
        with session.begin_nested():
            session.add(Invoice(number=f"{key}/copy"))
        made.note = "sent"

    def alone(self, work: Callable[[], None]) -> None:
        with self._shop.sessions.begin() as self._alone:
            work()

    def effects(self, key: str) -> list[str]:
        return self._shop.effects(key)


Side: TypeAlias = DjangoSide | SqlAlchemySide


def side_of(name: str, where: str) -> Side:
    if name == "sqlalchemy":
        return SqlAlchemySide(where)
    import django
    from django.db import connections

    django.setup()
    import_module("tests.support.django_shop.models")
    import_module("django.db.backends.postgresql.base")  # once, and not in every child
    assert where in connections.settings, where
    return DjangoSide(where)


def run(side: Side, key: str, points: Points, *, marker: Marker = "with") -> str:
    """Do the work of *key*, unless it is done: ``ran`` or ``replayed``."""
    store = side.store()
    side.watch(points)
    owner = uuid.uuid4().hex
    given: dict[str, Any] = {"task_id": "t1", "fingerprint": "f1", "lease": 30.0, "lifetime": 600.0}
    if marker == "after":
        side.alone(lambda: side.effect(key))
    while isinstance(answer := store.claim(key, owner=owner, **given), Busy):
        time.sleep(0.02)  # the server may not have noticed yet that the killed run is gone
    if isinstance(answer, Done):
        assert answer.result == b'"sent"', answer
        return "replayed"
    assert isinstance(answer, Won), answer
    if marker == "with":
        side.effect(key)
    if not store.finish(key, owner=owner, result=b'"sent"', lifetime=600.0):
        raise ConfigurationError("the claim was lost")
    if marker == "before":
        side.alone(lambda: side.effect(key))
    return "ran"


def in_child(work: Callable[[], object]) -> tuple[int, Any]:
    """Do *work* in a forked process: minus the signal that ended it or 0, and what it returned."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 1
        try:
            os.write(write, json.dumps(work()).encode())
            code = 0
        except BaseException:  # noqa: BLE001 - it must not go on as a second copy of its parent
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), json.loads(said) if said else None


def kill_everywhere(side: Side, prefix: str, marker: Marker) -> list[dict[str, Any]]:
    """What is in the tables after a run was killed at each point in turn, and run again."""

    def once(key: str, deadly: int | None) -> tuple[int, Any]:
        def work() -> Any:
            points = Points(deadly)
            return run(side, key, points, marker=marker), points.passed

        return in_child(work)

    code, (outcome, names) = once(f"{prefix}-whole", None)
    assert (code, outcome) == (0, "ran"), (code, outcome)
    keys = [f"{prefix}-{number:02}" for number in range(len(names))]
    outcomes = []
    for number, key in enumerate(keys):
        killed, _ = once(key, number)
        assert killed == -signal.SIGKILL, (names[number], killed)
        code, told = once(key, None)
        assert code == 0, names[number]
        outcomes.append(told[0])
    _, effects = in_child(lambda: [side.effects(key) for key in keys])
    return [
        {"point": f"{number} {point}", "outcome": outcomes[number], "effects": effects[number]}
        for number, point in enumerate(names)
    ]


def race(side: Side, key: str, runners: int) -> dict[str, Any]:
    """*runners* processes begin the work of *key* at the same time."""
    go, start = os.pipe()
    children = []
    for _ in range(runners):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(start)
            os.read(go, 1)  # nobody writes: it returns when the parent closes its end
            try:
                os.write(write, run(side, key, Points(None)).encode())
            except BaseException:  # noqa: BLE001 - see in_child
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(write)
        children.append((child, read))
    os.close(start)
    outcomes = []
    for child, read in children:
        with os.fdopen(read, "rb") as pipe:
            outcomes.append(pipe.read().decode())
        os.waitpid(child, 0)
    _, effects = in_child(lambda: side.effects(key))
    return {"outcomes": sorted(outcomes), "effects": effects}


def ask(what: str, *args: str, env: dict[str, str]) -> Any:
    """Do it in a process of its own, and return what it found."""
    program = [sys.executable, "-m", __name__, what, *args]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env={**os.environ, **env}, timeout=170)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def main(what: str, name: str, where: str, prefix: str, extra: str) -> None:
    side = side_of(name, where)
    if what == "race":
        answer: Any = race(side, prefix, int(extra))
    elif what == "effects":
        answer = [side.effects(key) for key in extra.split(",")]
    else:
        answer = kill_everywhere(side, prefix, extra)  # type: ignore[arg-type]
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
