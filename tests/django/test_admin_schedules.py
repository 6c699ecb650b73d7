"""Periodic tasks in Django's admin: how they stand, what can be done with them, and by whom."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
from celery import Celery
from celery.signals import import_modules
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone
from django_celery_beat import admin as theirs
from django_celery_beat.models import PeriodicTask
from redis import Redis
from redis.client import Pipeline

from celery_hardened import HardenedTask, Hardening
from celery_hardened.beat.leader_store import LeaderStore
from celery_hardened.beat.names import Keys
from celery_hardened.beat.record import Record
from celery_hardened.beat.store import BeatStore
from celery_hardened.contrib.django.admin import PeriodicTaskAdmin, replace_theirs
from celery_hardened.contrib.django.models import SchedulePolicy, ScheduleRun
from tests.support import django_schedules
from tests.support.admin_schedules import (
    ACTIONS,
    LIST,
    act,
    empty_site,
    errors_of,
    fields,
    logged,
    page_of,
    sent,
    shop_at,
)
from tests.support.admin_visitors import ada, staff
from tests.support.django_schedules import crontab, every, many, task


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    with empty_site():
        yield


@pytest.fixture
def broker_url(request: pytest.FixtureRequest) -> str:
    """Of the app; a test that takes Redis away gives another one."""
    return getattr(request, "param", None) or request.getfixturevalue("records_url")


@pytest.fixture
def shop(broker_url: str) -> Iterator[Celery]:
    with shop_at(broker_url) as made:
        yield made


@pytest.fixture
def hardening(shop: Celery) -> Hardening:
    return Hardening.expect(shop)


@pytest.fixture
def store(hardening: Hardening) -> BeatStore:
    return BeatStore(hardening.redis, Keys(hardening.prefix), history=100)


@pytest.fixture
def client(shop: Celery) -> Client:
    """Logged in, with all permissions."""
    return ada()


# --- whose pages they are ---------------------------------------------------------------------------------------


def test_ours_takes_the_place_of_theirs_and_of_no_other() -> None:
    """A project's own admin of periodic tasks stays; nothing is registered where nothing was."""

    class Own(theirs.PeriodicTaskAdmin):  # type: ignore[misc]
        pass

    assert type(admin.site.get_model_admin(PeriodicTask)) is PeriodicTaskAdmin
    site = admin.AdminSite()
    assert not replace_theirs(site)
    assert not site.is_registered(PeriodicTask)
    site.register(PeriodicTask, Own)
    assert not replace_theirs(site)
    assert type(site.get_model_admin(PeriodicTask)) is Own
    site.unregister(PeriodicTask)
    site.register(PeriodicTask, theirs.PeriodicTaskAdmin)
    assert replace_theirs(site)
    assert type(site.get_model_admin(PeriodicTask)) is PeriodicTaskAdmin


# --- the list ---------------------------------------------------------------------------------------------------


def test_the_scheduler_may_be_named_in_the_settings(client: Client) -> None:
    """``CELERY_BEAT_SCHEDULER = "hardened-django"``, as our checks advise, is no path that can be imported."""
    every(name="nightly")
    with override_settings(CELERY_BEAT_SCHEDULER="hardened-django"):
        answer = client.get(LIST)
    assert answer.status_code == 200
    assert "nightly" in answer.content.decode()


def test_the_list_knows_tasks_that_nobody_has_imported_yet(client: Client, shop: Celery) -> None:
    """A web process may be asked for the list before anything has imported the app's tasks: none is called unknown."""

    def discover(**_: object) -> None:
        @shop.task(base=HardenedTask, name="shop.late")
        def late() -> None: ...

    row = every(name="late", task="shop.late")
    SchedulePolicy.objects.create(periodic_task=row, overlap="skip")
    import_modules.connect(discover, sender=shop)
    assert "knows no task" not in client.get(LIST).content.decode()


