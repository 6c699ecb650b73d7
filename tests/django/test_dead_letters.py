"""Dead letters in the project's database: in no transaction of anybody's, by real workers, and what is refused."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery import Celery
from django.db import connections, transaction

from celery_hardened import Hardening, harden
from celery_hardened.contrib.django.dead_letters import outside, retain
from celery_hardened.contrib.django.dead_letters.retain import Retaining
from celery_hardened.contrib.django.dead_letters.store import DjangoDeadLetterStore
from celery_hardened.contrib.django.models import DeadLetterRow
from celery_hardened.dead_letter.contract import DeadLetterStore, Query
from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from tests.fixtures.processes import LoadProject, StartWorker
from tests.stores.letters import ROOMY, letter, listed, redriven
from tests.support import django_project, django_settings
from tests.support.ports import free_port
from tests.support.until import until

ALIASES = ["default", "postgres"]


@pytest.fixture
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of the project, with empty tables of ours."""
    name = getattr(request, "param", "postgres")
    if name == "postgres":
        url = request.getfixturevalue("postgres").database()
        django_project.add_postgres(url)
        request.node.postgres_url = url
    yield name
    django_project.empty(name, "celery_hardened")
    django_project.close_all()
    if name == "postgres":
        django_project.forget(name)


@pytest.fixture
def store(alias: str) -> DeadLetterStore:
    return DjangoDeadLetterStore(alias, retention=ROOMY)


def test_a_letter_outlives_the_transaction_around_it(alias: str, store: DeadLetterStore) -> None:
    """The work is rolled back, its letter is not."""
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
        assert store.put(one := letter())
        assert listed(store) == [one.id], "and whoever asks inside sees it"
        raise ZeroDivisionError
    assert listed(store) == [one.id]


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_letter_outlives_a_transaction_without_a_block(alias: str, store: DeadLetterStore, everywhere: bool) -> None:
    """Autocommit may be switched off, by the caller or in DATABASES; the caller's rollback is its own."""
    connection = connections[alias]
    connection.ensure_connection()
    connection.settings_dict["AUTOCOMMIT"] = not everywhere
    connection.set_autocommit(False)
    try:
        assert store.put(one := letter())
        connection.rollback()
    finally:
        connection.settings_dict["AUTOCOMMIT"] = True
        connection.set_autocommit(True)
    assert listed(store) == [one.id]


