"""A hardened app with a payload store that notes what is asked of it, and a worker in this process."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_hardened import HardenedTask, Hardening, Query, StoreUnavailableError
from celery_hardened.claim_check.contract import ENDED
from celery_hardened.claim_check.memory import InMemoryPayloadStore
from celery_hardened.claim_check.policy import KEY
from tests.support.in_process import InProcessWorker
from tests.unit.conftest import MakeApp

#: Above the threshold of these tests.
LARGE = "x" * 5000


class Store(InMemoryPayloadStore):
    """Notes what is asked of it, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.away = 0

    def _note(self, step: str, name: str) -> None:
        if self.away:
            self.away -= 1
            raise StoreUnavailableError(f"{step} of a payload", "refused")
        self.calls.append((step, name))

    def put(self, name: str, data: bytes, *, max_age: float) -> None:
        self._note("put", name)
        super().put(name, data, max_age=max_age)

    def get(self, name: str, *, most: int) -> bytes | None:
        self._note("get", name)
        return super().get(name, most=most)

    def finish(self, name: str, *, max_age: float) -> None:
        self._note("finish", name)
        super().finish(name, max_age=max_age)

    def keep(self, name: str, *, max_age: float) -> None:
        self._note("keep", name)
        super().keep(name, max_age=max_age)

    def names(self, step: str) -> list[str]:
        return [name for done, name in self.calls if done == step]

    @property
    def alive(self) -> list[str]:
        """Payloads that still hold data."""
        return [name for name, (data, _) in self._kept.items() if data != ENDED]


@pytest.fixture
def app(make_hardened: MakeApp) -> Celery:
    return make_hardened(
        hardened_payload_store="memory:",
        hardened_payload_threshold=4096,
        hardened_payload_max=100_000,
        hardened_dead_letter_write_timeout=0.2,
        hardened_retry_backoff=0.001,
        hardened_retry_floor=0.0,
        task_store_errors_even_if_ignored=True,
    )


@pytest.fixture
def store(app: Celery) -> Store:
    made = Store()
    Hardening.expect(app).__dict__["payload_store"] = made
    return made


@pytest.fixture
def ran() -> list[Any]:
    """What bodies were called with."""
    return []


@pytest.fixture
def worker(app: Celery, store: Store, charge: Any) -> Iterator[InProcessWorker]:
    with InProcessWorker(app) as one:
        yield one


@pytest.fixture
def charge(app: Celery, ran: list[Any]) -> Any:
    """Fails as often, and with what, as the list in ``charge.fails`` says."""
    fails: list[Any] = []

    @app.task(base=HardenedTask, shared=False, name="charge", log_args=("invoice",), max_retries=3)
    def charge(invoice: Any, note: str = "", kind: str = "a") -> Any:
        ran.append((invoice, note, kind))
        if fails:
            raise fails.pop(0)
        return invoice

    charge.fails = fails
    return charge


def reference(message: Any) -> dict[str, Any]:
    """What a message holds instead of its arguments."""
    args, kwargs, _ = json.loads(message.body)
    assert args == []
    assert list(kwargs) == [KEY]
    return dict(kwargs[KEY])


def letters(app: Celery) -> list[Any]:
    return [stored.letter for stored in Hardening.expect(app).dead_letters.find(Query(), limit=10).letters]


def again(app: Celery, message: Any) -> None:
    """The broker delivers it once more."""
    with app.producer_or_acquire() as producer:
        producer.publish(
            message.body,
            routing_key=app.conf.task_default_queue,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=message.headers,
        )


def unzipped(store: Store, name: str) -> bytes:
    return zlib.decompress(store._kept[name][0])
