"""Our defaults for Celery's own settings. They lie below everything the user set.

Per task, at bind, hardened tasks only: late acks, ``reject_on_worker_lost``, time
limits, ``max_retries``. App-wide: the rest. ``docs/explanation/what-changes.md``
goes through every one with how to keep the old behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.app.annotations import resolve_all

from celery_hardened.settings import Settings

#: App-wide settings laid in where the user set none. Dicts merge key by key.
APP_WIDE: dict[str, Any] = {
    "worker_prefetch_multiplier": 1,
    "enable_utc": True,
    "accept_content": ("json",),
    "task_serializer": "json",
    "result_serializer": "json",
    "result_expires": timedelta(days=1),
    "broker_connection_retry_on_startup": True,
    "broker_connection_timeout": 4,
    "task_publish_retry": True,
    "task_publish_retry_policy": {"max_retries": 3, "interval_start": 0.1, "interval_step": 0.2, "interval_max": 1},
    "worker_cancel_long_running_tasks_on_connection_loss": False,
}

#: Only for a Redis broker: a dead TCP connection must not hang a publish for ever, nor a worker's loop,
#: which may meet several dead connections in turn. When a line was cut silently and new connections worked
#: at once, a worker was back after 15 s with these, and not within a minute with 30 and 10 s.
REDIS_TRANSPORT_OPTIONS: dict[str, Any] = {
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
}

#: Only for an AMQP broker: a publish is over when the broker says that it has the message. Without it
#: a retry could be acked as sent while a dying broker had it in no queue yet.
AMQP_TRANSPORT_OPTIONS: dict[str, Any] = {"confirm_publish": True}

_AMQP_SCHEMES = ("amqp://", "amqps://", "pyamqp://")
_REDIS_SCHEMES = ("redis://", "rediss://", "sentinel://", "redis+socket://")


def lay_app_wide(app: Celery) -> dict[str, Any]:
    """Put the app-wide preset under the user's settings; what that changed.

    ``conf.maps[-1:-1]`` is just above Celery's own defaults. ``add_defaults()`` is not
    used: it lands above ``config_from_object`` and would silently beat the user.
    """
    conf = app.conf
    wanted = dict(APP_WIDE)
    if _uses(conf, _REDIS_SCHEMES):
        wanted["broker_transport_options"] = REDIS_TRANSPORT_OPTIONS
    elif _uses(conf, _AMQP_SCHEMES):
        wanted["broker_transport_options"] = AMQP_TRANSPORT_OPTIONS

    laid: dict[str, Any] = {}
    merged: dict[str, Any] = {}
    for name, value in wanted.items():
        if not set_by_user(conf, name):
            if conf[name] != value:  # else it is Celery's own default
                laid[name] = dict(value) if isinstance(value, dict) else value  # an app may change its own
        elif isinstance(value, dict) and isinstance(conf[name], Mapping):
            # The user's dict wins key by key; it is replaced by the union in its own place.
            added = {key: item for key, item in value.items() if key not in conf[name]}
            if added:
                merged[name] = {**value, **conf[name]}
                laid[name] = added
    conf.maps[-1:-1] = [{name: value for name, value in laid.items() if name not in merged}]
    for name, value in merged.items():
        # Under a namespace Celery looks for the name with it first.
        conf.changes[conf._to_keys(name)[0]] = value
    return laid


def set_by_user(conf: Any, name: str) -> bool:
    """Is the setting *name* set above Celery's defaults, be it to the default?

    Not ``conf.value_set_for()``: that of Celery 5.6 sees no setting under a namespace and
    none by its old name.
    """
    names = {*conf._to_keys(name), *(other(name) for other in conf._keys or ())}
    return any(one in layer for layer in conf.maps[:-1] for one in names)


def lay_task(cls: Any, *, app: Celery, settings: Settings) -> None:
    """Give a hardened task class what neither it nor ``app.conf`` sets. Called before Celery's bind."""
    conf = app.conf
    to_come = annotated(cls, app)

    def unset(attribute: str, setting: str | None = None) -> bool:
        if attribute in to_come or (setting is not None and set_by_user(conf, setting)):
            return False
        return not _set_by_user(cls, attribute)

    wanted: dict[str, tuple[str | None, Any]] = {
        "acks_late": ("task_acks_late", True),
        "reject_on_worker_lost": ("task_reject_on_worker_lost", True),
        # Celery's own default is 3. A task that sets a horizon is bounded by that alone.
        "max_retries": (None, None if _set_by_user(cls, "retry_for") else settings.max_retries),
    }
    # A user who sets only one of the two limits means that one: ours must not cross it.
    limits_unset = all(
        unset(attribute, setting)
        for attribute, setting in (("time_limit", "task_time_limit"), ("soft_time_limit", "task_soft_time_limit"))
    )
    if limits_unset:
        wanted["time_limit"] = (None, settings.time_limit)
        wanted["soft_time_limit"] = (None, settings.soft_time_limit)
    for attribute, (setting, value) in wanted.items():
        if unset(attribute, setting):
            setattr(cls, attribute, value)


def annotated(cls: Any, app: Celery) -> frozenset[str]:
    """The attributes that ``task_annotations`` gives a task class when it is bound."""
    return frozenset(name for found in resolve_all(app.annotations, cls) for name in found)


#: Modules whose classes are Celery's or ours: what they say is a default, not a user's word.
_FRAMEWORK = frozenset({"builtins", "celery.app.task", "celery.contrib.django.task", "celery_hardened.task"})


def _set_by_user(cls: Any, attribute: str) -> bool:
    """Does a class of the user's own say something about *attribute*?"""
    for owner in cls.__mro__:
        if owner.__module__ not in _FRAMEWORK and attribute in owner.__dict__:
            # Celery's attributes say "not set" with None, save max_retries, where it means for ever.
            return owner.__dict__[attribute] is not None or attribute == "max_retries"
    return False


def _uses(conf: Any, schemes: tuple[str, ...]) -> bool:
    url = conf.broker_url or conf.broker_read_url or conf.broker_write_url or ""
    first = url[0] if isinstance(url, (list, tuple)) and url else url
    return str(first).startswith(schemes)
