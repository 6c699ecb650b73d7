"""Everything that the admin's pages are about, in one Redis and the tables; and a picture of both."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from django.apps import apps
from django.contrib.admin import site as admin_site
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.db.models.functions import Now
from django.test import Client
from django.urls import get_resolver

from celery_hardened import Hardening
from celery_hardened.beat.names import Keys
from celery_hardened.beat.progress import started
from celery_hardened.beat.skip import Skip
from celery_hardened.beat.skip_store import SkipStore
from celery_hardened.beat.store import BeatStore
from celery_hardened.contrib.django.admin import DeadLetterAdmin, OverviewAdmin
from celery_hardened.contrib.django.dead_letters import bulk
from celery_hardened.contrib.django.models import BulkAction, BulkActionLetter
from celery_hardened.contrib.django.overview import watch
from celery_hardened.contrib.django.runs.copying import Copying
from celery_hardened.dead_letter.contract import Query
from celery_hardened.dead_letter.store import RedisDeadLetterStore
from tests.stores.letters import ROOMY, letter
from tests.support import django_project, django_schedules
from tests.support.admin_schedules import empty_site, shop_at
from tests.support.django_runs import line, report, runs
from tests.support.django_schedules import crontab, task

ADMIN = "/admin/"

#: Sections of the admin that are this package's.
PREFIXES = ("admin/celery_hardened/", "admin/django_celery_beat/periodictask/")


@dataclass
class World:
    """One of each: a letter, a bulk action on it, a schedule, and a run of it."""

    app: Celery
    hardening: Hardening
    store: RedisDeadLetterStore
    letter: Any = None
    action: Any = None
    row: Any = None
    run: Any = None

    def build(self, **letters: Any) -> None:
        """All anew; *letters* are fields of the letter in place of its own."""
        self.hardening.redis.flushdb()
        django_project.empty("default", "celery_hardened")
        django_schedules.clear("default")
        self.letter = letters.pop("one", None) or letter(queue=self.app.conf.task_default_queue, **letters)
        self.store.put(self.letter)
        self.action = asked(what="redrive")
        BulkActionLetter.objects.create(action=self.action, letter=self.letter.id, outcome="refused", why="too often")
        self.row = task(
            "nightly", task="shop.note", crontab=crontab("30", str(HOUR), "UTC"), args=json.dumps([SCHEDULED])
        )
        schedule = django_schedules.only(django_schedules.reader("default").load())
        now = time.time()
        keys = Keys(self.hardening.prefix)
        beats = BeatStore(self.hardening.redis, keys, history=100)
        record = replace(started(schedule, now, old=None), cursor=now).text()
        beats.adopt({"nightly": record}, overwrite=True)
        beats.pause("nightly", by="eve", why="audit", until=None)
        SkipStore(self.hardening.redis, keys).skip("nightly", Skip(4e9, "eve", "audit", 0.0), record=record)
        Copying("default").copy({"nightly": [line()]}, [report("failure", error="ValueError", letter=self.letter.id)])
        (self.run,) = runs()

    def address(self, route: str) -> str:
        """The address of *route*, about what there is here."""
        keys = {"deadletter": quote(self.letter.id), "schedulerun": self.run.pk, "periodictask": self.row.pk}
        section = route.removeprefix("admin/").split("/")[1]
        filled = route.replace("<int:pk>", str(self.action.pk))
        return f"/{filled.replace('<path:object_id>', str(keys.get(section)))}"

    def next_slot(self) -> str:
        """Of the schedule, in milliseconds, as the page that asks has it."""
        now = datetime.now(timezone.utc)
        slot = now.replace(hour=HOUR, minute=30, second=0, microsecond=0)
        return str(round((slot if slot > now else slot + timedelta(days=1)).timestamp() * 1000))

    def picture(self) -> dict[str, Any]:
        """All tables but those of sessions, and all of Redis."""
        seen: dict[str, Any] = {}
        for model in apps.get_models():
            if model is not Session and not model._meta.proxy:
                seen[model._meta.label] = sorted(map(repr, model._base_manager.values_list()))
        redis = self.hardening.redis
        names = sorted(redis.scan_iter(count=1000))
        pipe = redis.pipeline(transaction=False)
        for name in names:
            pipe.dump(name)
        return {**seen, **dict(zip(names, pipe.execute(), strict=True))}


#: An argument of the schedule.
SCHEDULED = "sch3duled-card"

#: Its hour: half a day from now, so that none of its slots passes while somebody looks at the next one.
HOUR = (datetime.now(timezone.utc).hour + 12) % 24


@contextmanager
def world_at(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The admin at ``/admin/``, and all that it is about, in the Redis at *url*."""
    monkeypatch.setattr(watch, "FRESH", 0.0)
    with empty_site(), shop_at(url) as app:
        hardening = Hardening.expect(app)
        store = RedisDeadLetterStore(hardening.redis, prefix=hardening.prefix, retention=ROOMY)
        hardening.__dict__["dead_letters"] = store
        hardening.__dict__["_overview"] = watch.Watch(watch.watch_of(hardening).asks, patience=20.0)
        for one in (DeadLetterAdmin, OverviewAdmin):
            monkeypatch.setattr(one, "celery_app", app)
        made = World(app, hardening, store)
        made.build()
        yield made
        django_project.empty("default", "celery_hardened")