@pytest.mark.parametrize("alias", ALIASES, indirect=True)
def test_a_connection_is_left_as_django_would_leave_it(alias: str, store: DeadLetterStore) -> None:
    """Closed where it was not open and is not to be kept; open where it was; kept where CONN_MAX_AGE says so."""
    connection = connections[alias]
    connection.close()
    store.put(letter())
    assert connection.connection is None
    connection.ensure_connection()
    store.put(letter())
    assert connection.connection is not None
    connection.close()
    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    connection.settings_dict["CONN_MAX_AGE"] = 60
    try:
        store.put(letter())
        assert connection.connection is not None
    finally:
        connection.settings_dict["CONN_MAX_AGE"] = 0


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_letters_of_one_millisecond_are_told_apart(
    alias: str, store: DeadLetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself would call them equally old: one that came later would go with those that somebody looked at."""
    clock = itertools.count(time.time_ns(), 1000)
    monkeypatch.setattr(outside, "time", SimpleNamespace(time_ns=lambda: next(clock)))
    ids = [f"{name}-{uuid4().hex}" for name in "zay"]
    for one in ids:
        assert store.put(replace(letter(), id=one))
    assert listed(store) == ids[::-1], "the newest first"
    first, seen, last = (store.get(one).stored_at for one in ids)
    assert 0 < last - first < 0.0009
    assert listed(store, until=seen) == ids[1::-1]


def test_a_database_that_is_away(alias: str) -> None:
    """It is said so, as of every store; the store works again when the database does."""
    known = connections.settings
    known["away"] = {**django_settings.postgres(f"postgresql://nobody:secret@127.0.0.1:{free_port()}/x")}
    connections.configure_settings(known)
    try:
        with pytest.raises(StoreUnavailableError, match="writing a dead letter failed") as raised:
            DjangoDeadLetterStore("away", retention=ROOMY).put(letter())
        assert "secret" not in str(raised.value)
        assert str(raised.value).endswith("Check the database 'away' of DATABASES.")
    finally:
        django_project.forget("away")


def test_a_database_without_our_tables(alias: str, store: DeadLetterStore) -> None:
    """The error says what to run."""
    with connections[alias].cursor() as cursor:
        cursor.execute("ALTER TABLE celery_hardened_dead_letter RENAME TO gone")
    try:
        with pytest.raises(StoreUnavailableError, match=r"manage\.py migrate celery_hardened"):
            store.put(letter())
    finally:
        with connections[alias].cursor() as cursor:
            cursor.execute("ALTER TABLE gone RENAME TO celery_hardened_dead_letter")


def test_what_cannot_be_is_refused_at_start() -> None:
    """An alias that there is not."""
    app = Celery("x", broker="memory://", set_as_current=False)
    app.conf.hardened_dead_letter_store = "django:nowhere"
    with pytest.raises(ConfigurationError, match="DATABASES has 'default'"):
        Hardening.expect(harden(app)).dead_letters  # noqa: B018 - made when it is asked for
    app.close()


# --- many at once ---------------------------------------------------------------------------------------------------

#: How many wait for a lock.
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.mark.parametrize("what", ["swept", "deleted"])
def test_a_letter_whose_predecessor_is_dropped_meanwhile(
    alias: str,
    store: DeadLetterStore,
    what: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both take the locks of the predecessor and of the totals in one order: neither is ended for a deadlock."""
    store.put(before := letter())
    store.begin_redrive([before.id], token="t", by="ann", why="", lease=30.0)
    store.finish_redrive([before.id], token="t")
    if what == "swept":
        DeadLetterRow.objects.using(alias).update(expires=1)
    add, answers, looks = Retaining._add, {}, psycopg.connect(request.node.postgres_url, autocommit=True)

    def late(self: Retaining, **numbers: int) -> int:
        if threading.current_thread() is drops:  # it holds the row, and is about to lock the totals
            puts.start()
            until(lambda: looks.execute(WAITING).fetchone() == (1,), within=30, what="the other to wait for a lock")
        return add(self, **numbers)

    def run(name: str, work: Callable[[], Any]) -> None:
        try:
            answers[name] = work()
        except StoreUnavailableError as problem:
            answers[name] = problem
        finally:
            connections.close_all()

    drop = store.sweep if what == "swept" else lambda: store.delete(before.id)
    drops = threading.Thread(target=run, args=("drops", drop))
    puts = threading.Thread(target=run, args=("puts", lambda: store.put(redriven(before))))
    monkeypatch.setattr(Retaining, "_add", late)
    with looks:
        drops.start()
        drops.join(60)
        puts.join(60)
    assert answers == {"drops": 1, "puts": True}
    assert store.stats().open == 1


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_a_large_bound_for_each_task_is_looked_at_now_and_then(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To count all open letters takes long: one write in some does, and drops what is over by then; a sweep always."""
    monkeypatch.setattr(retain, "_PARTS", 2)
    draws: list[int] = []
    monkeypatch.setattr(retain.random, "randrange", lambda end: draws.append(end) or len(draws) % end)
    store = DjangoDeadLetterStore(alias, retention=replace(ROOMY, max_count_per_task=8))
    counted: list[str] = []

    def note(execute: Any, statement: str, *more: Any) -> Any:
        if "GROUP BY" in statement:
            counted.append(statement)
        return execute(statement, *more)

    connections[alias].ensure_connection()
    seen = []
    with connections[alias].execute_wrapper(note):
        for _ in range(30):
            store.put(letter())
            seen.append(store.count(Query()))
        assert len(counted) == 22 // 4
        assert max(seen) == 8 + 4 - 1, "and what has come is dropped at once"
        store.sweep()
        assert len(counted) == 22 // 4 + 1
    assert store.count(Query()) == 8
    assert set(draws) == {4}


def test_no_more_letters_go_unseen_than_a_write_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the bound is: what one write drops at most is more than what comes between two looks."""
    draws: list[int] = []
    monkeypatch.setattr(retain.random, "randrange", lambda end: draws.append(end) or 1)
    monkeypatch.setattr(Retaining, "_totals", lambda _: retain.DeadLetterTotals(letters=10**9))
    for bound in (1, 1999, 100_000, 10**8):
        retaining = Retaining("default", replace(ROOMY, max_count_per_task=bound))
        monkeypatch.setattr(Retaining, "_rows", lambda _: retain.DeadLetterRow.objects.none())
        retaining._drop_of_tasks("x", 100)
    assert draws == [1, 1, 50, 50]


# --- real workers ---------------------------------------------------------------------------------------------------

PROJECT = dedent(
    """
    import os

    import django
    from celery import Celery

    from celery_hardened import HardenedTask, harden, idempotent
    from tests.support import django_settings

    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        django_settings.DATABASES["default"] = django_settings.DATABASES[os.environ["WHERE"]]
        django.setup()

    app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
    app.conf.update(
        task_default_queue=os.environ["QUEUE"],
        hardened_redis_url=os.environ["RECORDS_URL"],
        hardened_key_prefix=os.environ["KEY_PREFIX"],
        hardened_dead_letter_store=os.environ.get("LETTERS", "memory"),
        hardened_max_retries=0,
    )
    harden(app)


    @app.task(base=HardenedTask)
    def charge(invoice):
        if not os.path.exists(os.environ["GATEWAY"]):
            raise ValueError("the gateway is broken")
        return invoice


    @app.task(base=HardenedTask)
    @idempotent("invoice", store="database")
    def book(invoice):
        from tests.support.django_shop.models import Invoice

        Invoice.objects.create(number=str(invoice))
        if not os.path.exists(os.environ["GATEWAY"]):
            raise ValueError("the gateway is broken")
        return invoice
    """
)


@pytest.mark.integration
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("alias", ALIASES, indirect=True)
def test_letters_of_workers_are_redriven(
    alias: str,
    pool: str,
    request: pytest.FixtureRequest,
    start_worker: StartWorker,
    load_project: LoadProject,
    tmp_path: Path,
) -> None:
    """A task that fails, inside a transaction of the same database too, leaves a letter there, and is redriven."""
    gateway = tmp_path / "gateway"
    url = getattr(request.node, "postgres_url", None)
    env = {
        **django_project.environment(postgres_url=url),
        "WHERE": alias,
        "LETTERS": "django",
        "GATEWAY": str(gateway),
    }
    start_worker(PROJECT, pool=pool, env=env)
    project = load_project(PROJECT)
    store = DjangoDeadLetterStore(alias, retention=ROOMY)
    for name in ("charge", "book"):
        with pytest.raises(ValueError, match="gateway is broken"):
            getattr(project, name).delay(7).get(timeout=60)
    assert sorted(one.letter.task for one in store.find(Query()).letters if one.letter.task) == [
        "proj.book",
        "proj.charge",
    ]
    gateway.touch()
    hardening = Hardening.expect(project.app)
    hardening.__dict__["dead_letters"] = store
    report = hardening.redrive(Query(), by="ann", why="the gateway works")
    assert report.sent == 2
    until(lambda: store.stats().by_state == {"resolved": 2}, within=60, what="both to be resolved")
