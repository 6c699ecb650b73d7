"""Our preset lies below every setting the user made, in whatever way it was made."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import Celery

from celery_hardened import HardenedTask, harden

OPTIONS = {"socket_timeout": 3}


def by_object(app: Celery) -> None:
    app.config_from_object({
        "worker_prefetch_multiplier": 4, "task_acks_late": False, "task_time_limit": 99,
        "broker_transport_options": dict(OPTIONS),
    })  # fmt: skip


def by_namespace(app: Celery) -> None:
    settings = {
        "CELERY_WORKER_PREFETCH_MULTIPLIER": 4, "CELERY_TASK_ACKS_LATE": False, "CELERY_TASK_TIME_LIMIT": 99,
        "CELERY_BROKER_TRANSPORT_OPTIONS": dict(OPTIONS),
    }  # fmt: skip
    app.config_from_object(settings, namespace="CELERY")


def by_old_names(app: Celery) -> None:
    app.config_from_object({
        "CELERYD_PREFETCH_MULTIPLIER": 4, "CELERY_ACKS_LATE": False, "CELERYD_TASK_TIME_LIMIT": 99,
        "BROKER_TRANSPORT_OPTIONS": dict(OPTIONS),
    })  # fmt: skip


def by_attribute(app: Celery) -> None:
    app.conf.worker_prefetch_multiplier = 4
    app.conf.task_acks_late = False
    app.conf.task_time_limit = 99
    app.conf.broker_transport_options = dict(OPTIONS)


def by_update(app: Celery) -> None:
    assert app.conf.timezone is None  # read already
    app.conf.update(
        worker_prefetch_multiplier=4, task_acks_late=False, task_time_limit=99, broker_transport_options=dict(OPTIONS)
    )


@pytest.mark.parametrize("configure", [by_object, by_namespace, by_old_names, by_attribute, by_update])
def test_user_settings_stay(configure: Callable[[Celery], None]) -> None:
    """Values equal to Celery's defaults, values under a namespace and values by old names all count as set."""
    app = Celery("shop", broker="redis://", set_as_current=False)
    configure(app)
    harden(app)

    @app.task(base=HardenedTask)  # type: ignore[misc]
    def charge() -> None: ...

    assert charge.acks_late is False
    # Celery 5.6 leaves the setting to the pool, 5.7 copies it to the task.
    assert charge.time_limit in (99, None)
    assert charge.soft_time_limit is None
    assert app.conf.worker_prefetch_multiplier == 4
    assert app.conf.broker_transport_options == {**OPTIONS, "socket_connect_timeout": 5, "socket_keepalive": True}
    assert charge.reject_on_worker_lost is True  # not set by anybody
