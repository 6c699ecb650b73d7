"""``manage.py check``: what is unsafe in this project, with the reason and what to do.

Three registrations, by what they cost:

- always: looks at settings alone;
- ``--deploy``: what is right on a laptop and wrong in production; imports the modules of tasks, as a worker does;
- ``--deploy --database ALIAS``: asks that database.

So ``check``, and each command that begins with it, waits for no server. Each message has an id, which
``SILENCED_SYSTEM_CHECKS`` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.core.checks import CheckMessage, Tags, Warning, register

from celery_hardened.contrib.django.checks import (
    admin,
    cache,
    celery_app,
    databases,
    deploy,
    publishes,
    schedules,
    stored,
)
from celery_hardened.contrib.django.checks.project import Project, Rule, page, project_app
from celery_hardened.hardening import Hardening

TAG = "celery_hardened"

ALWAYS: tuple[Rule, ...] = (*celery_app.RULES, *publishes.RULES, *databases.RULES, *cache.RULES, *schedules.RULES)


def register_checks() -> None:
    """Called once, when the apps are ready."""
    register(check_settings, TAG)
    register(check_deployment, TAG, deploy=True)
    register(check_databases, TAG, Tags.database, deploy=True)


def check_settings(**_: Any) -> list[CheckMessage]:
    """What settings alone tell."""
    found = project_app()
    if found is None:
        return [NO_APP, *admin.visible()]
    return [*_messages(ALWAYS, found), *admin.visible()]


def check_deployment(**_: Any) -> list[CheckMessage]:
    """What is wrong in production alone."""
    found = project_app()
    return [] if found is None else _messages(deploy.RULES, found)


def check_databases(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """What the given databases say of themselves."""
    found = project_app()
    if not databases or found is None:
        return []
    project = Project(found, Hardening.of(found))
    return [message for alias in databases for message in stored.messages(project, alias)]


def _messages(rules: Iterable[Rule], found: Any) -> list[CheckMessage]:
    project = Project(found, Hardening.of(found))
    return [message for rule in rules for message in rule(project)]


NO_APP = Warning(
    "There is no Celery app in this process, so what views and commands publish goes to Celery's own default app: "
    "not your broker, nothing hardened.",
    hint=(
        "Import it in the __init__.py of the package that has your settings: `from .celery import app as celery_app`. "
        + page("Check your Django project")
    ),
    id="celery_hardened.W001",
)
