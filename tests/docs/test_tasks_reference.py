"""``docs/reference/tasks.md`` lists the attributes that the code reads, with their defaults."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_hardened import HardenedTask, harden
from celery_hardened.preset import lay_task
from celery_hardened.retry.policy import RetryPolicy
from celery_hardened.retry.task_options import options_of
from celery_hardened.settings import Settings
from tests.support.pages import codes, table

PAGE = "reference/tasks.md"


def rows(under: str) -> dict[str, str]:
    return {codes(row[0])[0]: row[1] for row in table(PAGE, under)}


class Reads:
    """Remembers which attributes it is asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        raise AttributeError(name)


def test_retry_attributes_are_those_the_policy_reads() -> None:
    """All of them and no other, ``classify`` apart, which is a method."""
    task = Reads()
    options = options_of(task, Settings())
    assert set(rows("Retry")) == task.names | {"classify"}
    assert options["default_delay"] == 180
    assert RetryPolicy.of(object(), Settings()).jitter is True


def test_attributes_of_the_base_class_are_on_the_page() -> None:
    """What ``HardenedTask`` declares is what the page lists as ours."""
    listed = {**rows("Retry"), **rows("Dead letters")}
    assert set(HardenedTask.__annotations__) <= set(listed)
    assert HardenedTask.classify(HardenedTask(), ValueError()) is None


def test_preset_attributes_are_those_of_the_page() -> None:
    """Set on a hardened task that says nothing itself."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    harden(app)

    @app.task(base=HardenedTask, shared=False)  # type: ignore[misc]
    def silent() -> None: ...

    before = dict(vars(HardenedTask))
    assert silent.is_hardened
    assert before == dict(vars(HardenedTask)), "the preset leaked into the base class"

    class Bare(HardenedTask):
        name = "bare"

    lay_task(Bare, app=app, settings=Settings())
    assert {name for name in vars(Bare) if name in rows("Delivery and limits")} == set(rows("Delivery and limits"))
    assert (Bare.acks_late, Bare.reject_on_worker_lost) == (True, True)
    assert (Bare.time_limit, Bare.soft_time_limit) == (Settings().time_limit, Settings().soft_time_limit)


def test_one_limit_of_the_users_is_left_alone() -> None:
    """A task that sets one of the two gets no other one from us, and zero is none."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    harden(app)

    @app.task(base=HardenedTask, shared=False, time_limit=0)  # type: ignore[misc]
    def unlimited() -> None: ...

    assert (unlimited.time_limit, unlimited.soft_time_limit) == (0, None)
