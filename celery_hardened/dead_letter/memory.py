"""Dead letters in this process: for eager tasks and unit tests. Same contract, no server."""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from celery_hardened.dead_letter.contract import (
    AUDIT_MAX,
    INDEX_BYTES,
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
from celery_hardened.dead_letter.record import FIRST, Record, first_state, imported_state
from celery_hardened.errors import DeadLetterNotFoundError
from celery_hardened.marks import Marks

_STATS_TOP = 100
_STATS_PAIRS = 1000


@dataclass(slots=True)
class _Kept:
    letter: DeadLetter
    stored_at: float
    bytes: int
    record: Record


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
            self._add(letter, first_state(letter), self._now())
            redrive = Marks.read(letter.headers).redrive
            if redrive and (before := self._kept.get(redrive[0])):
                before.record = before.record.died_again(letter.id, now=self._clock())
            return True

    def put_many(self, letters: Iterable[StoredLetter]) -> int:
        new = 0
        for stored in letters:
            with self._lock:
                if stored.letter.id in self._kept:
                    continue
                state = imported_state(stored.letter, stored.state)
                self._add(stored.letter, state, min(stored.stored_at, self._now()), stored.audit[-AUDIT_MAX:])
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
            pairs = Counter((label(one.letter.queue), label(one.letter.reason)) for one in found)
            return Stats(
                open=len(found),
                bytes=sum(kept.bytes for kept in self._kept.values()),
                oldest=found[0].stored_at if found else None,
                newest=found[-1].stored_at if found else None,
                by_state=dict(Counter(kept.record.state for kept in self._kept.values()).most_common()),
                by_queue_and_reason=dict(pairs.most_common(_STATS_PAIRS)),
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
            now, keep = self._clock(), self._retention.closed_max_age
            for kept in self._known(letter_ids):
                after = kept.record.taken(token, by=by, why=why, now=now, lease=lease, keep=keep)
                if after is not None:
                    kept.record = after
                    taken.append(self._seen(kept))
        return taken

    def finish_redrive(self, letter_ids: Sequence[str], *, token: str) -> int:
        now, keep = self._clock(), self._retention.closed_max_age
        return self._step(letter_ids, lambda record: record.sent(token, now=now, keep=keep))

    def cancel_redrive(self, letter_ids: Sequence[str], *, token: str, why: str) -> int:
        now = self._clock()
        return self._step(letter_ids, lambda record: record.given_back(token, why=why, now=now))

    def accept_start(self, letter_id: str, *, token: str) -> bool:
        with self._lock:
            if letter_id not in self._kept:
                if self._fences.get(letter_id) == FIRST:
                    self._fences[letter_id] = token
                return self._fences.get(letter_id, token) == token
            now, keep = self._clock(), self._retention.closed_max_age
            return bool(self._step([letter_id], lambda record: record.started(token, now=now, keep=keep)))

    def resolve(self, letter_id: str, *, by: str, why: str) -> bool:
        return self._end(letter_id, "resolved", by, why)

    def discard(self, letter_id: str, *, by: str, why: str) -> bool:
        return self._end(letter_id, "discarded", by, why)

    # --- the inside: called with the lock held, but for _matching, _step and _end --------------

    def _step(self, letter_ids: Sequence[str], step: Callable[[Record], Record | None]) -> int:
        """Take *step* with each letter that may take it; how many did."""
        steps = 0
        with self._lock:
            for kept in self._known(letter_ids):
                after = step(kept.record)
                if after is not None:
                    kept.record = after
                    steps += 1
        return steps

    def _end(self, letter_id: str, state: State, by: str, why: str) -> bool:
        now, keep = self._clock(), self._retention.closed_max_age
        return bool(self._step([letter_id], lambda record: record.ended(state, by=by, why=why, now=now, keep=keep)))

    def _matching(self, query: Query) -> list[StoredLetter]:
        """Oldest first."""
        with self._lock:
            found = [one for one in map(self._seen, self._kept.values()) if matches(query, one)]
        return sorted(found, key=lambda one: one.stored_at)

    def _known(self, letter_ids: Sequence[str]) -> Iterator[_Kept]:
        return (self._kept[one] for one in letter_ids if one in self._kept)

    def _seen(self, kept: _Kept) -> StoredLetter:
        record = kept.record
        return StoredLetter(
            letter=kept.letter,
            state=record.state,
            stored_at=kept.stored_at,
            audit=record.audit,
            leased=record.held(self._clock()),
            successor=record.successor,
        )

    def _now(self) -> float:
        """The time, never the same twice: pages are cut by it."""
        self._last = max(self._clock(), self._last + 1e-6)
        return self._last

    def _add(self, letter: DeadLetter, state: State, stored_at: float, audit: tuple[Audit, ...] = ()) -> None:
        while any(kept.stored_at == stored_at for kept in self._kept.values()):
            stored_at += 1e-6
        age = self._retention.max_age if letter.max_age is None else letter.max_age
        size = len(zlib.compress(dump(letter))) + INDEX_BYTES
        record = Record(state=state, parked=letter.parked, audit=audit, expires=self._clock() + age)
        self._kept[letter.id] = _Kept(letter, stored_at, size, record)
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
        kept = sorted(self._kept.values(), key=lambda one: one.stored_at)
        for one in kept:
            if one.record.expires <= now:
                return one.letter.id, "age"
        still_open = [one for one in kept if one.record.open]
        tasks = Counter(label(one.letter.task) for one in still_open)
        for one in still_open:
            if tasks[label(one.letter.task)] > bounds.max_count_per_task and one.letter.id != keep:
                return one.letter.id, "count"
        over = "count" if len(kept) > bounds.max_count else ""
        over = over or ("bytes" if sum(one.bytes for one in kept) > bounds.max_bytes else "")
        # An open letter does not go to make room for the record of a closed one.
        closed = [one for one in kept if not one.record.open]
        goes = [one.letter.id for one in closed or still_open if one.letter.id != keep]
        return (goes[0], over) if over and goes else None

    def _drop(self, letter_id: str, cause: str | None) -> bool:
        kept = self._kept.pop(letter_id, None)
        if kept is None:
            return False
        if cause and kept.record.open:
            self._dropped[cause] += 1
        verdict = kept.record.verdict()
        if verdict is not None:
            self._fences[letter_id] = verdict
        return True
