"""What a repetition of finished work gets, and where its key is known: what the pages on effects say of it."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from celery import Celery

from celery_hardened import HardenedTask, Hardening, idempotent
from tests.support.in_process import InProcessWorker

Task: TypeAlias = Any


@pytest.mark.parametrize(("result", "replayed"), [({1: 3}, {"1": 3}), ((1, 2), [1, 2]), (None, None)])
def test_a_replay_is_what_json_makes_of_the_result(app: Celery, result: Any, replayed: Any) -> None:
    """The first run's own result is as it was."""

    @app.task(base=HardenedTask, name="shop.sum", shared=False)
    @idempotent("order")
    def sums(order: str) -> Any:
        runs.append(order)
        return result

    runs: list[str] = []
    assert [sums.apply(["o"]).result for _ in range(3)] == [result, replayed, replayed]
    assert runs == ["o"]


def test_a_replaced_run_leaves_its_key_free(app: Celery) -> None:
    """It has not done the work; its replacement has, under a key of its own."""

    @app.task(base=HardenedTask, name="shop.inner", shared=False)
    @idempotent("order")
    def inner(order: str) -> str:
        ran.append("inner")
        return order

    @app.task(bind=True, base=HardenedTask, name="shop.outer", shared=False)
    @idempotent("order")
    def outer(self: Task, order: str) -> Any:
        ran.append("outer")
        raise self.replace(inner.s(order))

    ran: list[str] = []
    with InProcessWorker(app) as worker:
        for _ in range(2):
            result = outer.delay("o")
            worker.run()
            assert result.result == "o"
    assert ran == ["outer", "inner", "outer"]


def test_keys_of_eager_tasks_stay_in_the_process(app: Celery) -> None:
    """Workers do not see them, nor they what a worker has done."""
    hardening = Hardening.expect(app)
    hardening.effects.__dict__["claims"] = shared = type(hardening.effects.eager_claims)()

    @app.task(base=HardenedTask, name="shop.mail", shared=False)
    @idempotent("order")
    def mail(order: str) -> int:
        ran.append(order)
        return len(ran)

    ran: list[str] = []
    assert [mail.apply(["o"]).result for _ in range(2)] == [1, 1]
    assert shared._records == {}
    with InProcessWorker(app) as worker:
        result = mail.delay("o")
        worker.run()
        assert result.result == 2
    assert mail.apply(["o"]).result == 1
