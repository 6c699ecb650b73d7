"""The database store: effect and marker are both there or neither, wherever the process is killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support import database_kill, django_project
from tests.support.notes import notes
from tests.support.postgres import Postgres
from tests.support.sqlalchemy_shop import Shop

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

#: What one run leaves behind.
ONCE = ["/copy", "sent"]


@dataclass(frozen=True)
class Place:
    """A database with the shop's tables and ours, and how a process reaches it."""

    name: str
    where: str
    env: dict[str, str]

    @property
    def of_workers(self) -> dict[str, str]:
        return {**self.env, "SIDE": self.name, "WHERE": self.where}

    def ask(self, what: str, prefix: str, extra: str) -> Any:
        return database_kill.ask(what, self.name, self.where, prefix, extra, env=self.env)


@pytest.fixture(params=["django-postgresql", "django-sqlite", "sqlalchemy-postgresql", "sqlalchemy-sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    name, _, kind = request.param.partition("-")
    url = None
    if kind == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        url = server.database()
    if name == "sqlalchemy":
        where = url or str(tmp_path / "shop.sqlite3")
        shop = Shop(where)
        shop.create()
        shop.engine.dispose()
        yield Place(name, where, {})
        return
    django_project.configure()
    if url is not None:
        django_project.add_postgres(url)
    yield Place(name, "postgres" if url else "default", django_project.environment(postgres_url=url))
    django_project.forget("postgres")


def test_killed_at_any_statement_the_effect_is_there_once(place: Place, unique: str) -> None:
    """SIGKILL before and after each statement of a run, the commit too; run again, the effect is whole and single."""
    found = place.ask("kill", unique, "with")

    assert {point["point"]: point["effects"] for point in found if point["effects"] != ONCE} == {}
    outcomes = [point["outcome"] for point in found]
    assert outcomes == ["ran"] * (len(found) - 1) + ["replayed"], "done from the commit on, and not before"
    assert len(found) >= 12


@pytest.mark.parametrize("place", ["django-sqlite", "sqlalchemy-postgresql"], indirect=True)
@pytest.mark.parametrize(("marker", "effects"), [("before", []), ("after", sorted(ONCE * 2))])
def test_a_marker_outside_of_the_transaction_is_found_out(
    place: Place, unique: str, marker: str, effects: list[str]
) -> None:
    """The test above would see it: written before the effect work is lost, written after it work is doubled."""
    found = place.ask("kill", unique, marker)

    assert effects in [point["effects"] for point in found]


def test_of_processes_that_begin_together_one_runs(place: Place, unique: str) -> None:
    """Eight of them, one key: one effect, and the others get its result."""
    found = place.ask("race", unique, "8")

    assert found == {"outcomes": ["ran"] + ["replayed"] * 7, "effects": ONCE}


# --- through real workers ----------------------------------------------------------------------------------------

#: More than any run has points; who is to die at a later one lives.
POINTS = 30

PROJECT = dedent(
    """
    import os
    from pathlib import Path

    import django
    from celery import Celery
    from celery.signals import task_prerun

    from celery_hardened import HardenedTask, harden, idempotent
    from tests.support import django_settings
    from tests.support.database_kill import Points, side_of
    from tests.support.notes import note, notes

    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        django_settings.DATABASES["default"] = django_settings.DATABASES[os.environ["WHERE"]]
        django.setup()
    side = side_of(os.environ["SIDE"], "default" if os.environ["SIDE"] == "django" else os.environ["WHERE"])
    Session = getattr(side, "sessions", None)

    app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
    app.conf.update(
        task_default_queue=os.environ["QUEUE"],
        hardened_redis_url=os.environ["RECORDS_URL"],
        hardened_key_prefix=os.environ["KEY_PREFIX"],
        hardened_database="proj:Session" if Session else None,
        hardened_lease=2.0,
        hardened_retry_backoff=0.2,
        hardened_retry_floor=0.05,
        hardened_death_delay=0.1,
        hardened_death_delay_max=0.2,
    )
    harden(app)
    points = Points()
    watched = []


    @task_prerun.connect
    def begin(task_id, kwargs, **_):
        if os.getpid() not in watched:
            watched.append(os.getpid())
            side.watch(points)
        died = task_id in notes(Path(os.environ["OUT"]), "deaths")
        points.begin(None if died else kwargs.get("deadly"), lambda: note("deaths", task_id))


    @app.task(bind=True, base=HardenedTask)
    @idempotent("number", store="database", compare_arguments=False)
    def send_invoice(self, number, deadly=None, failures=0):
        note("starts", number)
        if Session:
            assert self.execution.session.get_bind() is side.sessions.kw["bind"]
        side.effect(number)
        if self.request.retries < failures:
            raise ConnectionError("gateway down")
        return f"sent {number}"
    """
)

WHERE = [
    ("redis", kind) for kind in ("django-postgresql", "django-sqlite", "sqlalchemy-postgresql", "sqlalchemy-sqlite")
]
WHERE.append(("rabbitmq", "django-postgresql"))


@pytest.fixture
def project(
    request: pytest.FixtureRequest,
    place: Place,
    start_worker: StartWorker,
    load_project: LoadProject,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """The producer's side of a worker; ``project`` is its pool, otherwise ``prefork`` with two processes."""
    start_worker(PROJECT, pool=getattr(request, "param", "prefork"), concurrency=4, env=place.of_workers)
    monkeypatch.setattr(database_kill, "side_of", lambda *_: None)
    return load_project(PROJECT, {**place.of_workers, "DJANGO_SETTINGS_MODULE": ""})


@pytest.mark.parametrize(("broker", "place"), WHERE, indirect=True)
def test_workers_killed_at_any_statement_send_each_invoice_once(place: Place, project: Any, out: Path) -> None:
    """Thirty tasks, each of whose processes dies at another point: all succeed, each effect is whole and single."""
    results = [project.send_invoice.delay(number=f"k{point:02}", deadly=point) for point in range(POINTS)]

    assert [result.get(timeout=120) for result in results] == [f"sent k{point:02}" for point in range(POINTS)]
    deaths = notes(out, "deaths")
    assert 12 <= len(deaths) == len(set(deaths)) < POINTS
    assert place.ask("effects", "", ",".join(f"k{point:02}" for point in range(POINTS))) == [ONCE] * POINTS


@pytest.mark.parametrize(
    ("broker", "place", "project"),
    [
        *(("redis", "django-postgresql", pool) for pool in ("prefork", "threads", "gevent", "solo")),
        *(("redis", "sqlalchemy-postgresql", pool) for pool in ("threads", "gevent")),
    ],
    indirect=True,
)
def test_twins_and_failures_have_one_effect(place: Place, project: Any) -> None:
    """In every pool: three transient failures and then success, while six messages of each key wait and repeat."""
    keys = ["one", "two", "three"]
    results = [(key, project.send_invoice.delay(number=key, failures=3)) for _ in range(6) for key in keys]

    assert [result.get(timeout=120) for _, result in results] == [f"sent {key}" for key, _ in results]
    assert place.ask("effects", "", ",".join(keys)) == [ONCE] * 3
