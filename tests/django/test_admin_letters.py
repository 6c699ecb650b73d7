"""Dead letters in Django's admin: what is shown to whom, what can be done by whom, and what is never done."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from celery import Celery
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.db import connections
from django.test import Client
from django.utils.html import escape

from celery_hardened import Hardening
from celery_hardened.contrib.django.admin import DeadLetterAdmin
from celery_hardened.contrib.django.dead_letters import browse, export
from celery_hardened.contrib.django.dead_letters.shown import GROUPS
from celery_hardened.dead_letter.contract import DeadLetterStore, Page, Query
from celery_hardened.dead_letter.letter import Attempt
from celery_hardened.errors import StoreUnavailableError
from tests.stores.letters import letter, redriven
from tests.support.admin_letters import (
    ARGUMENTS,
    DISCARD,
    EXPORT,
    LIST,
    NASTY,
    OVERVIEW,
    REDRIVE,
    SECRET,
    TIMES,
    VIEW,
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


class Counted:
    """A store that counts the calls it gets."""

    def __init__(self, store: DeadLetterStore) -> None:
        self.store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.store, name)


class Away:
    """A store that does not answer."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fail(*_: Any, **__: Any) -> Any:
            raise StoreUnavailableError("searching dead letters", "cannot reach redis://ann:hunter2@10.0.0.1:6379")

        return fail


@pytest.mark.parametrize("store", ["django"], indirect=True)
@pytest.mark.parametrize("action", [DISCARD, REDRIVE])
def test_a_transaction_around_each_request(
    client: Client, store: DeadLetterStore, app: Celery, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ATOMIC_REQUESTS on SQLite, whose transactions lock the whole file: the store does not wait for the page."""
    database = connections["default"]
    monkeypatch.setitem(database.settings_dict, "ATOMIC_REQUESTS", True)
    options = {**database.settings_dict["OPTIONS"], "timeout": 1, "transaction_mode": "IMMEDIATE"}
    monkeypatch.setitem(database.settings_dict, "OPTIONS", options)
    store.put(one := letter(queue=str(app.conf.task_default_queue)))
    said = text_of(client.post(action, {"id": one.id, "confirmed": "1", "why": "x"}, follow=True))
    assert "It broke off" not in said
    assert store.get(one.id).state == ("discarded" if action == DISCARD else "redriven")
    assert LogEntry.objects.count() == 1


# --- reading --------------------------------------------------------------------------------------------------------


def test_the_overview_groups_by_cause(client: Client, store: DeadLetterStore) -> None:
    """Largest first: how many, of which error, in which task, with a link to exactly those."""
    for _ in range(3):
        store.put(letter(error_type="builtins.TimeoutError", fingerprint="aaaa"))
    store.put(letter(task="shop.mail", fingerprint="bbbb", queue="post", reason="poison"))
    store.put(letter(task=None, fingerprint=""))
    page = text_of(client.get(OVERVIEW))
    assert "<strong>5 open</strong>" in page
    assert f"3 {TIMES} TimeoutError in shop.charge" in page
    assert f"1 {TIMES} ValueError in shop.mail" in page
    assert page.index(f"3 {TIMES} TimeoutError") < page.index(f"1 {TIMES} ValueError")
    for wanted, number in [("fingerprint=aaaa", 3), ("task=shop.mail", 1), ("queue=post", 1), ("none=task", 1)]:
        assert f"{LIST}?{wanted}" in page, wanted
        assert page_count(client, wanted) == number, wanted


@in_memory
def test_a_cause_that_is_closed_while_it_is_looked_at(
    client: Client, store: DeadLetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was counted and is gone when its newest letter is asked for: the page is there all the same."""
    store.put(letter(fingerprint="aaaa"))
    monkeypatch.setattr(store, "find", lambda *_, **__: Page((), None))
    assert f"1 {TIMES} unknown error in messages without a task" in text_of(client.get(OVERVIEW))


def page_count(client: Client, query: str) -> int:
    return len(re.findall(r'<input type="checkbox" name="id"', text_of(client.get(f"{LIST}?{query}"))))


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("", 3),
        ("task=shop.mail", 1),
        ("queue=billing", 2),
        ("reason=poison", 1),
        ("error_type=builtins.KeyError", 1),
        ("fingerprint=f00d", 3),
        ("state=parked", 1),
        ("since=1h", 3),
        ("until=1h", 0),
        ("task=shop.mail&queue=billing", 0),
    ],
)
def test_filters(client: Client, store: DeadLetterStore, query: str, number: int) -> None:
    """Every given field must match."""
    store.put(letter(error_type="builtins.KeyError"))
    store.put(letter(task="shop.mail", queue="post", reason="poison"))
    store.put(letter(parked=True, group_id="g"))
    assert page_count(client, query) == number


