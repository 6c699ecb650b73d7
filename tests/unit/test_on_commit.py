"""What waits for a commit, apart from any database: how long it is tried, what is left of it, what it answers."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.exceptions import OperationalError

from celery_hardened import HardenedTask, Hardening, deduplicate
from celery_hardened.dead_letter.contract import Query
from celery_hardened.errors import (
    DuplicateTaskError,
    NotSentError,
    PayloadTooLargeError,
    PublishFailedError,
    UnusableKeyError,
)
from celery_hardened.pipeline import on_commit, results
from celery_hardened.pipeline.on_commit import defer, immediately, running_body, tracing
from celery_hardened.pipeline.publisher import Patience, Publisher, UnsentError, wire_of
from celery_hardened.pipeline.results import DeferredResult, Fate, remember
from celery_hardened.pipeline.send import Call
from celery_hardened.pipeline.waiting import Batch, Hook
from tests.support.in_process import InProcessWorker
from tests.support.queued import queued_ids, take_queued
from tests.unit.conftest import MakeApp


class Transaction:
    """Holds hooks as a database connection does."""

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.batch = Batch()

    def hold(self, make: Callable[[Batch], Hook]) -> Hook:
        hook = make(self.batch)
        self.hooks.append(hook)
        return hook

    def commit(self) -> None:
        held, self.hooks = self.hooks, []
        while held:
            held.pop(0)()

    def rollback(self) -> None:
        self.hooks = []


@pytest.fixture
def shop(make_hardened: MakeApp) -> Celery:
    app = make_hardened(hardened_publish_timeout=0.0)

    @app.task(base=HardenedTask, name="shop.charge", log_args=("invoice",), priority=3)
    def charge(invoice: Any = None, note: str = "") -> Any:
        return invoice

    app.finalize()
    return app


@pytest.fixture
def charge(shop: Celery) -> Any:
    return shop.tasks["shop.charge"]


@pytest.fixture
def known(shop: Celery) -> Hardening:
    return Hardening.expect(shop)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Transaction:
    """The transaction that all code of the test is in."""
    transaction = Transaction()
    monkeypatch.setattr(on_commit, "django_transactions", lambda: [transaction])
    return transaction


def call_of(task: Any, *args: Any, **options: Any) -> Call:
    return Call(task, task.name, args, {}, {"task_id": "t1", **options})


# --- whose publish is it ----------------------------------------------------------------------------


def test_places_nest(shop: Celery, charge: Any, inside: Transaction) -> None:
    """The innermost place counts, and leaving it brings the one around it back, after an error too."""
    waits = []
    with tracing():
        waits.append(isinstance(charge.delay(1), DeferredResult))
        with suppress(ZeroDivisionError), running_body():
            waits.append(isinstance(charge.delay(1), DeferredResult))
            with tracing():  # a task run inside a task
                waits.append(isinstance(charge.delay(1), DeferredResult))
            with immediately():
                waits.append(isinstance(charge.delay(1), DeferredResult))
            1 / 0  # noqa: B018
        waits.append(isinstance(charge.delay(1), DeferredResult))
    waits.append(isinstance(charge.delay(1), DeferredResult))

    assert waits == [False, True, False, False, False, True]


def test_what_goes_on_with_the_running_task_never_waits(shop: Celery, charge: Any, inside: Transaction) -> None:
    """A chord that was told of one member more, or a task that takes the running one's place under its id,
    would be waited for in vain after a rollback."""

    waits = []

    @shop.task(base=HardenedTask, name="shop.member", bind=True)
    def member(self: Any) -> None:
        for options in ({"group_id": self.request.group}, {"group_id": "its own"}, {"task_id": self.request.id}, {}):
            waits.append(isinstance(charge.apply_async((1,), **options), DeferredResult))

    member.apply_async(group_id="g1", on_commit=False)
    with InProcessWorker(shop) as worker:
        worker.run()
    assert waits == [False, True, False, True]


def test_it_imports_neither_django_nor_sqlalchemy() -> None:
    """A process without them pays nothing for them, and one that has Django unconfigured is no Django process."""
    program = """if True:
        import sys
        from celery_hardened import HardenedTask, harden
        from celery import Celery
        app = harden(Celery("shop", broker="memory://", set_as_current=False))

        @app.task(base=HardenedTask, name="shop.charge")
        def task(): pass

        task.delay()
        assert not {"django.conf", "django.db", "sqlalchemy"} & set(sys.modules)
        try:
            import django.db
        except ImportError:
            sys.exit()  # an environment without it
        task.delay()
    """
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)


# --- patience ----------------------------------------------------------------------------------------


class Clock:
    """Time as the test has it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, clock=lambda: self.now, sleep=self.sleep)


