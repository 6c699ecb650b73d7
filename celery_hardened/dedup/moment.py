"""How far away a moment is that a caller gave to Celery."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware


def seconds_until(moment: Any, *, now: datetime, timezone: tzinfo) -> float | None:
    """Seconds until an ``eta`` or ``expires``, in any form that Celery takes; ``None`` if it is none.

    Args:
        timezone: Of a moment that names none.
    """
    if isinstance(moment, (int, float)):
        return float(moment)
    try:
        parsed = maybe_iso8601(moment)
    except (TypeError, ValueError):
        return None  # Celery refuses it, and says so
    if not isinstance(parsed, datetime):
        return None
    aware: datetime = maybe_make_aware(parsed, timezone)
    return (aware - now).total_seconds()
