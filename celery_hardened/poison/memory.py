"""Deaths in this process alone, for eager mode and tests."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from celery_hardened.poison.contract import Start
from celery_hardened.poison.policy import Record


@dataclass(slots=True)
class _Work:
    open: set[str] = field(default_factory=set)
    died: set[str] = field(default_factory=set)
    carried: int | None = None
    """``0``: none count, whatever the message carries."""

    presumed: int = 0
    alone: str | None = None

    def record(self, apart_from: str = "") -> Record:
        return Record(
            certain=(self.carried or 0) + len(self.died),
            presumed=self.presumed,
            unclosed=len(self.open - {apart_from}),
            alone=self.alone is not None and self.alone != apart_from,
        )

    def close(self, token: str) -> None:
        self.open.discard(token)
        if self.alone == token:
            self.alone = None

    @property
    def clean(self) -> bool:
        """Nothing is held against it."""
        return not (self.open or self.died or self.carried or self.presumed or self.alone)

    @property
    def empty(self) -> bool:
        """Redis keeps no hash without fields; so a record that says nothing is none."""
        return self.clean and self.carried is None


class InMemoryDeathStore:
    """The contract of ``RedisDeathStore`` for one process. A killed process takes it along."""

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
            work = self._works.setdefault(start.work, _Work(carried=start.carried or None))
            if work.clean and not start.carried:
                work.presumed = int(redelivered and not explained)
            before = work.record(start.token)
            work.open.add(start.token)
            if alone:
                work.alone = start.token
            return before

    def close_start(self, start: Start, *, finished: bool) -> None:
        with self._lock:
            if finished:
                self._works.pop(start.work, None)
            else:
                self._end(start)

    def progress(self, start: Start) -> None:
        with self._lock:
            known = self._works.get(start.work, _Work())
            self._works[start.work] = _Work(open=known.open & {start.token}, carried=0)

    def record_death(self, start: Start) -> Record:
        with self._lock:
            work = self._works.setdefault(start.work, _Work(carried=start.carried or None))
            work.open.discard(start.token)
            work.died.add(start.token)
            return work.record()

    def record_return(self, start: Start) -> None:
        with self._lock:
            self._end(start)
            self._returned.add((start.work, start.task_id))

    def _end(self, start: Start) -> None:
        work = self._works.get(start.work)
        if work is not None:
            work.close(start.token)
            if work.empty:
                del self._works[start.work]
