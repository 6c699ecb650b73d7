"""The app of the tests of Redis delivery, and what they ask of the server behind it.

`DELIVERY` is `SHOP` and tasks that note where they run and whether they came marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.shop import SHOP

DELIVERY = (
    SHOP
    + '''

def noted(task, order):
    info = task.request.delivery_info or {}
    marked = bool(info.get("redelivered"))
    note("jobs", order, task.request.hostname.split("@")[0], int(marked), task.request.retries, f"{time.time():.3f}")


@app.task(bind=True, base=Shop)
def job(self, order, seconds=0.0):
    noted(self, order)
    time.sleep(seconds)
    note("done", order)
    return order


@app.task(bind=True, base=Shop)
def later(self, order, countdown):
    """Once more after *countdown* seconds."""
    noted(self, order)
    if self.request.retries < 1:
        raise self.retry(exc=ConnectionError("once"), countdown=countdown)
    return order


@app.task(bind=True)
def early(self, order, seconds=0.0):
    """Contained, and acked before it runs, as Celery has it."""
    noted(self, order)
    time.sleep(seconds)
    note("done", order)
    return order
'''
)


def conf(**settings: Any) -> dict[str, str]:
    """Environment of an app module that has these settings."""
    return {"CONF": repr(settings)}


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a ``job``, ``later`` or ``early``."""

    order: str
    node: str
    marked: bool
    """It was told that an earlier delivery of its message may have been started."""
    retries: int
    at: float
    """Wall clock of the worker, seconds."""


def starts(out: Path, *orders: str) -> list[Start]:
    """Starts so far, in the order they happened; of these *orders* only, if any are named."""
    found = []
    for line in notes(out, "jobs"):
        order, node, marked, retries, at = line.split()
        if not orders or order in orders:
            found.append(Start(order, node, marked == "1", int(retries), float(at)))
    return found


class Book:
    """What the broker holds beside its queues."""

    def __init__(self, broker: Broker, prefix: str = "") -> None:
        self.client: Any = Redis.from_url(broker.url)
        self._prefix = prefix
        self._queue = broker.queue

    def leased(self) -> list[str]:
        """Tags of the deliveries that somebody holds."""
        return sorted(tag.decode() for tag in self.client.hkeys(f"{self._prefix}unacked") if tag[:4] != b"h1d:")

    def delayed(self) -> dict[str, float]:
        """Tags of the messages that wait for their time, and when they are due (server time)."""
        found = self.client.zrange(f"{self._prefix}unacked_index", 0, -1, withscores=True)
        return {tag.decode(): score for tag, score in found if tag[:4] == b"h1d:"}

    def waiting(self, queue: str | None = None) -> int:
        """Messages in the queue's list of default priority."""
        return int(self.client.llen(f"{self._prefix}{queue or self._queue}"))

    def queued(self) -> list[bytes]:
        """Those messages, the next one to be taken first."""
        return list(reversed(self.client.lrange(f"{self._prefix}{self._queue}", 0, -1)))

    def empty(self) -> bool:
        """Nobody holds anything, nothing waits, and hash and index agree."""
        return not any(self.client.exists(f"{self._prefix}{key}") for key in ("unacked", "unacked_index", self._queue))
