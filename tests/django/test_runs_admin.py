"""Run history in Django's admin: what it shows, to whom, and at what price."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, _state
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django_celery_beat.models import PeriodicTask

from celery_hardened import harden
from celery_hardened.contrib.django.models import ScheduleRun
from celery_hardened.contrib.django.runs import export
from celery_hardened.contrib.django.runs.copying import Copying
from tests.support import django_schedules
from tests.support.client import client_side
from tests.support.django_runs import AT, line, report, runs
from tests.support.django_schedules import crontab, every, task

LIST = "/admin/celery_hardened/schedulerun/"
EXPORT = f"{LIST}export/"


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    """Empty tables, and the admin at ``/admin/``."""
    _clear()
    with override_settings(ROOT_URLCONF="tests.support.django_admin_urls"):
        yield
    _clear()


def _clear() -> None:
    django_schedules.clear("default")
    for model in (LogEntry, User, Session):
        model.objects.all().delete()


@pytest.fixture(autouse=True)
def shop() -> Iterator[Celery]:
    """The project's Celery app, the current one; nothing here asks its Redis."""
    with client_side():
        before = _state._tls.current_app
        made = Celery("shop", broker="memory://")
        made.conf.update(hardened_dead_letter_store="memory", timezone="UTC")
        harden(made)
        made.set_current()
        yield made
        made.close()
        _state._tls.current_app = before


def _logged_in(user: Any) -> Client:
    made = Client()
    made.force_login(user)
    return made


@pytest.fixture
def client() -> Client:
    """Logged in, with all permissions."""
    return _logged_in(User.objects.create_superuser("ada", password="x"))


