"""Eager tasks go through the same attempts, hooks and letters as in a worker, without sleeping and without Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from celery import Celery, Task, chain, chord, group, signals
from celery.exceptions import Ignore, Reject

from celery_hardened import DeadLetter, HardenedTask, Hardening, Query
from tests.support.in_process import InProcessWorker, outcomes
from tests.unit.conftest import MakeApp


class UnpicklableError(Exception):
    """Neither pickled nor rebuilt."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__("cannot be rebuilt")
        self.lock = lambda: one


class Hooked(HardenedTask):
    """Notes every hook Celery calls."""

    abstract = True
    calls: list[str] = []

    def before_start(self, *args: Any) -> None:
        self.calls.append("before_start")

    def on_success(self, *args: Any) -> None:
        self.calls.append("on_success")

    def on_retry(self, exc: BaseException, *args: Any) -> None:
        self.calls.append(f"on_retry {type(exc).__name__}")

    def on_failure(self, exc: BaseException, *args: Any) -> None:
        self.calls.append(f"on_failure {type(exc).__name__}")

    def after_return(self, status: str, *args: Any) -> None:
        self.calls.append(f"after_return {status}")


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may sleep."""

    sleep = time.sleep

    def refuse(seconds: float) -> None:
        # The memory transport polls; and threads that other tests have left are no business of these.
        assert seconds < 0.05 or threading.current_thread() is not threading.main_thread(), f"slept {seconds} s"
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", refuse)
    Hooked.calls.clear()


def letters(app: Celery) -> list[DeadLetter]:
    """Oldest first."""
    found = Hardening.expect(app).eager_dead_letters.find(Query(), limit=100).letters
    return [stored.letter for stored in found][::-1]


Call: TypeAlias = Callable[..., Any]


def in_worker(task: Any, *args: Any) -> Any:
    with InProcessWorker(task.app) as worker:
        result = task.delay(*args)
        worker.run()
        return result


#: Every way to run a task eagerly, and whether it is to throw; and a worker, to compare with.
WAYS: list[tuple[str, dict[str, Any], Call, bool]] = [
    ("apply", {}, lambda task, *args: task.apply(args), False),
    ("apply throw", {}, lambda task, *args: task.apply(args, throw=True), True),
    ("apply propagates", {"task_eager_propagates": True}, lambda task, *args: task.apply(args), True),
    ("apply quiet", {"task_eager_propagates": True}, lambda task, *args: task.apply(args, throw=False), False),
    ("delay", {"task_always_eager": True}, lambda task, *args: task.delay(*args), False),
    (
        "delay propagates",
        {"task_always_eager": True, "task_eager_propagates": True},
        lambda task, *args: task.delay(*args),
        True,
    ),
    ("signature", {}, lambda task, *args: task.si(*args).apply(), False),
    ("signature throw", {}, lambda task, *args: task.si(*args).apply(throw=True), True),
    ("worker", {}, in_worker, False),
]
each_way = pytest.mark.parametrize(
    ("conf", "call", "throws"), [way[1:] for way in WAYS], ids=[way[0].replace(" ", "-") for way in WAYS]
)


@each_way
def test_a_transient_error_is_retried_to_the_end(
    make_hardened: MakeApp, conf: dict[str, Any], call: Call, throws: bool
) -> None:
    """
    All attempts with their hooks and one signal each, then the exception of the last one,
    the very object where it is thrown, and one letter that tells all attempts.
    """
    app = make_hardened(**conf)
    errors = []

    @app.task(base=Hooked, shared=False, name="charge", max_retries=2)
    def charge(amount: int) -> None:
        errors.append(ConnectionError(f"gateway down {len(errors)}"))
        raise errors[-1]

    with outcomes() as noted:
        if throws:
            with pytest.raises(ConnectionError) as raised:
                call(charge, 7)
            assert raised.value is errors[-1]
        else:
            result = call(charge, 7)
            assert (result.state, str(result.result)) == ("FAILURE", "gateway down 2")
            assert result.traceback

    assert len(errors) == 3
    assert noted == ["retry", "retry", "failure"]
    retry = ["before_start", "on_retry ConnectionError"]
    assert Hooked.calls == [*retry, *retry, "before_start", "on_failure ConnectionError", "after_return FAILURE"]
    (letter,) = letters(app)
    assert (letter.reason, letter.attempt, len(letter.attempts)) == ("exhausted", 2, 3)
    assert letter.error_message == "gateway down 2"


@each_way
def test_success_at_last(make_hardened: MakeApp, conf: dict[str, Any], call: Call, throws: bool) -> None:
    """Two failures and a success: the result is the value, there is no letter."""
    app = make_hardened(**conf)
    tries = []

    @app.task(bind=True, base=Hooked, shared=False, name="charge")
    def charge(self: Any) -> str:
        tries.append(self.request.retries)
        if len(tries) < 3:
            raise ConnectionError("gateway down")
        return "charged"

    with outcomes() as noted:
        result = call(charge)
    assert (result.state, result.result, result.get()) == ("SUCCESS", "charged", "charged")
    assert noted == ["retry", "retry", "success"]
    assert tries == [0, 1, 2]
    assert Hooked.calls[-3:] == ["before_start", "on_success", "after_return SUCCESS"]
    assert letters(app) == []


@each_way
def test_a_permanent_error_fails_at_once(
    make_hardened: MakeApp, conf: dict[str, Any], call: Call, throws: bool
) -> None:
    """Also one that cannot be pickled: the caller sees the very object."""
    app = make_hardened(**conf)
    error = UnpicklableError(object(), 2)

    @app.task(base=Hooked, shared=False, name="charge")
    def charge() -> None:
        raise error

    with outcomes() as noted:
        if throws:
            with pytest.raises(UnpicklableError) as raised:
                call(charge)
            assert raised.value is error
        else:
            assert call(charge).state == "FAILURE"
    assert noted == ["failure"]
    (letter,) = letters(app)
    assert (letter.reason, letter.error_type) == ("permanent", "tests.unit.test_eager.UnpicklableError")


def test_an_error_that_is_not_the_tasks_own(make_hardened: MakeApp) -> None:
    """A task that swallows what another one failed with, and then fails itself, raises its own error."""
    app = make_hardened(task_eager_propagates=True)

    @app.task(shared=False, name="contained", base=Task)
    def contained() -> None:
        raise LookupError("theirs")

    @app.task(base=HardenedTask, shared=False, name="hardened")
    def hardened() -> None:
        raise LookupError("theirs, too")

    @app.task(base=HardenedTask, shared=False, name="outer")
    def outer() -> None:
        contained.apply(throw=False)
        hardened.apply(throw=False)
        with pytest.raises(LookupError, match="too"):
            hardened.apply()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        outer.apply()
    assert [letter.task for letter in letters(app)] == ["contained", "hardened", "hardened", "outer"]


def test_an_inner_retry_keeps_to_its_own_rule(make_hardened: MakeApp) -> None:
    """throw=False of the outer task says nothing of the tasks it calls."""
    app = make_hardened(task_eager_propagates=True)

    @app.task(base=HardenedTask, shared=False, name="inner", max_retries=1)
    def inner() -> None:
        raise ConnectionError("gateway down")

    @app.task(base=HardenedTask, shared=False, name="outer")
    def outer() -> str:
        with pytest.raises(ConnectionError):
            inner.apply()
        return "went on"

    assert outer.apply(throw=False).result == "went on"


# --- retry() ------------------------------------------------------------------------------------------


@each_way
def test_explicit_retries(make_hardened: MakeApp, conf: dict[str, Any], call: Call, throws: bool) -> None:
    """Long countdowns are not slept; max_retries counts; the error given is the error raised."""
    app = make_hardened(**conf)
    error = LookupError("as I said")
    tries = []

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any) -> None:
        tries.append(self.request.retries)
        raise self.retry(exc=error, countdown=86_400, max_retries=3)

    with outcomes() as noted:
        if throws:
            with pytest.raises(LookupError) as raised:
                call(charge)
            assert raised.value is error
        else:
            assert call(charge).state == "FAILURE"
    assert tries == [0, 1, 2, 3]
    assert noted == ["retry"] * 3 + ["failure"]
    assert [letter.reason for letter in letters(app)] == ["exhausted"]


def test_retry_without_an_error(app: Celery) -> None:
    """What comes after the last one is MaxRetriesExceededError, without the arguments in its words."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", max_retries=1)
    def charge(self: Any, card: str) -> None:
        self.retry()

    card = "4111-1111-1111-1111"  # the words hold the task's id, in which its first digits alone may be
    result = charge.apply((card,))
    assert isinstance(result.result, charge.MaxRetriesExceededError)
    assert card not in str(result.result)
    (letter,) = letters(app)
    assert letter.reason == "exhausted"


