"""The next attempt: decided by the policy, published by Celery's own ``Task.retry``."""

from __future__ import annotations

import logging
import random
import sys
import time
import traceback
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import Reject, Retry
from celery.signals import task_retry
from celery.utils.serialization import raise_with_context
from celery.utils.time import maybe_iso8601
from kombu.exceptions import EncodeError

from celery_hardened.hardening import Hardening
from celery_hardened.marks import HEADER, Marks
from celery_hardened.pipeline.fetch import for_retry
from celery_hardened.pipeline.letters import WIRE
from celery_hardened.retry.classify import classify
from celery_hardened.retry.policy import GiveUp, RetryIn, RetryPolicy, Verdict, decide
from celery_hardened.retry.retry_after import retry_after
from celery_hardened.wire import STALE_HEADERS, unpack

logger = logging.getLogger("celery_hardened.retry")

#: What ``retry()`` tells the pipeline, in a dict on the request: ``final``, an error after which there
#: is no retry, and why; ``pending``, a retry that was sent and not raised. A dict, because a
#: ``__call__`` that calls Celery's runs the body with a copy of the request.
NOTES = "hardened_notes"

#: The system's own randomness: a forked child inherits its parent's ``random`` state, and
#: children that jitter alike do not jitter at all.
_uniform = random.SystemRandom().uniform


def policy_of(task: Any, hardening: Hardening) -> RetryPolicy:
    """The task's retry policy; raises ``ConfigurationError`` if its attributes contradict each other."""
    policy: RetryPolicy | None = task.__dict__.get("_hardened_retry_policy")
    if policy is None:
        policy = RetryPolicy.of(task, hardening.settings)
        task.__dict__["_hardened_retry_policy"] = policy
    return policy


def verdict_on(task: Any, error: BaseException, *, hardening: Hardening, marks: Marks) -> Verdict:
    """Retry or give up: what the policy says of this failure."""
    request = task.request
    policy = policy_of(task, hardening)
    kind = classify(
        error,
        autoretry_for=policy.autoretry_for,
        dont_autoretry_for=policy.dont_autoretry_for,
        hook=getattr(task, "classify", None),
    )
    if kind == "transient" and not request.is_eager and not hardening.switches.get("retries"):
        logger.warning("retries are switched off: %s fails for good", task.name, extra={"task_id": request.id})
        return GiveUp("exhausted")
    # Eager mode does not sleep, so its clock is moved by the delays it skipped.
    now = time.time() + (marks.waited if request.is_eager else 0.0)
    return decide(
        policy,
        kind=kind,
        retries=request.retries,
        now=now,
        first_published=marks.first_published,
        expires=expires_at(request),
        retry_after=retry_after(error, now=now),
        uniform=_uniform,
    )


def verdict_on_explicit(
    task: Any, error: Any, *, eta: Any, countdown: float | None, max_retries: int | None, hardening: Hardening
) -> float:
    """Seconds until the retry that ``self.retry()`` asks for, or raise what says that there is none.

    An explicit *countdown*, *eta* or *max_retries* is the task's own decision: neither our
    delay nor our horizon touches it.
    """
    request = task.request
    marks = Marks.read(request.headers)
    policy = policy_of(task, hardening)
    now = time.time() + (marks.waited if request.is_eager else 0.0)
    explicit = countdown is not None or eta is not None
    fixed = None
    if explicit:
        # Celery runs a retry whose time is past at once; so does this.
        fixed = max(0.0, _seconds_until(eta, now) if eta is not None else float(countdown or 0.0))
    if max_retries is not None:
        policy = replace(policy, max_retries=max(0, int(max_retries)), horizon=None)
    verdict = decide(
        policy,
        kind="transient",
        retries=request.retries,
        now=now,
        first_published=marks.first_published,
        expires=expires_at(request),
        retry_after=None if explicit or error is None else retry_after(error, now=now),
        uniform=_uniform,
        delay=fixed,
    )
    if isinstance(verdict, RetryIn) and (request.is_eager or hardening.switches.get("retries")):
        return verdict.delay

    reason = verdict.reason if isinstance(verdict, GiveUp) else "exhausted"
    if error is None:
        # Celery's message holds all arguments; ours does not.
        error = task.MaxRetriesExceededError(f"Can't retry {task.name}[{request.id}]: {reason}")
    request.__dict__.setdefault(NOTES, {})["final"] = (error, reason)
    raise_with_context(error)
    raise AssertionError("raise_with_context returned")


def _seconds_until(eta: datetime | str, now: float) -> float:
    moment: datetime = maybe_iso8601(eta)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return max(0.0, moment.timestamp() - now)


def expires_at(request: Any) -> float | None:
    """When the message expires, as seconds since the epoch."""
    raw = request.expires
    if raw is None:
        return None
    try:
        moment = maybe_iso8601(raw)
    except (ValueError, TypeError):
        return None
    if isinstance(moment, datetime):
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    return None


def publish_from_parent(
    task: Any, request: Any, error: BaseException, *, marks: Marks, store: bool, hardening: Hardening
) -> bool:
    """Publish the next attempt of a task whose process is gone, and tell of it as Celery would.

    *store*: its state is kept in the result backend.

    Returns:
        Whether there is a next attempt, and it was published.
    """
    verdict = decide(
        policy_of(task, hardening),
        kind="transient" if hardening.switches.get("retries") else "permanent",
        retries=request.retries,
        now=time.time(),
        first_published=marks.first_published,
        expires=expires_at(request),
        retry_after=None,
        uniform=_uniform,
    )
    if not isinstance(verdict, RetryIn):
        return False
    marks = marks.failed(at=time.time(), worker=str(request.hostname), error=type(error).__name__)
    headers = {name: value for name, value in (request.headers or {}).items() if name not in STALE_HEADERS}
    headers[HEADER] = marks.header(attempt=request.retries + 1)
    try:
        task.signature_from_request(
            request, countdown=verdict.delay, retries=request.retries + 1, headers=headers
        ).apply_async()
    except Exception as problem:  # noqa: BLE001 - whatever the broker raised: then it is a letter
        logger.error("retry of %s could not be published: %s", task.name, problem, extra={"task_id": request.id})
        return False
    _tell_of_retry(task, request, error, verdict.delay, store=store)
    return True


