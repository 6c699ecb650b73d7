"""How each delivery is counted: once, by its end; a worker in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery import Celery
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_received, task_retry
from celery.worker import state
from celery.worker.request import Request

from celery_hardened import HardenedTask, Hardening, StoreUnavailableError, harden, idempotent
from celery_hardened.metrics.catalogue import (
    CHILDREN_LOST,
    CLOCK_SKEW,
    DEAD_LETTERS,
    LEASES_LOST,
    TASK_EXCEPTIONS,
    TASK_SECONDS,
    TASK_WAIT_SECONDS,
    TASKS,
)
from celery_hardened.metrics.outcome import Outcome
from celery_hardened.pipeline.counting import CountedRequest, compose_counted, count_end
from celery_hardened.pipeline.delivery import report_lost
from celery_hardened.pipeline.ending import ends_as
from celery_hardened.pipeline.letters import HANDED
from celery_hardened.pipeline.request import ON_TIMEOUT_FAILS
from celery_hardened.pipeline.superseded import Superseded
from celery_hardened.signals import lease_lost, task_dead_lettered, task_replayed, worker_process_lost
from tests.support.in_process import InProcessWorker


class Bench:
    """A worker whose requests are handed to the test instead of to a pool."""

    def __init__(self, queue: str) -> None:
        self.app = harden(Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False))
        self.app.conf.update(hardened_dead_letter_store="memory", task_default_queue=queue)
        self.queue = queue
        self.hardening = Hardening.expect(self.app)
        self.bodies: list[Any] = []

    def task(self, body: Callable[[Any], Any] = lambda task: None, **options: Any) -> Any:
        def work(self: Any, order: int = 1) -> Any:
            return body(self)

        decorate = options.pop("decorate", lambda made: made)
        options.setdefault("base", HardenedTask)
        return self.app.task(bind=True, name="shop.work", **options)(decorate(work))

    @property
    def outcomes(self) -> dict[str, float]:
        series = self.hardening.metrics.registry.values(TASKS).items()
        return {outcome: value for (_, _, outcome), value in series if value}

    def value(self, family: Any, *labels: str) -> float:
        return self.hardening.metrics.registry.value(family, labels)


@pytest.fixture
def bench(unique: str) -> Iterator[Bench]:
    yield Bench(unique)
    state.should_terminate = None


@pytest.fixture
def request_of(bench: Bench) -> Iterator[Callable[..., Any]]:
    """The request of one message, accepted by a pool that says nothing more."""
    workers: list[InProcessWorker] = []

    def make(*, accepted: bool = True, send: Any = None, **options: Any) -> Any:
        task = bench.task(**options)
        worker = InProcessWorker(bench.app)
        workers.append(worker)
        found: list[Any] = []
        worker.consumer._start = found.append
        worker.consumer.isolation._start = found.append
        (send or task.delay)()
        worker.step()
        (request,) = found
        if accepted:
            request.on_accepted(os.getpid(), time.monotonic())
        return request

    yield make
    for worker in workers:
        worker.close()


def info(error: BaseException) -> Any:
    try:
        raise error
    except type(error):
        return ExceptionInfo()


# --- by the exception ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome", "exception"),
    [
        (ValueError("x"), "failure", "ValueError"),
        (SoftTimeLimitExceeded(1), "timeout", "SoftTimeLimitExceeded"),
        (Retry("again", exc=KeyError("k")), "retry", "KeyError"),
        (Retry("again"), "retry", None),
        (Reject("no"), "reject", None),
        (Reject("no", requeue=True), "requeue", None),
        (Ignore("no"), "ignore", None),
        (Superseded("later"), "superseded", None),
        (ends_as(Ignore("x"), "waited"), "waited", None),
        (ends_as(Ignore("x"), "deduplicated"), "deduplicated", None),
        (ends_as(Reject("x", requeue=True), "lease_lost"), "lease_lost", None),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_a_pool_process_reports(
    bench: Bench, request_of: Callable[..., Any], error: BaseException, outcome: str, exception: str | None
) -> None:
    """Its class, or what it carries, says how the run ended; only what a body raised is counted as raised."""
    request_of().on_success((True, info(error), 0.1))
    assert bench.outcomes == {outcome: 1}
    raised = bench.hardening.metrics.registry.values(TASK_EXCEPTIONS)
    assert raised == ({("shop.work", exception): 1} if exception else {})


def test_an_outcome_survives_the_way_to_the_parent() -> None:
    """It is pickled with the exception that carries it, as a pool does; a foreign word is not believed."""
    import pickle

    from celery_hardened.pipeline.ending import outcome_of, unwrap

    sent: Any = pickle.loads(pickle.dumps(info(ends_as(Ignore("x"), "waited"))))
    assert outcome_of(unwrap(sent.exception)) == "waited"
    odd = ValueError("x")
    odd.hardened_outcome = "nonsense"  # type: ignore[attr-defined]
    assert outcome_of(odd) == "failure"


def test_a_success_takes_the_run_time_of_the_pool_process(bench: Bench, request_of: Callable[..., Any]) -> None:
    """And is counted once, though it be told twice."""
    request = request_of()
    request.on_success((False, None, 70.0))
    request.on_success((False, None, 70.0))
    assert bench.outcomes == {"success": 1}
    assert bench.value(TASK_SECONDS, "shop.work", "ok") == 1
    _, buckets = bench.hardening.metrics.registry.snapshot()
    assert buckets[TASK_SECONDS]["shop.work", "ok"][-1] == 70.0


def test_a_requeue_after_the_ack_is_a_dead_letter(bench: Bench, request_of: Callable[..., Any]) -> None:
    """No message can go back by then: what would be lost is a letter, and no count says that it has gone back."""
    request = request_of(acks_late=False)
    assert request.acknowledged
    request.on_success((True, info(Reject("not here", requeue=True)), 0.1))
    assert bench.outcomes == {"reject": 1}
    assert bench.value(DEAD_LETTERS, "shop.work", bench.queue, "rejected") == 1


# --- hard limits ------------------------------------------------------------------------------------------------


def test_a_hard_limit_is_told_twice_and_counted_once(bench: Bench, request_of: Callable[..., Any]) -> None:
    """billiard calls ``on_failure`` and then ``on_timeout``."""
    request = request_of()
    request.on_failure(info(TimeLimitExceeded(1)))
    assert bench.outcomes == ({} if ON_TIMEOUT_FAILS else {"timeout": 1})
    request.on_timeout(False, 1)
    assert bench.outcomes == {"timeout": 1}
    assert bench.value(TASK_EXCEPTIONS, "shop.work", "TimeLimitExceeded") == 1
    assert bench.value(DEAD_LETTERS, "shop.work", bench.queue, "timeout") == 1


def test_a_hard_limit_of_a_greenlet(bench: Bench, request_of: Callable[..., Any]) -> None:
    """It comes without ``on_failure``."""
    request_of().on_timeout(False, 1)
    assert bench.outcomes == {"timeout": 1}


@pytest.mark.parametrize("failure_too", [True, False], ids=["prefork", "gevent"])
def test_a_hard_limit_that_is_tried_again(bench: Bench, request_of: Callable[..., Any], failure_too: bool) -> None:
    """In both ways of telling it, also where nobody has raised the exception."""
    request = request_of(autoretry_for=(TimeLimitExceeded,))
    if failure_too:
        request.on_failure(info(TimeLimitExceeded(1)))
    request.on_timeout(False, 1)
    assert bench.outcomes == {"retry": 1}
    assert request.acknowledged


@pytest.mark.parametrize("failure_too", [True, False], ids=["prefork", "gevent"])
@pytest.mark.parametrize("trouble", ["backend", "hook"])
def test_a_hard_limit_that_is_tried_again_and_cannot_be_told(
    bench: Bench, request_of: Callable[..., Any], trouble: str, failure_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt is on its way: its result backend is away, or its ``on_retry`` raises, and yet the message is
    acked. The hook and the signal come all the same."""
    told: list[str] = []

    def away(*_: Any, **__: Any) -> None:
        told.append(trouble)
        raise ConnectionError("away")

    request = request_of(autoretry_for=(TimeLimitExceeded,))
    place = (request.task.backend, "mark_as_retry") if trouble == "backend" else (request.task, "on_retry")
    monkeypatch.setattr(*place, away)
    task_retry.connect(lambda **_: told.append("signal"), weak=False, dispatch_uid="told")
    try:
        if failure_too:
            request.on_failure(info(TimeLimitExceeded(1)))
        request.on_timeout(False, 1)
    finally:
        task_retry.disconnect(dispatch_uid="told")
    assert told == [trouble, "signal"]
    assert request.acknowledged
    assert request not in state.reserved_requests
    assert bench.outcomes == {"retry": 1}


