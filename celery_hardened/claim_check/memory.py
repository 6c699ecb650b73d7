"""Payloads in this process alone, for tests."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from celery_hardened.claim_check.contract import ENDED, checked


class InMemoryPayloadStore:
    """The contract of a payload store for one process. *usual*: see the contract. *clock* gives seconds."""

    def __init__(self, *, usual: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._usual = usual
        self._clock = clock
        self._kept: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    def put(self, name: str, data: bytes, *, max_age: float) -> None:
        if not data:
            raise ValueError("an empty payload would say that its task has ended")
        self._write(name, bytes(data), max_age)

    def get(self, name: str, *, most: int) -> bytes | None:
        with self._lock:
            found = self._kept.get(checked(name))
        return None if found is None else found[0][: most + 1]

    def finish(self, name: str, *, max_age: float) -> None:
        self._write(name, ENDED, max_age)

    def keep(self, name: str, *, max_age: float) -> None:
        with self._lock:
            found = self._kept.get(checked(name))
            if found is not None:
                self._kept[name] = (found[0], self._since(max_age))

    def delete(self, name: str) -> None:
        with self._lock:
            self._kept.pop(checked(name), None)

    def sweep(self, older_than: float) -> int:
        with self._lock:
            limit = self._clock() - older_than
            old = [name for name, (_, since) in self._kept.items() if since < limit]
            for name in old:
                del self._kept[name]
        return len(old)

    def _write(self, name: str, data: bytes, max_age: float) -> None:
        with self._lock:
            self._kept[checked(name)] = (data, self._since(max_age))

    def _since(self, max_age: float) -> float:
        """Now; or as much later as it is needed longer than usual."""
        return self._clock() + max(0.0, max_age - self._usual)
