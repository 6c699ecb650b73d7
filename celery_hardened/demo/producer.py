"""The side that sends: publishes tasks and looks at what became of each."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, cast

from celery import chord
from redis import Redis

from celery_hardened import Hardening, Query, StoredLetter
from celery_hardened.demo.project import shop


class Producer:
    """Sends to the shop, and knows every task id it ever sent.

    Args:
        url: The Redis that is broker, result backend and dead letter store.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.sent: list[str] = []

    @cached_property
    def _redis(self) -> Redis:
        return Redis.from_url(self._url)

    @property
    def hardening(self) -> Hardening:
        """What hardens the shop."""
        return cast(Hardening, Hardening.of(shop.app))  # shop.py hardens it

    @property
    def queue(self) -> str:
        """The shop's."""
        return str(shop.app.conf.task_default_queue)

    @property
    def server_version(self) -> str:
        """Of the Valkey, or of the Redis that stands in for it."""
        server: Any = self._redis.info("server")
        return str(server.get("valkey_version") or server["redis_version"])

    # --- sending ------------------------------------------------------------------------------

    def send(self, task: Any, *args: object, task_id: str) -> None:
        """Publish one task."""
        self.sent.append(task_id)
        task.apply_async(args, task_id=task_id)

    def send_chord(self, members: Mapping[str, Any], body: Any, *, body_id: str) -> None:
        """Publish a chord: *members* by task id, then *body* with all their results."""
        self.sent += [*members, body_id]
        chord([member.set(task_id=task_id) for task_id, member in members.items()])(body.set(task_id=body_id))

    def send_raw(self, task: str, body: bytes, *, task_id: str) -> None:
        """Publish a message that no Celery would send."""
        self.sent.append(task_id)
        with shop.app.connection_for_write() as connection:
            connection.Producer().publish(
                body,
                routing_key=self.queue,
                content_type="application/json",
                content_encoding="utf-8",
                headers={"task": task, "id": task_id, "lang": "py"},
                correlation_id=task_id,
                message_id=str(uuid.uuid4()),
            )

    def redrive(self, task: str, *, why: str) -> int:
        """Redrive a task's letters from Python; how many were sent."""
        return int(self.hardening.redrive(Query(task=task), by="the demo", why=why).sent)

    # --- looking ------------------------------------------------------------------------------

    def state(self, task_id: str) -> str:
        """What the result backend says."""
        return str(shop.app.AsyncResult(task_id).state)

    def result(self, task_id: str) -> Any:
        """The task's result; its error if it failed."""
        return shop.app.AsyncResult(task_id).result

    def succeeded(self, ids: Iterable[str]) -> bool:
        """Did all of them end well?"""
        return all(self.state(task_id) == "SUCCESS" for task_id in ids)

    def successes(self, ids: Iterable[str]) -> int:
        """How many of them ended well."""
        return sum(self.succeeded([task_id]) for task_id in ids)

    def settled(self, ids: Iterable[str]) -> bool:
        """Did each of them end, in one way or the other?"""
        letters = self.letters()
        return all(task_id in letters or self.succeeded([task_id]) for task_id in ids)

    def letters(self, state: Any = None) -> dict[str, StoredLetter]:
        """Dead letters by task id: the open ones, or those in *state*."""
        page = self.hardening.dead_letters.find(Query(state=state), limit=500)
        return {str(stored.letter.task_id): stored for stored in page.letters}

    @property
    def waiting(self) -> int:
        """Messages the broker still holds: in the queue, or with a worker."""
        return int(self._redis.llen(self.queue)) + int(self._redis.hlen("unacked"))

    def close(self) -> None:
        """Close every connection."""
        results = shop.app.backend.result_consumer
        results.stop()
        # Each result unsubscribes when it is collected. Some are as late as at exit, when the
        # server has gone and every one of them would try for long to reach it.
        results.cancel_for = lambda _task_id: None
        shop.app.close()
        self._redis.close()
