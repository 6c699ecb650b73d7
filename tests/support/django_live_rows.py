"""Tables, people and schedules of the site that browsers visit: ``python -m tests.support.django_live_rows``."""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.core.management import call_command

#: Name and password of the one who may do everything, and of one who may look at periodic tasks only.
ADA = ("ada", "of-the-tests")
BOB = ("bob", "of-the-tests")

#: Of a group: what Django's own pages do where a thing has a long name.
LONG_NAME = "Everybody who is on call for payments, invoices and reminders this week"

#: Name → task, timing (seconds, or a crontab's minute, hour and zone), and columns.
SCHEDULES: dict[str, tuple[str, float | tuple[str, str, str], dict[str, Any]]] = {
    "heartbeat": ("shop.note", 0.2, {"args": json.dumps(["old"])}),
    "reports": ("shop.report", 0.5, {}),
    "paused one": ("shop.note", 0.2, {"args": json.dumps(["paused"])}),
    "of the leader": ("shop.note", 0.2, {"args": json.dumps(["led"])}),
    "nightly report": ("shop.report", ("30", "2", "Europe/Paris"), {"description": "For accounting, at nine."}),
    "send reminders": ("shop.note", ("0", "9", "America/New_York"), {"args": json.dumps(["reminder"])}),
    "poll the warehouse": ("shop.note", 5.0, {"args": json.dumps(["stock"])}),
    "tidy up": ("shop.note", 3600.0, {"args": json.dumps(["tidy"])}),
}


#: The same, as a shop has them: for pictures.
LIFELIKE: dict[str, tuple[str, float | tuple[str, str, str], dict[str, Any]]] = {
    "nightly report": ("shop.report", ("30", "2", "Europe/Paris"), {"description": "For accounting, at nine."}),
    "send reminders": ("shop.note", ("0", "9", "America/New_York"), {"args": json.dumps(["reminder"])}),
    "poll the warehouse": ("shop.note", 5.0, {"args": json.dumps(["stock"])}),
    "pay the suppliers": ("shop.note", ("0", "6", "Europe/Paris"), {"args": json.dumps(["suppliers"])}),
    "tidy up": ("shop.note", 3600.0, {"args": json.dumps(["tidy"])}),
}


def make(schedules: dict[str, tuple[str, float | tuple[str, str, str], dict[str, Any]]]) -> None:
    """Raises whatever a migration raises."""
    from django.contrib.auth.models import Group, Permission, User
    from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

    call_command("migrate", run_syncdb=True, verbosity=0, interactive=False)
    User.objects.create_superuser(ADA[0], password=ADA[1])
    bob = User.objects.create_user(BOB[0], password=BOB[1], is_staff=True)
    bob.user_permissions.set(Permission.objects.filter(codename="view_periodictask"))
    Group.objects.create(name=LONG_NAME)
    for name, (task, timing, columns) in schedules.items():
        at: dict[str, Any]
        if isinstance(timing, tuple):
            minute, hour, zone = timing
            at = {"crontab": CrontabSchedule.objects.create(minute=minute, hour=hour, timezone=zone)}
        else:
            every, period = (round(timing), "seconds") if timing >= 1 else (round(timing * 1e6), "microseconds")
            at = {"interval": IntervalSchedule.objects.get_or_create(every=every, period=period)[0]}
        PeriodicTask.objects.create(name=name, task=task, enabled=timing not in (0.2, 0.5), **at, **columns)


def make_more() -> None:
    """Forty schedules, each with a timing of its own."""
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    for number in range(40):
        every = IntervalSchedule.objects.create(every=5000 + number, period="seconds")
        PeriodicTask.objects.create(name=f"further {number}", task="shop.note", interval=every, args='["more"]')


if __name__ == "__main__":
    django.setup()
    if sys.argv[1:] == ["more"]:
        make_more()
    else:
        make(LIFELIKE if sys.argv[1:] == ["lifelike"] else SCHEDULES)
