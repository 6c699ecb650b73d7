"""Apps that no test shares with another."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from celery import Celery

from celery_hardened import Hardening, harden
from tests.support.client import client_side, without_shared_tasks

MakeApp: TypeAlias = Callable[..., Celery]

#: What is given to ``Celery()``, not to its configuration.
_OPTIONS = ("task_cls", "amqp", "namespace", "autofinalize", "strict_typing")


@pytest.fixture(autouse=True)
def own_celery() -> Iterator[None]:
    """``@app.task`` and ``Celery()`` leave traces in the process that later apps would pick up."""
    with client_side():
        without_shared_tasks()  # pytest-celery brings some along, too
        yield


@pytest.fixture
def make_app() -> Iterator[MakeApp]:
    """
    Makes apps on ``memory://``, each with a queue and records of its own; settings as keywords.

    *cls* is the class of the app, *main* its name; None of its configuration is read yet.
    """
    made: list[Celery] = []

    def make(
        *, cls: type[Celery] = Celery, main: str = "shop", broker: str | None = "memory://", **conf: Any
    ) -> Celery:
        options = {name: conf.pop(name) for name in _OPTIONS if name in conf}
        app = cls(main, broker=broker, backend="cache+memory://", set_as_current=False, **options)
        app.conf.update(
            {
                "task_default_queue": f"q-{uuid.uuid4().hex[:10]}",
                "hardened_dead_letter_store": "memory",
                "hardened_version": "v1",  # else git is asked for it
                **conf,
            }
        )
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def make_hardened(make_app: MakeApp) -> MakeApp:
    """The same, hardened."""
    return lambda **conf: harden(make_app(**conf))


@pytest.fixture
def app(make_hardened: MakeApp) -> Celery:
    """A hardened app."""
    return make_hardened()


def patient(app: Celery) -> None:
    """What blinks is waited for by *app*, though the machine stands still for seconds meanwhile."""
    app.conf.hardened_dead_letter_write_timeout = 60.0
    Hardening.expect(app).__dict__.pop("settings", None)


@pytest.fixture
def hardening(app: Celery) -> Hardening:
    """What it knows."""
    return Hardening.expect(app)
