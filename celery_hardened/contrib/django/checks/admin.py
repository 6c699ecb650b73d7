"""A note on the admin: schedules and dead letters have pages there."""

from __future__ import annotations

from django.apps import apps
from django.core.checks import CheckMessage, Info

from celery_hardened.contrib.django.checks.project import page


def visible() -> list[CheckMessage]:
    """I001."""
    if apps.is_installed("django.contrib.admin"):
        return []
    return [
        Info(
            "django.contrib.admin is not installed, so nobody sees schedules and dead letters in a browser.",
            hint=(
                "Add it, or silence this if `manage.py hardened` is all you need. "
                + page("Dead letters in Django's admin")
            ),
            id="celery_hardened.I001",
        )
    ]
