"""Letters to fill stores with."""

from __future__ import annotations

import itertools
from typing import Any

from celery_hardened.dead_letter.contract import DeadLetterStore, Query, Retention
from celery_hardened.dead_letter.letter import DeadLetter

_numbers = itertools.count(1)

ROOMY = Retention(max_age=3600, max_count=100_000, max_count_per_task=100_000, max_bytes=1 << 30, closed_max_age=3600)


def letter(letter_id: str | None = None, **fields: Any) -> DeadLetter:
    """A letter as a worker would write it; *fields* replace its own."""
    number = next(_numbers)
    task_id = f"task-{number}"
    given: dict[str, Any] = {
        "id": letter_id or f"{task_id}-0-0",
        "reason": "permanent",
        "task": "shop.charge",
        "task_id": task_id,
        "queue": "billing",
        "body": b'[["i1"], {}, {}]',
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {"task": "shop.charge", "id": task_id, "retries": 3},
        "error_type": "builtins.ValueError",
        "error_message": "no such invoice",
        "fingerprint": "f00d",
        "last_failed": 1.0,
    }
    return DeadLetter(**{**given, **fields})


def redriven(before: DeadLetter, *, token: str = "t", **fields: Any) -> DeadLetter:
    """The letter that a redrive of *before* ended in."""
    headers = {**before.headers, "hardened": {"v": 1, "redrives": before.redrives + 1, "redrive": [before.id, token]}}
    changes = {"headers": headers, "redrives": before.redrives + 1, "task_id": before.task_id}
    return letter(f"{before.task_id}-{before.redrives + 1}-0", **{**changes, **fields})


def listed(store: DeadLetterStore, **query: Any) -> list[str]:
    """Ids of what matches, newest first."""
    return [stored.letter.id for stored in store.find(Query(**query), limit=1000).letters]
