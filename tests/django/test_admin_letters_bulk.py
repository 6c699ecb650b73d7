"""Bulk actions in the admin: what is asked for, by whom, what their pages say, and letters with other arguments."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.db import connections
from django.db.models.functions import Now
from django.test import Client
from django.utils.html import escape

from celery_hardened import Hardening
from celery_hardened.contrib.django.dead_letters import act, bulk, bulk_pages
from celery_hardened.contrib.django.dead_letters.bulk_work import BulkWork
from celery_hardened.contrib.django.models import BulkAction, BulkActionLetter
from celery_hardened.dead_letter.contract import DeadLetterStore, Query
from celery_hardened.marks import REFERENCE
from tests.stores.letters import letter
from tests.support.admin_letters import (
    ARGUMENTS,
    BULK,
    NASTY,
    OVERVIEW,
    REDRIVE,
    SECRET,
    VIEW,
    hidden,
    ids_of,
    in_memory,
    page_of,
    secretive,
    site,  # noqa: F401 - a fixture
    store_of_the_app,  # noqa: F401 - a fixture
    superuser,  # noqa: F401 - a fixture
    text_of,
)
from tests.support.admin_visitors import staff
from tests.support.django_schedules import statements


@pytest.fixture
def messages(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the actions for which a worker was asked."""
    asked: list[int] = []
    monkeypatch.setattr(bulk, "ask", lambda _app, pk, **_: asked.append(pk))
    return asked


def carry_out(app: Celery, pk: int) -> BulkAction:
    while (action := bulk.take(pk, task_id=uuid.uuid4().hex)) is not None:
        work = BulkWork(app, action, sleep=lambda _: None)
        if work.slice() is not None:
            work.hand_over(0.0)
    found: BulkAction = BulkAction.objects.get(pk=pk)
    return found


