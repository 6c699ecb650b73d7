"""What crosses from a pool process to the worker's main process can be made anew there, whatever a task raised."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest
from billiard import current_process
from billiard.einfo import ExceptionInfo
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry
from celery.utils.serialization import UnpickleableExceptionWrapper
from kombu.exceptions import EncodeError

from celery_hardened.dead_letter.describe import describe
from celery_hardened.dead_letter.stand_in import tracing


class UserError(Exception):
    """Some class of a task's author."""


class UserIgnore(Ignore):
    """Likewise."""


@pytest.fixture
def in_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_process(), "_name", "ForkPoolWorker-1")


def crossed(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Any:
    """*error* as the parent gets it, where this module cannot be imported."""
    try:
        raise error
    except type(error):
        info = ExceptionInfo(sys.exc_info())
    returned = tracing(lambda: (info, object(), 0.1, None))()[0]
    sent = pickle.dumps(returned)
    monkeypatch.setitem(sys.modules, __name__, None)  # type: ignore[arg-type]
    return pickle.loads(sent)


@pytest.mark.usefixtures("in_child")
def test_a_users_exception_crosses_as_celerys_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """It still says what it was, and that there is a letter."""
    error = UserError("no stock", UserError("nested"))
    error.hardened_letter = "id-0-0"  # type: ignore[attr-defined]
    info = crossed(error, monkeypatch)
    assert type(info.exception) is info.type is UnpickleableExceptionWrapper
    assert info.exception.hardened_letter == "id-0-0"
    assert "no stock" in info.traceback
    described = describe(info.exception)
    assert described.type == f"{__name__}.UserError"
    assert described.message == str(error)


@pytest.mark.usefixtures("in_child")
@pytest.mark.parametrize(
    "error", [ValueError("x"), OSError(2, "gone"), EncodeError(TypeError("no")), MemoryError()], ids=repr
)
def test_pythons_and_celerys_cross_as_they_are(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """With plain arguments, their own kind in them included."""
    info = crossed(error, monkeypatch)
    assert type(info.exception) is info.type is type(error)
    assert repr(info.exception) == repr(error)


@pytest.mark.usefixtures("in_child")
def test_what_holds_a_users_object_is_replaced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the arguments, or as an attribute."""
    error = MaxRetriesExceededError("spent", task_args=(UserError(),), task_kwargs={})
    assert describe(crossed(error, monkeypatch).exception).type == "celery.exceptions.MaxRetriesExceededError"


@pytest.mark.usefixtures("in_child")
def test_words_to_the_parent_stay_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subclass of Ignore is an Ignore; Retry and Reject keep what Celery reads from them."""
    assert type(crossed(UserIgnore(), monkeypatch).exception) is Ignore
    monkeypatch.undo()
    monkeypatch.setattr(current_process(), "_name", "ForkPoolWorker-1")
    retry = crossed(Retry("later", exc=UserError("down"), when=3.0), monkeypatch).exception
    assert (type(retry), retry.message, retry.when, str(retry.exc)) == (Retry, "later", 3.0, "down")
    monkeypatch.undo()
    monkeypatch.setattr(current_process(), "_name", "ForkPoolWorker-1")
    reject = crossed(Reject(UserError("no"), requeue=True), monkeypatch).exception
    assert (type(reject), reject.requeue) == (Reject, True)
    assert "no" in reject.reason


def test_pools_without_processes_are_left_alone() -> None:
    """Nothing is pickled there."""
    error = UserError("x")
    try:
        raise error
    except UserError:
        info = ExceptionInfo(sys.exc_info())
    assert tracing(lambda: (info, object(), 0.1, None))()[0] is info
    assert info.exception.exc is error
