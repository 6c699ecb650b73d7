"""Messages in the worker's parent process, from arrival to the pool.

::

    1. is it a task?        malformed · undecodable · unknown → letter, then Celery's own handling
    2. Celery's strategy    anything it still raises → letter, the worker stays
    3. a suspect?           poison → letter · alone → waits for an idle worker · else the pool

The class is built on the user's own ``worker_consumer``. A letter that cannot be
written is tried again from the worker's timer; its message stays unacked meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.worker import state
from kombu.exceptions import ContentDisallowed

from celery_hardened.dead_letter.letter import Reason
from celery_hardened.errors import HardenedError, MalformedMessageError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.metrics.catalogue import TASKS, task_label
from celery_hardened.metrics.outcome import Outcome
from celery_hardened.pipeline import run_reports, task_log
from celery_hardened.pipeline.admission import body_problem, header_problem
from celery_hardened.pipeline.delivery import give_back_unstarted
from celery_hardened.pipeline.ended_timers import forget_ended
from celery_hardened.pipeline.letters import letter_for, write
from celery_hardened.pipeline.patience import observed
from celery_hardened.pipeline.pool import heard_before_put_back, jobs_kept
from celery_hardened.pipeline.publish import HIDDEN
from celery_hardened.pipeline.reconnect import Reconnecting
from celery_hardened.pipeline.upkeep import Upkeep, note_returns
from celery_hardened.pipeline.worker_metrics import drain_by
from celery_hardened.poison.isolation import Isolation
from celery_hardened.poison.policy import judge
from celery_hardened.transport.names import is_ours
from celery_hardened.wire import capture, source_queue

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer as _Consumer
else:
    _Consumer = object  # a mix-in: the class it is composed with is the user's worker_consumer

logger = logging.getLogger("celery_hardened.consumer")

_ISOLATION_TICK = 0.1
_REWRITE_AFTER = 2.0


def compose_consumer(base: type) -> type:
    """*base* with our mix-in before it; *base* itself if it has it already."""
    if issubclass(base, HardenedConsumer):
        return base
    return type(base.__name__, (HardenedConsumer, base), {"__module__": base.__module__})


class HardenedConsumer(Reconnecting, _Consumer):  # type: ignore[misc]
    """Mix-in for ``celery.worker.consumer.Consumer``."""

    def __init__(self, on_task_request: Any, *args: Any, **options: Any) -> None:
        super().__init__(on_task_request, *args, **options)
        self._start = on_task_request
        self.isolation = Isolation(
            start=on_task_request, running=lambda: tuple(state.reserved_requests), give_back=self._give_back
        )
        self._isolation_ticking = False
        self.on_task_request = self._admit  # what strategies hand their requests to
        self.upkeep = Upkeep(self._hardening)
        self._draining: Any = None
        self._forgetting: Any = None

    @property
    def _hardening(self) -> Hardening:
        return Hardening.expect(self.app)

    # --- 1 and 2: is it a task? --------------------------------------------------------------------

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        take = super().create_task_handler(*args, **options)
        max_eta = self._hardening.settings.max_eta

        def on_task_received(message: Any) -> Any:
            message.hardened_queue = self._queue_of(message)
            problem = self._problem(message, max_eta)
            if problem is not None and not self._let_pass(message, problem):
                return None
            try:
                return take(message)
            except self.connection_errors as error:
                # The Redis transport counts KeyError as a lost connection: a message that raises
                # one would have the worker reconnect for ever.
                if not isinstance(error, KeyError):
                    raise
                return self._bury(message, "malformed", error, message.reject_log_error)
            except Exception as error:
                if isinstance(error, HardenedError) and not isinstance(error, MalformedMessageError):
                    raise
                return self._bury(message, "malformed", error, message.reject_log_error)

        return on_task_received

    def _problem(self, message: Any, max_eta: float) -> tuple[Reason, BaseException] | None:
        headers = message.headers
        if not isinstance(headers, dict) or "task" not in headers:
            return self._foreign_problem(message)
        problem = header_problem(headers, now=datetime.now(timezone.utc), max_eta=max_eta)
        if problem is None:
            try:
                payload = message.payload
            except Exception as error:  # noqa: BLE001 - a decoder may raise anything
                return "undecodable", error
            problem = body_problem(payload)
        return ("malformed", MalformedMessageError(problem)) if problem else None

    def _foreign_problem(self, message: Any) -> tuple[Reason, BaseException] | None:
        """Without a ``task`` header it is protocol 1, or no task at all."""
        try:
            payload = message.decode()
        except Exception as error:  # noqa: BLE001 - as above
            return "undecodable", error
        if not isinstance(payload, dict) or not isinstance(payload.get("task"), str):
            return "malformed", MalformedMessageError("there is no 'task', neither in the headers nor in the body")
        if not isinstance(payload.get("id"), str) or not payload["id"]:
            return "malformed", MalformedMessageError("the body has no task 'id'")
        if not isinstance(payload.get("args", []), (list, tuple)) or not isinstance(payload.get("kwargs", {}), dict):
            return "malformed", MalformedMessageError("the body's args or kwargs are of the wrong type")
        return None

    def _let_pass(self, message: Any, problem: tuple[Reason, BaseException]) -> bool:
        reason, error = problem
        if observed(self._hardening, "write a dead letter (%s): %s", reason, error):
            return True
        self._bury(message, reason, error, message.reject_log_error)
        return False

    # --- Celery's four handlers ----------------------------------------------------------------------
    # Theirs log the message's body and argsrepr, that is all arguments; they are given neither.

    def on_unknown_message(self, body: Any, message: Any) -> Any:  # noqa: ARG002 - Celery\'s signature
        error = MalformedMessageError("there is no 'task', neither in the headers nor in the body")
        after = super().on_unknown_message
        return self._bury(message, "malformed", error, lambda *_: after(HIDDEN, message))

    def on_unknown_task(self, body: Any, message: Any, exc: Any) -> Any:  # noqa: ARG002 - Celery\'s signature
        after = super().on_unknown_task
        name = message.headers.get("task") if isinstance(message.headers, dict) else None
        error = self.app.tasks.NotRegistered(name)
        return self._bury(message, "unknown_task", error, lambda *_: after(HIDDEN, message, exc))

    def on_invalid_task(self, body: Any, message: Any, exc: Any) -> Any:  # noqa: ARG002 - Celery\'s signature
        after = super().on_invalid_task
        reason: Reason = "undecodable" if isinstance(exc, ContentDisallowed) else "malformed"
        return self._bury(message, reason, exc, lambda *_: after(HIDDEN, message, exc))

    def on_decode_error(self, message: Any, exc: Any) -> Any:
        return self._bury(message, "undecodable", exc, message.ack_log_error)

    def _bury(self, message: Any, reason: Reason, error: BaseException, then: Callable[..., Any]) -> Any:
        """Write the letter of *message*, and only then do what ends it (*then* acks or rejects)."""
        hardening = self._hardening
        if observed(hardening, "write a dead letter (%s): %r", reason, type(error).__name__):
            self._count(message, reason, error)
            return then(logger, self.connection_errors)
        queue = getattr(message, "hardened_queue", None) or self._queue_of(message)
        wire = capture(message, queue=queue)
        letter = letter_for(
            hardening,
            wire,
            reason=reason,
            error=error,
            queue=queue,
            worker=str(self.hostname),
        )
        try:
            write(hardening, letter)
        except StoreUnavailableError as problem:
            logger.error("no dead letter for a %s message yet, it stays unacked: %s", reason, problem)
            self.timer.call_after(_REWRITE_AFTER, self._bury, (message, reason, error, then))
            return None
        for name in ("argsrepr", "kwargsrepr"):
            if name in wire.headers:
                message.headers[name] = HIDDEN
        self._count(message, reason, error)
        return then(logger, self.connection_errors)

    def _count(self, message: Any, reason: Reason, error: BaseException) -> None:
        headers = message.headers if isinstance(message.headers, dict) else {}
        queue = getattr(message, "hardened_queue", None) or self._queue_of(message)
        outcome: Outcome = "unknown" if reason == "unknown_task" else "malformed"
        name, task_id = task_label(headers.get("task")), headers.get("id")
        self._hardening.metrics.inc(TASKS, (name, queue, outcome))
        task_log.ended_unread(
            self._hardening,
            outcome,
            task=name,
            task_id=task_id if isinstance(task_id, str) else "",
            queue=queue,
            worker=str(self.hostname),
            error=error,
        )
        run_reports.ended_unread(self._hardening, headers, outcome, worker=str(self.hostname))

    # --- 3: suspects -----------------------------------------------------------------------------------

    def _admit(self, request: Any) -> Any:
        """Hand a request to the pool: at once, or when it or its elder suspect may have the worker."""
        if not self.isolation.active and not getattr(request, "suspect", False):
            return self._start(request)
        alone = False
        if getattr(request, "suspect", False) and not self._hardening.settings.observe:
            try:
                record = self._hardening.deaths.peek(request.start.work)
            except StoreUnavailableError as problem:
                logger.warning("deaths of %s are unknown, it runs: %s", request.name, problem)
            else:
                verdict = judge(record, limit=self._hardening.settings.max_worker_deaths)
                if verdict == "poison":
                    return request.bury_poison(record.deaths, "its worker died while it ran alone")
                alone = verdict == "alone"
        if alone:
            request.known_deaths = record.deaths
            request.run_alone()
            logger.warning(
                "%s[%s] was running when its worker died; it runs alone now",
                request.name,
                request.id,
                extra={"task": request.name, "task_id": request.id},
            )
        self.isolation.admit(request, alone=alone)
        self._tick_isolation()
        return None

    @staticmethod
    def _give_back(request: Any) -> None:
        request.come_back(request.known_deaths)

    def _tick_isolation(self) -> None:
        """While a suspect is alone or waits to be, look from time to time whether the next may go."""
        if self.isolation.active and not self._isolation_ticking:
            self._isolation_ticking = True
            self.timer.call_after(_ISOLATION_TICK, self._on_isolation_tick)

    def _on_isolation_tick(self) -> None:
        self._isolation_ticking = False
        try:
            self.isolation.proceed()
        finally:
            self._tick_isolation()

    # --- life of the consumer -----------------------------------------------------------------------------

    def on_ready(self) -> None:
        super().on_ready()
        if not self._hardening.settings.observe:
            heard_before_put_back(self.pool)
        self.upkeep.start(self.timer)
        self._draining = drain_by(self.timer, self._hardening, self._draining)
        if self.hub and not self._hardening.settings.observe:
            self._forgetting = forget_ended(self.timer, self._forgetting)

    def stop(self) -> None:
        super().stop()
        give_back_unstarted(self._hardening)

    def shutdown(self) -> None:
        # The worker stops in order and its channel is about to hand back what it still holds.
        note_returns(self._hardening)
        super().shutdown()

    def on_close(self) -> None:
        self.isolation.forget()
        if self._hardening.delivery is None or self.pool is None:
            super().on_close()
            return
        with jobs_kept(self.pool, getattr(self.controller, "semaphore", None)):
            super().on_close()

    def _queue_of(self, message: Any) -> str:
        info = message.delivery_info if isinstance(message.delivery_info, dict) else {}
        if is_ours(message.delivery_tag):
            return str(info["queue"])
        tags = getattr(self.task_consumer, "_active_tags", {})
        return source_queue(info, tags=tags, queues=self.app.amqp.queues.consume_from)
