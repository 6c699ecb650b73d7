"""Who goes on with a record that is there: only whoever does the same work. A record may outlive its key."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from celery import Celery

from celery_hardened import HardenedTask, Hardening, Query, idempotent
from celery_hardened.idempotency.memory import InMemoryClaimStore
from tests.support.checkpoint_spy import SpiedStore
from tests.support.in_process import InProcessWorker
from tests.unit.conftest import MakeApp

Task: TypeAlias = Any

DAY = 86_400.0


@pytest.fixture
def app(make_hardened: MakeApp) -> Celery:
    return make_hardened(hardened_retry_backoff=0.01, hardened_retry_floor=0.0, hardened_dead_letter_write_timeout=0.0)


class Stores:
    """Claims and checkpoints of a worker, and the time of both."""

    def __init__(self, app: Celery) -> None:
        self.now = 1_000 * DAY
        self.claims = InMemoryClaimStore(clock=lambda: self.now)
        self.checkpoints = SpiedStore()
        self.checkpoints._clock = lambda: self.now
        effects = Hardening.expect(app).effects.__dict__
        effects["claims"] = effects["eager_claims"] = self.claims
        effects["checkpoints"] = effects["eager_checkpoints"] = self.checkpoints


@pytest.fixture
def stores(app: Celery) -> Stores:
    return Stores(app)


class Report:
    """A task with a key and rows, and what its runs did."""

    def __init__(self, app: Celery, stores: Stores, **options: Any) -> None:
        self.done: list[str] = []
        self.trouble: list[str] = []
        """What the next runs meet, one each."""
        report = self

        @app.task(bind=True, base=HardenedTask, name="report", shared=False, max_retries=3)
        @idempotent("day", **options)
        def run(self: Task, day: str, rows: str, skip: bool = False) -> str:
            trouble = report.trouble.pop(0) if report.trouble else ""
            if trouble == "early":
                raise ConnectionError("before the first row")
            if skip or trouble == "nothing left":
                return "skipped"
            for row in self.checkpoint.iterate(rows, every=0):
                if row == "!" or trouble == f"at {row}":
                    raise ConnectionError(row) if trouble else ValueError(row)
                report.done.append(row)
            if trouble == "retries with others":
                raise self.retry(kwargs={"day": day, "rows": rows.upper(), "skip": False}, countdown=0)
            stores.checkpoints.down = int(trouble == "no end")
            return "done"

        self.task = run

    def took(self) -> str:
        done, self.done = "".join(self.done), []
        return done


@pytest.fixture
def report(app: Celery, stores: Stores) -> Report:
    return Report(app, stores)


# --- a record whose end was lost ----------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [8 * DAY, 36 * DAY])
@pytest.mark.parametrize("lost", ["the store was away", "the retry had nothing left to do"])
@pytest.mark.parametrize("trouble", [[], ["early"], ["early", "at b"]])
def test_work_that_was_forgotten_begins_anew(
    app: Celery, stores: Stores, report: Report, lost: str, trouble: list[str], later: float
) -> None:
    """The key was remembered for a week, its checkpoint would be for five. No row is skipped, in no attempt."""
    report.trouble = ["no end"] if lost == "the store was away" else ["at d", "nothing left"]
    with InProcessWorker(app) as worker:
        report.task.delay("monday", "abcd")
        worker.run()
        assert report.took() == ("abcd" if lost == "the store was away" else "abc")
        assert not next(iter(stores.checkpoints._records.values())).done

        report.task.delay("monday", "abcd")
        worker.run()
        assert report.took() == "", "the key is remembered: its result is replayed"

        stores.now += later
        report.trouble = list(trouble)
        result = report.task.delay("monday", "abcd")
        worker.run()
    assert (result.result, report.took()) == ("done", "abcd")


def test_a_key_deleted_by_hand_begins_anew(app: Celery, stores: Stores, report: Report) -> None:
    """As the page on effects has it: then its work can be done again."""
    report.trouble = ["no end"]
    with InProcessWorker(app) as worker:
        for _ in range(2):
            report.task.delay("monday", "abcd")
            worker.run()
            assert report.took() == "abcd"
            stores.claims._records.clear()
            stores.now += 1


def test_its_own_message_goes_on_though_the_key_is_forgotten(app: Celery, stores: Stores, report: Report) -> None:
    """A redrive is of the same task, and a letter is kept for longer than a key."""
    with InProcessWorker(app) as worker:
        report.task.delay("monday", "ab!d")
        worker.run()
        stores.now += 20 * DAY
        Hardening.expect(app).redrive(Query(), by="me", why="test", edit={"args": ["monday", "abcd"]})
        worker.run()
    assert report.took() == "abcd"


# --- the same key with other arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(
    ("options", "rows", "then"),
    [({}, "ABCD", "ABCD"), ({}, "ab!d", ""), ({"compare_arguments": False}, "ABCD", "CD")],
    ids=["others", "the same", "not compared"],
)
def test_a_new_message_after_a_failure(
    app: Celery, stores: Stores, eager: bool, options: dict[str, Any], rows: str, then: str
) -> None:
    """Rows that are others are all done. Where nothing is compared, or all is the same, it goes on."""
    report = Report(app, stores, **options)
    send = report.task.apply if eager else report.task.delay
    with InProcessWorker(app) as worker:
        for call, took in ((("monday", "ab!d"), "ab"), (("monday", rows), then)):
            if eager:
                send(call)
            else:
                send(*call)
                worker.run()
            assert report.took() == took


def test_arguments_of_an_attempt_that_never_looked(app: Celery, stores: Stores, report: Report) -> None:
    """It failed before its first row, so the record is still of the other arguments when it is retried."""
    with InProcessWorker(app) as worker:
        report.task.delay("monday", "ab!d")
        worker.run()
        report.trouble = ["early", "early"]
        report.task.delay("monday", "ABCD")
        worker.run()
    assert report.took() == "abABCD"


def test_a_retry_may_change_its_arguments(app: Celery, stores: Stores, report: Report) -> None:
    """It is the same task, which has decided so: what is done is done."""
    report.trouble = ["at c", "retries with others"]
    with InProcessWorker(app) as worker:
        report.task.delay("monday", "abcd")
        worker.run()
    assert report.took() == "abcd"


def test_a_redrive_with_edited_arguments_goes_on(app: Celery, stores: Stores, report: Report) -> None:
    """The position stays the number of rows that are done."""
    with InProcessWorker(app) as worker:
        report.task.delay("monday", "ab!d")
        worker.run()
        Hardening.expect(app).redrive(Query(), by="me", why="test", edit={"args": ["monday", "ABCD"]})
        worker.run()
    assert report.took() == "abCD"


def test_a_redrive_after_other_arguments_begins_anew(app: Celery, stores: Stores, report: Report) -> None:
    """The record is that of the other message by now, whose rows are no rows of this one."""
    with InProcessWorker(app) as worker:
        first = report.task.delay("monday", "ab!d")
        worker.run()
        report.task.delay("monday", "ABC!")
        worker.run()
        assert report.took() == "abABC"
        Hardening.expect(app).redrive(Query(ids=(f"{first.id}-0-0",)), by="me", why="test")
        worker.run()
    assert report.took() == "ab"
