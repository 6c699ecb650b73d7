"""The leaf class that harden() puts on every task: outermost for the worker, invisible for everybody else."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
from celery import Celery, Task
from celery.exceptions import Retry

from celery_hardened import HardenedTask, Hardening, Query
from tests.support.in_process import InProcessWorker, outcomes
from tests.unit.conftest import MakeApp

Run: TypeAlias = Callable[..., Any]


@pytest.fixture(params=["worker", "eager"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a task with all its attempts, in a worker or eagerly; what it returned or raised."""

    def in_worker(task: Any, *args: Any) -> Any:
        with InProcessWorker(task.app) as worker:
            result = task.delay(*args)
            worker.run()
            return result.result

    def eagerly(task: Any, *args: Any) -> Any:
        return task.apply(args).result

    return {"worker": in_worker, "eager": eagerly}[request.param]


def letters(app: Celery) -> list[tuple[str | None, str, str]]:
    """Task, reason and error of every letter."""
    hardening = Hardening.expect(app)
    found = hardening.eager_dead_letters.find(Query(), limit=100).letters
    return [(stored.letter.task, stored.letter.reason, stored.letter.error_type) for stored in found]


# --- direct calls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [HardenedTask, Task])
def test_a_direct_call_is_a_function_call(app: Celery, base: type) -> None:
    """It returns and raises what the function does: no retry, no letter, no signal, and the exception itself."""
    error = ConnectionError("gateway down")

    @app.task(bind=True, base=base, shared=False, name="charge", autoretry_for=())
    def charge(self: Any, fail: bool = False) -> Any:
        assert self.request.called_directly
        if fail:
            raise error
        return self.request.id

    with outcomes() as noted:
        assert charge() is None
        with pytest.raises(ConnectionError) as raised:
            charge(True)
    assert raised.value is error
    assert noted == []
    assert letters(app) == []


def test_a_direct_call_with_autoretry_for(app: Celery) -> None:
    """Celery's own wrapper raises the error of a direct call, too, and so do we."""

    @app.task(base=HardenedTask, shared=False, name="charge", autoretry_for=(KeyError,))
    def charge() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        charge()
    assert letters(app) == []


def test_retry_in_a_direct_call_is_celery_s(app: Celery) -> None:
    """It raises the given exception, or Retry without one."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any, error: Exception | None = None) -> None:
        raise self.retry(exc=error)

    error = ValueError("no")
    with pytest.raises(ValueError, match="no") as raised:
        charge(error)
    assert raised.value is error
    with pytest.raises(Retry):
        charge()


@pytest.mark.parametrize("base", [HardenedTask, Task])
def test_a_direct_call_inside_a_running_task(app: Celery, run: Run, base: type) -> None:
    """
    Of another task or of the task itself: a plain call, whose error the caller may
    catch. Only what leaves the outer task counts, once.
    """

    @app.task(base=base, shared=False, name="inner")
    def inner() -> None:
        raise ValueError("inner")

    @app.task(base=base, shared=False, name="outer")
    def outer(depth: int, catch: bool) -> str:
        if depth == 0:
            inner()
        try:
            return str(outer(depth - 1, catch))
        except ValueError as error:
            if catch:
                return f"caught {error}"
            raise

    with outcomes() as noted:
        assert run(outer, 2, True) == "caught inner"
        assert letters(app) == []
        assert isinstance(run(outer, 2, False), ValueError)
    assert noted == ["success", "failure"]
    assert letters(app) == [("outer", "permanent", "ValueError")]


# --- __call__ of the user's --------------------------------------------------------------------------

pushed: list[str] = []


@contextmanager
def application_context(name: str) -> Iterator[None]:
    pushed.append(f"+{name}")
    yield
    pushed.append(f"-{name}")


class WithRun(HardenedTask):
    """The documented pattern: a context, and the body by ``self.run()``."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with application_context("run"):
            return self.run(*args, **kwargs)


class WithSuper(HardenedTask):
    """The other one: the body by ``super().__call__()``."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with application_context("super"):
            return super().__call__(*args, **kwargs)


class WithBoth(WithSuper):
    """A chain of bases, each with its own."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with application_context("both"):
            return super().__call__(*args, **kwargs)


CALLS = pytest.mark.parametrize("base", [HardenedTask, WithRun, WithSuper, WithBoth])


