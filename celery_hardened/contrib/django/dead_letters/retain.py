"""How many letters are kept, and for how long. Called inside the transaction of a write."""

from __future__ import annotations

import random
from collections.abc import Sequence

from django.db import connections
from django.db.models import Count, F, QuerySet

from celery_hardened.contrib.django.dead_letters.rows import record_of
from celery_hardened.contrib.django.models import DeadLetterFence, DeadLetterRow, DeadLetterTotals
from celery_hardened.dead_letter.contract import Retention

#: Microseconds for which the verdict on a letter that was dropped is kept.
_FENCE = 7 * 86_400 * 1_000_000

#: Of a bound for each task a write may let pass one part in so many before it looks; but no more letters than it drops.
_PARTS = 1000
_UNSEEN = 50


class Retaining:
    """Applies *retention* to the letters of the database *alias*."""

    def __init__(self, alias: str, retention: Retention) -> None:
        self._alias = alias
        self._retention = retention

    def written(self, row: DeadLetterRow) -> None:
        """*row* is new."""
        if not self._add(letters=1, bytes=row.bytes):
            DeadLetterTotals.objects.using(self._alias).get_or_create(pk=1)
            self._add(letters=1, bytes=row.bytes)

    def retain(self, now: int, *, keep: str | None, most: int) -> int:
        """Drop what is too old, then what is too much; at most *most*, never *keep*. How many went.

        Args:
            keep: The letter that is being written; ``None``: this is a sweep, which looks at everything.
        """
        gone = self._drop_expired(now, keep, most)
        gone += self._drop_of_tasks(keep, most - gone)
        gone += self._drop_oldest(keep, most - gone)
        DeadLetterFence.objects.using(self._alias).filter(expires__lte=now).delete()
        return gone

    def drop(self, rows: Sequence[DeadLetterRow], cause: str | None) -> int:
        """Drop *rows*, which are locked; open ones are counted under *cause*."""
        if not rows:
            return 0
        now = max(row.at for row in rows)
        for row in rows:
            verdict = record_of(row).verdict()
            if verdict is not None:
                DeadLetterFence.objects.using(self._alias).update_or_create(
                    pk=row.id, defaults={"verdict": verdict, "expires": now + _FENCE}
                )
        self._rows().filter(pk__in=[row.id for row in rows]).delete()
        changes = {"letters": -len(rows), "bytes": -sum(row.bytes for row in rows)}
        if cause:
            changes[f"dropped_{cause}"] = sum(row.is_open for row in rows)
        self._add(**changes)
        return len(rows)

    # --- the three bounds ---------------------------------------------------------------------------------------

    def _drop_expired(self, now: int, keep: str | None, most: int) -> int:
        return self.drop(self._some(self._rows().filter(expires__lte=now).order_by("expires"), keep, most), "age")

    def _drop_of_tasks(self, keep: str | None, most: int) -> int:
        bound = self._retention.max_count_per_task
        if most <= 0 or self._totals().letters <= bound:
            return 0  # asked first, because it is all that most writes have to ask
        # To count all open letters takes long where there are many, and who has written holds the totals meanwhile.
        # By chance: no process knows how often all have written, and the number of letters stands still at its bound.
        if keep is not None and random.randrange(max(1, min(bound // _PARTS, _UNSEEN))):
            return 0
        still_open, gone = self._rows().filter(is_open=True), 0
        over = still_open.values_list("task").annotate(number=Count("pk")).filter(number__gt=bound)
        for task, number in list(over):
            rows = still_open.filter(task=task).order_by("at", "id")
            gone += self.drop(self._some(rows, keep, min(most - gone, number - bound)), "count")
        return gone

    def _drop_oldest(self, keep: str | None, most: int) -> int:
        gone = 0
        while gone < most:
            totals = self._totals()
            over = totals.letters - self._retention.max_count
            cause = "count" if over > 0 else "bytes" if totals.bytes > self._retention.max_bytes else ""
            if not cause:
                break
            step = min(over, most - gone) if over > 0 else 1
            # An open letter does not go to make room for the record of a closed one.
            rows = self._some(self._rows().filter(is_open=False).order_by("at", "id"), keep, step)
            rows = rows or self._some(self._rows().filter(is_open=True).order_by("at", "id"), keep, step)
            if not rows:
                break
            gone += self.drop(rows, cause)
        return gone

    # --- the inside -----------------------------------------------------------------------------------------------

    def _rows(self) -> QuerySet[DeadLetterRow]:
        return DeadLetterRow.objects.using(self._alias)

    def _some(self, rows: QuerySet[DeadLetterRow], keep: str | None, most: int) -> list[DeadLetterRow]:
        if keep is not None:
            rows = rows.exclude(pk=keep)
        # Of two writers that tidy up, each takes what the other has not.
        skip = connections[self._alias].features.has_select_for_update_skip_locked
        return list(rows.defer("envelope").select_for_update(skip_locked=skip)[: max(0, most)])

    def _totals(self) -> DeadLetterTotals:
        return DeadLetterTotals.objects.using(self._alias).filter(pk=1).first() or DeadLetterTotals()

    def _add(self, **numbers: int) -> int:
        changes = {name: F(name) + number for name, number in numbers.items()}
        return int(DeadLetterTotals.objects.using(self._alias).filter(pk=1).update(**changes))
