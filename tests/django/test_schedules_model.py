"""The table of policies: its migration, its form, and what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connections
from django_celery_beat.models import PeriodicTask, PeriodicTasks

from celery_hardened.contrib.django.models import SchedulePolicy
from tests.support import django_project
from tests.support.django_schedules import every
from tests.support.postgres import Postgres


def test_no_migration_is_missing() -> None:
    """The models are as the migrations say."""
    call_command("makemigrations", "celery_hardened", check=True, dry_run=True, verbosity=0)


def test_forwards_and_backwards(postgres: Postgres) -> None:
    """The table comes and goes; the tables of django-celery-beat, and what is in them, stay."""
    django_project.add_postgres(postgres.database())
    try:
        connection = connections["postgres"]
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO django_celery_beat_periodictask (name, task, args, kwargs, headers, one_off, enabled, "
                "total_run_count, date_changed, description) "
                "VALUES ('a', 'b', '[]', '{}', '{}', false, true, 0, now(), '')"
            )
        table = SchedulePolicy._meta.db_table
        assert table in connection.introspection.table_names()
        call_command("migrate", "celery_hardened", "0001", database="postgres", verbosity=0)
        assert table not in connection.introspection.table_names()
        call_command("migrate", "celery_hardened", database="postgres", verbosity=0)
        assert table in connection.introspection.table_names()
        assert PeriodicTask.objects.using("postgres").count() == 1
    finally:
        django_project.forget("postgres")


@pytest.mark.parametrize("schedules", ["sqlite"], indirect=True)
def test_the_policy_goes_with_its_task(schedules: str) -> None:
    """A deleted task takes its policy along, and a deleted policy leaves the task."""
    SchedulePolicy.objects.create(periodic_task=every(name="one"), grace=5.0)
    SchedulePolicy.objects.create(periodic_task=every(name="two"), grace=5.0)
    PeriodicTask.objects.get(name="one").delete()
    assert SchedulePolicy.objects.get().periodic_task.name == "two"
    SchedulePolicy.objects.get().delete()
    assert PeriodicTask.objects.get().name == "two"


@pytest.mark.parametrize("schedules", ["sqlite"], indirect=True)
def test_saving_and_deleting_a_policy_leave_a_stamp(schedules: str) -> None:
    """Beat looks for changes when it is touched."""
    row = every()
    stamps = [PeriodicTasks.last_change()]
    policy = SchedulePolicy.objects.create(periodic_task=row)
    stamps.append(PeriodicTasks.last_change())
    policy.delete()
    stamps.append(PeriodicTasks.last_change())
    assert stamps == sorted(set(stamps))


def test_a_contradiction_is_refused() -> None:
    """The form says what the configuration would say."""
    with pytest.raises(ValidationError, match="shorter than grace"):
        SchedulePolicy(catchup_window=5.0, grace=60.0).clean()
    SchedulePolicy(missed_run="run_all", catchup_window=-1.0, max_catchup=5).clean()


def test_what_a_policy_says() -> None:
    """An empty field says nothing."""
    assert str(SchedulePolicy()) == "as the app's settings say"
    assert str(SchedulePolicy(overlap="skip", grace=0.5)) == "grace=0.5, overlap=skip"


def test_a_project_without_django_celery_beat_is_told_so(tmp_path: Path) -> None:
    """Before its first query or migration, with what to do."""
    program = (
        "import django; from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['celery_hardened.contrib.django'])\n"
        "django.setup()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert 'Add "django_celery_beat"' in done.stderr.splitlines()[-1]
