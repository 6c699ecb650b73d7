"""A worker's parent puts the windows of an early ack on a lease, and then acks; a worker in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from celery.signals import task_prerun
from kombu.message import Message

from celery_hardened import HardenedTask, deduplicate
from celery_hardened.beat.names import window_of
from celery_hardened.marks import Marks
from celery_hardened.pipeline.come_back import ComeBack
from celery_hardened.pipeline.publish import FireMarks, firing
from celery_hardened.pipeline.windows import told_by
from tests.support.dedup_shop import LEASE, Shop
from tests.support.in_process import InProcessWorker

RUN = window_of("nightly")

UNTIL = pytest.mark.parametrize("until", ["finish", timedelta(days=1)], ids=["finish", "window"])


@pytest.fixture
def shop(unique: str) -> Shop:
    shop = Shop()
    shop.app.conf.task_default_queue = unique
    return shop


@pytest.fixture
def said(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the worker says to the store and to the broker, in order."""
    said: list[str] = []

    def tell(target: Any, name: str, word: Callable[..., str]) -> None:
        stock = getattr(target, name)

        def told(*args: Any, **kwargs: Any) -> Any:
            said.append(word(*args))
            return stock(*args, **kwargs)

        monkeypatch.setattr(target, name, told)

    for step in ("enter", "hold", "lease", "leave"):
        tell(shop.store, step, lambda key, step=step: f"{step} {key.split(':')[0]}")
    tell(Message, "ack_log_error", lambda *_: f"ack {round(shop.store.left)}")
    return said


@pytest.fixture
def before_start() -> Iterator[list[Callable[[], None]]]:
    """Is done after the ack and before anything of the task begins."""
    steps: list[Callable[[], None]] = []

    def receive(**_: Any) -> None:
        for step in steps:
            step()

    task_prerun.connect(receive)
    yield steps
    task_prerun.disconnect(receive)


def early(shop: Shop, body: Callable[[Any], object] = lambda task: None, **options: Any) -> Any:
    """A contained task of a schedule."""

    def work(self: Any) -> None:
        body(self)

    return shop.app.task(bind=True, name="shop.early", **options)(work)


def fire(shop: Shop, task: Any) -> None:
    """As beat does."""
    shop.store.enter(RUN, task_id="t1", ttl=86_400.0)
    token = firing.set(("t1", FireMarks(slot=1.0, schedule="nightly", missed=0, run=RUN, once=False)))
    try:
        task.apply_async(task_id="t1")
    finally:
        firing.reset(token)


def run(shop: Shop, *, late: bool = False) -> None:
    """Run one message. *late*: its task is over when the parent hears that it was accepted."""
    with InProcessWorker(shop.app) as worker:
        if late:
            _pool(worker, _over_before_accepted)
        assert worker.step()


def _pool(worker: InProcessWorker, apply_async: Callable[..., Any]) -> None:
    worker.controller.pool.apply_async = apply_async
    worker.consumer.update_strategies()  # they have looked it up


def _over_before_accepted(target: Any, args: Any, **options: Any) -> None:
    answer = target(*args)
    options["accept_callback"](os.getpid(), time.monotonic())
    options["callback"](answer)


# --- order --------------------------------------------------------------------------------------------


def test_the_window_is_leased_before_the_ack(shop: Shop, said: list[str]) -> None:
    """When the broker forgets the message, its window is free in a lease."""
    fire(shop, early(shop))
    said.clear()
    run(shop)
    assert said == ["lease schedule", f"ack {LEASE:.0f}", "enter schedule", "leave schedule"]


@pytest.mark.parametrize("until", ["start", "finish", timedelta(days=1)], ids=["start", "finish", "window"])
def test_so_is_the_key_of_a_task(shop: Shop, said: list[str], until: Any) -> None:
    """Whatever its end."""
    shop.task(until=until, task_options={"acks_late": False}).delay(1)
    said.clear()
    run(shop)
    assert said[:2] == ["lease shop.work", f"ack {LEASE:.0f}"]