def asked(*, by: Any = None, query: Query | None = None, **fields: Any) -> BulkAction:
    """A bulk action that waits for a worker, long enough to be told of it; asked for by the user *by*."""
    who = {"by": by.get_username(), "user_id": str(by.pk)} if by else {"by": "ada", "user_id": "0"}
    given = {"why": "mended", "total": 1, "asked_at": Now() - timedelta(minutes=5), **who, **fields}
    text = bulk.dumped(query or Query(until=time.time()))
    made: BulkAction = BulkAction.objects.create(key=uuid.uuid4().hex, query=text, **given)
    return made


# --- addresses and users --------------------------------------------------------------------------------------------


def routes() -> set[str]:
    """Every address of the admin that is this package's, as the resolver of addresses has it."""
    sections = {
        f"admin/{model._meta.app_label}/{model._meta.model_name}/"
        for model, one in admin_site._registry.items()
        if type(one).__module__.startswith("celery_hardened.")
    }
    found = set()
    for route, pattern in _leaves(get_resolver("tests.support.django_admin_urls").url_patterns):
        own = pattern.callback.__module__.startswith("celery_hardened.")
        if own or route.startswith((*sections, *PREFIXES)):
            found.add(route)
    return found


def _leaves(patterns: Iterable[Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for one in patterns:
        route = f"{before}{one.pattern}"
        if hasattr(one, "url_patterns"):
            yield from _leaves(one.url_patterns, route)
        else:
            yield route, one


def permissions() -> list[str]:
    """Names of all permissions that the package brings, and of those of periodic tasks."""
    models = [*apps.get_app_config("celery_hardened").get_models(), apps.get_model("django_celery_beat.PeriodicTask")]
    found: list[str] = []
    for model in models:
        opts = model._meta
        found += [f"{action}_{opts.model_name}" for action in opts.default_permissions]
        found += [name for name, _ in opts.permissions]
    return sorted(set(found))


def account(*names: str, name: str | None = None, **more: Any) -> Any:
    """One of the staff with these permissions."""
    made = User.objects.create_user(name or f"u{User.objects.count()}", password="x", **{"is_staff": True, **more})
    made.user_permissions.set(Permission.objects.filter(codename__in=names))
    assert made.user_permissions.count() == len(names)
    return made


def client_of(user: Any, **options: Any) -> Client:
    made = Client(**options)
    made.force_login(user)
    return made


def days(begin: int, end: int) -> dict[str, Any]:
    """A range of a backfill, in days from now, with the slots of the schedule ticked that are in it."""
    now = datetime.now(timezone.utc)
    first, last = (f"{now - timedelta(days=count):%Y-%m-%d}" for count in (begin, end))
    nights = [f"{now - timedelta(days=count):%Y-%m-%d}T{HOUR:02}:30:00+00:00" for count in range(end + 1, begin + 1)]
    slots = [datetime.fromisoformat(one) for one in nights]
    ticked = {"slot": [f"{round(one.timestamp() * 1000)}:0" for one in slots]}
    return {"begin_0": first, "begin_1": "00:00", "end_0": last, "end_1": "00:00", **ticked}


def body(args: Any, kwargs: Any) -> bytes:
    return json.dumps([args, kwargs, {}]).encode()