def test_a_soft_limit_is_no_end(bench: Bench, request_of: Callable[..., Any]) -> None:
    """The task may go on, and its own end is what counts."""
    request = request_of()
    request.on_timeout(True, 1)
    assert bench.outcomes == {}
    request.on_success((False, None, 0.1))
    assert bench.outcomes == {"success": 1}


# --- lost processes -----------------------------------------------------------------------------------------------


def test_a_lost_process(bench: Bench, request_of: Callable[..., Any]) -> None:
    """Its run starts again, the process is counted, and who listens is told of the death."""
    told: list[Any] = []

    def receive(sender: Any, task: str, task_id: str, deaths: int, **_: Any) -> None:
        told.append((sender, task, task_id, deaths))

    worker_process_lost.connect(receive)
    try:
        request = request_of()
        request.on_failure(info(WorkerLostError("signal 9")))
    finally:
        worker_process_lost.disconnect(receive)
    assert bench.outcomes == {"worker_lost": 1}
    assert bench.value(CHILDREN_LOST) == 1
    assert told == [(bench.app, "shop.work", request.id, 1)]


def test_a_lost_process_too_many(bench: Bench, request_of: Callable[..., Any]) -> None:
    """It ends as poison, and its process is counted all the same."""
    bench.app.conf.hardened_max_worker_deaths = 1
    request_of().on_failure(info(WorkerLostError("signal 9")))
    assert bench.outcomes == {"poison": 1}
    assert bench.value(CHILDREN_LOST) == 1
    assert bench.value(DEAD_LETTERS, "shop.work", bench.queue, "poison") == 1


