"""Rules on the Celery app: is it hardened, and are its settings those that were meant?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from kombu import Queue

from celery_hardened.contrib.django.checks.project import Project, Rule, listed, page
from celery_hardened.errors import ConfigurationError

_PICKLES = frozenset({"pickle", "application/x-python-serialize"})
_CONTENT = (
    "accept_content",
    "result_accept_content",
    "task_serializer",
    "result_serializer",
    "event_serializer",
)


def hardened(project: Project) -> Iterator[CheckMessage]:
    """W002."""
    if project.hardening is None:
        yield Warning(
            f"The Celery app {project.app.main!r} is not hardened: failures leave no dead letter, and publishes do not "
            f"wait for a commit.",
            hint=f"Call celery_hardened.harden(app) right after it is created. {page('Your first hardened task')}",
            id="celery_hardened.W002",
        )


def settings_are_right(project: Project) -> Iterator[CheckMessage]:
    """E001."""
    if isinstance(project.read, ConfigurationError):
        yield Error(
            f"A worker would not start: {project.read}",
            hint=page("Settings"),
            id="celery_hardened.E001",
        )


def settings_are_read(project: Project) -> Iterator[CheckMessage]:
    """W003."""
    ours = [name for name in dir(django_settings) if name.startswith("CELERY_HARDENED_")]
    unread = [name for name in ours if not _is_read(project.app, name)]
    if unread:
        yield Warning(
            f"{len(unread)} of Django's settings are not read by the app {project.app.main!r}: {listed(unread)}.",
            hint=(
                "Let it read them: app.config_from_object('django.conf:settings', namespace='CELERY'). "
                + page("Settings")
            ),
            id="celery_hardened.W003",
        )


def _is_read(app: Celery, name: str) -> bool:
    missing = object()
    value: Any = app.conf.get(name.removeprefix("CELERY_").lower(), missing)
    return value is not missing


def json_alone(project: Project) -> Iterator[CheckMessage]:
    """W007."""
    found = {}
    for name in _CONTENT:
        value = project.conf.get(name)
        names = [value] if isinstance(value, str) else list(value or ())
        if any(one in _PICKLES for one in names):
            found[name] = value
    if found:
        said = ", ".join(f"{name} = {value!r}" for name, value in sorted(found.items()))
        yield Warning(
            f"Pickle is allowed ({said}): who can write to the broker or the result backend runs code in your workers.",
            hint=(
                "Use JSON, and send primary keys instead of objects. Let workers accept both until the last pickled "
                f"message is gone. {page('Adopt it in a running company')}"
            ),
            id="celery_hardened.W007",
        )


def has_redis(project: Project) -> Iterator[CheckMessage]:
    """E004."""
    of = project.settings
    if project.hardening is None or (of.dead_letter_store == "memory" and of.redis_url is None):
        return
    from celery_hardened.redis_connection import connect

    try:
        connect(project.app, of)  # makes a client, which connects when it is used
    except ConfigurationError as problem:
        yield Error(
            str(problem),
            hint=(
                "Set CELERY_HARDENED_REDIS_URL. With dead letters in the database too, worker deaths, keys, switches "
                f"and slots of schedules are kept there. {page('Compatibility')}"
            ),
            id="celery_hardened.E004",
        )


def queues_have_keys(project: Project) -> Iterator[CheckMessage]:
    """W019. Celery binds a queue without a routing key by the default one, whatever its name."""
    default = (project.conf.task_default_exchange, project.conf.task_default_routing_key)
    named = project.conf.task_queues or ()
    # Of a mapping each entry without a key gets its name for one.
    queues = [one for one in named if isinstance(one, Queue)] if not isinstance(named, Mapping) else []
    alike = [one.name for one in queues if not one.bindings and _binding(one, default) == default]
    if len(alike) > 1:
        yield Warning(
            f"{len(alike)} queues of CELERY_TASK_QUEUES are bound to the exchange {default[0]!r} by the same routing "
            f"key, {default[1]!r}: {listed(alike)}. What is published by that exchange and key, by a periodic task "
            f"that names them or by a program that is not Celery, is put into each of these queues; by a queue's name "
            f"for its key, into none.",
            hint=(
                f"Give each its own: Queue({alike[-1]!r}, routing_key={alike[-1]!r}). Tasks that are sent by the name "
                f"of a queue arrive there alone, with or without. {page('Use RabbitMQ')}"
            ),
            id="celery_hardened.W019",
        )


def _binding(queue: Queue, default: tuple[str, str]) -> tuple[str, str]:
    exchange = getattr(queue.exchange, "name", "")  # None, until Celery fills it in
    return exchange or default[0], queue.routing_key or default[1]


RULES: tuple[Rule, ...] = (hardened, settings_are_right, settings_are_read, json_alone, has_redis, queues_have_keys)
