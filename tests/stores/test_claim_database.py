"""Claims in the project's own database, by Django and by SQLAlchemy, on PostgreSQL and on SQLite."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.idempotency import database
from celery_hardened.idempotency.contract import Answer, Busy, Done, Mismatch, Won
from celery_hardened.idempotency.database import TransactionStore
from celery_hardened.idempotency.database_sql import TABLE
from tests.stores.test_claim_contract import (  # noqa: F401 - run here too, with the fixture `claims` below
    KEY,
    Claims,
    test_a_finish_may_be_repeated,
    test_a_key_that_nobody_has_is_won,
    test_a_message_that_is_done_is_no_mismatch_with_itself,
    test_a_release_may_be_repeated,
    test_a_released_key_is_won_at_once,
    test_arguments_are_compared_only_if_both_tell_them,
    test_done_work_answers_with_its_result,
    test_done_work_is_not_released,
    test_released_work_is_not_done,
)
from tests.support import django_project
from tests.support.ports import free_port
from tests.support.sqlalchemy_shop import Shop
from tests.support.until import until

T = TypeVar("T")

pytest.importorskip("django")

#: Every way there is; for some of them: ``indirect=["place"]``.
PLACES = ["django-postgresql", "django-sqlite", "sqlalchemy-postgresql", "sqlalchemy-sqlite"]


class Threads:
    """A thread for each name: a connection belongs to its thread, and so does a run."""

    def __init__(self) -> None:
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def do(self, name: str, work: Callable[[], T]) -> T:
        if name not in self._threads:
            self._threads[name] = ThreadPoolExecutor(1)
        return self._threads[name].submit(work).result(60)

    def close(self) -> None:
        for name, thread in self._threads.items():
            self.do(name, django_project.close_all)
            thread.shutdown()


@dataclass
class Place:
    """A database with the shop's tables and ours."""

    name: str
    kind: str
    threads: Threads
    make: Callable[[], TransactionStore]
    """A store of its own, as another process has one."""

    write: Callable[[str], None]
    """An effect: within a run, in its transaction."""

    effects: Callable[[str], int]
    """Effects that are committed, seen from outside."""

    execute: Callable[..., list[tuple[Any, ...]]]
    """SQL in a transaction of its own."""


class OwnThreads:
    """Every owner calls the store from a thread of its own."""

    def __init__(self, store: TransactionStore, threads: Threads) -> None:
        self._store = store
        self._threads = threads

    def claim(self, key: str, *, owner: str, **given: Any) -> Answer:
        return self._threads.do(owner, lambda: self._store.claim(key, owner=owner, **given))

    def renew(self, key: str, *, owner: str, lease: float) -> bool:
        return self._store.renew(key, owner=owner, lease=lease)

    def finish(self, key: str, *, owner: str, **given: Any) -> bool:
        return self._threads.do(owner, lambda: self._store.finish(key, owner=owner, **given))

    def release(self, key: str, *, owner: str) -> bool:
        return self._threads.do(owner, lambda: self._store.release(key, owner=owner))


class Transactions(Claims):
    """Claims without a fence: the transaction is one. Where the suite asks for a larger number, it gets one."""

    wins = 0

    def won(self, owner: str, **more: Any) -> int:
        answer = self.claim(owner, **more)
        assert answer == Won(None), answer
        self.wins += 1
        return self.wins


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    threads = Threads()
    name, _, kind = getattr(request, "param", "django-sqlite").partition("-")
    url = request.getfixturevalue("postgres").database() if kind == "postgresql" else None
    if name == "django":
        yield from _by_django(kind, url, threads)
    else:
        yield from _by_sqlalchemy(kind, url or str(tmp_path / "shop.sqlite3"), threads)


def _by_django(kind: str, url: str | None, threads: Threads) -> Iterator[Place]:
    from django.db import connections

    from celery_hardened.idempotency.database_django import DjangoDatabase

    django_project.configure()
    if url is not None:
        django_project.add_postgres(url)
    alias = "postgres" if url else "default"
    from tests.support.django_shop.models import Invoice

    def execute(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with connections[alias].cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall()) if cursor.description else []

    execute(f"DELETE FROM {TABLE}")
    Invoice.objects.using(alias).all().delete()
    yield Place(
        "django",
        kind,
        threads,
        make=lambda: TransactionStore(DjangoDatabase(alias)),
        write=lambda number: Invoice.objects.using(alias).create(number=number),
        effects=lambda number: Invoice.objects.using(alias).filter(number=number).count(),
        execute=execute,
    )
    threads.close()
    execute(f"DELETE FROM {TABLE}")
    Invoice.objects.using(alias).all().delete()
    django_project.close_all()
    django_project.forget("postgres")


