"""What beat writes into the tables: ``last_run_at``, ``total_run_count``, and that a one-off is over."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from django.db import connections, transaction
from django_celery_beat.models import PeriodicTask

from celery_hardened.beat.schedule import Schedule
from celery_hardened.contrib.django.schedules.reader import Reader, timing
from celery_hardened.contrib.django.schedules.rows import OWN
from celery_hardened.contrib.django.schedules.timing import moment

#: Rows of one transaction.
_PAGE = 500

_TABLE = PeriodicTask._meta.db_table

# Only these two columns. A leader that was slow to write must not undo what the next one wrote.
_UPDATE = f"""
UPDATE {_TABLE} SET
    last_run_at = CASE WHEN last_run_at > %s THEN last_run_at ELSE %s END,
    total_run_count = total_run_count + %s
WHERE id = %s
"""  # noqa: S608 - a name of the model's


@dataclass(slots=True)
class Note:
    """What is to be written to one row."""

    runs: int
    at: float
    """Of the last run."""

    over: int | None = None
    """It was a one-off: its timing then, by ``timing``."""


class Writer:
    """Takes notes from the main loop, and writes them in the thread of *reader*.

    There is one note a row at most, however long the database is away.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._notes: dict[int, Note] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, schedule: Schedule, at: float) -> None:
        """*schedule* was fired. Any thread; does not block."""
        if schedule.row is not None:
            self._add(schedule.row, Note(1, at, timing(schedule) if schedule.one_off else None))

    def write(self) -> None:
        """Write what is noted.

        Raises:
            Exception: The database does not answer; what was not written is kept.
        """
        with self._lock:
            taken, self._notes = self._notes, {}
        try:
            for pk in [pk for pk, note in taken.items() if note.over is not None]:
                if self._end(pk, taken[pk]):
                    del taken[pk]
            # In one order everywhere: two who lock the same rows then wait for each other, and do not die of it.
            pks = sorted(pk for pk, note in taken.items() if note.over is None)
            for first in range(0, len(pks), _PAGE):
                for pk in self._count(pks[first : first + _PAGE], taken):
                    del taken[pk]
        finally:
            for pk, note in taken.items():
                self._add(pk, note)

    def _add(self, pk: int, note: Note) -> None:
        with self._lock:
            kept = self._notes.get(pk)
            if kept is None:
                self._notes[pk] = note
            else:
                last = note if note.at >= kept.at else kept
                self._notes[pk] = Note(kept.runs + note.runs, last.at, last.over)

    def _count(self, pks: list[int], notes: dict[int, Note]) -> list[int]:
        """Write these; those that are done with. A row that somebody else holds locked is not waited for."""
        alias = self._reader.alias
        connection = connections[alias]
        with transaction.atomic(using=alias):
            these = PeriodicTask._base_manager.using(alias).filter(pk__in=pks).order_by().values_list("pk", flat=True)
            skip = bool(connection.features.has_select_for_update_skip_locked)
            free = set(these.select_for_update(skip_locked=True)) if skip else set(pks)
            values: list[Any] = []
            for pk in sorted(free):
                at = connection.ops.adapt_datetimefield_value(moment(notes[pk].at))
                values.append((at, at, notes[pk].runs, pk))
            if values:
                with connection.cursor() as cursor:
                    cursor.executemany(_UPDATE, values)
            # Neither locked by us nor there: deleted.
            there = set(these) if len(free) < len(pks) else free
        return [pk for pk in pks if pk in free or pk not in there]

    def _end(self, pk: int, note: Note) -> bool:
        """Switch a one-off off, if it is as it was when it was read; whether that is settled."""
        reader = self._reader
        read = reader.one_offs.get(pk)
        if read is None or reader.timing_of(pk) != note.over:
            # Gone, switched off, or timed anew: then it is to run again, and a count would say that it has.
            note.runs, note.over = 0, None
            return False
        as_read = {name: getattr(read, name) for name in OWN}
        # The count begins anew, as with django-celery-beat: switched on again, it is to run again.
        done = (
            PeriodicTask._base_manager.using(reader.alias)
            .filter(pk=pk, enabled=True, **as_read)
            .update(enabled=False, last_run_at=moment(note.at), total_run_count=0)
        )
        # Done: the schedule is gone. Not done: it was edited, and is looked at as it is now.
        reader.again(pk)
        return bool(done)
