"""When each schedule is to be looked at next: a tick costs as much as is due, however many there are."""

from __future__ import annotations

import heapq
import math

#: So few outdated entries are not worth building the heap again.
_FEW = 64


class Agenda:
    """Names by the instant they are due. Not safe to be changed by several threads.

    A name that is moved or dropped leaves its old entry in the heap, where it is passed over when it comes
    up; once such entries outnumber the others, they are thrown out together.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        """How many names have an instant."""
        return len(self._due)

    def put(self, name: str, due: float | None) -> None:
        """Look at *name* at *due*, and no longer when that was said before; ``None``: never."""
        if due is None:
            self.drop(name)
            return
        if math.isnan(due):
            raise ValueError(f"schedule {name!r} cannot be due at NaN")
        if self._due.get(name) == due:
            return
        self._due[name] = due
        heapq.heappush(self._heap, (due, name))
        self._tidy()

    def when(self, name: str) -> float | None:
        """When *name* is to be looked at; ``None``: it is not."""
        return self._due.get(name)

    def drop(self, name: str) -> None:
        """Do not look at *name* again; it need not be there."""
        if self._due.pop(name, None) is not None:
            self._tidy()

    def due(self, now: float, most: int) -> list[str]:
        """Take out what is due at *now*: the *most* earliest, in order."""
        found: list[str] = []
        while len(found) < most and (head := self._head()) is not None and head[0] <= now:
            heapq.heappop(self._heap)
            del self._due[head[1]]
            found.append(head[1])
        return found

    def next(self) -> float | None:
        """When the next one is due; ``None``: nothing is."""
        head = self._head()
        return None if head is None else head[0]

    def _head(self) -> tuple[float, str] | None:
        while self._heap:
            head = self._heap[0]
            if self._due.get(head[1]) == head[0]:
                return head
            heapq.heappop(self._heap)
        return None

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._due) + _FEW:
            self._heap = [(due, name) for name, due in self._due.items()]
            heapq.heapify(self._heap)
