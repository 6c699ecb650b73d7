"""What the admin's pages ask of a table of many letters is found by an index, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from django.db import connections

from celery_hardened.contrib.django.dead_letters.rows import row_of
from celery_hardened.contrib.django.dead_letters.store import DjangoDeadLetterStore
from celery_hardened.contrib.django.models import DeadLetterRow
from celery_hardened.dead_letter.contract import Query
from tests.stores.letters import ROOMY, letter
from tests.support import django_project

TABLE = "celery_hardened_dead_letter"


@pytest.fixture(params=["default", "postgres"], scope="module")
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with two thousand letters, a tenth of them closed."""
    name = str(request.param)
    if name == "postgres":
        django_project.add_postgres(request.getfixturevalue("postgres").database())
    django_project.empty(name, "celery_hardened")
    DeadLetterRow.objects.using(name).bulk_create(
        row_of(
            letter(task=f"shop.t{n % 7}", queue=f"q{n % 3}", fingerprint=f"f{n % 11}", error_type=f"e{n % 5}"),
            state="resolved" if n % 10 == 0 else "dead",
            at=1_000_000 * n,
            now=10**12,
            age=3600.0,
            audit=(),
        )
        for n in range(2000)
    )
    with connections[name].cursor() as cursor:
        cursor.execute("ANALYZE")
    yield name
    django_project.empty(name, "celery_hardened")
    django_project.close_all()
    if name == "postgres":
        django_project.forget(name)


def plans(alias: str, work: Callable[[DjangoDeadLetterStore], Any]) -> list[str]:
    """How the database finds what *work* asks of the table of letters, where any way by an index is the cheapest."""
    asked: list[tuple[str, Any]] = []

    def wrapper(execute: Any, statement: str, params: Any, *rest: Any) -> Any:
        asked.append((statement, params))
        return execute(statement, params, *rest)

    with connections[alias].execute_wrapper(wrapper):
        work(DjangoDeadLetterStore(alias, retention=ROOMY))
    found = []
    sqlite = connections[alias].vendor == "sqlite"
    with connections[alias].cursor() as cursor:
        if not sqlite:
            cursor.execute("SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off")
        for statement, params in asked:
            if f'FROM "{TABLE}"' not in statement:
                continue
            cursor.execute(f"EXPLAIN {'QUERY PLAN ' if sqlite else ''}{statement}", params)
            found.append(f"{statement}\n" + "\n".join(str(row[-1]) for row in cursor.fetchall()))
        if not sqlite:
            cursor.execute("RESET ALL")
    assert found
    return found


def by_index(plan: str) -> bool:
    """Is no row read that an index could have left out?"""
    return "Seq Scan" not in plan and not any(
        line.startswith(f"SCAN {TABLE}") and "INDEX" not in line for line in plan.splitlines()
    )


LISTS = [
    Query(),
    Query(task="shop.t1"),
    Query(queue="q1"),
    Query(reason="permanent"),
    Query(fingerprint="f1"),
    Query(error_type="e1"),
    Query(state="resolved"),
    Query(since=100.0, until=900.0),
    Query(task="shop.t1", since=100.0),
]


@pytest.mark.parametrize("query", LISTS, ids=range(len(LISTS)))
def test_a_page_of_the_list_is_read_in_order(alias: str, query: Query) -> None:
    """The first page, a later one, and the ids of all: by an index that has them in order, so nothing is sorted."""

    def work(store: DjangoDeadLetterStore) -> None:
        page = store.find(query, limit=50)
        assert page.cursor
        store.find(query, limit=50, cursor=page.cursor)
        list(islice(store.ids(query), 5))

    for plan in plans(alias, work):
        assert by_index(plan), plan
        assert "TEMP B-TREE" not in plan, plan
        assert "Sort" not in plan, plan


@pytest.mark.parametrize("query", LISTS, ids=range(len(LISTS)))
def test_a_count_reads_an_index(alias: str, query: Query) -> None:
    """Not the letters."""
    for plan in plans(alias, lambda store: store.count(query)):
        assert by_index(plan), plan


def test_the_overview_reads_indexes(alias: str) -> None:
    """Each of its counts by an index of its own; the envelopes of a hundred thousand letters are not touched."""
    for plan in plans(alias, lambda store: store.stats()):
        assert by_index(plan), plan
        if connections[alias].vendor == "sqlite":
            assert "COVERING INDEX" in plan, plan
