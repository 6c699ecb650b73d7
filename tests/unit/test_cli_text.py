from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.cli import text
from celery_hardened.cli.selection import parse_moment


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("90s", 999_910.0),
        ("2h", 992_800.0),
        ("1.5d", 870_400.0),
        ("1w", 395_200.0),
        (" 5m ", 999_700.0),
        ("1970-01-02", 86_400.0),
        ("1970-01-01T00:01", 60.0),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
    ],
)
def test_a_moment_is_an_age_or_a_date_in_utc(written: str, moment: float) -> None:
    """``--since`` reads ages and ISO dates, and takes UTC where no zone is given."""
    assert parse_moment(written, now=1_000_000.0) == moment


@pytest.mark.parametrize("written", ["", "yesterday", "2", "h", "-2h", "2026-13-01", "2h3m"])
def test_what_is_no_moment_is_refused(written: str) -> None:
    """Nothing is guessed: a filter read wrongly would redrive the wrong letters."""
    with pytest.raises(ValueError, match=r"\S"):
        parse_moment(written, now=0.0)


@given(st.floats(min_value=0.0, max_value=4_000_000_000.0))
def test_a_printed_date_can_be_given_to_since(moment: float) -> None:
    """What a table prints, the filters read, to the second."""
    assert parse_moment(text.date(moment), now=0.0) == pytest.approx(moment, abs=1.0)


@given(st.floats())
def test_no_time_is_too_odd_to_be_printed(moment: float) -> None:
    """A letter with a senseless time can still be looked at."""
    assert text.date(moment)
    assert text.age(moment, now=0.0)


@given(st.text())
def test_printable_text_obeys_nothing(written: str) -> None:
    """Whatever an error message holds, a terminal is not moved by it, and any UTF-8 file takes it."""
    shown = text.printable(written)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("redis://:s3cret@host:6379/0 refused", "redis://:**@host:6379/0 refused"),
        ("amqp://user:p/w@host//, then rediss://u:x@b", "amqp://user:**@host//, then rediss://u:**@b"),
        ("https://host:443/path is fine", "https://host:443/path is fine"),
        ("rather too much: http://h:1/a@b", "rather too much: http://h:**@b"),
        ("no url", "no url"),
    ],
)
def test_passwords_in_urls_are_blanked(said: str, shown: str) -> None:
    """An error that quotes the URL it could not reach does not give the password away."""
    assert text.without_passwords(said) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (900_000, "10d")])
def test_ages_are_in_the_largest_unit_that_fits(seconds: float, shown: str) -> None:
    """An age is short."""
    assert text.age(1000.0, now=1000.0 + seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB")])
def test_sizes(count: int, shown: str) -> None:
    """Bytes in the unit people expect."""
    assert text.size(count) == shown
