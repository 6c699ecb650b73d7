"""What a database says of itself: ``check --deploy --database ALIAS``."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Error, Warning
from django.db import DatabaseError, InterfaceError, connections, router
from django.db.migrations.executor import MigrationExecutor

from celery_hardened.contrib.django.checks.project import Project, page
from celery_hardened.contrib.django.checks.schedules import scheduler_class
from celery_hardened.preset import set_by_user

_APPS = ("django_celery_beat", "celery_hardened")


def messages(project: Project, alias: str) -> Iterator[CheckMessage]:
    """Of one database, if any of our tables is looked for in it."""
    from django_celery_beat.models import PeriodicTask

    schedules = router.db_for_write(PeriodicTask) == alias
    if not schedules and project.letters_alias != alias:
        return
    connection = connections[alias]
    idle = connection.connection is None
    try:
        missing = _missing(alias)
        if missing:
            yield Error(
                f"{len(missing)} migrations are not applied to the database {alias!r}: {', '.join(missing)}.",
                hint=f"Run `manage.py migrate --database {alias}` before workers and beats of this release start.",
                id="celery_hardened.E010",
            )
        elif schedules:
            yield from _rows_nobody_fires(project, alias)
    except (DatabaseError, InterfaceError) as problem:
        said = str(problem).strip().partition("\n")[0][:200]
        yield Error(
            f"The database {alias!r} does not answer: {type(problem).__name__}: {said}",
            hint=f"See its HOST, PORT and credentials in DATABASES. {page('Check your Django project')}",
            id="celery_hardened.E011",
        )
    finally:
        if idle:
            connection.close()


def _missing(alias: str) -> list[str]:
    executor = MigrationExecutor(connections[alias])
    leaves = [node for node in executor.loader.graph.leaf_nodes() if node[0] in _APPS]
    plan = executor.migration_plan(leaves)
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan if migration.app_label in _APPS]


def _rows_nobody_fires(project: Project, alias: str) -> Iterator[CheckMessage]:
    """W018."""
    from django_celery_beat.models import PeriodicTask

    from celery_hardened.contrib.django.scheduler import DatabaseScheduler
    from celery_hardened.pipeline.beat import HardenedScheduler

    if not set_by_user(project.conf, "beat_scheduler"):
        return
    found = scheduler_class(project.conf.beat_scheduler)
    if not (isinstance(found, type) and issubclass(found, HardenedScheduler)) or issubclass(found, DatabaseScheduler):
        return
    enabled = PeriodicTask.objects.using(alias).filter(enabled=True).count()
    if enabled:
        yield Warning(
            f"{enabled} periodic tasks are enabled in the database {alias!r}, and CELERY_BEAT_SCHEDULER is "
            f"{project.conf.beat_scheduler!r}, which reads beat_schedule alone: nobody fires them.",
            hint=(
                "Set CELERY_BEAT_SCHEDULER = 'hardened-django': it fires both. "
                + page("Schedule from Django's database")
            ),
            id="celery_hardened.W018",
        )
