"""A run that a later one of its schedule has replaced does not begin; a worker in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery.backends.cache import _DUMMY_CLIENT_CACHE
from celery.result import AsyncResult
from celery.signals import task_revoked

from celery_hardened import HardenedTask, Query, deduplicate, idempotent
from celery_hardened.beat.names import window_of
from celery_hardened.marks import HEADER, Marks
from celery_hardened.pipeline.claim import Claim
from celery_hardened.pipeline.come_back import HandBack
from celery_hardened.pipeline.publish import FireMarks, firing
from celery_hardened.pipeline.retry import NOTES
from tests.support.dedup_shop import LEASE, WEEK, Shop
from tests.support.in_process import InProcessWorker, outcomes

RUN = window_of("nightly")

KINDS = pytest.mark.parametrize("base", [HardenedTask, None], ids=["hardened", "contained"])


@pytest.fixture
def shop(unique: str) -> Iterator[Shop]:
    _DUMMY_CLIENT_CACHE.clear()
    shop = Shop()
    shop.app.conf.task_default_queue = unique
    yield shop
    _DUMMY_CLIENT_CACHE.clear()


@pytest.fixture
def revoked() -> Iterator[list[tuple[str, bool, bool]]]:
    """What ``task_revoked`` says: of whom, terminated, expired."""
    said: list[tuple[str, bool, bool]] = []

    def receive(request: Any, terminated: bool, expired: bool, **_: Any) -> None:
        said.append((request.id, terminated, expired))

    task_revoked.connect(receive)
    yield said
    task_revoked.disconnect(receive)


def task_of(shop: Shop, body: Any = lambda task: None, base: Any = HardenedTask, **options: Any) -> Any:
    def work(self: Any) -> Any:
        return body(self)

    kind = {"base": base} if base else {}
    return shop.app.task(bind=True, name="shop.work", **kind, **options)(work)


def fire(task: Any, task_id: str, *args: Any, yields: bool = True, once: bool = False) -> None:
    token = firing.set((task_id, FireMarks(slot=1.0, schedule="nightly", run=RUN, once=once, yields=yields)))
    try:
        task.apply_async(args, task_id=task_id)
    finally:
        firing.reset(token)


def take(shop: Shop, task_id: str) -> None:
    """As the script that fires does, whoever has the window."""
    shop.store.free(RUN)
    shop.store.enter(RUN, task_id=task_id, ttl=WEEK)


def holder(shop: Shop) -> str | None:
    return next((held.task_id for held in shop.store.held() if held.key == RUN), None)


def states(shop: Shop, *ids: str) -> list[str]:
    return [AsyncResult(task_id, app=shop.app).state for task_id in ids]


def letters(shop: Shop) -> int:
    return len(shop.hardening.dead_letters.find(Query()).letters)


def forge(worker: InProcessWorker, change: Callable[[Any], object]) -> None:
    """Change each message before it is taken."""
    take = worker.consumer.task_consumer.on_message

    def on_message(message: Any) -> None:
        change(message)
        take(message)

    worker.consumer.task_consumer.on_message = on_message


@KINDS
def test_of_runs_that_wait_only_the_latest_begins(
    shop: Shop, base: Any, revoked: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The others end as revoked: result, signal, ack, no letter, nothing said of success or failure."""
    began: list[str] = []
    task = task_of(shop, lambda task: began.append(task.request.id), base=base)
    ids = [f"t{number}" for number in range(8)]
    for task_id in ids:
        fire(task, task_id)
        take(shop, task_id)
    with InProcessWorker(shop.app) as worker, outcomes() as noted, caplog.at_level(logging.INFO, "celery_hardened"):
        worker.run()
        assert (len(worker.seen), worker.unacked) == (8, 0)
    assert began == ids[-1:]
    assert states(shop, *ids) == ["REVOKED"] * 7 + ["SUCCESS"]
    assert revoked == [(task_id, False, False) for task_id in ids[:-1]]
    assert (noted, letters(shop), holder(shop)) == (["success"], 0, None)
    logged = [record for record in caplog.records if getattr(record, "outcome", "") == "superseded"]
    said = [record for record in logged if record.name == "celery_hardened.execute"]
    assert [record.__dict__["task_id"] for record in said] == ids[:-1]
    assert str(AsyncResult("t0", app=shop.app).result) == "superseded"


