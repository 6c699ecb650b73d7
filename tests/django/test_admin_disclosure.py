"""What the admin tells whom: no argument without the permission, no page that a stranger's text writes, no way out."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.views.debug import SafeExceptionReporterFilter
from django_celery_beat.models import PeriodicTask

from celery_hardened.attendance.record import WorkerRecord
from celery_hardened.attendance.store import Keys as WorkerKeys
from celery_hardened.attendance.store import WorkerStore
from celery_hardened.beat.leader_store import LeaderStore
from celery_hardened.beat.names import Keys
from celery_hardened.beat.store import BeatStore
from celery_hardened.contrib.django.admin import DeadLetterAdmin
from celery_hardened.contrib.django.models import BulkActionLetter
from celery_hardened.contrib.django.runs.copying import Copying
from celery_hardened.dead_letter.letter import Attempt
from celery_hardened.errors import EnvelopeError
from tests.stores.letters import letter, redriven
from tests.support.admin_world import SCHEDULED, World, account, asked, client_of, days, permissions, routes, world_at
from tests.support.django_runs import line, report

ADMIN = "/admin/celery_hardened/"
LETTERS = f"{ADMIN}deadletter/"
SCHEDULES = "/admin/django_celery_beat/periodictask/"

#: An argument of a letter.
SECRET = "s3cret-card"

#: All that may be had without seeing arguments, but for the schedules, whose own arguments are in their form.
BLIND = [
    name
    for name in permissions()
    if name not in ("see_arguments", "view_periodictask", "add_periodictask", "change_periodictask")
    and name != "delete_periodictask"
]


@pytest.fixture
def world(records_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_at(records_url, monkeypatch) as made:
        yield made


def whole(response: Any) -> str:
    """Everything of an answer: status line, headers, cookies and content."""
    content = b"".join(response.streaming_content) if response.streaming else response.content
    cookies = " ".join(one.value for one in response.cookies.values())
    return f"{response.status_code} {dict(response.headers)} {cookies} {content.decode()}"


# --- arguments --------------------------------------------------------------------------------------------------------


def secretive(world: World, letter_id: str | None = None, **fields: Any) -> Any:
    """A letter that has the argument wherever Celery puts arguments."""
    headers = {"task": "shop.note", "id": "x", "argsrepr": f"('{SECRET}',)", "kwargsrepr": f"{{'card': '{SECRET}'}}"}
    embedded = {"chain": [{"task": "t", "args": [SECRET]}], "errbacks": [{"task": "t", "kwargs": {"card": SECRET}}]}
    body = json.dumps([[SECRET], {"card": SECRET}, embedded]).encode()
    given = {"task": "shop.note", "queue": world.app.conf.task_default_queue, "headers": headers, "body": body}
    return letter(letter_id, **{**given, **fields})


def bodies(world: World) -> list[Any]:
    """Letters with other kinds of bodies."""
    protocol_1 = {"task": "shop.note", "id": "x", "args": [SECRET], "kwargs": {"card": SECRET}}
    return [
        secretive(world, body=json.dumps(protocol_1).encode(), headers={}),
        secretive(world, body=f'[["{SECRET}"'.encode(), reason="malformed"),
        secretive(
            world, body=f"cos\nsystem\n(S'{SECRET}'\ntR.".encode(), content_type="application/x-python-serialize"
        ),
        secretive(world, body=SECRET.encode(), body_compressed=True),
        secretive(world, body=json.dumps({"note": SECRET}).encode()),
    ]


def test_no_argument_without_the_permission(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Not in a page, an export, a header, a cookie, a message, an entry of the log, nor in the logs of the server."""
    caplog.set_level(logging.DEBUG)
    first = secretive(world)
    world.build(one=first)
    others = bodies(world)
    for one in others:
        world.store.put(one)
    editor = client_of(User.objects.create_superuser("root", password="x"))
    edited = secretive(world)
    world.store.put(edited)
    new = {"args": json.dumps([SECRET]), "kwargs": "{}", "why": "typo"}
    assert editor.post(f"{LETTERS}{quote(edited.id)}/edit/", new).status_code == 302
    assert world.store.get(edited.id).state == "redriven"
    world.store.put(redriven(edited, body=json.dumps([[SECRET], {}, {}]).encode()))
    client = client_of(account(*BLIND))
    ids = [quote(one.id) for one in (first, *others)]
    answers = [client.get(world.address(route)) for route in sorted(routes())]
    answers += [
        client.get(f"{LETTERS}{one}/{page}/") for one in [*ids, quote(edited.id)] for page in ("change", "edit")
    ]
    for query in ("format=csv", "format=json", "format=json&state=redriven", "format=csv&see_arguments=1&show_args=1"):
        answers.append(client.get(f"{LETTERS}export/?{query}"))
    for what in ("redrive", "discard"):
        answers.append(client.post(f"{LETTERS}{what}/", {"which": "all"}))
        answers.append(client.post(f"{LETTERS}{what}/", {"id": ids, "confirmed": "1"}))
        answers.append(client.post(f"{LETTERS}{what}/", {"id": ids[:3], "confirmed": "1", "why": "x"}, follow=True))
    answers.append(
        client.post(f"{LETTERS}redrive/", {"id": ids, "confirmed": "1", "why": "x", "rate": "5"}, follow=True)
    )
    answers += [client.get("/admin/"), client.get(ADMIN)]
    for response in answers:
        text = whole(response)
        assert SECRET not in text, (response.request["PATH_INFO"], text[:200])
        assert SCHEDULED not in text, response.request["PATH_INFO"]
    for entry in LogEntry.objects.all():
        assert SECRET not in f"{entry.change_message} {entry.object_repr} {entry.object_id}"
    assert SECRET not in " ".join(one.why for one in BulkActionLetter.objects.all())
    assert SECRET not in caplog.text
    seer = client_of(account("view_deadletter", "see_arguments"))
    assert SECRET in whole(seer.get(f"{LETTERS}{ids[0]}/change/")), "the test would see it"
    assert SECRET in whole(seer.get(f"{LETTERS}export/?format=csv&state=redriven"))


