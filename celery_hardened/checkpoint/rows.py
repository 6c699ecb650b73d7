"""The rows of a loop that are left to do."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")


def rest_of(rows: Iterable[T], done: int) -> tuple[Iterable[T], int | None]:
    """*rows* without the first *done*, and how many they are in all, where that is known for nothing.

    A sequence and a Django query are sliced; of anything else the first *done* are read and dropped.

    Raises:
        ValueError: A position says nothing about them: a set, or a query without an order.
    """
    if isinstance(rows, Sequence):
        return (rows[done:] if done else rows), len(rows)
    if isinstance(rows, (set, frozenset)):
        raise ValueError("a set has another order in each process; pass sorted(rows)")
    if _is_query(rows):
        query: Any = rows
        if not query.ordered:
            raise ValueError('the query has no order, so its rows come differently each time; add .order_by("pk")')
        return (query[done:] if done else query), None
    return (islice(rows, done, None) if done else rows), None


def _is_query(rows: object) -> bool:
    # Whoever passes one has imported it.
    module = sys.modules.get("django.db.models.query")
    return module is not None and isinstance(rows, module.QuerySet)
