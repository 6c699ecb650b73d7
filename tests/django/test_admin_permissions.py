"""Every address of the admin against every permission: who is answered, who is refused, and that a refusal is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import signing
from django.test import Client

from celery_hardened.contrib.django.dead_letters import act, bulk, bulk_work
from celery_hardened.contrib.django.dead_letters.bulk_work import BulkWork
from celery_hardened.contrib.django.models import BulkAction
from celery_hardened.dead_letter.contract import Query
from tests.stores.letters import letter
from tests.support.admin_letters import hidden
from tests.support.admin_schedules import fields
from tests.support.admin_world import World, account, asked, client_of, days, permissions, routes, world_at

# --- who may what -------------------------------------------------------------------------------------------------

#: Sets of permissions, each of which is enough.
Needs = tuple[frozenset[str], ...]


def any_of(*sets: str) -> Needs:
    """Each is names with blanks between them."""
    return tuple(frozenset(one.split()) for one in sets)


NOBODY: Needs = ()
ANYBODY = any_of("")  # of the staff

LETTERS = any_of("view_deadletter")
REDRIVE = any_of("view_deadletter redrive_deadletter")
DISCARD = any_of("view_deadletter discard_deadletter")
EDIT = any_of("view_deadletter redrive_deadletter see_arguments edit_arguments")
OVERVIEW = any_of("view_overview")
RUNS = any_of("view_schedulerun")
TASKS = any_of("view_periodictask", "change_periodictask")


def tasks(also: str) -> Needs:
    return tuple(one | {also} for one in TASKS)


@dataclass(frozen=True)
class Post:
    """What is posted to a page, and who changes something by it."""

    data: Callable[[World], Mapping[str, Any]]
    acts: Needs = NOBODY
    answered: Needs | None = None
    """Who is answered, though nothing be changed; ``None``: who acts."""


@dataclass(frozen=True)
class Page:
    reads: Needs = NOBODY
    """Who is answered to GET and HEAD."""

    posts: tuple[Post, ...] = (Post(lambda _: {}),)
    others: Needs = NOBODY
    """Who is answered to PUT and DELETE: Django's own pages take them for GET."""


def letters(what: Needs) -> Page:
    return Page(posts=(Post(lambda world: {"id": world.letter.id, "confirmed": "1", "why": "x"}, what),))


def press(what: Needs) -> Page:
    return Page(posts=(Post(lambda _: {}, what),))


def action(name: str, acts: Needs, **more: str) -> Post:
    """An action of Django's list, posted by its name: who may not gets the list, on which nothing was done."""

    def data(world: World) -> Mapping[str, Any]:
        slot = {f"slot-{world.row.pk}": world.next_slot()}
        return {"action": name, "_selected_action": world.row.pk, **slot, **more}

    return Post(data, acts, answered=TASKS)


def run_action(name: str) -> Post:
    data = {"action": name, "post": "yes"}
    return Post(lambda world: {**data, "_selected_action": world.run.pk}, answered=RUNS)


def own(see: Needs, *posts: Post, **more: Needs) -> Page:
    """A page of Django's own."""
    return Page(see, posts or (Post(lambda _: {}),), **{"others": see, **more})


def edited(world: World) -> Mapping[str, Any]:
    return fields(name="nightly", crontab=world.row.crontab_id, args='["other"]')


def added(world: World) -> Mapping[str, Any]:
    return fields(name="second", crontab=world.row.crontab_id)


def fired(_: World) -> Mapping[str, Any]:
    return {**days(3, 1), "why": "x", "fire": "1"}


NEW = {"args": "[]", "kwargs": "{}", "why": "x"}

ADMIN = "admin/celery_hardened/"
SCHEDULES = "admin/django_celery_beat/periodictask/"
ID = "<path:object_id>/"

