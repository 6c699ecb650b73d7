"""What happens in the shop, written down as it happens: one JSON object a line.

Celery's own signals tell of attempts, our log records of deaths and dead letters.
The file is ``$SHOP_RECORD``; without it nothing is written.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from celery import signals


def note(event: str, **fields: Any) -> None:
    """Append one line, in one write: lines of several processes do not mix, and a killed process leaves it whole."""
    path = os.environ.get("SHOP_RECORD")
    if path:
        line = json.dumps({"at": time.time(), "event": event, "pid": os.getpid(), **fields}, default=str)
        with Path(path).open("ab", buffering=0) as record:
            record.write(f"{line}\n".encode())


class _Outcomes(logging.Handler):
    """Notes the two outcomes that no signal of Celery's tells of, from the fields of our log records."""

    def emit(self, record: logging.LogRecord) -> None:
        outcome = getattr(record, "outcome", None)
        if outcome in ("worker_lost", "dead_letter"):
            fields = {name: getattr(record, name, None) for name in ("task", "reason")}
            note(outcome, id=getattr(record, "task_id", None), **fields)


def keep_record() -> None:
    """Write down what this process does from now on."""
    signals.worker_ready.connect(_ready)
    signals.task_prerun.connect(_started)
    signals.task_retry.connect(_retrying)
    signals.task_success.connect(_succeeded)
    logging.getLogger("celery_hardened").addHandler(_Outcomes())


def _ready(sender: Any, **_: Any) -> None:
    note("ready", worker=sender.hostname)


def _started(task: Any, task_id: str, **_: Any) -> None:
    note("started", id=task_id, task=task.name, attempt=task.request.retries + 1)


def _retrying(request: Any, reason: Any, **_: Any) -> None:
    note("retrying", id=request.id, attempt=request.retries + 1, delay=reason.when, error=reason.excs)


def _succeeded(sender: Any, **_: Any) -> None:
    note("succeeded", id=sender.request.id, task=sender.name, attempt=sender.request.retries + 1)
