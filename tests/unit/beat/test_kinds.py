"""From Celery's schedule objects to slots."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from celery.utils.time import LocalTimezone

from celery_hardened.beat.kinds import when_of, zone_name
from celery_hardened.beat.own import Own
from celery_hardened.beat.schedule import When
from celery_hardened.errors import ConfigurationError

UTC = timezone.utc
NY = ZoneInfo("America/New_York")
BERLIN = ZoneInfo("Europe/Berlin")

START = datetime(2026, 6, 1, 12, 34, 56, tzinfo=UTC).timestamp()


def when(found: Any, *, app_timezone: tzinfo = UTC, zone: Any = None) -> When:
    return when_of(found, app_timezone=app_timezone, zone=zone)


def first(found: When) -> datetime:
    slot = found.slots(found.anchored(START)).after(START)
    assert slot is not None
    return datetime.fromtimestamp(slot, UTC)


# --- crontabs ---


def test_a_crontab_is_in_the_apps_zone_if_nothing_else_is_said() -> None:
    """Half past two, there."""
    assert first(when(crontab(hour=2, minute=30), app_timezone=NY)) == datetime(2026, 6, 2, 2, 30, tzinfo=NY)


def test_the_entrys_zone_comes_first() -> None:
    """The entry's own ``timezone`` is nearer than a nowfun and the app's, by name or as an object."""
    found = crontab(hour=2, minute=30, nowfun=lambda: datetime.now(NY))
    for zone in ("Europe/Berlin", BERLIN):
        assert first(when(found, zone=zone)) == datetime(2026, 6, 2, 2, 30, tzinfo=BERLIN)


def test_a_nowfun_tells_the_zone() -> None:
    """What an aware nowfun returns has the zone that its author counts in; a naive one tells nothing."""
    aware = crontab(hour=2, minute=30, nowfun=lambda: datetime.now(NY))
    naive = crontab(hour=2, minute=30, nowfun=datetime.now)
    assert first(when(aware, app_timezone=BERLIN)) == datetime(2026, 6, 2, 2, 30, tzinfo=NY)
    assert first(when(naive, app_timezone=BERLIN)) == datetime(2026, 6, 2, 2, 30, tzinfo=BERLIN)


def test_django_celery_beats_crontab_has_its_own_zone() -> None:
    """TzAwareCrontab decides by its ``tz``, and is no class of the user's though it overrides is_due."""
    tzcrontab = pytest.importorskip("django_celery_beat.tzcrontab")
    found = when(tzcrontab.TzAwareCrontab("30", "2", tz=NY), app_timezone=BERLIN)
    assert first(found) == datetime(2026, 6, 2, 2, 30, tzinfo=NY)
    assert found.mark == when(crontab(hour=2, minute=30), app_timezone=NY).mark


@pytest.mark.parametrize(
    ("minute", "hour", "kind"),
    [
        ("30", "2", "fixed"),
        (30, 2, "fixed"),
        ({0, 30}, [1, 2], "fixed"),
        ("0-59", "0-23", "fixed"),
        ("*/30", "2", "elapsed"),
        ("30", "*", "elapsed"),
        ("30", "*/2", "elapsed"),
        ("*", "2", "elapsed"),
    ],
)
def test_a_leading_star_makes_it_go_by_elapsed_time(minute: Any, hour: Any, kind: str) -> None:
    """Of the minute or the hour, however else they are written."""
    assert when(crontab(minute=minute, hour=hour)).mark.split(":")[-2] == kind


def test_equal_crontabs_share_everything() -> None:
    """100,000 schedules of a few crontabs keep a few objects."""
    assert when(crontab(minute="*/5")) is when(crontab(minute="*/5"))
    assert when(10) is when(timedelta(seconds=10)) is when(schedule(10.0))


# --- intervals ---