PAGES: Mapping[str, Page] = {
    f"{ADMIN}overview/": Page(OVERVIEW),
    f"{ADMIN}overview/part/": Page(OVERVIEW),
    f"{ADMIN}deadletter/": Page(LETTERS),
    f"{ADMIN}deadletter/list/": Page(LETTERS),
    f"{ADMIN}deadletter/export/": Page(LETTERS),
    f"{ADMIN}deadletter/redrive/": letters(REDRIVE),
    f"{ADMIN}deadletter/discard/": letters(DISCARD),
    f"{ADMIN}deadletter/bulk/": Page(LETTERS),
    f"{ADMIN}deadletter/bulk/<int:pk>/": Page(LETTERS),
    f"{ADMIN}deadletter/bulk/<int:pk>/stop/": press(REDRIVE),
    f"{ADMIN}deadletter/bulk/<int:pk>/go-on/": press(REDRIVE),
    f"{ADMIN}deadletter/{ID}edit/": Page(EDIT, (Post(lambda _: NEW, EDIT),)),
    f"{ADMIN}deadletter/{ID}change/": Page(LETTERS),
    f"{ADMIN}schedulerun/": own(RUNS, run_action("delete_selected"), run_action("run_tasks")),
    f"{ADMIN}schedulerun/export/": Page(RUNS),
    f"{ADMIN}schedulerun/add/": Page(),
    f"{ADMIN}schedulerun/{ID}change/": own(RUNS, Post(lambda _: {"outcome": "success", "schedule": "x"})),
    f"{ADMIN}schedulerun/{ID}delete/": Page(posts=(Post(lambda _: {"post": "yes"}),)),
    f"{ADMIN}schedulerun/{ID}history/": own(RUNS, Post(lambda _: {}, answered=RUNS)),
    f"{ADMIN}schedulerun/{ID}": own(ANYBODY, Post(lambda _: {}, answered=ANYBODY)),
    SCHEDULES: own(
        TASKS,
        action("run_tasks", tasks("run_schedule")),
        action("pause_tasks", tasks("pause_schedule"), pause="1", why="x"),
        action("resume_tasks", tasks("pause_schedule")),
        action("skip_tasks", tasks("skip_schedule"), skip="1", why="x"),
        action("unskip_tasks", tasks("skip_schedule")),
        action("backfill_task", NOBODY),
        action("enable_tasks", any_of("change_periodictask")),
        action("disable_tasks", any_of("change_periodictask")),
        action("toggle_tasks", NOBODY),
        action("delete_selected", tasks("delete_periodictask"), post="yes"),
    ),
    f"{SCHEDULES}add/": own(any_of("add_periodictask"), Post(added, any_of("add_periodictask"))),
    f"{SCHEDULES}{ID}change/": own(
        TASKS,
        Post(edited, any_of("change_periodictask")),
        Post(lambda world: {**edited(world), "_preview": "1"}, answered=any_of("change_periodictask")),
    ),
    f"{SCHEDULES}{ID}delete/": own(
        any_of("delete_periodictask"), Post(lambda _: {"post": "yes"}, any_of("delete_periodictask"))
    ),
    f"{SCHEDULES}{ID}history/": own(TASKS, Post(lambda _: {}, answered=TASKS)),
    f"{SCHEDULES}{ID}backfill/": Page(tasks("backfill_schedule"), (Post(fired, tasks("backfill_schedule")),)),
    f"{SCHEDULES}{ID}": own(ANYBODY, Post(lambda _: {}, answered=ANYBODY)),
}

CHANGING = [
    (route, number) for route, page in PAGES.items() for number, post in enumerate(page.posts) if post.acts
]  # fmt: skip

ALL = permissions()
VIEWS = [name for name in ALL if name.startswith("view_")]

#: Each permission that the table asks for.
ASKED = {
    name
    for page in PAGES.values()
    for needs in (page.reads, page.others, *(post.acts for post in page.posts))
    for name in frozenset().union(*needs)
}
USERS: Mapping[str, list[str]] = {
    "nothing": [],
    "views only": VIEWS,
    "all but views": [name for name in ALL if name not in VIEWS],
    "all but see_arguments": [name for name in ALL if name != "see_arguments"],
    "all that mean nothing here": sorted({*ALL} - ASKED),
    **{name: [name] for name in sorted(ASKED)},
}


def may(held: set[str], needs: Needs) -> bool:
    return any(one <= held for one in needs)


