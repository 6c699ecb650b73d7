"""Deduplication in the worker, step by step: starts, ends, leases, messages that are sent again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from billiard import current_process
from billiard.exceptions import SoftTimeLimitExceeded

from celery_hardened.dedup.noted import Noted
from celery_hardened.marks import Marks
from celery_hardened.pipeline.held_windows import ended, started
from tests.support.dedup_shop import LEASE, WEEK, Shop, running


@pytest.fixture
def shop() -> Shop:
    return Shop()


# --- in the worker ------------------------------------------------------------------------------------


def test_until_start_is_until_the_body_begins(shop: Shop) -> None:
    task = shop.task(until="start")
    window = shop.enter(task)
    assert shop.enter(task, task_id="t2").refused_by == "t1"
    shop.start(task, window)
    assert shop.enter(task, task_id="t3").refused_by is None


def test_one_that_never_began_frees_its_key_at_its_end(shop: Shop) -> None:
    """Its work was done before, and it was answered with that result."""
    task = shop.task(until="start")
    window = shop.enter(task)
    shop.end(window, well=True)
    assert shop.store.owners == set()
    window = shop.enter(task)
    shop.start(task, window)
    before = shop.store.steps
    shop.end(window, well=True)
    assert shop.store.steps == before, "one that began has freed it"


def test_until_finish_is_until_the_task_is_at_its_end(shop: Shop) -> None:
    """A start costs no step; an end costs one."""
    task = shop.task()
    window = shop.enter(task)
    shop.start(task, window)
    assert shop.store.steps == 1
    assert shop.enter(task, task_id="t2").refused_by == "t1"
    shop.end(window, well=True)
    assert shop.store.steps == 3
    assert shop.enter(task, task_id="t3").refused_by is None


def test_a_window_stays_after_its_task_has_ended(shop: Shop) -> None:
    """A short task does not let its twin in (H125, H126); start and end cost nothing."""
    task = shop.task(until=timedelta(seconds=60))
    window = shop.enter(task)
    shop.start(task, window)
    shop.end(window, well=True)
    assert shop.store.steps == 1
    assert shop.enter(task, task_id="t2").refused_by == "t1"
    shop.clock[0] += 61
    assert shop.enter(task, task_id="t3").refused_by is None


@pytest.mark.parametrize("until", ["start", "finish", timedelta(days=1)], ids=["start", "finish", "window"])
def test_a_task_that_is_lost_frees_its_key_whatever_was_said(shop: Shop, until: Any) -> None:
    """Expired, revoked, a dead letter, or lost with its process: there is nothing to wait for."""
    task = shop.task(until=until)
    window = shop.enter(task)
    shop.end(window, well=False)
    assert shop.store.owners == set()


def test_a_message_without_a_mark_costs_nothing(shop: Shop) -> None:
    task = shop.task()
    with running(task):
        started(shop.hardening, task, Marks(), "t1")
    ended(shop.hardening, Marks(), "t1", well=False)
    assert shop.store.steps == 0


@pytest.mark.parametrize("until", ["start", "finish", timedelta(seconds=600)], ids=["start", "finish", "window"])
def test_whatever_a_store_raises_no_task_fails_of_it(shop: Shop, monkeypatch: pytest.MonkeyPatch, until: Any) -> None:
    """Nor does the worker, whose loop tells of expired and revoked tasks."""
    task = shop.task(until=until, task_options={"acks_late": False})
    window = shop.enter(task)

    def raises(*_: Any, **__: Any) -> Any:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    for step in ("enter", "leave", "hold"):
        monkeypatch.setattr(shop.store, step, raises)
    shop.start(task, window)
    shop.again(task, window)
    shop.end(window, well=True)
    shop.start(task, window)
    shop.end(window, well=False)


def test_a_soft_time_limit_in_a_start_is_the_bodys(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signal may come at any line; a body that began nevertheless would run without a limit."""
    task = shop.task(until="start")
    window = shop.enter(task)
    monkeypatch.setattr(shop.store, "leave", Mock(side_effect=SoftTimeLimitExceeded()))
    with pytest.raises(SoftTimeLimitExceeded):
        shop.start(task, window)


@pytest.fixture
def pool_process() -> Iterator[None]:
    """This process is one of a pool."""
    process = current_process()
    process._name, before = "ForkPoolWorker-1", process._name
    yield
    process._name = before


def outage(shop: Shop, monkeypatch: pytest.MonkeyPatch, *, steps: int) -> None:
    """The store does not answer the next *steps* steps."""
    asked = shop.store._asked
    answers = iter([False] * steps)

    def sometimes(change: Any) -> Any:
        shop.store.down = not next(answers, True)
        return asked(change)

    monkeypatch.setattr(shop.store, "_asked", sometimes)