def test_patience_counts_from_the_first_failure_and_is_shared() -> None:
    """All publishes of one commit wait together, with growing pauses of at most a second."""
    clock = Clock()
    patience = clock.patience(10.0)
    clock.now += 1000.0
    assert not patience.over
    began = clock.now
    while patience.again(OSError()):
        pass
    assert clock.pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(clock.pauses) == 1.0
    assert 9.0 < clock.now - began <= 10.0
    assert not patience.again(OSError())


def test_a_commit_ends_though_every_try_lasts_until_a_timeout(
    known: Hardening, charge: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that swallows packets: a hundred publishes take twice the time limit and one try, not a hundred
    timeouts; all hundred are letters."""
    clock = Clock()
    patience = clock.patience(10.0)
    began, tried = clock.now, []

    def send(call: Call) -> Any:
        tried.append(call.task_id)
        clock.now += 6.0
        raise OperationalError("timed out")

    for number in range(100):
        with pytest.raises(UnsentError):
            Publisher(known).publish(call_of(charge, task_id=f"t{number}"), send, patience)
    assert clock.now - began <= 6.0 + 20.0 + 6.0
    assert len(tried) < 10
    assert known.dead_letters.count(Query(reason="unsent")) == 100
    assert "LOST" not in caplog.text


def test_a_store_of_letters_that_hangs_does_not_hold_a_commit_up_for_ever(
    known: Hardening, charge: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the rest is lines in the log."""
    clock = Clock()
    patience = clock.patience(10.0)

    def hang(_: Any) -> Any:
        clock.now += 4.0
        raise OperationalError("timed out")

    monkeypatch.setattr(known.dead_letters, "put", hang)
    began = clock.now
    for number in range(100):
        with pytest.raises(UnsentError):
            Publisher(known).publish(call_of(charge, task_id=f"t{number}"), _refuse, patience)
    assert clock.now - began <= 20.0 + 10.0 + 4.0
    assert caplog.text.count("LOST") == 100


def test_what_will_not_pass_is_tried_once(known: Hardening, charge: Any) -> None:
    """A mistake in the call is no outage: no time is lost on it."""
    tried = []

    def send(call: Call) -> Any:
        tried.append(call)
        raise ValueError("no such queue")

    with pytest.raises(UnsentError):
        Publisher(known).publish(call_of(charge), send, Patience(60.0))
    assert len(tried) == 1


def test_the_apps_own_patience_does_not_count(known: Hardening, charge: Any) -> None:
    """A publish policy without end would hold up a request without end: each try reconnects at most once."""
    policies = []

    def send(call: Call) -> Any:
        policies.append(call.options["retry_policy"])

    Publisher(known).publish(call_of(charge, retry_policy={"max_retries": None, "errback": "x"}), send, Patience(1.0))
    (policy,) = policies
    assert (policy["max_retries"], policy["errback"]) == (1, "x")


# --- what is left of it ----------------------------------------------------------------------------------


def test_the_message_of_an_unsent_task_is_the_one_celery_would_have_sent(shop: Celery, charge: Any) -> None:
    """Body, headers, priority and queue: compared with what Celery publishes for the same call."""
    due = datetime(2030, 1, 1, tzinfo=timezone.utc)
    signature = charge.s({"when": due}, note="n")
    sent: list[Call] = []
    plain = shop.send_task

    def note(name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        task = options.get("task_type") or shop.tasks[name]
        sent.append(Call(task, name, args, kwargs, dict(options)))
        return plain(name, args, kwargs, **options)

    shop.send_task = note
    signature.apply_async(task_id="t1", eta=due, expires=due + timedelta(1), headers={"x": "1"}, link=charge.s())
    chain(charge.s(1), charge.s()).apply_async()
    group(charge.s(1), charge.s(2)).apply_async()
    chord([charge.s(1)], charge.s()).apply_async()
    charge.apply_async((1,), queue="other", priority=7, shadow="s", time_limit=5, ignore_result=True)
    shop.send_task("shop.charge", (1,), {"note": "x"}, task_id="t2")
    del shop.send_task

    messages = take_queued(shop) + take_queued(shop, "other")
    by_id = {message.headers["id"]: message for message in messages}
    assert len(sent) == len(by_id) == 7
    known = Hardening.expect(shop)
    for call in sent:
        if not call.options.get("task_id"):
            call.options["task_id"] = next(iter(set(by_id) - {one.options.get("task_id") for one in sent}))
        message = by_id[call.options["task_id"]]
        wire = wire_of(known, call)
        assert wire.body == message.body.encode() if isinstance(message.body, str) else message.body
        by_name = call.options["task_id"] == "t2"
        assert _telling(wire.headers, by_name=by_name) == _telling(message.headers, by_name=by_name)
        assert (wire.content_type, wire.content_encoding) == (message.content_type, message.content_encoding)
        assert by_name or wire.properties["priority"] == message.properties["priority"]
        assert wire.properties["correlation_id"] == message.properties["correlation_id"]
        assert wire.queue == ("other" if call.options.get("queue") == "other" else shop.conf.task_default_queue)


def _telling(headers: Any, *, by_name: bool) -> dict[str, Any]:
    """Headers without the clock, and without what Celery 5.6 does not look up for a task sent by name."""
    mark = headers["hardened"]
    assert mark["published"] == mark["first_published"]
    left_out = {"hardened", "compression"} | ({"timelimit", "ignore_result"} if by_name else set())
    return {name: value for name, value in headers.items() if name not in left_out}


def test_an_unsent_task_is_redriven(
    shop: Celery, charge: Any, known: Hardening, inside: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead letter ``unsent`` holds all that is needed: a redrive sends it, and it runs under its own id."""
    monkeypatch.setitem(shop.amqp.__dict__, "send_task_message", _refuse)
    result = charge.apply_async(("i-1",), link=charge.s())
    with pytest.raises(PublishFailedError):
        inside.commit()
    monkeypatch.undo()

    report = known.redrive(Query(reason="unsent"), by="me", why="the broker is back")
    assert report.sent == 1
    with InProcessWorker(shop) as worker:
        worker.run()
    assert shop.AsyncResult(result.id).get(timeout=10) == "i-1"
    assert worker.seen[0].headers["id"] == result.id
    assert len(worker.seen) == 2  # its callback too


def _refuse(*_: Any, **__: Any) -> Any:
    raise OperationalError("refused")


def test_a_letter_that_cannot_be_written_is_a_line_in_the_log(
    shop: Celery,
    charge: Any,
    known: Hardening,
    inside: Transaction,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The last place left says what is lost, by name and id, and without its arguments."""
    monkeypatch.setitem(shop.amqp.__dict__, "send_task_message", _refuse)
    monkeypatch.setattr(known.dead_letters, "put", _refuse)
    result = charge.delay("i-1", note="a secret")
    with pytest.raises(PublishFailedError):
        inside.commit()

    (record,) = [one for one in caplog.records if one.levelno == logging.CRITICAL]
    assert "LOST" in record.getMessage()
    assert (record.task, record.task_id, record.arg_invoice) == ("shop.charge", result.id, "i-1")  # type: ignore[attr-defined]
    assert "a secret" not in caplog.text


def test_an_interruption_is_said(
    shop: Celery, charge: Any, inside: Transaction, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C after the commit is not swallowed, and the log names what it kept from being sent."""

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setitem(shop.amqp.__dict__, "send_task_message", interrupt)
    ids = [charge.delay(number).id for number in range(2)]
    with pytest.raises(KeyboardInterrupt):
        inside.commit()
    (record,) = [one for one in caplog.records if one.levelno == logging.CRITICAL]
    assert all(one in record.getMessage() for one in ids)


# --- what it answers ------------------------------------------------------------------------------------


def test_a_duplicate_at_the_commit(charge: Any, known: Hardening, caplog: pytest.LogCaptureFixture) -> None:
    """Refused by ``@deduplicate`` after the commit: a line; the result says whose twin it is."""
    transaction = Transaction()

    def send(call: Call) -> Any:
        raise DuplicateTaskError("shop.charge", "first")

    result = defer(known, call_of(charge), send, [transaction])
    transaction.commit()
    assert "first" in caplog.text
    with pytest.raises(DuplicateTaskError):
        result.get(timeout=1)


def test_a_duplicate_that_is_dropped_at_the_commit(charge: Any, known: Hardening) -> None:
    """``on_duplicate="drop"``: who asks for the result is told rather than left waiting."""
    transaction = Transaction()
    result = defer(known, call_of(charge), lambda call: None, [transaction])
    transaction.commit()
    with pytest.raises(DuplicateTaskError):
        result.get(timeout=1)


def test_a_twin_leads_to_the_first_task(shop: Celery, charge: Any, known: Hardening) -> None:
    """``on_duplicate="return"`` after the commit: the id becomes the first task's."""
    transaction = Transaction()
    result = defer(known, call_of(charge), lambda call: shop.AsyncResult("first"), [transaction])
    assert result.id == "t1"
    transaction.commit()
    assert result.id == "first"
    shop.backend.store_result("first", "done", "SUCCESS")
    assert result.get(timeout=10) == "done"


def test_it_waits_for_all_transactions(shop: Celery, charge: Any, known: Hardening) -> None:
    """In any order; one that rolls back ends it, and it is told apart from one that is still open."""
    for order in ((0, 1), (1, 0)):
        both = [Transaction(), Transaction()]
        sent: list[Call] = []

        def send(call: Call, sent: list[Call] = sent) -> Any:
            sent.append(call)
            return shop.AsyncResult("t1")

        result = defer(known, call_of(charge), send, both)
        both[order[0]].commit()
        assert sent == []
        with pytest.raises(NotSentError) as refused:
            result.get(timeout=1)
        assert not refused.value.rolled_back
        both[order[1]].commit()
        assert len(sent) == 1

        result = defer(known, call_of(charge), send, both)
        both[order[0]].rollback()
        both[order[1]].commit()
        assert len(sent) == 1
        with pytest.raises(NotSentError) as refused:
            result.get(timeout=1)
        assert refused.value.rolled_back


def test_results_of_workflows_and_of_ids_say_it_too(shop: Celery, charge: Any, inside: Transaction) -> None:
    """Members of a group, a chord's body, the end of a chain, a result made of the id: none waits for ever."""
    unsent = [
        group(charge.s(1), charge.s(2)).apply_async(),
        chord([charge.s(1), charge.s(2)], charge.s()).apply_async(),
        chain(charge.s(1), charge.s(), group(charge.s(), charge.s())).apply_async(),
        shop.AsyncResult(charge.delay(1).id),
    ]
    for result in unsent:
        with pytest.raises(NotSentError):
            result.get(timeout=1)
    for result in unsent[:1]:
        for wait in (result.join, result.join_native):
            with pytest.raises(NotSentError):
                wait(timeout=1)
    inside.commit()
    for result in unsent:
        with pytest.raises(CeleryTimeoutError):
            result.get(timeout=0.1)
    with InProcessWorker(shop) as worker:
        worker.run()
    assert unsent[0].get(timeout=10) == [1, 2]
    assert unsent[3].get(timeout=10) == 1


def test_what_was_rolled_back_is_known_for_a_while(shop: Celery, charge: Any, inside: Transaction) -> None:
    """A group that never will be sent says so, and what a process remembers is bounded."""
    result = group(charge.s(1), charge.s(2)).apply_async()
    inside.rollback()
    with pytest.raises(NotSentError) as refused:
        result.get(timeout=1)
    assert refused.value.rolled_back
    for number in range(10_000):
        remember(Fate("shop.charge", str(number)))
    assert len(results._fates) == 10_000
    results._fates.clear()


def test_an_ignored_result_is_ignored(shop: Celery, charge: Any, known: Hardening) -> None:
    """As with Celery ``get()`` of a task without results answers ``None`` once it is sent."""
    transaction = Transaction()
    result = defer(known, call_of(charge, ignore_result=True), lambda call: shop.AsyncResult("t1"), [transaction])
    assert result.ignored
    transaction.commit()
    assert result.get() is None


# --- what is kept of the call ----------------------------------------------------------------------------


def test_too_large_a_call_fails_where_it_is_made(make_hardened: MakeApp, inside: Transaction) -> None:
    """Not after the commit, where nothing can be rolled back any more."""
    app = make_hardened(hardened_payload_max=2048, hardened_payload_threshold=1024)

    @app.task(base=HardenedTask, name="shop.charge")
    def task(text: str) -> None: ...

    app.finalize()
    with pytest.raises(PayloadTooLargeError):
        task.delay("x" * 3000)
    assert inside.hooks == []


def test_a_call_without_a_usable_key_fails_where_it_is_made(shop: Celery, inside: Transaction) -> None:
    """The key is taken after the commit, and an error there would come too late."""

    @shop.task(base=HardenedTask, name="shop.once")
    @deduplicate(key="{order[id]}")
    def once(order: dict[str, Any]) -> None: ...

    once.delay({"id": 1})
    with pytest.raises(UnusableKeyError):
        once.delay({})
    assert len(inside.hooks) == 1


def test_a_connection_of_the_callers_is_not_kept(shop: Celery, charge: Any, inside: Transaction) -> None:
    """It may be closed by then. To the app's own broker the pool's is used, to another one a copy."""
    with shop.connection_for_write() as own, shop.connection_for_write("memory://elsewhere") as other:
        charge.apply_async((1,), connection=own)
        charge.apply_async((2,), producer=shop.amqp.Producer(own))
        charge.apply_async((3,), connection=other)
    first, second, third = (hook.waiting.call.options for hook in inside.hooks)
    for options in (first, second):
        assert not {"connection", "producer", "publisher"} & set(options)
    assert third["connection"] is not other
    assert third["connection"].as_uri() == other.as_uri()
    inside.commit()
    assert len(queued_ids(shop)) == 3
    assert not third["connection"].connected


def test_the_parent_is_the_task_that_called(shop: Celery, charge: Any, inside: Transaction) -> None:
    """Root and parent are those of the call, though the commit comes when that task has ended."""

    @shop.task(base=HardenedTask, name="shop.inner", bind=True)
    def inner(self: Any) -> str:
        with running_body():
            charge.delay(1)
        return str(self.request.id)

    parent = inner.apply(task_id="p1")
    assert parent.result == "p1"
    inside.commit()
    (message,) = take_queued(shop)
    assert (message.headers["parent_id"], message.headers["root_id"]) == ("p1", "p1")