def test_search_by_letter_or_task(client: Client, store: DeadLetterStore) -> None:
    """A task's letters are found by its id, whatever became of them; a letter by its own."""
    first = letter("t-1-0-3", task_id="t-1")
    store.put(first)
    store.discard(first.id, by="ann", why="x")
    store.put(letter("t-1-1-2", task_id="t-1"))
    store.put(letter("t-2-0-0", task_id="t-2"))
    page = text_of(client.get(f"{LIST}?q=t-1"))
    assert "t-1-0-3" in page
    assert "t-1-1-2" in page
    assert "t-2-0-0" not in page
    assert "t-2-0-0" in text_of(client.get(f"{LIST}?q=t-2-0-0"))
    assert "t-1-1-2" not in text_of(client.get(f"{LIST}?q=t-1&state=discarded"))


def test_pages_go_on_where_the_last_ended(
    client: Client, store: DeadLetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every letter is on one page, and the filter stays."""
    monkeypatch.setattr(browse, "PER_PAGE", 2)
    for _ in range(5):
        store.put(letter())
    store.put(letter(task="other"))
    seen: list[str] = []
    address: str | None = "?task=shop.charge"
    while address:
        page = text_of(client.get(f"{LIST}{address.replace('&amp;', '&')}"))
        seen += re.findall(r'name="id" value="([^"]+)"', page)
        more = re.search(r'href="(\?[^"]*cursor=[^"]*)">Older', page)
        address = more[1] if more else None
    assert len(seen) == len(set(seen)) == 5
    assert client.get(f"{LIST}?task=shop.charge&cursor=nonsense").headers["Location"] == f"{LIST}?task=shop.charge"


def test_what_cannot_be_asked_is_said_so(client: Client, store: DeadLetterStore) -> None:
    """A wrong moment or an unknown reason is named beside its field, and nothing is listed."""
    store.put(letter())
    page = text_of(client.get(f"{LIST}?since=yesterday&reason=nonsense"))
    assert "neither a date" in page
    assert "nonsense is not one of the available choices" in page
    assert 'name="id"' not in page


def test_a_letter(client: Client, store: DeadLetterStore) -> None:
    """Facts, arguments, attempts, traceback, audit, siblings, and what its redrive ended in."""
    one = secretive(attempts=(Attempt(5.0, "celery@a", "TimeoutError"),), traceback="Traceback: line 7")
    store.put(one)
    store.begin_redrive([one.id], token="t", by="ann", why="the gateway works", lease=30)
    store.finish_redrive([one.id], token="t")
    later = redriven(one)
    store.put(later)
    store.put(letter("sibling-0-0"))
    page = text_of(client.get(page_of(one.id)))
    for wanted in (
        SECRET, "attempt failed: TimeoutError", "celery@a", "1970-01-01T00:00:05Z", "Traceback: line 7",
        "the gateway works", page_of(later.id), page_of("sibling-0-0"), "builtins.ValueError",
    ):  # fmt: skip
        assert wanted in page, wanted
    assert page_of(one.id) in text_of(client.get(page_of(later.id)))
    gone = client.get(page_of("nobody-0-0"), follow=True)
    assert "There is no such letter" in text_of(gone)


def test_calls_are_bounded(client: Client, store: DeadLetterStore, hardening: Hardening) -> None:
    """However many letters there are, a page asks the store a fixed number of times."""
    for number in range(2 * GROUPS):
        store.put(letter("t-9-0-0" if number == 0 else None, fingerprint=f"f{number}"))
    counted = Counted(store)
    hardening.__dict__["dead_letters"] = counted
    for address, most in [
        (OVERVIEW, GROUPS + 1),
        (LIST, 2),
        (f"{LIST}?q=t-9", 4),
        (page_of("t-9-0-0"), 2),
        (EXPORT, 2 * GROUPS // export.PAGE + 1),
    ]:
        counted.calls.clear()
        text_of(client.get(address))
        assert 0 < len(counted.calls) <= most, (address, counted.calls)


# --- who may see what -----------------------------------------------------------------------------------------------


def test_nothing_without_the_permission(store: DeadLetterStore) -> None:
    """Neither by address nor in the index; who is not logged in is asked to."""
    one = letter()
    store.put(one)
    nobody = staff()
    for address in (OVERVIEW, LIST, EXPORT, page_of(one.id)):
        assert nobody.get(address).status_code == 403, address
        assert Client().get(address).status_code == 302, address
    assert "deadletter" not in text_of(nobody.get("/admin/"))
    assert OVERVIEW in text_of(staff(VIEW).get("/admin/"))


def test_no_argument_without_the_permission(store: DeadLetterStore, hardening: Hardening) -> None:
    """Not in any page, question, export, message, log entry or error."""
    one = secretive()
    store.put(one)
    client = staff(VIEW, "redrive_deadletter", "discard_deadletter")
    pages = [
        client.get(OVERVIEW),
        client.get(LIST),
        client.get(f"{LIST}?q={one.id}&show_args=1&see_arguments=1"),
        client.get(page_of(one.id)),
        client.get(f"{EXPORT}?format=csv"),
        client.get(f"{EXPORT}?format=json&show_args=1"),
        client.post(REDRIVE, {"id": quote(one.id)}),
        client.post(DISCARD, {"id": quote(one.id)}),
        client.post(DISCARD, {"id": quote(one.id), "confirmed": "1"}),
        client.post(DISCARD, {"id": quote(one.id), "confirmed": "1", "why": "x"}, follow=True),
    ]
    for number, response in enumerate(pages):
        assert SECRET not in text_of(response), number
    assert all(SECRET not in entry.change_message for entry in LogEntry.objects.all())
    seer = staff(VIEW, ARGUMENTS)
    for address in (page_of(one.id), f"{EXPORT}?format=csv&state=discarded", f"{EXPORT}?format=json&state=discarded"):
        assert SECRET in text_of(seer.get(address)), "the test would see them"


@in_memory
def test_letters_are_escaped(client: Client, store: DeadLetterStore) -> None:
    """A stranger's text is text on every page."""
    fields = ("task", "task_id", "queue", "error_type", "error_message", "traceback", "fingerprint", "worker")
    one = letter(
        f"{NASTY}-0-0",
        **dict.fromkeys(fields, NASTY),
        log_args={NASTY: NASTY},
        headers={NASTY: NASTY},
        body=json.dumps([[NASTY], {}, {}]).encode(),
        attempts=(Attempt(1.0, NASTY, NASTY),),
    )
    store.put(one)
    store.put(letter(**dict.fromkeys(fields, NASTY)))
    store.begin_redrive([one.id], token="t", by=NASTY, why=NASTY, lease=30)
    store.cancel_redrive([one.id], token="t", why=NASTY)
    pages = [
        client.get(OVERVIEW),
        client.get(LIST, {"q": one.id}),
        client.get(LIST, {"task": NASTY, "since": NASTY, "reason": NASTY}),
        client.get(page_of(one.id)),
        client.post(REDRIVE, {"id": quote(one.id)}),
        client.post(DISCARD, {"id": quote(one.id)}),
        client.post(DISCARD, {"id": quote(one.id), "confirmed": "1", "why": NASTY}, follow=True),
    ]
    for number, response in enumerate(pages):
        page = text_of(response)
        assert "<script>alert" not in page, number
    assert escape(NASTY) in text_of(client.get(page_of(one.id)))
    assert json.loads(text_of(client.get(f"{EXPORT}?format=json")))["task"] == NASTY


@in_memory
def test_an_export_is_run_by_no_spreadsheet(client: Client, store: DeadLetterStore) -> None:
    """A cell that would be a formula begins with an apostrophe."""
    store.put(letter(error_message="=HYPERLINK(1)"))
    response = client.get(f"{EXPORT}?format=csv")
    (line,) = csv.DictReader(StringIO(text_of(response)))
    assert line["error_message"] == "'=HYPERLINK(1)"
    assert response.headers["Content-Disposition"] == 'attachment; filename="dead-letters.csv"'


@in_memory
def test_an_export_is_whole(client: Client, store: DeadLetterStore) -> None:
    """It has all letters that match, each once, also beyond a page of the store."""
    for number in range(2 * export.PAGE + 30):
        store.put(letter(queue="many" if number % 2 else "odd"))
    records = [json.loads(line) for line in text_of(client.get(f"{EXPORT}?format=json")).splitlines()]
    assert len({one["id"] for one in records}) == len(records) == 2 * export.PAGE + 30
    lines = list(csv.DictReader(StringIO(text_of(client.get(f"{EXPORT}?format=csv&queue=many")))))
    assert {line["queue"] for line in lines} == {"many"}
    assert len(lines) == export.PAGE + 15


@in_memory
def test_a_store_that_is_away(client: Client, store: DeadLetterStore, hardening: Hardening) -> None:
    """A sentence, with no password and no 500, on every page."""
    hardening.__dict__["dead_letters"] = Away()
    answers = [client.get(page) for page in (OVERVIEW, LIST, EXPORT, page_of("a-0-0"))]
    answers += [client.post(page, {"id": "a-0-0"}) for page in (REDRIVE, DISCARD)]
    answers += [client.post(REDRIVE, {"which": "all"})]
    for response in answers:
        page = text_of(response, 503)
        assert "did not answer" in page
        assert "hunter2" not in page
    done = client.post(DISCARD, {"id": "a-0-0", "confirmed": "1", "why": "x"})
    assert done.status_code == 302
    assert "broke off" in LogEntry.objects.get().change_message


@in_memory
def test_an_app_that_is_not_hardened(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says what to call."""
    plain = Celery("plain", broker="memory://", set_as_current=False)
    monkeypatch.setattr(DeadLetterAdmin, "celery_app", plain)
    assert "Call celery_hardened.harden(app)" in text_of(client.get(OVERVIEW), 503)
    plain.close()


# --- acting ---------------------------------------------------------------------------------------------------------


def test_redrive_is_asked_and_done(client: Client, store: DeadLetterStore, hardening: Hardening) -> None:
    """A dry run first, a reason, then messages, the audit and the admin's log."""
    mine = [letter(queue=str(hardening.app.conf.task_default_queue)) for _ in range(3)]
    for one in mine:
        store.put(one)
    store.put(letter(redrives=9))
    page = text_of(client.post(REDRIVE, {"which": "all", "task": "shop.charge"}))
    assert "3 would be sent" in page
    assert "1 would not be sent: it was redriven 9 times before" in page
    assert store.count(Query(state="dead")) == 4, "nothing was done yet"
    store.put(late := letter())
    asked = {"id": ids_of(page), "confirmed": "1"}
    assert "This field is required" in text_of(client.post(REDRIVE, asked)), "no reason was given"
    assert store.count(Query(state="dead")) == 5
    done = text_of(client.post(REDRIVE, {**asked, "why": "the gateway works"}, follow=True))
    assert "Redrive: 3 of 4 letters sent" in done
    assert store.count(Query(state="redriven")) == 3
    assert store.get(late.id).state == "dead", "it came after the question"
    audit = store.get(mine[0].id).audit[0]
    assert (audit.by, audit.why) == ("ada", "the gateway works")
    entry = LogEntry.objects.get()
    assert "Reason: the gateway works" in entry.change_message
    again = text_of(client.post(REDRIVE, {**asked, "why": "twice"}, follow=True))
    assert "0 of 4 letters sent" in again
    assert store.count(Query(state="redriven")) == 3, "a page sent twice sends nothing twice"


def test_discard_is_asked_and_done(client: Client, store: DeadLetterStore) -> None:
    """Those that were chosen, and no other."""
    for name in ("a-0-0", "b-0-0", "c-0-0"):
        store.put(letter(name))
    page = text_of(client.post(DISCARD, {"which": "selected", "id": ["a-0-0", "b-0-0"]}))
    assert "2 of them are open" in page
    done = client.post(DISCARD, {"id": ids_of(page), "confirmed": "1", "why": "obsolete"}, follow=True)
    assert "Discard: 2 of 2 letters discarded" in text_of(done)
    assert [one.letter.id for one in store.find(Query()).letters] == ["c-0-0"]
    one = client.post(DISCARD, {"id": "c-0-0", "confirmed": "1", "why": "this too"})
    assert one.status_code == 302
    assert LogEntry.objects.latest("pk").get_admin_url() == page_of("c-0-0")


@in_memory
@pytest.mark.parametrize("page", [REDRIVE, DISCARD])
def test_no_letter_chosen_is_no_letter(client: Client, store: DeadLetterStore, page: str) -> None:
    """An empty choice is never taken for all, whatever else is said."""
    store.put(letter())
    for data in ({}, {"which": "selected"}, {"which": "all", "since": "never"}, {"which": "all", "task": "no"}):
        done = client.post(page, {**data, "confirmed": "1", "why": "x"}, follow=True)
        assert "nothing was changed" in text_of(done)
    assert store.count(Query(state="dead")) == 1


@in_memory
def test_a_letter_that_another_redrive_holds(client: Client, store: DeadLetterStore) -> None:
    """The page does not wait for it."""
    store.put(letter("a-0-0"))
    store.begin_redrive(["a-0-0"], token="t", by="ann", why="", lease=600)
    begun = time.monotonic()
    done = client.post(REDRIVE, {"id": "a-0-0", "confirmed": "1", "why": "x"}, follow=True)
    assert "Nothing was sent. 1 letter left alone" in text_of(done)
    assert time.monotonic() - begun < 25, "a redrive waits 45 s for it"


@in_memory
@pytest.mark.parametrize("page", [REDRIVE, DISCARD])
def test_acting_needs_its_permission_a_post_and_a_token(store: DeadLetterStore, page: str) -> None:
    """By address too: reading never acts, one permission is not the other, and no other site can post."""
    store.put(letter("a-0-0"))
    name = page.removeprefix(OVERVIEW).strip("/")
    other = "discard" if name == "redrive" else "redrive"
    asked = {"id": "a-0-0", "confirmed": "1", "why": "x"}
    before = staff(VIEW, f"{other}_deadletter", ARGUMENTS)
    assert before.post(page, asked).status_code == 403
    assert page not in text_of(before.get(LIST))
    assert page not in text_of(before.get(page_of("a-0-0")))
    assert staff(f"{name}_deadletter").post(page, asked).status_code == 403, "who may not view may not act"
    may = staff(VIEW, f"{name}_deadletter", enforce_csrf_checks=True)
    assert may.get(page, asked).status_code == 405
    assert may.post(page, asked).status_code == 403, "no token"
    assert store.get("a-0-0").state == "dead"
    assert page in text_of(may.get(page_of("a-0-0")))
    token = may.cookies["csrftoken"].value
    done = may.post(page, {**asked, "csrfmiddlewaretoken": token})
    assert done.status_code == 302
    assert store.get("a-0-0").state != "dead"


@in_memory
def test_reading_changes_nothing(client: Client, store: DeadLetterStore) -> None:
    """No GET changes a letter, and the pages that read take no POST."""
    store.put(letter("a-0-0"))
    before = store.get("a-0-0")
    acting = "?id=a-0-0&which=all&confirmed=1&why=x"
    for page in (OVERVIEW, LIST, EXPORT, page_of("a-0-0"), REDRIVE, DISCARD):
        client.get(page + acting)
        if page not in (REDRIVE, DISCARD):
            assert client.post(page, {"id": "a-0-0", "confirmed": "1", "why": "x"}).status_code == 405
    assert store.get("a-0-0") == before
    assert not LogEntry.objects.exists()
