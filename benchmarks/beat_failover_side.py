"""The project of two beats, for `benchmarks.beat_failover`: one schedule, and a scheduler that `SIDES` names.

``celery -A benchmarks.beat_failover_side beat`` reads `SIDE`, `URL` and `TUNED` from its environment, and `DATABASE`,
if its schedules are in one. Run as a module it makes that database.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

from benchmarks.beat_side import DJANGO, HARDENED, PERSISTENT, QUEUE, REDBEAT, use_database

SIDE, URL, TUNED, DATABASE = "BENCH_SIDE", "BENCH_URL", "BENCH_TUNED", "BENCH_DATABASE"

#: What ``celery beat -S`` is given.
SIDES = {
    HARDENED: "hardened",
    REDBEAT: "redbeat.RedBeatScheduler",
    PERSISTENT: "celery.beat:PersistentScheduler",
    DJANGO: "django_celery_beat.schedulers:DatabaseScheduler",
}

#: Seconds from one slot to the next.
EVERY = 0.5

#: What one sets for a celery-redbeat that is to go on within seconds. Its own are 1500 and 300.
TUNING = {"redbeat_lock_timeout": 5, "beat_max_loop_interval": 1}


def app_of(side: str, url: str, *, tuned: bool) -> Celery:
    """The same project for each side."""
    app = Celery("bench", broker=url, set_as_current=True)
    app.conf.update(task_default_queue=QUEUE, timezone="UTC", redbeat_redis_url=url)
    if tuned:
        app.conf.update(TUNING)
    if side != DJANGO:
        app.conf.beat_schedule = {"often": {"task": "bench.noop", "schedule": EVERY}}
    if side == HARDENED:
        from celery_hardened import harden

        app.conf.hardened_redis_url = url
        harden(app)

    @app.task(name="bench.noop")
    def noop() -> None: ...

    return app


def fill() -> None:
    """The schedule as a row."""
    from django.core.management import call_command
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    call_command("migrate", verbosity=0, interactive=False)
    every = IntervalSchedule.objects.create(every=round(EVERY * 1e6), period="microseconds")
    PeriodicTask.objects.create(name="often", task="bench.noop", interval=every)


if DATABASE in os.environ:
    use_database(Path(os.environ[DATABASE]))
if __name__ == "__main__":
    fill()
elif SIDE in os.environ:  # not where only its names are wanted
    app = app_of(os.environ[SIDE], os.environ[URL], tuned=TUNED in os.environ)
