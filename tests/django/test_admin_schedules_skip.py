"""Skipping the next slot of periodic tasks in the admin, and taking that back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django_celery_beat.models import PeriodicTask

from celery_hardened import Hardening
from celery_hardened.beat.names import Keys
from celery_hardened.beat.progress import started
from celery_hardened.beat.record import Record
from celery_hardened.beat.skip_store import SkipStore
from celery_hardened.beat.store import BeatStore
from tests.support import django_schedules
from tests.support.admin_schedules import (
    LIST,
    act,
    empty_site,
    logged,
    page_of,
    shop_at,
)
from tests.support.admin_visitors import ada
from tests.support.admin_world import HOUR
from tests.support.django_schedules import crontab, every, many, task

#: Half a day from now: no slot passes between a page and its answer.
FAR = {"minute": "0", "hour": str(HOUR), "timezone": "UTC"}


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    with empty_site():
        yield


@pytest.fixture
def shop(records_url: str) -> Iterator[Celery]:
    with shop_at(records_url) as made:
        yield made


@pytest.fixture
def keys(shop: Celery) -> Keys:
    return Keys(Hardening.expect(shop).prefix)


@pytest.fixture
def skips(shop: Celery, keys: Keys) -> SkipStore:
    return SkipStore(Hardening.expect(shop).redis, keys)


@pytest.fixture
def store(shop: Celery, keys: Keys) -> BeatStore:
    return BeatStore(Hardening.expect(shop).redis, keys, history=100)


@pytest.fixture
def client(shop: Celery) -> Client:
    return ada()


def confirm(client: Client, asked: Any, *rows: Any, why: str = "the bank is closed") -> Any:
    """Post what the page *asked* with, as the browser does."""
    hidden = {f"slot-{one.pk}": one.slot for one in asked.context_data["tasks"] if one.slot}
    return act(client, "skip_tasks", *rows, skip="1", why=why, **hidden)


def test_the_page_shows_which_slots_and_asks_for_a_reason(client: Client, skips: SkipStore) -> None:
    """In the schedule's zone and in UTC; nothing is skipped by looking, nor without a reason."""
    nightly = task("nightly", task="shop.note", crontab=crontab("30", "2", "Asia/Kolkata"))
    asked = act(client, "skip_tasks", nightly)
    said = asked.content.decode()
    assert "02:30:00 +05:30 Asia/Kolkata" in said
    assert "21:00:00" in said
    assert confirm(client, asked, nightly, why="").context_data["form"].errors
    assert (skips.skips(), logged()) == ({}, [])


def test_it_is_skipped_logged_and_shown(client: Client, skips: SkipStore) -> None:
    """By whom and why: in Redis, in the admin's log, in the list and among the coming slots."""
    nightly = task("nightly", task="shop.note", crontab=crontab(**FAR))
    confirm(client, act(client, "skip_tasks", nightly), nightly)
    skip = skips.skips()["nightly"]
    assert (skip.by, skip.why) == ("ada", "the bank is closed")
    assert time.time() < skip.slot <= time.time() + 86_400
    ((who, name, said),) = logged()
    assert (who, name) == ("ada", "nightly")
    assert said.startswith("Skipped the slot of 20")
    assert said.endswith(": the bank is closed")
    listed = client.get(LIST).content.decode()
    assert listed.count("(skipped)") == 1
    assert "is skipped by ada: the bank is closed" in listed
    lines = [line for line in client.get(page_of(nightly)).context_data["preview"] if line.due]
    assert "skipped by ada: the bank is closed" in lines[0].note
    assert not [line for line in lines[1:] if "skipped" in line.note]


def test_it_is_taken_back(client: Client, skips: SkipStore) -> None:
    """Logged; what is not skipped is told, and not logged."""
    rows = [task(name, task="shop.note", crontab=crontab(**FAR)) for name in ("one", "two")]
    confirm(client, act(client, "skip_tasks", rows[0]), rows[0])
    said = act(client, "unskip_tasks", *rows).content.decode()
    assert skips.skips() == {}
    assert "no slot of it is skipped" in said
    assert sorted(message.partition(" slot")[0] for _, _, message in logged()) == ["Skipped the", "The"]


def test_what_was_shown_is_what_is_skipped(client: Client, skips: SkipStore, store: BeatStore) -> None:
    """A beat has decided that slot while somebody read the page: nothing is skipped, and that is said."""
    row = every(3600, task="shop.note")
    schedule = django_schedules.only(django_schedules.reader("default").load())
    store.adopt({"invoices": started(schedule, time.time(), old=None).text()})
    asked = act(client, "skip_tasks", row)
    (shown,) = [int(one.slot) / 1000 for one in asked.context_data["tasks"]]
    record = Record.parse(store.record("invoices") or "")
    store.adopt({"invoices": replace(record, cursor=shown).text()}, overwrite=True)
    said = confirm(client, asked, row).content.decode()
    assert "is not the coming one any more" in said
    assert (skips.skips(), logged()) == ({}, [])


def test_what_cannot_be_skipped_is_said(client: Client, skips: SkipStore) -> None:
    """Disabled, unreadable, skipped already: with the reason, and the others can be."""
    good = task("good", task="shop.note", crontab=crontab(**FAR))
    twice = task("twice", task="shop.note", crontab=crontab(**FAR))
    bad = task("bad", task="shop.note", crontab=crontab(**FAR), args="{")
    off = task("off", task="shop.note", crontab=crontab(**FAR), enabled=False)
    confirm(client, act(client, "skip_tasks", twice), twice)
    asked = act(client, "skip_tasks", good, twice, bad, off)
    notes = {one.name: one.problem for one in asked.context_data["tasks"]}
    assert notes["good"] == ""
    assert notes["twice"] == "It is skipped already, by ada: the bank is closed"
    assert "no JSON" in notes["bad"]
    assert notes["off"] == "It is not enabled."
    confirm(client, asked, good, twice, bad, off)
    assert set(skips.skips()) == {"good", "twice"}
    assert "There is nothing to skip." in act(client, "skip_tasks", off).content.decode()


def test_a_skip_that_is_over_is_not_shown(client: Client, skips: SkipStore, store: BeatStore) -> None:
    """Beats passed over its slot for another reason, such as a pause."""
    row = task("nightly", task="shop.note", crontab=crontab(**FAR))
    confirm(client, act(client, "skip_tasks", row), row)
    schedule = django_schedules.only(django_schedules.reader("default").load())
    record = started(schedule, time.time(), old=None)
    store.adopt({"nightly": replace(record, cursor=skips.skips()["nightly"].slot).text()})
    assert "skipped by" not in client.get(LIST).content.decode()


def test_the_page_costs_the_same_for_any_number_of_tasks(client: Client) -> None:
    """Two or a hundred tasks: the same statements."""
    counts = []
    for rows in (2, 100):
        django_schedules.clear("default")
        many(rows)
        with CaptureQueriesContext(connection) as seen:
            act(client, "skip_tasks", *PeriodicTask.objects.all())
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 14, [one["sql"] for one in seen]
