"""The window that a scheduled run holds until it ends, step by step, beside its task's own or without one."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from unittest.mock import Mock

import pytest

from celery_hardened import HardenedTask
from celery_hardened.beat.names import window_of
from celery_hardened.marks import HEADER, Marks
from celery_hardened.pipeline.held_windows import ended, started, waits
from celery_hardened.pipeline.send import Call, send
from celery_hardened.pipeline.windows import ttl_of_publish
from tests.support.dedup_shop import LEASE, WEEK, Shop, running

RUN = window_of("nightly")


@pytest.fixture
def shop() -> Shop:
    return Shop()


def plain(shop: Shop, **options: Any) -> Any:
    """A task without ``@deduplicate``."""

    def work() -> None: ...

    return shop.app.task(base=HardenedTask, name="shop.plain", **options)(work)


def fired(shop: Shop, task: Any, **options: Any) -> Marks:
    """Beat has fired *task* as ``t1`` and taken the window of its schedule."""
    ttl = ttl_of_publish(shop.hardening, task, options)
    assert shop.store.enter(RUN, task_id="t1", ttl=ttl) == "t1"
    return Marks(slot=1.0, schedule="nightly", run=RUN)


def holders(shop: Shop) -> dict[str, str]:
    return {held.key: held.task_id for held in shop.store.held()}


def start(shop: Shop, task: Any, marks: Marks, **request: Any) -> None:
    with running(task, **request):
        started(shop.hardening, task, marks, "t1")


def retry(shop: Shop, task: Any, marks: Marks, **options: Any) -> None:
    options = {"task_id": "t1", "retries": 1, "headers": {HEADER: marks.header(attempt=1)}, **options}
    send(shop.hardening, Mock(), Call(task, task.name, (), {}, options))


@pytest.mark.parametrize("well", [True, False], ids=["well", "badly"])
def test_a_run_holds_its_schedule_until_it_ends(shop: Shop, well: bool) -> None:
    """A start that acks late costs no step, an end one; whichever end."""
    task = plain(shop)
    marks = fired(shop, task)
    start(shop, task, marks)
    assert (holders(shop), shop.store.steps) == ({RUN: "t1"}, 1)
    ended(shop.hardening, marks, "t1", well=well)
    assert (holders(shop), shop.store.steps) == ({}, 2)


def test_the_end_of_an_older_run_does_not_free_a_later_ones(shop: Shop) -> None:
    """Its time had passed, and the next slot was fired."""
    task = plain(shop)
    marks = fired(shop, task)
    shop.clock[0] += WEEK + 3600
    shop.store.enter(RUN, task_id="t2", ttl=60.0)
    ended(shop.hardening, marks, "t1", well=False)
    assert holders(shop) == {RUN: "t2"}


def test_a_run_that_acks_early_lives_on_a_lease(shop: Shop) -> None:
    """A contained task too: nobody would know that it went with its worker."""

    def contained() -> None: ...

    task = shop.app.task(name="shop.contained")(contained)
    marks = fired(shop, task)
    start(shop, task, marks)
    shop.clock[0] += LEASE * 0.9
    shop.renewal.round()
    shop.clock[0] += LEASE * 0.9
    assert holders(shop) == {RUN: "t1"}, "it was renewed"
    shop.renewal.forget()  # its worker is gone
    shop.clock[0] += LEASE * 0.2
    assert holders(shop) == {}


def test_a_run_that_has_begun_does_not_expire(shop: Shop) -> None:
    """Until it begins its window lasts as long as its message, and a lease."""
    task = plain(shop)
    marks = fired(shop, task, expires=60.0)
    assert shop.store.left == 60 + LEASE
    start(shop, task, marks, expires=datetime.now(timezone.utc) + timedelta(seconds=60))
    assert shop.store.left == WEEK + 300 + LEASE


@pytest.mark.parametrize("acks_late", [True, False], ids=["late", "early"])
def test_a_retry_keeps_its_schedule(shop: Shop, acks_late: bool) -> None:
    """For its whole wait, though the task has no key of its own; it lives on no lease any more."""
    task = plain(shop, acks_late=acks_late)
    marks = fired(shop, task)
    start(shop, task, marks)
    retry(shop, task, marks, countdown=3600.0)
    shop.renewal.round()
    assert shop.store.left == 3600 + WEEK + 300 + LEASE
    assert holders(shop) == {RUN: "t1"}


def test_a_message_that_is_sent_again_as_it_is_keeps_its_schedule(shop: Shop) -> None:
    """An early ack has lived on a lease, which nobody renews while it waits."""
    task = plain(shop, acks_late=False)
    marks = fired(shop, task)
    start(shop, task, marks)
    with running(task):
        waits(shop.hardening, task, marks, "t1", 10.0)
    shop.renewal.round()
    assert shop.store.left == 10 + WEEK + 300 + LEASE


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "free"])
def test_a_redriven_run_takes_its_schedule_if_it_is_free(shop: Shop, taken: bool) -> None:
    """Its letter gave it back; if a later slot has it, both run, and neither end frees the other's."""
    task = plain(shop)
    marks = fired(shop, task)
    ended(shop.hardening, marks, "t1", well=False)
    if taken:
        shop.store.enter(RUN, task_id="t2", ttl=60.0)
    start(shop, task, Marks(run=RUN, redrive=("letter", "token")))
    assert holders(shop) == {RUN: "t2" if taken else "t1"}
    ended(shop.hardening, marks, "t1", well=True)
    assert holders(shop) == ({RUN: "t2"} if taken else {})


@pytest.mark.parametrize("until", ["start", "finish", timedelta(seconds=600)], ids=["start", "finish", "window"])
@pytest.mark.parametrize("acks_late", [True, False], ids=["late", "early"])
def test_two_windows_of_one_message_end_each_at_its_own_end(shop: Shop, until: Any, acks_late: bool) -> None:
    task = shop.task(until=until, task_options={"acks_late": acks_late})
    window = shop.enter(task)
    marks = Marks(dedup=window.mark, run=RUN)
    assert shop.store.enter(RUN, task_id="t1", ttl=WEEK) == "t1"
    start(shop, task, marks)
    assert holders(shop) == ({RUN: "t1"} if until == "start" else {window.key: "t1", RUN: "t1"})
    ended(shop.hardening, marks, "t1", well=True)
    assert holders(shop) == ({window.key: "t1"} if isinstance(until, timedelta) else {})
    ended(shop.hardening, marks, "t1", well=False)
    assert RUN not in holders(shop)


def test_what_goes_wrong_with_one_window_leaves_the_other_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    task = shop.task(until="start")
    window = shop.enter(task)
    marks = Marks(dedup=window.mark, run=RUN)
    shop.store.enter(RUN, task_id="t1", ttl=WEEK)
    leave = shop.store.leave

    def odd(key: str, *, task_id: str) -> bool:
        if key == window.key:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return leave(key, task_id=task_id)

    monkeypatch.setattr(shop.store, "leave", odd)
    start(shop, task, marks)
    ended(shop.hardening, marks, "t1", well=False)
    assert RUN not in holders(shop)


def test_a_retry_without_a_window_asks_nothing(shop: Shop) -> None:
    task = plain(shop)
    retry(shop, task, Marks(key="k", slot=1.0, schedule="nightly"))
    assert shop.store.steps == 0