def _by_sqlalchemy(kind: str, where: str, threads: Threads) -> Iterator[Place]:
    from celery_hardened.idempotency.database_sqlalchemy import SqlAlchemyDatabase, current_session
    from tests.support.sqlalchemy_shop import Invoice

    shop = Shop(where)
    shop.create()

    def write(number: str) -> None:
        session = current_session()
        assert session is not None
        session.add(Invoice(number=number))

    def execute(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with shop.engine.begin() as connection:
            found = connection.exec_driver_sql(sql, parameters or None)
            return [tuple(row) for row in found] if found.returns_rows else []

    stores: list[TransactionStore] = []

    def make() -> TransactionStore:
        stores.append(TransactionStore(SqlAlchemyDatabase(shop.sessions)))
        return stores[-1]

    yield Place(
        "sqlalchemy",
        kind,
        threads,
        make=make,
        write=write,
        effects=lambda number: len(shop.effects(number)),
        execute=execute,
    )
    for transaction in [run.transaction for store in stores for run in store._runs.values()]:
        if transaction is not None:
            transaction.rollback()
    threads.close()
    shop.engine.dispose()


@pytest.fixture
def claims(place: Place) -> Claims:
    return Transactions(OwnThreads(place.make(), place.threads), lambda: None, lambda: 0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Whatever takes a place or claims runs in every place, unless it names its own."""
    named = any("place" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "place" in metafunc.fixturenames and not named:
        metafunc.parametrize("place", PLACES, indirect=True)


def given(**more: Any) -> dict[str, Any]:
    return {"task_id": "t1", "fingerprint": "f1", "lease": 30.0, "lifetime": 600.0, **more}


def run(place: Place, store: TransactionStore, owner: str = "a", *, key: str = KEY) -> Answer:
    """A whole run in this thread."""
    answer = store.claim(key, owner=owner, **given())
    if isinstance(answer, Won):
        place.write(key)
        assert store.finish(key, owner=owner, result=b"1", lifetime=600.0)
    return answer


# --- marker and effect ---------------------------------------------------------------------------------------


def test_marker_and_effect_are_seen_together(place: Place) -> None:
    """Nobody sees either before the finish, and both after it."""
    store = place.make()
    assert store.claim(KEY, owner="a", **given()) == Won(None)
    place.write(KEY)
    seen = lambda: (place.effects(KEY), place.execute(f"SELECT count(*) FROM {TABLE}")[0][0])  # noqa: E731
    assert place.threads.do("outside", seen) == (0, 0)
    assert store.finish(KEY, owner="a", result=b"1", lifetime=600.0)
    assert place.threads.do("outside", seen) == (1, 1)


def test_a_release_undoes_the_effect(place: Place) -> None:
    store = place.make()
    store.claim(KEY, owner="a", **given())
    place.write(KEY)
    assert store.release(KEY, owner="a")
    assert place.effects(KEY) == 0
    assert run(place, store, "b") == Won(None)
    assert place.effects(KEY) == 1


def test_runs_of_one_thread_follow_each_other(place: Place) -> None:
    """A pool's thread runs one after the other; each is committed by itself."""
    store = place.make()
    for number in range(5):
        assert run(place, store, f"owner {number}", key=f"key {number}") == Won(None)
        assert place.threads.do("outside", lambda number=number: place.effects(f"key {number}")) == 1
    assert run(place, store, "again", key="key 3") == Done(b"1")


def test_threads_that_run_the_same_key_have_one_effect(place: Place) -> None:
    """Eight threads of two processes' stores, until each has an answer."""
    stores = [place.make(), place.make()]

    def work(number: int) -> str:
        while isinstance(answer := run(place, stores[number % 2], f"owner {number}"), Busy):
            time.sleep(0.01)
        django_project.close_all()
        return type(answer).__name__

    with ThreadPoolExecutor(8) as pool:
        answers = sorted(pool.map(work, range(8)))
    assert answers == ["Done"] * 7 + ["Won"]
    assert place.effects(KEY) == 1


def test_other_arguments_are_a_mismatch(place: Place) -> None:
    """Once the work is done: while it runs, nobody can see what for."""
    store = place.make()
    run(place, store)
    assert store.claim(KEY, owner="b", **given(task_id="t2", fingerprint="f2")) == Mismatch()
    assert store.claim(KEY, owner="c", **given()) == Done(b"1")


def test_what_ended_for_another_owner_is_not_ended_by_this_one(claims: Claims) -> None:
    claims.won("a")
    assert (claims.finish("b"), claims.release("b")) == (False, False)
    assert claims.finish("a")


# --- busy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["django-postgresql", "sqlalchemy-postgresql"], indirect=True)
def test_a_run_elsewhere_is_busy_at_once(place: Place) -> None:
    """And whether it is a run of the asker's own message is told: that one must never be skipped."""
    holder, asker = place.make(), place.make()
    place.threads.do("holder", lambda: holder.claim(KEY, owner="a", **given(task_id="t1")))
    begun = time.monotonic()
    assert asker.claim(KEY, owner="b", **given(task_id="t2")) == Busy(database.BUSY_FOR, same=False)
    assert asker.claim(KEY, owner="c", **given(task_id="t1")) == Busy(database.BUSY_FOR, same=True)
    assert time.monotonic() - begun < 10
    assert run(place, asker, "d", key="another key") == Won(None)


@pytest.mark.parametrize("place", ["django-postgresql", "sqlalchemy-postgresql"], indirect=True)
def test_a_lost_machine_holds_its_key_for_about_a_lease(place: Place) -> None:
    """While a run lasts, the server asks its machine for a sign of life; by itself it would do so after two hours."""
    store = place.make()
    asked = "SELECT current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'), "
    asked += "current_setting('tcp_keepalives_count'), current_setting('tcp_user_timeout')"
    assert store.claim(KEY, owner="a", **given(lease=30.0)) == Won(None)
    transaction = store._runs[KEY].transaction
    assert transaction is not None
    row = transaction.row(asked)
    assert row == ("15", "5", "3", "30000"), "given up after fifteen seconds and three questions"
    store.release(KEY, owner="a")
    assert place.execute(asked) != [row], "and not in other transactions of the connection"


@pytest.mark.parametrize("place", ["django-sqlite", "sqlalchemy-sqlite"], indirect=True)
def test_another_writer_is_busy_soon(place: Place) -> None:
    """SQLite has one write lock and does not say who has it, so the asker must wait and not be skipped. Not for
    the connection's own patience, which is a minute here; and that is as it was afterwards."""
    holder, asker = place.make(), place.make()
    if place.name == "django":
        from django.db import connections

        connections["default"].transaction_mode = None  # as most projects have it
    else:
        from sqlalchemy import event

        asker._database._factory.kw["bind"].dispose()  # type: ignore[attr-defined]
        event.listen(
            asker._database._factory.kw["bind"],  # type: ignore[attr-defined]
            "connect",
            lambda raw, _: raw.execute("PRAGMA busy_timeout = 60000"),
        )
    place.threads.do("holder", lambda: holder.claim(KEY, owner="a", **given()))
    begun = time.monotonic()
    assert asker.claim("another key", owner="b", **given(task_id="t2")) == Busy(database.BUSY_FOR, same=True)
    assert time.monotonic() - begun < 20
    assert place.execute("PRAGMA busy_timeout") == [(60_000,)]
    place.threads.do("holder", lambda: holder.release(KEY, owner="a"))
    assert run(place, asker, "b") == Won(None)
    if place.name == "django":
        assert connections["default"].transaction_mode is None
        connections["default"].transaction_mode = "IMMEDIATE"


def test_a_task_that_calls_itself_is_busy(place: Place) -> None:
    """The same key, within its own run: in one connection no lock would keep them apart."""
    store = place.make()
    assert store.claim(KEY, owner="a", **given(task_id="t1")) == Won(None)
    assert store.claim(KEY, owner="b", **given(task_id="t2")) == Busy(database.BUSY_FOR, same=False)
    assert store.claim(KEY, owner="a", **given(task_id="t1")) == Won(None), "asked again by the same run"
    place.write(KEY)
    assert store.finish(KEY, owner="a", result=None, lifetime=600.0)
    assert place.effects(KEY) == 1


# --- how long it is remembered ---------------------------------------------------------------------------------


def test_finished_work_is_forgotten_after_its_lifetime(place: Place) -> None:
    """By the database's clock, whether it was swept or not."""
    store = place.make()
    store.claim(KEY, owner="a", **given())
    store.finish(KEY, owner="a", result=b"1", lifetime=0.05)

    def forgotten() -> bool:
        won = isinstance(store.claim(KEY, owner="b", **given()), Won)
        store.release(KEY, owner="b")
        return won

    until(forgotten, within=10, what="the work to be forgotten")


def test_a_sweep_deletes_what_nobody_can_ask_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches, all of them, and nothing else."""
    monkeypatch.setattr(database, "SWEEP_BATCH", 2)
    store = place.make()
    for number in range(5):
        store.claim(f"old {number}", owner="a", **given())
        store.finish(f"old {number}", owner="a", result=None, lifetime=0.0)
    run(place, store)
    until(lambda: place.execute("SELECT 1"), what="the next millisecond")
    assert store.sweep() == 5
    assert place.execute(f"SELECT key FROM {TABLE}") == [(KEY,)]


def test_a_marker_that_was_committed_in_the_middle_is_none(place: Place) -> None:
    """Somebody outwitted the transaction and then died: the work was not finished, so it is done."""
    later = "'2999-01-01 00:00:00+00'" if place.kind == "postgresql" else "'2999-01-01 00:00:00'"
    place.execute(
        f"INSERT INTO {TABLE} (key, fingerprint, task_id, finished, created_at, expires_at) "
        f"VALUES ('{KEY}', 'f1', 't1', FALSE, {later}, {later})"
    )
    assert run(place, place.make()) == Won(None)
    assert place.effects(KEY) == 1


# --- trouble -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["django-postgresql", "sqlalchemy-postgresql"], indirect=True)
def test_a_connection_that_was_cut_while_idle_is_made_anew(place: Place) -> None:
    """Nothing was done on it yet."""
    store = place.make()
    assert run(place, store) == Won(None)
    _cut_all(place)
    assert run(place, store, "b") == Done(b"1")


@pytest.mark.parametrize("place", ["django-postgresql", "sqlalchemy-postgresql"], indirect=True)
def test_a_connection_that_was_cut_in_the_body_is_the_tasks_failure(place: Place) -> None:
    """In the driver's own words, which the retry table knows; nothing was committed, and the next run does it."""
    from celery_hardened.retry.transient import is_transient

    store = place.make()
    store.claim(KEY, owner="a", **given())
    place.write(KEY)
    _cut_all(place)
    with pytest.raises(Exception, match=r"terminat|closed|lost") as failure:
        store.finish(KEY, owner="a", result=b"1", lifetime=600.0)
    assert is_transient(failure.value), repr(failure.value)
    assert store.release(KEY, owner="a") is False
    assert run(place, store, "b") == Won(None)
    assert place.effects(KEY) == 1


def _cut_all(place: Place) -> None:
    def cut() -> None:
        place.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    place.threads.do("outside", cut)


def test_a_table_that_was_never_made_is_said(place: Place) -> None:
    """With what makes it."""
    if place.name == "django":
        from django.core.management import call_command

        alias = "postgres" if place.kind == "postgresql" else "default"
        call_command("migrate", "celery_hardened", "zero", database=alias, verbosity=0)
        hint = "manage.py migrate celery_hardened"
    else:
        place.execute(f"DROP TABLE {TABLE}")
        hint = "create_tables"
    try:
        with pytest.raises(ConfigurationError, match=hint):
            place.make().claim(KEY, owner="a", **given())
        with pytest.raises(ConfigurationError, match=hint):
            place.make().sweep()
    finally:
        if place.name == "django":
            call_command("migrate", "celery_hardened", database=alias, verbosity=0)


def test_a_server_that_is_away_is_said(postgres: Any) -> None:
    """By Django and by SQLAlchemy, so that the task waits: ``StoreUnavailableError``."""
    from celery_hardened.idempotency.database_django import DjangoDatabase
    from celery_hardened.idempotency.database_sqlalchemy import SqlAlchemyDatabase

    url = f"postgresql://test@127.0.0.1:{free_port()}/nothing"
    from django.db import connections

    from tests.support import django_settings

    django_project.configure()
    known: dict[str, Any] = connections.settings
    known["away"] = django_settings.postgres(url)
    connections.configure_settings(known)
    try:
        for way in (DjangoDatabase("away"), SqlAlchemyDatabase(Shop(url).sessions)):
            for step in (lambda s: s.claim(KEY, owner="a", **given()), lambda s: s.sweep()):
                with pytest.raises(StoreUnavailableError, match="the project's database"):
                    step(TransactionStore(way))
    finally:
        django_project.forget("away")
