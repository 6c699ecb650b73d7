"""Dead letters in Django's admin with 100,000 of them: seconds and statements of each page, on SQLite and PostgreSQL.

::

    python -m benchmarks.admin_letters [letters]

Fills the tests' SQLite file and a private PostgreSQL, asks each page through Django's own handlers, and throws both
away. The slowest of some repeats is printed beside the median, because a page has one chance.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from benchmarks.dead_letters import make_letter
from celery_hardened import Hardening, harden
from celery_hardened.dead_letter.contract import Query, Retention
from tests.support import django_project
from tests.support.postgres import Postgres

LETTERS = 100_000
REPEATS = 5

_DAY = 86_400.0
_KEEP = Retention(
    max_age=365 * _DAY, max_count=1 << 20, max_count_per_task=1 << 20, max_bytes=1 << 40, closed_max_age=365 * _DAY
)
_BASE = "/admin/celery_hardened/deadletter/"


def fill(alias: str, number: int) -> Any:
    """*number* letters, a tenth of them closed, over thirty days; the store they are in."""
    from django.db import connections

    from celery_hardened.contrib.django.dead_letters.rows import row_of
    from celery_hardened.contrib.django.dead_letters.store import DjangoDeadLetterStore
    from celery_hardened.contrib.django.models import DeadLetterRow, DeadLetterTotals

    dice = random.Random(7)
    now = round(time.time() * 1e6)
    batch: list[Any] = []
    size = 0
    for place in range(number):
        at = now - round(30 * _DAY * 1e6 * (number - place) / number)
        state: Any = "resolved" if dice.random() < 0.1 else "dead"
        batch.append(row_of(make_letter(dice), state=state, at=at, now=now, age=_KEEP.max_age, audit=()))
        if len(batch) == 1000 or place == number - 1:
            DeadLetterRow.objects.using(alias).bulk_create(batch)
            size += sum(row.bytes for row in batch)
            batch = []
    DeadLetterTotals.objects.using(alias).update_or_create(pk=1, defaults={"letters": number, "bytes": size})
    with connections[alias].cursor() as cursor:
        cursor.execute("VACUUM ANALYZE" if alias == "postgres" else "ANALYZE")  # as autovacuum does by itself
    return DjangoDeadLetterStore(alias, retention=_KEEP)


@contextmanager
def counted(*aliases: str) -> Iterator[list[str]]:
    """Statements on *aliases* meanwhile."""
    from contextlib import ExitStack

    from django.db import connections

    seen: list[str] = []

    def wrapper(execute: Any, statement: str, *rest: Any) -> Any:
        seen.append(statement)
        return execute(statement, *rest)

    with ExitStack() as stack:
        for alias in aliases:
            stack.enter_context(connections[alias].execute_wrapper(wrapper))
        yield seen


def measure(name: str, ask: Callable[[], Any], *aliases: str) -> None:
    took = []
    for _ in range(REPEATS):
        with counted(*aliases) as statements:
            begun = time.perf_counter()
            answer = ask()
            took.append(time.perf_counter() - begun)
        assert answer.status_code == 200, answer
    line = f"{name:36} {statistics.median(took):7.3f} s median {max(took):7.3f} s most {len(statements):4} statements"
    print(line)


def pages(client: Any, store: Any, alias: str) -> None:
    from django.contrib.admin.utils import quote

    aliases = {alias, "default"}
    middle = store.find(Query(), limit=1).letters[0].stored_at - 15 * _DAY
    found = store.find(Query(until=middle), limit=1)
    one = found.letters[0].letter
    listed = f"{_BASE}list/"
    asked: dict[str, Any] = {
        "overview": lambda: client.get(_BASE),
        "list": lambda: client.get(listed),
        "list, from the middle on": lambda: client.get(listed, {"cursor": found.cursor}),
        "list of the largest task": lambda: client.get(listed, {"task": "shop.tasks.task_0"}),
        "list of one cause": lambda: client.get(listed, {"fingerprint": one.fingerprint}),
        "list of a queue and a reason": lambda: client.get(listed, {"queue": "queue-1", "reason": "timeout"}),
        "list of an error, of one day": lambda: client.get(listed, {"error_type": "builtins.KeyError", "since": "1d"}),
        "list of closed ones": lambda: client.get(listed, {"state": "resolved"}),
        "search for a task id": lambda: client.get(listed, {"q": one.task_id}),
        "a letter": lambda: client.get(f"{_BASE}{quote(one.id)}/change/"),
        "redrive all that match: the question": lambda: client.post(f"{_BASE}redrive/", {"which": "all"}),
    }
    for name, ask in asked.items():
        measure(name, ask, *aliases)


def bulk(client: Any, app: Celery, store: Any, alias: str) -> None:
    """A dry run of all of them begins, as a worker does it; its page in the midst of it."""
    from django.contrib.auth.models import User
    from django.db.models.functions import Now

    from celery_hardened.contrib.django.dead_letters import bulk
    from celery_hardened.contrib.django.dead_letters.bulk_work import BulkWork
    from celery_hardened.contrib.django.models import BulkAction

    ada = str(User.objects.get(username="ada").pk)
    given: dict[str, Any] = {"what": "redrive", "by": "ada", "user_id": ada, "why": "x", "total": store.count(Query())}
    query = bulk.dumped(bulk.until_newest(store, Query()))
    action = BulkAction.objects.using(bulk.alias()).create(
        key=uuid.uuid4().hex, query=query, dry_run=True, asked_at=Now(), **given
    )
    taken = bulk.take(action.pk, task_id=uuid.uuid4().hex)
    assert taken is not None
    work = BulkWork(app, taken)
    begun = time.perf_counter()
    work._begin()
    work._list()
    print(f"{'listing them, by a worker':36} {time.perf_counter() - begun:7.3f} s")
    begun = time.perf_counter()
    work.slice()
    took = time.perf_counter() - begun
    done = BulkAction.objects.using(bulk.alias()).get(pk=action.pk).dealt_with
    print(f"{'dry run of them':36} {done / took:7.0f} letters a second")
    measure("a bulk action under way", lambda: client.get(f"{_BASE}bulk/{action.pk}/"), alias, "default")


def run(alias: str, number: int) -> None:
    from django.contrib.auth.models import User
    from django.db import router
    from django.test import Client, override_settings

    from celery_hardened.contrib.django.admin import DeadLetterAdmin

    begun = time.perf_counter()
    store = fill(alias, number)
    print(f"\n{alias}: {number} letters, written in {time.perf_counter() - begun:.0f} s")
    app = Celery("benchmark", broker="memory://", set_as_current=False)
    app.conf.hardened_dead_letter_store = "memory"
    Hardening.expect(harden(app)).__dict__["dead_letters"] = store
    DeadLetterAdmin.celery_app = app
    router.routers = [
        type("ToAlias", (), {"db_for_read": lambda *_, **__: alias, "db_for_write": lambda *_, **__: alias})()
    ]
    with override_settings(ROOT_URLCONF="tests.support.django_admin_urls"):
        client = Client()
        client.force_login(User.objects.create_superuser("ada", password="x"))
        pages(client, store, alias)
        bulk(client, app, store, alias)
    app.close()


def main(number: int = LETTERS) -> None:
    django_project.configure()
    if Postgres.programs() is None:
        print("PostgreSQL is not installed")
    else:
        with tempfile.TemporaryDirectory(prefix="hardened-bench-") as folder:
            Path(folder).chmod(0o755)
            server = Postgres(Path(folder) / "postgres")
            server.start()
            try:
                django_project.add_postgres(server.database())
                run("postgres", number)
            finally:
                django_project.close_all()
                server.stop()
        django_project.forget("postgres")
    run("default", number)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
