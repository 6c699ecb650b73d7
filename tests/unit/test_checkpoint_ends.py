"""How a run ends by its checkpoint: lost to another, handed back, retried, redriven."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery

from celery_hardened import ClaimLostError, HardenedTask, Hardening, Query
from celery_hardened.pipeline import stopping
from celery_hardened.pipeline.letters import work_of
from celery_hardened.poison.contract import Start
from celery_hardened.poison.policy import Record
from celery_hardened.wire import capture
from tests.support.checkpoint_spy import SpiedStore, Stop, make
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


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Stop:
    stop = Stop()
    monkeypatch.setattr(stopping, "told", lambda: stop.told)
    return stop


def reasons(app: Celery) -> list[tuple[str, str]]:
    found = Hardening.expect(app).dead_letters.find(Query(), limit=10).letters
    return [(stored.letter.reason, stored.letter.error_type.rpartition(".")[2]) for stored in found]


# --- fences -----------------------------------------------------------------------------------------------------


def test_a_run_whose_work_another_has_ends(app: Celery, store: SpiedStore) -> None:
    """It learns so at its next save, does no further row, and leaves no letter, no retry and no result."""
    seen: list[int] = []

    def run(self: Task) -> None:
        try:
            for row in self.checkpoint.iterate(range(4), every=0):
                seen.append(row)
                if row == 1:
                    store.open(self.request.id, owner="heir", again=True, lifetime=60)
        except ClaimLostError:
            store.finish(self.request.id, owner="heir", lifetime=60)
            raise

    job = make(app, run)
    with InProcessWorker(app) as worker, outcomes() as noted:
        result = job.delay()
        worker.step()
        assert seen == [0, 1]
        assert noted == []
        assert result.state == "PENDING"
        assert reasons(app) == []


def test_a_body_that_catches_the_loss_does_not_succeed(app: Celery, store: SpiedStore) -> None:
    """Its work is not done: an ``except Exception`` must not make it look so."""

    def run(self: Task) -> str:
        store_is_theirs = self.checkpoint.load()
        store.open(self.request.id, owner="heir", again=True, lifetime=60)
        try:
            self.checkpoint.save(1)
        except Exception:  # noqa: BLE001 - as users write it
            return f"all is well {store_is_theirs}"
        return "unreachable"

    job = make(app, run)
    with InProcessWorker(app) as worker, outcomes() as noted:
        result = job.delay()
        worker.step()
        assert noted == []
        assert result.state == "PENDING"


# --- progress ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("explicit", [True, False])
def test_progress_begins_the_attempts_anew(app: Celery, store: SpiedStore, eager: bool, explicit: bool) -> None:
    """Ten failures with a row between them, at most two retries each: it ends well, by either kind of retry."""
    seen: list[int] = []

    def run(self: Task) -> str:
        for row in self.checkpoint.iterate(range(10), every=3600):
            seen.append(row)
            if seen.count(row) == 1:
                if explicit:
                    raise self.retry(exc=ConnectionError("gateway down"), countdown=0)
                raise ConnectionError("gateway down")
        return "done"

    job = make(app, run, max_retries=2)
    if eager:
        assert job.apply().result == "done"
    else:
        with InProcessWorker(app) as worker:
            result = job.delay()
            worker.run()
            assert result.result == "done"
    assert seen == [row for row in range(10) for _ in range(2)]


def test_a_job_may_run_in_slices(app: Celery, store: SpiedStore) -> None:
    """Each ends at the soft limit with what it has done saved, and the next one is a first attempt again."""
    slices: list[int] = []

    def run(self: Task) -> str:
        slices.append(0)
        for _ in self.checkpoint.iterate(range(20), every=3600):
            if slices[-1] == 3:
                raise SoftTimeLimitExceeded
            slices[-1] += 1
        return "done"

    job = make(app, run, max_retries=1, autoretry_for=(SoftTimeLimitExceeded,))
    with InProcessWorker(app) as worker:
        result = job.delay()
        worker.run()
        assert result.result == "done"
    assert slices == [3] * 6 + [2]


def test_without_progress_the_attempts_run_out(app: Celery, store: SpiedStore) -> None:
    """A row that always fails is tried as often as max_retries says, and its work waits in a dead letter."""
    seen: list[int] = []

    def run(self: Task) -> None:
        for row in self.checkpoint.iterate(range(10), every=0):
            seen.append(row)
            if row == 4:
                raise ConnectionError("gateway down")

    job = make(app, run, max_retries=2)
    with InProcessWorker(app) as worker:
        job.delay()
        worker.run()
    assert seen == [0, 1, 2, 3, 4, 4, 4]
    assert reasons(app) == [("exhausted", "ConnectionError")]


def test_saving_the_same_again_is_no_progress(app: Celery, store: SpiedStore) -> None:
    """Else a task that notes where it is, and then fails, would be retried for ever."""
    runs: list[int] = []

    def run(self: Task) -> None:
        runs.append(self.request.retries)
        self.checkpoint.save("charging")
        raise ConnectionError("gateway down")

    job = make(app, run, max_retries=2)
    with InProcessWorker(app) as worker:
        job.delay()
        worker.run()
    assert runs == [0, 1, 2]


# --- redrive ----------------------------------------------------------------------------------------------------


def test_a_redrive_goes_on_where_it_was(app: Celery, store: SpiedStore) -> None:
    """The record outlives the dead letter's failure."""
    seen: list[int] = []
    fixed = False

    def run(self: Task) -> str:
        for row in self.checkpoint.iterate(range(5), every=3600):
            seen.append(row)
            if row == 3 and not fixed:
                raise ValueError("a bug")
        return "done"

    job = make(app, run)
    with InProcessWorker(app) as worker:
        result = job.delay()
        worker.run()
        assert reasons(app) == [("permanent", "ValueError")]
        fixed = True
        Hardening.expect(app).redrive(Query(), by="me", why="fixed")
        worker.run()
        assert result.result == "done"
    assert seen == [0, 1, 2, 3, 3, 4]


