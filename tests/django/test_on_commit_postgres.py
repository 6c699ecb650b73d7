"""Publish on commit on PostgreSQL: what a server does otherwise than a file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from celery import Celery
from django.db import DatabaseError, IntegrityError, connections, transaction

from celery_hardened.errors import NotSentError
from tests.support import django_project
from tests.support.django_shop.models import Invoice, Unique
from tests.support.postgres import Postgres
from tests.support.queued import queued_ids

USING = "postgres"


@pytest.fixture(autouse=True)
def database(postgres: Postgres) -> Iterator[str]:
    """A database of the test's own, as the alias ``postgres``."""
    url = postgres.database()
    django_project.add_postgres(url)
    yield url
    django_project.forget(USING)


def test_the_row_is_there_when_the_message_is(app: Celery, charge: Any, database: str) -> None:
    """H129: whoever reads the message finds the row, on a connection of its own."""
    seen: list[int] = []
    sender = app.amqp.send_task_message

    def look(*args: Any, **options: Any) -> Any:
        with psycopg.connect(database) as other:
            seen.append(len(other.execute("SELECT 1 FROM django_shop_invoice").fetchall()))
        return sender(*args, **options)

    app.amqp.__dict__["send_task_message"] = look
    with transaction.atomic(using=USING):
        charge.delay(Invoice.objects.using(USING).create(number="1").pk)
    assert seen == [1]


def test_a_constraint_that_is_checked_by_the_commit(app: Celery, charge: Any) -> None:
    """COMMIT itself is refused: nothing is sent."""
    with pytest.raises(IntegrityError), transaction.atomic(using=USING):
        Unique.objects.using(USING).create(number="1", parent_id=999_999)
        result = charge.delay(1)
    assert queued_ids(app) == []
    with pytest.raises(NotSentError) as refused:
        result.get(timeout=1)
    assert refused.value.rolled_back


def test_a_statement_that_fails_aborts_the_transaction(app: Celery, charge: Any) -> None:
    """On a server the first error aborts all; in a savepoint it aborts the savepoint."""
    with transaction.atomic(using=USING):
        kept = charge.delay("kept")
        with pytest.raises(IntegrityError), transaction.atomic(using=USING):
            charge.delay("dropped")
            for _ in range(2):
                Unique.objects.using(USING).create(number="1")
    assert queued_ids(app) == [kept.id]


def test_a_connection_that_the_server_ends_sends_nothing(app: Celery, charge: Any) -> None:
    """The server kills the session before COMMIT: nothing was committed, nothing is sent."""
    with pytest.raises(DatabaseError), transaction.atomic(using=USING):
        Invoice.objects.using(USING).create(number="1")
        charge.delay(1)
        connection = connections[USING]
        with psycopg.connect(connection.connection.info.dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (connection.connection.info.backend_pid,))
        connection.cursor().execute("SELECT 1")
    connections[USING].close()
    with transaction.atomic(using=USING):
        Invoice.objects.using(USING).create(number="2")
    assert queued_ids(app) == []


def test_two_kinds_of_databases(app: Celery, charge: Any) -> None:
    """PostgreSQL and SQLite open together: the last commit sends."""
    with transaction.atomic(using=USING):
        with transaction.atomic():
            result = charge.delay(1)
        assert queued_ids(app) == []
    assert queued_ids(app) == [result.id]


def test_threads_commit_for_themselves(app: Celery, charge: Any) -> None:
    """Eight threads, each with its own connection; every second rolls back, and only the others' tasks are sent."""
    kept: list[str] = []

    def run(number: int) -> None:
        try:
            with transaction.atomic(using=USING):
                result = charge.delay(Invoice.objects.using(USING).create(number=str(number)).pk)
                if number % 2:
                    transaction.set_rollback(True, using=USING)
                else:
                    kept.append(result.id)
        finally:
            django_project.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(queued_ids(app)) == sorted(kept)
    assert len(kept) == 4