def test_more_than_a_page_can(
    client: Client, store: DeadLetterStore, app: Celery, messages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is asked, once for a page sent twice, for the letters that were shown, and both are in the log."""
    monkeypatch.setattr(act, "MOST", 2)
    queue = str(app.conf.task_default_queue)
    mine = [letter(queue=queue, task="shop charge") for _ in range(3)]
    for one in mine:
        store.put(one)
    page = text_of(client.post(REDRIVE, {"which": "all", "task": "shop charge"}))
    assert "Redrive 3 letters?" in page
    assert "A worker does it in the background" in page
    assert ids_of(page) == []
    store.put(late := letter(queue=queue, task="shop charge"))
    said = {**hidden(page, "query", "key"), "confirmed": "1"}
    assert "This field is required" in text_of(client.post(REDRIVE, said))
    assert not BulkAction.objects.exists()
    for _ in range(2):
        done = client.post(REDRIVE, {**said, "why": "mended", "rate": "50"}, follow=True)
        shown = text_of(done)
    action = BulkAction.objects.get()
    assert messages == [action.pk]
    assert done.redirect_chain[-1][0] == f"{BULK}{action.pk}/"
    assert "waits for a worker" in shown
    assert store.count(Query(state="dead")) == 4, "nothing was sent within the request"
    assert "Redrive of 3 letters begun. Reason: mended" in LogEntry.objects.get().change_message
    carry_out(app, action.pk)
    assert {store.get(one.id).state for one in mine} == {"redriven"}
    assert store.get(late.id).state == "dead"
    shown = text_of(client.get(f"{BULK}{action.pk}/"))
    assert "<strong>done</strong>" in shown
    assert "3 of 3 letters sent." in shown
    assert re.search(r"<td>task=shop charge, until=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ</td>", shown)
    assert "http-equiv" not in shown, "it has ended"
    assert "Redrive done: 3 of 3 letters sent." in LogEntry.objects.latest("pk").change_message
    assert f"{BULK}{action.pk}/" in text_of(client.get(BULK))


@in_memory
@pytest.mark.parametrize(
    ("how", "fields"),
    [
        ({"rate": "5"}, {"rate": 5.0}),
        ({"canary": "2", "canary_wait": "9", "canary_max_failed": "50"}, {"canary": 2, "canary_wait": 9.0}),
        ({"dry_run": "on"}, {"dry_run": True}),
    ],
)
def test_what_takes_its_time_is_a_workers(
    client: Client, store: DeadLetterStore, messages: list[int], how: dict[str, str], fields: dict[str, Any]
) -> None:
    """Few letters too; it is about exactly those."""
    for name in ("a-0-0", "b-0-0", "c-0-0"):
        store.put(letter(name))
    client.post(REDRIVE, {"id": ["a-0-0", "b-0-0"], "confirmed": "1", "why": "x", **how})
    action = BulkAction.objects.get(**fields)
    assert messages == [action.pk]
    assert bulk.loaded(action.query) == Query(ids=("a-0-0", "b-0-0"))
    assert "<td>2 by their ids</td>" in text_of(client.get(f"{BULK}{action.pk}/"))
    assert store.count(Query(state="dead")) == 3


@in_memory
def test_a_query_that_no_page_has_given(client: Client, store: DeadLetterStore, messages: list[int]) -> None:
    """It is refused: what is done is what was shown."""
    store.put(letter())
    forged = {"query": json.dumps({"task": "shop.charge"}), "confirmed": "1", "why": "x"}
    assert "nothing was changed" in text_of(client.post(REDRIVE, forged, follow=True))
    assert not BulkAction.objects.exists()


def make(store: DeadLetterStore, **fields: Any) -> BulkAction:
    given: dict[str, Any] = {"what": "redrive", "by": "ada", "user_id": "0", "why": "x", "total": 1, **fields}
    made: BulkAction = BulkAction.objects.create(
        key=uuid.uuid4().hex, query=bulk.dumped(Query(task="shop charge", until=1.5)), asked_at=Now(), **given
    )
    return made


@in_memory
def test_no_worker_takes_it(client: Client, store: DeadLetterStore, messages: list[int]) -> None:
    """Its page says so, since when, and which command does the same; a button asks again."""
    action = make(store, rate=2.0, canary=3)
    assert "No worker has taken it" not in text_of(client.get(f"{BULK}{action.pk}/"))
    BulkAction.objects.update(asked_at=Now() - timedelta(seconds=40))
    page = text_of(client.get(f"{BULK}{action.pk}/"))
    assert re.search(r"No worker has taken it for 4\d s", page)
    wanted = "dlq redrive --task='shop charge' --until=1970-01-01T00:00:01.500000+00:00 --rate=2 --canary=3"
    assert escape(wanted) in page
    client.post(f"{BULK}{action.pk}/go-on/")
    assert messages == [action.pk]
    BulkAction.objects.update(token="t", held_until=Now() + bulk.HOLD)
    assert "No worker has taken it" not in text_of(client.get(f"{BULK}{action.pk}/"))


@in_memory
def test_a_transaction_around_each_request(
    client: Client, store: DeadLetterStore, messages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ATOMIC_REQUESTS a worker is asked when the action is there for it to see, and not before."""
    seen: list[tuple[bool, bool]] = []

    def ask(_app: Celery, pk: int, **_: Any) -> None:
        there = BulkAction.objects.filter(pk=pk).exists()
        seen.append((connections["default"].in_atomic_block, there))

    monkeypatch.setattr(bulk, "ask", ask)
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    store.put(letter("a-0-0"))
    client.post(REDRIVE, {"id": "a-0-0", "confirmed": "1", "why": "x", "rate": "1"})
    client.post(f"{BULK}{BulkAction.objects.get().pk}/go-on/")
    assert seen == [(False, True)] * 2


@in_memory
def test_a_broker_that_takes_no_message(
    client: Client, store: DeadLetterStore, broken: list[str], app: Celery
) -> None:  # fmt: skip
    """The page is there all the same, says so, and a button asks again."""
    store.put(letter("a-0-0"))
    done = client.post(REDRIVE, {"id": "a-0-0", "confirmed": "1", "why": "x", "rate": "1"}, follow=True)
    assert "The broker did not take the message" in text_of(done)
    assert BulkAction.objects.get().state == "waiting"
    assert len(broken) > 1


@in_memory
def test_stop(client: Client, store: DeadLetterStore, app: Celery, messages: list[int]) -> None:
    """One that nobody works on ends at once, and one that is held when its worker looks."""
    store.put(letter())
    idle = make(store)
    done = client.post(f"{BULK}{idle.pk}/stop/", follow=True)
    assert "It is stopped." in text_of(done)
    assert bulk.take(idle.pk, task_id="m") is None
    busy = make(store)
    held = bulk.take(busy.pk, task_id="m")
    assert held is not None
    done = client.post(f"{BULK}{busy.pk}/stop/", follow=True)
    assert "It stops after the letters that are under way" in text_of(done)
    assert BulkWork(app, held).slice() is None
    busy.refresh_from_db()
    assert (busy.state, busy.note) == ("stopped", "ada stopped it.")
    assert "It had ended before" in text_of(client.post(f"{BULK}{busy.pk}/stop/", follow=True))
    assert store.count(Query(state="dead")) == 1
    assert [one.change_message[:16] for one in LogEntry.objects.all()] == ["Redrive stopped."] * 2


@in_memory
def test_stop_of_one_that_ends_meanwhile(
    client: Client, store: DeadLetterStore, messages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker ends it after the page has looked: nothing is stopped, and nobody is told so."""
    store.put(letter())
    action, look = make(store), bulk_pages._found

    def late(pk: int) -> Any:
        found = look(pk)
        BulkAction.objects.filter(pk=pk).update(state="done", done=1, ended_at=Now())
        return found

    monkeypatch.setattr(bulk_pages, "_found", late)
    done = client.post(f"{BULK}{action.pk}/stop/")
    monkeypatch.undo()
    assert "It had ended before." in text_of(client.get(done.url))
    action.refresh_from_db()
    assert (action.state, action.stop_by) == ("done", "")
    assert not [one for one in LogEntry.objects.all() if "stopped" in one.change_message]


@in_memory
@pytest.mark.parametrize("button", ["stop", "go-on"])
@pytest.mark.parametrize("what", ["redrive", "discard"])
def test_buttons_need_a_permission_a_post_and_a_token(
    store: DeadLetterStore, messages: list[int], button: str, what: str
) -> None:
    """By address too: who may redrive may not stop a discard, and reading changes nothing."""
    action = make(store, what=what)
    page = f"{BULK}{action.pk}/{button}/"
    other = staff(VIEW, f"{'discard' if what == 'redrive' else 'redrive'}_deadletter")
    assert other.post(page).status_code == 403
    assert '<form method="post" class="actions-row">' not in text_of(other.get(f"{BULK}{action.pk}/"))
    assert staff(f"{what}_deadletter").post(page).status_code == 403, "who may not view"
    may = staff(VIEW, f"{what}_deadletter", enforce_csrf_checks=True)
    assert may.get(page).status_code == 405
    assert may.post(page).status_code == 403, "no token"
    before = BulkAction.objects.values().get()
    for address in (BULK, f"{BULK}{action.pk}/"):
        assert may.post(address).status_code == 403, "no token"
        may.get(address)
    assert BulkAction.objects.values().get() == before
    assert messages == []
    assert may.post(page, {"csrfmiddlewaretoken": may.cookies["csrftoken"].value}).status_code == 302
    assert client_less().get(BULK).status_code == 302


def client_less() -> Client:
    """Nobody who is logged in."""
    return Client()


@in_memory
def test_pages_cost_the_same_for_any_number(client: Client, store: DeadLetterStore) -> None:
    """Statements of the list and of an action's page."""

    def cost(address: str) -> int:
        with statements("default") as seen:
            text_of(client.get(address))
        return len(seen)

    action = make(store)
    pages = [BULK, f"{BULK}{action.pk}/"]
    few = [cost(page) for page in pages]
    for number in range(60):
        make(store)
        BulkActionLetter.objects.create(action=action, letter=f"l{number}", outcome="refused", why=f"reason {number}")
    assert [cost(page) for page in pages] == few
    assert max(few) <= 8


@in_memory
def test_what_strangers_wrote_is_escaped(client: Client, store: DeadLetterStore) -> None:
    """Reasons, names and notes."""
    action = make(store, by=NASTY, why=NASTY, note=NASTY, canary_said=NASTY)
    BulkActionLetter.objects.create(action=action, letter=NASTY, outcome="failed", why=NASTY)
    for address in (BULK, f"{BULK}{action.pk}/"):
        page = text_of(client.get(address))
        assert NASTY not in page
        assert escape(NASTY) in page


@in_memory
def test_a_page_without_inline_code(client: Client, store: DeadLetterStore) -> None:
    """A strict content security policy lets it work, and so does a browser without JavaScript."""
    page = text_of(client.get(f"{BULK}{make(store).pk}/"))
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in page
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert " style=" not in page.partition('<div id="content"')[2].partition("</main>")[0]


# --- other arguments ------------------------------------------------------------------------------------------------


def edit_of(letter_id: str) -> str:
    return f"{OVERVIEW}{quote(letter_id)}/edit/"


EDITOR = (VIEW, ARGUMENTS, "redrive_deadletter", "edit_arguments")


def test_edit_and_redrive(
    client: Client, store: DeadLetterStore, app: Celery, hardening: Hardening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message goes out with the new arguments; the letter keeps its own; who and why is recorded, not what."""
    one = letter(queue=str(app.conf.task_default_queue), body=b'[["i1"], {"note": "old"}, {"chain": null}]')
    store.put(one)
    assert edit_of(one.id) in text_of(client.get(page_of(one.id)))
    page = text_of(client.get(edit_of(one.id)))
    assert "i1" in page
    sent = caught(monkeypatch)
    new = {"args": '["i2"]', "kwargs": '{"note": "s3cret"}', "why": "typo"}
    shown = text_of(client.post(edit_of(one.id), new, follow=True))
    assert "It was sent with the new arguments" in shown
    assert json.loads(sent[0].body) == [["i2"], {"note": "s3cret"}, {"chain": None}]
    stored = store.get(one.id)
    assert (stored.state, stored.letter.body) == ("redriven", one.body)
    assert (stored.audit[-1].by, stored.audit[-1].why) == ("ada", "typo (arguments edited)")
    entry = LogEntry.objects.get()
    assert "Reason: typo" in entry.change_message
    assert "s3cret" not in entry.change_message
    assert "This letter is redriven already." in text_of(client.post(edit_of(one.id), new))
    assert len(sent) == 1


def caught(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Messages that a redrive publishes, in place of the broker."""
    from celery_hardened.dead_letter.outlet import Outlet

    sent: list[Any] = []
    monkeypatch.setattr(Outlet, "publish", lambda _, message: sent.append(message))
    return sent


@in_memory
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"args": "[1"}, "This is no JSON"),
        ({"args": "[NaN]"}, "NaN is no number of JSON"),
        ({"args": "[1e999]"}, "This is no JSON"),
        ({"args": '{"a": 1}'}, "It must be a list"),
        ({"kwargs": "[]"}, "It must be an object"),
        ({"kwargs": '{"amount": 1}'}, "The task does not take these arguments"),
        ({"args": "[1, 2, 3]"}, "The task does not take these arguments"),
        ({"why": ""}, "This field is required"),
    ],
)
def test_arguments_that_cannot_be(
    client: Client,
    store: DeadLetterStore,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, str],
    sentence: str,
) -> None:
    """They are refused with a sentence, and nothing is sent."""
    store.put(one := letter())
    sent = caught(monkeypatch)
    page = text_of(client.post(edit_of(one.id), {"args": "[]", "kwargs": "{}", "why": "x", **fields}))
    assert sentence in page
    assert not sent
    assert store.get(one.id).state == "dead"


