"""What became of slots between two records of one schedule, by their own counts. Pure."""

from __future__ import annotations

from typing import Final

from celery_hardened.beat.record import Record

#: Beside the reasons: a slot that was fired, under its own name.
FIRED: Final = "fired"


def moved(before: Record, after: Record) -> list[tuple[str, int]]:
    """How many slots were fired, or passed for which reason, on the way from *before* to *after*.

    Records count up. One that starts afresh counts from 0, and nothing was moved by that.
    """
    found = []
    if after.fired > before.fired:
        found.append((FIRED, after.fired - before.fired))
    if after.passed is not before.passed and after.passed != before.passed:
        for reason, count in after.passed.items():
            more = count - before.passed.get(reason, 0)
            if more > 0:
                found.append((reason, more))
    return found
