"""What other beats are known to do wrong, and ours does not: each claim on a real beat, or on its parts.

Those of tables in a database are held by ``tests/django``, of leaders by ``tests/chaos`` and ``tests/stores``.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab
from redis import Redis

from celery_hardened.beat.entries import schedule_of
from celery_hardened.beat.names import Keys
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Schedule
from celery_hardened.errors import ConfigurationError
from celery_hardened.pipeline.beat_book import Begin, Book, Plan
from celery_hardened.settings import Settings
from tests.fixtures.beats import StartBeat
from tests.fixtures.processes import StartProcess, StartWorker
from tests.integration.test_beat import runs
from tests.support.timed_beat import APP, Timed, TimedBeat
from tests.support.until import until
from tests.support.wallshift import WallShift

only_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


@pytest.fixture
def timed(
    wall_shift: WallShift, environment: dict[str, str], start_beat: StartBeat, start_process: StartProcess
) -> TimedBeat:
    """Beats of the configuration, at the clock that the test sets."""
    return TimedBeat("hardened", wall_shift, environment, start_beat, start_process)


def utc(*at: int) -> datetime:
    return datetime(*at, tzinfo=timezone.utc)  # type: ignore[misc,arg-type]


# --- what is fired when beat starts ---------------------------------------------------------------------------


@only_redis
def test_a_new_schedule_is_not_fired_for_being_new(timed: TimedBeat, tmp_path: Path) -> None:
    """Neither an interval nor a crontab is fired when it is first seen, close before or after its slot: a slot is the
    instant of the crontab, and an interval's first one is a period later."""
    timed.lay(
        tmp_path, [Timed("hourly", "0 *"), Timed("just past", "59 *"), Timed("long", every=3600)],
        at=utc(2027, 6, 1, 12, 59, 10),
    )  # fmt: skip
    timed.start()
    timed.go(utc(2027, 6, 1, 13), ahead=1.5)
    timed.go(utc(2027, 6, 1, 13, 1), ahead=1.5)
    assert timed.slots("hourly") == [utc(2027, 6, 1, 13)]
    assert timed.slots("just past") == timed.slots("long") == []


@only_redis
def test_intervals_do_not_begin_anew_with_each_deploy(timed: TimedBeat, tmp_path: Path) -> None:
    """An interval of an hour, and a deploy every forty minutes: each hour has its run, a whole number of hours after
    the first start."""
    begun, known = utc(2027, 6, 1, 12, 0, 20), []
    timed.lay(tmp_path, [Timed("hourly", every=3600)], at=begun)
    for number in range(1, 6):
        beat = timed.start()
        known.append(timed.clock.now())
        timed.go(begun.replace(second=0) + timedelta(minutes=40 * number))
        beat.stop()
    found = timed.slots("hourly")
    assert len(found) == 3
    assert begun.timestamp() <= found[0].timestamp() - 3600 < known[0] + 5
    assert [slot - found[0] for slot in found] == [timedelta(hours=count) for count in range(3)]


@only_redis
def test_a_missed_run_is_not_made_up_for_and_then_run_again(timed: TimedBeat, tmp_path: Path) -> None:
    """Beat is away over the full hour by minutes: one run for that slot when it is back, and the next on time."""
    timed.lay(tmp_path, [Timed("hourly", "0 *")], at=utc(2027, 6, 1, 12, 50, 30))
    beat = timed.start()
    timed.go(utc(2027, 6, 1, 12, 55))
    beat.stop()
    timed.clock.set(utc(2027, 6, 1, 13, 57, 55))
    timed.start()
    timed.go(utc(2027, 6, 1, 13, 58))
    assert [(run.slot, run.missed) for run in timed.fired("hourly")] == [(utc(2027, 6, 1, 13), 0)]
    timed.go(utc(2027, 6, 1, 14), ahead=1.5)
    timed.go(utc(2027, 6, 1, 14, 1))
    assert timed.slots("hourly") == [utc(2027, 6, 1, 13), utc(2027, 6, 1, 14)]


