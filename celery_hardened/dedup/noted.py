"""What a process remembers of the tasks that run in it."""

from __future__ import annotations

import threading

#: Of more the oldest are forgotten: tasks that ended where this process could not see it.
MOST = 10_000


class Noted:
    """Keys and the tasks that hold them. For any thread."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._ones: dict[tuple[str, str], None] = {}
        self._lock = threading.Lock()

    def note(self, key: str, task_id: str) -> None:
        with self._lock:
            while len(self._ones) >= self._most:
                del self._ones[next(iter(self._ones))]
            self._ones[key, task_id] = None

    def take(self, key: str, task_id: str) -> bool:
        """Was it noted? It is no more."""
        with self._lock:
            return self._ones.pop((key, task_id), 0) is None

    def __len__(self) -> int:
        return len(self._ones)
