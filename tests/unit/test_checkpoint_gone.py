"""A checkpoint that the store has lost while its run goes on."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from celery import Celery

from celery_hardened import Hardening
from celery_hardened.pipeline import checkpoint as module
from celery_hardened.pipeline.execution import Execution
from tests.support.checkpoint_spy import SpiedStore, make
from tests.support.in_process import InProcessWorker, outcomes
from tests.unit.conftest import MakeApp

Task: TypeAlias = Any


@pytest.fixture
def app(make_hardened: MakeApp) -> Celery:
    return make_hardened(hardened_retry_backoff=0.01, hardened_retry_floor=0.0, hardened_dead_letter_write_timeout=0.0)


@pytest.fixture
def store(app: Celery) -> SpiedStore:
    hardening = Hardening.expect(app)
    kept = hardening.effects.__dict__
    kept["checkpoints"] = kept["eager_checkpoints"] = spied = SpiedStore()
    return spied


@pytest.mark.parametrize("what", ["rows", "state"])
@pytest.mark.parametrize("eager", [True, False])
def test_a_record_that_is_gone_is_written_anew(app: Celery, store: SpiedStore, eager: bool, what: str) -> None:
    """The store lost it and nobody has the work: the run goes on, and so does the retry after it."""
    seen: list[int] = []

    def rows(self: Task) -> str:
        for row in self.checkpoint.iterate(range(4), every=0):
            seen.append(row)
            if row == 1:
                store._records.clear()
            if row == 2 and seen.count(2) == 1:
                raise ConnectionError("once")
        return "done"

    def state(self: Task) -> str:
        for row in range(self.checkpoint.load(0), 4):
            seen.append(row)
            if row == 1:
                store._records.clear()
            if row == 2 and seen.count(2) == 1:
                raise ConnectionError("once")
            self.checkpoint.save(row + 1)
        return "done"

    job = make(app, rows if what == "rows" else state)
    if eager:
        assert job.apply().result == "done"
    else:
        with InProcessWorker(app) as worker:
            result = job.delay()
            worker.run()
            assert result.result == "done"
    assert seen == [0, 1, 2, 2, 3]


def test_who_may_be_forgotten_does_not_write_it_anew(
    app: Celery, store: SpiedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lease tells whose the message is, and an hour has passed: a successor may have finished and been
    forgotten. It ends at once, and what comes of its message is the broker's to say."""
    seen: list[int] = []
    clock = 0.0
    monkeypatch.setattr(module, "now", lambda: clock)

    def run(self: Task) -> None:
        nonlocal clock
        for row in self.checkpoint.iterate(range(4), every=0):
            seen.append(row)
            if row == 1:
                store._records.clear()
                clock += module.FINISHED

    job = make(app, run)
    with InProcessWorker(app) as worker, outcomes() as noted:
        job.delay()
        worker.step()
        assert (seen, noted, store._records) == ([0, 1], [], {})


def test_who_has_lost_its_delivery_does_not_write_it_anew(
    app: Celery, store: SpiedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a lease, that says it, however short it was."""
    asked: list[bool] = [False, True]
    monkeypatch.setattr(module, "is_ours", lambda _: True)
    monkeypatch.setattr(Execution, "lost", property(lambda _: asked.pop(0)))
    seen: list[int] = []

    def run(self: Task) -> None:
        for row in self.checkpoint.iterate(range(9), every=0):
            seen.append(row)
            if row in (1, 3):
                store._records.clear()

    job = make(app, run)
    with InProcessWorker(app) as worker:
        job.delay()
        worker.step()
    assert (seen, asked, store._records) == ([0, 1, 2, 3], [], {})


def test_who_opened_it_meanwhile_keeps_it(app: Celery, store: SpiedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the answer that it is gone and its being written anew."""
    seen: list[int] = []

    def heir_comes_first(self: Any) -> bool:
        store.open(self._work, owner="heir", again=True, lifetime=60)
        return True

    monkeypatch.setattr(module.Checkpoint, "_goes_on", heir_comes_first)

    def run(self: Task) -> None:
        for row in self.checkpoint.iterate(range(4), every=0):
            seen.append(row)
            if row == 1:
                store._records.clear()

    job = make(app, run)
    with InProcessWorker(app) as worker:
        job.delay()
        worker.step()
    assert seen == [0, 1]
    assert [record.owner for record in store._records.values()] == ["heir"]