@only_redis
def test_a_beat_that_starts_in_the_repeated_hour(timed: TimedBeat, tmp_path: Path) -> None:
    """A local time that is there twice ends no beat, whether it was started before, in the first or in the second."""
    here = ZoneInfo("America/New_York")
    timed.lay(tmp_path, [Timed("quarterly", "*/15 *", "America/New_York"), Timed("once", "10 1", "America/New_York")],
              at=utc(2027, 11, 7, 4, 49, 30))  # fmt: skip
    for start in (utc(2027, 11, 7, 5), utc(2027, 11, 7, 5, 30), utc(2027, 11, 7, 6, 15), utc(2027, 11, 7, 6, 45)):
        timed.clock.set(start - timedelta(minutes=10))  # more than a beat needs to start
        beat = timed.start()
        timed.go(start)
        assert beat.running
        beat.stop()
    assert [f"{slot.astimezone(here):%H:%M %Z}" for slot in timed.slots("once")] == ["01:10 EDT"]
    ran = [f"{run.slot.astimezone(here):%H:%M %Z}+{run.missed}" for run in timed.fired("quarterly")]
    assert ran == ["01:00 EDT+0", "01:15 EDT+0", "01:30 EDT+0", "01:00 EST+1", "01:15 EST+0", "01:30 EST+0",
                   "01:45 EST+0"]  # fmt: skip


@only_redis
def test_another_time_zone_is_no_flood_of_missed_runs(timed: TimedBeat, tmp_path: Path) -> None:
    """The app's ``timezone`` is changed between two starts: a crontab of each hour or each day is a new timing, which
    starts from now; what an interval missed meanwhile is made up for once."""
    timed.lay(tmp_path, [Timed("minutely", every=60)], at=utc(2027, 6, 1, 11, 59, 5))
    more = "{'hourly': {'task': 'proj.tick', 'schedule': crontab(minute=0)}, "
    more += "'daily': {'task': 'proj.tick', 'schedule': crontab(minute=0, hour=12)}, "
    timed.env["SCHEDULES"] = more + timed.env["SCHEDULES"][1:]
    beat = timed.start()
    timed.go(utc(2027, 6, 1, 12), ahead=1.5)
    beat.stop()
    timed.env["TIMEZONE"] = "America/New_York"
    timed.clock.set(utc(2027, 6, 8, 12, 30, 10))
    timed.start()
    timed.go(utc(2027, 6, 8, 12, 31), ahead=1.5)
    assert timed.slots("hourly") == timed.slots("daily") == [utc(2027, 6, 1, 12)]
    timed.go(utc(2027, 6, 8, 16), ahead=1.5)  # noon in New York
    timed.go(utc(2027, 6, 8, 16, 1))
    assert timed.slots("daily") == [utc(2027, 6, 1, 12), utc(2027, 6, 8, 16)]
    assert 1 <= sum(run.missed > 0 for run in timed.fired("minutely")) <= 2
    assert len(timed.fired("minutely")) < 10


@only_redis
def test_no_file_is_read_or_written(
    start_beat: StartBeat, start_worker: StartWorker, out: Path, environment: dict[str, str]
) -> None:
    """A damaged ``celerybeat-schedule``, named by ``-s`` too, keeps no beat from starting; it stays as it is, and there
    is no other file."""
    env = {"SCHEDULES": "{'often': {'task': 'proj.tick', 'schedule': 0.5}}"}
    start_worker(APP, env=env)
    beat = start_beat(APP, env=env)
    folder = beat.cwd
    beat.stop()
    (folder / "celerybeat-schedule").write_bytes(b"\0damaged" * 100)
    there = {file.name for file in folder.iterdir()}
    beat.argv += ["-s", "celerybeat-schedule"]
    beat.start()
    so_far = len(runs(out, "often"))
    until(lambda: len(runs(out, "often")) >= so_far + 3, what="three runs", within=60)
    assert (folder / "celerybeat-schedule").read_bytes() == b"\0damaged" * 100
    assert {file.name for file in folder.iterdir()} == there


