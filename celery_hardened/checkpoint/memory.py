"""Checkpoints in this process alone, for eager tasks, direct calls and tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from celery_hardened.checkpoint.contract import NOBODY, Message, Whose


@dataclass(slots=True)
class _Record:
    owner: str
    ends: float
    of: Message
    state: bytes | None = None
    done: bool = False


class InMemoryCheckpointStore:
    """The contract of ``RedisCheckpointStore`` for one process. A killed process takes it along."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._lock = threading.Lock()

    def open(self, work: str, *, owner: str, again: bool, lifetime: float, of: Message = NOBODY) -> bytes | None:
        with self._lock:
            self._drop_lapsed()
            record = self._records.get(work)
            if record is None or (record.done and not again) or _of_another(record, of):
                record = self._records[work] = _Record(owner, 0.0, of)
            record.owner, record.of = owner, of
            record.ends = self._clock() + lifetime
            return record.state

    def save(
        self, work: str, *, owner: str, state: bytes, lifetime: float, anew: bool = False, of: Message = NOBODY
    ) -> Whose:
        with self._lock:
            self._drop_lapsed()
            record = self._records.get(work)
            if record is None and anew:
                record = self._records[work] = _Record(owner, 0.0, of)
            whose = _whose(record, owner)
            if record is not None and whose == "ours":
                record.state, record.of = state, of
                record.ends = self._clock() + lifetime
            return whose

    def finish(self, work: str, *, owner: str, lifetime: float) -> Whose:
        with self._lock:
            self._drop_lapsed()
            record = self._records.get(work)
            whose = _whose(record, owner)
            if record is not None and whose == "ours":
                record.done = True
                record.ends = self._clock() + lifetime
            return whose

    def _drop_lapsed(self) -> None:
        now = self._clock()
        for work in [work for work, record in self._records.items() if record.ends <= now]:
            del self._records[work]


def _of_another(record: _Record, asker: Message) -> bool:
    return record.of.task_id != asker.task_id and record.of.edition != asker.edition


def _whose(record: _Record | None, owner: str) -> Whose:
    if record is None:
        return "gone"
    return "ours" if record.owner == owner else "another's"
