"""The coming slots of what is typed in, without saving it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django_celery_beat.models import PeriodicTask, PeriodicTasks

from celery_hardened import Hardening
from celery_hardened.contrib.django.models import SchedulePolicy
from tests.support.admin_schedules import (
    LIST,
    empty_site,
    errors_of,
    fields,
    logged,
    page_of,
    shop_at,
)
from tests.support.admin_visitors import ada, staff
from tests.support.django_schedules import crontab, every, task


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    with empty_site():
        yield


@pytest.fixture
def shop(records_url: str) -> Iterator[Celery]:
    with shop_at(records_url) as made:
        yield made


@pytest.fixture
def client(shop: Celery) -> Client:
    return ada()


def typed(**changed: Any) -> dict[str, Any]:
    """What the button that previews posts."""
    said = fields(**changed, _preview="Preview the coming slots")
    del said["_continue"]
    return said


def due(page: Any) -> list[str]:
    return [line.local[11:] for line in page.context_data["preview"] if line.due]


def test_what_is_typed_in_is_shown_and_not_saved(client: Client, shop: Celery) -> None:
    """Another crontab, a policy, a new name: the form keeps them, the table and Redis do not, and nothing is logged."""
    row = task("invoices", task="shop.note", crontab=crontab("0", "5", "Europe/Paris"))
    other = crontab("15", "4", "Europe/Paris")
    stamp, keys = PeriodicTasks.objects.get().last_update, sorted(Hardening.expect(shop).redis.keys())
    said = typed(crontab=other.pk, name="renamed", **{"hardened-0-grace": "5"})
    with CaptureQueriesContext(connection) as seen:
        page = client.post(page_of(row), said)
    assert [one["sql"] for one in seen if one["sql"].split()[0] in ("INSERT", "UPDATE", "DELETE")] == []
    assert due(page) == ["04:15:00"] * 12
    html = page.content.decode()
    assert "Nothing was saved." in html
    assert 'value="renamed"' in html
    assert 'value="5.0"' in html or 'value="5"' in html
    row.refresh_from_db()
    assert (row.name, row.crontab.hour, SchedulePolicy.objects.count()) == ("invoices", "5", 0)
    assert PeriodicTasks.objects.get().last_update == stamp
    assert sorted(Hardening.expect(shop).redis.keys()) == keys
    assert logged() == []
    assert due(client.get(page_of(row))) == ["05:00:00"] * 12


def test_a_task_that_is_not_there_yet(client: Client) -> None:
    """On the page that adds one; with what the clock does to it."""
    last_sunday = crontab("30", "2", "Europe/Paris", month_of_year="3", day_of_month="25-31", day_of_week="0")
    page = client.post(f"{LIST}add/", typed(crontab=last_sunday.pk))
    assert len(due(page)) >= 8  # it looks nine years ahead
    assert "02:30 does not exist, fired at 03:00" in page.content.decode()
    interval = every(60, name="other").interval_id
    assert len(due(client.post(f"{LIST}add/", typed(interval=interval)))) == 12
    assert not PeriodicTask.objects.filter(name="invoices").exists()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"args": "["}, "This is no JSON"),
        ({"hardened-0-grace": "60", "hardened-0-catchup_window": "5"}, "shorter than"),
    ],
)
def test_what_is_refused_is_refused_there_too(client: Client, changed: dict[str, str], sentence: str) -> None:
    """With the form's own sentence, and no slots are made up."""
    row = every(60, task="shop.note")
    page = client.post(page_of(row), typed(interval=row.interval_id, **changed))
    assert sentence in errors_of(page)
    assert page.context_data["preview"] == ()
    assert "Correct them first" in page.content.decode()


def test_who_may_not_change_may_not_preview(shop: Celery) -> None:
    """It is a post of the form, and no button is offered."""
    row = every(60, task="shop.note")
    client = staff("view_periodictask")
    assert "_preview" not in client.get(page_of(row)).content.decode()
    assert client.post(page_of(row), typed(interval=row.interval_id)).status_code == 403


def test_the_button_comes_behind_those_that_save(client: Client) -> None:
    """The first one is what the Enter key presses."""
    for path in (page_of(every(60, task="shop.note")), f"{LIST}add/"):
        html = client.get(path).content.decode()
        assert html.index('name="_save"') < html.index('name="_preview"')


def test_it_costs_no_more_than_to_show_the_form(client: Client) -> None:
    """A bounded number of statements, however many tasks there are."""
    row = every(60, task="shop.note")
    counts = []
    for more in (0, 30):
        for number in range(more):
            task(f"more {number}", task="shop.note", interval=row.interval)
        with CaptureQueriesContext(connection) as seen:
            client.post(page_of(row), typed(interval=row.interval_id))
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 25, [one["sql"] for one in seen]
