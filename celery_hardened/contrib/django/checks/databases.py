"""Rules on ``DATABASES`` and routers: are our tables where they are looked for, and what becomes of connections?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, router

from celery_hardened.contrib.django.checks.project import Project, Rule, page
from celery_hardened.errors import ConfigurationError

#: Connections that a psycopg pool opens at once, where its options do not say.
_POOL_MIN = 4

#: Kinds of database that our tables can be in.
_SUPPORTED = ("postgresql", "sqlite")


def letters_have_a_database(project: Project) -> Iterator[CheckMessage]:
    """E002."""
    from celery_hardened.contrib.django.dead_letters.outside import require_known

    alias = project.letters_alias
    if alias is None:
        return
    problem = None
    if alias not in connections.settings:
        known = ", ".join(map(repr, connections.settings))
        problem = f"hardened_dead_letter_store names the database {alias!r}; DATABASES has {known}."
    else:
        try:
            require_known(alias)
        except ConfigurationError as refused:
            problem = str(refused)
    if problem is not None:
        yield Error(
            problem,
            hint=(
                "Without its store no worker of this app starts. Name one of DATABASES ('django:<alias>') on "
                f"PostgreSQL or SQLite, or use 'redis'. {page('Keep dead letters in your database')}"
            ),
            id="celery_hardened.E002",
        )


def payloads_have_a_storage(project: Project) -> Iterator[CheckMessage]:
    """E003."""
    scheme, _, alias = (project.settings.payload_store or "").partition(":")
    if scheme != "django":
        return
    from celery_hardened.claim_check.django import DjangoPayloadStore

    try:
        DjangoPayloadStore(alias or "default")
    except ConfigurationError as problem:
        yield Error(str(problem), hint=page("Send large arguments"), id="celery_hardened.E003")


def routed_together(_: Project) -> Iterator[CheckMessage]:
    """E006."""
    from django_celery_beat.models import PeriodicTask

    from celery_hardened.contrib.django.models import SchedulePolicy

    theirs, ours = router.db_for_write(PeriodicTask), router.db_for_write(SchedulePolicy)
    if theirs != ours:
        yield Error(
            f"A database router sends the periodic tasks of django_celery_beat to {theirs!r} and their policies in "
            f"celery_hardened to {ours!r}: a policy refers to its task, and the two are read in one statement.",
            hint=(
                "Route the apps 'django_celery_beat' and 'celery_hardened' to one database. "
                + page("Schedule from Django's database")
            ),
            id="celery_hardened.E006",
        )


def tables_can_be_made(_: Project) -> Iterator[CheckMessage]:
    """E012. Asks for the kind of database, which its ENGINE tells."""
    models = [model for model in apps.get_app_config("celery_hardened").get_models() if model._meta.managed]
    for alias in sorted({router.db_for_write(model) for model in models}):
        vendor = connections[alias].vendor
        if vendor in _SUPPORTED or not any(router.allow_migrate_model(alias, model) for model in models):
            continue
        kind = "MySQL or MariaDB" if vendor == "mysql" else vendor
        yield Error(
            f"The tables of 'celery_hardened' belong in the database {alias!r}, which is {kind}. They are made, and "
            f"schedules are read from them, on PostgreSQL and SQLite alone.",
            hint=(
                "Add a database on PostgreSQL to DATABASES, and send the apps 'django_celery_beat' and "
                "'celery_hardened' there with a database router; or take 'celery_hardened.contrib.django' out of "
                "INSTALLED_APPS and keep schedules in Redis. " + page("Schedule from Django's database")
            ),
            id="celery_hardened.E012",
        )


def tables_are_made(project: Project) -> Iterator[CheckMessage]:
    """E007."""
    from celery_hardened.contrib.django.models import DeadLetterRow

    alias = project.letters_alias
    if alias in connections.settings and not router.allow_migrate_model(alias, DeadLetterRow):
        yield Error(
            f"Dead letters are to be kept in the database {alias!r}, and a database router does not let the tables of "
            f"'celery_hardened' be made there.",
            hint=(
                f"Let allow_migrate({alias!r}, 'celery_hardened') of the router be True, and run "
                f"`manage.py migrate celery_hardened --database {alias}`. {page('Keep dead letters in your database')}"
            ),
            id="celery_hardened.E007",
        )


def connections_are_closed(project: Project) -> Iterator[CheckMessage]:
    """W011."""
    kept = project.conf.get("CELERY_DB_REUSE_MAX")
    if kept:
        yield Warning(
            f"CELERY_DB_REUSE_MAX is {kept!r}: a worker keeps its database connections for {kept} tasks and never asks "
            f"whether they still work. After a restart of the database tasks fail until so many have run; with threads "
            f"or gevent each thread's connection is closed by chance alone.",
            hint=f"Remove it: a connection is then closed after each task. {page('Check your Django project')}",
            id="celery_hardened.W011",
        )


def pools_are_shared(project: Project) -> Iterator[CheckMessage]:
    """W012."""
    if str(project.conf.get("worker_pool") or "prefork") not in ("prefork", "processes"):
        return
    for alias, one in connections.settings.items():
        pool: Any = one.get("OPTIONS", {}).get("pool")
        if not pool:
            continue
        least = pool.get("min_size", _POOL_MIN) if isinstance(pool, dict) else _POOL_MIN
        yield Warning(
            f"The database {alias!r} has a connection pool of its own (OPTIONS['pool']). A prefork worker closes it "
            f"around each task, so that each task opens {least} connections and uses one.",
            hint=(
                "In workers leave the pool out of OPTIONS (settings of their own, or an environment variable), or set "
                f"its min_size to 1; CONN_MAX_AGE = 0 is right there. {page('Check your Django project')}"
            ),
            id="celery_hardened.W012",
        )


def unhealthy(_: Project) -> Iterator[CheckMessage]:
    """W017; in production alone."""
    kept = {
        alias: one["CONN_MAX_AGE"]
        for alias, one in connections.settings.items()
        if one.get("CONN_MAX_AGE", 0) != 0 and not one.get("CONN_HEALTH_CHECKS")
    }
    if kept:
        ages = ", ".join(
            f"{alias!r} {'for ever' if age is None else f'for {age:g} s'}" for alias, age in sorted(kept.items())
        )
        yield Warning(
            f"Database connections are kept without a look at their health: {ages}. After a restart of the database "
            f"the next request of each thread fails, and a dead letter that it wanted to write may be refused once.",
            hint=(
                "Set CONN_HEALTH_CHECKS = True beside CONN_MAX_AGE; it costs one small statement a request. Under ASGI "
                f"set CONN_MAX_AGE = 0. {page('Check your Django project')}"
            ),
            id="celery_hardened.W017",
        )


RULES: tuple[Rule, ...] = (
    letters_have_a_database,
    payloads_have_a_storage,
    routed_together,
    tables_can_be_made,
    tables_are_made,
    connections_are_closed,
    pools_are_shared,
)
