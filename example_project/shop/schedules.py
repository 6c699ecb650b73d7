"""The schedules, as rows of Django's database: from then on the admin is where they are changed."""

from datetime import timedelta

from django.utils import timezone
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from celery_hardened.contrib.django.models import SchedulePolicy

#: Seconds between two comparisons with the gateway.
EVERY = 5


def make_schedules():
    """Make those that are not there. What somebody has changed stays as it is."""
    two_at_night, _ = CrontabSchedule.objects.get_or_create(minute="0", hour="2", timezone="Europe/Paris")
    often, _ = IntervalSchedule.objects.get_or_create(every=EVERY, period=IntervalSchedule.SECONDS)

    # A night in which nobody was there is made up for in the morning, unless the day is half over.
    _make(
        "nightly report",
        {"task": "shop.nightly_report", "crontab": two_at_night},
        {"missed_run": "run_once", "catchup_window": 12 * 3600.0, "overlap": "skip"},
    )
    # Of comparisons that were missed the latest is enough. What is later than three seconds was missed.
    _make(
        "compare with the gateway",
        # Not before all processes are up: its first slots would be missed, and the overview says so for an hour.
        {"task": "shop.compare_with_gateway", "interval": often, "start_time": timezone.now() + timedelta(seconds=30)},
        {"missed_run": "run_once", "grace": 3.0, "overlap": "skip"},
    )
    # The package's own: the history of all these runs is kept by age and count.
    _make(
        "prune the run history",
        {"task": "celery_hardened.prune_schedule_runs", "crontab": two_at_night},
        {"missed_run": "run_once", "overlap": "skip"},
    )


def _make(name, columns, policy):
    task, made = PeriodicTask.objects.get_or_create(name=name, defaults=columns)
    if made:
        SchedulePolicy.objects.create(periodic_task=task, **policy)