@pytest.mark.parametrize("then", ["return", "raise"])
def test_retry_without_throw(app: Celery, then: str) -> None:
    """retry(throw=False) is a retry, whatever the body does next: no SUCCESS, no failure, no second retry."""
    tries = []

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any) -> str:
        tries.append(self.request.retries)
        if len(tries) < 3:
            self.retry(throw=False)
            if then == "raise":
                raise ValueError("after that")
        return "charged"

    with outcomes() as noted:
        assert charge.apply().result == "charged"
    assert noted == ["retry", "retry", "success"]
    assert tries == [0, 1, 2]
    assert letters(app) == []


# --- the horizon ---------------------------------------------------------------------------------------


def test_a_horizon_ends_it(app: Celery) -> None:
    """max_retries=None and retry_for: the clock of an eager task moves by the delays it skips."""
    tries = []

    @app.task(
        base=HardenedTask,
        shared=False,
        name="charge",
        max_retries=None,
        retry_for=timedelta(minutes=10),
        retry_jitter=False,
        retry_backoff=60,
        retry_backoff_max=60,
    )
    def charge() -> None:
        tries.append(1)
        assert len(tries) < 30, "it never ends"
        raise ConnectionError("gateway down")

    assert charge.apply().state == "FAILURE"
    (letter,) = letters(app)
    assert letter.reason == "expired_horizon"
    # Ten waits of a minute fit into ten minutes, if the attempts themselves take no time.
    assert len(tries) in (10, 11)


