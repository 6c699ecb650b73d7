"""Letters as CSV or as lines of JSON: of any number, a page of them in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from celery_hardened.cli import record
from celery_hardened.contrib.django.answers import csv_line, encoded
from celery_hardened.dead_letter.contract import DeadLetterStore, Query, StoredLetter

#: Letters that are read at a time.
PAGE = 100

COLUMNS = (
    "id", "state", "stored_at", "reason", "task", "task_id", "queue", "error_type", "error_message", "fingerprint",
    "attempt", "deaths", "redrives", "worker", "version", "successor",
)  # fmt: skip


def letters(store: DeadLetterStore, query: Query) -> Iterator[StoredLetter]:
    """Those that match, newest first. Letters that come meanwhile are left out.

    Raises:
        StoreUnavailableError: The store does not answer, at the first letter or later.
    """
    cursor: str | None = None
    while True:
        page = store.find(query, limit=PAGE, cursor=cursor)
        yield from page.letters
        cursor = page.cursor
        if cursor is None:
            return


def lines(found: Iterable[StoredLetter], *, arguments: bool, as_csv: bool) -> Iterator[bytes]:
    """*found* as lines, those of CSV after one with their names; with *arguments*, if they may be seen."""
    columns = (*COLUMNS, "arguments") if arguments else COLUMNS
    if as_csv:
        yield encoded(csv_line(columns))
    for stored in found:
        said = record.summary(stored, show_args=arguments)
        text = csv_line(_told(said[name]) for name in columns) if as_csv else f"{json.dumps(said, default=str)}\n"
        yield encoded(text)


def _told(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, dict) else value
