"""Dead letters in the project's database: ``hardened_dead_letter_store = "django"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import Celery
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from celery_hardened.errors import ConfigurationError
from celery_hardened.hardening import Hardening

if TYPE_CHECKING:
    from celery_hardened.contrib.django.dead_letters.store import DjangoDeadLetterStore


def store_of(app: Celery, alias: str = "default") -> DjangoDeadLetterStore:
    """The store of *app* in the database *alias*.

    Raises:
        ConfigurationError: Django does not know our tables, or the alias; or it is no database of those we know.
    """
    try:
        installed = apps.is_installed("celery_hardened.contrib.django")
    except ImproperlyConfigured as problem:
        raise ConfigurationError(f"hardened_dead_letter_store = 'django' needs a Django project ({problem}).") from None
    if not installed:
        raise ConfigurationError(
            "hardened_dead_letter_store = 'django' needs 'celery_hardened.contrib.django' in INSTALLED_APPS."
        )
    if alias not in connections.settings:
        raise ConfigurationError(
            f"hardened_dead_letter_store names the database {alias!r}; DATABASES has "
            f"{', '.join(map(repr, connections.settings))}."
        )
    from celery_hardened.contrib.django.dead_letters.outside import require_known
    from celery_hardened.contrib.django.dead_letters.store import DjangoDeadLetterStore

    require_known(alias)
    return DjangoDeadLetterStore(alias, retention=Hardening.expect(app).retention)
