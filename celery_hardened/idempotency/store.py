"""Claims in Redis: one small hash for each business key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError
from redis.retry import Retry

from celery_hardened.idempotency.contract import Answer, Busy, Done, Mismatch, Won
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Script

#: Renewals that go over the wire together.
_PAGE = 200
#: Part of a lease that a renewal waits for a connection, and again for its answer.
_PATIENCE = 0.1


class RedisClaimStore:
    """The contract of ``ClaimStore`` in Redis. Each step is one command.

    Keys: ``{prefix}:claim:{key}`` (hash, see ``claims.lua``), living the lifetime given with each step.
    """

    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._claim = self._script(client, "claim", "claiming a key")
        self._renew = self._script(client, "renew", "renewing a claim")
        self._finish = self._script(client, "finish", "finishing a claim")
        self._release = self._script(client, "release", "releasing a claim")

    @staticmethod
    def _script(client: Redis, name: str, operation: str) -> Script:
        return Script(client, str(__package__), "claims", name, operation=operation)

    def claim(self, key: str, *, owner: str, task_id: str, fingerprint: str, lease: float, lifetime: float) -> Answer:
        args: list[str | int] = [owner, task_id, fingerprint, _ms(lease), max(_ms(lifetime), _ms(lease), 1)]
        return _answer(self._claim(keys=[self._key(key)], args=args))

    def renew(self, key: str, *, owner: str, lease: float) -> bool:
        return bool(self._renew(keys=[self._key(key)], args=[owner, _ms(lease)]))

    def renew_all(self, claims: Sequence[tuple[str, str]], *, lease: float) -> list[bool]:
        """Renew claims, each a key and its owner, in few round trips; what ``renew`` says of each."""
        answers: list[bool] = []
        with answered("renewing claims"):
            for first in range(0, len(claims), _PAGE):
                pipeline = self._client.pipeline(transaction=False)
                for key, owner in claims[first : first + _PAGE]:
                    self._renew.queue(pipeline, keys=[self._key(key)], args=[owner, _ms(lease)])
                answers += map(bool, pipeline.execute())
        return answers

    def finish(self, key: str, *, owner: str, result: bytes | None, lifetime: float) -> bool:
        args: list[str | bytes | int] = [owner, max(_ms(lifetime), 1), int(result is not None), result or b""]
        return bool(self._finish(keys=[self._key(key)], args=args))

    def release(self, key: str, *, owner: str) -> bool:
        return bool(self._release(keys=[self._key(key)], args=[owner]))

    def _key(self, key: str) -> str:
        return f"{self._prefix}:claim:{key}"


def for_renewals(client: Redis, *, lease: float) -> Redis:
    """Make *client*, which must be nobody else's, give up in time to try again before the lease ends."""
    parameters = client.connection_pool.connection_kwargs
    for name in ("socket_timeout", "socket_connect_timeout"):
        parameters[name] = min(parameters.get(name) or lease, lease * _PATIENCE)
    # One more try, for a connection that the server closed while it was idle.
    retry = Retry(NoBackoff(), 1)
    retry.update_supported_errors([ReadOnlyError])
    parameters["retry"] = retry
    return client


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _answer(answer: Any) -> Answer:
    kind, *rest = answer
    if kind == b"won":
        return Won(int(rest[0]), int(rest[1]))
    if kind == b"done":
        return Done(rest[0])
    if kind == b"busy":
        return Busy(int(rest[0]) / 1000, bool(rest[1]))
    return Mismatch()
