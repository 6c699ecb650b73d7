"""Sends what waited for a commit: patiently, and never in silence.

``Publisher.publish`` is the one place where it happens, after the commit. What waits is kept by
``on_commit.defer``: there an outbox would write its row, inside the transaction, and send it through here.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.utils.nodenames import anon_nodename
from kombu.serialization import dumps

from celery_hardened.dead_letter.describe import describe
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.parking import chord_group
from celery_hardened.dedup.sent import nothing_was_sent
from celery_hardened.errors import DuplicateTaskError
from celery_hardened.hardening import Hardening
from celery_hardened.logs import log_args
from celery_hardened.pipeline.letters import letter_for, may_park, park, write
from celery_hardened.pipeline.publish import HIDDEN, stamped
from celery_hardened.pipeline.published import ended
from celery_hardened.retry.transient import is_transient
from celery_hardened.wire import Wire

if TYPE_CHECKING:
    from celery_hardened.pipeline.send import Call

logger = logging.getLogger("celery_hardened.publish")

#: Laid over the call's ``retry_policy``: one new connection at once, because the pool's may be dead.
#: Whatever takes longer is for ``Patience``; the app's own policy may be to go on for ever.
_ONE_RECONNECT = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}

#: Seconds that one commit's dead letters may take in all, however short the patience.
_LETTERS_AT_LEAST = 5.0


class UnsentError(Exception):
    """The broker did not take a task after its commit; what is left of it is a dead letter, or a line in the log.

    Caught by the pipeline, which raises ``PublishFailedError`` for all of one commit.
    """

    def __init__(self, task: str, problem: str, limit: SoftTimeLimitExceeded | None = None) -> None:
        super().__init__(task, problem)
        self.task = task
        self.problem = problem
        self.limit = limit
        """The soft time limit of the task that was running, if this is what came between."""


class Patience:
    """How long one commit waits for the broker, all its publishes together: a request has to end sometime.

    Counts from the first failure. When it is used up every further publish is tried once, and
    after as long again none is: each try may last until a timeout. Dead letters have as long for
    themselves, because they may lie elsewhere.
    """

    def __init__(
        self,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._until: float | None = None
        self._pause = 0.1
        self._for_letters = max(seconds, _LETTERS_AT_LEAST)
        self.problem: Exception = TimeoutError("no time was left to try it")
        """What went wrong last."""

    def again(self, problem: Exception) -> bool:
        """*problem* may pass: wait a moment before another try; ``False`` if there is no time for one."""
        self.problem = problem
        if self._until is None:
            self._until = self._clock() + self._seconds
        if self._clock() + self._pause > self._until:
            return False
        self._sleep(self._pause)
        self._pause = min(1.0, self._pause * 2)
        return True

    def use_up(self) -> None:
        """Whatever comes is tried once: who waits has no time left."""
        self._until = self._clock()

    @property
    def over(self) -> bool:
        """Is nothing to be tried any more?"""
        return self._until is not None and self._clock() > self._until + self._seconds

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around the writing of a letter: it takes of the time for letters.

        Raises:
            TimeoutError: There is none left.
        """
        if self._for_letters <= 0:
            raise TimeoutError("this commit has waited too long for the store of dead letters")
        began = self._clock()
        try:
            yield
        finally:
            self._for_letters -= self._clock() - began


def named(call: Call) -> str:
    """``name[id]``, as in all messages about a task."""
    return f"{call.name}[{call.options.get('task_id')}]"