@KINDS
def test_a_run_whose_window_is_free_takes_it(shop: Shop, base: Any) -> None:
    """While it runs it is the run of its schedule. One that acks early lives on a lease."""
    seen: list[Any] = []
    task = task_of(shop, lambda _: seen.append((holder(shop), shop.store.left)), base=base)
    fire(task, "t1")
    with InProcessWorker(shop.app) as worker:
        worker.run()
    assert seen == [("t1", WEEK + 300 + LEASE if base else LEASE)]
    assert holder(shop) is None


def test_one_that_acks_early_is_on_a_lease_before_it_begins(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker may die between the question and the start; nobody would know of it."""
    monkeypatch.setattr("celery_hardened.pipeline.held_windows.started", lambda *_: None)
    seen: list[float] = []
    fire(task_of(shop, lambda _: seen.append(shop.store.left), base=None), "t1")
    with InProcessWorker(shop.app) as worker:
        worker.run()
    assert seen == [LEASE]


def test_the_question_is_one_step_of_marked_messages_alone(shop: Shop) -> None:
    """The other step is the end of the window."""
    steps: list[int] = []
    task = task_of(shop, lambda _: steps.append(shop.store.steps))
    for yields in (True, False):
        fire(task, f"t-{yields}", yields=yields)
        take(shop, f"t-{yields}")
        shop.store.steps = 0
        with InProcessWorker(shop.app) as worker:
            worker.run()
    assert steps == [1, 0]


@KINDS
def test_what_has_begun_goes_on_with_its_retries(shop: Shop, base: Any) -> None:
    """Its window was taken meanwhile, and stays the other run's."""
    attempts: list[int] = []

    def body(task: Any) -> None:
        attempts.append(task.request.retries)
        take(shop, "later")
        if task.request.retries < 2:
            raise task.retry(countdown=0)

    fire(task_of(shop, body, base=base), "t1")
    with InProcessWorker(shop.app) as worker:
        worker.run()
    assert attempts == [0, 1, 2]
    assert (states(shop, "t1"), holder(shop)) == (["SUCCESS"], "later")


def test_what_goes_on_elsewhere_after_progress_has_begun(shop: Shop) -> None:
    """Its message is another one, with its attempts counted anew, and asks no more."""
    runs: list[bool] = []

    def body(task: Any) -> None:
        runs.append(True)
        take(shop, "later")
        if len(runs) == 1:
            notes = task.request.__dict__[NOTES]
            notes["progress"], notes["ending"] = True, HandBack("stops")
            raise notes["ending"]

    fire(task_of(shop, body, acks_late=False), "t1")
    with InProcessWorker(shop.app) as worker:
        worker.run()
        assert [Marks.read(message.headers).yields for message in worker.seen] == [True, False]
    assert (runs, states(shop, "t1")) == ([True, True], ["SUCCESS"])


def test_a_message_that_is_delivered_again_asks_again(shop: Shop) -> None:
    """Its worker died while it ran; meanwhile its schedule has fired again."""
    began: list[str] = []
    fire(task_of(shop, lambda task: began.append(task.request.id)), "t1")
    take(shop, "later")
    with InProcessWorker(shop.app) as worker:
        forge(worker, lambda message: message.delivery_info.update(redelivered=True))
        worker.run()
        assert worker.unacked == 0
    assert (began, states(shop, "t1"), letters(shop)) == ([], ["REVOKED"], 0)
    assert shop.hardening.deaths.peek("t1").deaths == 0


@KINDS
def test_without_an_answer_it_comes_back(shop: Shop, base: Any) -> None:
    """It may be one of many that were superseded. When the store answers again it runs, or does not."""
    began: list[str] = []
    task = task_of(shop, lambda task: began.append(task.request.id), base=base)
    for task_id in ("t1", "t2"):
        fire(task, task_id)
        take(shop, task_id)
    shop.store.down = True
    with InProcessWorker(shop.app) as worker:
        assert worker.step()
        assert worker.step()
        assert (began, states(shop, "t1", "t2"), letters(shop)) == ([], ["PENDING"] * 2, 0)
        shop.store.down = False
        worker.run()
        assert worker.unacked == 0
    assert (began, states(shop, "t1", "t2")) == (["t2"], ["REVOKED", "SUCCESS"])


@pytest.mark.parametrize("until", ["finish", timedelta(days=1)], ids=["finish", "window"])
def test_all_that_it_holds_besides_is_free(shop: Shop, until: Any) -> None:
    """The key of ``@deduplicate``, whatever its end, and that of ``@idempotent``, which the later run claims."""
    began: list[str] = []

    @shop.app.task(bind=True, base=HardenedTask, name="shop.keyed")
    @idempotent("number")
    def keyed(self: Any, number: int) -> None:
        began.append(self.request.id)

    @shop.app.task(bind=True, base=HardenedTask, name="shop.once")
    @deduplicate("number", until=until)
    def once(self: Any, number: int) -> None:
        began.append(self.request.id)

    for task_id, task in (("t1", once), ("t2", keyed), ("t3", keyed)):
        fire(task, task_id, 1)
        take(shop, task_id)
    with InProcessWorker(shop.app) as worker:
        worker.run()
        assert (len(worker.seen), worker.unacked) == (3, 0)
    assert (began, states(shop, "t1", "t2", "t3")) == (["t3"], ["REVOKED", "REVOKED", "SUCCESS"])
    assert not [*shop.store.held()]


def test_its_key_is_not_done_where_the_claim_is_a_transaction(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Ignore`` of a body commits what it did; here nothing was done, and the later run of that key is to do it."""
    monkeypatch.setattr(Claim, "transactional", property(lambda _: True, lambda *_: None))
    began: list[str] = []

    @shop.app.task(bind=True, base=HardenedTask, name="shop.keyed")
    @idempotent("number")
    def keyed(self: Any, number: int) -> None:
        began.append(self.request.id)

    for task_id in ("t1", "t2"):
        fire(keyed, task_id, 1)
        take(shop, task_id)
    with InProcessWorker(shop.app) as worker:
        worker.run()
    assert (began, states(shop, "t1")) == (["t2"], ["REVOKED"])


def test_the_second_message_of_a_slot_that_was_superseded_does_not_run(shop: Shop) -> None:
    """Though the later run has ended by then, and its window is free."""
    began: list[str] = []
    task = task_of(shop, lambda task: began.append(task.request.id))
    for _ in range(2):
        fire(task, "t1", once=True)
    take(shop, "later")
    with InProcessWorker(shop.app) as worker:
        worker.step()
        shop.store.free(RUN)
        worker.run()
        assert (len(worker.seen), worker.unacked) == (2, 0)
    assert (began, states(shop, "t1")) == ([], ["REVOKED"])


def test_work_that_is_done_is_replayed(shop: Shop) -> None:
    """What waits for its result gets it, though a later run has the window by now."""
    began: list[str] = []

    @shop.app.task(bind=True, base=HardenedTask, name="shop.keyed")
    @idempotent("number")
    def keyed(self: Any, number: int) -> str:
        began.append(self.request.id)
        return "done"

    with InProcessWorker(shop.app) as worker:
        keyed.apply_async((1,), task_id="t0")
        worker.run()
        fire(keyed, "t1", 1)
        take(shop, "later")
        worker.run()
    assert (began, AsyncResult("t1", app=shop.app).result) == (["t0"], "done")


def test_a_revoke_that_cannot_be_recorded_is_asked_for_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result backend is away for a moment."""
    began: list[str] = []
    task = task_of(shop, lambda task: began.append(task.request.id))
    stock, tries = task.backend.mark_as_revoked, []

    def mark_as_revoked(*args: Any, **options: Any) -> Any:
        tries.append(args)
        if len(tries) == 1:
            raise OSError("away")
        return stock(*args, **options)

    monkeypatch.setattr(task.backend, "mark_as_revoked", mark_as_revoked)
    fire(task, "t1")
    take(shop, "later")
    with InProcessWorker(shop.app) as worker:
        worker.run()
        assert (len(worker.seen), worker.unacked) == (2, 0)
    assert (began, states(shop, "t1"), len(tries)) == ([], ["REVOKED"], 2)


@pytest.mark.parametrize("marks", [{"yields": [1], "run": RUN}, {"yields": True}, {"yields": True, "run": 7}])
def test_a_mark_that_is_no_good_changes_nothing(shop: Shop, marks: dict[str, Any]) -> None:
    """A forged header, or one without a window."""
    began: list[str] = []
    task_of(shop, lambda task: began.append(task.request.id)).apply_async(task_id="t1")
    take(shop, "later")
    with InProcessWorker(shop.app) as worker:
        forge(worker, lambda message: message.headers.update({HEADER: marks}))
        worker.run()
    assert began == ["t1"]