# --- a worker that stops ----------------------------------------------------------------------------------------


def test_a_loop_hands_back_within_a_row(app: Celery, store: SpiedStore, stop: Stop) -> None:
    """It saves and goes back to its queue; no attempt, no letter, no signal, and the next start goes on."""
    seen: list[int] = []
    attempts: list[int] = []

    def run(self: Task) -> str:
        attempts.append(self.request.retries)
        for row in self.checkpoint.iterate(range(5), every=3600):
            seen.append(row)
            if row == 2:
                stop()
        return "done"

    job = make(app, run)
    with InProcessWorker(app) as worker, outcomes() as noted:
        result = job.delay()
        worker.step()
        assert seen == [0, 1, 2]
        assert noted == []
        assert store.steps == ["open", "save 3"]
        assert reasons(app) == []
        worker.step()
        assert seen == [0, 1, 2], "it does not begin another row in a worker that stops"
        stop.over()
        worker.run()
        assert result.result == "done"
    assert seen == [0, 1, 2, 3, 4]
    assert attempts == [0, 0, 0]


def test_a_body_that_catches_the_hand_back_does_not_succeed(app: Celery, store: SpiedStore, stop: Stop) -> None:
    """``except Exception`` around the loop: the rows that are left must not be lost."""
    seen: list[int] = []

    def run(self: Task) -> str:
        try:
            for row in self.checkpoint.iterate(range(4), every=0):
                seen.append(row)
                if row == 0:
                    stop()
        except Exception:  # noqa: BLE001 - as users write it
            return "all is well"
        return "done"

    job = make(app, run)
    with InProcessWorker(app) as worker:
        result = job.delay()
        worker.step()
        assert seen == [0]
        assert result.state == "PENDING"
        stop.over()
        worker.run()
        assert result.result == "done"
    assert seen == [0, 1, 2, 3]


def test_the_last_row_is_followed_by_the_end(app: Celery, store: SpiedStore, stop: Stop) -> None:
    """Nothing is left to hand back."""

    def run(self: Task) -> str:
        for row in self.checkpoint.iterate([1, 2]):
            if row == 2:
                stop()
        return "done"

    job = make(app, run)
    with InProcessWorker(app) as worker:
        result = job.delay()
        worker.step()
        assert result.result == "done"


