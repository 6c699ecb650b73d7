"""Dead letters in this process: for eager tasks and unit tests. Same contract, no server."""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from celery_hardened.dead_letter.contract import (
    AUDIT_MAX,
    INDEX_BYTES,
    OPEN,
    Audit,
    Page,
    Query,
    Retention,
    State,
    Stats,
    StoredLetter,
)
from celery_hardened.dead_letter.index import LABELS, label, matches
from celery_hardened.dead_letter.letter import DeadLetter, dump
from celery_hardened.errors import DeadLetterNotFoundError
from celery_hardened.marks import Marks

_STATS_TOP = 100


@dataclass(slots=True)
class _Kept:
    stored: StoredLetter
    bytes: int
    expires: float
    token: str = ""
    tokens: int = 0
    lease: float = 0.0
    accepted: str | None = None


class InMemoryDeadLetterStore:
    """A ``DeadLetterStore`` that lives and dies with this process. Thread-safe."""

    def __init__(self, *, retention: Retention, clock: Callable[[], float] = time.time) -> None:
        self._retention = retention
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._fences: dict[str, str] = {}
        self._dropped: Counter[str] = Counter()
        self._last = 0.0
        self._lock = threading.RLock()

    # --- writing ---------------------------------------------------------------------------

    def put(self, letter: DeadLetter) -> bool:
        with self._lock:
            if letter.id in self._kept:
                return False
            self._add(StoredLetter(letter=letter, state=_first_state(letter), stored_at=self._now()))
            redrive = Marks.read(letter.headers).redrive
            if redrive and (before := self._kept.get(redrive[0])):
                before.stored = replace(before.stored, successor=letter.id)
                self._note(before, "died again", "", letter.id)
            return True

    def put_many(self, letters: Iterable[StoredLetter]) -> int:
        new = 0
        for stored in letters:
            with self._lock:
                if stored.letter.id in self._kept:
                    continue
                state = _first_state(stored.letter) if stored.state == "redriving" else stored.state
                at = min(stored.stored_at, self._now())
                self._add(
                    StoredLetter(letter=stored.letter, state=state, stored_at=at, audit=stored.audit[-AUDIT_MAX:])
                )
                new += 1
        return new

    def delete(self, letter_id: str) -> bool:
        with self._lock:
            return self._drop(letter_id, None)

    def sweep(self, *, limit: int = 1000) -> int:
        with self._lock:
            return self._retain(limit, keep=None)

    # --- reading ---------------------------------------------------------------------------

    def get(self, letter_id: str) -> StoredLetter:
        with self._lock:
            if letter_id not in self._kept:
                raise DeadLetterNotFoundError(letter_id)
            return self._seen(self._kept[letter_id])

    def find(self, query: Query, *, limit: int = 50, cursor: str | None = None) -> Page:
        found = [one for one in reversed(self._matching(query)) if cursor is None or one.stored_at < float(cursor)]
        more = len(found) > limit
        return Page(tuple(found[:limit]), repr(found[limit - 1].stored_at) if more and limit else None)

    def ids(self, query: Query) -> Iterator[str]:
        yield from [one.letter.id for one in self._matching(query)]

    def count(self, query: Query) -> int:
        return len(self._matching(query))

    def stats(self) -> Stats:
        with self._lock:
            found = self._matching(Query())
            by = {
                f"by_{name}": dict(Counter(label(getattr(one.letter, name)) for one in found).most_common(_STATS_TOP))
                for name in LABELS
            }
            return Stats(
                open=len(found),
                bytes=sum(kept.bytes for kept in self._kept.values()),
                oldest=found[0].stored_at if found else None,
                newest=found[-1].stored_at if found else None,
                by_state=dict(Counter(kept.stored.state for kept in self._kept.values()).most_common()),
                dropped=dict(self._dropped),
                **by,
            )

    def parked_groups(self) -> list[tuple[str, str]]:
        waiting = [*self._matching(Query(state="parked")), *self._matching(Query(state="redriving"))]
        return [(one.letter.id, one.letter.group_id) for one in waiting if one.letter.parked and one.letter.group_id]

    # --- redrive ---------------------------------------------------------------------------

    def begin_redrive(
        self, letter_ids: Sequence[str], *, token: str, by: str, why: str, lease: float
    ) -> list[StoredLetter]:
        taken = []
        with self._lock:
            now = self._clock()
            for kept in self._known(letter_ids):
                held = kept.stored.state == "redriving" and kept.lease > now
                if kept.stored.state not in OPEN or (held and kept.token != token):
                    continue
                if not held or kept.token != token:
                    kept.token, kept.tokens, kept.lease = token, kept.tokens + 1, now + lease
                    kept.expires = max(kept.expires, now + self._retention.closed_max_age)
                    self._note(kept, "redrive", by, why)
                    kept.stored = replace(kept.stored, state="redriving")
                taken.append(self._seen(kept))
        return taken

    def finish_redrive(self, letter_ids: Sequence[str], *, token: str) -> int:
        finished = 0
        with self._lock:
            for kept in self._known(letter_ids):
                if kept.stored.state == "redriving" and kept.token == token:
                    self._close(kept, "redriven")
                elif kept.accepted != token and not (
                    kept.stored.state == "redriven" and kept.token == token and kept.accepted is None
                ):
                    continue
                finished += 1
        return finished

    def cancel_redrive(self, letter_ids: Sequence[str], *, token: str, why: str) -> int:
        cancelled = 0
        with self._lock:
            for kept in self._known(letter_ids):
                if kept.stored.state == "redriving" and kept.token == token:
                    self._note(kept, "cancel", kept.stored.audit[-1].by, why)
                    kept.stored = replace(kept.stored, state=_first_state(kept.stored.letter))
                    cancelled += 1
        return cancelled

    def accept_start(self, letter_id: str, *, token: str) -> bool:
        with self._lock:
            kept = self._kept.get(letter_id)
            if kept is None:
                if self._fences.get(letter_id) == "":
                    self._fences[letter_id] = token
                return self._fences.get(letter_id, token) == token
            if kept.accepted is not None:
                return kept.accepted == token
            if kept.stored.state in ("resolved", "discarded"):
                return False
            kept.accepted = token
            self._close(kept, "redriven")
            return True

    def resolve(self, letter_id: str, *, by: str, why: str) -> bool:
        return self._end(letter_id, "resolved", (*OPEN, "redriven"), by, why)

    def discard(self, letter_id: str, *, by: str, why: str) -> bool:
        return self._end(letter_id, "discarded", OPEN, by, why)

    # --- the inside: called with the lock held, but for _matching and _end --------------------

    def _end(self, letter_id: str, state: State, allowed: Sequence[State], by: str, why: str) -> bool:
        with self._lock:
            kept = self._kept.get(letter_id)
            if kept is None or kept.stored.state not in allowed:
                return False
            self._note(kept, state, by, why)
            self._close(kept, state)
            return True

    def _matching(self, query: Query) -> list[StoredLetter]:
        """Oldest first."""
        with self._lock:
            found = [self._seen(kept) for kept in self._kept.values() if matches(query, kept.stored)]
        return sorted(found, key=lambda one: one.stored_at)

    def _known(self, letter_ids: Sequence[str]) -> Iterator[_Kept]:
        return (self._kept[one] for one in letter_ids if one in self._kept)

    def _seen(self, kept: _Kept) -> StoredLetter:
        return replace(kept.stored, leased=kept.stored.state == "redriving" and kept.lease > self._clock())

    def _now(self) -> float:
        """The time, never the same twice: pages are cut by it."""
        self._last = max(self._clock(), self._last + 1e-6)
        return self._last

    def _note(self, kept: _Kept, action: str, by: str, why: str) -> None:
        audit = (*kept.stored.audit, Audit(self._clock(), action, by, why))[-AUDIT_MAX:]
        kept.stored = replace(kept.stored, audit=audit)

    def _close(self, kept: _Kept, state: State) -> None:
        kept.stored = replace(kept.stored, state=state)
        kept.expires = self._clock() + self._retention.closed_max_age

    def _add(self, stored: StoredLetter) -> None:
        while any(kept.stored.stored_at == stored.stored_at for kept in self._kept.values()):
            stored = replace(stored, stored_at=stored.stored_at + 1e-6)
        letter = stored.letter
        age = self._retention.max_age if letter.max_age is None else letter.max_age
        size = len(zlib.compress(dump(letter))) + INDEX_BYTES
        self._kept[letter.id] = _Kept(stored, size, self._clock() + age)
        self._retain(len(self._kept), keep=letter.id)

    def _retain(self, budget: int, *, keep: str | None) -> int:
        """Drop what is too old, then what is too much; at most *budget*, never *keep*."""
        before = len(self._kept)
        while before - len(self._kept) < budget:
            victim = self._victim(keep)
            if victim is None:
                break
            self._drop(*victim)
        return before - len(self._kept)

    def _victim(self, keep: str | None) -> tuple[str, str] | None:
        now, bounds = self._clock(), self._retention
        kept = sorted(self._kept.values(), key=lambda one: one.stored.stored_at)
        for one in kept:
            if one.expires <= now:
                return one.stored.letter.id, "age"
        still_open = [one for one in kept if one.stored.state in OPEN]
        tasks = Counter(label(one.stored.letter.task) for one in still_open)
        for one in still_open:
            if tasks[label(one.stored.letter.task)] > bounds.max_count_per_task and one.stored.letter.id != keep:
                return one.stored.letter.id, "count"
        over = "count" if len(kept) > bounds.max_count else ""
        over = over or ("bytes" if sum(one.bytes for one in kept) > bounds.max_bytes else "")
        # An open letter does not go to make room for the record of a closed one.
        closed = [one for one in kept if one.stored.state not in OPEN]
        goes = [one.stored.letter.id for one in closed or still_open if one.stored.letter.id != keep]
        return (goes[0], over) if over and goes else None

    def _drop(self, letter_id: str, cause: str | None) -> bool:
        kept = self._kept.pop(letter_id, None)
        if kept is None:
            return False
        if cause and kept.stored.state in OPEN:
            self._dropped[cause] += 1
        # As in records.lua: messages of this letter may still be under way.
        ended = kept.stored.state in ("resolved", "discarded")
        if kept.tokens >= 2 or (kept.tokens == 1 and ended and kept.accepted is None):
            self._fences[letter_id] = kept.accepted or ("!" if ended else "")
        return True


def _first_state(letter: DeadLetter) -> State:
    return "parked" if letter.parked else "dead"