def test_a_process_that_was_lost_after_its_result(
    bench: Bench, request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is stored, so it is a success; Celery acks it as one."""
    request = request_of()
    stored = {"status": "SUCCESS", "result": 1}  # Celery 5.6 does not ask
    monkeypatch.setattr(type(request), "_success_was_stored", lambda self: stored, raising=False)
    request.on_failure(info(WorkerLostError("signal 9")))
    assert bench.outcomes == {"success": 1}
    assert bench.value(CHILDREN_LOST) == 1


# --- what the pipeline does with it -----------------------------------------------------------------------------------


@pytest.fixture
def no_letters(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(letter: Any) -> bool:
        raise StoreUnavailableError("writing a letter", "away")

    monkeypatch.setattr(bench.hardening.dead_letters, "put", put)


@pytest.mark.usefixtures("no_letters")
@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda request: request.on_failure(info(ValueError("x"))), "requeue"),
        (lambda request: request.on_failure(info(Reject("x"))), "requeue"),
        (lambda request: request.on_timeout(False, 1), "requeue"),
        (lambda request: request.bury_poison(3, "x"), "worker_lost_later"),
    ],
    ids=["failure", "reject", "timeout", "poison"],
)
def test_a_letter_that_cannot_be_written(
    bench: Bench, request_of: Callable[..., Any], end: Callable[[Any], Any], outcome: str
) -> None:
    """The message goes back, so nothing has failed yet. Of a lost process the caller counts the loss."""
    end(request_of())
    assert bench.outcomes == ({} if outcome == "worker_lost_later" else {outcome: 1})


@pytest.mark.usefixtures("no_letters")
def test_poison_on_arrival_whose_letter_cannot_be_written(bench: Bench, request_of: Callable[..., Any]) -> None:
    """It was never started, and goes back."""
    request_of(accepted=False).bury_poison(3, "x")
    assert bench.outcomes == {"requeue": 1}


def test_poison_on_arrival(bench: Bench, request_of: Callable[..., Any]) -> None:
    """Ended before the pool had it: no run time."""
    request_of(accepted=False).bury_poison(3, "x")
    assert bench.outcomes == {"poison": 1}
    assert bench.hardening.metrics.registry.snapshot()[1].get(TASK_SECONDS, {}) == {}


@pytest.mark.parametrize(("is_sent", "outcome"), [(True, "waited"), (False, "requeue")])
def test_a_suspect_that_could_not_run_alone(
    bench: Bench, request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, is_sent: bool, outcome: str
) -> None:
    """It comes back later, or at once if it cannot be sent again."""
    if not is_sent:

        def refuse(*_: Any, **__: Any) -> None:
            raise ConnectionError("away")

        monkeypatch.setattr("celery_hardened.pipeline.request.publish_again", refuse)
    request_of(accepted=False).come_back(1)
    assert bench.outcomes == {outcome: 1}


def test_superseded_is_recorded_or_waits(
    bench: Bench, request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose REVOKED cannot be written comes back: it has not ended."""
    request = request_of()

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no backend")

    monkeypatch.setattr(request.task.backend, "mark_as_revoked", refuse)
    request.on_failure(info(Superseded("later")))
    assert bench.outcomes == {"waited": 1}


# --- revoked, cancelled, shut down ----------------------------------------------------------------------------------


def test_terminated_is_told_twice_and_counted_once(bench: Bench, request_of: Callable[..., Any]) -> None:
    """By the command, and then by the process that it ended."""
    request = request_of()
    request.terminate(SimpleNamespace(terminate_job=lambda *_: None))
    request.on_failure(info(Terminated(15)))
    assert bench.outcomes == {"terminated": 1}
    assert bench.value(CHILDREN_LOST) == 0


def test_a_greenlet_that_was_terminated(bench: Bench, request_of: Callable[..., Any]) -> None:
    """Its pool calls it a success without a run time, before the command has said what it did."""
    request = request_of()
    request.terminate(SimpleNamespace(terminate_job=lambda *_: request.on_success((False, None, None))))
    assert bench.outcomes == {"terminated": 1}


def test_a_run_that_was_terminated_by_a_killed_process(bench: Bench, request_of: Callable[..., Any]) -> None:
    """Its process is gone because we have ended it."""
    request = request_of()
    request.terminate(SimpleNamespace(terminate_job=lambda *_: None), signal="KILL")
    request.on_failure(info(WorkerLostError("signal 9")))
    assert bench.outcomes == {"terminated": 1}
    assert bench.value(CHILDREN_LOST) == 0


def test_what_is_cancelled_with_its_connection(bench: Bench, request_of: Callable[..., Any]) -> None:
    """Its message comes to another worker: it went back, and no process was lost."""
    request = request_of()
    request.cancel(SimpleNamespace(terminate_job=lambda *_: None), emit_retry=False)
    request.on_failure(info(Terminated(15)))
    assert bench.outcomes == {"requeue": 1}


@pytest.mark.parametrize(
    "end",
    [
        lambda request: request.on_failure(info(WorkerLostError("signal 9"))),
        lambda request: request.on_timeout(False, 1),
        lambda request: request.cancel(SimpleNamespace(terminate_job=lambda *_: None), emit_retry=False),
    ],
    ids=["lost", "timeout", "cancelled"],
)
def test_a_cold_shutdown_ends_nothing(bench: Bench, request_of: Callable[..., Any], end: Callable[[Any], Any]) -> None:
    """What it cuts short goes back and ends elsewhere."""
    request = request_of()
    state.should_terminate = 1
    end(request)
    assert bench.outcomes == {}


def test_what_has_ended_before_a_cold_shutdown_counts(bench: Bench, request_of: Callable[..., Any]) -> None:
    """Its pool process has reported it."""
    request = request_of()
    state.should_terminate = 1
    error = ValueError("x")
    error.hardened_letter = "l"  # type: ignore[attr-defined]
    request.on_success((True, info(error), 0.1))
    assert bench.outcomes == {"failure": 1}


def test_not_started_without_a_lease(bench: Bench, request_of: Callable[..., Any]) -> None:
    """It is another worker's by now. Requests that are not ours are left alone."""
    count_end(request_of(accepted=False), "lease_lost")
    count_end(object(), "lease_lost")
    assert bench.outcomes == {"lease_lost": 1}


# --- waits --------------------------------------------------------------------------------------------------------


def waits(bench: Bench) -> tuple[float, float]:
    """How many, and their sum."""
    cells = bench.hardening.metrics.registry.snapshot()[1].get(TASK_WAIT_SECONDS, {}).get((bench.queue,), [0.0])
    return sum(cells[:-1]), cells[-1]


@pytest.mark.parametrize(
    ("published", "wait", "skewed"),
    [
        (100.0, 100.0, 0),
        (-50.0, 0.0, 1),
        (None, None, 0),
        (float("nan"), None, 0),
        ("soon", None, 0),
        (10**400, None, 0),
    ],
)
def test_how_long_it_waited(
    bench: Bench, request_of: Callable[..., Any], published: Any, wait: float | None, skewed: int
) -> None:
    """From the publish to the start, never less than nothing; a message that does not say so is not counted."""
    request = request_of(accepted=False)
    before = time.time()
    stamp = before - published if isinstance(published, float) else published
    request._request_dict["hardened"] = {"published": stamp}
    request.on_accepted(os.getpid(), time.monotonic())
    stood = time.time() - before  # by so much more it has waited on a machine that stands still meanwhile
    number, total = waits(bench)
    assert number == (0 if wait is None else 1)
    assert (wait or 0.0) - 1 <= total <= (0.0 if wait is None else wait + stood + 1)
    assert bench.value(CLOCK_SKEW) == skewed


def test_a_delayed_message_waits_from_when_it_was_due(bench: Bench, request_of: Callable[..., Any]) -> None:
    """Not from its publish."""
    request = request_of(accepted=False)
    before = time.time()
    request._request_dict["hardened"] = {"published": before - 1000}
    from datetime import datetime, timezone

    request._eta = datetime.fromtimestamp(before - 20, timezone.utc)
    request.on_accepted(os.getpid(), time.monotonic())
    assert 19 <= waits(bench)[1] <= 21 + time.time() - before


# --- the whole way -----------------------------------------------------------------------------------------


def run(bench: Bench, task: Any, *, times: int = 1, forge: Callable[[Any], Any] | None = None) -> None:
    with InProcessWorker(bench.app) as worker:
        if forge is not None:
            take = worker.consumer.task_consumer.on_message

            def on_message(message: Any) -> None:
                forge(message)
                take(message)

            worker.consumer.task_consumer.on_message = on_message
        for _ in range(times):
            task.delay(1)
        worker.run()


def test_a_replay_is_noted_before_its_result(bench: Bench) -> None:
    """The body ran once; who listens is told of the replay; an ordinary task is asked for no note."""
    told: list[str] = []

    def receive(task: str, **_: Any) -> None:
        told.append(task)

    task_replayed.connect(receive)
    try:
        run(bench, bench.task(decorate=idempotent("order")), times=3)
    finally:
        task_replayed.disconnect(receive)
    assert bench.outcomes == {"success": 1, "replayed": 2}
    assert told == ["shop.work"] * 2
    assert bench.value(TASK_SECONDS, "shop.work", "ok") == 1


def test_a_letter_is_counted_when_it_is_new(bench: Bench) -> None:
    """And told of, with the letter."""
    told: list[Any] = []

    def receive(letter: Any, **_: Any) -> None:
        told.append(letter.reason)

    def fail(task: Any) -> None:
        raise ValueError

    task_dead_lettered.connect(receive)
    try:
        run(bench, bench.task(fail))
    finally:
        task_dead_lettered.disconnect(receive)
    assert bench.outcomes == {"failure": 1}
    assert bench.value(DEAD_LETTERS, "shop.work", bench.queue, "permanent") == 1
    assert told == ["permanent"]


def test_what_has_lain_here_for_longer_than_its_lease(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """``refuse_lost`` ends it, and it counts as lost, not as ignored."""
    bench.app.conf.hardened_redis_delivery = "stock"
    monkeypatch.setattr(bench.hardening, "delivery", None)

    def receive(request: Any, **_: Any) -> None:
        request._request_dict["properties"][HANDED] = (os.getpid(), 0.0)

        monkeypatch.setattr(bench.hardening, "delivery", SimpleNamespace(start=lambda tag: False))

    task_received.connect(receive)
    try:
        run(bench, bench.task())
    finally:
        task_received.disconnect(receive)
    assert bench.outcomes == {"lease_lost": 1}


def test_a_lease_that_was_lost_is_counted_and_told(bench: Bench) -> None:
    told: list[str] = []

    def receive(queue: str, **_: Any) -> None:
        told.append(queue)

    bench.hardening.metrics.keep_here()
    lease_lost.connect(receive)
    try:
        report_lost(bench.hardening, SimpleNamespace(tag="t", queue="q"))  # type: ignore[arg-type]
    finally:
        lease_lost.disconnect(receive)
    assert bench.value(LEASES_LOST, "q") == 1
    assert told == ["q"]


def test_counting_that_fails_changes_nothing(
    bench: Bench, request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; the message is acked."""
    request = request_of()

    def refuse(*_: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(bench.hardening.metrics, "inc", refuse)
    request.on_success((False, None, 0.1))
    assert request.acknowledged
    assert "is not counted as it should" in caplog.text


# --- composing -------------------------------------------------------------------------------------------------------


class Own(Request):
    """A project's own, which looks at successes (Celery's class of the task never calls it)."""


def test_the_class_is_built_once_on_the_users_own() -> None:
    """Before the pipeline's, which it looks at; Celery's own tasks get the counting alone."""
    made = compose_counted(Own)
    assert issubclass(made, Own)
    assert compose_counted(made) is made
    assert hasattr(made, "bury_poison")
    plain = compose_counted(Own, hardened=False)
    assert issubclass(plain, CountedRequest)
    assert not hasattr(plain, "_bury")


def test_each_outcome_has_a_way_here() -> None:
    """Those of this file, of the consumer (unknown, malformed) and of revokes are all there are."""
    from typing import get_args

    here = {"success", "failure", "timeout", "retry", "reject", "requeue", "ignore", "superseded", "waited"}
    here |= {"deduplicated", "lease_lost", "worker_lost", "poison", "terminated", "replayed"}
    assert here | {"unknown", "malformed", "revoked", "expired"} == set(get_args(Outcome))
