"""What a scheduled message is in a worker: its slot is at hand, and runs once if its message is there twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from celery.backends.cache import _DUMMY_CLIENT_CACHE
from celery.exceptions import Ignore, Reject

from celery_hardened import HardenedTask, Hardening, Query, StoreUnavailableError, idempotent
from celery_hardened.beat.names import once_key, task_id_of
from celery_hardened.marks import HEADER, Marks
from celery_hardened.pipeline.publish import FireMarks, firing
from tests.support.in_process import InProcessWorker, outcomes

SLOT = 1_700_000_000.25
ID = task_id_of("nightly", SLOT)


@pytest.fixture(autouse=True)
def no_results() -> Iterator[None]:
    """All tests fire the same task id, and the results of ``cache+memory://`` are the process's."""
    _DUMMY_CLIENT_CACHE.clear()
    yield
    _DUMMY_CLIENT_CACHE.clear()


@contextmanager
def fired(**marks: Any) -> Iterator[None]:
    token = firing.set((ID, FireMarks(slot=SLOT, schedule="nightly", **marks)))
    yield
    firing.reset(token)


def fire(task: Any, *args: Any, times: int = 1, **marks: Any) -> Any:
    """Publish the message of one slot, as beat does, *times* under one id."""
    with fired(**{"once": True, **marks}):
        return [task.apply_async(args, task_id=ID) for _ in range(times)][-1]


def asked(app: Celery, key: str = once_key("nightly", SLOT)) -> str:
    """What the store of claims says of *key*; asking does not change that."""
    store = Hardening.expect(app).effects.claims
    answer = store.claim(key, owner="test", task_id="t", fingerprint="", lease=60.0, lifetime=60.0)
    store.release(key, owner="test")
    return type(answer).__name__


def letters(app: Celery) -> list[str]:
    return [stored.letter.reason for stored in Hardening.expect(app).dead_letters.find(Query()).letters]


# --- what a task can ask ------------------------------------------------------------------------------


def test_a_scheduled_run_knows_its_slot(app: Celery) -> None:
    """On its retry too; what it publishes itself is no run of the schedule, whatever headers it hands on."""
    seen: list[Any] = []

    def look(task: Any) -> None:
        seen.append((task.name, task.execution.slot, task.execution.schedule, task.execution.missed))

    @app.task(bind=True, base=HardenedTask, name="follows")
    def follows(self: Any) -> None:
        look(self)

    @app.task(bind=True, base=HardenedTask, name="invoices", autoretry_for=(ConnectionError,))
    def invoices(self: Any) -> None:
        look(self)
        if self.request.retries == 0:
            raise ConnectionError("away")
        follows.apply_async(headers=self.request.headers)

    with InProcessWorker(app) as worker:
        fire(invoices, missed=3, run="schedule:nightly")
        worker.run()
    slot = datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=timezone.utc)
    assert seen == [("invoices", slot, "nightly", 3)] * 2 + [("follows", None, None, 0)]
    handed_on = Marks.read(worker.seen[-1].headers)
    assert (handed_on.run, handed_on.once, handed_on.windows) == (None, False, ())


def test_a_run_that_no_schedule_fired_has_no_slot(app: Celery) -> None:
    """A message of anybody, a direct call, an eager one; also inside a scheduled run."""
    seen: list[Any] = []

    @app.task(bind=True, base=HardenedTask, name="look")
    def look(self: Any) -> None:
        seen.append((self.execution.slot, self.execution.schedule, self.execution.missed))

    @app.task(bind=True, base=HardenedTask, name="outer")
    def outer(self: Any) -> None:
        look()
        look.apply(headers=self.request.headers)

    with InProcessWorker(app) as worker:
        look.delay()
        fire(outer, missed=1)
        worker.run()
    assert seen == [(None, None, 0)] * 3


