"""Rules on publishes inside transactions: a worker must not look for a row before it is committed."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Warning
from django.db import connections

from celery_hardened.contrib.django.checks.project import Project, Rule, listed, page

#: Tasks of Celery and of ours, which no view publishes.
_NOT_THEIRS = ("celery.", "celery_hardened.")


def _with(option: str) -> list[str]:
    return [alias for alias, one in connections.settings.items() if one.get(option)]


def deferred_in_requests(project: Project) -> Iterator[CheckMessage]:
    """W004."""
    aliases = _with("ATOMIC_REQUESTS")
    if aliases and project.hardening is not None and not project.settings.publish_on_commit:
        yield Warning(
            f"ATOMIC_REQUESTS is on for {listed(map(repr, aliases))} and hardened_publish_on_commit is off: what a "
            f"view publishes is sent before its commit. A worker may look for a row that is not there yet, or never "
            f"will be.",
            hint=(
                "Remove CELERY_HARDENED_PUBLISH_ON_COMMIT = False; a single call opts out with on_commit=False. "
                + page("Publish on commit")
            ),
            id="celery_hardened.W004",
        )


def contained_in_requests(project: Project) -> Iterator[CheckMessage]:
    """W005. Of the tasks that were imported by now."""
    aliases = _with("ATOMIC_REQUESTS")
    if not aliases or not project.settings.publish_on_commit:
        return
    tasks = {name: task for name, task in project.app._tasks.items() if not name.startswith(_NOT_THEIRS)}
    at_once = [name for name, task in tasks.items() if not getattr(task, "is_hardened", False)]
    if at_once and project.hardening is not None:
        yield Warning(
            f"ATOMIC_REQUESTS is on for {listed(map(repr, aliases))}, and {len(at_once)} of {len(tasks)} tasks are not "
            f"hardened: {listed(at_once)}. What a view publishes of them is sent before its commit.",
            hint=(
                "Give them base=HardenedTask, or publish them with delay_on_commit() or on_commit=True. "
                + page("Publish on commit")
            ),
            id="celery_hardened.W005",
        )


def hooks_run(_: Project) -> Iterator[CheckMessage]:
    """W006."""
    aliases = [alias for alias, one in connections.settings.items() if not one.get("AUTOCOMMIT", True)]
    if aliases:
        yield Warning(
            f"AUTOCOMMIT is off for {listed(map(repr, aliases))}: Django runs nothing on a commit there, so publishes "
            f"are sent at once, and store='database' of @idempotent refuses to work.",
            hint=f"Remove AUTOCOMMIT from DATABASES and use transaction.atomic(). {page('Publish on commit')}",
            id="celery_hardened.W006",
        )


RULES: tuple[Rule, ...] = (deferred_in_requests, contained_in_requests, hooks_run)
