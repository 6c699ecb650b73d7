"""Writes rows of run history. A copy that is made twice, or by two beats at once, changes nothing.

::

    lines     added where there are none; an older decision on the same slot gives way to a later one
    reports   put into the row of their task, which is locked meanwhile; where there is none, it is made

Both in one transaction, of some hundreds of rows. What fails, a deadlock of two beats too, is made again as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, transaction

from celery_hardened.beat.run_report import RunReport
from celery_hardened.contrib.django.models import ScheduleRun
from celery_hardened.contrib.django.runs.lines import (
    OF_A_LINE,
    OF_REPORTS,
    by_task,
    latest,
    row_of_line,
    row_of_report,
    take_in,
)

#: Rows of one statement: SQLite takes a thousand variables, and a row has twenty.
_PAGE = 40

#: Names of one question.
_ASKED = 500


class Copying:
    """Writes into the database *alias*, on the connection of the thread that calls."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def copy(
        self, lines: Mapping[str, Sequence[bytes]], reports: Sequence[RunReport] = (), *, since: datetime | None = None
    ) -> None:
        """Write what is not there yet.

        Args:
            lines: By schedule.
            since: Lines that are older were pruned, or would be.

        Raises:
            DatabaseError: Nothing was written.
        """
        rows = (row_of_line(name, line) for name, said in lines.items() for line in said)
        told = latest(row for row in rows if row is not None and (since is None or row.decided >= since))
        if not told and not reports:
            return
        with transaction.atomic(using=self._alias):
            if not connections[self._alias].features.has_select_for_update:
                # SQLite lets a transaction that has read first not write once another one has: so write first.
                self._rows().filter(pk=0).update(count=1)
            self._add(told)
            if reports:
                self._take_in(reports)

    def known(self, lines: Mapping[str, bytes]) -> set[str]:
        """The schedules whose line, as given, is in the table."""
        rows = {name: row for name, line in lines.items() if (row := row_of_line(name, line)) is not None}
        there = self._there(row.identity for row in rows.values())
        return {name for name, row in rows.items() if row.identity in there and there[row.identity] >= row.decided}

    def floor(self, most: int) -> datetime | None:
        """Lines decided earlier were pruned by count, or would be; ``None``: there are no *most* rows."""
        decided = self._rows().order_by("-decided", "-id").values_list("decided", flat=True)
        last = decided[most - 1 : most].first()
        # Of those decided in the same instant, which is a catch-up's, some were pruned.
        return None if last is None else last + timedelta(microseconds=1)

    # --- the inside -----------------------------------------------------------------------------------------------

    def _rows(self) -> Any:
        return ScheduleRun._base_manager.using(self._alias)

    def _there(self, identities: Iterable[str]) -> dict[str, datetime]:
        """Of these that are there, when each was decided."""
        asked, found = sorted(identities), {}
        for first in range(0, len(asked), _ASKED):
            found.update(
                self._rows().filter(identity__in=asked[first : first + _ASKED]).values_list("identity", "decided")
            )
        return found

    def _add(self, told: Mapping[str, ScheduleRun]) -> None:
        if not told:
            return
        new = [told[key] for key in sorted(told.keys() - self._there(told).keys())]
        self._rows().bulk_create(new, ignore_conflicts=True, batch_size=_PAGE)
        # Asked again: another beat may just have added a row that says less, and ours was ignored for it.
        for key, decided in sorted(self._there(told).items()):
            row = told[key]
            if decided < row.decided:
                self._rows().filter(identity=key, decided__lt=row.decided).update(
                    **{name: getattr(row, name) for name in OF_A_LINE}
                )

    def _take_in(self, reports: Sequence[RunReport]) -> None:
        told = by_task(reports)
        rows = self._locked("task_id", told)
        made = (row_of_report(told[task_id][0]) for task_id in told.keys() - rows.keys())
        missing = {row.identity: row for row in made}
        if missing:
            new = [missing[key] for key in sorted(missing)]
            self._rows().bulk_create(new, ignore_conflicts=True, batch_size=_PAGE)
            for key, row in self._locked("identity", missing).items():
                # It may have been there: as a slot that waits, while the line about its fire is on its way.
                row.verdict, row.task_id = missing[key].verdict, missing[key].task_id
                rows[row.task_id] = row
        changed = [row for task_id, row in sorted(rows.items()) if any([take_in(row, one) for one in told[task_id]])]
        self._rows().bulk_update(changed, ("verdict", "task_id", *OF_REPORTS), batch_size=_PAGE)

    def _locked(self, column: str, values: Iterable[str]) -> dict[str, ScheduleRun]:
        """By *column* the row that was decided last: a slot that was backfilled has two of one task id."""
        locks = bool(connections[self._alias].features.has_select_for_update)
        found: dict[str, ScheduleRun] = {}
        asked = sorted(values)
        for first in range(0, len(asked), _ASKED):
            rows = self._rows().filter(**{f"{column}__in": asked[first : first + _ASKED]}).order_by("id")
            for row in rows.select_for_update() if locks else rows:
                known = found.get(getattr(row, column))
                if known is None or known.decided <= row.decided:
                    found[getattr(row, column)] = row
        return found