def test_two_windows_are_leased_both(shop: Shop, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And what goes wrong with one of them leaves the other alone, and the ack."""
    task = shop.task(task_options={"acks_late": False})
    shop.store.enter(RUN, task_id="t1", ttl=86_400.0)
    token = firing.set(("t1", FireMarks(slot=1.0, schedule="nightly", missed=0, run=RUN, once=False)))
    task.apply_async((1,), task_id="t1")
    firing.reset(token)
    lease = shop.store.lease

    def odd(key: str, **options: Any) -> bool:
        if key != RUN:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return lease(key, **options)

    monkeypatch.setattr(shop.store, "lease", odd)
    said.clear()
    run(shop)
    assert said[0] == "lease schedule"
    assert said[1].startswith("ack ")


def test_nobody_else_pays(shop: Shop, said: list[str]) -> None:
    """Late acks with a window, early acks without one."""
    shop.task().delay(1)
    early(shop).delay()

    def plain() -> None: ...

    shop.app.task(base=HardenedTask, name="shop.plain")(plain).delay()
    said.clear()
    with InProcessWorker(shop.app) as worker:
        assert worker.run() == 3
    assert sorted(word.split()[0] for word in said) == ["ack", "ack", "ack", "leave"]


def test_a_dry_run_leases_nothing(shop: Shop, said: list[str]) -> None:
    fire(shop, early(shop))
    said.clear()
    shop.hardening.__dict__["settings"] = replace(shop.hardening.settings, observe=True)
    run(shop)
    assert not any(word.startswith("lease") for word in said)


# --- the process is faster than its parent ------------------------------------------------------------


def test_a_retry_that_is_published_before_the_parent_hears_of_the_start_keeps_its_window(shop: Shop) -> None:
    """It waits for an hour, and holds its schedule for it."""

    def retry(task: Any) -> None:
        raise task.retry(countdown=3600)

    fire(shop, early(shop, retry))
    run(shop, late=True)
    assert shop.store.left > 3600


def test_a_message_that_comes_back_keeps_its_window(shop: Shop) -> None:
    """It is sent again as it is, by a run that never began."""

    def busy(task: Any) -> None:
        raise ComeBack("busy", delay=3600)

    fire(shop, early(shop, busy))
    run(shop, late=True)
    assert shop.store.left > 3600


@pytest.mark.parametrize("late", [True, False], ids=["late", "in time"])
def test_a_window_is_whole_after_a_task_that_was_quick(shop: Shop, late: bool) -> None:
    shop.task(until=timedelta(days=1), task_options={"acks_late": False}).delay(1)
    run(shop, late=late)
    assert shop.store.left == 86_400


@pytest.mark.parametrize("until", ["start", "finish"])
def test_a_task_that_replaced_itself_keeps_its_key(shop: Shop, until: Any) -> None:
    """Its successor waits in the queue under the same id, for as long as it may."""
    again = iter([True])

    def work(self: Any, number: int) -> None:
        if next(again, False):
            raise self.replace(self.s(number))

    marked = deduplicate("number", until=until)(work)
    task = shop.app.task(bind=True, base=HardenedTask, name="shop.again", acks_late=False)(marked)
    task.delay(1)
    run(shop, late=True)
    assert shop.store.left > 86_400


def test_a_parent_that_is_late_frees_nobody_elses_key(shop: Shop, said: list[str]) -> None:
    fire(shop, early(shop, lambda task: shop.store.free(RUN) and shop.store.enter(RUN, task_id="t2", ttl=600.0)))
    run(shop, late=True)
    assert (shop.store.owners, shop.store.left) == ({"t2"}, 600)


# --- the process is slow ------------------------------------------------------------------------------


@UNTIL
def test_a_start_that_takes_longer_than_a_lease_loses_nothing(
    shop: Shop, until: Any, before_start: list[Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    """It fetches, claims, imports: its parent leases the window again until it has spoken, and then no more."""

    held: list[set[str]] = []

    def slow() -> None:
        for _ in range(5):
            shop.clock[0] += LEASE * 0.9
            shop.renewal.round()
            held.append(shop.store.owners)

    before_start.append(slow)
    task_id = shop.task(until=until, task_options={"acks_late": False}).delay(1).id
    run(shop)
    assert held == [{task_id}] * 5
    before = shop.store.steps
    shop.renewal.round()
    assert shop.store.steps == before
    assert "any more" not in caplog.text


def test_what_is_over_is_leased_no_more(shop: Shop) -> None:
    """Though nobody has said so: its window is not kept for ever."""
    fire(shop, early(shop))
    request: list[Any] = []
    with InProcessWorker(shop.app) as worker:
        _pool(worker, lambda *_, **options: request.append(options["accept_callback"]))
        assert worker.step()
        request[0](os.getpid(), time.monotonic())
        shop.clock[0] += LEASE * 0.9
        shop.renewal.round()
        assert shop.store.left == LEASE
    shop.clock[0] += LEASE * 0.9
    shop.renewal.round()
    assert shop.store.left < LEASE


# --- the store is away --------------------------------------------------------------------------------


@UNTIL
def test_without_its_store_it_is_acked_and_leased_later(
    shop: Shop, until: Any, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It runs once. When the store answers again, its window is on a lease, and renewed."""
    ran: list[float] = []

    def body(task: Any) -> None:
        shop.store.down = False
        for _ in range(3):
            shop.renewal.round()
            ran.append(shop.store.left)
            shop.clock[0] += LEASE * 0.9

    marked = deduplicate(until=until)(body)
    task = shop.app.task(bind=True, base=HardenedTask, name="shop.early", acks_late=False)(marked)
    task.delay()
    shop.store.down = True
    run(shop)
    assert ran == [LEASE] * 3
    assert sum(word.startswith("ack") for word in said) == 1
    assert "is acked before its deduplication key is leased" in caplog.text
    assert not shop.renewal.away


@UNTIL
@pytest.mark.parametrize("how", ["down", "mute"])
def test_a_store_that_goes_away_before_the_start_lets_no_window_run_out(
    shop: Shop, until: Any, how: str, before_start: list[Callable[[], None]]
) -> None:
    """Its parent has leased it. The process renews it when the store answers, whether that has heard it or not."""
    held: list[int] = []

    def goes_away() -> None:
        shop.renewal.forget()  # this is another process
        setattr(shop.store, how, True)

    def body(task: Any) -> None:
        setattr(shop.store, how, False)
        for _ in range(4):
            shop.clock[0] += LEASE * 0.9
            shop.renewal.round()
            held.append(len(shop.store.owners))

    before_start.append(goes_away)
    marked = deduplicate(until=until)(body)
    shop.app.task(bind=True, base=HardenedTask, name="shop.early", acks_late=False)(marked).delay()
    run(shop)
    assert held == [1] * 4


def test_an_outage_holds_up_the_worker_once(shop: Shop, said: list[str]) -> None:
    """Not for a time-out with every message: the others are left to the thread."""
    task = early(shop)
    fire(shop, task)
    shop.store.down = True
    run(shop)
    shop.store.down = False
    fire(shop, task)
    said.clear()
    shop.store.down = True
    run(shop)
    assert said[0].startswith("ack")


def test_a_message_of_another_version_is_leased_too() -> None:
    """It does not say when it was published; its own run is known by that."""
    assert told_by(Marks()) == 0.0
