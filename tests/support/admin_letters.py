"""The admin's section of dead letters for tests: its addresses, a store behind it, and who is logged in.

Fixtures; a test module imports those it uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client, override_settings
from redis import Redis

from celery_hardened import Hardening
from celery_hardened.contrib.django.admin import DeadLetterAdmin
from celery_hardened.contrib.django.dead_letters.store import DjangoDeadLetterStore
from celery_hardened.dead_letter.contract import DeadLetterStore
from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from celery_hardened.dead_letter.store import RedisDeadLetterStore
from tests.stores.letters import ROOMY, letter
from tests.support import django_project
from tests.support.admin_visitors import ada

OVERVIEW = "/admin/celery_hardened/deadletter/"
LIST = f"{OVERVIEW}list/"
EXPORT = f"{OVERVIEW}export/"
REDRIVE = f"{OVERVIEW}redrive/"
DISCARD = f"{OVERVIEW}discard/"
BULK = f"{OVERVIEW}bulk/"

VIEW, ARGUMENTS = "view_deadletter", "see_arguments"

SECRET = "s3cret-card"

TIMES = "\N{MULTIPLICATION SIGN}"

#: What a stranger may have put into a letter.
NASTY = "<script>alert('1')</script>"


def page_of(letter_id: str) -> str:
    return f"{OVERVIEW}{quote(letter_id)}/change/"


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    """Empty tables, and the admin at ``/admin/``."""
    _clear()
    with override_settings(ROOT_URLCONF="tests.support.django_admin_urls"):
        yield
    _clear()


def _clear() -> None:
    django_project.empty("default", "celery_hardened")
    for model in (LogEntry, User, Session):
        model.objects.all().delete()


@pytest.fixture(name="store", params=["memory", "django", "redis"])
def store_of_the_app(
    request: pytest.FixtureRequest, hardening: Hardening, unique: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeadLetterStore]:
    """The app's store, which the admin's pages read."""
    client = None
    made: DeadLetterStore
    if request.param == "memory":
        made = InMemoryDeadLetterStore(retention=ROOMY)
    elif request.param == "django":
        made = DjangoDeadLetterStore("default", retention=ROOMY)
    else:
        client = Redis.from_url(request.getfixturevalue("records_url"))
        made = RedisDeadLetterStore(client, prefix=unique, retention=ROOMY)
    hardening.__dict__["dead_letters"] = made
    monkeypatch.setattr(DeadLetterAdmin, "celery_app", hardening.app)
    yield made
    if client is not None:
        client.close()


in_memory = pytest.mark.parametrize("store", ["memory"], indirect=True)


@pytest.fixture(name="client")
def superuser(store: DeadLetterStore) -> Client:
    """Logged in, with all permissions."""
    return ada()


def text_of(response: Any, status: int = 200) -> str:
    content = response.getvalue()  # streamed or not
    assert response.status_code == status, content[:2000]
    return str(content.decode())


def secretive(**fields: Any) -> Any:
    """A letter whose arguments stand everywhere that a message may have them."""
    headers = {"task": "shop.charge", "id": "x", "argsrepr": f"('{SECRET}',)", "kwargsrepr": f"{{'card': '{SECRET}'}}"}
    body = json.dumps([[SECRET], {"card": SECRET}, {"chain": [{"task": "t", "args": [SECRET]}]}]).encode()
    return letter(headers=headers, body=body, **fields)


def ids_of(page: str) -> list[str]:
    return re.findall(r'<input type="hidden" name="id" value="([^"]+)">', page)


def hidden(page: str, *names: str) -> dict[str, str]:
    """The hidden fields *names* of a page."""
    found = {name: re.search(f'name="{name}" value="([^"]+)"', page) for name in names}
    return {name: match[1] for name, match in found.items() if match}