@in_memory
def test_a_task_that_is_not_known_here(client: Client, store: DeadLetterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said so, and the arguments are taken as they are."""
    store.put(one := letter(task="other.app"))
    sent = caught(monkeypatch)
    assert "does not know the task" in text_of(client.get(edit_of(one.id)))
    client.post(edit_of(one.id), {"args": "[1, 2, 3]", "kwargs": "{}", "why": "x"})
    assert json.loads(sent[0].body)[:2] == [[1, 2, 3], {}]


@in_memory
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"body": f'[[{{"{REFERENCE}": "x"}}], {{}}, {{}}]'.encode()}, "lie in the payload store"),
        ({"content_type": "application/x-python-serialize"}, "only application/json is read"),
        ({"body_compressed": True}, "could not be decompressed"),
        ({"body": b"[1"}, "the body is not JSON"),
    ],
)
def test_payloads_that_cannot_be_edited(
    client: Client,
    store: DeadLetterStore,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    sentence: str,
) -> None:
    """The page says why and has no form; a forged one sends nothing."""
    store.put(one := letter(**change))
    sent = caught(monkeypatch)
    page = text_of(client.get(edit_of(one.id)))
    assert sentence in page
    assert 'name="args"' not in page
    client.post(edit_of(one.id), {"args": "[]", "kwargs": "{}", "why": "x"})
    assert not sent


@in_memory
@pytest.mark.parametrize("missing", EDITOR)
def test_editing_needs_every_permission(store: DeadLetterStore, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To see, to redrive, to see arguments and to edit them; by address and by POST. No argument is shown before."""
    store.put(one := secretive())
    sent = caught(monkeypatch)
    mine = staff(*(name for name in EDITOR if name != missing))
    for response in (
        mine.get(edit_of(one.id)),
        mine.post(edit_of(one.id), {"args": "[]", "kwargs": "{}", "why": "x"}),
    ):
        assert response.status_code == 403
        assert SECRET not in response.content.decode()
    assert not sent
    assert edit_of(one.id) not in mine.get(page_of(one.id)).content.decode()
    may = staff(*EDITOR, enforce_csrf_checks=True)
    assert SECRET in text_of(may.get(edit_of(one.id)))
    assert may.post(edit_of(one.id), {"args": "[]", "kwargs": "{}", "why": "x"}).status_code == 403, "no token"
    assert store.get(one.id).state == "dead"
