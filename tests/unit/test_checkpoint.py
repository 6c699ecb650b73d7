"""``self.checkpoint``: what it saves when, and which rows are done."""

from __future__ import annotations

from threading import Thread
from typing import Any, TypeAlias

import pytest
from celery import Celery

from celery_hardened import CheckpointError, Hardening
from celery_hardened.checkpoint.memory import InMemoryCheckpointStore
from celery_hardened.pipeline import checkpoint as module
from tests.support.checkpoint_spy import SpiedStore, make
from tests.support.in_process import InProcessWorker
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


# --- when it saves ----------------------------------------------------------------------------------------------


def test_what_a_loop_costs(app: Celery, store: SpiedStore) -> None:
    """One step to open, one for each save, one at the end; a loop shorter than *every* saves once."""
    job = make(app, lambda self, every: list(self.checkpoint.iterate(range(3), every=every)))
    with InProcessWorker(app) as worker:
        assert job.delay(0) is not None
        worker.run()
        assert store.steps == ["open", "save 1", "save 2", "save 3", "finish"]
        store.steps.clear()
        job.delay(3600)
        worker.run()
        assert store.steps == ["open", "save 3", "finish"]


def test_a_loop_saves_every_so_many_seconds(app: Celery, store: SpiedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)

    def run(self: Task) -> None:
        nonlocal now
        for _ in self.checkpoint.iterate(range(10), every=5.0):
            now += 2.0

    make(app, run).apply()
    assert store.steps == ["open", "save 3", "save 6", "save 9", "save 10", "finish"]


def test_a_task_without_a_checkpoint_costs_nothing(app: Celery, store: SpiedStore) -> None:
    """The property may be looked at, too."""
    job = make(app, lambda self: self.checkpoint.stopping)
    with InProcessWorker(app) as worker:
        job.delay()
        worker.run()
    assert store.steps == []


def test_it_is_one_object_in_a_run_and_another_in_the_next(app: Celery, store: SpiedStore) -> None:
    seen: list[Any] = []

    def run(self: Task) -> None:
        seen.append(self.checkpoint)
        assert self.checkpoint is seen[-1]

    job = make(app, run)
    with InProcessWorker(app) as worker:
        job.delay()
        job.delay()
        worker.run()
    assert seen[0] is not seen[1]


# --- which rows are done ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [True, False])
def test_a_row_that_raised_comes_again(app: Celery, store: SpiedStore, eager: bool) -> None:
    """And no row before it: the failure saves what *every* had not yet."""
    seen: list[int] = []

    def run(self: Task) -> str:
        for row in self.checkpoint.iterate(range(6), every=3600):
            seen.append(row)
            if row == 3 and seen.count(3) == 1:
                raise ConnectionError("gateway down")
        return "done"

    job = make(app, run)
    if eager:
        assert job.apply().result == "done"
    else:
        with InProcessWorker(app) as worker:
            result = job.delay()
            worker.run()
            assert result.result == "done"
    assert seen == [0, 1, 2, 3, 3, 4, 5]
    assert store.steps == ["open", "save 3", "open", "save 6", "finish"]


def test_a_row_that_breaks_comes_again(app: Celery, store: SpiedStore) -> None:
    """Nobody can tell whether it was done."""
    seen: list[int] = []

    def run(self: Task) -> None:
        for row in self.checkpoint.iterate(range(6), every=0):
            seen.append(row)
            if len(seen) == 3:
                break
        if len(seen) == 3:
            raise ConnectionError("after the loop")

    make(app, run).apply()
    assert seen == [0, 1, 2, 2, 3, 4, 5]


def test_a_position_is_never_ahead_of_the_rows(app: Celery, store: SpiedStore) -> None:
    """A state that is saved in the middle of a row does not count that row."""

    def run(self: Task) -> None:
        for row in self.checkpoint.iterate(range(3), every=3600):
            self.checkpoint.save({"row": row})

    make(app, run).apply()
    assert store.steps == ["open", "save {'row': 0}", "save 1", "save 2", "save 3", "finish"]


def test_loops_have_names(app: Celery, store: SpiedStore) -> None:
    """Two of one name would begin where the other was left; that is an error, not a silent skip."""
    seen: list[str] = []

    def run(self: Task, name: str) -> None:
        seen.extend(self.checkpoint.iterate("ab"))
        seen.extend(self.checkpoint.iterate("cd", name=name))

    assert make(app, run).apply(["letters"]).successful()
    assert seen == list("abcd")
    failed = make(app, run).apply(["rows"])
    assert "a loop named 'rows'" in str(failed.result)


def test_a_loop_that_ended_is_not_done_again(app: Celery, store: SpiedStore) -> None:
    seen: list[Any] = []

    def run(self: Task) -> None:
        for row in self.checkpoint.iterate("ab", name="first"):
            seen.append(row)
        for row in self.checkpoint.iterate((n for n in range(3)), name="second", every=0):
            if row == 1 and seen.count(0) == 1 and 1 not in seen:
                seen.append(row)
                raise ConnectionError("once")
            seen.append(row)

    assert make(app, run).apply().successful()
    assert seen == ["a", "b", 0, 1, 1, 2]


