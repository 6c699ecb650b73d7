"""What goes into ``INSTALLED_APPS``: ``"celery_hardened.contrib.django"``, and ``"django_celery_beat"`` with it."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured


class CeleryHardenedConfig(AppConfig):  # type: ignore[misc]
    """The table of finished work, for ``@idempotent(..., store="database")``, and the policies of schedules."""

    name = "celery_hardened.contrib.django"
    label = "celery_hardened"
    verbose_name = "Celery, hardened"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Refuse a project without the tables that ours refer to, before its first query; and have it checked."""
        if not apps.is_installed("django_celery_beat"):
            raise ImproperlyConfigured(
                'INSTALLED_APPS has "celery_hardened.contrib.django" and not "django_celery_beat", whose table of '
                'periodic tasks ours refers to. Add "django_celery_beat" (it comes with celery-hardened[django]) '
                "and run `manage.py migrate`."
            )
        from celery_hardened.contrib.django.checks import register_checks

        register_checks()
        # Every app of this process has the task that carries bulk actions on dead letters out.
        import_module("celery_hardened.contrib.django.dead_letters.bulk_task")
