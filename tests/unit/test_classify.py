"""Which rule decides whether a failure is transient, permanent or a time limit."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery.exceptions import Ignore, Reject, Retry

from celery_hardened.errors import ConfigurationError
from celery_hardened.retry.classify import classify, passes_untouched

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup


class GatewayError(Exception):
    pass


class CardRefusedError(GatewayError):
    pass


def kind(
    error: BaseException,
    *,
    wanted: tuple[type[BaseException], ...] = (),
    unwanted: tuple[type[BaseException], ...] = (),
    hook: Any = None,
) -> str:
    return classify(error, autoretry_for=wanted, dont_autoretry_for=unwanted, hook=hook)


def says(answer: object) -> Any:
    return lambda _error: answer


# --- the order of the rules -----------------------------------------------------------------------


@pytest.mark.parametrize("error", [TypeError("bug"), KeyError("k"), ValueError("v"), MemoryError(), RecursionError()])
def test_a_programming_error_is_permanent_by_default(error: Exception) -> None:
    """Repeating a bug only repeats it."""
    assert kind(error) == "permanent"


def test_the_table_is_the_last_rule_that_can_say_transient() -> None:
    assert kind(ConnectionResetError()) == "transient"
    assert kind(GatewayError()) == "permanent"


def test_autoretry_for_adds_to_the_table() -> None:
    assert kind(GatewayError(), wanted=(GatewayError,)) == "transient"
    assert kind(ConnectionResetError(), wanted=(GatewayError,)) == "transient"


def test_dont_autoretry_for_goes_before_everything() -> None:
    assert kind(CardRefusedError(), wanted=(GatewayError,), unwanted=(CardRefusedError,)) == "permanent"
    assert kind(GatewayError(), wanted=(GatewayError,), unwanted=(CardRefusedError,)) == "transient"
    assert kind(ConnectionResetError(), unwanted=(ConnectionError,)) == "permanent"
    assert kind(CardRefusedError(), unwanted=(GatewayError,), hook=says("transient")) == "permanent"


def test_autoretry_for_goes_before_the_hook() -> None:
    assert kind(GatewayError(), wanted=(GatewayError,), hook=says("permanent")) == "transient"


def test_the_hook_goes_before_the_table() -> None:
    assert kind(ConnectionResetError(), hook=says("permanent")) == "permanent"
    assert kind(GatewayError(), hook=says("transient")) == "transient"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("transient", "transient"),
        ("permanent", "permanent"),
        (True, "transient"),
        (False, "permanent"),
        (None, "permanent"),
    ],
)
def test_the_hook_may_answer_in_words_or_yes_and_no(answer: object, expected: str) -> None:
    assert kind(GatewayError(), hook=says(answer)) == expected


def test_a_hook_without_an_opinion_leaves_it_to_the_table() -> None:
    assert kind(ConnectionResetError(), hook=says(None)) == "transient"


@pytest.mark.parametrize("answer", ["retry", "", 1, 0, 2.5, "timeout", [], object])
def test_any_other_answer_of_the_hook_is_a_configuration_error(answer: object) -> None:
    """``1`` too: a hook that returns a count of something has not understood the question."""
    with pytest.raises(ConfigurationError, match="when it was asked about GatewayError"):
        kind(GatewayError(), hook=says(answer))


def test_a_hook_that_raises_is_a_configuration_error_that_names_it() -> None:
    def looks_at_status(error: Any) -> str:
        return "transient" if error.status > 500 else "permanent"

    with pytest.raises(ConfigurationError, match=r"looks_at_status\(\) raised AttributeError") as refused:
        kind(GatewayError(), hook=looks_at_status)
    assert isinstance(refused.value.__cause__, AttributeError)


# --- time limits ----------------------------------------------------------------------------------

TIME_LIMITS = [SoftTimeLimitExceeded(), TimeLimitExceeded(30)]


@pytest.mark.parametrize("error", TIME_LIMITS, ids=repr)
def test_a_time_limit_is_a_timeout(error: Exception) -> None:
    assert kind(error) == "timeout"
    assert kind(error, hook=says("transient")) == "timeout"


@pytest.mark.parametrize("error", TIME_LIMITS, ids=repr)
@pytest.mark.parametrize("broad", [Exception, BaseException])
def test_a_broad_autoretry_for_does_not_list_time_limits(error: Exception, broad: type[BaseException]) -> None:
    """``autoretry_for = (Exception,)`` is how most examples are written; what hangs would hang again."""
    assert kind(error, wanted=(broad,)) == "timeout"


def test_a_listed_time_limit_is_retried() -> None:
    assert kind(SoftTimeLimitExceeded(), wanted=(SoftTimeLimitExceeded,)) == "transient"
    assert kind(SoftTimeLimitExceeded(), wanted=(Exception, SoftTimeLimitExceeded)) == "transient"
    assert kind(TimeLimitExceeded(30), wanted=(SoftTimeLimitExceeded,)) == "timeout"


def test_a_time_limit_that_is_unwanted_keeps_its_reason() -> None:
    listed = (SoftTimeLimitExceeded,)
    assert kind(SoftTimeLimitExceeded(), wanted=listed, unwanted=listed) == "timeout"


def test_a_subclass_of_a_time_limit_is_one() -> None:
    class OutOfPatience(SoftTimeLimitExceeded):  # type: ignore[misc]
        pass

    assert kind(OutOfPatience()) == "timeout"
    assert kind(OutOfPatience(), wanted=(SoftTimeLimitExceeded,)) == "transient"


# --- groups ---------------------------------------------------------------------------------------


def test_a_group_is_transient_only_if_every_member_is() -> None:
    assert kind(ExceptionGroup("", [ConnectionError(), TimeoutError()])) == "transient"
    assert kind(ExceptionGroup("", [ConnectionError(), ValueError()])) == "permanent"
    assert kind(ExceptionGroup("", [ConnectionError(), ExceptionGroup("", [ValueError()])])) == "permanent"


def test_members_are_judged_by_the_tasks_own_rules() -> None:
    mixed = ExceptionGroup("", [ConnectionError(), GatewayError()])
    assert kind(mixed) == "permanent"
    assert kind(mixed, wanted=(GatewayError,)) == "transient"
    assert kind(mixed, hook=lambda error: True if isinstance(error, GatewayError) else None) == "transient"


def test_one_unwanted_member_settles_it() -> None:
    mixed = ExceptionGroup("", [ConnectionError(), ExceptionGroup("", [CardRefusedError()])])
    assert kind(mixed, wanted=(Exception,), unwanted=(CardRefusedError,)) == "permanent"
    assert kind(mixed, unwanted=(CardRefusedError,), hook=says("transient")) == "permanent"


def test_a_broad_autoretry_for_does_not_take_what_is_no_exception() -> None:
    """A group that holds an exit is no ordinary failure, however much the task retries."""
    assert kind(BaseExceptionGroup("", [ConnectionError(), KeyboardInterrupt()]), wanted=(Exception,)) == "permanent"


def test_a_group_class_that_is_listed_is_obeyed() -> None:
    group = ExceptionGroup("", [ValueError()])
    assert kind(group, wanted=(ExceptionGroup,)) == "transient"
    assert kind(ExceptionGroup("", [ConnectionError()]), unwanted=(ExceptionGroup,)) == "permanent"


def test_the_hook_is_shown_the_group_first() -> None:
    shown: list[BaseException] = []

    def hook(error: BaseException) -> str | None:
        shown.append(error)
        return None

    group = ExceptionGroup("", [ConnectionError(), ValueError()])
    assert kind(group, hook=hook) == "permanent"
    assert shown == [group, *group.exceptions]
    assert kind(group, hook=says("transient")) == "transient"


def test_a_time_limit_in_a_group_is_a_timeout() -> None:
    group = ExceptionGroup("", [ConnectionError(), SoftTimeLimitExceeded()])
    assert kind(group) == "timeout"
    assert kind(group, wanted=(Exception,)) == "timeout"
    assert kind(group, wanted=(SoftTimeLimitExceeded,)) == "transient"
    assert kind(group, unwanted=(ConnectionError,)) == "timeout"


# --- what is no failure ---------------------------------------------------------------------------


@pytest.mark.parametrize("word", [Ignore(), Reject("no", requeue=True), Retry()], ids=repr)
def test_ignore_reject_and_retry_pass_untouched(word: Exception) -> None:
    """Celery's own wrapper retries ``Reject`` and once retried ``Retry``: 2047 runs instead of 11."""
    assert passes_untouched(word)
    assert kind(word, wanted=(Exception,)) == "permanent"
    assert kind(ExceptionGroup("", [ConnectionError(), word]), wanted=(Exception,)) == "permanent"


def test_failures_do_not_pass_untouched() -> None:
    assert not passes_untouched(ConnectionError())
    assert not passes_untouched(SoftTimeLimitExceeded())