@pytest.mark.parametrize("every", [-1, float("nan")])
def test_every_is_a_number_of_seconds(app: Celery, store: SpiedStore, every: float) -> None:
    failed = make(app, lambda self: self.checkpoint.iterate("ab", every=every)).apply()
    assert "must be a number of seconds" in str(failed.result)


# --- states -----------------------------------------------------------------------------------------------------


def test_load_and_save(app: Celery, store: SpiedStore) -> None:
    """A state outlives a retry; a run sees what it saved itself, as the next one will."""
    seen: list[Any] = []

    def run(self: Task) -> None:
        seen.append(self.checkpoint.load("start"))
        self.checkpoint.save((len(seen),))
        seen.append(self.checkpoint.load())
        if len(seen) < 4:
            raise ConnectionError("once")

    assert make(app, run).apply().successful()
    assert seen == ["start", [1], [1], [3]]


def test_a_state_that_cannot_be_kept(app: Celery, store: SpiedStore) -> None:
    """Too large, or no JSON: an error that says so; the one before stands, also for later saves of a position."""

    def run(self: Task, what: str) -> Any:
        self.checkpoint.save("before")
        with pytest.raises(CheckpointError, match="no JSON" if what == "odd" else "hardened_checkpoint_max") as caught:
            self.checkpoint.save(object() if what == "odd" else "x" * 2_000_000)
        assert "What was saved before stands" in str(caught.value)
        for _ in self.checkpoint.iterate("ab"):
            pass
        return self.checkpoint.load()

    job = make(app, run)
    assert job.apply(["odd"]).result == "before"
    assert job.apply(["large"]).result == "before"


def test_a_record_of_another_release_is_an_error(app: Celery, store: SpiedStore) -> None:
    """It is a dead letter, which the right release can redrive; never a silent start from the beginning."""
    store.open("t1", owner="newer", again=True, lifetime=60)
    InMemoryCheckpointStore.save(store, "t1", owner="newer", state=b'{"v":2}', lifetime=60)
    failed = make(app, lambda self: self.checkpoint.load()).apply(task_id="t1")
    assert isinstance(failed.result, CheckpointError)
    assert "of version 2" in str(failed.result)


def test_a_direct_call_keeps_it_for_its_own_length(app: Celery, store: SpiedStore) -> None:
    """It is a function call: nothing is stored, and the next call starts anew."""

    def run(self: Task) -> list[Any]:
        self.checkpoint.save(1)
        return [self.checkpoint.load(), *self.checkpoint.iterate("ab")]

    job = make(app, run)
    assert job() == job() == [1, "a", "b"]
    assert store.steps == []


def test_threads_of_a_body_are_given_its_checkpoint(app: Celery, store: SpiedStore) -> None:
    """Celery knows no request there, and to save nowhere would be a loss that nobody sees."""
    answers: list[Any] = []

    def run(self: Task) -> Any:
        checkpoint = self.checkpoint

        def save() -> None:
            checkpoint.save("by the thread")
            with pytest.raises(CheckpointError, match="no run of it is under way in this thread") as caught:
                self.checkpoint.save("nowhere")
            answers.append(caught.value)
            answers.append(self.checkpoint.stopping)

        thread = Thread(target=save)
        thread.start()
        thread.join()
        return self.checkpoint.load()

    assert make(app, run).apply().result == "by the thread"
    assert answers[1] is False


# --- a store that does not answer -------------------------------------------------------------------------------


def test_an_outage_is_a_transient_failure(app: Celery, store: SpiedStore) -> None:
    """The task is retried, and goes on where it was: nothing is skipped."""
    seen: list[int] = []

    def run(self: Task) -> None:
        for row in self.checkpoint.iterate(range(4), every=0):
            seen.append(row)
            if row == 1 and seen.count(1) == 1:
                store.down = 2  # this save, and the one of the failure

    assert make(app, run).apply().successful()
    assert seen == [0, 1, 1, 2, 3]


# --- transactions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["state", "rows"])
def test_nothing_is_saved_inside_of_a_transaction(
    app: Celery, store: SpiedStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """If it is rolled back, the checkpoint would tell of work that was not done."""
    opened: list[object] = []
    monkeypatch.setattr(module, "django_transactions", lambda: opened)
    problems: list[str] = []

    def run(self: Task) -> None:
        self.checkpoint.save("before")
        opened.append("atomic")
        try:
            if what == "state":
                self.checkpoint.save("after")
            else:
                list(self.checkpoint.iterate("ab"))
        except CheckpointError as error:
            problems.append(str(error))
        opened.clear()

    job = make(app, run)
    with InProcessWorker(app) as worker:
        job.delay()
        worker.run()
    assert len(problems) == 1
    assert "after its transaction" in problems[0]
    assert store.steps[:2] == ["open", "save before"]
    assert "save after" not in store.steps


def test_an_eager_task_may_run_inside_of_one(app: Celery, store: SpiedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As all do in a Django TestCase."""
    monkeypatch.setattr(module, "django_transactions", lambda: ["atomic"])

    def run(self: Task) -> list[str]:
        return list(self.checkpoint.iterate("ab"))

    assert make(app, run).apply().result == ["a", "b"]
