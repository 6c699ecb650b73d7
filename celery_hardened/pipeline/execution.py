"""``self.execution``: what a running task can ask about its own delivery."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from celery.exceptions import Ignore

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.letters import HANDED, WIRE
from celery_hardened.transport.names import is_ours
from celery_hardened.wire import Wire, unpack

logger = logging.getLogger("celery_hardened.execute")


class Execution:
    """This run of a task. Made for each question; holds nothing open."""

    def __init__(self, task: Any) -> None:
        self._task = task
        packed = (task.request.properties or {}).get(WIRE)
        self._wire: Wire | None = unpack(packed) if isinstance(packed, tuple) else None

    @property
    def delivery_tag(self) -> str:
        """Name of this delivery at the broker; ``""`` for a direct or eager call."""
        return self._wire.delivery_tag if self._wire is not None else ""

    @property
    def fence(self) -> int | None:
        """Number of this delivery, larger than that of every delivery before it from this Redis.

        Write it with the effect, and refuse a write with a smaller one: a run that was
        taken for dead, and wakes, cannot undo what its successor did.
        ``None``: a direct call, an eager one, or a broker that gives none (RabbitMQ, stock delivery).
        """
        return self._wire.fence if self._wire is not None else None

    @property
    def lost(self) -> bool:
        """Does the message belong to somebody else by now? Asks Redis: one round trip.

        A lease runs out only if its worker stood still, or was cut off, for ``hardened_lease`` seconds.
        Always ``False`` where there is no lease: other brokers, stock delivery, tasks that ack early.

        Raises:
            StoreUnavailableError: Redis does not answer. Then it may well be lost.
        """
        wire, hardening = self._wire, Hardening.of(self._task.app)
        if wire is None or hardening is None or not is_ours(wire.delivery_tag) or not self._task.acks_late:
            return False
        from celery_hardened.redis_connection import answered  # redis is slow to import, and rarely asked for

        with answered("looking for a lease"):
            return hardening.broker_redis.zscore(hardening.lease_index, wire.delivery_tag) is None


def refuse_lost(task: Any, hardening: Hardening) -> None:
    """Do not start what runs elsewhere by now.

    In the worker's own process (threads, greenlets, solo) its leases say so. A pool process asks Redis, and only
    of a message that was handed to it more than a lease ago, because it was frozen or the machine slept:
    an ordinary start costs no round trip.

    Raises:
        celery.exceptions.Ignore: It does run elsewhere. Nothing is recorded of this delivery.
    """
    process, handed = (task.request.properties or {}).get(HANDED) or (None, 0.0)
    if process is None or not task.acks_late:
        return
    execution = Execution(task)
    delivery = hardening.delivery
    try:
        if process == os.getpid():
            lost = delivery is not None and not delivery.start(execution.delivery_tag)
        else:
            # A pool process may hold messages too, of a task that consumes; this one is its worker's.
            lost = time.monotonic() - handed > hardening.settings.lease and execution.lost
    except StoreUnavailableError as problem:
        logger.warning("%s may run elsewhere too, its lease could not be checked: %s", task.name, problem)
        return
    if lost:
        logger.warning("%s is not started: it waited here for longer than its lease", task.name)
        raise Ignore("its lease ran out before it started")
