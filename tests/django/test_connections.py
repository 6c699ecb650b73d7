"""Database connections in every pool: bounded, made anew when the server ended them, never closed in a transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
from django.db import connections, transaction

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support import django_project
from tests.support.broker import Broker
from tests.support.connections_app import CONNECTIONS
from tests.support.django_shop.models import Invoice
from tests.support.letters import letter_of, letters, publish_raw, task_headers
from tests.support.notes import notes
from tests.support.postgres import Postgres
from tests.support.until import until
from tests.support.worker import POOLS, WorkerProcess

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]

USING = "postgres"

#: Tasks at a time.
CONCURRENCY = 3


class Sessions:
    """What the server says of the connections of one worker."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._server = psycopg.connect(url, autocommit=True)

    def pids(self) -> set[int]:
        found = self._server.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [self.name])
        return {int(row[0]) for row in found.fetchall()}

    def end(self) -> int:
        """End them all; how many there were."""
        found = self._server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [self.name]
        )
        return len(found.fetchall())

    def close(self) -> None:
        self._server.close()


@pytest.fixture(scope="module")
def database_url(postgres: Postgres) -> str:
    """One for all of them: to make its tables takes longer than most."""
    return postgres.database()


@pytest.fixture
def database(database_url: str) -> Iterator[str]:
    """An empty database, as the alias ``postgres``."""
    django_project.add_postgres(database_url)
    for app in ("django_shop", "celery_hardened"):
        django_project.empty(USING, app)
    yield database_url
    django_project.close_all()
    django_project.forget(USING)


@pytest.fixture
def sessions(database: str) -> Iterator[Sessions]:
    made = Sessions(database, f"worker-{uuid.uuid4().hex[:12]}")
    yield made
    made.close()


@pytest.fixture
def worker(
    request: pytest.FixtureRequest, start_worker: StartWorker, database: str, sessions: Sessions
) -> WorkerProcess:
    """Of the pool that is asked for; ``kept``: with CONN_MAX_AGE = None."""
    pool, _, kept = request.param.partition("-")
    env = {**django_project.environment(postgres_url=database), "PGAPPNAME": sessions.name}
    return start_worker(CONNECTIONS, pool=pool, concurrency=CONCURRENCY, env={**env, **({"KEPT": "1"} if kept else {})})


@pytest.fixture
def project(load_project: LoadProject, database: str) -> ModuleType:
    return load_project(CONNECTIONS)


def rows(prefix: str) -> int:
    return int(Invoice.objects.using(USING).filter(number__startswith=prefix).count())


LEFT = [*((pool, 0) for pool in POOLS), ("threads-kept", 1), ("prefork-kept", 1)]


@pytest.mark.parametrize(("worker", "left"), LEFT, indirect=["worker"])
def test_tasks_leave_no_connections_behind(
    worker: WorkerProcess, left: int, project: ModuleType, sessions: Sessions, broker: Broker
) -> None:
    """Of thirty tasks that work, fail, and are unknown to the worker, one connection each at a time, and then at
    most that of the worker's main thread, which has nobody to close it with CONN_MAX_AGE = None.

    And none is closed in a transaction: with eager tasks inside of a task's transaction, one of which fails, and a
    publish that waits for its commit, it commits on the connection it began on, and the publish comes after it.
    """
    most, before = 0, set[int]()
    inside = project.inside.delay("in")
    sent = [project.row.delay("row") for _ in range(10)]
    failed = [task.delay("broken") for _ in range(5) for task in (project.broken, project.bare)]
    for _ in range(10):
        publish_raw(broker, body="[[], {}, {}]", headers=task_headers("proj.unknown"))

    def all_over() -> bool:
        nonlocal most, before
        now = sessions.pids()
        most = max(most, len(now & before))  # one that its worker has closed is there for a moment
        before = now
        return len(letters(project)) == 20 and rows("row") == 10 and rows("in") == 4

    until(all_over, within=180, what="all tasks to be over")
    assert [one.get(timeout=60) is not None for one in sent] == [True] * 10
    assert {one.letter.task_id for one in letters(project, reason="permanent")} == {one.id for one in failed}
    assert inside.get(timeout=60) == 3
    until(lambda: len(sessions.pids()) <= left, within=60, what="the connections to be closed")
    assert most <= CONCURRENCY + 2  # the pool's, and the main thread's


@pytest.mark.parametrize("worker", POOLS, indirect=True)
def test_sessions_that_the_server_ends(
    worker: WorkerProcess, project: ModuleType, sessions: Sessions, out: Path, tmp_path: Path
) -> None:
    """As in a restart of the database: a task that was using one is retried, one that fails leaves its letter, and
    the next task works."""
    assert project.row.delay("before").get(timeout=60)
    go = tmp_path / "go"
    looks, fails = [], []
    looks.append(project.cut.delay("look", str(go), "look"))
    if worker.pool != "solo":
        fails.append(project.cut.delay("fail", str(go), "fail"))
    until(lambda: len(notes(out, "sessions")) == len(looks + fails), within=60, what="the tasks to connect")
    assert sessions.end() >= len(looks + fails)
    go.touch()
    for one in fails:
        assert letter_of(project, one.id, within=120).letter.error_type == "ValueError"
    looks[0].get(timeout=120)
    assert rows("look") == 1
    assert len(notes(out, "sessions")) == len(looks + fails) + 1  # the one that looked did so again
    assert project.row.delay("after").get(timeout=60)
    until(lambda: not sessions.pids(), within=30, what="the connections to be closed")


@pytest.mark.parametrize("worker", ["prefork-kept", "threads-kept"], indirect=True)
def test_the_main_thread_connects_anew(
    worker: WorkerProcess, project: ModuleType, sessions: Sessions, broker: Broker
) -> None:
    """A letter that the main thread of a worker has to write after its connection was ended is written."""
    publish_raw(broker, body="[[], {}, {}]", headers=task_headers("proj.unknown"))
    until(lambda: len(letters(project)) == 1, within=60, what="the first letter")
    sessions.end()
    publish_raw(broker, body="[[], {}, {}]", headers=task_headers("proj.unknown"))
    until(lambda: len(letters(project)) == 2, within=120, what="the second letter")
    assert worker.running


def test_none_is_closed_in_a_transaction_of_a_request(project: ModuleType) -> None:
    """Eager tasks, letters, their search and their sweep inside of a caller's transaction leave it as it is, open
    or rolled back."""
    from celery_hardened import Hardening

    store = Hardening.expect(project.app).dead_letters
    for outcome in ("committed", "rolled back"):
        with transaction.atomic(using=USING):
            before = project.session()
            Invoice.objects.using(USING).create(number=outcome)
            assert project.row.apply(("eager",)).successful()
            assert project.broken.apply(("eager",)).failed()
            assert letters(project) == []
            store.sweep()
            assert project.session() == before
            assert connections[USING].in_atomic_block
            transaction.set_rollback(outcome != "committed", using=USING)
        assert rows(outcome) == (1 if outcome == "committed" else 0)


@pytest.mark.parametrize("what", ["search", "sweep"])
def test_a_session_that_the_server_ended_is_made_anew(project: ModuleType, database: str, what: str) -> None:
    """A thread that reads or writes letters outside of tasks, as the one that counts them, is answered all the same."""
    from celery_hardened import Hardening

    store = Hardening.expect(project.app).dead_letters
    connections[USING].ensure_connection()
    with psycopg.connect(database, autocommit=True) as server:
        server.execute("SELECT pg_terminate_backend(%s)", [project.session()])
    if what == "search":
        assert letters(project) == []
    else:
        assert store.sweep() == 0
    assert connections[USING].connection is not None
