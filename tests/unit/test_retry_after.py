"""Reading ``Retry-After`` off whatever an exception looks like."""

from __future__ import annotations

import email.message
import re
import sys
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_hardened.retry.retry_after import retry_after

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

#: Sun, 06 Nov 1994 08:49:37 GMT
THEN = 784_111_777.0


def error(**attributes: Any) -> Exception:
    raised = Exception("429")
    for name, value in attributes.items():
        setattr(raised, name, value)
    return raised


def asks(value: object, *, now: float = THEN) -> float | None:
    return retry_after(error(retry_after=value), now=now)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (30, 30.0),
        (2.5, 2.5),
        ("120", 120.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        (b"7", 7.0),
        (0, 0.0),
        (-5, 0.0),
        ("-5", 0.0),
        (timedelta(minutes=2), 120.0),
        (timedelta(seconds=-1), 0.0),
        (datetime.fromtimestamp(THEN + 40, tz=timezone.utc), 40.0),
        (datetime.fromtimestamp(THEN + 40, tz=timezone(timedelta(hours=5))), 40.0),
        (datetime.fromtimestamp(THEN + 40, tz=timezone.utc).replace(tzinfo=None), 40.0),
        (datetime.fromtimestamp(THEN - 40, tz=timezone.utc), 0.0),
    ],
    ids=repr,
)
def test_an_attribute_is_read_in_every_usual_form(value: object, seconds: float) -> None:
    assert asks(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "date",
    ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"],
)
def test_the_three_forms_of_an_http_date_are_read_as_utc(date: str) -> None:
    assert asks(date, now=THEN - 90) == pytest.approx(90.0)
    assert asks(date, now=THEN + 90) == 0.0


@pytest.mark.parametrize(
    "value",
    [
        None, "", "soon", "1_000", "1e3", "0x10", "nan", "inf", float("nan"), float("inf"), 10**400, True, "٣",
        "9" * 500, [], {}, object(), "Mon, 99 Foo 1994", "Sun, 06 Nov 99999 08:49:37 GMT", lambda: 5,
    ],
    ids=lambda value: re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:40],  # the same in every test process
)  # fmt: skip
def test_nonsense_is_no_answer(value: object) -> None:
    assert asks(value) is None


def test_the_first_and_the_last_moment_python_knows_break_nothing() -> None:
    assert asks(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))) in (0.0, None)
    assert asks(datetime(9999, 12, 31, tzinfo=timezone.utc)) == 253_402_214_400.0 - THEN


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "30"},
        {"retry-after": "30"},
        {"RETRY-AFTER": b"30"},
        {b"Retry-After": b"30"},
        [("Date", "today"), ("Retry-After", "30")],
        (("retry-after", 30),),
    ],
    ids=repr,
)
def test_the_header_is_found_whatever_its_case_and_container(headers: object) -> None:
    assert retry_after(error(headers=headers), now=THEN) == 30.0
    assert retry_after(error(response=SimpleNamespace(headers=headers)), now=THEN) == 30.0


def test_the_headers_of_the_standard_librarys_http_client_are_read() -> None:
    message = email.message.Message()
    message["Retry-After"] = "30"
    assert retry_after(error(headers=message), now=THEN) == 30.0


def test_the_response_metadata_of_botocore_is_read() -> None:
    response = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPHeaders": {"retry-after": "12"}}}
    assert retry_after(error(response=response), now=THEN) == 12.0


def test_the_first_place_that_makes_sense_counts() -> None:
    both = error(retry_after=5, headers={"Retry-After": "9"})
    assert retry_after(both, now=THEN) == 5.0
    assert retry_after(error(retry_after="soon", headers={"Retry-After": "9"}), now=THEN) == 9.0


def test_a_response_that_is_falsy_is_read_all_the_same() -> None:
    """The response of requests is false when its status is an error, which is when it matters."""

    class Response:
        headers = {"Retry-After": "30"}

        def __bool__(self) -> bool:
            return False

    assert retry_after(error(response=Response()), now=THEN) == 30.0


def test_a_group_asks_for_the_longest_wait_of_its_members() -> None:
    group = ExceptionGroup("", [error(retry_after=3), error(), ExceptionGroup("", [error(retry_after=8)])])
    assert retry_after(group, now=THEN) == 8.0
    assert retry_after(ExceptionGroup("", [error()]), now=THEN) is None


def test_an_exception_that_raises_when_it_is_read_is_no_answer() -> None:
    class HostileError(Exception):
        @property
        def retry_after(self) -> float:
            raise RuntimeError

        @property
        def response(self) -> object:
            raise KeyError

        @property
        def headers(self) -> object:
            class Broken(dict[str, str]):
                def items(self) -> Any:
                    raise OSError

            return Broken()

    assert retry_after(HostileError(), now=THEN) is None


@given(
    value=st.one_of(
        st.none(), st.text(), st.binary(), st.floats(), st.integers(), st.datetimes(), st.timedeltas(),
        st.lists(st.text()), st.dictionaries(st.text(), st.text()),
    )
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_it_never_raises_and_never_asks_for_less_than_nothing(value: object) -> None:
    for shape in (error(retry_after=value), error(headers=value), error(response=value)):
        answer = retry_after(shape, now=THEN)
        assert answer is None or 0.0 <= answer < float("inf")
    answer = retry_after(error(headers={"Retry-After": value}), now=THEN)
    assert answer is None or 0.0 <= answer < float("inf")
