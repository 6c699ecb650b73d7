"""One suspect at a time, alone in its worker.

When a whole worker died, everything it ran is a suspect. Before one is called
poison it gets the worker to itself: if the worker dies again it was the culprit;
if it finishes, it was a bystander. Meanwhile other requests wait here, unacked
and bounded by the prefetch count; after it they go on in their order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any


class Isolation:
    """Decides which request goes to the pool now. Knows no pool and no broker.

    Args:
        start: Hands a request to the pool.

        running: The requests the worker has taken on and not finished.

        give_back: Takes a suspect for which the worker did not come to rest within *patience*
            seconds. All that arrived after it waits meanwhile, and one long task must not hold up a worker.
    """

    def __init__(
        self,
        start: Callable[[Any], Any],
        running: Callable[[], Collection[Any]],
        give_back: Callable[[Any], Any],
        *,
        patience: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._running = running
        self._give_back = give_back
        self._patience = patience
        self._clock = clock
        self._waiting: deque[tuple[Any, bool, float]] = deque()
        self._alone: Any = None
        # Timers fire in another thread where the pool has no event loop.
        self._lock = threading.RLock()

    @property
    def active(self) -> bool:
        """Is a suspect running alone, or waiting to?"""
        return self._alone is not None or bool(self._waiting)

    def admit(self, request: Any, *, alone: bool) -> None:
        """Start *request* now, or keep it until its turn."""
        with self._lock:
            if not alone and not self.active:
                self._start(request)
                return
            self._waiting.append((request, alone, self._clock()))
            self.proceed()

    def proceed(self) -> None:
        """Start whatever may start now. Called until ``active`` is false."""
        with self._lock:
            if self._alone is not None:
                if self._alone in self._running():
                    return
                self._alone = None
            while self._waiting:
                request, alone, since = self._waiting[0]
                if alone and self._others(request):
                    if self._clock() - since < self._patience:
                        return
                    self._waiting.popleft()
                    self._give_back(request)
                    continue
                self._waiting.popleft()
                if alone:
                    self._alone = request
                    self._start(request)
                    return
                self._start(request)

    def forget(self) -> None:
        """The connection is gone: what waits here will be delivered again."""
        with self._lock:
            self._waiting.clear()
            self._alone = None

    def _others(self, request: Any) -> bool:
        waiting = {id(waiting) for waiting, _, _ in self._waiting}
        return any(other is not request and id(other) not in waiting for other in self._running())
