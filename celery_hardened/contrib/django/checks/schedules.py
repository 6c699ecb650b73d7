"""Rules on schedules: who fires them, and by which clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from importlib.metadata import version
from typing import Any

import django_celery_beat
from celery.utils.imports import symbol_by_name
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from django.utils.timezone import get_default_timezone

from celery_hardened.contrib.django.checks.project import Project, Rule, page
from celery_hardened.preset import set_by_user

#: The oldest django-celery-beat whose tables we know.
OLDEST = (2, 8)

#: Names of ours that Celery finds by their entry points.
OURS = ("hardened", "hardened-django")


def tables_are_known(_: Project) -> Iterator[CheckMessage]:
    """E005."""
    found = str(getattr(django_celery_beat, "__version__", "") or version("django-celery-beat"))
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        yield Error(
            f"django-celery-beat {found} is too old: its tables are read as of {'.'.join(map(str, OLDEST))}.",
            hint=f"Install a newer one, and run `manage.py migrate`. {page('Compatibility')}",
            id="celery_hardened.E005",
        )


def scheduler_class(named: Any) -> Any:
    """The class that ``beat_scheduler`` names, by Celery's rules; ``None``: it cannot be imported."""
    from celery.utils.imports import load_extension_class_names

    if not isinstance(named, str):
        return named
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    try:
        return symbol_by_name(named, aliases)
    except (ImportError, AttributeError, ValueError):
        return None


def fired_by_ours(project: Project) -> Iterator[CheckMessage]:
    """W008. Nothing if the setting is not set: ``-S`` of the command line may name ours."""
    named = project.conf.beat_scheduler
    if project.hardening is None or not set_by_user(project.conf, "beat_scheduler") or named in OURS:
        return
    from celery_hardened.pipeline.beat import HardenedScheduler

    found = scheduler_class(named)
    if not (isinstance(found, type) and issubclass(found, HardenedScheduler)):
        yield Warning(
            f"CELERY_BEAT_SCHEDULER is {named!r}, which is not one of celery_hardened's: two beats fire each slot "
            f"twice, a slot that is missed is lost, and policies, pauses and run history in the admin have no effect.",
            hint=(
                "Set CELERY_BEAT_SCHEDULER = 'hardened-django', or start beat with -S hardened-django. "
                + page("Schedule from Django's database")
            ),
            id="celery_hardened.W008",
        )


def one_clock(project: Project) -> Iterator[CheckMessage]:
    """W009."""
    ours, theirs = project.app.timezone, get_default_timezone()
    differs = _differ_at(ours, theirs)
    if differs is not None:
        hours = abs(differs) / timedelta(hours=1)
        yield Warning(
            f"Celery's time zone is {str(ours)!r} and Django's TIME_ZONE is {str(theirs)!r}: up to {hours:g} h apart. "
            f"A crontab of beat_schedule, and a new one in the admin, is in Celery's; the admin shows times in "
            f"Django's.",
            hint=f"Set CELERY_TIMEZONE = TIME_ZONE. {page('Schedules and clocks')}",
            id="celery_hardened.W009",
        )


def _differ_at(one: tzinfo, other: tzinfo) -> timedelta | None:
    """The largest difference between two zones within two years; ``None``: the same clock by whatever name."""
    begin = datetime.now(timezone.utc)
    instants = [begin + timedelta(days=7 * week) for week in range(104)]
    found = [_offset(one, at) - _offset(other, at) for at in instants]
    largest = max(found, key=abs)
    return largest or None


def _offset(zone: tzinfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def aware(_: Project) -> Iterator[CheckMessage]:
    """W010."""
    theirs = bool(getattr(django_settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True))
    if theirs != bool(django_settings.USE_TZ):
        yield Warning(
            f"USE_TZ is {bool(django_settings.USE_TZ)} and DJANGO_CELERY_BEAT_TZ_AWARE is {theirs}: "
            + (
                "last runs are compared with and without a zone, and may be hours off."
                if theirs
                else "start, end and last run of a schedule lose their zone on the way."
            ),
            hint=(
                f"Set DJANGO_CELERY_BEAT_TZ_AWARE = {bool(django_settings.USE_TZ)}; USE_TZ = True is the better of the "
                f"two, because without it an hour of each autumn is there twice. {page('Schedules and clocks')}"
            ),
            id="celery_hardened.W010",
        )


RULES: tuple[Rule, ...] = (tables_are_known, fired_by_ours, one_clock, aware)