class Publisher:
    """Sends tasks whose transactions have committed."""

    def __init__(self, hardening: Hardening) -> None:
        self._hardening = hardening

    def publish(self, call: Call, send: Callable[[Call], Any], patience: Patience) -> Any:
        """Send *call*, trying again while the broker is away and *patience* lasts.

        Whether the broker has taken a message of which it did not say so is not known: then it
        is sent again, under the same task id.

        Returns:
            What *send* answers.

        Raises:
            DuplicateTaskError: ``@deduplicate`` refused it.
            UnsentError: It was not sent, or a soft time limit came before that was known. It is a dead
                letter of reason ``unsent``, or in the log if the store of dead letters was away too.
        """
        policy = {**(call.options.get("retry_policy") or {}), **_ONE_RECONNECT}
        ready = replace(call, options={**call.options, "retry_policy": policy})
        connection = call.options.get("connection")  # made for this call, to another broker than the app's
        try:
            return self._tried(ready, send, patience)
        except SoftTimeLimitExceeded as limit:  # of the task that runs here: it ends when the others are tried
            patience.use_up()
            raise self._given_up(call, limit, patience) from limit
        finally:
            if connection is not None:
                connection.release()

    def _tried(self, call: Call, send: Callable[[Call], Any], patience: Patience) -> Any:
        handled = sys.exc_info()[1]
        while not patience.over:
            try:
                return send(call)
            except (DuplicateTaskError, SoftTimeLimitExceeded):
                raise
            except Exception as problem:
                if not nothing_was_sent(problem, handled=handled):
                    call = replace(call, maybe_sent=True)  # and stays so: the next try may be refused
                if is_transient(problem) and patience.again(problem):
                    continue
                raise self._given_up(call, problem, patience) from problem
        raise self._given_up(call, patience.problem, patience) from patience.problem

    def _given_up(self, call: Call, problem: Exception, patience: Patience) -> UnsentError:
        limit = self._keep(call, problem, patience)
        if isinstance(problem, SoftTimeLimitExceeded):
            limit = problem
        return UnsentError(named(call), f"{type(problem).__name__}: {problem}", limit)

    def _keep(self, call: Call, problem: Exception, patience: Patience) -> SoftTimeLimitExceeded | None:
        """Write down what was not sent, and say so. Returns the task's time limit, if that came between."""
        limit = None
        ended(self._hardening, call.name, "unsent", (call.args, call.kwargs, call.options))
        shown = log_args(call.task, call.args or (), call.kwargs or {})
        queue = str(call.options.get("queue") or "")
        try:
            with patience.writing():
                member = _membership(call)
                letter = self._letter(call, problem, shown, member)
                queue = letter.queue
                write(self._hardening, letter)
                if letter.parked:
                    park(self._hardening, member, letter)
            kept = f"it is dead letter {letter.id}, and a redrive sends it"
        except Exception as trouble:  # noqa: BLE001 - the log is the last place left
            kept = f"LOST: its dead letter could not be written either ({trouble!r})"
            if isinstance(trouble, SoftTimeLimitExceeded):
                patience.use_up()
                limit = trouble
        logger.critical(
            "%s was not sent after its commit: %s; %s",
            named(call),
            describe(problem).message or type(problem).__name__,
            kept,
            extra={
                "task": call.name,
                "task_id": call.options.get("task_id"),
                "queue": queue,
                "reason": "unsent",
                **{f"arg_{name}": value for name, value in shown.items()},
            },
        )
        return limit

    def _letter(self, call: Call, problem: Exception, shown: dict[str, Any], member: Any) -> DeadLetter:
        wire = wire_of(self._hardening, call)
        return letter_for(
            self._hardening,
            wire,
            reason="unsent",
            error=problem,
            worker=anon_nodename(),
            queue=wire.queue or wire.routing_key,
            shown=shown,
            max_age=getattr(call.task, "dead_letter_max_age", None),
            # Its chord waits for it, and a redrive completes it.
            parked=call.task is not None and may_park(self._hardening, call.task, member),
            group_id=chord_group(member),
        )


def _membership(call: Call) -> Any:
    """Which chord waits for *call*, told as a request tells it."""
    options = call.options
    return SimpleNamespace(chord=options.get("chord"), group=options.get("group_id"), chain=options.get("chain"))


def wire_of(hardening: Hardening, call: Call) -> Wire:
    """The message that Celery would have made of *call*."""
    app, task, name = hardening.app, call.task, call.name
    given = {key: value for key, value in (task._get_exec_options() if task else {}).items() if value is not None}
    given.update(call.options)
    stamps = {key: given[key] for key in given.get("stamped_headers") or () if key in given}
    shown = log_args(task, call.args or (), call.kwargs or {})
    listed = ", ".join(f"{key}={value!r}" for key, value in shown.items()) or HIDDEN
    message = app.amqp.as_task_v2(
        given["task_id"],
        name,
        call.args,
        call.kwargs,
        ignore_result=given.get("ignore_result"),
        callbacks=_listed(given.get("link")),
        errbacks=_listed(given.get("link_error")),
        **{key: given[key] for key in _IN_THE_MESSAGE if given.get(key) is not None},
        argsrepr=f"({listed})",
        kwargsrepr="{}",
        **stamps,
    )
    serializer = given.get("serializer") or app.conf.task_serializer
    content_type, encoding, body = dumps(message.body, serializer)
    place = {key: given[key] for key in ("queue", "exchange", "routing_key") if given.get(key)}
    route = app.amqp.router.route(place, name, call.args, call.kwargs, task)
    queue = route.get("queue") or (None if route.get("exchange") else app.amqp.default_queue)
    exchange = route.get("exchange") or ""
    priority = {"priority": given["priority"]} if given.get("priority") is not None else {}
    return Wire(
        body=body.encode() if isinstance(body, str) else body,
        body_compressed=False,
        content_type=content_type,
        content_encoding=encoding,
        headers=stamped({**message.headers, **(given.get("headers") or {})}, now=time.time(), again=False),
        properties={**message.properties, **priority},
        exchange=str(getattr(exchange, "name", exchange)),
        routing_key=str(route.get("routing_key") or getattr(queue, "routing_key", "") or ""),
        delivery_tag=str(given["task_id"]),
        redelivered=False,
        queue=str(getattr(queue, "name", queue) or ""),
    )


#: Options of a call that are in the message's headers or body, under the same name.
_IN_THE_MESSAGE = (
    "countdown",
    "eta",
    "group_id",
    "group_index",
    "expires",
    "chord",
    "reply_to",
    "time_limit",
    "soft_time_limit",
    "root_id",
    "parent_id",
    "shadow",
    "chain",
    "stamped_headers",
    "replaced_task_nesting",
)


def _listed(value: Any) -> Any:
    return value if value is None or isinstance(value, list) else [value]