def test_an_interval_counts_from_its_anchor() -> None:
    """Seconds, a timedelta and Celery's own object are the same; the first slot is a period after the start."""
    for found in (90, 90.0, timedelta(seconds=90), schedule(90)):
        assert first(when(found)).timestamp() == START + 90
    assert when(0.25).slots(START).after(START) == START + 0.25


@pytest.mark.parametrize(
    ("period", "anchor"),
    [
        (timedelta(days=1), datetime(2026, 6, 1, tzinfo=NY)),
        (timedelta(hours=2), datetime(2026, 6, 1, 8, tzinfo=NY)),
        (timedelta(minutes=5), datetime(2026, 6, 1, 8, 34, tzinfo=NY)),
        (timedelta(seconds=5), datetime(2026, 6, 1, 8, 34, 56, tzinfo=NY)),
    ],
)
def test_a_relative_interval_starts_at_a_round_time(period: timedelta, anchor: datetime) -> None:
    """As Celery rounds: to the local day, hour or minute that the period is at least as long as."""
    assert when(schedule(period, relative=True), app_timezone=NY).anchored(START) == anchor.timestamp()


def test_a_round_time_is_never_in_the_future() -> None:
    """Midnight does not exist on the day the clock jumps there: the anchor is when the day began."""
    zone = ZoneInfo("America/Sao_Paulo")
    start = datetime(2018, 11, 4, 1, 0, tzinfo=zone).timestamp()
    assert when(schedule(timedelta(days=1), relative=True), app_timezone=zone).anchored(start) == start


# --- others ---


def test_a_clocked_schedule_is_one_slot() -> None:
    """Told by its ``clocked_time``, so without importing Django."""

    class Clocked:
        clocked_time = datetime(2026, 7, 1, 8, 0, 0, 123_456, tzinfo=BERLIN)

    found = when(Clocked())
    slot = found.slots(0.0).after(START)
    assert slot == round(Clocked.clocked_time.timestamp(), 3)
    assert found.slots(0.0).after(slot) is None


@pytest.mark.parametrize("method", ["is_due", "remaining_estimate"])
@pytest.mark.parametrize("base", [crontab, schedule])
def test_a_subclass_that_decides_itself_is_asked(base: Any, method: str) -> None:
    """What it overrides would otherwise be passed over."""

    def same(self: Any, last_run_at: datetime) -> Any:
        return getattr(base, method)(self, last_run_at)

    own = type("Own", (base,), {method: same, "__module__": __name__})
    app = Celery(set_as_current=False)
    assert isinstance(when(own(6, app=app)).slots(0.0), Own)
    assert not isinstance(when(type("Same", (base,), {})(6)).slots(0.0), Own)


# --- marks ---

SCHEDULES = """
crontab(minute={30, 0, 45}, hour="*/2", day_of_week="mon-fri")
crontab(minute=0, hour=2, nowfun=lambda: datetime.now(ZoneInfo("Europe/Berlin")))
schedule(90, relative=True)
Own({"a", "b", "c"}, every=60)
0.5
"""

PROGRAM = f"""
from datetime import datetime, timezone
from zoneinfo import ZoneInfo
from celery.schedules import BaseSchedule, crontab, schedule
from celery_hardened.beat.kinds import when_of

class Own(BaseSchedule):
    def __init__(self, names, every):
        super().__init__()
        self.names, self.every = names, every
    def is_due(self, last_run_at):
        return False, 1.0

for line in {SCHEDULES!r}.split("\\n"):
    if line:
        print(when_of(eval(line), app_timezone=ZoneInfo("America/New_York")).mark)
"""


def test_marks_are_the_same_in_every_process() -> None:
    """A mark that depended on the seed of hashes would start every schedule afresh at each restart."""
    texts = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1
    assert texts.pop().splitlines()[:3] == [
        "crontab:200040000001:555555:fffffffe:1ffe:3e:elapsed:America/New_York",
        "crontab:1:4:fffffffe:1ffe:7f:fixed:Europe/Berlin",
        "every:90000:relative:America/New_York",
    ]


