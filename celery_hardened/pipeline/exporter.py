"""``celery -A proj hardened exporter``: a process that tells of queues, dead letters and beats, and runs nothing.

It needs no worker: with none up, its numbers are what scales the first one up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

from celery_hardened.hardening import Hardening
from celery_hardened.health.state import ExporterFacts
from celery_hardened.metrics.address import Address
from celery_hardened.pipeline.queue_metrics import EVERY, QueueMetrics
from celery_hardened.pipeline.serving import address_of, serve

#: Where it answers if nobody says otherwise: not where workers of the same host do in our examples.
PORT: Final = 9810


def run_exporter(
    hardening: Hardening,
    *,
    stop: threading.Event,
    address: Address | None = None,
    queues: Iterable[str] = (),
    every: float = EVERY,
) -> None:
    """Serve until *stop* is set. A reading that hangs does not hold up the end.

    Args:
        address: In place of the settings'.
        queues: Further ones than the app knows of.
        every: Seconds between two readings.

    Raises:
        ConfigurationError: It cannot answer at that address.
    """
    hardening.app.loader.import_default_modules()  # or the queues of tasks would not be known
    hardening.metrics.keep_here()
    metrics = QueueMetrics(hardening, queues=queues, every=every)
    stall = hardening.settings.health_stall

    def look() -> ExporterFacts:
        turned = time.monotonic() - metrics.turned
        return ExporterFacts(answered=metrics.answered_ago, turned=turned, stall=stall, every=every)

    metrics.start()
    where = address or address_of(hardening) or Address("", PORT)
    try:
        serving = serve(hardening, look, address=where, required=True)
        stop.wait()
    finally:
        metrics.stop()
    if serving is not None:
        serving.stop()