@pytest.mark.parametrize("slot", [-1.0, 1e11 * 9, 253_402_300_800.0, "now", None])
def test_a_slot_outside_of_the_calendar_is_none(slot: Any) -> None:
    """A forged header hurts no task."""
    assert Marks.read({HEADER: {"slot": slot}}).slot is None
    latest = 253_402_300_799.0
    assert datetime.fromtimestamp(Marks.read({HEADER: {"slot": latest}}).slot or 0, timezone.utc).year == 9999


# --- a slot runs once ---------------------------------------------------------------------------------


def test_the_second_message_of_a_slot_is_dropped(app: Celery) -> None:
    """The first has run; without ``once`` both run, because nothing is asked."""
    runs: list[str] = []

    @app.task(base=HardenedTask, name="invoices")
    def invoices(by: str) -> str:
        runs.append(by)
        return by

    with InProcessWorker(app) as worker, outcomes() as noted:
        result = fire(invoices, "a", times=3)
        worker.run()
        assert (runs, noted, result.result, letters(app)) == (["a"], ["success"], "a", [])
        fire(invoices, "b", times=2, once=False)
        worker.run()
    assert runs == ["a", "b", "b"]


def test_a_message_that_is_there_once_asks_nothing(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """No store of claims is made, let alone asked; nor for a contained task."""

    @app.task(base=HardenedTask, name="invoices")
    def invoices() -> str:
        return "done"

    @app.task(name="contained")
    def contained() -> str:
        return "done"

    monkeypatch.setattr(type(Hardening.expect(app).effects), "claims", property(lambda self: 1 / 0))
    with InProcessWorker(app) as worker, outcomes() as noted:
        invoices.delay()
        fire(invoices, once=False, run=None)
        fire(contained, once=True)
        worker.run()
    assert noted == ["success"] * 3


def test_a_retry_of_the_slot_goes_on(app: Celery) -> None:
    """Its claim was released; then its twin is dropped, and the retries of both are one success."""
    runs: list[int] = []

    @app.task(bind=True, base=HardenedTask, name="invoices", autoretry_for=(ConnectionError,))
    def invoices(self: Any) -> None:
        runs.append(self.request.retries)
        if self.request.retries < 2:
            raise ConnectionError("away")

    with InProcessWorker(app) as worker, outcomes() as noted:
        fire(invoices, times=2)
        worker.run()
    assert noted.count("success") == 1
    assert runs.count(2) == 1
    assert letters(app) == []


def test_a_retry_that_the_task_asks_for_goes_on(app: Celery) -> None:
    """By ``self.retry()``: the slot is free before the next attempt is published."""
    free: list[str] = []

    @app.task(bind=True, base=HardenedTask, name="invoices")
    def invoices(self: Any) -> str:
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return "sent"

    publish = invoices.retry_as_celery

    def asks(*args: Any, **options: Any) -> Any:
        free.append(asked(app))
        return publish(*args, **options)

    invoices.retry_as_celery = asks
    with InProcessWorker(app) as worker, outcomes() as noted:
        fire(invoices)
        worker.run()
    assert (noted, free) == (["retry", "success"], ["Won"])


@pytest.mark.parametrize("end", [ValueError("broken"), Reject("no", requeue=False)], ids=["letter", "rejected"])
def test_a_slot_that_failed_may_run_again(app: Celery, end: Exception) -> None:
    """Its letter can be redriven; and the second message is another try."""
    runs: list[int] = []

    @app.task(base=HardenedTask, name="invoices", max_retries=0)
    def invoices() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise end

    with InProcessWorker(app) as worker:
        fire(invoices)
        worker.run()
        assert asked(app) == "Won"
        fire(invoices, times=2)
        worker.run()
    assert len(runs) == 2


def test_a_task_that_ends_itself_has_run_its_slot(app: Celery) -> None:
    """``Ignore``, or a replacement, which is then there once."""
    runs: list[str] = []

    @app.task(base=HardenedTask, name="other")
    def other() -> None:
        runs.append("other")

    @app.task(bind=True, base=HardenedTask, name="replaced")
    def replaced(self: Any) -> None:
        runs.append("replaced")
        raise self.replace(other.si())

    @app.task(base=HardenedTask, name="ignoring")
    def ignoring() -> None:
        runs.append("ignoring")
        raise Ignore

    with InProcessWorker(app) as worker:
        fire(replaced, times=2)
        worker.run()
    assert runs == ["replaced", "other"]
    Hardening.expect(app).effects.claims._records.clear()  # type: ignore[attr-defined]
    with InProcessWorker(app) as worker:
        fire(ignoring, times=2)
        worker.run()
    assert runs[2:] == ["ignoring"]


def test_a_slot_of_an_idempotent_task_runs_once_though_its_arguments_differ(app: Celery) -> None:
    """The schedule was edited between the two publishes, and the key of the task is of its arguments."""
    runs: list[tuple[str, str | None]] = []

    @app.task(bind=True, base=HardenedTask, name="invoices")
    @idempotent("month")
    def invoices(self: Any, month: str) -> str:
        runs.append((month, self.execution.key))
        return month

    with InProcessWorker(app) as worker:
        fire(invoices, "may")
        fire(invoices, "june")
        worker.run()
    assert [month for month, _ in runs] == ["may"]
    assert runs[0][1] is not None
    assert runs[0][1].startswith("invoices:"), "its own key is what it shows to others"


def test_a_busy_slot_waits_and_is_no_letter(app: Celery) -> None:
    """Whether its own first delivery lives, nobody knows; a letter would end the run that goes on."""
    runs: list[int] = []

    @app.task(base=HardenedTask, name="invoices", retry_for=1)
    def invoices() -> None:
        runs.append(1)

    store, key = Hardening.expect(app).effects.claims, once_key("nightly", SLOT)
    store.claim(key, owner="first", task_id=ID, fingerprint="", lease=60.0, lifetime=60.0)
    with InProcessWorker(app) as worker:
        fire(invoices)
        assert worker.run(most=5) == 5, "it comes back, and again"
        assert (runs, letters(app)) == ([], [])
        store.release(key, owner="first")
        worker.run()
    assert (runs, letters(app)) == ([1], [])


def test_a_slot_waits_for_a_store_that_does_not_answer(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not run unasked."""
    runs: list[int] = []

    @app.task(base=HardenedTask, name="invoices")
    def invoices() -> None:
        runs.append(1)

    store = Hardening.expect(app).effects.claims
    with InProcessWorker(app) as worker:
        with monkeypatch.context() as patch:

            def down(*_: Any, **__: Any) -> Any:
                raise StoreUnavailableError("claiming a key", "down")

            patch.setattr(store, "claim", down)
            fire(invoices)
            assert worker.run(most=5) == 5
        assert runs == []
        worker.run()
    assert (runs, letters(app)) == ([1], [])


def test_a_redelivery_of_a_slot_that_was_run_tells_its_result(app: Celery) -> None:
    """Its worker may have died between the end of the work and the word of it; a twin says nothing."""
    runs: list[int] = []

    @app.task(base=HardenedTask, name="invoices")
    def invoices() -> str:
        runs.append(1)
        return "sent"

    with InProcessWorker(app) as worker:
        fire(invoices)
        worker.run()
        message = worker.seen[0]
        for redelivered, told in ((False, []), (True, ["success"])):
            with outcomes() as noted:
                message.delivery_info["redelivered"] = redelivered
                message._state = "RECEIVED"
                worker.consumer.task_consumer.on_message(message)
                worker.run()
            assert noted == told
    assert runs == [1]


def test_a_slot_is_remembered_whatever_bounds_its_task(app: Celery) -> None:
    """A task that nothing bounds is no reason to refuse a start; what is bounded is counted."""
    from celery_hardened.pipeline.claim import lifetime_of_slot

    @app.task(base=HardenedTask, name="endless", time_limit=0, soft_time_limit=0, max_retries=3)
    def endless() -> None: ...

    hardening = Hardening.expect(app)
    lifetime = lifetime_of_slot(endless, hardening)
    assert hardening.settings.queue_retention < lifetime < float("inf")
