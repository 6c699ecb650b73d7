"""Dead letters in the project's database. Each step on a letter is one transaction that holds its row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from django.db import IntegrityError, transaction
from django.db.models import Count, QuerySet

from celery_hardened.contrib.django.dead_letters.outside import outside
from celery_hardened.contrib.django.dead_letters.retain import Retaining
from celery_hardened.contrib.django.dead_letters.rows import RECORD, columns, key_of, record_of, row_of, stored
from celery_hardened.contrib.django.models import DeadLetterFence, DeadLetterRow, DeadLetterTotals
from celery_hardened.dead_letter.contract import OPEN, Page, Query, Retention, State, Stats, StoredLetter
from celery_hardened.dead_letter.index import LABELS, label
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.record import FIRST, Record, first_state, imported_state
from celery_hardened.errors import DeadLetterNotFoundError
from celery_hardened.marks import Marks

T = TypeVar("T")

#: Letters that one statement reads, or one transaction changes.
_BATCH = 200

#: Groups of each label, and of queue and reason together, that ``stats`` tells of.
_STATS_TOP = 100
_STATS_PAIRS = 1000
_PAIR = ("queue", "reason")


class DjangoDeadLetterStore:
    """A ``DeadLetterStore`` on PostgreSQL or SQLite. Threads and forked processes may share it.

    It is in no transaction of its caller: a letter stays when the work that failed is rolled back.

    Args:
        alias: Of ``DATABASES``.
    """

    def __init__(self, alias: str, *, retention: Retention) -> None:
        self._alias = alias
        self._retention = retention
        self._retaining = Retaining(alias, retention)

    # --- writing ------------------------------------------------------------------------------------------------

    def put(self, letter: DeadLetter) -> bool:
        def work(now: int) -> bool:
            redrive = Marks.read(letter.headers).redrive
            # First: who drops letters locks them and then the totals, which an insert locks until it is committed.
            before = self._locked([redrive[0]]) if redrive else []
            if not self._insert(letter, first_state(letter), now=now):
                return False
            for row in before:
                self._save(row, record_of(row).died_again(letter.id, now=now / 1e6))
            self._retaining.retain(now, keep=key_of(letter.id), most=100)
            return True

        return self._write("writing a dead letter", work)

    def put_many(self, letters: Iterable[StoredLetter]) -> int:
        new = 0
        for batch in _batches(letters):

            def work(now: int, batch: Sequence[StoredLetter] = batch) -> int:
                added = 0
                for one in batch:
                    state = imported_state(one.letter, one.state)
                    at = min(round(one.stored_at * 1e6), now)
                    if self._insert(one.letter, state, now=now, at=at, audit=one.audit):
                        added += 1
                        self._retaining.retain(now, keep=key_of(one.letter.id), most=100)
                return added

            new += self._write("importing dead letters", work)
        return new

    def _insert(self, letter: DeadLetter, state: State, *, now: int, at: int | None = None, audit: Any = ()) -> bool:
        age = self._retention.max_age if letter.max_age is None else letter.max_age
        row = row_of(letter, state=state, at=now if at is None else at, now=now, age=age, audit=audit)
        try:
            with transaction.atomic(using=self._alias):
                row.save(using=self._alias, force_insert=True)
        except IntegrityError:
            return False
        self._retaining.written(row)
        return True

    def delete(self, letter_id: str) -> bool:
        return self._write(
            "deleting a dead letter", lambda _: bool(self._retaining.drop(self._locked([letter_id]), None))
        )

    def sweep(self, *, limit: int = 1000) -> int:
        gone = 0
        while gone < limit:
            step = min(_BATCH, limit - gone)
            dropped = self._sweep(step)
            gone += dropped
            if dropped < step:
                break
        return gone

    def _sweep(self, most: int) -> int:
        return self._write("sweeping dead letters", lambda now: self._retaining.retain(now, keep=None, most=most))

    # --- reading ------------------------------------------------------------------------------------------------

    def get(self, letter_id: str) -> StoredLetter:
        found = self._read("reading a dead letter", lambda now: self._seen([letter_id], now))
        if not found:
            raise DeadLetterNotFoundError(letter_id)
        return found[0]

    def find(self, query: Query, *, limit: int = 50, cursor: str | None = None) -> Page:
        def work(now: int) -> Page:
            rows = self._matching(query).order_by("-at", "-id")
            if cursor is not None:
                at, _, last = cursor.partition(":")
                rows = _before(rows, int(at), last)
            found = list(rows[: limit + 1])  # one more than asked for tells whether there is a next page
            page = found[:limit]
            more = f"{page[-1].at}:{page[-1].id}" if len(found) > limit and page else None
            return Page(tuple(stored(row, now=now) for row in page), more)

        return self._read("searching dead letters", work)

    def ids(self, query: Query) -> Iterator[str]:
        at, last = -1, ""
        while True:

            def work(_: int, at: int = at, last: str = last) -> list[tuple[int, str]]:
                rows = _after(self._matching(query).order_by("at", "id"), at, last)
                return list(rows.values_list("at", "id")[:_BATCH])

            found = self._read("searching dead letters", work)
            yield from (one for _, one in found)
            if len(found) < _BATCH:
                return
            at, last = found[-1]

    def count(self, query: Query) -> int:
        return self._read("counting dead letters", lambda _: int(self._matching(query).count()))

    def stats(self) -> Stats:
        def work(_: int) -> Stats:
            rows = self._rows()
            still_open = rows.filter(is_open=True)
            ends = [still_open.order_by(way).values_list("at", flat=True).first() for way in ("at", "-at")]
            totals = DeadLetterTotals.objects.using(self._alias).first() or DeadLetterTotals()
            states = _groups(rows, "state")
            found = still_open.values_list("queue", "reason").annotate(number=Count("*")).order_by("-number")
            pairs = {(queue, reason): number for queue, reason, number in found[:_STATS_PAIRS]}
            dropped = {cause: getattr(totals, f"dropped_{cause}") for cause in ("age", "count", "bytes")}
            groups = {f"by_{name}": _groups(still_open, name) for name in LABELS if name not in _PAIR}
            for place, name in enumerate(_PAIR):
                # Each group more is a pass over the index of all letters.
                whole = len(pairs) < _STATS_PAIRS
                groups[f"by_{name}"] = _summed(pairs, place) if whole else _groups(still_open, name)
            return Stats(
                open=sum(states.get(state, 0) for state in OPEN),
                bytes=totals.bytes,
                oldest=None if ends[0] is None else ends[0] / 1e6,
                newest=None if ends[1] is None else ends[1] / 1e6,
                by_queue_and_reason=pairs,
                by_state=states,
                dropped={cause: number for cause, number in dropped.items() if number},
                **groups,
            )

        return self._read("counting dead letters", work)

    def parked_groups(self) -> list[tuple[str, str]]:
        def work(_: int) -> list[tuple[str, str]]:
            rows = self._rows().filter(state__in=("parked", "redriving"), parked=True, group_id__isnull=False)
            return list(rows.values_list("id", "group_id"))

        return self._read("reading dead letters", work)

    # --- redrive ------------------------------------------------------------------------------------------------

    def begin_redrive(
        self, letter_ids: Sequence[str], *, token: str, by: str, why: str, lease: float
    ) -> list[StoredLetter]:
        keep = self._retention.closed_max_age

        def step(record: Record, now: float) -> Record | None:
            return record.taken(token, by=by, why=why, now=now, lease=lease, keep=keep)

        taken: list[StoredLetter] = []
        for batch in _batches(letter_ids):

            def work(now: int, batch: Sequence[str] = batch) -> list[StoredLetter]:
                return [stored(row, now=now) for row in self._take(batch, step, now)]

            taken += self._write("beginning a redrive", work)
        return taken

    def finish_redrive(self, letter_ids: Sequence[str], *, token: str) -> int:
        keep = self._retention.closed_max_age
        return self._step("finishing a redrive", letter_ids, lambda one, now: one.sent(token, now=now, keep=keep))

    def cancel_redrive(self, letter_ids: Sequence[str], *, token: str, why: str) -> int:
        return self._step("cancelling a redrive", letter_ids, lambda one, now: one.given_back(token, why=why, now=now))

    def accept_start(self, letter_id: str, *, token: str) -> bool:
        keep = self._retention.closed_max_age

        def work(now: int) -> bool:
            found = self._locked([letter_id])
            if not found:
                return self._accepted_of_gone(letter_id, token)
            return bool(self._take([letter_id], lambda one, at: one.started(token, now=at, keep=keep), now))

        return self._write("asking whether a redriven message may run", work)

    def _accepted_of_gone(self, letter_id: str, token: str) -> bool:
        fences = DeadLetterFence.objects.using(self._alias).filter(pk=key_of(letter_id))
        fence = fences.select_for_update().first()
        if fence is not None and fence.verdict == FIRST:
            fences.update(verdict=token)
            return True
        return fence is None or fence.verdict == token

    def resolve(self, letter_id: str, *, by: str, why: str) -> bool:
        return self._ended(letter_id, "resolved", by, why)

    def discard(self, letter_id: str, *, by: str, why: str) -> bool:
        return self._ended(letter_id, "discarded", by, why)

    def _ended(self, letter_id: str, state: State, by: str, why: str) -> bool:
        keep = self._retention.closed_max_age
        done = self._step(
            "closing a dead letter", [letter_id], lambda one, now: one.ended(state, by=by, why=why, now=now, keep=keep)
        )
        return bool(done)

    # --- the inside -----------------------------------------------------------------------------------------------

    def _step(self, operation: str, letter_ids: Sequence[str], step: Callable[[Record, float], Record | None]) -> int:
        """Take *step* with each letter that may take it; how many did."""
        taken = 0
        for batch in _batches(letter_ids):

            def work(now: int, batch: Sequence[str] = batch) -> int:
                return len(self._take(batch, step, now))

            taken += self._write(operation, work)
        return taken

    def _take(
        self, letter_ids: Sequence[str], step: Callable[[Record, float], Record | None], now: int
    ) -> list[DeadLetterRow]:
        taken = []
        for row in self._locked(letter_ids):
            before = record_of(row)
            after = step(before, now / 1e6)
            if after is None:
                continue
            if after is not before:
                self._save(row, after)
            taken.append(row)
        return taken

    def _save(self, row: DeadLetterRow, record: Record) -> None:
        for name, value in columns(record).items():
            setattr(row, name, value)
        row.save(using=self._alias, update_fields=RECORD)

    def _rows(self) -> QuerySet[DeadLetterRow]:
        return DeadLetterRow.objects.using(self._alias)

    def _locked(self, letter_ids: Sequence[str]) -> list[DeadLetterRow]:
        """In the order of their ids, so that two who lock many do not wait for each other."""
        keys = [key_of(one) for one in letter_ids]
        found = {row.id: row for row in self._rows().filter(pk__in=keys).order_by("pk").select_for_update()}
        return [found[key] for key in dict.fromkeys(keys) if key in found]

    def _seen(self, letter_ids: Sequence[str], now: int) -> list[StoredLetter]:
        return [stored(row, now=now) for row in self._rows().filter(pk__in=[key_of(one) for one in letter_ids])]

    def _matching(self, query: Query) -> QuerySet[DeadLetterRow]:
        rows = self._rows().filter(is_open=True) if query.state is None else self._rows().filter(state=query.state)
        if query.ids:
            rows = rows.filter(pk__in=[key_of(one) for one in query.ids])
        for name in LABELS:
            wanted = getattr(query, name)
            if wanted is not None:
                rows = rows.filter(**{name: key_of(label(wanted))})
        if query.since is not None:
            rows = rows.filter(at__gte=round(query.since * 1e6))
        return rows if query.until is None else rows.filter(at__lte=round(query.until * 1e6))

    def _read(self, operation: str, work: Callable[[int], T]) -> T:
        return outside(self._alias, operation, work)

    def _write(self, operation: str, work: Callable[[int], T]) -> T:
        return outside(self._alias, operation, work, write=True)


def _before(rows: QuerySet[DeadLetterRow], at: int, last: str) -> QuerySet[DeadLetterRow]:
    return rows.filter(at__lte=at).exclude(at=at, id__gte=last)


def _after(rows: QuerySet[DeadLetterRow], at: int, last: str) -> QuerySet[DeadLetterRow]:
    return rows.filter(at__gte=at).exclude(at=at, id__lte=last)


def _groups(rows: QuerySet[DeadLetterRow], name: str) -> dict[str, int]:
    return dict(rows.values_list(name).annotate(number=Count("*")).order_by("-number")[:_STATS_TOP])


def _summed(pairs: dict[tuple[str, str], int], place: int) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for pair, number in pairs.items():
        sums[pair[place]] += number
    return dict(sums.most_common(_STATS_TOP))


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    source = iter(items)
    while batch := list(islice(source, _BATCH)):
        yield batch