def test_the_list_says_how_schedules_stand(client: Client, hardening: Hardening, store: BeatStore) -> None:
    """Slots to come in the schedule's zone and in UTC, the last one, counts, the run, the pause, the leader."""
    row = task("nightly", task="shop.note", crontab=crontab("30", "2", "Asia/Kolkata"))
    SchedulePolicy.objects.create(periodic_task=row, overlap="skip")
    keys = Keys(hardening.prefix)
    schedule = django_schedules.only(django_schedules.reader("default").load())
    record = Record(
        cursor=time.time(), anchor=0.0, mark=schedule.mark, fired=3, last_slot=1767214800.0,
        passed={"expired": 4, "coalesced": 1, "overlapped": 2},
    )  # fmt: skip
    store.adopt({"nightly": record.text()})
    hardening.redis.lpush(keys.history("nightly"), json.dumps({"at": 1.0, "outcome": "fired"}))
    hardening.redis.hset(keys.window("nightly"), "owner", "task-7")
    store.pause("nightly", by="eve", why="audit <week>", until=None)
    LeaderStore(hardening.redis, keys, ttl=60).acquire("me", client="", identity={"host": "beat-1", "pid": 12})

    said = client.get(LIST).content.decode()
    assert "Leading: <strong>beat-1 (pid 12)</strong>" in said
    assert said.count("02:30:00 +05:30 Asia/Kolkata") == 3
    assert said.count("21:00:00 UTC") == 3
    assert "2026-01-01 02:30:00 +05:30" in said
    for column, value in [("last_outcome", "fired"), ("missed", "5"), ("skipped", "2"), ("running_now", "task-7")]:
        assert f'<td class="field-{column}">{value}</td>' in said
    assert "paused until it is resumed by eve: audit &lt;week&gt;" in said


def test_the_list_says_how_the_last_run_ended(client: Client, hardening: Hardening) -> None:
    """Once the history of runs in the database has it; the rest is of the history in Redis."""
    keys = Keys(hardening.prefix)
    for name in ("told", "silent"):
        every(60, name=name, task="shop.note")
        hardening.redis.lpush(keys.history(name), json.dumps({"at": 1.0, "outcome": "fired", "id": f"id-{name}"}))
    moment = timezone.now()
    ScheduleRun.objects.create(
        identity="a", schedule="told", slot=moment, decided=moment, verdict="fired", task_id="id-told",
        outcome="failure",
    )  # fmt: skip
    said = client.get(LIST).content.decode()
    ScheduleRun.objects.all().delete()
    assert '<td class="field-last_outcome">fired: failure</td>' in said
    assert '<td class="field-last_outcome">fired</td>' in said


def test_nobody_leads(client: Client) -> None:
    """Then nothing is fired, and the list says so."""
    every(60, task="shop.note")
    assert "No beat leads" in client.get(LIST).content.decode()


def test_a_row_that_cannot_be_read_is_one_row(client: Client) -> None:
    """What is wrong with it is in the list; the others are as ever."""
    every(60, name="bad", task="shop.note", args="{")
    task("good", task="shop.note", crontab=crontab())
    said = client.get(LIST).content.decode()
    assert "its arguments are no JSON" in said
    assert said.count("Europe/Paris<br>") == 3


@pytest.mark.parametrize("broker_url", ["redis://127.0.0.1:1/0"], indirect=True, ids=["away"])
def test_redis_away(client: Client) -> None:
    """The list and the form work, and say what is missing; actions say that nothing was done, and log nothing."""
    row = task("nightly", task="shop.note", crontab=crontab())
    said = client.get(LIST).content.decode()
    assert "What beats know is missing here" in said
    assert said.count("Europe/Paris<br>") == 3
    assert "Coming slots" in client.get(page_of(row)).content.decode()
    for action, more in [("run_tasks", {}), ("pause_tasks", {"pause": "1", "why": "audit"}), ("resume_tasks", {})]:
        assert 'class="error"' in act(client, action, row, **more).content.decode()
    assert logged() == []


