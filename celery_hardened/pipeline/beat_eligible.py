"""Which schedules' messages may come from a template: those that nothing but Celery and this package makes.

Whatever could look at a publish or change it (a receiver, a router, a task's own ``apply_async``) sends its
schedules the natural way. What is not known counts as such.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from datetime import datetime
from types import FunctionType, MethodType
from typing import Any

import celery
from celery import signals
from celery.app import routes
from celery.beat import BeatLazyFunc

from celery_hardened.dedup.decorator import options_of as deduplication_of
from celery_hardened.hardening import Hardening
from celery_hardened.idempotency.decorator import options_of as idempotency_of
from celery_hardened.pipeline.beat_template import VARYING

#: Seconds before a fixed instant at which Celery's own path has to see to what expires.
_SOON = 1.0

#: Options that change nothing but fields of the message, always the same.
_PLAIN = frozenset(
    {
        "compression",
        "delivery_mode",
        "exchange",
        "ignore_result",
        "priority",
        "queue",
        "retry",
        "routing_key",
        "serializer",
        "shadow",
        "soft_time_limit",
        "time_limit",
        *VARYING,
    }
)

_SCALARS = (str, int, float, bool, type(None))

#: Modules whose code makes messages as a template does.
_OURS = ("celery.", "celery_hardened.")

#: What a task's class may say itself, and would be asked at every publish.
_TASK = ("apply_async", "shadow_name", "_get_exec_options", "_get_app", "AsyncResult")
_AMQP = ("_create_task_sender", "send_task_message", "as_task_v2", "create_task_message", "router", "Router")

_CONF = (
    "task_always_eager",
    "task_compression",
    "task_create_missing_queues",
    "task_default_delivery_mode",
    "task_default_exchange",
    "task_default_queue",
    "task_default_routing_key",
    "task_protocol",
    "task_repr_maxlevels",
    "task_send_sent_event",
    "task_serializer",
)


def has_receivers() -> bool:
    """Does somebody look at publishes? Asked of every message."""
    return bool(
        signals.before_task_publish.receivers or signals.after_task_publish.receivers or signals.task_sent.receivers
    )


def ground(app: Any, hardening: Hardening) -> tuple[Any, ...] | None:
    """All that templates of *app* rest on besides their tasks; ``None``: it has none. Equal: they still hold."""
    conf, amqp = app.conf, app.amqp
    said = {name: conf.get(name) for name in _CONF}
    settings = hardening.settings
    if said["task_always_eager"] or said["task_send_sent_event"] or said["task_protocol"] != 2 or settings.observe:
        return None
    if not all(type(one) is routes.MapRoute for one in amqp.routes) or type(amqp.router) is not routes.Router:
        return None
    stock = getattr(app.send_task, "__wrapped__", None)
    if not (_is_own(app.send_task) and _is_own(stock) and _keeps(amqp, _AMQP) and _is_own(celery.Task.apply_async)):
        return None
    if not _is_own(getattr(type(app.backend), "on_task_call", None)):
        return None
    limit = settings.payload_max if settings.payload_store is None else settings.payload_threshold
    return (*said.values(), app.timezone, amqp, *amqp.routes, amqp.router, id(amqp.queues), os.getpid(), limit)


def is_plain_task(task: Any) -> bool:
    """Is *task* (``None``: known by name alone) published by Celery's own code, and by ours, as any other?"""
    if task is None:
        return True
    if idempotency_of(task) is not None or deduplication_of(task) is not None:
        return False
    if getattr(task, "_dump_pydantic_arguments", None) is not None or getattr(task, "__v2_compat__", False):
        return False
    return _keeps(task, _TASK)


def are_plain_options(options: Mapping[str, Any]) -> bool:
    """Do *options* name only what a template has, in values that say all by their ``repr``?"""
    return options.keys() <= _PLAIN | {"expires"} and all(
        type(value) in _SCALARS for name, value in options.items() if name not in VARYING and name != "expires"
    )


def is_plain_expiry(expires: Any, now: float) -> bool:
    if expires is None:
        return True
    if isinstance(expires, datetime):
        return expires.tzinfo is not None and expires.timestamp() > now + _SOON
    return type(expires) in (int, float) and expires > 0


def is_lazy(schedule: Any) -> bool:
    """Are there arguments that are made at each fire?"""
    return any(isinstance(value, BeatLazyFunc) for value in (*schedule.args, *schedule.kwargs.values()))


def _keeps(thing: Any, names: tuple[str, ...]) -> bool:
    """Is each of *names*, wherever a class of *thing* says it, Celery's or ours?"""
    for name in names:
        if not all(_is_own(one.__dict__[name]) for one in type(thing).__mro__ if name in one.__dict__):
            return False
        if not _is_own(thing.__dict__.get(name)):
            return False
    return True


def _is_own(found: Any) -> bool:
    """Is *found*, if it is code, Celery's or ours? A wrapper around it is neither, whatever it calls itself."""
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, functools.cached_property):
        found = found.func
    elif isinstance(found, (classmethod, staticmethod, MethodType)):
        found = found.__func__
    if found is None or isinstance(found, (type, routes.Router)):
        return True
    return type(found) is FunctionType and str(found.__globals__.get("__name__")).startswith(_OURS)
