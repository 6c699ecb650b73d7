"""A real beat whose wall clock is set: both changes of the clocks, steps of an hour, and a night that was missed.

The clock is walked to each moment of interest; what was fired is read from the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import StartProcess
from tests.support.timed_beat import SCHEDULERS, Timed, TimedBeat
from tests.support.until import until
from tests.support.wallshift import WallShift

pytestmark = pytest.mark.parametrize("broker", ["redis"], indirect=True)

QUARTER = timedelta(minutes=15)
HOUR = timedelta(hours=1)


@pytest.fixture(params=SCHEDULERS)
def timed(
    request: pytest.FixtureRequest,
    wall_shift: WallShift,
    environment: dict[str, str],
    start_beat: StartBeat,
    start_process: StartProcess,
) -> TimedBeat:
    """Either scheduler, at the clock that the test sets."""
    return TimedBeat(request.param, wall_shift, environment, start_beat, start_process)


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)


# --- changes of the clocks ---------------------------------------------------------------------------------


SPRING_NEW_YORK = "America/New_York", utc(2027, 3, 14, 7), {
    "01:30": ["01:30 EST"],
    "02:30": ["03:00 EDT"],  # does not exist
    "03:00": ["03:00 EDT"],
}  # fmt: skip
SPRING_LONDON = "Europe/London", utc(2027, 3, 28, 1), {
    "00:30": ["00:30 GMT"],
    "01:30": ["02:00 BST"],
    "02:30": ["02:30 BST"],
}  # fmt: skip
AUTUMN_NEW_YORK = "America/New_York", utc(2027, 11, 7, 6), {
    "01:30": ["01:30 EDT"],  # is there twice
    "02:30": ["02:30 EST"],
    "00:45": ["00:45 EDT"],
}  # fmt: skip
AUTUMN_LONDON = "Europe/London", utc(2027, 10, 31, 1), {
    "01:30": ["01:30 BST"],
    "02:30": ["02:30 GMT"],
    "00:45": ["00:45 BST"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zone", "change", "daily"),
    [SPRING_NEW_YORK, SPRING_LONDON, AUTUMN_NEW_YORK, AUTUMN_LONDON],
    ids=["spring, New York", "spring, London", "autumn, New York", "autumn, London"],
)
def test_slots_over_a_change_of_the_clocks(
    timed: TimedBeat, tmp_path: Path, zone: str, change: datetime, daily: dict[str, list[str]]
) -> None:
    """A fixed time that does not exist runs right after the jump, one that is there twice runs at the first, once; one
    after the change is on time. Each quarter and each hour that passes is a run, through both copies of an hour."""
    here = ZoneInfo(zone)
    begin, end = change - 2 * HOUR, change + 2 * HOUR
    fixed = [Timed(name, f"{int(name[3:])} {int(name[:2])}", zone) for name in daily]
    timed.lay(
        tmp_path, [*fixed, Timed("hourly", "0 *", zone), Timed("quarterly", "*/15 *", zone)], at=begin + QUARTER / 5
    )
    timed.start()

    quarters = [begin + count * QUARTER for count in range(1, (end - begin) // QUARTER + 1)]
    for moment in quarters:
        # Over the change itself the clock runs; to the others it is set.
        timed.go(moment, ahead=1.5 if moment == change else 0.0)

    for name, expected in daily.items():
        assert [f"{slot.astimezone(here):%H:%M %Z}" for slot in timed.slots(name)] == expected, name
    assert timed.slots("quarterly") == quarters
    assert timed.slots("hourly") == [begin + count * HOUR for count in range(1, 5)]
    for name in (*daily, "quarterly", "hourly"):
        for run in timed.fired(name):
            assert run.missed == 0
            assert 0 <= run.published - run.slot.timestamp() < 30, name


# --- steps of the clock ----------------------------------------------------------------------------------------

STEADY = [
    Timed("second", every=1, policy={"catchup_window": 86_400.0}),
    Timed("minute", "* *"),
    Timed("hourly", "0 *"),
]


def accounted(timed: TimedBeat, name: str, period: timedelta) -> None:
    """No slot of *name* came twice, and each was fired or is among those that a run stands for."""
    runs = timed.fired(name)
    assert len({run.task_id for run in runs}) == len(runs) == len({run.slot for run in runs})
    assert [run.slot for run in runs] == sorted(run.slot for run in runs)
    reached = runs[0].slot
    for run in runs[1:]:
        reached += period * (run.missed + 1)
        assert run.slot == reached


def later(timed: TimedBeat, name: str, more: int) -> Callable[[], bool]:
    """Has *name* been fired so many times more?"""
    so_far = len(timed.fired(name))
    return lambda: len(timed.fired(name)) >= so_far + more


@pytest.mark.slow
def test_a_clock_that_is_set_back_an_hour(timed: TimedBeat, tmp_path: Path) -> None:
    """Schedules of a second and a minute go on being fired, the minute not an hour later; no slot comes twice, and none
    comes before its time by a clock that runs on: there is no storm either. Then the clock is set right again."""
    timed.lay(tmp_path, STEADY, at=utc(2027, 6, 1, 12, 59, 5))
    timed.start()
    timed.go(utc(2027, 6, 1, 13), ahead=3)
    timed.clock.set(utc(2027, 6, 1, 13, 0, 40))
    until(lambda: timed.slots("second")[-1] > utc(2027, 6, 1, 13, 0, 42), what="seconds to be fired", within=60)

    timed.clock.set(timed.clock.offset - 3600)
    seconds = len(timed.fired("second"))
    until(later(timed, "second", 8), what="seconds to be fired after the step", within=120)
    back = timed.fired("second")[seconds:]
    assert all(run.slot > utc(2027, 6, 1, 13) for run in back)
    # It goes at half the speed: in the time between the messages there were half as many slots, if none was made up.
    took = back[-1].published - back[0].published
    assert (back[-1].slot - back[0].slot).total_seconds() <= took / 2 + 2
    until(lambda: utc(2027, 6, 1, 13, 1) in timed.slots("minute"), what="the next minute", within=170)

    timed.clock.set(timed.clock.offset + 3600)
    until(later(timed, "second", 5), what="seconds to be fired once it is right", within=60)
    accounted(timed, "second", timedelta(seconds=1))
    accounted(timed, "minute", timedelta(minutes=1))
    assert timed.slots("hourly") == [utc(2027, 6, 1, 13)]


@pytest.mark.slow
def test_a_clock_that_is_set_ahead_an_hour(timed: TimedBeat, tmp_path: Path) -> None:
    """What lies in the hour was missed: one run stands for it, not sixty or 3,600. Set back, nothing comes twice."""
    timed.lay(tmp_path, STEADY, at=utc(2027, 6, 1, 12, 58, 5))
    timed.start()
    timed.go(utc(2027, 6, 1, 12, 59), ahead=3)
    until(later(timed, "second", 3), what="seconds to be fired", within=60)

    seconds, minutes = len(timed.fired("second")), len(timed.fired("minute"))
    timed.clock.set(timed.clock.offset + 3600)
    until(later(timed, "second", 40), what="seconds to be fired after the step", within=120)
    ahead = timed.fired("second")[seconds:]
    assert sum(run.missed > 0 for run in ahead) == 1
    assert sum(run.missed for run in ahead) > 3500
    (made_up, *_) = timed.fired("minute")[minutes:]
    assert 57 <= made_up.missed <= 60
    # 30 seconds are on time, and each comes under its own name.
    assert len(ahead) < 40 + 60

    timed.clock.set(timed.clock.offset - 3600)
    until(later(timed, "second", 5), what="seconds to be fired once it is right", within=120)
    accounted(timed, "second", timedelta(seconds=1))
    accounted(timed, "minute", timedelta(minutes=1))
    assert len(timed.slots("hourly")) == 1


# --- a night that was missed -------------------------------------------------------------------------------------

NIGHTLY = [
    Timed("once", "0 2"),
    Timed("skipped", "0 2", policy={"missed_run": "skip"}),
    Timed("all", "0 2", policy={"missed_run": "run_all"}),
    Timed("expired", "0 2", policy={"catchup_window": 3 * 3600.0}),
    Timed("all hourly", "0 *", policy={"missed_run": "run_all", "catchup_window": 4.5 * 3600}),
    # So that six o'clock is on time for a beat that a busy machine needs long to start.
    Timed("hourly", "0 *", policy={"grace": 120.0}),
]


@pytest.mark.slow
def test_a_night_that_was_missed_by_four_hours(timed: TimedBeat, tmp_path: Path) -> None:
    """As each policy says, when beat is back at six: at once and once, not before the next night, or each of them; not
    at midnight, and the next night as ever."""
    timed.lay(tmp_path, NIGHTLY, at=utc(2027, 6, 1, 0, 50, 30))
    first = timed.start()
    timed.go(utc(2027, 6, 1, 1))
    first.stop()
    assert timed.slots("hourly") == timed.slots("all hourly") == [utc(2027, 6, 1, 1)]

    timed.clock.set(utc(2027, 6, 1, 6, 0, 5))
    timed.start()
    until(lambda: utc(2027, 6, 1, 6) in timed.slots("all hourly"), what="the hours to be made up for", within=60)
    timed.go(utc(2027, 6, 1, 6, 1))
    night = utc(2027, 6, 1, 2)
    assert [(run.slot, run.missed) for run in timed.fired("once")] == [(night, 0)]
    assert [(run.slot, run.missed) for run in timed.fired("all")] == [(night, 0)]
    assert timed.slots("skipped") == timed.slots("expired") == []
    # 1 o'clock was fired, 2 is within four and a half hours, and 6 is on time.
    assert timed.slots("all hourly") == [utc(2027, 6, 1, hour) for hour in range(1, 7)]
    assert [(run.slot.hour, run.missed) for run in timed.fired("hourly")] == [(1, 0), (5, 3), (6, 0)]

    for moment in (utc(2027, 6, 1, 12), utc(2027, 6, 2), utc(2027, 6, 2, 0, 30), utc(2027, 6, 2, 1, 59)):
        timed.go(moment, ahead=1.5)
    assert timed.slots("once") == timed.slots("all") == [night]
    assert timed.slots("skipped") == timed.slots("expired") == []
    timed.go(utc(2027, 6, 2, 2), ahead=1.5)
    tomorrow = utc(2027, 6, 2, 2)
    for name in ("once", "all"):
        assert timed.slots(name) == [night, tomorrow]
    assert timed.slots("skipped") == timed.slots("expired") == [tomorrow]
    assert [line["outcome"] for line in timed.store.history("skipped", 9)] == ["fired", "skipped"]
    assert [line["outcome"] for line in timed.store.history("expired", 9)] == ["fired", "expired"]
