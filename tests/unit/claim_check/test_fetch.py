"""What a start gets, what a retry sends, what a message finds that comes back; dead letters, age, results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery, signals
from kombu.exceptions import OperationalError

from celery_hardened import HardenedTask, Hardening, Query, StoreUnavailableError, harden, idempotent
from celery_hardened.pipeline import payload
from celery_hardened.pipeline.fetch import NOTHING, Running, running
from tests.support.in_process import InProcessWorker
from tests.unit.claim_check.conftest import LARGE, Store, again, letters, reference, unzipped
from tests.unit.conftest import MakeApp


def test_hooks_and_signals_see_the_arguments(
    app: Celery, worker: InProcessWorker, store: Store, ran: list[Any]
) -> None:
    """A hook that reads an argument must not fail on large calls alone."""
    seen: list[Any] = []

    class Noting(HardenedTask):
        abstract = True

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            seen.append(("on_success", list(args), dict(kwargs)))

    @app.task(base=Noting, bind=True, shared=False, name="noting")
    def noting(self: Any, invoice: str, note: str) -> None:
        seen.append(("body", list(self.request.args), dict(self.request.kwargs)))

    def postrun(args: Any, kwargs: Any, **_: Any) -> None:
        seen.append(("postrun", list(args), dict(kwargs)))

    worker.consumer.update_strategies()
    signals.task_postrun.connect(postrun)
    try:
        noting.delay("i-1", note=LARGE)
        worker.run()
    finally:
        signals.task_postrun.disconnect(postrun)
    real = (["i-1"], {"note": LARGE})
    assert seen == [("body", *real), ("on_success", *real), ("postrun", *real)]


def test_a_tasks_own_call_gets_the_arguments(app: Celery, worker: InProcessWorker, store: Store) -> None:
    """Whether it goes on to Celery's or straight to run; and a retry from there sends the reference."""
    seen: list[Any] = []

    class Own(HardenedTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append((args, kwargs))
            return super().__call__(*args, **kwargs)

    @app.task(base=Own, bind=True, shared=False, name="own")
    def own(self: Any, invoice: str, note: str) -> None:
        if not self.request.retries:
            raise self.retry(countdown=0)

    worker.consumer.update_strategies()
    own.delay("i-1", note=LARGE)
    worker.run()
    assert seen == [(("i-1",), {"note": LARGE})] * 2
    assert len(store.names("put")) == 1


def test_a_retry_sends_the_reference_again(worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]) -> None:
    """No second upload; and only the attempt that succeeds ends the payload."""
    charge.fails.extend([ConnectionError(), ConnectionError()])
    result = charge.delay("i-1", note=LARGE)
    worker.step()
    worker.step()
    assert store.names("finish") == []
    worker.run()
    assert ran == [("i-1", LARGE, "a")] * 3
    assert result.result == "i-1"
    assert len(store.names("put")) == len(store.names("finish")) == 1
    assert len({reference(message)["name"] for message in worker.seen}) == 1
    assert {message.headers["argsrepr"] for message in worker.seen} == {"(invoice='i-1')"}


@pytest.mark.parametrize(
    ("new", "then"),
    [
        ({}, ("i-1", LARGE, "a")),
        ({"args": ("i-2",)}, ("i-2", LARGE, "a")),
        ({"kwargs": {"note": "short"}}, ("i-1", "short", "a")),
        ({"args": ("i-2", LARGE + "y"), "kwargs": {}}, ("i-2", LARGE + "y", "a")),
    ],
    ids=["none", "args", "kwargs", "both"],
)
def test_an_explicit_retry(
    app: Celery, worker: InProcessWorker, store: Store, ran: list[Any], new: dict[str, Any], then: Any
) -> None:
    """With new arguments in place of the old ones, as in Celery: what is not given stays what it was."""

    @app.task(base=HardenedTask, bind=True, shared=False, name="again")
    def again(self: Any, invoice: str, note: str = "", kind: str = "a") -> None:
        ran.append((invoice, note, kind))
        if not self.request.retries:
            raise self.retry(countdown=0, **new)

    worker.consumer.update_strategies()
    again.delay("i-1", note=LARGE)
    assert worker.run() == 2
    assert ran == [("i-1", LARGE, "a"), then]
    assert len(store.names("put")) == 1 + (len(str(then)) > 5000 and bool(new))