def test_a_mark_changes_with_the_timing_alone() -> None:
    """``*`` and ``*/1`` are the same timing; another minute, zone or period is another."""
    assert when(crontab(minute="*/1")).mark == when(crontab()).mark
    different = [
        when(crontab(minute=1, hour=2)),
        when(crontab(minute=2, hour=2)),
        when(crontab(minute=1, hour=2), app_timezone=NY),
        when(crontab(minute=1, hour=2, day_of_week=1)),
        when(crontab(minute=1, hour="*/2")),
        when(crontab(minute=1, hour="0-22/2")),
        when(1),
        when(1.001),
        when(schedule(1, relative=True)),
    ]
    assert len({found.mark for found in different}) == len(different)


def test_names_of_zones() -> None:
    """UTC is UTC, whoever made it; the host's own zone is ``local``, summer and winter."""
    assert zone_name(UTC) == zone_name(ZoneInfo("UTC")) == "UTC"
    assert zone_name(timezone(timedelta(hours=2))) == "UTC+02:00"
    assert zone_name(LocalTimezone()) == "local"

    class Nameless(tzinfo):
        pass

    assert zone_name(Nameless()) == f"{__name__}.test_names_of_zones.<locals>.Nameless"


@pytest.fixture
def host_in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("host_in_new_york")
def test_the_hosts_zone_changes_when_it_changes() -> None:
    """Celery's own local time is off by hours around a change; with enable_utc=False it is the app's zone."""
    here, there = (when(crontab(hour="1-3", minute=30), app_timezone=zone).slots(0.0) for zone in (LocalTimezone(), NY))
    for month, day in ((3, 7), (10, 31)):
        start = datetime(2026, month, day, 12, tzinfo=NY).timestamp()
        for _ in range(6):
            assert here.after(start) == there.after(start)
            start = here.after(start) or 0.0
    relative = when(schedule(timedelta(days=1), relative=True), app_timezone=LocalTimezone())
    again = datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=NY)
    assert relative.anchored(again.timestamp()) == datetime(2026, 11, 1, tzinfo=NY).timestamp()


# --- what cannot be used ---


class Bare:
    clocked_time = "tomorrow"


def _raise() -> datetime:
    raise RuntimeError("no clock")


@pytest.mark.parametrize(
    ("found", "zone", "sentence"),
    [
        (0, None, "0.01 s is the least"),
        (-5, None, "0.01 s is the least"),
        (0.009, None, "0.01 s is the least"),
        (timedelta(), None, "0.01 s is the least"),
        (schedule(), None, "no period"),
        (float("nan"), None, "period of nan seconds"),
        (float("inf"), None, "period of inf seconds"),
        (crontab(), "Europe/Atlantis", "no time zone 'Europe/Atlantis'"),
        (crontab(), "Europe", "no time zone 'Europe'"),
        (crontab(), "../etc/passwd", "no time zone '../etc/passwd'"),
        (crontab(), "", "no time zone ''"),
        (crontab(), 7, "no time zone 7"),
        (crontab(nowfun=_raise), None, "nowfun raises RuntimeError: no clock"),
        (10, "Europe/Berlin", "counts elapsed time"),
        (Bare(), None, "a Bare is no schedule"),
        ("* * * * *", None, "a str is no schedule"),
        (True, None, "a bool is no schedule"),
        (None, None, "a NoneType is no schedule"),
    ],
)
def test_what_cannot_be_used_is_said(found: Any, zone: Any, sentence: str) -> None:
    """A sentence that names what is wrong, and no other kind of error."""
    with pytest.raises(ConfigurationError, match=sentence):
        when(found, zone=zone)


def test_ten_milliseconds_are_enough() -> None:
    """The shortest period there may be."""
    assert first(when(0.01)).timestamp() == pytest.approx(START + 0.01)