def matches(client: Client, address: str) -> tuple[int, int]:
    response = client.get(address, follow=True)
    content = whole(response)
    return response.status_code, content.count("/change/")


@pytest.mark.parametrize("value", [SECRET, "s3cret", "card"])
def test_no_filter_tells_of_arguments(world: World, value: str) -> None:
    """What is asked for an argument is answered as what is asked for nonsense, by every filter that there is."""
    world.build(one=secretive(world))
    client = client_of(account(*BLIND))
    nonsense = "nonsense"[: len(value)].ljust(len(value), "z")
    names = ["q", "task", "queue", "reason", "error_type", "fingerprint", "state", "since", "until", "none", "cursor"]
    names += [
        "args",
        "kwargs",
        "args__contains",
        "body__contains",
        "envelope__contains",
        "schedule",
        "schedule__contains",
    ]
    for page in ("deadletter/list/", "deadletter/export/", "schedulerun/", "schedulerun/export/", "overview/"):
        for name in names:
            asked_for, other = (matches(client, f"{ADMIN}{page}?{name}={one}") for one in (value, nonsense))
            assert asked_for == other, (page, name)
            assert asked_for[0] == 200, (page, name)


def test_no_neighbour_tells_of_the_arguments_of_schedules(world: World) -> None:
    """Who may see timings only gets no answer to a question about the tasks behind them, nor about runs."""
    client = client_of(account("view_crontabschedule", "view_schedulerun", "view_overview", "view_deadletter"))
    counts = []
    for value in ("sch3duled", "nonsense1"):
        for address in (
            f"/admin/django_celery_beat/crontabschedule/?periodictask__args__contains={value}",
            f"{ADMIN}schedulerun/?q={value}",
            f"{ADMIN}overview/?q={value}",
        ):
            response = client.get(address)
            assert SCHEDULED not in whole(response)
            counts.append((response.status_code, whole(response).count("/change/")))
    assert counts[:3] == counts[3:]


class Damaged:
    """A store that fails with *problem*."""

    def __init__(self, problem: Exception) -> None:
        self.problem = problem

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fail(*_: Any, **__: Any) -> Any:
            local = {"args": [SECRET]}  # what a traceback with values would show
            raise self.problem if local else AssertionError

        return fail


@pytest.mark.parametrize("problem", [EnvelopeError("letter 'x': its version is 9"), RuntimeError("out of order")])
def test_a_page_that_fails_tells_nothing(world: World, problem: Exception) -> None:
    """Neither one with a sentence nor the server's own error page has what was posted or what was at hand."""
    client = client_of(User.objects.create_superuser("root", password="x"), raise_request_exception=False)
    world.hardening.__dict__["dead_letters"] = Damaged(problem)
    sent = {"args": json.dumps([SECRET]), "kwargs": "{}", "why": "x", "id": "x", "confirmed": "1"}
    wanted = 503 if isinstance(problem, EnvelopeError) else 500
    statuses = set()
    for page in ("", "list/", "export/", "x/change/", "x/edit/"):
        response = client.get(f"{LETTERS}{page}")
        assert response.status_code == wanted, page
        assert SECRET not in whole(response)
    for page in ("x/edit/", "redrive/", "discard/"):
        response = client.post(f"{LETTERS}{page}", sent)
        statuses.add(response.status_code)
        assert SECRET not in whole(response)
    assert statuses <= {wanted, 302}


