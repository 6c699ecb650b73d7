"""Life of a task in the worker's parent process: what only the parent can see.

::

    accepted          windows on a lease             before an early ack: early_ack.py
    lost child        death + delay, or poison      before the ack
    hard time limit   letter `timeout`, or a retry   before the ack
    Reject            letter `rejected`              before the ack; also a requeue after it
    any other failure letter, unless the child wrote it

The mix-in is composed with the task's own ``Request`` class. Only methods that
Celery's per-task subclass does not redefine are overridden
(``create_request_cls`` replaces ``on_success`` and ``execute_using_pool``).
"""

from __future__ import annotations

import logging
import sys
from functools import cached_property
from typing import Any
from uuid import uuid4

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import VERSION
from celery.exceptions import Ignore, Reject, Retry
from celery.worker import state
from kombu.asynchronous import get_event_loop

from celery_hardened.dead_letter.letter import Reason
from celery_hardened.dead_letter.parking import chord_group
from celery_hardened.errors import StoreUnavailableError, TaskMemoryError, TaskProcessLostError
from celery_hardened.hardening import Hardening
from celery_hardened.idempotency.decorator import options_of
from celery_hardened.logs import log_args
from celery_hardened.marks import Marks, deaths_in, is_once
from celery_hardened.pipeline import held_windows, letters
from celery_hardened.pipeline.claim import release_of_dead
from celery_hardened.pipeline.early_ack import EarlyAck
from celery_hardened.pipeline.letters import ALONE, OWNER, START, WIRE, letter_for, may_park, park, work_of, write
from celery_hardened.pipeline.patience import observed
from celery_hardened.pipeline.retry import policy_of, publish_from_parent
from celery_hardened.pipeline.superseded import Superseded, end_superseded
from celery_hardened.poison.contract import Start
from celery_hardened.poison.policy import death_delay, is_suspect, judge
from celery_hardened.poison.rebirth import publish_again
from celery_hardened.wire import Wire, pack, unpack

logger = logging.getLogger("celery_hardened.request")

#: Seconds until a suspect comes back for which a worker did not come to rest.
COME_BACK = 120.0

#: Seconds after which a process that ran into its hard limit is certainly dead.
_KILLED_WITHIN = 2.0

_HANDLED_ELSEWHERE = (Ignore, Retry, Terminated)


def compose_request(base: type) -> type:
    """*base* with our mix-in before it; *base* itself if it has it already."""
    if issubclass(base, HardenedRequest):
        return base
    return type(base.__name__, (HardenedRequest, base), {"__module__": base.__module__})


