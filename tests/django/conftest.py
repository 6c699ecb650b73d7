"""A Django project and a hardened app in this process; each test begins with empty tables and no connection."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.db import connections, router
from django.test import SimpleTestCase
from kombu.exceptions import OperationalError

from celery_hardened import HardenedTask, Hardening, harden
from tests.support import django_project
from tests.support.client import client_side, without_shared_tasks
from tests.support.postgres import Postgres

django_project.configure()  # before test modules import models

from tests.support import django_schedules  # noqa: E402
from tests.support.django_shop.models import Invoice, Unique  # noqa: E402


@pytest.fixture(autouse=True)
def own_database(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has written is gone after it, whatever state it left a connection in."""
    yield
    if isinstance(request.instance, SimpleTestCase):
        return  # Django's test classes do that themselves, and their transaction is still open here
    clean()


def clean() -> None:
    django_project.close_all()
    for alias in connections.settings:
        Invoice.objects.using(alias).all().delete()
        Unique.objects.using(alias).all().delete()
    django_project.close_all()


@pytest.fixture(autouse=True, scope="module")
def begun_empty_and_closed_at_last() -> Iterator[None]:
    """Tests elsewhere use the same databases of this process."""
    clean()
    yield
    django_project.close_all()


@pytest.fixture
def patient_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beat's reader of tables waits for the database as long as a busy machine needs."""
    for name in ("LOAD", "CLOSE"):
        monkeypatch.setattr(f"celery_hardened.contrib.django.schedules.source.{name}", 60.0)


@pytest.fixture
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Celery]:
    """A hardened app on ``memory://``; its tasks ``charge`` and ``total`` are hardened, ``plain`` is contained.

    Further settings as an indirect parameter; ``file://`` as result backend is a folder of the test.
    """
    conf = dict(getattr(request, "param", {}))
    if conf.get("result_backend") == "file://":
        conf["result_backend"] = f"file://{tmp_path}"
    with client_side():
        without_shared_tasks()
        made = Celery(
            "shop", broker="memory://", backend=conf.pop("result_backend", "cache+memory://"), set_as_current=False
        )
        made.conf.update(
            task_default_queue=f"q-{uuid.uuid4().hex[:10]}",
            hardened_dead_letter_store="memory",
            hardened_version="v1",
            hardened_publish_timeout=0.3,
        )
        made.conf.update(conf)
        harden(made)

        @made.task(base=HardenedTask, name="shop.charge", log_args=("invoice",))
        def charge(invoice: Any = None, note: str = "") -> Any:
            return invoice

        @made.task(name="shop.plain")
        def plain(*args: Any) -> None: ...

        @made.task(base=HardenedTask, name="shop.total")
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        made.finalize()
        yield made
        made.close()


@pytest.fixture
def hardening(app: Celery) -> Hardening:
    return Hardening.expect(app)


@pytest.fixture
def redis_hardening(records_url: str, unique: str) -> Iterator[Hardening]:
    """An app with its records in Redis, below a prefix of the test."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(hardened_redis_url=records_url, hardened_key_prefix=f"t-{unique}")
    harden(app)
    found = Hardening.expect(app)
    yield found
    found.redis.close()


@pytest.fixture
def charge(app: Celery) -> Any:
    return app.tasks["shop.charge"]


@pytest.fixture
def plain(app: Celery) -> Any:
    return app.tasks["shop.plain"]


@pytest.fixture
def broken(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The broker is away, until the test clears this list; it fills with the ids that were tried."""
    sender = app.amqp.send_task_message
    tried = ["away"]

    def refuse(producer: Any, name: str, message: Any, **options: Any) -> Any:
        if not tried:
            return sender(producer, name, message, **options)
        tried.append(message.headers["id"])
        raise OperationalError("connection refused")

    monkeypatch.setitem(app.amqp.__dict__, "send_task_message", refuse)
    return tried


@pytest.fixture(scope="module")
def schedules_url(postgres: Postgres) -> str:
    """One database for all tests of a module: to make its tables takes longer than most of them."""
    return postgres.database()


@pytest.fixture(params=["sqlite", "postgres"])
def schedules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The alias of an empty database, to which the tables of schedules are routed."""
    alias = "default"
    if request.param == "postgres":
        alias = "postgres"
        django_project.add_postgres(request.getfixturevalue("schedules_url"))
    monkeypatch.setattr(router, "routers", [django_schedules.Route(alias)])
    django_schedules.clear(alias)
    yield alias
    django_schedules.clear(alias)
    django_project.close_all()
    if alias != "default":
        django_project.forget(alias)
