"""Dead letters in Redis: each step one script, lists and counts from indexes, all of it bounded.

``records.lua`` draws the keys. They share one hash tag, so every script stays
in one slot of a cluster.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from redis import Redis

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
from celery_hardened.dead_letter.index import LABELS, index_names, labels, matches
from celery_hardened.dead_letter.letter import DeadLetter, dump, load
from celery_hardened.dead_letter.record import first_state, imported_state
from celery_hardened.errors import DeadLetterNotFoundError, EnvelopeError
from celery_hardened.marks import Marks
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Script

#: Letters a single script takes; the server does nothing else meanwhile.
_BATCH = 200

#: Index entries a single script looks at: a few milliseconds.
_BUDGET = 5000

#: Groups of each label that ``stats`` tells of.
_STATS_TOP = 100
_STATS_PAIRS = 1000

#: Characters kept of who and why.
_NOTE_MAX = 500

#: Seconds; a letter that asks for more is kept this long. Thirty years of microseconds are still exact in Lua.
_AGE_MAX = 1e9


class RedisDeadLetterStore:
    """A ``DeadLetterStore`` in Redis >= 6.2 or Valkey. May be shared by threads and forked processes."""

    def __init__(self, client: Redis, *, prefix: str, retention: Retention) -> None:
        self._client = client
        self._keys = [base_key(prefix)]
        self._retention = retention
        self._bounds = [retention.max_count, retention.max_count_per_task, retention.max_bytes]
        self._keep = _us(retention.closed_max_age)

        def step(*names: str, operation: str) -> Script:
            return Script(client, __package__ or "", "records", *names, operation=operation)

        self._put = step("retention", "put", operation="writing a dead letter")
        self._sweep = step("retention", "sweep", operation="sweeping dead letters")
        self._read = step("read", operation="reading a dead letter")
        self._find = step("find", operation="searching dead letters")
        self._stats = step("stats", operation="counting dead letters")
        self._begin = step("begin_redrive", operation="beginning a redrive")
        self._finish = step("finish_redrive", operation="finishing a redrive")
        self._cancel = step("cancel_redrive", operation="cancelling a redrive")
        self._accept = step("accept_start", operation="asking whether a redriven message may run")
        self._close = step("close", operation="closing a dead letter")
        self._delete = step("delete", operation="deleting a dead letter")

    # --- writing ---------------------------------------------------------------------------

    def put(self, letter: DeadLetter) -> bool:
        return bool(self._put(keys=self._keys, args=self._put_args(letter, first_state(letter))))

    def put_many(self, letters: Iterable[StoredLetter]) -> int:
        new = 0
        for batch in _batches(letters):
            with answered("importing dead letters"), self._client.pipeline(transaction=False) as pipeline:
                for stored in batch:
                    self._put.queue(pipeline, keys=self._keys, args=self._import_args(stored))
                new += sum(pipeline.execute())
        return new

    def delete(self, letter_id: str) -> bool:
        return bool(self._delete(keys=self._keys, args=[letter_id]))

    def sweep(self, *, limit: int = 1000) -> int:
        gone = 0
        while gone < limit:
            step = min(_BATCH, limit - gone)
            dropped = self._sweep(keys=self._keys, args=[step, *self._bounds])
            gone += dropped
            if dropped < step:
                break
        return gone

    def _put_args(
        self, letter: DeadLetter, state: State, audit: Sequence[Audit] = (), stored_at: float | None = None
    ) -> list[Any]:
        envelope = zlib.compress(dump(letter))
        record: dict[str, Any] = {
            "state": state,
            "bytes": len(envelope) + INDEX_BYTES,
            "labels": labels(letter),
            "parked": letter.parked,
            "audit": [
                [str(_us(entry.at)), _note(entry.action), _note(entry.by), _note(entry.why)]
                for entry in audit[-AUDIT_MAX:]
            ],
        }
        if letter.group_id:
            record["group"] = _note(letter.group_id)
        age = self._retention.max_age if letter.max_age is None else letter.max_age
        redrive = Marks.read(letter.headers).redrive
        return [
            letter.id,
            envelope,
            json.dumps(record, separators=(",", ":")),
            "" if stored_at is None else _us(stored_at),
            _us(min(age, _AGE_MAX)),
            redrive[0] if redrive else "",
            *self._bounds,
        ]

    def _import_args(self, stored: StoredLetter) -> list[Any]:
        state = imported_state(stored.letter, stored.state)
        return self._put_args(stored.letter, state, stored.audit, stored.stored_at)

    # --- reading ---------------------------------------------------------------------------

    def get(self, letter_id: str) -> StoredLetter:
        found = self._by_ids([letter_id])
        if not found:
            raise DeadLetterNotFoundError(letter_id)
        return found[0]

    def find(self, query: Query, *, limit: int = 50, cursor: str | None = None) -> Page:
        # One more than asked for tells whether there is a next page.
        if query.ids:
            found = [stored for stored in self._by_ids(query.ids) if matches(query, stored)]
            found.sort(key=lambda stored: stored.stored_at, reverse=True)
            found = [stored for stored in found if not cursor or _us(stored.stored_at) < int(cursor)][: limit + 1]
        else:
            walk = self._walk(
                "letters", query, order="desc", limit=limit + 1, cursor=str(int(cursor)) if cursor else ""
            )
            found = [stored for now, items in walk for stored in _letters(now, items)]
        more = len(found) > limit
        letters = tuple(found[:limit])
        return Page(letters, str(_us(letters[-1].stored_at)) if more and letters else None)

    def ids(self, query: Query) -> Iterator[str]:
        if query.ids:
            found = [stored for stored in self._by_ids(query.ids) if matches(query, stored)]
            found.sort(key=lambda stored: stored.stored_at)
            yield from (stored.letter.id for stored in found)
            return
        for _, items in self._walk("ids", query, order="asc"):
            yield from (item.decode() for item in items)

    def count(self, query: Query) -> int:
        if query.ids:
            return sum(matches(query, stored) for stored in self._by_ids(query.ids))
        return sum(items[0] for _, items in self._walk("count", query, order="asc"))

    def stats(self) -> Stats:
        args = [_STATS_TOP, _STATS_PAIRS]
        number, oldest, newest, raw_totals, raw_pairs, *groups = self._stats(keys=self._keys, args=args)
        totals = {name.decode(): int(value) for name, value in _pairs(raw_totals)}
        by = {
            f"by_{name}": {value.decode(): int(count) for value, count in _pairs(group)}
            for name, group in zip(("state", *LABELS), groups, strict=True)
        }
        return Stats(
            open=number,
            bytes=totals.pop("bytes", 0),
            oldest=_seconds(oldest) if oldest else None,
            newest=_seconds(newest) if newest else None,
            by_queue_and_reason={_queue_and_reason(pair): int(count) for pair, count in _pairs(raw_pairs)},
            dropped={name.removeprefix("dropped_"): count for name, count in totals.items()},
            **by,
        )

    def parked_groups(self) -> list[tuple[str, str]]:
        groups = []
        for state in ("parked", "redriving"):
            for _, items in self._walk("records", Query(state=state), order="asc"):
                for letter_id, raw in zip(items[::2], items[1::2], strict=True):
                    record = json.loads(raw)
                    if record["parked"] and "group" in record:
                        groups.append((letter_id.decode(), record["group"]))
        return groups

    def _by_ids(self, letter_ids: Sequence[str]) -> list[StoredLetter]:
        found: list[StoredLetter] = []
        for batch in _batches(dict.fromkeys(letter_ids)):
            now, *items = self._read(keys=self._keys, args=batch)
            found.extend(_letters(now, items))
        return found

    def _walk(
        self, want: str, query: Query, *, order: str, limit: int | None = None, cursor: str = ""
    ) -> Iterator[tuple[bytes, list[Any]]]:
        """Call ``find.lua`` until its cursor ends or *limit* items came: the server's time, and items."""
        bounds = [
            "-inf" if query.since is None else _us(query.since),
            "+inf" if query.until is None else _us(query.until),
        ]
        width = {"letters": 3, "records": 2}.get(want, 1)
        most = _BUDGET if want in ("ids", "count") else _BATCH
        left = limit
        while left is None or left > 0:
            step = most if left is None else min(most, left)
            args = [want, order, *bounds, cursor, step, _BUDGET, *index_names(query)]
            raw_cursor, now, *items = self._find(keys=self._keys, args=args)
            yield now, items
            cursor = raw_cursor.decode()
            if not cursor:
                return
            if left is not None:
                left -= len(items) // width

    # --- redrive ---------------------------------------------------------------------------

    def begin_redrive(
        self, letter_ids: Sequence[str], *, token: str, by: str, why: str, lease: float
    ) -> list[StoredLetter]:
        taken: list[StoredLetter] = []
        for batch in _batches(letter_ids):
            args = [token, _us(lease), _note(by), _note(why), self._keep, *batch]
            now, *items = self._begin(keys=self._keys, args=args)
            taken.extend(_letters(now, items))
        return taken

    def finish_redrive(self, letter_ids: Sequence[str], *, token: str) -> int:
        return sum(self._finish(keys=self._keys, args=[token, self._keep, *batch]) for batch in _batches(letter_ids))

    def cancel_redrive(self, letter_ids: Sequence[str], *, token: str, why: str) -> int:
        return sum(self._cancel(keys=self._keys, args=[token, _note(why), *batch]) for batch in _batches(letter_ids))

    def accept_start(self, letter_id: str, *, token: str) -> bool:
        return bool(self._accept(keys=self._keys, args=[letter_id, token, self._keep]))

    def resolve(self, letter_id: str, *, by: str, why: str) -> bool:
        return self._closed(letter_id, "resolved", by, why)

    def discard(self, letter_id: str, *, by: str, why: str) -> bool:
        return self._closed(letter_id, "discarded", by, why)

    def _closed(self, letter_id: str, state: State, by: str, why: str) -> bool:
        call = uuid.uuid4().hex[:12]
        return bool(self._close(keys=self._keys, args=[letter_id, state, _note(by), _note(why), self._keep, call]))