class HardenedRequest(EarlyAck):
    """Mix-in for ``celery.worker.request.Request``."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        packed = pack(message, getattr(message, "hardened_queue", ""))
        self._packed = packed
        request: dict[str, Any] = self._request_dict
        if request.get("retries") is None:
            request["retries"] = 0  # null is what other producers may say; Celery itself always counts
        # The child needs the raw message for a faithful letter. The same objects travel in the
        # same pickle as the request itself, so this costs few bytes; see letters.WIRE for the place.
        request["properties"] = {**(request.get("properties") or {}), WIRE: packed}
        self.suspect = is_suspect(
            redelivered=bool(self.delivery_info.get("redelivered")),
            deaths=deaths_in(message.headers),
            early_ack=not self.task.acks_late,
        )
        """Is the start of this delivery written down? The child decides by the same rule."""
        if self.suspect:
            request["properties"][START] = self.start.token
        if options_of(self.task) is not None or is_once(message.headers):
            request["properties"][OWNER] = uuid4().hex
        if self.task.acks_late:
            # An early ack is sent at once: a task must not start again that acks before it runs.
            let_ride = getattr(getattr(message.channel, "qos", None), "let_ack_ride", None)
            if let_ride is not None:
                let_ride(message.delivery_tag)

    # --- what is known of it -------------------------------------------------------------------

    @property
    def _hardening(self) -> Hardening:
        return Hardening.expect(self._app)

    @cached_property
    def marks(self) -> Marks:
        return Marks.read(self._wire.headers)

    @cached_property
    def _wire(self) -> Wire:
        return unpack(self._packed)

    @cached_property
    def start(self) -> Start:
        """This delivery's start, as the store of deaths knows it."""
        work = work_of(self._wire, self.marks.key)
        return Start(work, str(self.id), uuid4().hex, self.marks.deaths)

    def run_alone(self) -> None:
        """Tell the child that it has the worker to itself."""
        self._request_dict["properties"][ALONE] = True

    def revoked(self) -> Any:
        revoked = super().revoked()
        if revoked:  # or expired: it comes to nothing, and its window is free
            held_windows.ended(self._hardening, self.marks, str(self.id), well=False)
        return revoked

    def cancel(self, *args: Any, **options: Any) -> Any:
        # A cold shutdown cuts it short and forgets it; its message goes back.
        self._hardening.cut_short.append(self)
        return super().cancel(*args, **options)

    # --- how it ends -----------------------------------------------------------------------------

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        if soft or state.should_terminate:
            return super().on_timeout(soft, timeout)
        error = TimeLimitExceeded(timeout)
        # gevent comes here without on_failure, where prefork has decided already.
        if self._timed_out_and_retried or (self.task.is_hardened and self._retry_timeout(error)):
            state.task_ready(self)
            self.acknowledge()
            return None
        if not self._bury(error, "timeout"):
            return None
        return super().on_timeout(soft, timeout)

    _timed_out_and_retried = False

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        error = _unwrap(exc_info.exception)
        if isinstance(error, MemoryError):
            # Celery would re-raise it here, in the main process, and the whole worker would go.
            error = TaskMemoryError(str(error))
            exc_info = _info(error)
        if isinstance(error, Superseded):
            return end_superseded(self)
        if isinstance(error, Terminated):
            held_windows.ended(self._hardening, self.marks, str(self.id), well=False)
            self._free_key()
        goes_back = isinstance(error, Reject) and error.requeue and not self.acknowledged
        if goes_back or isinstance(error, _HANDLED_ELSEWHERE):
            return super().on_failure(exc_info, send_failed_event, return_ok)
        if state.should_terminate:  # cold shutdown: the message goes back, nothing has failed
            self._hardening.cut_short.append(self)
            return super().on_failure(exc_info, send_failed_event, return_ok)
        if isinstance(error, TimeLimitExceeded):
            return self._on_hard_limit(exc_info, error, send_failed_event, return_ok)
        if isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt)):
            if self._already_cancelled or self._already_revoked:
                return super().on_failure(exc_info, send_failed_event, return_ok)
            return self._on_lost(exc_info, error, send_failed_event, return_ok)
        if not hasattr(error, "hardened_letter") and not self._bury(
            error, "rejected" if isinstance(error, Reject) else "permanent", formatted=exc_info.traceback
        ):
            return None
        return super().on_failure(exc_info, send_failed_event, return_ok)

    # --- hard time limit ---------------------------------------------------------------------------

    def _on_hard_limit(self, exc_info: Any, error: BaseException, send_failed_event: bool, return_ok: bool) -> Any:
        """billiard reports a hard limit twice, ``on_failure`` and then ``on_timeout``; one is enough.

        From Celery 5.7 ``on_timeout`` does all that a failure needs; before, only ``on_failure`` did.
        """
        task: Any = self.task
        loop = get_event_loop()
        if loop is not None:  # its process is killed only after this
            loop.call_later(_KILLED_WITHIN, self._free_key)
        if task.is_hardened and self._retry_timeout(error):
            self._timed_out_and_retried = True
            self.acknowledge()
            return None
        if ON_TIMEOUT_FAILS:
            return None
        if not self._bury(error, "timeout", formatted=exc_info.traceback):
            return None
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _retry_timeout(self, error: BaseException) -> bool:
        """A task that lists the time limit in ``autoretry_for`` is published again from here."""
        if self._hardening.settings.observe:
            return False
        task: Any = self.task
        listed = [cls for cls in policy_of(task, self._hardening).autoretry_for if issubclass(cls, TimeLimitExceeded)]
        if not listed:
            return False
        return publish_from_parent(
            task, self._context, error, marks=self.marks, store=self.store_errors, hardening=self._hardening
        )

    # --- lost child --------------------------------------------------------------------------------

    def _on_lost(self, exc_info: Any, error: BaseException, send_failed_event: bool, return_ok: bool) -> Any:
        task: Any = self.task
        stored = getattr(self, "_success_was_stored", None)
        if stored is not None and stored():
            # It had succeeded and its result was stored; Celery acks it as the success it is.
            self._forget_deaths()
            self.ended_well = True
            return super().on_failure(exc_info, send_failed_event, return_ok)
        again = task.acks_late and task.reject_on_worker_lost and not self.acknowledged
        # In a dry run hardened tasks are not acked late yet, as they would be.
        again = again or (task.is_hardened and self._hardening.settings.observe)
        self._free_key()
        if not again:
            if not self._bury(error, "lost", formatted=exc_info.traceback):
                return None
            return super().on_failure(exc_info, send_failed_event, return_ok)
        if observed(self._hardening, "count a death of %s and start it again after a delay", task.name):
            return super().on_failure(exc_info, send_failed_event, return_ok)
        return self._on_death(str(error), send_failed_event)

    def _free_key(self) -> None:
        release_of_dead(self._hardening, self.task, self.marks, self._request_dict["properties"].get(OWNER))

    def _on_death(self, last: str, send_failed_event: bool) -> Any:
        """A certain death: count it, then start the message again later, or bury it as poison."""
        hardening, task, settings = self._hardening, self.task, self._hardening.settings
        limit = settings.max_worker_deaths
        try:
            record = hardening.deaths.record_death(self.start)
            deaths, poison = record.deaths, judge(record, limit=limit) == "poison"
        except StoreUnavailableError as problem:
            # The message carries its own count for exactly this.
            deaths = self.marks.deaths + 1
            poison = deaths >= limit
            logger.warning("death %s of %s is counted in its message only: %s", deaths, task.name, problem)
        if poison:
            return self.bury_poison(deaths, last, send_failed_event)
        # Contained tasks start again as Celery would start them: at once.
        delay = death_delay(deaths, base=settings.death_delay, longest=settings.death_delay_max) * task.is_hardened
        if not self._start_again(deaths, delay):
            return None
        logger.log(
            letters.beside_the_end(hardening),
            "%s[%s] lost its process (%s): death %s of %s, next start in %.1f s",
            task.name,
            self.id,
            last,
            deaths,
            limit,
            delay,
            extra={"task": task.name, "task_id": self.id, "outcome": "worker_lost"},
        )
        return None

    def _start_again(self, deaths: int, delay: float) -> bool:
        """Publish it for a later start and ack it; ``False``: that failed, and it went back to its queue."""
        state.task_ready(self)
        try:
            publish_again(self._hardening.app, self._wire, marks=self.marks, deaths=deaths, delay=delay)
        except Exception as problem:  # noqa: BLE001 - whatever the broker raised
            logger.warning("%s goes back to its queue without a delay: %s", self.task.name, problem)
            self.reject(requeue=True)
            return False
        self.acknowledge()
        return True

    def come_back(self, deaths: int) -> None:
        """It waited to run alone and the worker did not come to rest: later, or elsewhere."""
        logger.warning("%s[%s] could not run alone here; it comes back in %.0f s", self.task.name, self.id, COME_BACK)
        self._start_again(max(1, deaths), COME_BACK)

    def bury_poison(self, deaths: int, last: str, send_failed_event: bool = True) -> Any:
        """End a message that has killed enough: letter, FAILURE, ack."""
        limit = self._hardening.settings.max_worker_deaths
        info = _info(TaskProcessLostError(self.task.name, deaths, limit, last))
        if not self._bury(_unwrap(info.exception), "poison", deaths=deaths):
            return None
        self._forget_deaths()
        # Not return_ok: no child has stored this failure, Celery's parent must.
        return super().on_failure(info, send_failed_event, False)

    def _forget_deaths(self) -> None:
        try:
            self._hardening.deaths.close_start(self.start, finished=True)
        except StoreUnavailableError as problem:
            logger.debug("deaths of %s stay until they lapse: %s", self.start.work, problem)

    # --- the letter --------------------------------------------------------------------------------

    def _bury(
        self, error: BaseException, reason: Reason, *, formatted: str | None = None, deaths: int | None = None
    ) -> bool:
        """Write the letter from the parent. ``False``: it could not be written and the message went back."""
        hardening, task = self._hardening, self.task
        if observed(hardening, "write a dead letter of %s: %s (%r)", task.name, reason, error):
            return True
        context: Any = self._context
        parked = may_park(hardening, task, context)
        letter = letter_for(
            hardening,
            self._wire,
            reason=reason,
            error=error,
            worker=str(self._hostname),
            queue=self._wire.queue or self._wire.routing_key,
            formatted=formatted,
            deaths=deaths,
            shown=log_args(task, self._args or (), self._kwargs or {}),
            max_age=getattr(task, "dead_letter_max_age", None),
            parked=parked,
            group_id=chord_group(context),
        )
        try:
            write(hardening, letter)
        except StoreUnavailableError as problem:
            logger.error("no dead letter for %s, its message goes back: %s", task.name, problem)
            state.task_ready(self)
            self.reject(requeue=True)
            return False
        if parked:
            park(hardening, context, letter)
        return True


#: Does ``on_timeout`` record the failure itself (Celery 5.7), or only ``on_failure`` (5.6)?
ON_TIMEOUT_FAILS = tuple(VERSION[:2]) >= (5, 7)


def _unwrap(error: Any) -> BaseException:
    unwrapped: BaseException = error.exc if isinstance(error, ExceptionWithTraceback) else error
    return unwrapped


def _info(error: BaseException) -> Any:
    try:
        raise error
    except type(error):
        return ExceptionInfo(sys.exc_info())
