"""The migrations of ``celery_hardened``: complete, and there and back on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from tests.support import django_project, django_settings
from tests.support.postgres import Postgres

APP = "celery_hardened"
ALIAS = "migrated"


@pytest.fixture(params=["sqlite", "postgres"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The alias of a database without any table."""
    known: dict[str, Any] = connections.settings
    if request.param == "sqlite":
        known[ALIAS] = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "migrated.sqlite3"}
    else:
        server: Postgres = request.getfixturevalue("postgres")
        known[ALIAS] = django_settings.postgres(server.database())
    connections.configure_settings(known)
    yield ALIAS
    django_project.forget(ALIAS)


def migrate(*target: str) -> None:
    call_command("migrate", *target, database=ALIAS, verbosity=0, interactive=False)


def columns() -> dict[str, dict[str, tuple[Any, ...]]]:
    """Every table of ours, with its columns and their types."""
    connection = connections[ALIAS]
    with connection.cursor() as cursor:
        tables = [name for name in connection.introspection.table_names(cursor) if name.startswith(f"{APP}_")]
        return {
            table: {
                one.name: (one.type_code, one.null_ok)
                for one in connection.introspection.get_table_description(cursor, table)
            }
            for table in tables
        }


def constraints() -> dict[str, set[tuple[Any, ...]]]:
    """Every index and constraint of ours, whatever the database called it."""
    connection = connections[ALIAS]
    with connection.cursor() as cursor:
        return {
            table: {
                (tuple(one["columns"]), one["primary_key"], one["unique"], one["index"], one["check"])
                for one in connection.introspection.get_constraints(cursor, table).values()
            }
            for table in columns()
        }


def test_none_is_missing() -> None:
    """The models say nothing that no migration does."""
    call_command("makemigrations", APP, check=True, dry_run=True, verbosity=0, interactive=False)


def test_there_and_back(empty: str) -> None:
    """To the end, back to nothing and to the end again: the same tables, columns and indexes."""
    migrate()
    made = columns(), constraints()
    assert made[0]
    migrate(APP, "zero")
    assert columns() == {}
    migrate()
    assert (columns(), constraints()) == made


def test_each_step_back(empty: str) -> None:
    """One at a time, so that a release can be taken back whichever it was, and forward again."""
    steps = sorted(name for app, name in MigrationLoader(None).graph.nodes if app == APP)
    migrate()
    made = columns()
    for name in reversed(steps[:-1]):
        migrate(APP, name)
    for name in steps:
        migrate(APP, name)
    assert columns() == made
