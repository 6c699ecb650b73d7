"""Tasks of the broker-and-pool matrix. pytest-celery copies this module's text to the worker."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import shared_task

from tests.support.notes import note


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True)
def nap(self: Any, seconds: float) -> int:
    """Note that it started, sleep, and answer with the process it ran in."""
    note("naps", self.request.id)
    time.sleep(seconds)
    return os.getpid()
