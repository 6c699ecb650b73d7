"""The tests' Django project before it had celery_hardened: for worker and beat processes, by DJANGO_SETTINGS_MODULE."""

from __future__ import annotations

from tests.support import django_settings
from tests.support.django_settings import *  # noqa: F403

INSTALLED_APPS = [app for app in django_settings.INSTALLED_APPS if app != "celery_hardened.contrib.django"]
