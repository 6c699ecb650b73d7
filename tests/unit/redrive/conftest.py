"""A desk for every test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from celery import Celery

from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from tests.stores.letters import ROOMY
from tests.unit.redrive.desk import Clock, Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    """An empty store, and a queue of this test: the in-memory broker is shared by the process."""
    clock = Clock()
    app = Celery("shop", broker="memory://", set_as_current=False)
    yield Desk(app, InMemoryDeadLetterStore(retention=ROOMY, clock=clock), f"q-{uuid.uuid4().hex}", clock)
    app.close()
