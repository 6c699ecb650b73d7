"""Arguments in logs: only those that are listed, and never a reason to fail."""

from __future__ import annotations

import json
import logging
import sys
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened import HardenedTask, JsonFormatter
from celery_hardened.logs import log_args
from tests.support.in_process import InProcessWorker


def task(*listed: str, run: Any = None) -> Any:
    def charge(invoice: str, card: str = "none", *rest: str, note: str = "", **more: str) -> None: ...

    return SimpleNamespace(run=run or charge, log_args=listed)


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


# --- which ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "args", "kwargs", "shown"),
    [
        ((), ("i1", "c"), {}, {}),
        (("invoice",), ("i1", "c"), {}, {"invoice": "i1"}),
        (("invoice",), (), {"invoice": "i1", "card": "c"}, {"invoice": "i1"}),
        (("note", "invoice"), ("i1",), {"note": "n"}, {"note": "n", "invoice": "i1"}),
        (("card",), ("i1",), {}, {"card": "none"}),
        (("rest",), ("i1", "c", "r"), {}, {"rest": "('r',)"}),
        (("nothing",), ("i1",), {}, {}),
        # Arguments that do not fit: those given by name are known all the same.
        (("invoice",), (), {"card": "c"}, {}),
        (("invoice",), ("a",), {"invoice": "b"}, {"invoice": "b"}),
    ],
)
def test_only_listed_arguments(listed: Any, args: Any, kwargs: Any, shown: dict[str, Any]) -> None:
    assert log_args(task(*listed), args, kwargs) == shown


def test_a_single_name_is_a_name() -> None:
    """The comma that is easily forgotten must not turn a name into letters."""

    def charge(i: str, invoice: str) -> None: ...

    assert log_args(SimpleNamespace(run=charge, log_args="invoice"), ("secret", "i1"), {}) == {"invoice": "i1"}


def test_a_task_without_the_attribute() -> None:
    """A contained task has none."""
    assert log_args(SimpleNamespace(run=len), ("x",), {}) == {}


def test_a_run_without_a_signature() -> None:
    """Builtins have none that Python can tell."""
    assert log_args(task("key", run=dict.get), ("a", "b", "c", "d"), {"key": "k"}) == {"key": "k"}


# --- how ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("i1", "i1"),
        (7, 7),
        (2.5, 2.5),
        (True, True),
        (None, None),
        (Decimal("1.50"), "1.50"),
        ([1, "a"], "[1, 'a']"),
        ("x" * 300, "x" * 199 + "…"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (10**5000, "<int>"),
        (Mute(), "<Mute>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_values_are_shown(value: object, shown: object) -> None:
    """Short, as JSON can say it, and whatever they are."""
    found = log_args(task("invoice"), (value,), {})
    assert found == {"invoice": shown}
    json.dumps(found, allow_nan=False)


@given(st.lists(st.text() | st.integers() | st.none()), st.dictionaries(st.text(), st.text()))
def test_it_never_raises(args: list[Any], kwargs: dict[str, str]) -> None:
    shown = log_args(task("invoice", "note"), args, kwargs)
    assert shown.keys() <= {"invoice", "note"}


# --- nowhere else ------------------------------------------------------------------------------------------


def test_no_argument_is_logged(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """Of a hardened task that succeeds, retries, fails and dies of its retries: our records and Celery's."""
    secret = "4111-1111-1111-1111"
    caplog.set_level(logging.INFO)  # at DEBUG Celery's pool prints all it is given, message body included

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", max_retries=1, log_args=("invoice",))
    def charge(self: Any, invoice: str, card: str) -> str:
        if invoice == "retry":
            raise self.retry(countdown=0)
        if invoice != "fine":
            raise (ConnectionError if invoice == "transient" else ValueError)("it failed")
        return "charged"

    with InProcessWorker(app) as worker:
        for invoice in ("fine", "transient", "permanent", "retry"):
            charge.delay(invoice, secret)
        worker.run()
    records = [(record.getMessage(), {**vars(record), "args": None}) for record in caplog.records]
    for message, fields in records:
        assert secret not in message, message
        if fields["name"].startswith("celery_hardened"):
            assert secret not in repr(fields)
    letters = [fields for message, fields in records if message.startswith("dead letter")]
    assert sorted(fields["arg_invoice"] for fields in letters) == ["permanent", "retry", "transient"]
    assert sorted(fields["reason"] for fields in letters) == ["exhausted", "exhausted", "permanent"]


# --- JSON -----------------------------------------------------------------------------------------------------


def formatted(message: str = "said", *args: Any, **fields: Any) -> dict[str, Any]:
    """The record that this call of a logger makes, as the formatter prints it."""
    options = {name: fields.pop(name) for name in ("exc_info", "stack_info") if name in fields}
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    try:
        logger.warning(message, *args, extra=fields, **options)
    finally:
        logger.removeHandler(handler)
    line = JsonFormatter().format(records[0])
    assert "\n" not in line
    entry: dict[str, Any] = json.loads(line)
    return entry


def test_one_object_a_line_with_every_field() -> None:
    entry = formatted("said %s", "it", task="charge", attempt=2, arg_invoice="i1")
    assert (entry["level"], entry["logger"], entry["message"]) == ("WARNING", "shop", "said it")
    assert (entry["task"], entry["attempt"], entry["arg_invoice"]) == ("charge", 2, "i1")
    assert entry["ts"].endswith("+00:00")


def test_tracebacks_and_stacks() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        entry = formatted(exc_info=True, stack_info=True)
    assert "ValueError: broken" in entry["traceback"]
    assert "test_tracebacks_and_stacks" in entry["stack"]


@pytest.mark.parametrize(
    "value",
    [Mute(), {("a", 1): 2}, {1: Mute()}, float("nan"), {"deep": [object()]}, b"\xff", {1, 2}],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_say_is_text(value: object) -> None:
    """A record is never lost for what it carries."""
    entry = formatted(odd=value, task="charge")
    assert "odd" in entry
    assert (entry["message"], entry["task"]) == ("said", "charge")


def test_a_field_cannot_take_our_place() -> None:
    entry = formatted(level="none", logger="theirs", ts="never")
    assert (entry["level"], entry["logger"]) == ("WARNING", "shop")
    assert entry["ts"] != "never"


def test_what_celery_attaches_is_not_printed() -> None:
    """``data`` holds all arguments of a task in clear."""
    assert "data" not in formatted(data={"args": "('4111',)"})


def test_exceptions_without_their_words() -> None:
    """``messages=False``: frames and classes of the whole chain, of a record that was made into text nothing."""
    card = "4111-1111-1111-1111"  # four ones of it alone may be in the microseconds of a record's time, or in its pid
    try:
        try:
            raise KeyError(card)
        except KeyError as error:
            raise ValueError(f"card {card}") from error
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    line = JsonFormatter(messages=False).format(record)
    assert card not in line
    traced = json.loads(line)["traceback"]
    assert traced.index("ValueError") < traced.index("KeyError")
    assert "test_exceptions_without_their_words" in traced
    made = logging.makeLogRecord({"msg": "failed", "exc_text": f"ValueError: card {card}"})
    assert card in JsonFormatter().format(made)
    assert card not in JsonFormatter(messages=False).format(made)