def test_reports_of_errors_leave_out_edited_arguments(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Django mails to the admins of a site when the page fails has the new arguments blanked."""
    seen: list[Any] = []

    def fail(self: Any, request: Any, *_: Any) -> None:
        seen.append(request)
        raise RuntimeError("out of order")

    monkeypatch.setattr(DeadLetterAdmin, "_redrive_edited", fail)
    world.build(one=secretive(world))
    client = client_of(User.objects.create_superuser("root", password="x"), raise_request_exception=False)
    new = {"args": json.dumps([SECRET]), "kwargs": json.dumps({"card": SECRET}), "why": "typo"}
    with override_settings(DEBUG=False):
        assert client.post(f"{LETTERS}{quote(world.letter.id)}/edit/", {**new, "kwargs": "{}"}).status_code == 500
        told = SafeExceptionReporterFilter().get_post_parameters(seen[0])
    assert SECRET not in str(dict(told))
    assert told["why"] == "typo"


# --- hostile names ----------------------------------------------------------------------------------------------------

HOSTILE = {
    "element": "<hostile-x onhostile=1>",
    "attribute": '" onhostile=1 x="',
    "attribute in single quotes": "' onhostile=1 x='",
    "comment": "--><hostile-x>",
    "script": "</script><hostile-x></title></textarea></style>",
    "template": "{{ 7|add:7 }}{% hostile %}",
    "lines": "a\r\nSet-Cookie: hostile=1\r\n\r\n<hostile-x>",
    "formula": "=cmd|' /C calc'!A0",
    "formula in a later line": "\n=1+1",
    "at": "@SUM(1)",
    "right to left": "\u202egpj.elbmun\u202c",
    "address": "../../../logout/?next=//evil.example#",
    "scheme": "javascript:hostile()",
    "surrogate": "lone \ud800 one",
    "zero": "a\0b",
    "long": "x" * 5000,
}


class Strange(HTMLParser):
    """Elements, attributes and addresses that a stranger has written."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag.startswith("hostile"):
            self.found.append(tag)
        for name, value in attrs:
            address = (value or "").strip().lower()
            if name.startswith("onhostile"):
                self.found.append(name)
            if name in ("href", "src", "action", "formaction") and address.startswith(("javascript:", "//", "http")):
                self.found.append(address)


def readable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def hostile_world(world: World, name: str) -> None:
    """Everything that a stranger may name is called *name*."""
    # As workers write it: labels have no lone surrogate, and databases take no zero.
    label = readable(name)
    db_name = label.replace("\0", "")
    text = ("task", "task_id", "queue", "error_type", "error_message", "traceback", "fingerprint", "worker", "version")
    one = letter(
        **dict.fromkeys(text, label),
        group_id=label,
        log_args={name: name},
        headers={name: name, "task": name},
        properties={name: name},
        body=json.dumps([[name], {"card": name}, {}]).encode(),
        attempts=(Attempt(1.0, label, label),),
    )
    world.build(one=one)
    world.store.put(letter(f"{label}-0-0", **dict.fromkeys(text, label)))
    world.store.begin_redrive([one.id], token="t", by=name, why=name, lease=30)
    world.store.cancel_redrive([one.id], token="t", why=name)
    for pk in (world.action.pk, asked(what="discard").pk):
        type(world.action).objects.filter(pk=pk).update(by=db_name, why=db_name, note=db_name, canary_said=db_name)
    BulkActionLetter.objects.update(why=db_name, letter=db_name)
    PeriodicTask.objects.filter(pk=world.row.pk).update(
        name=db_name[:200], description=db_name, queue=db_name[:200], args=json.dumps([name])
    )
    keys = Keys(world.hardening.prefix)
    beats = BeatStore(world.hardening.redis, keys, history=100)
    beats.pause(db_name[:200], by=name, why=name, until=None)
    LeaderStore(world.hardening.redis, keys, ttl=30.0).acquire("me", client="", identity={"host": name})
    record = WorkerRecord(name=name, pid=1, pool=name, queues=(name,), missing=(name,), held={name: 1})
    WorkerStore(world.hardening.redis, WorkerKeys(world.hardening.prefix)).tell("one", record)
    told = report("failure", schedule=db_name[:200], error=label, worker=label, letter=label)
    Copying("default").copy({db_name[:200]: [line(schedule=db_name[:200], by=name)]}, [told])


@pytest.mark.parametrize("kind", HOSTILE)
def test_names_of_strangers_are_text(world: World, kind: str) -> None:
    """On every page and in each export, whatever tasks, queues, schedules, workers, errors and people are called."""
    hostile_world(world, HOSTILE[kind])
    name = readable(HOSTILE[kind])
    client = client_of(User.objects.create_superuser("root", password="x"))
    answers = [client.get(world.address(route), follow=True) for route in sorted(routes()) if "export" not in route]
    answers += [client.get(f"{LETTERS}list/", {"task": name, "q": name, "reason": name, "since": name})]
    answers += [client.get(f"{ADMIN}schedulerun/", {"q": name, "schedule": name})]
    for what in ("redrive", "discard"):
        answers.append(client.post(f"{LETTERS}{what}/", {"which": "all", "task": name}))
        answers.append(client.post(f"{LETTERS}{what}/", {"id": quote(world.letter.id), "confirmed": "1", "why": name}))
    pick = {"_selected_action": world.row.pk}
    for action in ("pause_tasks", "skip_tasks", "run_tasks"):
        answers.append(client.post(SCHEDULES, {**pick, "action": action}, follow=True))
    for response in answers:
        assert response.status_code in (200, 302, 403, 405), (response.request["PATH_INFO"], response.status_code)
        assert "Set-Cookie" not in response.headers
        assert Strange(response.content.decode()).found == [], response.request["PATH_INFO"]
    for address in (f"{LETTERS}export/?format=csv", f"{ADMIN}schedulerun/export/"):
        response = client.get(address)
        assert "hostile" not in str(response.headers)
        content = b"".join(response.streaming_content) if response.streaming else response.content
        rows = [*csv.reader(StringIO(content.decode(), newline=""))]
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}
        cells = [cell for row in rows[1:] for cell in row if not cell.lstrip("-").replace(".", "").isdigit()]
        assert [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))] == []
    for text in client.get(f"{LETTERS}export/?format=json").getvalue().decode().splitlines():
        json.loads(text)


