"""``@idempotent``: what it marks, and what it refuses when a module is imported."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, shared_task

from celery_hardened import ConfigurationError, HardenedTask, harden
from celery_hardened.idempotency.decorator import idempotent, options_of
from celery_hardened.idempotency.policy import Idempotent
from tests.support.client import client_side


@pytest.fixture
def app() -> Iterator[Celery]:
    with client_side():
        yield harden(Celery("shop", broker="memory://", set_as_current=False))


def charge(order: str, *, cents: int = 0) -> str:
    """Take the money."""
    return f"{order}:{cents}"


def fresh() -> Callable[..., str]:
    """A function that nobody marked yet."""

    def charge(order: str, *, cents: int = 0) -> str:
        return f"{order}:{cents}"

    return charge


def marked(**options: Any) -> Idempotent:
    function = idempotent("order", **options)(fresh())
    found = function.__hardened_idempotent__  # type: ignore[attr-defined]
    assert isinstance(found, Idempotent)
    return found


def test_the_function_stays_the_same() -> None:
    """The same object, so its signature, its text and a direct call are what they were."""
    function = fresh()
    before = inspect.signature(function)
    assert idempotent("order")(function) is function
    assert inspect.signature(function) == before
    assert function("o1", cents=5) == "o1:5"


def test_what_it_says_by_default() -> None:
    """The defaults are those that never lose and never double."""
    options = marked()
    assert (options.store, options.on_duplicate, options.on_store_error) == ("redis", "wait", "wait")
    assert (options.compare_arguments, options.lifetime, options.eta) == (True, None, 0.0)
    assert options.key.version == 1


def test_every_option_is_kept() -> None:
    options = marked(
        version=3,
        store="database",
        using="billing",
        on_duplicate="skip",
        compare_arguments=False,
        lifetime=timedelta(days=30),
        eta=timedelta(hours=2),
    )
    assert (options.store, options.using, options.on_duplicate) == ("database", "billing", "skip")
    assert marked(on_store_error="run").on_store_error == "run"
    assert (options.compare_arguments, options.lifetime, options.eta) == (False, 30 * 86_400.0, 7200.0)
    assert options.key.version == 3


@pytest.mark.parametrize("bind", [False, True])
def test_a_task_knows_its_options(app: Celery, bind: bool) -> None:
    """Through ``run``, bound or not; also where the task class has a retry wrapper of Celery's own."""

    def bound(self: Any, order: str) -> str:
        return order

    task = app.task(idempotent("order")(bound if bind else fresh()), bind=bind, base=HardenedTask, name="shop.charge")
    stock = app.task(idempotent("order")(fresh()), autoretry_for=(OSError,), name="shop.stock")
    plain = app.task(fresh(), name="shop.plain")
    for one in (task, stock):
        found = options_of(one)
        assert found is not None
        assert found.key.names == ("order",)
    assert options_of(plain) is None


def test_a_class_task_knows_its_options(app: Celery) -> None:
    class Report(HardenedTask):
        name = "shop.report"

        @idempotent("day")
        def run(self, day: str) -> str:
            return day

    task = app.register_task(Report())
    found = options_of(task)
    assert found is not None
    assert found.key.names == ("day",)


def test_a_decorator_between_that_keeps_the_name_keeps_the_mark(app: Celery) -> None:
    """What ``functools.wraps`` carries along."""

    def timed(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> str:
            return function(*args, **kwargs)

        return wrapped

    assert options_of(app.task(timed(idempotent("order")(fresh())), name="shop.timed")) is not None
    assert options_of(app.task(idempotent("order")(timed(fresh())), name="shop.timed2")) is not None


# --- refused at import ------------------------------------------------------------------------------------------


def test_above_the_task_decorator_is_refused(app: Celery) -> None:
    """There it would mark the task object, and nothing would ever read it. The sentence says what to write."""
    lazy = app.task(fresh(), name="shop.lazy")
    bound = app.tasks["shop.lazy"]
    shared = shared_task(fresh(), name="shop.shared")
    for task in (lazy, bound, shared):
        with pytest.raises(ConfigurationError, match="above the decorator that made"):
            idempotent("order")(task)


def test_without_brackets_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'charge' has no brackets"):
        idempotent(charge)  # type: ignore[arg-type]


def test_on_a_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="run method"):
        idempotent("day")(HardenedTask)


def test_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        idempotent("order")(idempotent("cents")(fresh()))


@pytest.mark.parametrize("nothing", [None, "charge", 7])
def test_on_no_function_is_refused(nothing: Any) -> None:
    with pytest.raises(ConfigurationError, match="no function"):
        idempotent("order")(nothing)


def test_on_what_takes_no_attribute_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes no attribute"):
        idempotent("obj")(len)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("store", "postgres"),
        ("on_duplicate", "drop"),
        ("on_store_error", "raise"),
        ("lifetime", -1),
        ("lifetime", "1h"),
        ("lifetime", True),
        ("eta", float("inf")),
        ("eta", float("nan")),
        ("eta", timedelta(seconds=-1)),
        ("version", 0),
    ],
)
def test_a_value_that_means_nothing_is_refused(option: str, value: Any) -> None:
    """With the function, the option and the value in the sentence."""
    with pytest.raises(ConfigurationError) as caught:
        marked(**{option: value})
    text = str(caught.value)
    assert "charge" in text
    assert option in text
    assert repr(value) in text


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ordr"):
        idempotent("ordr")(fresh())


@pytest.mark.parametrize(
    "together", [{"store": "database", "on_store_error": "run"}, {"store": "redis", "using": "billing"}]
)
def test_options_that_do_not_go_together_are_refused(together: dict[str, Any]) -> None:
    """A body that needs its transaction never runs without; an alias means nothing to Redis."""
    with pytest.raises(ConfigurationError, match="store"):
        marked(**together)
