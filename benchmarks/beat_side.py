"""One beat in a process of its own, for `benchmarks.beat`: started, ticked, and left to run.

It says what it has measured as one line of JSON each, and ends with its standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from celery import Celery
from celery.schedules import crontab

HARDENED, HARDENED_DJANGO = "hardened", "hardened-django"
PERSISTENT, REDBEAT, DJANGO = "PersistentScheduler", "celery-redbeat", "django-celery-beat"

SIDES = (HARDENED, PERSISTENT, REDBEAT, HARDENED_DJANGO, DJANGO)
OURS = (HARDENED, HARDENED_DJANGO)
WITH_DATABASE = (HARDENED_DJANGO, DJANGO)

QUEUE = "bench"

#: Seconds of the intervals that nobody waits for; several, as schedules of a project share a few.
PERIODS = tuple(86_400 + 60 * number for number in range(7))

#: Ticks of a side that does not wait in them; seconds that one of ours is watched for.
TICKS, WATCHED = 20, 5.0


def main() -> None:
    """Be one side, as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="its files; of a database: db.sqlite3")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--due", type=int, default=0, help="so many of them are due each minute")
    parser.add_argument("--fill", action="store_true", help="only fill the database")
    parser.add_argument("--idle", action="store_true", help="measure ticks with nothing due")
    options = parser.parse_args()
    if options.side in WITH_DATABASE:
        use_database(options.folder / "db.sqlite3")
    if options.fill:
        fill(options.count, options.due)
        return
    app = app_of(options.side, options.url, options.count, options.due)
    run(options.side, app, options.folder, idle=options.idle)


def app_of(side: str, url: str, count: int, due: int) -> Celery:
    """The same project for each side."""
    app = Celery("bench", broker=url, set_as_current=True)
    app.conf.update(task_default_queue=QUEUE, redbeat_redis_url=url, redbeat_lock_key=None, timezone="UTC")
    if side not in WITH_DATABASE:
        app.conf.beat_schedule = {
            f"schedule {number}": {
                "task": "bench.noop",
                "schedule": crontab() if number < due else timedelta(seconds=PERIODS[number % len(PERIODS)]),
                "args": (number,),
            }
            for number in range(count)
        }
    if side in OURS:
        from celery_hardened import harden

        app.conf.hardened_redis_url = url
        harden(app)

    @app.task(name="bench.noop")
    def noop(number: int) -> None: ...

    app.finalize()
    return app


def scheduler_of(side: str) -> Any:
    """What makes the scheduler, as ``celery beat -S`` would; its modules are imported."""
    if side == HARDENED:
        from celery_hardened.pipeline.beat import HardenedScheduler

        return HardenedScheduler
    if side == HARDENED_DJANGO:
        from celery_hardened.contrib.django.scheduler import DatabaseScheduler

        return DatabaseScheduler
    if side == PERSISTENT:
        from celery.beat import PersistentScheduler

        return PersistentScheduler
    if side == REDBEAT:
        from redbeat import RedBeatScheduler

        return RedBeatScheduler
    from django_celery_beat.schedulers import DatabaseScheduler as Theirs

    return Theirs


def run(side: str, app: Celery, folder: Path, *, idle: bool) -> None:
    """Start, tell what that took, and tick as ``celery beat`` does until standard input ends."""
    make = scheduler_of(side)
    process = psutil.Process()
    rss, cpu, wall = process.memory_info().rss, time.process_time(), time.perf_counter()
    scheduler = make(app, schedule_filename=str(folder / "celerybeat-schedule"))
    wait = scheduler.tick()
    if side in OURS:  # it has yet to become the leader
        while not is_open(scheduler):
            scheduler.tick()
    say(
        start_cpu=time.process_time() - cpu,
        start_wall=time.perf_counter() - wall,
        rss=process.memory_info().rss,
        rss_more=process.memory_info().rss - rss,
    )
    if idle:
        say(**(idle_of_ours(scheduler) if side in OURS else idle_of(scheduler)))
    threading.Thread(target=end_with_input, daemon=True).start()
    while True:
        if wait:
            time.sleep(min(wait, 1.0) if side in OURS else wait)
        wait = scheduler.tick()


def is_open(scheduler: Any) -> bool:
    """Does it lead, and has decided on each schedule?"""
    beat = scheduler.beat
    due = beat.book.next_due()
    return len(beat.book) > 0 and due is not None and due > time.time()


def idle_of(scheduler: Any) -> dict[str, float]:
    """CPU of ticks in which nothing is due."""
    before = time.process_time()
    for _ in range(TICKS):
        scheduler.tick()
    tick = (time.process_time() - before) / TICKS
    return {"tick_cpu": tick, "idle_cpu": tick * 3600 / scheduler.max_interval}


def idle_of_ours(scheduler: Any) -> dict[str, float]:
    """The same where a tick waits by itself, the thread that holds the lead included."""
    ticks, before, until = 0, time.process_time(), time.monotonic() + WATCHED
    while time.monotonic() < until:
        scheduler.tick()
        ticks += 1
    used = time.process_time() - before
    return {"tick_cpu": used / ticks, "idle_cpu": used * 3600 / WATCHED}


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


# --- the database ------------------------------------------------------------------------------------------


def use_database(file: Path) -> None:
    """Django, with nothing but schedules in a file of SQLite."""
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["django_celery_beat", "celery_hardened.contrib.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        SECRET_KEY="of a benchmark",
        USE_TZ=True,
        TIME_ZONE="UTC",
    )
    django.setup()


def fill(count: int, due: int) -> None:
    """The same schedules as in the configuration."""
    from django.core.management import call_command
    from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

    call_command("migrate", verbosity=0, interactive=False)
    every = [IntervalSchedule.objects.create(every=period, period="seconds") for period in PERIODS]
    minutely = CrontabSchedule.objects.create(minute="*", hour="*", timezone="UTC")
    rows = [
        PeriodicTask(
            name=f"schedule {number}",
            task="bench.noop",
            args=f"[{number}]",
            **{"crontab": minutely} if number < due else {"interval": every[number % len(every)]},
        )
        for number in range(count)
    ]
    PeriodicTask.objects.bulk_create(rows, batch_size=500)


if __name__ == "__main__":
    main()
