"""Tasks of the broker-and-pool matrix. pytest-celery copies this module's text to the worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import shared_task

from tests.support.notes import note
from tests.support.until import until


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True)
def nap(self: Any) -> int:
    """Note that it started, sleep until the test has killed its worker, and answer with the process it ran in."""
    note("naps", self.request.id)
    until(Path(os.environ["OUT"], "killed").exists, within=120, what="the test to kill the worker")
    return os.getpid()