def test_an_explicit_countdown_is_not_cut_by_the_horizon(app: Celery) -> None:
    tries = []

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", retry_for=60, max_retries=3)
    def charge(self: Any) -> str:
        tries.append(1)
        if len(tries) < 4:
            raise self.retry(countdown=3600)
        return "charged"

    assert charge.apply().result == "charged"


# --- how else a task may end ----------------------------------------------------------------------------


def test_every_other_end(app: Celery) -> None:
    """Ignore is no letter; Reject, SystemExit, MemoryError and bad arguments are one, and the caller lives."""

    @app.task(base=HardenedTask, shared=False, name="charge")
    def charge(what: str) -> None:
        raise {
            "ignore": Ignore(),
            "reject": Reject("no", requeue=False),
            "exit": SystemExit(3),
            "memory": MemoryError("64 GiB"),
        }[what]

    states = {what: charge.apply((what,)).state for what in ("ignore", "reject", "exit", "memory")}
    assert charge.apply(("too", "many")).state == "FAILURE"
    assert states == {"ignore": "IGNORED", "reject": "REJECTED", "exit": "FAILURE", "memory": "FAILURE"}
    assert [(letter.reason, letter.error_type.rpartition(".")[2]) for letter in letters(app)] == [
        ("rejected", "Reject"),
        ("permanent", "TaskExitError"),
        ("permanent", "TaskMemoryError"),
        ("permanent", "TypeError"),
    ]


def test_an_interrupt_of_the_caller_stays_one(app: Celery) -> None:
    """Ctrl-C in a test run is not the task's failure."""

    @app.task(base=HardenedTask, shared=False, name="charge")
    def charge() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        charge.apply()
    assert letters(app) == []


@pytest.mark.parametrize("base", [HardenedTask, Task])
def test_arguments_that_no_message_could_carry(app: Celery, base: type) -> None:
    """apply() takes any object. The task's own error is what comes out, and the letter shows what they looked like."""

    class Order:
        def __repr__(self) -> str:
            return "<Order 7>"

    @app.task(base=base, shared=False, name="charge")
    def charge(order: Order, note: str) -> None:
        raise LookupError("no such order")

    assert isinstance(charge.apply((Order(),), {"note": "n"}).result, LookupError)
    (letter,) = letters(app)
    assert (letter.error_type, letter.reason) == ("LookupError", "permanent")
    assert b"<Order 7>" in letter.body


def test_letters_name_task_arguments_and_attempts(app: Celery) -> None:
    """As of a real message: body, headers, allow-listed arguments, when and where each attempt failed."""

    @app.task(base=HardenedTask, shared=False, name="charge", max_retries=1, log_args=("invoice",))
    def charge(invoice: str, card: str) -> None:
        raise ConnectionError("gateway down")

    result = charge.apply(("i1",), {"card": "4111"})
    (letter,) = letters(app)
    assert (letter.task, letter.task_id, dict(letter.log_args)) == ("charge", result.id, {"invoice": "i1"})
    assert (
        letter.body
        == b'[["i1"], {"card": "4111"}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
    )
    assert [attempt.error for attempt in letter.attempts] == ["ConnectionError", "ConnectionError"]
    assert letter.first_failed <= letter.last_failed


def test_letters_go_to_the_in_memory_store_whatever_the_store(make_hardened: MakeApp) -> None:
    """With a Redis store and no Redis anywhere."""
    app = make_hardened(hardened_dead_letter_store="redis", broker="redis://nowhere.invalid/0")

    @app.task(base=HardenedTask, shared=False, name="charge", max_retries=1)
    def charge() -> None:
        raise ConnectionError("gateway down")

    assert charge.apply().state == "FAILURE"
    assert len(letters(app)) == 1