@CALLS
def test_whatever_call_the_class_has_errors_are_retried(app: Celery, run: Run, base: type) -> None:
    """The pipeline is around the user's ``__call__``: three attempts, each in its context, and success."""
    attempts = []

    @app.task(bind=True, base=base, shared=False, name="charge")
    def charge(self: Any) -> str:
        attempts.append((self.request.retries, self.request.called_directly))
        if len(attempts) < 3:
            raise ConnectionError("gateway down")
        return "charged"

    pushed.clear()
    with outcomes() as noted:
        assert run(charge) == "charged"
    assert noted == ["retry", "retry", "success"]
    assert attempts == [(0, False), (1, False), (2, False)], "the body saw another request than its own"
    contexts = {HardenedTask: 0, WithRun: 1, WithSuper: 1, WithBoth: 2}[base]
    assert sum(1 for entry in pushed if entry[0] == "+") == 3 * contexts


@CALLS
def test_whatever_call_the_class_has_explicit_retries_work(app: Celery, run: Run, base: type) -> None:
    """self.retry() sees the real request, also eagerly: with an error the table calls permanent."""
    attempts = []

    @app.task(bind=True, base=base, shared=False, name="charge")
    def charge(self: Any) -> None:
        attempts.append(self.request.retries)
        raise self.retry(exc=ValueError("as I said"), max_retries=2, countdown=0)

    with outcomes() as noted:
        assert isinstance(run(charge), ValueError)
    assert attempts == [0, 1, 2]
    assert noted == ["retry", "retry", "failure"]
    assert letters(app) == [("charge", "exhausted", "ValueError")]


@CALLS
def test_whatever_call_the_class_has_it_can_be_called_directly(app: Celery, base: type) -> None:
    """In its contexts, with a request of its own."""

    @app.task(bind=True, base=base, shared=False, name="charge")
    def charge(self: Any, amount: int) -> tuple[bool, Any]:
        return self.request.called_directly, amount

    pushed.clear()
    assert charge(7) == (True, 7)
    assert len(pushed) == 2 * {HardenedTask: 0, WithRun: 1, WithSuper: 1, WithBoth: 2}[base]


@CALLS
def test_calling_itself_inside_whatever_call(app: Celery, run: Run, base: type) -> None:
    """A task that calls itself directly runs its body again, in its contexts, as a plain call."""

    @app.task(base=base, shared=False, name="countdown")
    def countdown(number: int) -> list[int]:
        return [number, *(countdown(number - 1) if number else [])]

    assert run(countdown, 3) == [3, 2, 1, 0]


