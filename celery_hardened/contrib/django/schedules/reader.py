"""What the leader knows of the tables, and how it finds out what has changed in them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections
from django_celery_beat.models import PeriodicTasks

from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.source import Change, Gone
from celery_hardened.contrib.django.schedules.checksums import Sums, buckets_for, prepare, sums
from celery_hardened.contrib.django.schedules.reading import Reading
from celery_hardened.contrib.django.schedules.rows import Row, Rows, enabled_tasks

#: Seconds between two comparisons of checksums. The promise is 5, and a look comes each half second.
EVERY = 4.0


class Known(NamedTuple):
    """What is remembered of one row."""

    name: str
    digest: int
    timing: int | None
    """Hash of the schedule's mark; ``None``: there is no schedule in it."""

    since: float | None
    """Where it started from, if it was new."""


class Reader:
    """Belongs to the thread that calls it, and to that thread's connection to *alias*.

    Args:
        clock: The wall clock, in seconds since the epoch.
        monotonic: For how long ago.
    """

    def __init__(
        self,
        alias: str,
        reading: Reading,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.alias = alias
        self._reading = reading
        self._clock = clock
        self._monotonic = monotonic
        self._rows = Rows(alias)
        self._prepared: Any = None
        self.forget()

    def forget(self) -> None:
        """Know nothing: whoever leads next reads it all."""
        self.loaded = False
        self.one_offs: dict[int, Row] = {}
        self._known: dict[int, dict[int, Known]] = {}
        """Bucket → primary key → what is known."""
        self._modulus = 1
        self._sums: Sums = {}
        self._stamp: datetime | None = None
        self._version: int | None = None
        self._changed = False
        self._once_more = False
        self._compared = -math.inf
        self._seen_at = 0.0

    # --- the two reads --------------------------------------------------------------------------------------

    def load(self) -> list[Schedule | Problem]:
        """Everything.

        Raises:
            Exception: The database does not answer; nothing is known then.
        """
        self.forget()
        self._connect()
        now = self._clock()
        # First what tells of changes, then the rows: what changes in between is found by the next look.
        self._version = self._data_version()
        self._stamp = self._last_update()
        self._modulus = buckets_for(enabled_tasks(self.alias).count())
        self._sums = sums(self.alias, self._modulus)
        self._rows.prepare(self._modulus)
        found: list[Schedule | Problem] = []
        for row in self._rows.all():
            schedule = self._reading.schedule_of(row, now)
            self._remember(row, schedule)
            if schedule is not None:
                found.append(schedule)
        self._compared = self._monotonic()
        self._changed = False
        self._seen_at = now
        self.loaded = True
        return found

    def look(self) -> list[Change]:
        """What has changed since the last look: most often one small statement.

        Raises:
            Exception: The database does not answer; what is known stays as it was.
        """
        self._connect()
        now = self._clock()
        version = self._data_version()
        if version is not None and version != self._version:
            self._changed = True
        if version is not None and not self._changed:
            self._seen_at = now  # as good as having read it: whatever is edited is edited after this
        if version is None or self._changed:
            stamp = self._last_update()
            # A stamp is also written before its row is: compared now, and once more with the next look.
            if stamp != self._stamp or self._once_more:
                self._once_more = stamp != self._stamp
                self._compared = -math.inf
            self._stamp = stamp
        self._version = version
        if self._monotonic() - self._compared < EVERY or not (version is None or self._changed):
            return []
        return self._compare()

    def compare_next(self) -> None:
        """Compare with the next look: this connection has written, which SQLite tells all others but it."""
        self._compared = -math.inf
        self._changed = True

    def again(self, pk: int) -> None:
        """Read the bucket of this row anew with the next look, whatever its checksum says."""
        # As of no bucket; and kept, for one that is empty by now has no sum to differ from.
        self._sums[pk % self._modulus] = (-1, 0)
        self.compare_next()

    def timing_of(self, pk: int | None) -> int | None:
        """What ``timing(schedule)`` of this row was when it was last read; ``None``: it is no schedule now."""
        known = self._bucket(pk).get(pk) if pk is not None else None
        return None if known is None else known.timing

    # --- changes ----------------------------------------------------------------------------------------------

    def _compare(self) -> list[Change]:
        now = self._clock()
        began = self._monotonic()
        modulus = buckets_for(sum(map(len, self._known.values())))
        # Grown or shrunk a good deal: other buckets from now on. Their sums are taken before the rows are read.
        others = sums(self.alias, modulus) if max(modulus, self._modulus) > 2 * min(modulus, self._modulus) else None
        found = sums(self.alias, self._modulus)
        changes: list[Change] = []
        for bucket in found.keys() | self._sums.keys():
            if found.get(bucket) != self._sums.get(bucket):
                changes += self._read(bucket, now)
        # A name may have gone from one row and come to another.
        changes.sort(key=lambda change: not isinstance(change, Gone))
        self._sums = found
        if others is not None:
            known = [(pk, one) for pks in self._known.values() for pk, one in pks.items()]
            self._modulus, self._sums, self._known = modulus, others, {}
            for pk, one in known:
                self._bucket(pk)[pk] = one
        self._compared = began
        self._seen_at = now
        self._changed = self._once_more
        return changes

    def _read(self, bucket: int, now: float) -> list[Change]:
        """Read one bucket, and tell what is new in it."""
        there = self._rows.bucket(bucket, self._modulus)
        pks = {row.pk for row in there}
        changes: list[Change] = []
        known = self._known.get(bucket, {})
        for pk in [pk for pk in known if pk not in pks]:
            changes.append(Gone(known.pop(pk).name))
            self.one_offs.pop(pk, None)
        for row in there:
            before = known.get(row.pk)
            if before is None or before.digest != row.digest:
                changes += self._edited(row, before, now)
        return changes

    def _bucket(self, pk: int) -> dict[int, Known]:
        return self._known.setdefault(pk % self._modulus, {})

    def _edited(self, row: Row, before: Known | None, now: float) -> Iterable[Change]:
        schedule = self._reading.schedule_of(row, now)
        if isinstance(schedule, Schedule):
            if before is None or before.timing != timing(schedule):
                schedule = self._reading.schedule_of(row, now, edited=self._seen_at)
            elif schedule.not_before is not None and before.since is not None:
                # It has not run yet, and its date is that of this edit. It was there all the time.
                schedule = replace(schedule, not_before=before.since)
        self._remember(row, schedule)
        if before is not None and before.name != row.name:
            yield Gone(before.name)
        yield Gone(row.name) if schedule is None else schedule

    def _remember(self, row: Row, schedule: Schedule | Problem | None) -> None:
        at, since = (timing(schedule), schedule.not_before) if isinstance(schedule, Schedule) else (None, None)
        self._bucket(row.pk)[row.pk] = Known(row.name, row.digest, at, since)
        if row.one_off:
            self.one_offs[row.pk] = row
        else:
            self.one_offs.pop(row.pk, None)

    # --- the database ---------------------------------------------------------------------------------------

    def _connect(self) -> None:
        connection = connections[self.alias]
        connection.ensure_connection()
        if connection.connection is not self._prepared:
            # Each statement sees what is committed by then, also where the default is REPEATABLE READ.
            if not connection.get_autocommit():
                connection.set_autocommit(True)
            prepare(self.alias)
            self._prepared = connection.connection
            self._version = None
            self._changed = True

    def _last_update(self) -> datetime | None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(_STAMP)
            found = cursor.fetchone()
        return found[0] if found else None

    def _data_version(self) -> int | None:
        """SQLite: whether another connection has written anything at all. Elsewhere nobody knows."""
        if connections[self.alias].vendor != "sqlite":
            return None
        with connections[self.alias].cursor() as cursor:
            cursor.execute("PRAGMA data_version")
            return int(cursor.fetchone()[0])


_STAMP = f"SELECT last_update FROM {PeriodicTasks._meta.db_table} WHERE ident = 1"  # noqa: S608 - a name of the model's


def timing(schedule: Schedule) -> int:
    """Changes when the slots of *schedule* do; the same within one process only."""
    return hash(schedule.mark)