def test_contained_tasks_are_celery_s(make_hardened: MakeApp) -> None:
    """apply(throw=True) lets Celery's first Retry out, as stock does; a failure is a letter."""
    app = make_hardened()

    @app.task(base=Task, shared=False, name="plain", autoretry_for=(ConnectionError,), default_retry_delay=0)
    def plain(error: str) -> None:
        raise ConnectionError(error)

    with pytest.raises(Exception, match="Retry"):
        plain.apply(("x",), throw=True)
    assert letters(app) == []
    assert plain.apply(("x",)).state == "FAILURE"
    assert [letter.reason for letter in letters(app)] == ["exhausted"]


def test_a_dry_run_is_stock(make_hardened: MakeApp) -> None:
    """hardened_observe: one attempt, no letter, the error as Celery gives it."""
    app = make_hardened(hardened_observe=True)

    @app.task(base=HardenedTask, shared=False, name="charge")
    def charge() -> None:
        raise ConnectionError("gateway down")

    with outcomes() as noted:
        assert charge.apply().state == "FAILURE"
        with pytest.raises(ConnectionError):
            charge.apply(throw=True)
    assert noted == ["failure", "failure"]
    assert letters(app) == []


# --- canvas ----------------------------------------------------------------------------------------------


@pytest.fixture
def flaky(make_hardened: MakeApp) -> Any:
    """A hardened task of an always-eager app: fails twice a value, then gives it back; 0 fails for good."""
    app = make_hardened(task_always_eager=True)
    tries: dict[int, int] = {}

    @app.task(base=HardenedTask, shared=False, name="flaky")
    def flaky(value: Any, add: int = 0) -> Any:
        if value == 0:
            raise ValueError("for good")
        key = value if isinstance(value, int) else sum(value)
        tries[key] = tries.get(key, 0) + 1
        if tries[key] < 3:
            raise ConnectionError("gateway down")
        return key + add

    return flaky


def test_chains(flaky: Any) -> None:
    """Every link retries, and the next one gets its result; a link that fails for good ends it, with one letter."""
    assert chain(flaky.s(1, 10), flaky.s(100), flaky.s(1000)).delay().get() == 1111
    with pytest.raises(ValueError, match="for good"):  # as a plain chain
        chain(flaky.s(2), flaky.si(0), flaky.s(5)).delay()
    assert len(letters(flaky.app)) == 1


def test_groups(flaky: Any) -> None:
    result = group(flaky.s(1), flaky.s(2), flaky.s(0)).delay()
    assert [one.state for one in result.results] == ["SUCCESS", "SUCCESS", "FAILURE"]
    assert len(letters(flaky.app)) == 1


def test_chords(flaky: Any) -> None:
    """The body runs once, on all results, after all retries."""
    assert chord([flaky.s(1), flaky.s(2)], flaky.s(100)).delay().get() == 103
    assert letters(flaky.app) == []


def test_links(flaky: Any) -> None:
    """A callback runs once, after the last attempt; an errback once, after the failure is final."""
    app = flaky.app
    seen = []

    @app.task(shared=False, name="note")
    def note(*args: Any) -> None:
        seen.append("callback" if isinstance(args[0], int) else "errback")

    flaky.apply_async((7,), link=note.s(), link_error=note.s())
    flaky.apply_async((0,), link=note.s(), link_error=note.s())
    assert seen == ["callback", "errback"]


# --- what monitoring sees ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eager", "worker"])
def test_monitoring_sees_one_event_per_final_failure(app: Celery, mode: str) -> None:
    """
    Sentry and APM agents wrap ``type(task).__call__`` and listen to task_failure: retries raise
    Retry, which they leave out; the one error they see has its traceback down to the user's line.
    """
    captured: list[BaseException] = []
    signalled: list[BaseException] = []

    def wrap(call: Any) -> Any:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return call(self, *args, **kwargs)
            except (Ignore, Reject) as control:
                raise control from None
            except Exception as error:
                if type(error).__name__ != "Retry":
                    captured.append(error)
                raise

        return wrapped

    def on_failure(exception: BaseException, **_: Any) -> None:
        signalled.append(exception)

    @app.task(base=HardenedTask, shared=False, name="charge", max_retries=3)
    def charge() -> None:
        raise ConnectionError("gateway down")

    task = charge._get_current_object()
    type(task).__call__ = wrap(type(task).__call__)
    signals.task_failure.connect(on_failure)
    if mode == "eager":
        charge.apply()
    else:
        with InProcessWorker(app) as worker:
            charge.delay()
            assert worker.run() == 4
    signals.task_failure.disconnect(on_failure)

    assert [type(error) for error in captured] == [ConnectionError]
    assert [type(error) for error in signalled] == [ConnectionError]
    frames = []
    trace = captured[0].__traceback__
    while trace:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-1] == "charge"