def test_a_message_that_comes_back_after_its_end_ends(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    """Killed between the removal and the ack: it is no missing payload, and the body is not run again."""
    result = charge.delay("i-1", note=LARGE)
    worker.run()
    again(app, worker.seen[0])
    assert worker.run() == 1
    assert len(ran) == 1
    assert letters(app) == []
    assert worker.unacked == 0
    assert result.result == "i-1"


def test_a_message_that_comes_back_before_its_end_runs(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed anywhere before, or the store was away at the end: the payload is still there."""

    def away(name: str, *, max_age: float) -> None:
        raise StoreUnavailableError("ending a payload", "refused")

    charge.delay("i-1", note=LARGE)
    with monkeypatch.context() as patched:
        patched.setattr(store, "finish", away)
        worker.run()
    again(app, worker.seen[0])
    worker.run()
    assert ran == [("i-1", LARGE, "a")] * 2
    assert store.alive == []


def test_nothing_is_removed_while_something_is_still_to_be_sent(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback of a task that succeeded cannot be published: it must be able to run again."""
    charge.apply_async(["i-1", LARGE], link=charge.si("after"))
    sender = app.amqp.send_task_message

    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("refused")

    monkeypatch.setitem(app.amqp.__dict__, "send_task_message", refuse)
    worker.step()
    monkeypatch.setitem(app.amqp.__dict__, "send_task_message", sender)
    assert store.names("finish") == []
    assert len(store.alive) == 1


@pytest.mark.parametrize(
    ("succeeds", "by_ignore", "gone"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_which_end_is_one(app: Celery, store: Store, succeeds: bool, by_ignore: bool, gone: bool) -> None:
    """Success, and an Ignore of the task's own (``replace`` is one); not a failure, a retry, or what comes back."""
    hardening = Hardening.expect(app)
    store.put("a" * 32, b"data", max_age=1)

    def trace() -> Any:
        assert running.get() is NOTHING
        running.set(Running(hardening, ["a" * 32]))
        if by_ignore:
            payload.ended()
        return None, None if succeeds else object(), 0.1, None

    payload.tracing(trace)()
    assert (store.alive == []) is gone
    assert running.get() is None


def test_a_task_that_replaces_itself_has_ended(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    """Its message is acked; what takes its place has a payload of its own."""

    @app.task(base=HardenedTask, bind=True, shared=False, name="replaced")
    def replaced(self: Any, note: str) -> None:
        raise self.replace(charge.si("i-1", note=note + "y"))

    worker.consumer.update_strategies()
    replaced.delay(LARGE)
    worker.run()
    assert ran == [("i-1", LARGE + "y", "a")]
    assert len(store.names("put")) == 2
    assert store.alive == []


def test_a_store_that_fails_at_the_end_fails_no_task(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its library raises: the work is done, and age removes the rest."""

    def refuse(name: str, *, max_age: float) -> None:
        raise RuntimeError("no words")

    monkeypatch.setattr(store, "finish", refuse)
    result = charge.delay("i-1", note=LARGE)
    worker.run()
    assert result.state == "SUCCESS"
    assert letters(app) == []


def test_a_dead_letter_keeps_its_payload_and_a_redrive_runs(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    charge.fails.append(ValueError("broken"))
    charge.delay("i-1", note=LARGE)
    worker.run()
    name = store.names("put")[0]
    assert store.alive == store.names("keep") == [name]
    (letter,) = letters(app)
    assert letter.log_args == {"invoice": "i-1"}
    Hardening.expect(app).redrive(Query(), by="test", why="fixed")
    assert worker.run() == 1
    assert ran == [("i-1", LARGE, "a")] * 2
    assert store.names("finish") == [name]


def test_discard_removes_a_payload_inside_a_payload(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any
) -> None:
    """A chain's large result over a link with large arguments of its own; what cannot be read stays to its age."""
    work = charge.s("first" + LARGE) | charge.s("second" + LARGE)
    for number, left in enumerate((0, 1)):
        work.delay()
        worker.step()
        charge.fails.append(ValueError("broken"))
        worker.run()
        assert len(store.alive) == 2
        if left:
            store._kept[store.names("put")[-1]] = (b"damaged", 0.0)
        Hardening.expect(app).discard([letters(app)[0].id], by="test", why=f"no use {number}")
        assert len(store.alive) == left


def test_discard_removes_the_payloads(app: Celery, worker: InProcessWorker, store: Store, charge: Any) -> None:
    """Its own, one inside it, and those of the rest of its chain; those of callbacks may be others' too."""
    charge.fails.append(ValueError("broken"))
    link = charge.si("callback" + LARGE)
    work = charge.s("first" + LARGE) | charge.si("second" + LARGE) | charge.si("third" + LARGE)
    work.apply_async(link_error=link)
    worker.step()
    shared = [name for name in store.alive if b"callback" in unzipped(store, name)]
    assert len(store.alive) == 3 + len(shared)
    hardening = Hardening.expect(app)
    assert hardening.discard([letter.id for letter in letters(app)], by="test", why="no use") == 1
    assert store.alive == shared


def test_a_sweep_now_and_then(app: Celery, store: Store, charge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most once an hour and process, whatever the upkeep asks; what is too old goes."""
    hardening = Hardening.expect(app)
    charge.delay(LARGE)
    swept: list[float] = []
    monkeypatch.setattr(payload, "sweep_now", lambda one: swept.append(now[0]))
    monkeypatch.setattr(
        "threading.Thread", lambda target, args, **_: type("T", (), {"start": lambda s: target(*args)})()
    )
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for _ in range(300):
        payload.sweep(hardening)
        now[0] += 60
    assert len(swept) == 5
    assert swept[0] <= 1660


def test_what_is_too_old_is_removed(app: Celery, store: Store, charge: Any) -> None:
    hardening = Hardening.expect(app)
    charge.delay(LARGE)
    assert payload.sweep_now(hardening) == 0
    (name,) = store.alive
    data, since = store._kept[name]
    store._kept[name] = (data, since - hardening.settings.kept_for - 1)
    assert payload.sweep_now(hardening) == 1


def test_results_that_are_too_large_for_a_record(app: Celery, store: Store, make_app: MakeApp) -> None:
    hardening = Hardening.expect(app)
    found = payload.store_result(hardening, LARGE.encode(), max_age=100)
    assert json.loads(json.dumps(found)) == found
    assert payload.load_result(hardening, "charge", found) == LARGE.encode()
    assert payload.store_result(hardening, b"x" * 100_001, max_age=100) is None
    without = Hardening.expect(harden(make_app()))
    assert payload.store_result(without, b"data", max_age=100) is None


def test_a_large_result_of_finished_work_is_replayed(
    app: Celery, worker: InProcessWorker, store: Store, ran: list[Any]
) -> None:
    """The record of finished work holds the reference; the second task gets the whole result."""

    @app.task(base=HardenedTask, shared=False, name="render")
    @idempotent("invoice")
    def render(invoice: str) -> str:
        ran.append(invoice)
        return LARGE * 14

    worker.consumer.update_strategies()
    results = [render.delay("i-1"), render.delay("i-1")]
    worker.run()
    assert ran == ["i-1"]
    assert [one.result for one in results] == [LARGE * 14] * 2
    assert len(store.names("put")) == 1
