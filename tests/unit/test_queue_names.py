"""Which queues a process that watches queues asks for."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
from celery import Celery
from celery.utils.nodenames import WORKER_DIRECT_EXCHANGE
from kombu import Queue
from kombu.common import Broadcast

from celery_hardened.pipeline.queue_names import queue_names


def make(**conf: Any) -> Celery:
    app = Celery("names", broker="memory://", set_as_current=False)
    app.conf.update(task_default_queue="main", **conf)
    return app


def define(app: Celery, name: str, **options: Any) -> None:
    def run() -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a queue of the task's own is deprecated, and in use
        app.task(name=name, shared=False, lazy=False, **options)(run)


def test_declared_routed_and_scheduled_queues() -> None:
    """What the app declares, what tasks and schedules say, what routes say of tasks unknown here; and more."""
    app = make(
        task_queues=[Queue("main"), Queue("declared")],
        task_routes=[{"names.fed": "fed", "elsewhere.*": {"queue": "far"}}, {"x.*": {"routing_key": "k"}}],
        beat_schedule={"s": {"task": "t", "schedule": 1, "options": {"queue": "nightly"}}, "t": {"task": "t"}},
    )

    define(app, "names.fed")
    define(app, "names.own", queue="own")
    assert sorted(queue_names(app, ["more", "main", ""])) == [
        "declared", "far", "fed", "main", "more", "nightly", "own",
    ]  # fmt: skip


def test_patterns_in_a_list_of_pairs() -> None:
    """``task_routes`` may be a list of lists of pairs, as the documentation of Celery has it."""
    app = make(task_routes=([("feed.*", {"queue": "feeds"}), ("web.*", {"queue": "web"})],))
    assert {"feeds", "web"} <= set(queue_names(app))


def test_queues_of_one_host_are_left_out() -> None:
    """Broadcasts and workers' own queues have names that hold a host's or a random one: each would be a new series."""
    app = make(task_queues=[Queue("main"), Broadcast("news"), Queue("w1@h.dq", exchange=WORKER_DIRECT_EXCHANGE)])
    assert queue_names(app) == ("main",)


def test_a_router_that_needs_arguments(caplog: pytest.LogCaptureFixture) -> None:
    """A router that fails without a task's arguments is said once, and the other queues are known."""

    def by_customer(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> dict[str, str]:
        return {"queue": f"customer-{args[0]}"}

    app = make(task_routes=(by_customer,))
    for name in ("a", "b"):
        define(app, name)
    with caplog.at_level(logging.WARNING):
        assert queue_names(app) == ("main",)
    assert [record.getMessage().count("--queues") for record in caplog.records] == [1]


def test_what_a_router_says_is_taken() -> None:
    """A function that routes by name alone is asked for each task."""

    def by_name(name: str, *_: Any, **__: Any) -> dict[str, str] | None:
        return {"queue": "reports"} if name.startswith("report.") else None

    app = make(task_routes=(by_name,))
    define(app, "report.daily")
    define(app, "other")
    assert set(queue_names(app)) == {"main", "reports"}
