"""Events of the sun. ``ephem`` is stood in for: its answers, too, differ a little with where a search begins."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from celery.schedules import solar

from celery_hardened.beat.kinds import when_of
from celery_hardened.beat.own import Solar
from celery_hardened.beat.slots import Slots
from celery_hardened.errors import ConfigurationError

UTC = timezone.utc
DAY = 86_400.0
MIDNIGHT = datetime(2026, 6, 1, tzinfo=UTC).timestamp()

#: The sun rises here at half past five, and two minutes later each day.
FIRST = MIDNIGHT + 5.5 * 3600
STEP = DAY + 120


class Date:
    def __init__(self, at: Any) -> None:
        self.at = at if isinstance(at, float) else at.timestamp()

    def datetime(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC).replace(tzinfo=None)


class CircumpolarError(ValueError):
    pass


class Observer:
    night = False
    middle = -0.4

    def next_rising(self, sun: Any, *, start: Any, **_: Any) -> Date:
        if self.night:
            raise CircumpolarError
        start = start if isinstance(start, Date) else Date(start)  # Celery 5.6 gives a datetime
        # Off by up to 0.05 s, as the search began. To the second it is FIRST all the same.
        off = self.middle + 0.1 * (start.at * 10 % 7_919 / 7_919) - 0.05
        count = (start.at - FIRST - off) // STEP + 1
        return Date(FIRST + count * STEP + off)

    def next_antitransit(self, sun: Any, *, start: Date | None = None) -> Date:
        return Date((start.at if start is not None else MIDNIGHT) + DAY)


@pytest.fixture
def sunrise(monkeypatch: pytest.MonkeyPatch) -> solar:
    ephem = ModuleType("ephem")
    vars(ephem).update(Observer=Observer, Date=Date, Sun=object, CircumpolarError=CircumpolarError)
    monkeypatch.setitem(sys.modules, "ephem", ephem)
    return solar("sunrise", 52.5, 13.4, app=Celery(set_as_current=False))


@pytest.fixture
def slots(sunrise: solar) -> Slots:
    return when_of(sunrise, app_timezone=UTC).slots(0.0)


def test_sunrises(slots: Slots) -> None:
    """One a day, to the second."""
    found = []
    slot = slots.after(MIDNIGHT)
    while slot is not None and slot < MIDNIGHT + 10 * DAY:
        found.append(slot)
        slot = slots.after(slot)
    assert found == [FIRST + day * STEP for day in range(10)]
    assert slots.count(MIDNIGHT, MIDNIGHT + 10 * DAY) == 10
    assert slots.latest(MIDNIGHT + 10 * DAY) == found[-1]
    assert slots.latest(found[3]) == found[3]


def test_a_slot_does_not_depend_on_where_the_search_began(slots: Slots) -> None:
    """Right before, at and right after a sunrise, where the search may find the same one again."""
    for beside in range(1, 2_000):
        assert slots.after(FIRST - beside / 100) == FIRST
    for beside in range(2_000):
        assert slots.after(FIRST + beside / 100) == FIRST + STEP


def test_a_sunrise_at_half_a_second_is_one_slot(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded one way or the other as the search began, it would be two. So the search is begun at the same place."""
    monkeypatch.setattr(Observer, "middle", -0.5)
    assert len({slots.after(FIRST - 3600 - beside * 7) for beside in range(1_000)}) == 1


def test_where_the_sun_does_not_rise_there_is_no_slot(sunrise: solar, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Celery names after a year's search in vain is no event."""
    monkeypatch.setattr(Observer, "night", True)
    slots = Solar(sunrise)
    if not hasattr(sunrise, "_next_event"):  # Celery 5.6 fails by itself, which is the schedule's problem
        with pytest.raises(TypeError):
            slots.after(MIDNIGHT)
        return
    assert slots.after(MIDNIGHT) is None
    assert slots.latest(MIDNIGHT) is None
    assert slots.count(MIDNIGHT, MIDNIGHT + DAY) == 0


def test_marks(sunrise: solar) -> None:
    """Event and place; the app and the clock are no part of it."""
    assert when_of(sunrise, app_timezone=UTC).mark == "solar:sunrise:52.5:13.4"


def test_without_ephem_the_error_says_so(sunrise: solar) -> None:
    """A schedule that came out of a pickle may lack it."""
    sunrise.ephem = None
    with pytest.raises(ConfigurationError, match=r"pip install 'celery\[solar\]'"):
        when_of(sunrise, app_timezone=UTC)


def test_an_own_sun_is_asked_itself(sunrise: solar) -> None:
    """A subclass with its own is_due is the user's."""

    class Later(solar):  # type: ignore[misc]
        def is_due(self, last_run_at: datetime) -> Any:
            return super().is_due(last_run_at - timedelta(hours=1))

    assert when_of(Later("sunrise", 1, 2, app=Celery(set_as_current=False)), app_timezone=UTC).mark.startswith("own:")