def test_an_app_that_is_not_hardened(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages work, and say what to do."""
    monkeypatch.setattr(PeriodicTaskAdmin, "celery_app", Celery("plain", set_as_current=False))
    row = every(60, task="shop.note")
    assert "was never hardened" in client.get(LIST).content.decode()
    assert client.get(page_of(row)).status_code == 200


def test_one_round_trip_and_the_same_queries_for_any_number_of_rows(
    client: Client, hardening: Hardening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 rows and a full page of 300 cost the same statements, 10 in all, and one trip to Redis each."""
    trips: list[str] = []
    execute, command, mine = Pipeline.execute, Redis.execute_command, threading.get_ident()

    def trip(what: str) -> None:
        if threading.get_ident() == mine:  # a thread of an earlier test may be about
            trips.append(what)

    monkeypatch.setattr(Pipeline, "execute", lambda self, *a, **k: trip("pipe") or execute(self, *a, **k))
    monkeypatch.setattr(Redis, "execute_command", lambda self, *a, **k: trip(a[0]) or command(self, *a, **k))
    counts = []
    for rows in (10, 300):
        django_schedules.clear("default")
        many(rows)
        hardening.redis.lpush(
            Keys(hardening.prefix).history(f"task {rows - 1}"), json.dumps({"outcome": "fired", "id": "x"})
        )
        client.get(LIST)
        trips.clear()
        with CaptureQueriesContext(
            connection,
        ) as seen:
            said = client.get(LIST).content.decode()
        assert said.count("field-next_slots") >= min(rows, 100)
        assert trips == ["pipe"]
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 10, [one["sql"] for one in seen]


# --- actions ----------------------------------------------------------------------------------------------------


def test_run_now(client: Client, shop: Celery, store: BeatStore) -> None:
    """It is published once, under the id that is told, logged, and in its history with who did it."""
    row = every(60, task="shop.note", args='["a"]')
    said = act(client, "run_tasks", row).content.decode()
    (message,) = sent(shop)
    task_id = message["headers"]["id"]
    assert f"Run now, as task {task_id}." in said
    assert logged() == [("ada", "invoices", f"Run now, as task {task_id}.")]
    (line,) = store.history("invoices", 10)
    assert (line["outcome"], line["by"], line["id"]) == ("triggered", "ada", task_id)


def test_a_run_that_is_refused_is_not_logged(client: Client, shop: Celery, store: BeatStore) -> None:
    """Paused, or unreadable: nothing is sent, and the reason is told. The others run."""
    paused, bad, good = (every(60, name=name, task="shop.note") for name in ("paused", "bad", "good"))
    PeriodicTask.objects.filter(pk=bad.pk).update(args="{")
    store.pause("paused", by="eve", why="audit", until=None)
    said = act(client, "run_tasks", paused, bad, good).content.decode()
    assert "it is paused" in said
    assert "arguments are no JSON" in said
    assert len(sent(shop)) == 1
    assert [name for _, name, _ in logged()] == ["good"]


def test_pause_and_resume(client: Client, store: BeatStore) -> None:
    """A page asks for the reason first and changes nothing; then it is paused by whom, why and until when."""
    row = every(60, task="shop.note")
    asked = act(client, "pause_tasks", row).content.decode()
    assert 'name="why"' in asked
    assert act(client, "pause_tasks", row, pause="1", why="").context_data["form"].errors
    past = {"until_0": "2020-01-01", "until_1": "00:00"}
    assert act(client, "pause_tasks", row, pause="1", why="audit", **past).context_data["form"].errors
    assert (store.paused(), logged()) == ({}, [])
    act(client, "pause_tasks", row, pause="1", why="audit", until_0="2037-01-01", until_1="12:00")
    pause = store.paused()["invoices"]
    assert (pause.by, pause.why, pause.until) == ("ada", "audit", 2114424000.0)
    act(client, "resume_tasks", row)
    assert store.paused() == {}
    assert sorted(message for _, _, message in logged()) == ["Paused until 2037-01-01 12:00 UTC: audit", "Resumed."]


def test_disable_and_enable(client: Client) -> None:
    """Logged, and a task that is enabled again starts now."""
    row = every(60, task="shop.note")
    act(client, "disable_tasks", row)
    row.refresh_from_db()
    assert (row.enabled, row.last_run_at) == (False, None)
    before = row.date_changed
    act(client, "enable_tasks", row)
    row.refresh_from_db()
    assert row.enabled
    assert row.date_changed > before
    assert sorted(message for _, _, message in logged()) == ["Disabled.", "Enabled."]


def test_no_more_than_a_hundred_at_once(client: Client, shop: Celery) -> None:
    """ "All that match" may be thousands: nothing is done then."""
    many(101)
    said = act(client, "run_tasks", *PeriodicTask.objects.all(), select_across="1").content.decode()
    assert "Nothing was done" in said
    assert sent(shop) == []


# --- who may ----------------------------------------------------------------------------------------------------


def test_who_may_only_see_can_not_act(shop: Celery, store: BeatStore) -> None:
    """No action is offered, and none is done if it is posted all the same."""
    client, row = staff("view_periodictask"), every(60, task="shop.note")
    store.pause("invoices", by="eve", why="audit", until=None)
    assert 'name="action"' not in client.get(LIST).content.decode()
    for action in ACTIONS:
        act(client, action, row, pause="1", why="mine")
    row.refresh_from_db()
    assert (sent(shop), row.enabled, store.paused()["invoices"].why, logged()) == ([], True, "audit", [])
    assert client.post(page_of(row), fields()).status_code == 403


def test_a_project_may_tell_the_actions_apart(shop: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permission of its own for runs: the others stay."""
    monkeypatch.setattr(PeriodicTaskAdmin, "has_run_permission", lambda self, request: False)
    client, row = staff("change_periodictask"), every(60, task="shop.note")
    act(client, "run_tasks", row)
    act(client, "disable_tasks", row)
    assert sent(shop) == []
    assert [message for _, _, message in logged()] == ["Disabled."]


def test_others_see_nothing(shop: Celery) -> None:
    """Staff without permission, and nobody at all."""
    row = every(60, task="shop.note", args='["secret"]')
    client = staff()
    for path in (LIST, page_of(row)):
        assert client.get(path).status_code == 403
        assert Client().get(path).status_code == 302


def test_a_forged_post_is_refused(shop: Celery, store: BeatStore) -> None:
    """Without the token of the page nothing is done."""
    client = ada(enforce_csrf_checks=True)
    row = every(60, task="shop.note")
    for action in ACTIONS:
        assert act(client, action, row, pause="1", why="mine").status_code == 403
    assert (sent(shop), store.paused(), logged()) == ([], {}, [])


def test_get_changes_nothing(client: Client, shop: Celery, hardening: Hardening) -> None:
    """Neither in the tables nor in Redis, whatever is in the address."""
    row = every(60, task="shop.note")
    keys = sorted(hardening.redis.keys())
    with CaptureQueriesContext(connection) as seen:
        client.get(page_of(row))
        for action in ACTIONS:
            client.get(LIST, {"action": action, "_selected_action": row.pk, "pause": "1", "why": "mine"}, follow=True)
    assert [one["sql"] for one in seen if one["sql"].split()[0] not in ("SELECT", "BEGIN", "COMMIT")] == []
    assert sorted(hardening.redis.keys()) == keys
    assert logged() == []


# --- the form ---------------------------------------------------------------------------------------------------


def test_a_task_is_saved_with_its_policy(client: Client) -> None:
    """Added, changed and taken away in the same form."""
    row = every(60, task="shop.note")
    said = fields(interval=row.interval_id)
    assert client.post(page_of(row), {**said, "hardened-0-overlap": "skip"}).status_code == 302
    assert SchedulePolicy.objects.get().said() == {"overlap": "skip"}
    there = {**said, "hardened-INITIAL_FORMS": "1", "hardened-0-periodic_task": row.pk}
    assert client.post(page_of(row), {**there, "hardened-0-grace": "5"}).status_code == 302
    assert SchedulePolicy.objects.get().said() == {"grace": 5.0}
    assert client.post(page_of(row), {**there, "hardened-0-DELETE": "on"}).status_code == 302
    assert not SchedulePolicy.objects.exists()
    assert client.post(page_of(row), said).status_code == 302
    assert not SchedulePolicy.objects.exists()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"task": "shop.nota"}, "This app knows no task 'shop.nota'. Did you mean 'shop.note'?"),
        ({"task": ""}, "Say which task is to run."),
        ({"task": "x" * 300}, "at most 200 characters"),
        ({"args": "["}, "This is no JSON"),
        ({"args": "[" * 200_000}, "This is no JSON"),
        ({"args": '{"a": 1}'}, "JSON of another kind. It has to be a list"),
        ({"kwargs": "[1]"}, "It has to be an object"),
        ({"headers": "7"}, "It has to be an object"),
        ({"hardened-0-grace": "60", "hardened-0-catchup_window": "5"}, "is shorter than grace"),
        ({"hardened-0-grace": "90000"}, "catchup_window (86400 s, from hardened_beat_catchup_window) is shorter"),
        ({"hardened-0-jitter": "61"}, "jitter"),
        ({"task": "far.away", "elsewhere": "on", "hardened-0-overlap": "skip"}, "needs a hardened or contained task"),
    ],
)
def test_what_a_beat_could_not_fire_is_refused(client: Client, changed: dict[str, str], sentence: str) -> None:
    """With a sentence that says what is wrong, and nothing is saved."""
    row = every(60, task="shop.note")
    said = errors_of(client.post(page_of(row), fields(interval=row.interval_id, **changed)))
    assert sentence in said, said
    row.refresh_from_db()
    assert (row.task, row.args, SchedulePolicy.objects.count()) == ("shop.note", "[]", 0)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [({"hour": "25"}, "cannot be read"), ({"day_of_month": "30", "month_of_year": "2"}, "is never due")],
)
def test_a_wrong_crontab_is_refused(client: Client, columns: dict[str, str], sentence: str) -> None:
    """One that was written past its own form, and one that no day fits."""
    wrong = crontab(**{"minute": "0", "hour": "2", **columns})
    assert sentence in errors_of(client.post(f"{LIST}add/", fields(crontab=wrong.pk)))
    assert not PeriodicTask.objects.exists()


def test_a_pause_until_a_time_that_no_calendar_has(client: Client, store: BeatStore) -> None:
    """``--until`` takes any duration, and the list is shown."""
    row = every(60, name="far", task="shop.note")
    store.pause("far", by="eve", why="audit", until=time.time() + 2_999_999 * 86_400.0)
    assert "until a time beyond the year 9999" in client.get(LIST).content.decode()
    assert client.get(page_of(row)).status_code == 200


def test_a_task_of_another_app(client: Client) -> None:
    """It is taken if that is said, and once it is there it may be edited."""
    row = every(60, task="shop.note")
    said = fields(interval=row.interval_id, task="far.away")
    assert client.post(page_of(row), {**said, "elsewhere": "on"}).status_code == 302
    assert client.post(page_of(row), {**said, "description": "edited"}).status_code == 302
    assert PeriodicTask.objects.get().description == "edited"


def test_the_form_shows_the_coming_slots_with_what_the_clock_does(client: Client) -> None:
    """A dozen of them; and on the last Sunday of March a time that does not exist."""
    daily = task("daily", task="shop.note", crontab=crontab())
    assert len([line for line in client.get(page_of(daily)).context_data["preview"] if line.due]) == 12
    last_sunday = crontab("30", "2", "Europe/Paris", month_of_year="3", day_of_month="25-31", day_of_week="0")
    said = client.get(page_of(task("spring", task="shop.note", crontab=last_sunday))).content.decode()
    assert said.count("02:30 does not exist, fired at 03:00") >= 8