def test_an_error_in_the_users_call_is_the_tasks(app: Celery, run: Run) -> None:
    """A context that cannot be entered is an attempt that failed: retried if transient, else a letter."""
    attempts = []

    class Broken(HardenedTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            attempts.append(1)
            if len(attempts) < 3:
                raise ConnectionError("no database")
            raise LookupError("no such tenant")

    @app.task(base=Broken, shared=False, name="charge")
    def charge() -> None:
        raise AssertionError("it must not start")

    assert isinstance(run(charge), LookupError)
    assert letters(app) == [("charge", "permanent", "LookupError")]
    assert len(attempts) == 3


def test_contained_tasks_keep_their_call(app: Celery, run: Run) -> None:
    """Plain classes with either pattern: one run, as stock; a letter at the end."""

    class Plain(Task):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with application_context("plain"):
                return super().__call__(*args, **kwargs)

    @app.task(base=Plain, shared=False, name="charge")
    def charge() -> None:
        raise ConnectionError("gateway down")

    pushed.clear()
    with outcomes() as noted:
        assert isinstance(run(charge), ConnectionError)
    assert (noted, len(pushed)) == (["failure"], 1)
    assert letters(app) == [("charge", "permanent", "ConnectionError")]


# --- Celery's autoretry_for -----------------------------------------------------------------------------


def test_celery_s_autoretry_is_off_for_hardened_and_on_for_contained(app: Celery, run: Run) -> None:
    """
    Contained: Celery's wrapper retries, three times and no more, and what it gives up
    on is a letter. Hardened: ours does, also what Celery would not retry.
    """
    options = {"autoretry_for": (KeyError,), "retry_kwargs": {"max_retries": 3}, "default_retry_delay": 0}

    def body() -> None:
        raise KeyError("k")

    contained = app.task(shared=False, name="contained", **options)(body)
    hardened = app.task(shared=False, name="hardened", base=HardenedTask, **options)(body)

    with outcomes() as noted:
        assert isinstance(run(contained), KeyError)
        assert isinstance(run(hardened), KeyError)
    assert noted == (["retry"] * 3 + ["failure"]) * 2
    assert "_orig_run" in contained.__dict__
    assert "_orig_run" not in hardened.__dict__
    assert hardened.run.__name__ == "body"
    assert sorted(letters(app)) == [("contained", "exhausted", "KeyError"), ("hardened", "exhausted", "KeyError")]


def test_class_tasks_with_autoretry(app: Celery, run: Run) -> None:
    """register_task() wraps before it binds; the wrapper comes off all the same."""

    class Charge(HardenedTask):
        name = "charge"
        autoretry_for = (KeyError,)
        max_retries = 2

        def run(self) -> None:
            raise KeyError("k")

    charge = app.register_task(Charge())
    with outcomes() as noted:
        assert isinstance(run(charge), KeyError)
    assert noted == ["retry", "retry", "failure"]


def test_bases_of_bases(app: Celery, run: Run) -> None:
    """Each abstract class in a chain may say a part of the policy; the lowest word counts."""

    class Company(HardenedTask):
        abstract = True
        max_retries = 5
        retry_jitter = False
        acks_late = False

    class Billing(Company):
        abstract = True
        autoretry_for = (LookupError,)
        max_retries = 1

    @app.task(base=Billing, shared=False, name="charge")
    def charge() -> None:
        raise KeyError("k")

    with outcomes() as noted:
        assert isinstance(run(charge), KeyError)
    assert noted == ["retry", "failure"]
    assert (charge.acks_late, charge.time_limit, charge.retry_jitter) == (False, 300.0, False)
    for untouched in (Company, Billing):
        assert "time_limit" not in untouched.__dict__


# --- what the user sees of it --------------------------------------------------------------------------


@pytest.mark.parametrize("base", [HardenedTask, Task])
def test_a_task_looks_as_it_did(make_app: MakeApp, make_hardened: MakeApp, base: type) -> None:
    """Name, module, documentation, signature, attributes and pickle are those of the plain task."""

    def define(app: Celery) -> Any:
        @app.task(base=base, shared=False, name="charge", rate_limit="9/m", anything=[1])
        def charge(invoice_id: str, amount: int = 1) -> str:
            """Charge an invoice."""
            return f"{invoice_id} {amount}"

        return charge._get_current_object()

    plain, ours = define(make_app()), define(make_hardened())
    for attribute in (
        "name",
        "__name__",
        "__module__",
        "__doc__",
        "__qualname__",
        "rate_limit",
        "anything",
        "ignore_result",
    ):
        assert getattr(ours, attribute) == getattr(plain, attribute), attribute
    assert inspect.signature(ours.run) == inspect.signature(plain.run)
    assert inspect.signature(ours) == inspect.signature(plain)
    for attribute in ("__name__", "__module__", "__doc__", "__qualname__"):
        assert getattr(type(ours), attribute) == getattr(type(plain), attribute), attribute
    assert isinstance(ours, base)
    assert repr(ours).split(" at ")[0] == repr(plain).split(" at ")[0]
    assert ours.__wrapped__("i1") == "i1 1"
    ours.app.set_current()
    assert pickle.loads(pickle.dumps(ours)) is ours


def test_a_class_task_is_still_of_its_class(app: Celery) -> None:
    """isinstance, super() and class attributes work; the class itself is untouched, and may have other instances."""

    class Charge(HardenedTask):
        name = "charge"
        tries = 0

        def run(self) -> str:
            return self.helped()

        def helped(self) -> str:
            type(self).tries += 1
            return super().__class__.__name__

    before = dict(Charge.__dict__)
    charge = app.register_task(Charge())
    assert isinstance(charge, Charge)
    assert charge.apply().result
    assert type(charge).__name__ == "Charge"
    assert dict(Charge.__dict__) == before
    assert type(Charge()) is Charge


def test_a_patched_run_is_run(app: Celery, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' tests replace task.run with a mock, and put it back afterwards."""

    @app.task(base=HardenedTask, shared=False, name="charge", autoretry_for=(KeyError,))
    def charge() -> str:
        return "real"

    monkeypatch.setattr(charge._get_current_object(), "run", lambda: "mocked")
    assert run(charge) == "mocked"
    monkeypatch.undo()
    assert run(charge) == "real"


def test_a_call_annotated_in_the_settings(make_hardened: MakeApp, run: Run) -> None:
    """``task_annotations`` may wrap ``__call__``; it wraps what the user would see, and the pipeline works."""
    seen = []

    def around(call: Any) -> Any:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(self.name)
            return call(self, *args, **kwargs)

        return wrapped

    app = make_hardened(task_annotations={"charge": {"@__call__": around}})

    @app.task(base=HardenedTask, shared=False, name="charge", max_retries=1)
    def charge() -> None:
        raise ConnectionError("gateway down")

    assert isinstance(run(charge), ConnectionError)
    assert seen == ["charge", "charge"]
    assert letters(app) == [("charge", "exhausted", "ConnectionError")]
