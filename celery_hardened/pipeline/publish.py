"""What a producer does with every task message: stamp it, and keep arguments out of its headers.

The seam is the sender that ``app.amqp`` builds, so that ``delay``, ``send_task`` by
name, canvas, beat and retries all pass here, and other apps of the process do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

from celery import Celery

from celery_hardened.correlation.current import correlation_id
from celery_hardened.hardening import Hardening
from celery_hardened.logs import log_args
from celery_hardened.marks import HEADER, REFERENCE, Marks
from celery_hardened.pipeline.confirms import confirmed_within
from celery_hardened.pipeline.published import began, publishes_of
from celery_hardened.pipeline.tries import all_tries

#: Sent instead of ``argsrepr``/``kwargsrepr`` of a hardened task without ``log_args``.
HIDDEN = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class FireMarks:
    """What a message says of the schedule that fired it; see ``Marks``."""

    slot: float
    schedule: str
    missed: int = 0
    run: str | None = None
    """Name of the window it holds until it ends."""

    once: bool = False
    """It may be published twice under its id."""

    yields: bool = False
    """It is not to begin once a later run of its schedule has that window."""

    def header(self, now: float) -> dict[str, Any]:
        """Our header in a message published at *now*, as ``Marks.header`` has it."""
        out = {"v": 1, "published": now, "first_published": now, "slot": self.slot, "schedule": self.schedule}
        if self.missed:
            out["missed"] = self.missed
        if self.run:
            out["run"] = self.run
        if self.once:
            out["once"] = True
        if self.yields:
            out["yields"] = True
        return out

    def on(self, marks: Marks) -> Marks:
        return replace(
            marks,
            slot=self.slot,
            schedule=self.schedule,
            missed=self.missed,
            run=self.run,
            once=self.once,
            yields=self.yields,
        )


#: The fire that is being published here: its task id, and what its message is to say. Whatever else is
#: published meanwhile, by the receiver of a signal say, has another id.
firing: ContextVar[tuple[str, FireMarks] | None] = ContextVar("hardened_firing", default=None)


def stamp_publishes(app: Celery, *, settle: Callable[[], object]) -> None:
    """Put the stamping sender into *app*, composed with the app's own ``amqp`` class.

    *settle* is called before the first publish: it reads our settings, which may change how
    queues are declared.

    ``app.amqp`` is made for it if need be, which reads no configuration; ``app.amqp_cls`` stays
    what it was, because the app is pickled with it for a spawned pool process.
    """
    amqp: Any = app.amqp
    amqp.__class__ = _stamping(type(amqp), settle)
    amqp.__dict__.pop("send_task_message", None)  # built already? let it be built again


def _stamping(base: Any, settle: Callable[[], object]) -> Any:
    class AMQP(base):  # type: ignore[misc]
        @cached_property
        def send_task_message(self) -> Callable[..., Any]:
            settle()
            sender: Callable[..., Any] = self._create_task_sender()  # of the class as it is now
            return sender

        def _create_task_sender(self) -> Callable[..., Any]:
            sender = super()._create_task_sender()
            hardening = Hardening.of(self.app)
            publishes = None if hardening is None else publishes_of(hardening)

            def send_task_message(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:
                mine = None
                word: AbstractContextManager[None] = nullcontext()
                if _is_amqp(producer):
                    if hardening is not None:
                        word = confirmed_within(hardening.settings, name, message, options)
                    # Of this publish, whatever an earlier one said: RabbitMQ tells of the age of a queue by it.
                    options["timestamp"] = int(time.time())
                if "task" in message.headers:  # protocol 1 has no headers to stamp
                    again = bool(message.headers.get("retries"))
                    fire = firing.get()
                    mine = fire[1] if fire is not None and fire[0] == message.headers["id"] else None
                    # A fire begins anew, and a retry is the task that it was.
                    given = None if again or mine is not None else correlation_id()
                    if given == message.headers.get("root_id"):
                        given = None  # the root id stands for it
                    options["headers"] = stamped(
                        options.get("headers"), now=time.time(), again=again, fire=mine, correlation=given
                    )
                    _hide_arguments(self.app, name, message)
                if publishes is None or mine is not None:  # a fire is counted once its slot is claimed
                    with all_tries(producer), word:
                        return sender(producer, name, message, *args, **options)
                since = began.get() or perf_counter()
                with all_tries(producer), word:
                    sent = sender(producer, name, message, *args, **options)
                publishes.sent(name, options, since)
                return sent

            return send_task_message

    AMQP.__qualname__ = AMQP.__name__ = base.__name__
    return AMQP


def _is_amqp(producer: Any) -> bool:
    """Does it publish to a broker that does something with a message's properties? Connects to nothing."""
    transport = getattr(getattr(producer, "connection", None), "transport", None)
    return getattr(transport, "driver_type", "") == "amqp"


def stamped(
    headers: dict[str, Any] | None,
    *,
    now: float,
    again: bool = True,
    fire: FireMarks | None = None,
    correlation: str | None = None,
) -> dict[str, Any]:
    """*headers* with our header in it. ``published`` is always this publish, never a copied one.

    *again*: it is the next attempt of the task whose marks these are. If not, somebody hands the
    headers of one task on to another, whose failures, deaths and redrives are its own. *correlation* is
    the id of where it is published, for headers that have none.
    """
    if not headers or HEADER not in headers:
        own: dict[str, Any] = {"v": 1, "published": now, "first_published": now} if fire is None else fire.header(now)
        if correlation is not None:
            own["correlation_id"] = correlation
        return {**(headers or {}), HEADER: own}
    marks = Marks.read(headers)
    if not again:
        marks = Marks(key=marks.key, dedup=marks.dedup, correlation_id=marks.correlation_id)
    first = marks.first_published if marks.first_published is not None else now
    marks = replace(marks, published=now, first_published=first, correlation_id=marks.correlation_id or correlation)
    if fire is not None:
        marks = fire.on(marks)
    return {**headers, HEADER: marks.header(attempt=_attempt(headers))}


def _attempt(headers: dict[str, Any]) -> int:
    raw = headers[HEADER]
    attempt = raw.get("attempt", 0) if isinstance(raw, dict) else 0
    return attempt if isinstance(attempt, int) else 0


def _hide_arguments(app: Celery, name: str, message: Any) -> None:
    """Celery sends ``repr`` of all arguments in clear; hardened tasks send the allow-listed ones."""
    task = app._tasks.get(name)
    if not getattr(task, "is_hardened", False):
        return
    if REFERENCE in message.body[1]:
        return  # what it shows was taken from the arguments before they went to the payload store
    message.headers["argsrepr"] = shown_of(task, message.body[0], message.body[1])
    message.headers["kwargsrepr"] = "{}"
    if message.sent_event:
        message.sent_event.update(args=message.headers["argsrepr"], kwargs="{}")


def shown_of(task: Any, args: Any, kwargs: Any) -> str:
    """What takes the place of ``argsrepr`` in the message of a hardened *task*."""
    shown = HIDDEN
    if getattr(task, "log_args", None):
        shown = ", ".join(f"{key}={value!r}" for key, value in log_args(task, args, kwargs).items()) or HIDDEN
    return f"({shown})"
