"""How long a payload lives: as long as something needs it, and not until then if nothing does any more."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain

from celery_hardened import HardenedTask, Hardening, Query, idempotent
from celery_hardened.claim_check.contract import ENDED
from celery_hardened.claim_check.policy import KEY
from celery_hardened.marks import Marks
from celery_hardened.pipeline import payload
from celery_hardened.pipeline.stash import store_of
from tests.support.in_process import InProcessWorker
from tests.unit.claim_check.conftest import LARGE, Store, letters, reference
from tests.unit.conftest import MakeApp

DAY = 86400.0


@pytest.fixture
def ages(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Days that each payload was put away, or kept, for."""
    noted: list[float] = []

    def noting(step: Any) -> Any:
        def do(*args: Any, max_age: float) -> None:
            noted.append(round(max_age / DAY, 1))
            step(*args, max_age=max_age)

        return do

    monkeypatch.setattr(store, "put", noting(store.put))
    monkeypatch.setattr(store, "keep", noting(store.keep))
    return noted


def test_a_start_in_a_hundred_days(app: Celery, charge: Any, ages: list[float]) -> None:
    """``countdown`` and ``eta`` come on top of what a payload lives anyhow (37 days)."""
    charge.apply_async(("i", LARGE))
    charge.apply_async(("i", LARGE), countdown=100 * DAY)
    charge.apply_async(("i", LARGE), eta=datetime.now(timezone.utc) + timedelta(days=100))
    charge.apply_async(("i", LARGE), eta=(datetime.now(timezone.utc) + timedelta(days=100)).isoformat())
    assert ages == [37, 137, 137, 137]


def test_a_later_step_with_a_delay(app: Celery, charge: Any, ages: list[float]) -> None:
    """What a message holds may start when the message has, and waits for its own delay then."""
    late = charge.si("i", LARGE).set(countdown=10 * DAY)
    chain(charge.si("first"), late).apply_async(countdown=DAY)
    charge.apply_async(("first",), link=late)
    assert ages == [48, 47]


def test_a_retry_in_a_hundred_days(app: Celery, worker: InProcessWorker, store: Store, ages: list[float]) -> None:
    """It sends the reference again; the payload is kept for that time too."""

    @app.task(base=HardenedTask, bind=True, shared=False, name="late")
    def late(self: Any, note: str) -> None:
        raise self.retry(countdown=100 * DAY)

    worker.consumer.update_strategies()
    late.delay(LARGE)
    worker.step()
    assert ages == [37, 137]


def test_a_letter_of_more_than_a_year(app: Celery, worker: InProcessWorker, ages: list[float]) -> None:
    """Its payload lives as long as it, and a wait in the queue longer; a letter of the usual age adds nothing."""

    class Audited(HardenedTask):
        abstract = True
        dead_letter_max_age = 400 * DAY

    @app.task(base=Audited, shared=False, name="audited")
    def audited(note: str) -> None:
        raise ValueError

    @app.task(base=HardenedTask, shared=False, name="usual")
    def usual(note: str) -> None:
        raise ValueError

    worker.consumer.update_strategies()
    audited.delay(LARGE)
    usual.delay(LARGE)
    worker.run()
    assert len(letters(app)) == 2
    assert ages == [37, 37, 407, 37]


def test_a_forged_letter_asks_the_store_a_bounded_number_of_times(
    app: Celery, worker: InProcessWorker, store: Store
) -> None:
    """Once for each name, and of a thousand names at most, however many references a message holds."""

    @app.task(base=HardenedTask, shared=False, name="forged")
    def forged(*_: Any) -> None:
        raise ValueError

    def named(number: int) -> dict[str, Any]:
        return {KEY: {"v": 1, "name": f"{number:032x}", "sha256": "", "size": 1}}

    Hardening.expect(app).__dict__.pop("settings", None)
    app.conf.hardened_payload_threshold = app.conf.hardened_payload_max = 10_000_000
    worker.consumer.update_strategies()
    forged.delay([named(1)] * 5000)
    worker.run()
    assert len(store.names("keep")) == 1
    forged.delay([named(number) for number in range(5000)])
    worker.run()
    assert len(store.names("keep")) == 1001


def test_a_result_lives_as_long_as_its_key(make_hardened: MakeApp, tmp_path: Path) -> None:
    """In a store that is swept too: on day forty a duplicate gets the result of a key of ninety days."""
    app = make_hardened(hardened_payload_store=tmp_path.as_uri(), hardened_idempotency_result_max=100)
    ran = []

    @app.task(base=HardenedTask, shared=False, name="report")
    @idempotent("order", lifetime=timedelta(days=90))
    def report(order: int) -> str:
        ran.append(order)
        return "r" * 500

    hardening = Hardening.expect(app)
    with InProcessWorker(app) as worker:
        report.delay(1)
        worker.run()
        store: Any = store_of(hardening)
        now = store._clock
        store._clock = lambda: now() + 40 * DAY
        assert payload.sweep_now(hardening) == 0
        again = report.delay(1)
        worker.run()
        assert again.result == "r" * 500
        assert ran == [1]
        store._clock = lambda: now() + 100 * DAY
        assert payload.sweep_now(hardening) == 1


@pytest.mark.parametrize("new", [{"args": ("new" + LARGE,)}, {"args": (), "kwargs": {"note": "short"}}])
def test_a_retry_with_new_arguments_ends_the_old_ones(
    app: Celery, worker: InProcessWorker, store: Store, ran: list[Any], new: dict[str, Any]
) -> None:
    """Once it is on its way nobody fetches them again; a message that comes back finds that it was retried."""

    @app.task(base=HardenedTask, bind=True, shared=False, name="moving")
    def moving(self: Any, note: str) -> None:
        ran.append(note)
        if self.request.retries < 2:
            raise self.retry(countdown=0, **new)

    worker.consumer.update_strategies()
    moving.delay(LARGE)
    first = store.names("put")[0]
    worker.step()
    assert store.get(first, most=10) == ENDED
    worker.run()
    assert len(ran) == 3
    assert store.alive == []


def test_a_retry_that_is_not_sent_ends_nothing(
    app: Celery, worker: InProcessWorker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message goes back to the broker, and needs its own arguments."""

    @app.task(base=HardenedTask, bind=True, shared=False, name="moving")
    def moving(self: Any, note: str) -> None:
        raise self.retry(countdown=0, args=("short",))

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionRefusedError

    worker.consumer.update_strategies()
    moving.delay(LARGE)
    with monkeypatch.context() as patched:
        patched.setitem(app.amqp.__dict__, "send_task_message", refuse)
        worker.step()
    assert len(store.alive) == 1
    assert reference(worker.seen[0])["name"] == store.alive[0]


def test_a_redriven_task_that_retries_keeps_its_letters_arguments(
    app: Celery, worker: InProcessWorker, store: Store
) -> None:
    """Its letter is open until the work is done, and may be redriven once more if that never is."""

    @app.task(base=HardenedTask, bind=True, shared=False, name="moving")
    def moving(self: Any, note: str) -> None:
        if Marks.read(self.request.headers).redrive is None:
            raise ValueError
        raise self.retry(countdown=0, args=("short",))

    worker.consumer.update_strategies()
    moving.delay(LARGE)
    worker.run()
    Hardening.expect(app).redrive(Query(), by="test", why="fixed")
    worker.step()
    assert len(worker.seen) == 2
    assert store.names("finish") == []
    assert len(store.alive) == 1
