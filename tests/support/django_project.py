"""The tests' Django project in this process: configured once, whichever test comes first.

Two SQLite files, ``default`` and ``other``; PostgreSQL as ``postgres`` when a test has a server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from tests.support import django_settings


def configure() -> None:
    """Configure Django, if that was not done yet, and make the tables of both SQLite files."""
    if settings.configured:
        return
    settings.configure(**{name: value for name, value in vars(django_settings).items() if name.isupper()})
    django.setup()
    migrate("default", "other")


def add_postgres(url: str) -> None:
    """Make the server at *url* the database ``postgres``, with all tables. Closes a connection to an older one."""
    configure()
    forget("postgres")
    known: dict[str, Any] = connections.settings
    known["postgres"] = django_settings.postgres(url)
    connections.configure_settings(known)  # fills in the defaults
    migrate("postgres")


def forget(alias: str) -> None:
    """Close the connection of this thread to *alias*, and know it no longer."""
    if alias in connections.settings:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


def migrate(*aliases: str) -> None:
    for alias in aliases:
        call_command("migrate", run_syncdb=True, database=alias, verbosity=0, interactive=False)


def empty(alias: str, app: str) -> None:
    """Delete what is in the tables of *app*."""
    for model in apps.get_app_config(app).get_models():
        model._default_manager.using(alias).all().delete()


def environment(*, postgres_url: str | None = None) -> dict[str, str]:
    """Environment of a worker process that is to see the same project and the same databases."""
    found = {
        "DJANGO_SETTINGS_MODULE": django_settings.__name__,
        django_settings.FOLDER_VARIABLE: str(django_settings.FOLDER),
    }
    if postgres_url is not None:
        found[django_settings.POSTGRES_VARIABLE] = postgres_url
    return found


def close_all(aliases: Iterable[str] | None = None) -> None:
    """Close this thread's connections: each test ends with none open."""
    if not settings.configured:
        return  # a process may run tests of SQLAlchemy alone, or those first
    for alias in list(connections.settings) if aliases is None else aliases:
        if hasattr(connections._connections, alias):
            connections[alias].close()
