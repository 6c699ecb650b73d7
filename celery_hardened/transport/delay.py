"""Messages whose time has not come: how long they have to wait."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

#: Seconds. A message that is due sooner is handed out and waits in the worker, as in Celery.
THRESHOLD = 1.0


def seconds_until(payload: Mapping[str, Any], *, most: float, now: datetime | None = None) -> float:
    """Seconds that a Celery message has to wait in Redis; 0 if it is to be handed out.

    An ``eta`` that cannot be read, or lies further ahead than *most* seconds, is handed out
    too: the worker says what is wrong with it.
    """
    headers = payload.get("headers")
    eta = headers.get("eta") if isinstance(headers, Mapping) and "task" in headers else None
    if not isinstance(eta, str):
        return 0.0
    try:
        due = datetime.fromisoformat(eta.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    if due.tzinfo is None:
        return 0.0  # local time of an app that does without UTC: only the app knows which
    wait = (due - (now or datetime.now(timezone.utc))).total_seconds()
    return wait if THRESHOLD < wait <= most else 0.0