# --- one schedule and the others --------------------------------------------------------------------------------

ODD = """

from celery.schedules import BaseSchedule, schedstate


class Later(BaseSchedule):
    def is_due(self, last_run_at):
        return schedstate(is_due=True, next=3600.0)


class Never(Later):
    def is_due(self, last_run_at):
        return schedstate(is_due=False, next=1e9)


class Broken(Later):
    def is_due(self, last_run_at):
        raise RuntimeError("is_due has failed")


class Clocked(Later):
    clocked_time = __import__("datetime").datetime(2020, 1, 1)


for kind in (Later, Never, Broken, Clocked):
    app.conf.beat_schedule[kind.__name__] = {"task": "proj.tick", "schedule": kind(app=app)}
"""


@only_redis
def test_no_schedule_holds_up_the_others(start_beat: StartBeat, start_worker: StartWorker, out: Path) -> None:
    """One that is due and wants to be asked an hour later, one that is never due, one that fails, and an instant long
    past: the one of each half second has all of its slots, and what is due and asks for an hour is no storm."""
    env = {"SCHEDULES": "{'often': {'task': 'proj.tick', 'schedule': 0.5}}"}
    start_worker(APP + ODD, env=env, concurrency=1)  # one after the other, so that the runs so far have no gap
    beat = start_beat(APP + ODD, env=env)
    until(lambda: len(runs(out, "often")) >= 8, what="eight runs", within=60)
    slots = sorted(slot for slot, _, _ in runs(out, "often"))
    assert [round(slot - slots[0], 3) for slot in slots] == [0.5 * count for count in range(len(slots))]
    assert len(runs(out, "Later")) <= 1
    assert not runs(out, "Never")
    assert not runs(out, "Broken")
    assert "schedule 'Broken'" in beat.log()


def book_of(entries: Mapping[str, Any], now: float) -> Book:
    """A book that knows *entries*, and has a record of each."""
    app = Celery(set_as_current=False)
    found = [schedule_of(name, entry, app=app, defaults=Policy()) for name, entry in entries.items()]
    book = Book()
    book.open([one for one in found if isinstance(one, Schedule)], {}, {}, now)
    while plans := book.due(now, most=1000):
        for plan in plans:
            book.took(plan, book.text_of(plan.record), now)
    assert len(book) == len(entries)
    return book


