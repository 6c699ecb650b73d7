"""The next start of a message whose process died: the same message, later, with its deaths on it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from celery import Celery

from celery_hardened.marks import HEADER, Marks
from celery_hardened.wire import Wire, send


def publish_again(app: Celery, wire: Wire, *, marks: Marks, deaths: int, delay: float) -> None:
    """Send *wire* to its queue again; the caller acks the old message after this returns.

    A crash in between leaves both: the same task id twice, never none.

    Args:
        deaths: Noted in the message, so that it stays a suspect.

        delay: Seconds until its next start.
    """
    now = time.time()
    headers = dict(wire.headers)
    headers[HEADER] = replace(marks, published=now, deaths=deaths).header(attempt=int(headers.get("retries") or 0))
    if delay:
        headers["eta"] = (datetime.now(timezone.utc) + timedelta(seconds=delay)).isoformat()
    send(
        app,
        body=wire.body,
        body_compressed=wire.body_compressed,
        content_type=wire.content_type,
        content_encoding=wire.content_encoding,
        headers=headers,
        properties=wire.properties,
        exchange="" if wire.queue else wire.exchange,
        routing_key=wire.queue or wire.routing_key,
    )
