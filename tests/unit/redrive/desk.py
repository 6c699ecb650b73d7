"""Where redrives are tried: an in-memory store and broker, and a clock that nobody has to wait for."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_hardened.dead_letter.contract import Query
from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from celery_hardened.dead_letter.redrive import redrive
from celery_hardened.dead_letter.redrive_run import RedriveReport
from celery_hardened.marks import Marks
from celery_hardened.wire import Wire, capture
from tests.stores.letters import letter


class Clock:
    """Time that passes when somebody sleeps, and by a microsecond whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0, "time.sleep() would raise"
        self.now += seconds


class Desk:
    """Fills a store with letters of one queue, redrives them, and reads what arrived there."""

    def __init__(self, app: Celery, store: InMemoryDeadLetterStore, queue: str, clock: Clock) -> None:
        self.app, self.store, self.queue, self.clock = app, store, queue, clock

    def fill(self, number: int, **fields: Any) -> list[str]:
        ids = []
        for _ in range(number):
            one = letter(**{"queue": self.queue, **fields})
            self.store.put(one)
            ids.append(one.id)
        return ids

    def redrive(self, query: Query = Query(), **options: Any) -> RedriveReport:  # noqa: B008 - it is frozen
        given: dict[str, Any] = {"by": "ann", "why": "fixed", "redrive_max": 3}
        return redrive(self.app, self.store, query, clock=self.clock, sleep=self.clock.sleep, **{**given, **options})

    def arrived(self, queue: str | None = None) -> list[Wire]:
        found = []
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            channel.queue_declare(queue or self.queue)
            while (message := channel.basic_get(queue or self.queue, no_ack=True)) is not None:
                found.append(capture(message))
        return found

    def arrived_ids(self, queue: str | None = None) -> list[str]:
        return [mark_of(wire)[0] for wire in self.arrived(queue)]

    def states(self, ids: list[str]) -> list[str]:
        return [self.store.get(one).state for one in ids]


def mark_of(wire: Wire) -> tuple[str, str]:
    """Letter id and token of a redriven message."""
    mark = Marks.read(wire.headers).redrive
    assert mark is not None
    return mark
