"""The database store: what the body of a task may do with the transaction it runs in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import event, select, text
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import NullPool

from celery_hardened.errors import ConfigurationError
from celery_hardened.idempotency.contract import Busy, Done, Won
from celery_hardened.idempotency.database import TransactionStore, open_database
from celery_hardened.idempotency.database_sql import TABLE
from celery_hardened.idempotency.database_sqlalchemy import SqlAlchemyDatabase, current_session
from celery_hardened.retry.transient import is_transient
from celery_hardened.settings import Settings
from tests.support import django_project
from tests.support.postgres import Postgres
from tests.support.sqlalchemy_shop import Invoice, Shop

pytest.importorskip("django")

KEY = "shop.charge:1:5f1d"


def claim(store: TransactionStore, owner: str = "a", *, key: str = KEY, task_id: str = "t1") -> Any:
    return store.claim(key, owner=owner, task_id=task_id, fingerprint="f1", lease=30.0, lifetime=600.0)


def finish(store: TransactionStore, owner: str = "a", *, key: str = KEY) -> bool:
    return store.finish(key, owner=owner, result=b"1", lifetime=600.0)


# --- Django --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["default", "postgres"])
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    """A Django database: SQLite, and PostgreSQL."""
    django_project.configure()
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        django_project.add_postgres(server.database())
    _empty(request.param)
    yield request.param
    _empty(request.param)
    django_project.close_all()
    django_project.forget("postgres")


def _empty(alias: str) -> None:
    from django.db import connections

    from tests.support.django_shop.models import Invoice, Unique

    with connections[alias].cursor() as cursor:
        cursor.execute(f"DELETE FROM {TABLE}")
    Invoice.objects.using(alias).all().delete()
    Unique.objects.using(alias).all().delete()


@pytest.fixture
def django_store(alias: str) -> TransactionStore:
    from celery_hardened.idempotency.database_django import DjangoDatabase

    return TransactionStore(DjangoDatabase(alias))


def numbers(alias: str) -> list[str]:
    """Invoices that are committed: read on a connection of its own."""
    from concurrent.futures import ThreadPoolExecutor

    from tests.support.django_shop.models import Invoice

    def read() -> list[str]:
        try:
            return sorted(Invoice.objects.using(alias).values_list("number", flat=True))
        finally:
            django_project.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read).result(60)


def test_blocks_of_the_body_are_savepoints(alias: str, django_store: TransactionStore) -> None:
    """One that fails is undone by itself; the others are committed by the finish, and not before."""
    from django.db import transaction

    from tests.support.django_shop.models import Invoice

    claim(django_store)
    with transaction.atomic(using=alias):
        Invoice.objects.using(alias).create(number="kept")
    with suppress(ZeroDivisionError), transaction.atomic(using=alias):
        Invoice.objects.using(alias).create(number="undone")
        raise ZeroDivisionError
    assert numbers(alias) == []
    assert finish(django_store)
    assert numbers(alias) == ["kept"]


def test_django_refuses_a_commit_by_hand(alias: str, django_store: TransactionStore) -> None:
    from django.db import transaction

    claim(django_store)
    with pytest.raises(transaction.TransactionManagementError):
        transaction.commit(using=alias)
    assert django_store.release(KEY, owner="a")


def test_what_waits_for_the_commit_runs_at_the_finish(alias: str, django_store: TransactionStore) -> None:
    """And never after a release."""
    from django.db import transaction

    ran: list[str] = []
    claim(django_store)
    transaction.on_commit(lambda: ran.append("released"), using=alias)
    django_store.release(KEY, owner="a")
    claim(django_store, "b")
    transaction.on_commit(lambda: ran.append("finished"), using=alias)
    assert ran == []
    finish(django_store, "b")
    assert ran == ["finished"]


def test_a_hook_that_fails_after_the_commit_is_the_tasks_failure_and_the_work_is_done(
    alias: str, django_store: TransactionStore
) -> None:
    """As with a block of the body's own; the retry gets the result and does nothing twice."""
    from django.db import transaction

    from tests.support.django_shop.models import Invoice

    claim(django_store)
    Invoice.objects.using(alias).create(number="one")
    transaction.on_commit(lambda: 1 / 0, using=alias)
    with pytest.raises(ZeroDivisionError):
        finish(django_store)
    assert django_store.release(KEY, owner="a") is False
    assert claim(django_store, "b") == Done(b"1")
    assert numbers(alias) == ["one"]


