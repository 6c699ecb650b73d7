"""An app that publishes to one Redis, its beat's messages, and what was pushed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from redis import Redis

from celery_hardened import HardenedTask, harden
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.steps import Outgoing
from celery_hardened.hardening import Hardening
from celery_hardened.marks import HEADER
from celery_hardened.pipeline.beat_message import BeatMessages, FireMarks

FIRE = FireMarks(slot=1_700_000_000.5, schedule="nightly", missed=2, run="schedule:nightly", yields=True)


class Beat:
    """Messages of an app with three tasks: ``hardened``, ``shown`` (with ``log_args``) and ``contained``."""

    def __init__(self, url: str, queue: str, **conf: Any) -> None:
        app: Any = harden(Celery("shop", broker=url, set_as_current=False))
        self.app = app
        app.conf.update({"task_default_queue": queue, **conf})

        self.task("hardened")
        self.task("shown", log_args=("a",))
        self.task("contained", base=None)
        app.finalize()
        self.queue = queue
        self.hardening = Hardening.expect(app)
        self.messages = BeatMessages(app, self.hardening)
        self.redis = Redis.from_url(url)

    def task(
        self, name: str, *, base: Any = HardenedTask, body: Callable[..., Any] | None = None, **options: Any
    ) -> Any:
        """A task of the app, of the arguments ``a`` and ``b``."""

        def run(a: int, b: Any = None) -> Any: ...

        return self.app.task(shared=False, name=name, **{"base": base} if base else {}, **options)(body or run)

    def close(self) -> None:
        self.messages.close()
        self.redis.close()
        self.app.close()

    def natural(
        self, schedule: Schedule, claim: Callable[[Sequence[Outgoing]], None] | None = None, task_id: str = "id-1"
    ) -> list[Outgoing] | None:
        """What the natural way hands over; ``None``: nothing."""
        made: list[Outgoing] = []
        sent = self.messages.publish(schedule, task_id=task_id, fire=FIRE, claim=claim or made.extend)
        return made if sent else None

    def fast(self, schedule: Schedule, task_id: str = "id-1") -> tuple[Outgoing, ...] | None:
        return self.messages.message(schedule, task_id=task_id, fire=FIRE)

    def pushed(self, key: str | None = None) -> list[bytes]:
        """What lies in a list of the broker."""
        found: Any = self.redis.lrange(key or self.queue, 0, -1)
        return list(found)


def schedule(task: str = "hardened", *args: Any, name: str = "nightly", **options: Any) -> Schedule:
    when: Any = None
    return Schedule(name=name, task=task, args=args or (1,), kwargs={"b": "ä"}, options=options, when=when)


@dataclass(frozen=True, eq=False)
class Moment:
    """When a message expires: counted from its publish, so that those of two publishes differ by a moment."""

    at: datetime

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Moment) or self.at.utcoffset() != other.at.utcoffset():
            return False
        return abs(self.at - other.at) < timedelta(seconds=20)


def opened(payload: bytes) -> dict[str, Any]:
    """A message without what differs from publish to publish, which must be there."""
    message: dict[str, Any] = json.loads(payload)
    headers, properties = message["headers"], message["properties"]
    assert len(properties.pop("delivery_tag")) == 36
    if HEADER in headers:
        assert headers[HEADER].pop("published") == headers[HEADER].pop("first_published")
    if headers.get("expires"):
        headers["expires"] = Moment(datetime.fromisoformat(headers["expires"]))
    if "expiration" in properties:
        # What is left until a moment that is days ahead differs between two messages.
        left = int(properties["expiration"])
        properties["expiration"] = "days" if left > 10_000_000 else round(left / 60_000)
    return message
