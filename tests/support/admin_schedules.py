"""The admin of periodic tasks for tests: its site, its app, who visits it, and what they post."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, _state
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.test import Client, override_settings

from celery_hardened import HardenedTask, Hardening, harden
from tests.support import django_schedules
from tests.support.client import client_side, without_shared_tasks

LIST = "/admin/django_celery_beat/periodictask/"

ACTIONS = [
    "run_tasks", "pause_tasks", "resume_tasks", "skip_tasks", "unskip_tasks", "backfill_task", "enable_tasks",
    "disable_tasks",
]  # fmt: skip


def page_of(row: Any) -> str:
    return f"{LIST}{row.pk}/change/"


def backfill_page_of(row: Any) -> str:
    return f"{LIST}{row.pk}/backfill/"


@contextmanager
def empty_site() -> Iterator[None]:
    """Empty tables, and the admin at ``/admin/``."""
    _clear()
    with override_settings(ROOT_URLCONF="tests.support.django_admin_urls"):
        yield
    _clear()


def _clear() -> None:
    django_schedules.clear("default")
    for model in (LogEntry, User, Group, Session):
        model.objects.all().delete()


@contextmanager
def shop_at(url: str) -> Iterator[Celery]:
    """The project's Celery app, the current one, with its queues and records in one Redis."""
    with client_side():
        without_shared_tasks()
        before = _state._tls.current_app
        made = Celery("shop", broker=url, backend="cache+memory://")
        made.conf.update(
            task_default_queue=f"q-{uuid.uuid4().hex[:10]}",
            hardened_dead_letter_store="memory",
            hardened_version="v1",
            broker_connection_retry=False,
        )
        harden(made)

        @made.task(base=HardenedTask, name="shop.note")
        def note(*args: Any, **kwargs: Any) -> None: ...

        made.finalize()
        made.set_current()
        yield made
        made.close()
        _state._tls.current_app = before


def act(client: Client, action: str, *rows: Any, **more: Any) -> Any:
    """Choose *action* for *rows* in the list."""
    return client.post(LIST, {"action": action, "_selected_action": [row.pk for row in rows], **more}, follow=True)


def fields(**changed: Any) -> dict[str, Any]:
    """What the browser posts of the form of a task."""
    said = {
        "name": "invoices",
        "task": "shop.note",
        "enabled": "on",
        "args": "[]",
        "kwargs": "{}",
        "headers": "{}",
        "hardened-TOTAL_FORMS": "1",
        "hardened-INITIAL_FORMS": "0",
        "hardened-MIN_NUM_FORMS": "0",
        "hardened-MAX_NUM_FORMS": "1",
        "_continue": "1",
    }
    return {**said, **changed}


def errors_of(response: Any) -> str:
    """All sentences by which the form refuses."""
    assert response.status_code == 200, "it was saved"
    said = [str(response.context_data["adminform"].form.errors)]
    for one in response.context_data["inline_admin_formsets"]:
        said += [str(one.formset.errors), str(one.formset.non_form_errors())]
    return " ".join(said).replace("&#x27;", "'")


def logged() -> list[tuple[str, str, str]]:
    """Who did what to which task, by the admin's log."""
    return [(one.user.username, one.object_repr.split(":")[0], one.change_message) for one in LogEntry.objects.all()]


def sent(shop: Celery) -> list[Any]:
    """The messages in the app's queue."""
    queue = shop.conf.task_default_queue
    return [json.loads(one) for one in Hardening.expect(shop).redis.lrange(queue, 0, -1)]
