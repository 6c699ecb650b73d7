"""``self.execution``: what a running task can ask about its own delivery and its own key."""

from __future__ import annotations

import logging
import os
from datetime import datetime, timezone
from typing import Any

from celery import current_task
from celery.exceptions import Ignore

from celery_hardened import lease_clock
from celery_hardened.errors import ClaimLostError, ConfigurationError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.marks import Marks
from celery_hardened.pipeline.ending import ends_as
from celery_hardened.pipeline.letters import HANDED, WIRE
from celery_hardened.pipeline.retry import NOTES
from celery_hardened.transport.names import is_ours
from celery_hardened.wire import Wire, unpack

logger = logging.getLogger("celery_hardened.execute")


class Execution:
    """This run of a task. Made for each question; holds nothing open."""

    def __init__(self, task: Any) -> None:
        self._task = task
        packed = (task.request.properties or {}).get(WIRE)
        self._wire: Wire | None = unpack(packed) if isinstance(packed, tuple) else None
        notes = task.request.__dict__.get(NOTES, {})
        self._claim = notes.get("claim")
        self._held = [claim for claim in (self._claim, notes.get("slot")) if claim is not None]

    @property
    def delivery_tag(self) -> str:
        """Name of this delivery at the broker; ``""`` for a direct or eager call."""
        return self._wire.delivery_tag if self._wire is not None else ""

    @property
    def key(self) -> str | None:
        """The idempotency key that this run holds; ``None`` without ``@idempotent``.

        Give it to whoever can tell a repetition by it (a payment provider's ``Idempotency-Key``): that
        closes the gap between an effect elsewhere and our mark of it. It holds no argument in clear.
        """
        return self._claim.key if self._claim is not None else None

    @property
    def fence(self) -> int | None:
        """A number larger than that of every run before it: of its key, or, without one, of every delivery
        before it from this Redis.

        Write it with the effect, and refuse a write with a smaller one: a run that was
        taken for dead, and wakes, cannot undo what its successor did.
        ``None``: no key, and a direct call, an eager one, or a broker that gives none (RabbitMQ, stock delivery);
        or ``store="database"``, where the transaction fences.
        """
        if self._claim is not None:
            fence: int | None = self._claim.fence
            return fence
        return self._wire.fence if self._wire is not None else None

    @property
    def slot(self) -> datetime | None:
        """The instant that a schedule fired this task for, in UTC. It is the same however late this run is, and on
        each of its retries.

        ``None``: no hardened beat has fired it; a direct or eager call.
        """
        slot = self._marks.slot
        return None if slot is None else datetime.fromtimestamp(slot, timezone.utc)

    @property
    def schedule(self) -> str | None:
        """Name of that schedule; ``None`` likewise."""
        return self._marks.schedule

    @property
    def missed(self) -> int:
        """Earlier slots of that schedule that nobody fired, and that this run stands for."""
        return self._marks.missed

    @property
    def _marks(self) -> Marks:
        request = self._task.request
        return Marks.read(None if request.called_directly or request.is_eager else request.headers)

    def check(self) -> None:
        """Stop here if another run may be at this work: call it before each effect of a long run.

        With a key it asks Redis only if the lease may have run out since the last renewal; without
        one it asks whether the delivery is ``lost``, a round trip.

        Raises:
            ClaimLostError: Another run has it. Let it go through.
            StoreUnavailableError: That cannot be told.
        """
        for claim in self._held:
            claim.check()
        if not self._held and self.lost:
            raise ClaimLostError(str(self._task.name), "its message")

    @property
    def session(self) -> Any:
        """The SQLAlchemy session whose transaction holds the mark of ``store="database"``; commit is not yours.

        Raises:
            ConfigurationError: This run has no such session.
        """
        if self._claim is None:
            raise ConfigurationError(f"{self._task.name} has no session: it is not @idempotent(store='database').")
        return self._claim.store.session

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


def current_execution() -> Execution:
    """The execution of the task that runs here, for code that is not handed the task.

    Raises:
        RuntimeError: No task runs in this thread.
    """
    task: Any = current_task
    if not task or not task.request_stack.top:
        raise RuntimeError("no task runs in this thread, so there is no current execution")
    return Execution(task)


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
            lost = lease_clock.now() - handed > hardening.settings.lease and execution.lost
    except StoreUnavailableError as problem:
        logger.warning("%s may run elsewhere too, its lease could not be checked: %s", task.name, problem)
        return
    if lost:
        logger.warning("%s is not started: it waited here for longer than its lease", task.name)
        raise ends_as(Ignore("its lease ran out before it started"), "lease_lost")


def lost_meanwhile(task: Any, hardening: Hardening) -> bool:
    """Is the message of a run that has failed somebody else's by now? Asks Redis, and only after a lease has passed."""
    process, handed = (task.request.properties or {}).get(HANDED) or (None, 0.0)
    if process is None or not task.acks_late or lease_clock.now() - handed <= hardening.settings.lease:
        return False
    try:
        return Execution(task).lost
    except StoreUnavailableError:
        return False
