"""``check --deploy --database``: what databases say of themselves, and nobody asks them otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, _state
from django.core import checks
from django.db import connections
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from celery_hardened import harden
from celery_hardened.contrib.django.checks import TAG
from tests.support import django_project, django_settings
from tests.support.client import client_side
from tests.support.ports import free_port


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Celery]]:
    """Makes a hardened app, the current one of this process."""
    with client_side():

        def make(**conf: Any) -> Celery:
            app = Celery("shop", broker="redis://localhost/0", set_as_current=False)
            app.conf.update(conf)
            monkeypatch.setattr(_state._tls, "current_app", app)
            return harden(app)

        yield make


@pytest.fixture
def enabled() -> Iterator[None]:
    """Two periodic tasks in ``default`` that are enabled, and one that is not."""
    interval = IntervalSchedule.objects.create(every=1, period="days")
    for number in range(3):
        PeriodicTask.objects.create(name=f"task {number}", task="shop.note", interval=interval, enabled=number > 0)
    yield
    PeriodicTask.objects.all().delete()
    interval.delete()


def found(*databases: str) -> dict[str, checks.CheckMessage]:
    """The messages about databases, by what comes after the dot of their ids."""
    messages = checks.run_checks(tags=[TAG], include_deployment_checks=True, databases=list(databases) or None)
    return {one.id.partition(".")[2]: one for one in messages if one.id[-4:] in ("E010", "E011", "W018")}


def test_rows_that_nobody_fires(project: Callable[..., Celery], enabled: None) -> None:
    """W018: the scheduler is ours, and not the one that reads tables. Nothing if no scheduler is set."""
    project(beat_scheduler="hardened")
    assert found() == {}
    assert found("other") == {}
    assert "2 periodic tasks are enabled in the database 'default'" in found("default")["W018"].msg
    for named in ("hardened-django", "celery_hardened.contrib.django.scheduler:DatabaseScheduler", None):
        project(**({"beat_scheduler": named} if named else {}))
        assert found("default", "other") == {}
    PeriodicTask.objects.update(enabled=False)
    project(beat_scheduler="hardened")
    assert found("default") == {}


def test_connections_are_left_as_they_were(project: Callable[..., Celery]) -> None:
    """One that was open stays open, one that was not does not."""
    project()
    django_project.close_all()
    assert found("default") == {}
    assert connections["default"].connection is None
    connections["default"].ensure_connection()
    assert found("default") == {}
    assert connections["default"].connection is not None


def test_a_database_that_does_not_answer(project: Callable[..., Celery]) -> None:
    """E011: a message, no traceback; and only of the database that was named."""
    known: dict[str, Any] = connections.settings
    known["closed"] = django_settings.postgres(f"postgresql://test:hunter2@127.0.0.1:{free_port()}/shop")
    connections.configure_settings(known)
    try:
        project(hardened_dead_letter_store="django:closed")
        assert found("default") == {}
        message = found("default", "closed")["E011"].msg
        assert message.startswith("The database 'closed' does not answer: OperationalError")
        assert "hunter2" not in message
    finally:
        django_project.forget("closed")