def test_a_body_that_asks_for_a_rollback_is_a_failure(alias: str, django_store: TransactionStore) -> None:
    """Django would roll back without a word, and the task would be a success that did nothing."""
    from django.db import transaction

    from tests.support.django_shop.models import Invoice

    claim(django_store)
    Invoice.objects.using(alias).create(number="one")
    transaction.set_rollback(True, using=alias)
    with pytest.raises(transaction.TransactionManagementError):
        finish(django_store)
    assert claim(django_store, "b") == Won(None)
    django_store.release(KEY, owner="b")
    assert numbers(alias) == []


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_a_constraint_that_fails_at_the_commit_is_the_tasks_failure(alias: str, django_store: TransactionStore) -> None:
    """Nothing is committed, and the corrected task runs."""
    from django.db import IntegrityError

    from tests.support.django_shop.models import Invoice, Unique

    claim(django_store)
    Invoice.objects.using(alias).create(number="one")
    Unique.objects.using(alias).create(number="one", parent_id=404)  # checked at the commit
    with pytest.raises(IntegrityError):
        finish(django_store)
    assert numbers(alias) == []
    assert claim(django_store, "b") == Won(None)
    Invoice.objects.using(alias).create(number="one")
    finish(django_store, "b")
    assert numbers(alias) == ["one"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_time_limit_in_the_commit_leaves_no_half_open_block(
    alias: str, django_store: TransactionStore, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A signal may come between any two lines. What follows on that thread is committed, and the effect is single."""
    from django.db import ProgrammingError, connections

    from tests.support.django_shop.models import Invoice

    connection = connections[alias]
    commit = connection._commit

    def interrupted() -> None:
        if moment == "after":
            commit()
        raise SoftTimeLimitExceeded

    claim(django_store)
    Invoice.objects.using(alias).create(number="one")
    monkeypatch.setattr(connection, "_commit", interrupted)
    # Django's own tidying up may fail in turn, on a connection that is in a transaction still.
    with pytest.raises((SoftTimeLimitExceeded, ProgrammingError)):
        finish(django_store)
    monkeypatch.setattr(connection, "_commit", commit)
    again = claim(django_store, "b")
    # SQLite's driver commits in that tidying up: the whole of it, as everywhere.
    assert again == (Won(None) if moment == "before" and alias == "postgres" else Done(b"1"))
    if again == Won(None):
        Invoice.objects.using(alias).create(number="one")
        assert finish(django_store, "b")
    assert numbers(alias) == ["one"]
    claim(django_store, "c", key="next")
    Invoice.objects.using(alias).create(number="two")
    assert finish(django_store, "c", key="next")
    assert numbers(alias) == ["one", "two"]


def test_a_block_that_nobody_left_does_not_swallow_later_runs(alias: str, django_store: TransactionStore) -> None:
    """A signal between two lines left it; Celery closes the connection before the next task, and that is begun anew."""
    from django.db import connections, transaction

    from tests.support.django_shop.models import Invoice

    transaction.atomic(using=alias).__enter__()
    connections[alias].close()
    assert claim(django_store) == Won(None)
    Invoice.objects.using(alias).create(number="one")
    assert finish(django_store)
    assert numbers(alias) == ["one"]


def test_inside_a_block_the_block_decides(alias: str, django_store: TransactionStore) -> None:
    """Eager, in a view or a TestCase: marker and effect are a part of that transaction, and go with it."""
    from django.db import transaction

    from tests.support.django_shop.models import Invoice

    with suppress(ZeroDivisionError), transaction.atomic(using=alias):
        claim(django_store)
        Invoice.objects.using(alias).create(number="one")
        finish(django_store)
        assert claim(django_store, "b", task_id="t2") == Done(b"1")
        claim(django_store, "c", key="other")
        Invoice.objects.using(alias).create(number="two")
        django_store.release("other", owner="c")
        assert [row.number for row in Invoice.objects.using(alias).all()] == ["one"]
        raise ZeroDivisionError
    assert numbers(alias) == []
    assert claim(django_store, "d") == Won(None)
    django_store.release(KEY, owner="d")


def test_a_database_without_autocommit_is_refused(alias: str, django_store: TransactionStore) -> None:
    """Nobody would ever commit."""
    from django.db import connections

    connections[alias].set_autocommit(False)
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        claim(django_store)
    connections[alias].rollback()
    connections[alias].set_autocommit(True)


# --- SQLAlchemy ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = str(tmp_path / "shop.sqlite3")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").database()
    made = Shop(url)
    made.create()
    yield made
    made.engine.dispose()


@pytest.fixture
def store(shop: Shop) -> TransactionStore:
    return TransactionStore(SqlAlchemyDatabase(shop.sessions))


def test_the_body_has_the_session_of_its_run(shop: Shop, store: TransactionStore) -> None:
    """From the claim to the end, however that comes; outside there is none, and asking says so."""
    for end in (lambda: finish(store), lambda: store.release(KEY, owner="b")):
        assert current_session() is None
        with pytest.raises(ConfigurationError, match="no session here"):
            _ = store.session
        if claim(store, "a") != Won(None):
            claim(store, "b", key=KEY + "b")
        assert store.session is current_session()
        end() or store.release(KEY + "b", owner="b")
    assert current_session() is None


def test_savepoints_and_flushes_are_the_bodys_own(shop: Shop, store: TransactionStore) -> None:
    claim(store)
    session: Session = store.session
    with session.begin_nested():
        session.add(Invoice(number="kept"))
    with suppress(ZeroDivisionError), session.begin_nested():
        session.add(Invoice(number="undone"))
        session.flush()
        raise ZeroDivisionError
    assert session.scalars(select(Invoice.number)).all() == ["kept"]
    assert finish(store)
    assert shop.effects("") == ["kept"]


def test_a_commit_of_the_body_is_refused(shop: Shop, store: TransactionStore) -> None:
    """At once, in the line that commits: half of the effect would be there, with the marker of the whole."""
    claim(store)
    store.session.add(Invoice(number="one"))
    with pytest.raises(ConfigurationError, match="the body commits"):
        store.session.commit()
    store.release(KEY, owner="a")
    assert shop.effects("") == []
    assert claim(store, "b") == Won(None)
    store.release(KEY, owner="b")


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_a_body_that_ends_its_transaction_is_a_failure(shop: Shop, store: TransactionStore, end: str) -> None:
    """The marker went with it; what the body wrote since would be an effect without one."""
    claim(store)
    session: Session = store.session
    session.add(Invoice(number="one"))
    session.flush()
    getattr(session, end)()
    session.add(Invoice(number="two"))
    with pytest.raises(ConfigurationError, match=r"the marker of .* is gone"):
        finish(store)
    assert shop.effects("") == []
    assert claim(store, "b") == Won(None)
    store.release(KEY, owner="b")


def test_a_session_that_commits_by_itself_is_refused(shop: Shop) -> None:
    """Each statement would be committed alone."""
    sessions = Shop(str(shop.engine.url.database), isolation_level="AUTOCOMMIT").sessions
    if shop.engine.dialect.name == "postgresql":
        url = shop.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        sessions = Shop(url, isolation_level="AUTOCOMMIT").sessions
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        claim(TransactionStore(SqlAlchemyDatabase(sessions)))
    sessions.kw["bind"].dispose()


def test_a_session_with_an_open_transaction_is_refused(shop: Shop) -> None:
    """A scoped one that an earlier task left: what is done in it is another's to commit."""
    scoped = scoped_session(shop.sessions)
    scoped.execute(text("SELECT 1"))
    store = TransactionStore(SqlAlchemyDatabase(scoped))
    with pytest.raises(ConfigurationError, match="open transaction"):
        claim(store)
    scoped.remove()
    claim(store)
    assert scoped() is store.session, "code that uses the scoped session writes in the run's transaction"
    scoped.add(Invoice(number="one"))
    finish(store)
    assert shop.effects("") == ["one"]
    scoped.remove()


def test_listeners_that_begin_transactions_by_hand_change_nothing(tmp_path: Path) -> None:
    """SQLAlchemy's recipe for savepoints on SQLite."""
    shop = Shop(str(tmp_path / "shop.sqlite3"))

    def by_hand(raw: Any, _: Any) -> None:
        raw.isolation_level = None

    event.listen(shop.engine, "connect", by_hand)
    event.listen(shop.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    shop.create()
    store = TransactionStore(SqlAlchemyDatabase(shop.sessions))
    claim(store)
    store.session.add(Invoice(number="one"))
    assert finish(store)
    claim(store, "b", key="other")
    store.session.add(Invoice(number="two"))
    store.release("other", owner="b")
    assert shop.effects("") == ["one"]
    shop.engine.dispose()


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_a_serialization_failure_at_the_commit_is_retried(shop: Shop) -> None:
    """Two runs read what the other writes: one of them fails as a whole, with an error that is transient."""
    url = shop.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    strict = [Shop(url, isolation_level="SERIALIZABLE", poolclass=NullPool) for _ in range(2)]
    stores = [TransactionStore(SqlAlchemyDatabase(each.sessions)) for each in strict]

    sessions = []
    for number, each in enumerate(stores):
        claim(each, key=f"key {number}")
        sessions.append(each.session)
    for number, session in enumerate(sessions):
        session.scalars(select(Invoice.number)).all()
        session.add(Invoice(number=f"of {number}"))
        session.flush()
    assert finish(stores[0], key="key 0")
    with pytest.raises(Exception, match="serialize") as failure:
        finish(stores[1], key="key 1")
    assert is_transient(failure.value)
    assert shop.effects("") == ["of 0"]
    assert claim(stores[1], "b", key="key 1") == Won(None)
    stores[1].session.add(Invoice(number="of 1"))
    assert finish(stores[1], "b", key="key 1")
    assert shop.effects("") == ["of 0", "of 1"]


def test_a_forked_child_leaves_its_parents_connections_alone(shop: Shop, store: TransactionStore) -> None:
    """A pool process finds those in the engine's pool that its worker opened, and opens its own."""
    claim(store)
    finish(store)
    made_after: list[bool] = []
    event.listen(shop.engine, "connect", lambda raw, record: record.info.update(after=True))
    event.listen(shop.engine, "checkout", lambda raw, record, _: made_after.append("after" in record.info))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            claim(store, "b", key="child")
            store.session.add(Invoice(number="of the child"))
            os.write(write, json.dumps([finish(store, "b", key="child"), made_after]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        done, of_child = json.loads(pipe.read())
    os.waitpid(child, 0)
    claim(store, "c", key="parent")
    finish(store, "c", key="parent")
    assert done
    assert shop.effects("") == ["of the child"]
    assert of_child
    assert all(of_child), "its own were made after the fork"
    assert made_after
    assert not any(made_after), "the parent's was made before, and is as good as it was"


# --- opening ---------------------------------------------------------------------------------------------------


def test_the_setting_decides_which_it_is(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """``hardened_database`` names a sessionmaker; without it, Django's alias."""
    import tests.support.sqlalchemy_shop as module

    django_project.configure()
    monkeypatch.setattr(module, "Sessions", shop.sessions, raising=False)
    app = Celery("opening", set_as_current=False)
    opened = open_database(app, Settings(database="tests.support.sqlalchemy_shop:Sessions"))
    assert claim(opened) == Won(None)  # type: ignore[arg-type]
    assert opened.session.get_bind() is shop.engine
    opened.release(KEY, owner="a")
    with pytest.raises(ConfigurationError, match=r"atomic\(using='other'\)"):
        _ = open_database(app, Settings(), using="other").session


@pytest.mark.parametrize("name", ["nowhere:Session", "tests.support.sqlalchemy_shop:Nothing", "tests", "os:sep"])
def test_a_name_that_leads_to_no_sessionmaker_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="hardened_database"):
        open_database(Celery("opening", set_as_current=False), Settings(database=name))


def test_an_alias_that_is_not_there_is_refused() -> None:
    django_project.configure()
    with pytest.raises(ConfigurationError, match="has no such alias"):
        open_database(Celery("opening", set_as_current=False), Settings(), using="nowhere")


def test_busy_is_not_waited_for_inside_of_a_run(store: TransactionStore) -> None:
    """A body that calls its own task eagerly is told at once."""
    claim(store)
    assert isinstance(claim(store, "b"), Busy)
    store.release(KEY, owner="a")