def _tell_of_retry(task: Any, request: Any, error: BaseException, delay: float, *, store: bool) -> None:
    """State, hook and signal of a retry that no pool process lives to tell of.

    It is on its way, so its message is to be acked whatever goes wrong here: nothing is raised.
    """
    try:
        raise error  # one that was only made, as in a pool of greenlets, has no traceback, and billiard wants one
    except type(error):
        info = ExceptionInfo()
    if store:
        try:
            task.backend.mark_as_retry(request.id, error, info.traceback, request=request)
        except Exception as problem:  # noqa: BLE001 - whatever the result backend raises
            logger.warning("the state of %s is not RETRY in the result backend: %r", task.name, problem)
    task.request_stack.push(request)
    try:
        try:
            task.on_retry(error, request.id, request.args, request.kwargs, info)
        except Exception:
            logger.exception("on_retry of %s raised", task.name, extra={"task_id": request.id})
        task_retry.send(sender=task, request=request, reason=Retry(exc=error, when=delay), einfo=info)
    finally:
        task.request_stack.pop()


def _say_retry(task: Any, request: Any, error: BaseException | None) -> None:
    """Put RETRY into the result backend *before* the next attempt is sent.

    Celery does so after: an attempt that is quick to start and to end would have its SUCCESS or
    FAILURE overwritten by the RETRY of its predecessor, and whoever waits for it would wait for ever.
    """
    ignored = request.__dict__.get("ignore_result")
    ignored = task.ignore_result if ignored is None else ignored
    if not ignored or task.store_errors_even_if_ignored:
        text = "".join(traceback.format_exception(error)) if error is not None else None
        try:
            task.backend.mark_as_retry(request.id, error, text, request=request)
        except Exception as problem:  # noqa: BLE001 - the state is lost, the retry is not
            logger.warning("the state of %s is not RETRY in the result backend: %r", task.name, problem)


def publish_retry(
    task: Any,
    publish: Any,
    *,
    error: BaseException | None,
    delay: float,
    marks: Marks,
    options: dict[str, Any],
    hardening: Hardening,
) -> Any:
    """Send the next attempt through *publish* (``Task.retry``), which then raises ``Retry``.

    A publish that fails is tried again for ``hardened_dead_letter_write_timeout`` seconds.

    Raises:
        celery.exceptions.Retry: It is on its way.
        celery.exceptions.Reject: It could not be sent. Celery would drop the task here; this
            gives the message back to the broker, which delivers it again.
        Exception: What kept it from being sent, if there is no message to give back (it was
            acked early), or no broker would ever take it (arguments that cannot be encoded).
    """
    request = task.request
    options = for_retry(request, options)
    named = type(error).__name__ if error is not None else "Retry"
    now = time.time()
    next_marks = replace(
        marks.failed(at=now, worker=str(request.hostname), error=named),
        # The horizon of an eager task, or of a plain producer's message, runs from here.
        first_published=now if marks.first_published is None else marks.first_published,
        waited=marks.waited + delay,
        deaths=0 if request.__dict__.get(NOTES, {}).get("progress") else marks.deaths,
    )
    headers = {name: value for name, value in (request.headers or {}).items() if name not in STALE_HEADERS}
    headers.update(options.pop("headers", None) or {})
    headers[HEADER] = next_marks.header(attempt=request.retries + 1)

    if not options.keys() & {"queue", "exchange", "declare"}:  # else it is sent elsewhere
        options = {**options, **_exchange_to_declare(task, request)}

    if not request.is_eager:
        _say_retry(task, request, error)
    deadline = time.monotonic() + hardening.settings.dead_letter_write_timeout
    pause = 0.2
    while True:
        try:
            # The policy has counted already; maxsize keeps Celery from counting again.
            outcome = publish(max_retries=sys.maxsize, headers=headers, **options)
        except Retry:
            request.ignore_result = True  # it is said already: Celery is not to say it again
            raise
        except Reject as rejected:
            if isinstance(rejected.reason, (EncodeError, TypeError, ValueError)):
                raise rejected.reason from None
            if time.monotonic() + pause > deadline:
                if not task.acks_late:
                    raise rejected.reason from None
                logger.error(
                    "retry of %s could not be published (%s); its message goes back to the broker",
                    task.name,
                    rejected.reason,
                    extra={"task_id": request.id},
                )
                raise Reject(rejected.reason, requeue=True) from rejected
            time.sleep(pause)
            pause = min(2.0, pause * 2)
        else:
            request.ignore_result = True  # as above
            return outcome


def _exchange_to_declare(task: Any, request: Any) -> dict[str, Any]:
    """The option that has a retry declare the exchange it goes through again.

    A pool process consumes nothing, so kombu's virtual transports (Redis) do not know there
    of which type an exchange is. They take it for direct, and a message whose key only fits
    a topic's pattern would reach no queue and be gone.
    """
    packed = (request.properties or {}).get(WIRE)
    if not isinstance(packed, tuple) or not (request.delivery_info or {}).get("exchange"):
        return {}
    queue = task.app.amqp.queues.get(unpack(packed).queue)
    exchange = queue.exchange if queue is not None else None
    return {} if exchange is None or exchange.type == "direct" else {"declare": [queue]}
