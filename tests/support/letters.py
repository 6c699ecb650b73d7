"""What integration tests ask of a project under test: its letters, its results, and raw messages into it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from kombu import Connection

from celery_hardened import Hardening, Query, StoredLetter
from tests.support.broker import Broker
from tests.support.until import until


def letters(project: ModuleType, **query: Any) -> list[StoredLetter]:
    """The letters that match now, newest first; by default the open ones."""
    hardening = Hardening.of(project.app)
    assert hardening is not None
    return list(hardening.dead_letters.find(Query(**query), limit=500).letters)


def letter_of(project: ModuleType, task_id: str, *, within: float = 60.0) -> StoredLetter:
    """Wait for the one open letter of a task."""

    def found() -> StoredLetter | None:
        mine = [stored for stored in letters(project) if stored.letter.task_id == task_id]
        assert len(mine) <= 1, f"{len(mine)} letters of one failure: {mine}"
        return mine[0] if mine else None

    stored = until(found, within=within, what=f"a dead letter of task {task_id}")
    assert stored is not None
    return stored


def publish_raw(
    broker: Broker,
    *,
    body: bytes | str,
    headers: Mapping[str, Any] | None = None,
    content_type: str = "application/json",
    content_encoding: str = "utf-8",
    **properties: Any,
) -> None:
    """Put a message into the broker's queue that no Celery producer would send."""
    with Connection(broker.url) as connection, connection.channel() as channel:
        connection.Producer(channel).publish(
            body,
            exchange="",
            routing_key=broker.queue,
            headers=dict(headers or {}),
            content_type=content_type,
            content_encoding=content_encoding,
            **properties,
        )


def task_headers(name: str, **changes: Any) -> dict[str, Any]:
    """The headers of an ordinary task message, with *changes*; ``None`` removes a header."""
    headers = {
        "lang": "py",
        "task": name,
        "id": uuid.uuid4().hex,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": None,
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "origin": "test@host",
        "ignore_result": False,
    }
    headers.update(changes)
    return {name: value for name, value in headers.items() if value is not None or name not in changes}