def test_a_tick_costs_as_much_as_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand schedules ten are due: twenty decisions, ten of them on what is next; none if nothing is due."""
    now = 1_800_000_000.0
    entries = {f"s{number}": {"task": "t", "schedule": 60.0 if number < 10 else 3600.0} for number in range(10_000)}
    book = book_of(entries, now)
    decided: list[str] = []
    plan = Book.plan

    def counted(self: Book, name: str, at: float) -> Plan | None:
        decided.append(name)
        return plan(self, name, at)

    monkeypatch.setattr(Book, "plan", counted)
    assert book.due(now + 59, most=100) == []
    assert decided == []
    plans = book.due(now + 60, most=100)
    assert len(plans) == len(decided) == 10
    assert not any(isinstance(one.step, Begin) for one in plans)


def test_a_starting_deadline_is_heeded_whatever_the_zone() -> None:
    """``beat_cron_starting_deadline`` is the ``catchup_window`` of each crontab that says none; of no interval."""
    app = Celery(set_as_current=False)
    app.conf.beat_cron_starting_deadline = 300

    def window(**entry: Any) -> float | None:
        found = schedule_of("s", {"task": "t", **entry}, app=app, defaults=Policy())
        assert isinstance(found, Schedule), found
        return found.policy.catchup_window

    assert window(schedule=crontab(minute=0)) == 300
    assert window(schedule=crontab(minute=0), timezone="Asia/Tokyo") == 300
    assert window(schedule=crontab(minute=0), catchup_window=900) == 900
    assert window(schedule=60.0) == Policy().catchup_window


# --- Redis ----------------------------------------------------------------------------------------------------------


@only_redis
@pytest.mark.parametrize("lost", ["records", "leader", "everything"])
def test_keys_that_are_lost(
    start_beat: StartBeat, start_worker: StartWorker, environment: dict[str, str], out: Path, lost: str
) -> None:
    """Evicted, deleted or flushed while a beat runs: the schedule goes on by itself, no slot runs twice."""
    env = {
        "RECORDS_URL": environment["BROKER_URL"],
        "SCHEDULES": "{'often': {'task': 'proj.tick', 'schedule': crontab()}, "
        "'each': {'task': 'proj.tick', 'schedule': 0.5}}",
    }
    start_worker(APP, env=env)
    start_beat(APP, env=env)
    until(lambda: len(runs(out, "each")) >= 4, what="runs", within=60)
    keys = Keys(environment["KEY_PREFIX"])
    with Redis.from_url(environment["BROKER_URL"]) as redis:
        redis.delete(
            *{
                "records": [keys.records],
                "leader": [keys.leader],
                "everything": redis.keys(f"{environment['KEY_PREFIX']}:{{beat}}:*"),
            }[lost]
        )
    so_far, at = len(runs(out, "each")), time.time()
    until(lambda: len(runs(out, "each")) >= so_far + 6, what="runs after the loss", within=60)
    slots = [slot for slot, _, _ in runs(out, "each")]
    assert len(slots) == len(set(slots))
    assert max(slots) - at < 60
    with Redis.from_url(environment["BROKER_URL"]) as redis:
        assert redis.hexists(keys.records, "each")
        assert redis.exists(keys.leader)


# --- beat in a worker -------------------------------------------------------------------------------------------------


@only_redis
def test_a_worker_with_a_beat_of_its_own_beside_a_plain_one(
    start_beat: StartBeat, start_worker: StartWorker, out: Path, environment: dict[str, str]
) -> None:
    """``celery worker -B --scheduler hardened`` (its ``-S`` is another option): one of the two leads, the other stands
    by and goes on when the first is gone; no slot runs twice."""
    env = {
        "SCHEDULES": "{'often': {'task': 'proj.tick', 'schedule': 0.5}}",
        "RECORDS_URL": environment["BROKER_URL"],
    }
    worker = start_worker(APP, env=env, args=["-B", "--scheduler", "hardened"])
    worker.wait_for_log("schedules, term", within=60)
    second = start_beat(APP, env=env, leads=False)
    second.wait_standing_by()
    until(lambda: len(runs(out, "often")) >= 6, what="runs by the worker's beat", within=60)

    worker.stop()
    second.wait_leading()
    start_worker(APP, env=env)
    so_far = len(runs(out, "often"))
    until(lambda: len(runs(out, "often")) >= so_far + 6, what="runs by the other beat", within=60)
    slots = [slot for slot, _, _ in runs(out, "often")]
    assert len(slots) == len(set(slots))


# --- what is installed ------------------------------------------------------------------------------------------


def test_the_redis_transport_comes_whole() -> None:
    """``pip install celery redis`` lacks what kombu's transport imports: ours asks for Celery's own extra."""
    assert any(
        one.replace(" ", "").startswith("celery[redis]") for one in importlib.metadata.requires("celery-hardened") or []
    )


@pytest.mark.parametrize("given", [{"hardened_beat_ttl": 0}, {"hardened_beat_lock_timeout": 30}])
def test_a_setting_that_is_zero_or_renamed_is_refused(given: dict[str, Any]) -> None:
    """A lease of no time would let everybody lead, and a setting nobody knows would be a default in silence."""
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        Settings.from_conf(given)
