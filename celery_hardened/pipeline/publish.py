"""What a producer does with every task message: stamp it, and keep arguments out of its headers.

The seam is the sender that ``app.amqp`` builds, so that ``delay``, ``send_task`` by
name, canvas, beat and retries all pass here, and other apps of the process do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from celery import Celery

from celery_hardened.logs import log_args
from celery_hardened.marks import HEADER, Marks

#: Sent instead of ``argsrepr``/``kwargsrepr`` of a hardened task without ``log_args``.
HIDDEN = "..."


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

            def send_task_message(producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:
                if "task" in message.headers:  # protocol 1 has no headers to stamp
                    again = bool(message.headers.get("retries"))
                    options["headers"] = stamped(options.get("headers"), now=time.time(), again=again)
                    _hide_arguments(self.app, name, message)
                return sender(producer, name, message, *args, **options)

            return send_task_message

    AMQP.__qualname__ = AMQP.__name__ = base.__name__
    return AMQP


def stamped(headers: dict[str, Any] | None, *, now: float, again: bool = True) -> dict[str, Any]:
    """*headers* with our header in it. ``published`` is always this publish, never a copied one.

    *again*: it is the next attempt of the task whose marks these are. If not, somebody hands the
    headers of one task on to another, whose failures, deaths and redrives are its own.
    """
    if not headers or HEADER not in headers:
        return {**(headers or {}), HEADER: {"v": 1, "published": now, "first_published": now}}
    marks = Marks.read(headers)
    if not again:
        marks = Marks(key=marks.key, correlation_id=marks.correlation_id)
    first = marks.first_published if marks.first_published is not None else now
    marks = replace(marks, published=now, first_published=first)
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
    shown = HIDDEN
    if getattr(task, "log_args", None):
        args, kwargs = message.body[0], message.body[1]
        shown = ", ".join(f"{key}={value!r}" for key, value in log_args(task, args, kwargs).items()) or HIDDEN
    message.headers["argsrepr"] = f"({shown})"
    message.headers["kwargsrepr"] = "{}"
    if message.sent_event:
        message.sent_event.update(args=message.headers["argsrepr"], kwargs="{}")
