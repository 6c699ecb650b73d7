"""Checksums of the schedules, a bucket of rows each, computed where the rows are.

Edits that leave no stamp (``queryset.update()``, SQL, deletes, edits of a timing that many tasks share) are
found by them, and only the buckets that differ are read. What a beat writes itself is not summed.
"""

from __future__ import annotations

import marshal
import math
from functools import lru_cache
from typing import Any, TypeAlias

from django.db import NotSupportedError, connections
from django.db.models import BigIntegerField, Count, F, Func, Sum

from celery_hardened.contrib.django.schedules.rows import CONTENT_END, Row, column, enabled_tasks

#: Bucket → number of rows and sum of their hashes.
Sums: TypeAlias = dict[int, tuple[int, int]]

_SQLITE_HASH = "celery_hardened_row"


class _RowHash(Func):  # type: ignore[misc]
    """A number that stands for all columns of a row, however they are written and whichever are NULL."""

    output_field = BigIntegerField()

    def as_sql(self, compiler: Any, connection: Any, **context: Any) -> Any:  # noqa: ARG002 - Django's signature
        raise NotSupportedError(f"schedules are read from PostgreSQL and SQLite; this database is {connection.vendor}")

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return super().as_sql(
            compiler, connection, template="hashtextextended(ROW(%(expressions)s)::text, 0)", **context
        )

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return super().as_sql(compiler, connection, function=_SQLITE_HASH, **context)


def prepare(alias: str) -> None:
    """To be called on each new connection: SQLite has no hash function of its own."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        connection.ensure_connection()
        connection.connection.create_function(_SQLITE_HASH, -1, _sqlite_hash, deterministic=True)


def _sqlite_hash(*values: Any) -> int:
    # Version 2 writes no references, so equal values are equal bytes. 40 bits: SQLite's sum() refuses to overflow.
    return hash(marshal.dumps(values, 2)) & 0xFF_FFFF_FFFF


@lru_cache(maxsize=8)
def _statement(alias: str, modulus: int) -> tuple[str, Any]:
    """Compiled once: that costs more than to run it does."""
    columns = [column(name) for name in Row._fields[:CONTENT_END]]
    summed = (
        enabled_tasks(alias)
        .values(bucket=F("pk") % modulus)
        .annotate(rows=Count("pk"), sum=Sum(_RowHash(*columns)))
        .values_list("bucket", "rows", "sum")
    )
    sql, params = summed.query.get_compiler(using=alias).as_sql()
    return sql, params


def sums(alias: str, modulus: int) -> Sums:
    """One statement over all enabled tasks, of which a few numbers come back: by primary key modulo *modulus*."""
    sql, params = _statement(alias, modulus)
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, params)
        return {int(bucket): (int(rows), int(total)) for bucket, rows, total in cursor.fetchall()}


def buckets_for(rows: int) -> int:
    """How many buckets: as many as there are rows in each, so that one edit costs the least."""
    return max(1, math.isqrt(rows))