def base_key(prefix: str) -> str:
    """First part of every dead letter key. *prefix* comes first, where access rules look for it."""
    return f"{prefix}:{{dead_letter}}"


def _letters(now: bytes, items: Sequence[Any]) -> list[StoredLetter]:
    """Read ``id, record, envelope, ...`` as a script answers them."""
    return [
        _stored(letter_id.decode(), json.loads(record), envelope, now=int(now))
        for letter_id, record, envelope in zip(items[::3], items[1::3], items[2::3], strict=True)
    ]


def _stored(letter_id: str, record: dict[str, Any], envelope: bytes, *, now: int) -> StoredLetter:
    try:
        letter = load(zlib.decompress(envelope))
    except (EnvelopeError, zlib.error) as problem:
        why = problem.problem if isinstance(problem, EnvelopeError) else f"zlib: {problem}"
        raise EnvelopeError(f"letter {letter_id!r}: {why}") from problem
    return StoredLetter(
        letter=letter,
        state=record["state"],
        stored_at=_seconds(record["at"]),
        # Lua has one kind of table: an empty list comes back as an empty object.
        audit=tuple(Audit(_seconds(at), action, by, why) for at, action, by, why in record["audit"] or ()),
        leased=record["state"] == "redriving" and int(record["lease"]) > now,
        successor=record.get("successor"),
    )


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    source = iter(items)
    while batch := list(islice(source, _BATCH)):
        yield batch


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _queue_and_reason(pair: bytes) -> tuple[str, str]:
    reason, _, queue = pair.decode().partition(" ")  # of these two a reason never holds a blank
    return queue, reason


def _note(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:_NOTE_MAX]


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _seconds(us: bytes | str) -> float:
    return int(us) / 1_000_000