# --- the way out ----------------------------------------------------------------------------------------------------

AWAY = dict.fromkeys(("next", "return", "return_to", "redirect", "url", "_changelist_filters"), "//evil.example/")


def stays(response: Any) -> bool:
    address = response.headers.get("Location", "")
    return not address or (address.startswith(("/admin/", "?", "..")) and "//" not in address.partition("?")[0])


def test_no_address_leads_elsewhere(world: World) -> None:
    """Whatever an address or a form says of where to go next, an answer leads to the admin."""
    client = client_of(User.objects.create_superuser("root", password="x"))
    posts: Mapping[str, Any] = {"id": quote(world.letter.id), "confirmed": "1", "why": "x", **AWAY}
    for route in sorted(routes()):
        address = world.address(route)
        assert stays(client.get(address, AWAY)), address
    for route in sorted(routes()):
        address = world.address(route)
        assert stays(client.post(f"{address}?next=//evil.example/", posts)), address
        world.build()
    for strange in ("//evil.example", "\\\\evil.example", "https:evil.example", "..", "%2F%2Fevil.example"):
        for page in ("change", "edit"):
            assert stays(client.get(f"{LETTERS}{quote(strange)}/{page}/"))
            assert stays(client.get(f"{LETTERS}{strange}/{page}/"))
    assert stays(client.get(f"{LETTERS}list/?cursor=nonsense&task=//evil.example"))
    assert stays(client.get(f"{LETTERS}export/?since=nonsense&task=//evil.example"))


@pytest.mark.parametrize("slot", ["--5", "9" * 5000, "٣", "", "1e9", "-1", "9" * 15])
def test_slots_that_nobody_was_shown(world: World, slot: str) -> None:
    """They are no slots: nothing is fired or skipped for them, and no page fails."""
    client = client_of(User.objects.create_superuser("root", password="x"))
    chosen = {"_selected_action": world.row.pk, "action": "skip_tasks", "skip": "1", "why": "x"}
    before = world.picture()
    assert client.post(SCHEDULES, {**chosen, f"slot-{world.row.pk}": slot}).status_code in (200, 302)
    backfill = f"{SCHEDULES}{world.row.pk}/backfill/"
    for ticked in (slot, f"{slot}:0", f"0:{slot}"):
        data = {**days(3, 1), "slot": [ticked], "why": "x", "fire": "1"}
        assert client.post(backfill, data).status_code in (200, 302)
    assert world.picture() == before
