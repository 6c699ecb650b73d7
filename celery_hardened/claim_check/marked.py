"""Stores that cannot replace an object in one step: what else there is to say of one lies beside it."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from celery_hardened.claim_check.contract import ENDED, checked

#: Beside an object: its task has ended; or its age began anew, and then it says until when it is needed.
#: Written before the object is removed.
_ENDED = ".ended"
_KEPT = ".kept"

#: An object without bytes is odd in some stores: a range of it cannot be asked for.
_SAYS = b"celery_hardened"

#: Bytes of a mark that are read.
_MARK_MOST = 64


class MarkedPayloadStore(ABC):
    """A payload store on four operations of an object store. What each raises, the subclass says.

    *usual*: see the contract. *clock* gives seconds since the epoch.
    """

    def __init__(self, *, usual: float = math.inf, clock: Callable[[], float] = time.time) -> None:
        self._usual = usual
        self._clock = clock

    def put(self, name: str, data: bytes, *, max_age: float) -> None:
        if not data:
            raise ValueError("an empty payload would say that its task has ended")
        if max_age > self._usual:  # first: the object is never there without it
            self._write(checked(name) + _KEPT, self._until(max_age))
        self._write(checked(name), data)

    def get(self, name: str, *, most: int) -> bytes | None:
        found = self._read(checked(name), most + 1)
        if found is None and self._read(name + _ENDED, 1) is not None:
            return ENDED
        return found

    def finish(self, name: str, *, max_age: float) -> None:  # noqa: ARG002 - it has the usual age
        self._write(checked(name) + _ENDED, _SAYS)
        self._remove(name)

    def keep(self, name: str, *, max_age: float) -> None:
        if self._read(checked(name), 1) is None:
            return
        # Another time of writing is what counts. Killed in between, the object's own age does.
        self._remove(name + _KEPT)
        self._write(name + _KEPT, self._until(max_age))

    def delete(self, name: str) -> None:
        for each in (checked(name), name + _ENDED, name + _KEPT):
            self._remove(each)

    def sweep(self, older_than: float) -> int:
        """Remove each object, and what lies beside it, when all of it is too old and not needed longer."""
        found: dict[str, list[tuple[str, float]]] = {}
        for full, age in self._ages():
            name, dot, mark = full.partition(".")
            if _is_name(name) and dot + mark in ("", _ENDED, _KEPT):
                found.setdefault(name, []).append((full, age))
        old = [each for each in found.values() if min(age for _, age in each) > older_than and not self._needed(each)]
        for each in old:
            for full, _ in each:
                self._remove(full)
        return len(old)

    def _until(self, max_age: float) -> bytes:
        return b"%s %.0f" % (_SAYS, self._clock() + max_age) if max_age > self._usual else _SAYS

    def _needed(self, parts: list[tuple[str, float]]) -> bool:
        """Does the mark beside it say that it is needed longer than others? Asked of what is old alone."""
        mark = next((full for full, _ in parts if full.endswith(_KEPT)), None)
        if mark is None:
            return False
        says, _, until = (self._read(mark, _MARK_MOST) or b"").partition(b" ")
        return says == _SAYS and until.isdigit() and int(until) > self._clock()

    @abstractmethod
    def _write(self, name: str, data: bytes) -> None:
        """In place of what is there."""

    @abstractmethod
    def _read(self, name: str, most: int) -> bytes | None:
        """At most *most* bytes; ``None`` if there is no such object."""

    @abstractmethod
    def _remove(self, name: str) -> None:
        """Also of what is not there."""

    @abstractmethod
    def _ages(self) -> Iterator[tuple[str, float]]:
        """Every object, and the seconds since it was written."""


def _is_name(text: str) -> bool:
    try:
        checked(text)
    except ValueError:
        return False
    return True