@pytest.fixture
def world(records_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_at(records_url, monkeypatch) as made:
        yield made


# --- the matrix -----------------------------------------------------------------------------------------------------


def test_every_address_is_in_the_table() -> None:
    """A page that is new says here who may see it and act on it."""
    assert routes() == PAGES.keys()


def read(client: Client, method: str, address: str) -> int:
    response = client.generic(method, address)
    if response.streaming:
        b"".join(response.streaming_content)
    return int(response.status_code)


def check(world: World, client: Client, held: set[str]) -> None:
    """Each address and method: answered or refused as the table says, and what is refused changes nothing."""
    before = world.picture()
    for route, page in PAGES.items():
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            needs = page.reads if method in ("GET", "HEAD") else page.others
            wanted = (200, 302) if may(held, needs) else (403, 405)
            status = read(client, method, world.address(route))
            assert status in wanted, (method, route, status)
            assert world.picture() == before, (method, route)
        for post in page.posts:
            acts = may(held, post.acts)
            answered = acts or may(held, post.acts if post.answered is None else post.answered)
            data = post.data(world)
            response = client.post(world.address(route), data)
            status = response.status_code
            assert status in ((200, 302) if answered else (403, 405)), (route, data, status)
            changed = world.picture() != before
            if acts and data.get("action") != "enable_tasks":  # it is enabled already
                assert changed, (route, data, "the test would not see a change", response.getvalue().decode())
            if changed:
                assert acts, (route, data)
                world.build()
                before = world.picture()


@pytest.mark.parametrize("who", USERS)
def test_who_may_what(world: World, who: str) -> None:
    """Of the staff, with each permission alone and with many: what the table allows, and nothing beside it."""
    check(world, client_of(account(*USERS[who])), set(USERS[who]))


def test_a_superuser_may_all(world: World) -> None:
    """And what nobody may, he may not."""
    check(world, client_of(User.objects.create_superuser("root", password="x")), set(ALL))


@pytest.mark.parametrize("who", ["nobody", "no staff", "not active"])
def test_a_stranger_is_asked_to_log_in(world: World, who: str) -> None:
    """Whatever permissions an account has that is not of the staff, or not active any more."""
    client = Client()
    if who != "nobody":
        stranger = account(*ALL, is_staff=who == "not active")
        client.force_login(stranger)
        User.objects.filter(pk=stranger.pk).update(is_active=who != "not active")
    before = world.picture()
    for route, page in PAGES.items():
        address = world.address(route)
        answers = [client.generic(method, address) for method in ("GET", "HEAD", "PUT", "DELETE")]
        answers += [client.post(address, post.data(world)) for post in page.posts]
        for response in answers:
            assert response.status_code == 302, (route, response.status_code)
            assert response["Location"] == f"/admin/login/?next={address}"
        assert world.picture() == before, route


def test_what_changes_needs_the_token_of_a_page(world: World) -> None:
    """Whoever asks: without it each POST, PUT and DELETE is refused, and with it the same POST is answered."""
    root = User.objects.create_superuser("root", password="x")
    client = client_of(root, enforce_csrf_checks=True)
    before = world.picture()
    for route, page in PAGES.items():
        address = world.address(route)
        for post in page.posts:
            assert client.post(address, post.data(world)).status_code == 403, route
            assert client.post(address, {**post.data(world), "csrfmiddlewaretoken": "x" * 32}).status_code == 403
        assert client.put(address).status_code == client.delete(address).status_code == 403, route
        assert world.picture() == before, route
    for route, number in CHANGING:
        client.get("/admin/password_change/")
        data = {**PAGES[route].posts[number].data(world), "csrfmiddlewaretoken": client.cookies["csrftoken"].value}
        assert client.post(world.address(route), data).status_code in (200, 302), route
        world.build()


def test_pages_are_kept_by_nobody(world: World) -> None:
    """Neither a browser nor a proxy stores what was shown: the next one at the machine may be another."""
    client = client_of(User.objects.create_superuser("root", password="x"))
    for route in PAGES:
        page = client.get(world.address(route))
        kept = page.get("Cache-Control", "").split(", ")
        assert page.status_code != 200 or {"no-store", "private"} <= set(kept), route


def test_the_index_names_what_may_be_seen(world: World) -> None:
    """A section is named for who may view it, and for nobody else."""
    sections = {"view_overview": "overview", "view_deadletter": "deadletter", "view_schedulerun": "schedulerun"}
    for name in (*sections, "redrive_deadletter", "see_arguments"):
        for address in ("/admin/", "/admin/celery_hardened/"):
            page = client_of(account(name)).get(address).content.decode()
            for needed, section in sections.items():
                assert (f'href="/{ADMIN}{section}/"' in page) is (name == needed), (name, section)
    assert LogEntry.objects.count() == 0


# --- what was asked before --------------------------------------------------------------------------------------------


def redriver(name: str) -> Any:
    return account("view_deadletter", "redrive_deadletter", "discard_deadletter", name=name)


@pytest.fixture
def asked_workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the actions for which a worker was asked."""
    found: list[int] = []
    monkeypatch.setattr(bulk, "ask", lambda _app, pk, **_: found.append(pk))
    return found


def question(client: Client, world: World) -> dict[str, str]:
    """What the page that asks before a redrive of all letters sends."""
    page = client.post(world.address(f"{ADMIN}deadletter/redrive/"), {"which": "all"}).content.decode()
    return {**hidden(page, "query", "key"), "confirmed": "1", "why": "x"}


def test_a_question_is_for_who_was_asked_it(
    world: World, asked_workers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed, sent by another user, for another action, or after the permission was taken away: nothing is done."""
    monkeypatch.setattr(act, "MOST", 0)
    bob, eve = redriver("bob"), redriver("eve")
    mine, theirs = client_of(bob), client_of(eve)
    said = question(mine, world)
    assert {"query", "key"} <= said.keys()
    redrive, discard = (world.address(f"{ADMIN}deadletter/{what}/") for what in ("redrive", "discard"))
    forged = {**said, "query": signing.dumps("{}", salt="celery_hardened.dead_letters")}
    before = world.picture()
    for client, address, data in [
        (theirs, redrive, said),
        (mine, discard, said),
        (mine, redrive, forged),
        (mine, redrive, {**said, "query": f"{said['query']}x"}),
        (mine, redrive, {**said, "query": "{}"}),
        (mine, redrive, {"which": "all", "confirmed": "1", "why": "x"}),
    ]:
        response = client.post(address, data)
        assert response.status_code in (200, 302), data
        assert world.picture() == before, data
    bob.user_permissions.clear()
    assert mine.post(redrive, said).status_code == 403
    assert world.picture() == before
    assert asked_workers == []
    bob.user_permissions.set(eve.user_permissions.all())
    mine.post(redrive, said)
    (action,) = BulkAction.objects.filter(by="bob")
    assert asked_workers == [action.pk]


def work_on(world: World, one: BulkAction) -> BulkAction:
    """As a worker does that has got a message about it."""
    taken = bulk.take(one.pk, task_id="m")
    if taken is not None:
        BulkWork(world.app, taken, sleep=lambda _: None).slice()
    one.refresh_from_db()
    return one


@pytest.mark.parametrize("what", ["redrive", "discard"])
@pytest.mark.parametrize("how", ["permission", "not active", "gone", "nothing"])
def test_who_may_not_any_more_when_a_worker_comes(world: World, what: str, how: str) -> None:
    """Nothing is sent or discarded in the name of who lost the permission or the account; the page says why."""
    bob = redriver("bob")
    one = asked(by=bob, what=what)
    if how == "permission":
        bob.user_permissions.remove(Permission.objects.get(codename=f"{what}_deadletter"))
    elif how == "not active":
        User.objects.filter(pk=bob.pk).update(is_active=False)
    elif how == "gone":
        bob.delete()
    work_on(world, one)
    if how == "nothing":
        assert (one.state, one.done) == ("done", 1), "the test would see it"
        return
    assert (one.state, one.done) == ("stopped", 0)
    assert world.store.get(world.letter.id).state == "dead"
    root = client_of(User.objects.create_superuser("root", password="x"))
    page = root.get(world.address(f"{ADMIN}deadletter/bulk/<int:pk>/").replace(str(world.action.pk), str(one.pk)))
    why = f"may not {what} dead letters any more" if how == "permission" else "has no active account any more"
    assert f"bob, who asked for it, {why}" in page.content.decode()


def test_it_stops_between_two_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun while the permission was there ends with it; the letters left are as they were."""
    monkeypatch.setattr(bulk_work, "SLICE", -1.0)
    world.store.put(letter(queue=world.app.conf.task_default_queue))
    bob = redriver("bob")
    one = asked(by=bob, what="redrive", rate=1.0, total=2)
    while one.done == 0:
        work_on(world, one)
    bob.user_permissions.clear()
    work_on(world, one)
    assert (one.state, one.done, one.total) == ("stopped", 1, 2)
    assert world.store.count(Query(state="dead")) == 1


def test_somebody_elses_bulk_action(world: World, asked_workers: list[int]) -> None:
    """Who may do what it does may stop it and make it go on, and is named; it stays the action of who asked."""
    bob = redriver("bob")
    one = asked(by=bob, what="discard")
    stop, go_on = (f"/{ADMIN}deadletter/bulk/{one.pk}/{what}/" for what in ("stop", "go-on"))
    other = client_of(account("view_deadletter", "redrive_deadletter", "see_arguments", "edit_arguments"))
    before = world.picture()
    assert [other.post(address).status_code for address in (stop, go_on)] == [403, 403]
    assert world.picture() == before
    eve = client_of(account("view_deadletter", "discard_deadletter", name="eve"))
    eve.post(go_on)
    assert asked_workers == [one.pk]
    one.refresh_from_db()
    assert (one.by, one.user_id) == ("bob", str(bob.pk))
    bob.user_permissions.clear()
    work_on(world, one)
    assert (one.state, one.note[:3], one.done) == ("stopped", "bob", 0), "nobody lends an action his permission"
    second = asked(by=redriver("ann"), what="discard")
    eve.post(stop.replace(str(one.pk), str(second.pk)))
    second.refresh_from_db()
    assert (second.state, second.note) == ("stopped", "eve stopped it.")
    told = {entry.user.username: entry.change_message for entry in LogEntry.objects.order_by("pk")}
    assert told["eve"].startswith("Discard stopped.")
