"""Every dead letter store there is, empty, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
from redis import Redis

from celery_hardened.dead_letter.contract import DeadLetterStore, Retention
from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from celery_hardened.dead_letter.store import RedisDeadLetterStore
from tests.stores.letters import ROOMY
from tests.support import django_project

MakeStore: TypeAlias = Callable[[Retention], DeadLetterStore]


@pytest.fixture(params=["memory", "valkey", "redis7", "django-sqlite", "django-postgresql"])
def make_store(request: pytest.FixtureRequest, unique: str) -> Iterator[MakeStore]:
    """Makes an empty store that keeps as much as it is told. Call it once."""
    if request.param == "memory":
        yield lambda retention: InMemoryDeadLetterStore(retention=retention)
        return
    if request.param.startswith("django"):
        yield from _in_django(request)
        return
    client = Redis.from_url(request.getfixturevalue(request.param).database())
    yield lambda retention: RedisDeadLetterStore(client, prefix=unique, retention=retention)
    client.close()


@pytest.fixture
def store(make_store: MakeStore) -> DeadLetterStore:
    """An empty store that keeps everything this test writes."""
    return make_store(ROOMY)


def _in_django(request: pytest.FixtureRequest) -> Iterator[MakeStore]:
    django_project.configure()  # before models are imported
    from celery_hardened.contrib.django.dead_letters.store import DjangoDeadLetterStore

    if request.param == "django-postgresql":
        django_project.add_postgres(request.getfixturevalue("postgres").database())
        alias = "postgres"
    else:
        alias = "default"
    try:
        yield lambda retention: DjangoDeadLetterStore(alias, retention=retention)
    finally:
        django_project.empty(alias, "celery_hardened")
        django_project.close_all()
        if alias == "postgres":
            django_project.forget(alias)
