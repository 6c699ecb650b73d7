"""Where deaths are remembered: one small hash for each piece of work that ever came back."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis import Redis

from celery_hardened.poison.policy import Record
from celery_hardened.redis_script import Script


def work_id(*, task: str, root_id: str | None, key: str | None, body: bytes | str) -> str:
    """Name the logical work, which may outlive a task id.

    The idempotency key if there is one; else task, root id and body: a task that
    publishes itself again under a fresh id is still the same killer.
    """
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    parts = (key,) if key else (task, root_id or "")
    digest = hashlib.sha256("\0".join(parts).encode())
    if not key:
        digest.update(raw)
    return digest.hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Start:
    """One delivery's start, as both the parent and the pool process know it."""

    work: str
    task_id: str
    token: str
    """New for each delivery: task ids and delivery tags repeat."""

    carried: int = 0
    """Deaths the message itself carries."""


class DeathStore(Protocol):
    """Remembers starts and deaths of suspect messages. Raises ``StoreUnavailableError``."""

    def peek(self, work: str) -> Record:
        """What is known, without changing it."""

    def open_start(self, start: Start, *, redelivered: bool, alone: bool) -> Record:
        """Write a start down; the record as it was before."""

    def close_start(self, start: Start, *, finished: bool) -> None:
        """A recorded start ended. *finished*: for good, so the work is forgotten."""

    def record_death(self, start: Start) -> Record:
        """The parent saw it die; the record with this death in it."""

    def record_return(self, start: Start) -> None:
        """Its message is given back on purpose, whether it had been started or not."""


class RedisDeathStore:
    """Deaths in Redis.

    Keys: ``{prefix}:death:{work}`` (hash, see ``deaths.lua``) and
    ``{prefix}:death:{work}:returned:{task id}``, both living ``hardened_death_memory``.
    """

    def __init__(self, client: Redis, *, prefix: str, memory: float) -> None:
        self._prefix = prefix
        self._ttl = round(memory * 1000)
        self._peek = self._script(client, "peek", "reading deaths")
        self._open = self._script(client, "open_start", "recording a start")
        self._close = self._script(client, "close_start", "recording the end of a start")
        self._death = self._script(client, "record_death", "recording a death")
        self._return = self._script(client, "record_return", "recording a return")

    @staticmethod
    def _script(client: Redis, name: str, operation: str) -> Script:
        return Script(client, str(__package__), "deaths", name, operation=operation)

    def peek(self, work: str) -> Record:
        return _record(self._peek(keys=[self._key(work)]))

    def open_start(self, start: Start, *, redelivered: bool, alone: bool) -> Record:
        args: list[str | int] = [start.token, int(redelivered), int(alone), start.carried, self._ttl]
        return _record(self._open(keys=[self._key(start.work), self._returned(start)], args=args))

    def close_start(self, start: Start, *, finished: bool) -> None:
        self._close(keys=[self._key(start.work)], args=[start.token, int(finished)])

    def record_death(self, start: Start) -> Record:
        return _record(self._death(keys=[self._key(start.work)], args=[start.token, start.carried, self._ttl]))

    def record_return(self, start: Start) -> None:
        self._return(keys=[self._key(start.work), self._returned(start)], args=[start.token, self._ttl])

    def _key(self, work: str) -> str:
        return f"{self._prefix}:death:{{{work}}}"

    def _returned(self, start: Start) -> str:
        return f"{self._key(start.work)}:returned:{start.task_id}"


def _record(answer: Any) -> Record:
    certain, presumed, unclosed, alone = answer
    return Record(certain=int(certain), presumed=int(presumed), unclosed=int(unclosed), alone=bool(alone))


@dataclass(slots=True)
class _Work:
    open: set[str] = field(default_factory=set)
    died: set[str] = field(default_factory=set)
    carried: int = 0
    presumed: int = 0
    alone: str | None = None

    def record(self, apart_from: str = "") -> Record:
        return Record(
            certain=self.carried + len(self.died),
            presumed=self.presumed,
            unclosed=len(self.open - {apart_from}),
            alone=self.alone is not None and self.alone != apart_from,
        )

    def close(self, token: str) -> None:
        self.open.discard(token)
        if self.alone == token:
            self.alone = None


class InMemoryDeathStore:
    """The same for one process: eager mode and tests. A killed process takes it along."""

    def __init__(self) -> None:
        self._works: dict[str, _Work] = {}
        self._returned: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def peek(self, work: str) -> Record:
        with self._lock:
            return self._works[work].record() if work in self._works else Record()

    def open_start(self, start: Start, *, redelivered: bool, alone: bool) -> Record:
        with self._lock:
            explained = (start.work, start.task_id) in self._returned
            self._returned.discard((start.work, start.task_id))
            if start.work not in self._works:
                presumed = int(redelivered and not explained and not start.carried)
                self._works[start.work] = _Work(carried=start.carried, presumed=presumed)
            work = self._works[start.work]
            before = work.record(start.token)
            work.open.add(start.token)
            if alone:
                work.alone = start.token
            return before

    def close_start(self, start: Start, *, finished: bool) -> None:
        with self._lock:
            if finished:
                self._works.pop(start.work, None)
            elif start.work in self._works:
                self._works[start.work].close(start.token)

    def record_death(self, start: Start) -> Record:
        with self._lock:
            work = self._works.setdefault(start.work, _Work(carried=start.carried))
            work.open.discard(start.token)
            work.died.add(start.token)
            return work.record()

    def record_return(self, start: Start) -> None:
        with self._lock:
            if start.work in self._works:
                self._works[start.work].close(start.token)
            self._returned.add((start.work, start.task_id))