def test_a_stop_explains_the_redelivery(app: Celery, store: SpiedStore, stop: Stop) -> None:
    """The message comes back marked; it must not be presumed to have killed its worker."""

    def run(self: Task) -> None:
        stop()
        self.checkpoint.hand_back_if_stopping()

    job = make(app, run)
    with InProcessWorker(app) as worker:
        result = job.delay()
        worker.step()
        [message] = worker.seen
    deaths = Hardening.expect(app).deaths
    start = Start(work_of(capture(message), None), result.id, "next", 0)
    assert deaths.open_start(start, redelivered=True, alone=False) == Record()


def test_loops_of_ones_own_may_hand_back(app: Celery, store: SpiedStore, stop: Stop) -> None:
    seen: list[int] = []

    def run(self: Task) -> str:
        page = self.checkpoint.load(0)
        while page < 4:
            seen.append(page)
            page += 1
            self.checkpoint.save(page)
            if page == 2:
                stop()
            self.checkpoint.hand_back_if_stopping()
        return "done"

    job = make(app, run)
    with InProcessWorker(app) as worker:
        result = job.delay()
        worker.step()
        assert seen == [0, 1]
        stop.over()
        worker.run()
        assert result.result == "done"
    assert seen == [0, 1, 2, 3]


def test_a_task_that_acks_early_is_sent_again(app: Celery, store: SpiedStore, stop: Stop) -> None:
    """Its message is gone already, so a new one carries the work on, with its id and its attempts."""
    seen: list[Any] = []

    def run(self: Task) -> str:
        for row in self.checkpoint.iterate(range(3), every=0):
            seen.append(row)
            if row == 0:
                stop()
        return "done"

    job = make(app, run, acks_late=False)
    with InProcessWorker(app) as worker:
        result = job.delay()
        worker.step()
        stop.over()
        worker.run()
        assert result.result == "done"
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("way", ["eager", "direct"])
def test_nothing_is_handed_back_without_a_message(app: Celery, store: SpiedStore, stop: Stop, way: str) -> None:
    stop()
    job = make(app, lambda self: list(self.checkpoint.iterate("ab")))
    assert (job() if way == "direct" else job.apply().result) == ["a", "b"]


def test_an_outage_does_not_keep_a_worker_from_stopping(app: Celery, store: SpiedStore, stop: Stop) -> None:
    """It is asked once, and the rows that were not saved come again."""
    seen: list[int] = []

    def run(self: Task) -> None:
        for row in self.checkpoint.iterate(range(3), every=3600):
            seen.append(row)
            if len(seen) == 2:
                store.down = 1
                stop()

    job = make(app, run)
    with InProcessWorker(app) as worker:
        job.delay()
        worker.step()
        stop.over()
        worker.run()
    assert seen == [0, 1, 0, 1, 2]


# --- a body in a copy of its request ----------------------------------------------------------------------------


class Wrapping(HardenedTask):
    """A ``__call__`` that calls Celery's: the body sees a request that is not the run's own."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize("every", [0, 3600])
def test_a_call_around_the_body(app: Celery, store: SpiedStore, stop: Stop, every: float) -> None:
    """All the same: failures begin anew with progress, and a stop hands back."""
    seen: list[int] = []

    def run(self: Task) -> str:
        for row in self.checkpoint.iterate(range(6), every=every):
            seen.append(row)
            if row < 4 and seen.count(row) == 1:
                raise ConnectionError("gateway down")
            if row == 4:
                stop()
        return "done"

    job = app.task(bind=True, base=Wrapping, shared=False, name="job", max_retries=1)(run)
    with InProcessWorker(app) as worker:
        result = job.delay()
        worker.run(9)
        assert seen == [0, 0, 1, 1, 2, 2, 3, 3, 4]
        stop.over()
        worker.run()
        assert result.result == "done"
    assert seen[9:] == [5]