@pytest.mark.usefixtures("pool_process")
@pytest.mark.parametrize("until", ["start", "finish"])
def test_a_pool_process_frees_its_key_patiently(shop: Shop, monkeypatch: pytest.MonkeyPatch, until: Any) -> None:
    """It may be replaced after this very task, and nobody would know what it meant to free later."""
    shop.app.conf.hardened_dead_letter_write_timeout = 60.0  # also on a machine that stands still between two tries
    task = shop.task(until=until)
    window = shop.enter(task)
    outage(shop, monkeypatch, steps=3)
    shop.start(task, window)
    shop.end(window, well=True)
    shop.renewal.forget()  # it is gone
    assert shop.store.owners == set()


@pytest.mark.usefixtures("pool_process")
def test_its_patience_is_that_of_a_dead_letter(shop: Shop) -> None:
    """Then it goes on, and frees the key when the store answers again."""
    shop.app.conf.hardened_dead_letter_write_timeout = 0.0
    task = shop.task()
    window = shop.enter(task)
    shop.store.down = True
    shop.end(window, well=True)
    shop.store.down = False
    shop.renewal.round()
    assert shop.store.owners == set()


def test_the_worker_itself_does_not_wait(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a loop to serve; it asks once, and frees the key later."""
    task = shop.task()
    window = shop.enter(task)
    outage(shop, monkeypatch, steps=1)
    steps = shop.store.steps
    shop.end(window, well=False)
    assert shop.store.steps == steps + 1
    shop.renewal.round()
    assert shop.store.owners == set()


def test_what_a_process_remembers_of_its_tasks_is_bounded() -> None:
    """A task may end where the process that began it does not see it."""
    noted = Noted(most=3)
    for number in range(5):
        noted.note("k", f"t{number}")
    assert len(noted) == 3
    assert [noted.take("k", f"t{number}") for number in range(5)] == [False, False, True, True, True]
    assert not noted.take("k", "t4")


def test_the_end_of_one_task_does_not_free_anothers_key(shop: Shop) -> None:
    """Its own time had passed, and a twin was accepted (H116)."""
    task = shop.task()
    window = shop.enter(task)
    shop.store.free(window.key)
    shop.enter(task, task_id="t2")
    shop.end(window, well=True)
    shop.end(window, well=False)
    assert shop.store.owners == {"t2"}


def test_a_task_that_has_begun_cannot_expire_any_more(shop: Shop) -> None:
    """It is held for its run, not for its message's expiry (H118)."""
    task = shop.task()
    window = shop.enter(task, expires=60)
    assert shop.store.left == 60 + LEASE
    shop.start(task, window, expires="2030-01-01T00:00:00+00:00")
    assert shop.store.left == WEEK + 300 + LEASE


def test_a_window_that_was_short_for_its_expiry_is_whole_once_it_has_begun(shop: Shop) -> None:
    """A broker that drops an expired message tells nobody."""
    task = shop.task(until=timedelta(seconds=600))
    window = shop.enter(task, expires=60)
    assert shop.store.left == 60 + LEASE
    shop.clock[0] += 50
    shop.start(task, window, expires="2030-01-01T00:00:00+00:00")
    assert shop.store.left == 550


def test_a_redrive_takes_the_key_again(shop: Shop) -> None:
    """Its dead letter had given it back. If a twin has it, both run."""
    task = shop.task()
    window = shop.enter(task)
    shop.end(window, well=False)
    shop.start(task, window, redrive=("letter", "token"))
    assert shop.store.owners == {"t1"}
    shop.end(window, well=False)
    shop.enter(task, task_id="t2")
    shop.start(task, window, redrive=("letter", "token"))
    assert shop.store.owners == {"t2"}


@pytest.mark.parametrize("until", ["finish", timedelta(seconds=600)], ids=["finish", "window"])
def test_a_task_that_acks_early_lives_on_a_lease(shop: Shop, until: Any) -> None:
    """If its worker dies nobody can say so: the key is free a lease later (H115)."""
    task = shop.task(until=until, task_options={"acks_late": False})
    window = shop.enter(task)
    shop.start(task, window)
    assert shop.store.left == LEASE
    for _ in range(10):
        shop.clock[0] += LEASE / 3
        shop.renewal.round()
    assert shop.store.owners == {"t1"}
    shop.renewal.forget()  # its process is gone
    shop.clock[0] += LEASE + 1
    assert shop.store.owners == set()


def test_a_window_outlives_a_task_that_acks_early(shop: Shop) -> None:
    """Its lease is over when it ends well, and the window is what was promised."""
    task = shop.task(until=timedelta(seconds=600), task_options={"acks_late": False})
    window = shop.enter(task)
    shop.start(task, window)
    shop.clock[0] += 10
    shop.end(window, well=True)
    assert shop.store.left == 590


@pytest.mark.parametrize("until", ["finish", timedelta(seconds=600)], ids=["finish", "window"])
def test_a_retry_of_a_task_that_acks_early_holds_its_key(shop: Shop, until: Any) -> None:
    """The lease is over; its message waits again, and no late renewal shortens that."""
    task = shop.task(until=until, task_options={"acks_late": False})
    first = shop.enter(task)
    shop.start(task, first)
    shop.retry(task, first)
    shop.renewal.round()
    shop.clock[0] += LEASE * 5
    assert shop.store.owners == {"t1"}
    shop.end(first, well=False)
    assert shop.store.owners == set()


@pytest.mark.parametrize("until", ["start", "finish", timedelta(seconds=600)], ids=["start", "finish", "window"])
@pytest.mark.parametrize("acks_late", [True, False], ids=["late", "early"])
def test_the_store_never_fails_a_task(shop: Shop, until: Any, acks_late: bool) -> None:
    """It is down from the start to the end; the key is freed when it answers again."""
    task = shop.task(until=until, task_options={"acks_late": acks_late})
    window = shop.enter(task)
    shop.store.down = True
    shop.start(task, window)
    shop.end(window, well=False)
    shop.store.down = False
    shop.renewal.round()
    assert shop.store.owners == set()


def test_an_unknown_end_is_taken_for_the_latest(shop: Shop) -> None:
    """A newer producer's mark, or a damaged one: the key is not kept for ever."""
    shop.store.enter("k", task_id="t1", ttl=WEEK)
    ended(shop.hardening, Marks(dedup=("k", "whenever")), "t1", well=True)
    assert shop.store.owners == set()
    task = SimpleNamespace(name="x", acks_late=True, request=SimpleNamespace(expires=None))
    started(shop.hardening, task, Marks(dedup=("k", "whenever")), "t1")


# --- a message that is sent again ---------------------------------------------------------------------


@pytest.mark.parametrize("until", ["finish", timedelta(seconds=600)], ids=["finish", "window"])
def test_a_task_that_acked_early_and_waits_again_keeps_its_key(shop: Shop, until: Any) -> None:
    """It comes back, or its worker hands it back: nobody renews its lease while its message waits."""
    task = shop.task(until=until, task_options={"acks_late": False})
    window = shop.enter(task)
    shop.start(task, window)
    assert shop.store.left == LEASE
    shop.again(task, window, delay=100)
    assert shop.store.left == (WEEK + 300 + LEASE + 100 if until == "finish" else 600)
    shop.renewal.forget()  # its process is gone
    shop.clock[0] += LEASE + 1
    assert shop.enter(task, task_id="t2").refused_by == "t1"
    shop.start(task, window)
    shop.end(window, well=False)
    assert shop.store.owners == set()


def test_one_that_waits_again_is_renewed_no_more(shop: Shop) -> None:
    """Elsewhere it may have ended, and another task have the key: nothing is said of that here."""
    task = shop.task(task_options={"acks_late": False})
    window = shop.enter(task)
    shop.start(task, window)
    shop.again(task, window)
    assert not shop.renewal.drop(window.key, "t1")


@pytest.mark.parametrize("until", ["finish", timedelta(seconds=600)], ids=["finish", "window"])
def test_one_that_waits_again_and_may_expire_is_held_until_then(shop: Shop, until: Any) -> None:
    """A broker that drops an expired message tells nobody."""
    task = shop.task(until=until, task_options={"acks_late": False})
    window = shop.enter(task, expires=60)
    expires = (datetime.now(timezone.utc) + timedelta(seconds=60)).isoformat()
    shop.start(task, window, expires=expires)
    shop.again(task, window, expires=expires)
    assert shop.store.left == pytest.approx(60 + LEASE, abs=50)
    assert shop.store.left > LEASE + 5


def test_one_that_waits_again_before_its_body_began_keeps_the_key_of_its_start(shop: Shop) -> None:
    """After it, the key is free, and stays so; it may be another task's."""
    task = shop.task(until="start")
    window = shop.enter(task)
    shop.clock[0] += WEEK
    shop.again(task, window)
    assert shop.store.left == WEEK + 300 + LEASE
    shop.start(task, window)
    shop.again(task, window)
    assert shop.store.owners == set()


def test_a_task_waits_again_though_the_store_is_down(shop: Shop) -> None:
    """Its process renews the lease as long as it lives."""
    task = shop.task(task_options={"acks_late": False})
    window = shop.enter(task)
    shop.start(task, window)
    shop.store.down = True
    shop.again(task, window)
    shop.store.down = False
    shop.clock[0] += LEASE / 2
    shop.renewal.round()
    assert shop.store.left == LEASE
