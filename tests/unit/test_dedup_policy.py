"""How long a key is held, and which publishes are never refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_hardened import harden
from celery_hardened.dedup.decorator import deduplicate
from celery_hardened.dedup.policy import Deduplicate, held_for, is_awaited

DAY = 86_400.0


def policy(until: Any) -> Deduplicate:
    @deduplicate("number", until=until)
    def task(number: int) -> None: ...

    found: Deduplicate = task.__hardened_deduplicate__  # type: ignore[attr-defined]
    return found


def ttl(until: Any, **changes: Any) -> float:
    known: dict[str, Any] = {"retention": DAY, "lease": 30.0, "time_limit": 300.0, "delay": 0.0, "expires": None}
    return held_for(window=policy(until).window, **{**known, **changes})


@pytest.mark.parametrize("until", ["start", "finish"])
def test_a_key_is_held_as_long_as_its_message_may_wait_and_run(until: Any) -> None:
    """Its wait in the queue, its countdown, its run, and a lease: it never ends before its owner (H118)."""
    assert ttl(until) == DAY + 300 + 30
    assert ttl(until, delay=3600.0) == 3600 + DAY + 300 + 30
    assert ttl(until, delay=-5.0, time_limit=None) == DAY + 30


@pytest.mark.parametrize("until", ["start", "finish"])
def test_a_message_that_expires_cannot_hold_a_key_for_long(until: Any) -> None:
    """Also where nobody sees it expire, as on RabbitMQ."""
    assert ttl(until, expires=60.0) == 60 + 30
    assert ttl(until, expires=-1.0) == 30
    assert ttl(until, expires=10 * DAY) == DAY + 300 + 30


def test_a_window_is_what_it_says() -> None:
    """However long its message may live; but one that expires frees it."""
    assert ttl(timedelta(minutes=2)) == 120
    assert ttl(timedelta(minutes=2), delay=3600.0, expires=500.0) == 120
    assert ttl(timedelta(minutes=2), expires=5.0) == 5 + 30


# --- which publishes somebody waits for ---------------------------------------------------------------


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.hardened_dead_letter_store = "memory"
    return harden(app)


@pytest.fixture
def task(app: Celery) -> Any:
    @app.task(name="shop.work")
    def work(number: int = 0) -> int:
        return number

    return work


@pytest.fixture
def published(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of everything that is published meanwhile."""
    seen: list[dict[str, Any]] = []

    def send_task(name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        seen.append(options)
        return app.AsyncResult(options.get("task_id") or "an id")

    monkeypatch.setattr(app, "send_task", send_task)
    return seen


def test_an_ordinary_publish_may_be_refused(app: Celery, task: Any, published: list[dict[str, Any]]) -> None:
    """In every way there is to write one, with an id of the caller's own too."""
    task.delay(1)
    task.apply_async((1,), countdown=5, expires=60, priority=3, queue="q", task_id="mine", headers={"a": 1})
    task.s(1).delay()
    task.si(1).set(countdown=5).apply_async()
    app.signature("shop.work", (1,)).delay()
    assert [is_awaited(options) for options in published] == [False] * 5


def test_a_member_of_a_workflow_is_never_refused(task: Any, published: list[dict[str, Any]]) -> None:
    """Somebody waits for the end of this very task: to refuse it would leave the workflow open for ever."""
    group(task.s(1), task.s(2))()
    chain(task.s(1), task.s(), task.s())()
    task.apply_async((1,), link=task.s())
    task.apply_async((1,), link_error=task.s())
    frozen = task.s(1)
    frozen.freeze()
    frozen.delay()
    assert len(published) == 6
    assert [is_awaited(options) for options in published] == [True] * 6


def test_members_of_a_chord_are_never_refused(task: Any, published: list[dict[str, Any]]) -> None:
    chord([task.s(1), task.s(2)])(task.s())
    assert len(published) >= 2
    assert all(is_awaited(options) for options in published)


def test_the_end_of_a_chain_is_never_refused() -> None:
    """A worker publishes it with an empty rest of the chain, and a callback with its parent."""
    assert is_awaited({"chain": []})
    assert is_awaited({"parent_id": "p", "root_id": "r"})
    assert not is_awaited({"chain": None, "link": None, "link_error": [], "parent_id": None})
