"""Pages of Django's admin. Django imports this by itself where ``django.contrib.admin`` is installed.

Our admin of periodic tasks takes the place of django-celery-beat's own, and of no other: a project that has
registered one of its own keeps it. It gets our pages by deriving its class from ``PeriodicTaskAdmin`` here.
"""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin.exceptions import NotRegistered
from django_celery_beat import admin as theirs  # registers its own first, wherever it is in INSTALLED_APPS
from django_celery_beat.models import PeriodicTask

from celery_hardened.contrib.django.admin.schedules.inline import SchedulePolicyInline
from celery_hardened.contrib.django.admin.schedules.periodic_task import PeriodicTaskAdmin
from celery_hardened.contrib.django.dead_letters.admin import DeadLetterAdmin
from celery_hardened.contrib.django.overview.admin import OverviewAdmin
from celery_hardened.contrib.django.runs.admin import ScheduleRunAdmin

__all__ = [
    "DeadLetterAdmin",
    "OverviewAdmin",
    "PeriodicTaskAdmin",
    "SchedulePolicyInline",
    "ScheduleRunAdmin",
    "replace_theirs",
]


def replace_theirs(site: admin.AdminSite) -> bool:
    """Register ours at *site* if django-celery-beat's own is registered there; whether it was."""
    try:
        registered = site.get_model_admin(PeriodicTask)
    except NotRegistered:
        return False
    if type(registered) is not theirs.PeriodicTaskAdmin:
        return False
    site.unregister(PeriodicTask)
    site.register(PeriodicTask, PeriodicTaskAdmin)
    return True


replace_theirs(admin.site)