def staff(*permissions: str) -> Client:
    user = User.objects.create_user("bob", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return _logged_in(user)


def text(response: Any) -> str:
    assert response.status_code == 200, response.status_code
    return str(response.content.decode()).replace("&#x27;", "'")


def write(*lines: bytes, schedule: str = "nightly", reports: Any = ()) -> None:
    Copying("default").copy({schedule: list(lines)}, list(reports))


def exported(client: Client, query: str = "") -> list[list[str]]:
    response = client.get(EXPORT + query)
    assert response.status_code == 200
    return [*csv.reader(io.StringIO(b"".join(response.streaming_content).decode()))]


# --- the list ------------------------------------------------------------------------------------


def test_the_list_tells_each_story(client: Client) -> None:
    """The slot in the schedule's zone and in UTC, whether it was fired or why not, and what became of its task."""
    task("nightly", crontab=crontab())
    write(
        line(missed=2),
        line("expired", slot=AT - 3600, first=AT - 7200, count=3),
        line("triggered", slot=AT + 5, id="by-hand", by="bob"),
        reports=[report("failure", error="ValueError", letter="t-0-0")],
    )
    page = text(client.get(LIST))
    assert "2026-11-14 23:13:20 +01:00 Europe/Paris<br>2026-11-14 22:13:20 UTC" in page
    assert "fired, stands for 2 missed before it" in page
    assert "missed, and too old (3 slots from 2026-11-14 21:13:20 +01:00 on)" in page
    assert "nothing told" in page
    assert "failure" in page
    assert '<a href="/admin/celery_hardened/deadletter/t-0-0/change/">t-0-0</a>' in page.replace("t_2D0_2D0", "t-0-0")
    pk = PeriodicTask.objects.get().pk
    assert f'<a href="/admin/django_celery_beat/periodictask/{pk}/change/">nightly</a>' in page


def test_a_schedule_that_is_gone(client: Client) -> None:
    """Its rows stay, in the app's zone."""
    write(line())
    page = text(client.get(LIST))
    assert "2026-11-14 22:13:20 UTC" in page
    assert "Europe" not in page


FILTERS = [
    ("schedule=other", ["other"]),
    ("schedule=gone", ["gone"]),
    ("verdict__exact=paused", ["paused"]),
    ("kind__exact=triggered", ["by hand"]),
    ("outcome=untold", ["gone", "other"]),
    ("outcome=success", ["nightly"]),
    ("letter=yes", ["letter"]),
    ("q=by-hand", ["by hand"]),
    ("q=OTH", ["other"]),
    ("slot__year=2020", ["old"]),
]


@pytest.mark.parametrize(("query", "found"), FILTERS, ids=[case[0] for case in FILTERS])
def test_filters_and_search(client: Client, query: str, found: list[str]) -> None:
    """Each by itself, in the list and in the export alike; a schedule that is gone is found by its name."""
    every(name="other")
    write(line(schedule="nightly"), schedule="nightly", reports=[report()])
    write(line(schedule="other"), schedule="other")
    write(line(schedule="gone"), schedule="gone")
    write(line("paused"), schedule="paused")
    write(line("triggered", id="by-hand"), schedule="by hand", reports=[report("ignore", task_id="by-hand")])
    write(line(schedule="letter"), schedule="letter", reports=[report("failure", schedule="letter", letter="x")])
    write(line("skipped", slot=1_600_000_000.0), schedule="old")
    page = client.get(f"{LIST}?{query}")
    assert sorted(run.schedule for run in page.context_data["cl"].result_list) == found
    assert sorted(row[0] for row in exported(client, f"?{query}")[1:]) == found


def test_a_query_of_nonsense_is_refused(client: Client) -> None:
    """By the list as by the export: neither fails."""
    write(line())
    for query in ("verdict__nothing=1", "slot__year=x", "q=%00"):
        assert client.get(f"{LIST}?{query}").status_code in (200, 302)
        assert client.get(f"{EXPORT}?{query}").status_code in (200, 302)


def test_statements_do_not_grow_with_the_rows(client: Client) -> None:
    """As many for a hundred rows of a hundred schedules as for one; and a handful for the export of one page."""

    def asked(address: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            response = client.get(address)
            assert response.status_code == 200
            if response.streaming:
                b"".join(response.streaming_content)
        return len(queries)

    task("s 0", crontab=crontab())
    write(line(schedule="s 0"), schedule="s 0")
    few, few_exported = asked(LIST), asked(EXPORT)
    for number in range(1, 120):
        task(f"s {number}", crontab=crontab())
        write(line(schedule=f"s {number}"), schedule=f"s {number}")
    assert asked(LIST) == few <= 11
    assert asked(EXPORT) == few_exported <= 11
    one = runs(schedule="s 5")[0]
    assert asked(f"{LIST}{one.pk}/change/") <= 6


def test_a_long_history_is_listed(client: Client) -> None:
    """A page of it, and no more than a page at once."""
    write(*[line("paused", slot=AT + second) for second in range(250)])
    page = client.get(f"{LIST}?all=")
    assert len(page.context_data["cl"].result_list) == 100


# --- one run ------------------------------------------------------------------------------------


def test_a_run_can_be_read_and_nothing_else(client: Client) -> None:
    """All that is known of it; no form changes it, and no address deletes it."""
    write(line(), reports=[report("success")])
    (row,) = runs()
    page = text(client.get(f"{LIST}{row.pk}/change/"))
    assert row.task_id in page
    assert "w1@test" in page
    assert 'name="_save"' not in page
    assert client.post(f"{LIST}{row.pk}/change/", {"outcome": "failure"}).status_code == 403
    assert client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(LIST, {"action": "delete_selected", "_selected_action": row.pk}).status_code in (200, 302)
    assert [one.outcome for one in runs()] == ["success"]


def test_the_task_leads_to_its_runs(client: Client) -> None:
    """From its own page, by name; not for who may not view them."""
    row = every(name="a&b c/d")
    wanted = f"{LIST}?schedule=a%26b%20c%2Fd"
    page = f"/admin/django_celery_beat/periodictask/{row.pk}/change/"
    assert f'href="{wanted}"' in text(client.get(page))
    assert wanted not in text(staff("view_periodictask").get(page))


# --- the export ------------------------------------------------------------------------------------


def test_the_export_has_all_rows_of_all_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a page ends amid rows of one slot, and while rows are pruned and added."""
    monkeypatch.setattr(export, "PAGE", 7)
    for number in range(6):
        write(*[line("paused", slot=AT + second) for second in range(10)], schedule=f"s {number}")
    rows = exported(client)
    assert rows[0] == [*export.COLUMNS]
    assert len(rows) == 61
    assert len({(row[0], row[1]) for row in rows[1:]}) == 60
    assert rows[1][1] == "2026-11-14T22:13:29.000Z"


def test_rows_that_go_while_they_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of those that stay is left out or told twice."""
    monkeypatch.setattr(export, "PAGE", 4)
    write(*[line("paused", slot=AT + second) for second in range(20)])
    reading = export.lines(ScheduleRun.objects.all())
    seen = [next(reading) for _ in range(6)]
    ScheduleRun.objects.filter(slot__gt=runs()[12].slot).delete()
    write(line("paused", slot=AT + 99))
    seen += [*reading]
    assert len(seen) == len(set(seen)) == 21  # two pages were read before they went


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_cells_that_a_spreadsheet_would_run(client: Client, start: str) -> None:
    """A name that begins like a formula is shown as text."""
    write(line("paused"), schedule=f"{start}cmd")
    assert exported(client)[1][0] == f"'{start}cmd"


def test_the_export_keeps_a_page_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next page is read when the one before has been sent."""
    monkeypatch.setattr(export, "PAGE", 10)
    write(*[line("paused", slot=AT + second) for second in range(95)])
    with CaptureQueriesContext(connection) as queries:
        reading = export.lines(ScheduleRun.objects.all())
        for _ in range(11):
            next(reading)
        assert len(queries) == 1
        assert len([*reading]) == 85
        assert len(queries) == 10


@pytest.mark.parametrize("name", ["schedule", "outcome", "letter", "verdict__exact", "slot__year"])
def test_an_address_that_no_database_can_be_asked_for(client: Client, name: str) -> None:
    """A character that PostgreSQL takes in no text: back to the list, as Django does with what it cannot read."""
    write(line())
    assert client.get(f"{LIST}?{name}=a%00b").url == f"{LIST}?e=1"
    assert client.get(f"{EXPORT}?{name}=a%00b").url == LIST
    assert "nightly" in text(client.get(f"{LIST}?q=night%00ly"))


# --- who may what ------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [LIST, EXPORT, "change"])
def test_without_the_permission_nothing_is_shown(address: str) -> None:
    """Not by address either; nobody who is not logged in, and nobody who may only look at periodic tasks."""
    write(line())
    address = f"{LIST}{runs()[0].pk}/change/" if address == "change" else address
    assert Client().get(address).status_code == 302
    assert staff("view_periodictask", "change_periodictask").get(address).status_code == 403
    assert Client().post(EXPORT).status_code in (302, 403)


def test_who_may_view_runs_sees_no_link_that_leads_nowhere() -> None:
    """Letters and periodic tasks have permissions of their own."""
    every(name="nightly")
    write(line(), reports=[report("failure", letter="t-0-0")])
    page = text(staff("view_schedulerun").get(LIST))
    assert "t-0-0" in page
    assert "/deadletter/" not in page
    assert "/periodictask/" not in page


def test_the_export_changes_nothing(client: Client) -> None:
    """It is asked for by GET, and refuses all else."""
    write(line())
    assert client.post(EXPORT).status_code == 405
    assert client.head(EXPORT).status_code == 200
