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

MakeStore: TypeAlias = Callable[[Retention], DeadLetterStore]


@pytest.fixture(params=["memory", "valkey", "redis7"])
def make_store(request: pytest.FixtureRequest, unique: str) -> Iterator[MakeStore]:
    """Makes an empty store that keeps as much as it is told. Call it once."""
    if request.param == "memory":
        yield lambda retention: InMemoryDeadLetterStore(retention=retention)
        return
    client = Redis.from_url(request.getfixturevalue(request.param).database())
    yield lambda retention: RedisDeadLetterStore(client, prefix=unique, retention=retention)
    client.close()


@pytest.fixture
def store(make_store: MakeStore) -> DeadLetterStore:
    """An empty store that keeps everything this test writes."""
    return make_store(ROOMY)
