"""The columns that are read of a periodic task, its timing and its policy: one query, one tuple a row."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import CharField, ExpressionWrapper, F, FloatField, QuerySet
from django_celery_beat.models import PeriodicTask


class Row(NamedTuple):
    """One enabled task. Columns of a timing that it does not have are ``None``."""

    pk: int

    # What people edit; a change of any of these is a change of the schedule.
    name: str
    task: str
    interval_id: int | None
    crontab_id: int | None
    solar_id: int | None
    clocked_id: int | None
    args: str | None
    kwargs: str | None
    queue: str | None
    exchange: str | None
    routing_key: str | None
    headers: str | None
    priority: int | None
    expires: datetime | None
    expire_seconds: int | None
    one_off: bool
    start_time: datetime | None
    every: int | None
    period: str | None
    minute: str | None
    hour: str | None
    day_of_week: str | None
    day_of_month: str | None
    month_of_year: str | None
    timezone: str | None
    event: str | None
    latitude: float | None
    longitude: float | None
    clocked_time: datetime | None
    missed_run: str | None
    catchup_window: float | None
    max_catchup: int | None
    grace: float | None
    overlap: str | None
    jitter: float | None

    # What a beat writes itself, or follows from an edit.
    last_run_at: datetime | None
    total_run_count: int
    date_changed: datetime | None

    @property
    def digest(self) -> int:
        """Changes with what people edit; the same within one process only."""
        # hash(-1) == hash(-2), and a place may move from one to the other.
        signed = (self.latitude, self.longitude, self.catchup_window)
        return hash((self[:CONTENT_END], None if signed == (None, None, None) else str(signed)))


_FIRST_KEPT = "last_run_at"
CONTENT_END = Row._fields.index(_FIRST_KEPT)

#: Columns of ``PeriodicTask`` itself that say what is run and when.
OWN = Row._fields[1 : Row._fields.index("every")]

#: Read as they are stored: a zone that nobody knows would otherwise fail the query, and with it all other rows.
_AS_STORED = {
    "timezone": ("crontab__timezone", CharField()),
    "latitude": ("solar__latitude", FloatField()),
    "longitude": ("solar__longitude", FloatField()),
}

_ELSEWHERE = {
    "every": "interval__every",
    "period": "interval__period",
    **{name: f"crontab__{name}" for name in ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")},
    "event": "solar__event",
    "clocked_time": "clocked__clocked_time",
    **{
        name: f"hardened__{name}"
        for name in ("missed_run", "catchup_window", "max_catchup", "grace", "overlap", "jitter")
    },
}


def column(name: str) -> Any:
    """The expression of a field of ``Row``, in a query over ``PeriodicTask``."""
    if name in _AS_STORED:
        lookup, kind = _AS_STORED[name]
        return ExpressionWrapper(F(lookup), output_field=kind)
    return F(_ELSEWHERE.get(name, name))


def enabled_tasks(alias: str) -> QuerySet[Any]:
    """All that is to be fired: no filter by hour, for a run that was missed may be of any."""
    found: QuerySet[Any] = PeriodicTask._base_manager.using(alias).filter(enabled=True).order_by()
    return found


def rows_of(alias: str, pks: Iterable[int]) -> dict[int, Row]:
    """Those of *pks* that are there, enabled or not, by primary key: one query."""
    columns = _columns()
    found = PeriodicTask._base_manager.using(alias).filter(pk__in=list(pks)).order_by()
    return {row.pk: row for row in (Row._make(values) for values in found.annotate(**columns).values_list(*columns))}


class Rows:
    """The rows of one database. Belongs to the thread that asks first, and to that thread's connection."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._statements: dict[int, tuple[Any, str, list[Any], Any]] = {}

    def all(self) -> list[Row]:
        """All enabled tasks."""
        columns = _columns()
        return [Row._make(values) for values in enabled_tasks(self._alias).annotate(**columns).values_list(*columns)]

    def bucket(self, bucket: int, modulus: int) -> list[Row]:
        """The enabled tasks whose primary key modulo *modulus* is *bucket*."""
        self.prepare(modulus)
        compiler, sql, params, converters = self._statements[modulus]
        with connections[self._alias].cursor() as cursor:
            cursor.execute(sql, [bucket if param == _ANY else param for param in params])
            found = cursor.fetchall()
        return [Row._make(values) for values in compiler.apply_converters(found, converters)]

    def prepare(self, modulus: int) -> None:
        """Make the statement of ``bucket`` beforehand."""
        if modulus not in self._statements:
            self._statements = {modulus: self._compiled(modulus)}

    def _compiled(self, modulus: int) -> tuple[Any, str, list[Any], Any]:
        # Once: to make the statement of so many columns costs twice as much as to run it.
        columns = _columns()
        tasks = enabled_tasks(self._alias).alias(bucket=F("pk") % modulus).filter(bucket=_ANY)
        compiler = tasks.annotate(**columns).values_list(*columns).query.get_compiler(using=self._alias)
        sql, params = compiler.as_sql()
        return compiler, sql, list(params), compiler.get_converters([one[0] for one in compiler.select])


#: Stands for the bucket in a statement that is made once.
_ANY = -987_654_321


def _columns() -> dict[str, Any]:
    # Under names of their own: a field of the model may not be the name of an annotation.
    return {f"c_{name}": column(name) for name in Row._fields}
