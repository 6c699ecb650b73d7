"""``@deduplicate``: what it takes, what it refuses, and that the function stays what it was."""

from __future__ import annotations

from datetime import timedelta
from functools import wraps
from typing import Any

import pytest
from celery import Celery

from celery_hardened import ConfigurationError, HardenedTask, harden
from celery_hardened.dedup.decorator import deduplicate, options_of
from celery_hardened.idempotency.decorator import idempotent


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.hardened_dead_letter_store = "memory"
    return harden(app)


def test_a_task_knows_its_options(app: Celery) -> None:
    """On a function, on a bound one, on a class's ``run``, under ``autoretry_for``, and beside ``@idempotent``."""

    @app.task(base=HardenedTask)
    @deduplicate("number", until="start", on_duplicate="raise", on_store_error="send")
    def plain(number: int) -> int:
        return number

    @app.task(base=HardenedTask, bind=True, autoretry_for=(KeyError,))
    @idempotent("number")
    @deduplicate("number", until=timedelta(minutes=1))
    def bound(self: Any, number: int) -> int:
        return number

    class Whole(HardenedTask):
        name = "whole"

        @deduplicate()
        def run(self, number: int) -> int:
            return number

    whole = app.register_task(Whole())
    first, second, third = options_of(plain), options_of(bound), options_of(whole)
    assert first is not None
    assert (first.until, first.window, first.on_duplicate, first.on_store_error) == ("start", None, "raise", "send")
    assert second is not None
    assert (second.until, second.window, second.on_duplicate) == ("window", 60.0, "return")
    assert third is not None
    assert (third.until, third.on_duplicate, third.on_store_error) == ("finish", "return", "raise")
    assert plain(3) == 3


def test_a_task_without_it_has_none(app: Celery) -> None:
    """Nor has what a mock makes up."""

    @app.task
    def plain() -> None: ...

    class Mock:
        def __getattr__(self, name: str) -> Any:
            return self

    assert options_of(plain) is None
    assert options_of(None) is None
    assert options_of(Mock()) is None


def test_a_wrapper_that_wraps_keeps_it(app: Celery) -> None:
    def logged(function: Any) -> Any:
        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @app.task
    @logged
    @deduplicate("number")
    def plain(number: int) -> None: ...

    assert options_of(plain) is not None


@pytest.mark.parametrize("until", ["done", 60, None, timedelta(0), timedelta(seconds=-1)])
def test_until_is_one_of_three(until: Any) -> None:
    with pytest.raises(ConfigurationError, match="until is"):

        @deduplicate("number", until=until)
        def task(number: int) -> None: ...


@pytest.mark.parametrize("option", ["on_duplicate", "on_store_error"])
def test_choices_are_checked(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} is 'maybe'; it must be one of '"):

        @deduplicate("number", **{option: "maybe"})  # type: ignore[arg-type]
        def task(number: int) -> None: ...


def test_a_parameter_must_exist() -> None:
    with pytest.raises(ConfigurationError, match="nummer"):

        @deduplicate("nummer")
        def task(number: int) -> None: ...


def test_brackets_are_needed() -> None:
    def task(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"no brackets"):
        deduplicate(task)  # type: ignore[arg-type]


def test_the_order_of_decorators_is_told(app: Celery) -> None:
    """Above ``@app.task`` it would mark nothing."""
    with pytest.raises(ConfigurationError, match=r"Write @app.task first"):

        @deduplicate("number")
        @app.task
        def task(number: int) -> None: ...

    @app.task
    def early(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"Write @app.task first"):
        deduplicate("number")(app.tasks[early.name])


def test_what_is_no_function_of_a_task_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="run method"):

        @deduplicate("number")
        class Task: ...

    with pytest.raises(ConfigurationError, match="twice"):

        @deduplicate("number")
        @deduplicate("number")
        def task(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match="no function"):
        deduplicate("number")(3)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="no attribute"):
        deduplicate()(len)
