"""Deduplication where it meets the other features, with a worker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from celery_hardened import HardenedTask, Hardening, deduplicate, harden
from celery_hardened.pipeline.come_back import HandBack
from celery_hardened.pipeline.windows import windows
from tests.support.in_process import InProcessWorker

LEASE = 60.0


@pytest.fixture
def app(unique: str) -> Celery:
    app = Celery("shop", broker="memory://", backend="cache+memory://")
    app.conf.update(
        task_default_queue=unique,
        hardened_dead_letter_store="memory",
        hardened_lease=LEASE,
        hardened_payload_store="memory:",
        hardened_payload_threshold=2000,
    )
    harden(app)
    return app


def run(app: Celery) -> None:
    """Run what waits in the queue."""
    with InProcessWorker(app) as worker:
        worker.run()


def left(app: Celery) -> list[float]:
    """Seconds until each key is free."""
    return [one.left for one in windows(Hardening.expect(app)).held()]


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = create_engine("sqlite://")
    yield made
    made.dispose()


def test_a_publish_that_waits_for_a_commit_in_a_body_is_refused(app: Celery, engine: Engine) -> None:
    """Its parent is written into it so that a commit elsewhere does not change it; nobody waits for it."""
    ran: list[int] = []

    @app.task(base=HardenedTask, name="shop.refresh")
    @deduplicate("number")
    def refresh(number: int) -> None:
        ran.append(number)

    @app.task(base=HardenedTask, name="shop.pay")
    def pay() -> None:
        for _ in range(3):
            with Session(engine) as session:
                session.execute(text("select 1"))
                refresh.apply_async((7,), on_commit=session)
                session.commit()

    pay.delay()
    run(app)
    assert ran == [7]


def test_a_member_of_a_workflow_that_waits_for_a_commit_is_never_refused(app: Celery, engine: Engine) -> None:
    """Somebody waits for it, as without a transaction."""

    @app.task(base=HardenedTask, name="shop.refresh")
    @deduplicate("number", on_duplicate="drop")
    def refresh(number: int) -> int:
        return number

    refresh.apply_async((7,), countdown=3600)
    with Session(engine) as session:
        session.execute(text("select 1"))
        result: Any = chain(refresh.si(7), refresh.si(8)).apply_async(on_commit=session)
        session.commit()
    run(app)
    assert (result.state, result.result) == ("SUCCESS", 8)


def test_work_that_is_handed_back_keeps_its_key_while_it_waits(app: Celery) -> None:
    """It acked early, and its worker stops: no lease is left that anybody renews."""
    stops = [True]

    @app.task(base=HardenedTask, name="shop.count", acks_late=False)
    @deduplicate("number")
    def count(number: int) -> None:
        if stops:
            stops.clear()
            raise HandBack("stops")

    first = count.delay(7)
    with InProcessWorker(app) as worker:
        worker.step()
    (seconds,) = left(app)
    assert seconds > LEASE * 2
    assert count.delay(7).id == first.id
    run(app)
    assert left(app) == []


def test_a_step_whose_arguments_were_put_away_with_its_workflow_runs(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no key, neither fails the step before it nor warns of every message."""

    @app.task(base=HardenedTask, name="shop.fetch")
    def fetch() -> int:
        return 1

    @app.task(base=HardenedTask, name="shop.total")
    @deduplicate("number")
    def total(before: int, number: int, blob: str = "") -> int:
        return before + number + len(blob)

    results = [
        chain(fetch.s(), total.s(7, blob="x" * 5000)).apply_async(),
        fetch.apply_async(link=total.s(8, blob="x" * 5000)),
    ]
    run(app)
    assert [result.result for result in results] == [5008, 1]
    assert left(app) == []
    assert [record for record in caplog.records if record.name.startswith("celery_hardened.dedup")] == []
