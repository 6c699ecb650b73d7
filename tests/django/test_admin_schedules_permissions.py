"""Who may run, pause, skip and backfill periodic tasks in the admin; and what becomes of who could before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.test import Client

from celery_hardened import Hardening
from celery_hardened.beat.names import Keys
from celery_hardened.beat.skip import Skip
from celery_hardened.beat.skip_store import SkipStore
from celery_hardened.beat.store import BeatStore
from tests.support.admin_schedules import (
    ACTIONS,
    LIST,
    act,
    backfill_page_of,
    empty_site,
    logged,
    page_of,
    sent,
    shop_at,
)
from tests.support.admin_visitors import ada, staff
from tests.support.admin_world import HOUR
from tests.support.django_schedules import crontab, task

NEEDED = {
    "run_tasks": "run_schedule",
    "pause_tasks": "pause_schedule",
    "resume_tasks": "pause_schedule",
    "skip_tasks": "skip_schedule",
    "unskip_tasks": "skip_schedule",
    "backfill_task": "backfill_schedule",
    "enable_tasks": "change_periodictask",
    "disable_tasks": "change_periodictask",
}
OURS = {"run_schedule", "pause_schedule", "skip_schedule", "backfill_schedule"}


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    with empty_site():
        yield


@pytest.fixture
def shop(records_url: str) -> Iterator[Celery]:
    with shop_at(records_url) as made:
        yield made


@pytest.fixture
def store(shop: Celery) -> BeatStore:
    hardening = Hardening.expect(shop)
    return BeatStore(hardening.redis, Keys(hardening.prefix), history=100)


@pytest.fixture
def skips(shop: Celery) -> SkipStore:
    hardening = Hardening.expect(shop)
    return SkipStore(hardening.redis, Keys(hardening.prefix))


def offered(client: Client) -> set[str]:
    """The actions that the list offers."""
    said = client.get(LIST).content.decode()
    return {action for action in ACTIONS if f'value="{action}"' in said}


def state(shop: Celery, store: BeatStore, skips: SkipStore, row: Any) -> tuple[Any, ...]:
    row.refresh_from_db()
    return len(sent(shop)), row.enabled, {name: one.why for name, one in store.paused().items()}, skips.skips()


@pytest.mark.parametrize("granted", sorted({*NEEDED.values()}))
def test_each_action_has_its_permission(shop: Celery, store: BeatStore, skips: SkipStore, granted: str) -> None:
    """What a user may do is offered and done; the rest is not offered, and not done if it is posted all the same."""
    row = task("nightly", task="shop.note", crontab=crontab())
    client = staff("view_periodictask", granted)
    allowed = {action for action, needed in NEEDED.items() if needed == granted}
    assert offered(client) == allowed
    skips.skip("nightly", Skip(4e9, "eve", "audit", 0.0), record=None)
    store.pause("nightly", by="eve", why="audit", until=None)
    before = state(shop, store, skips, row)
    for action in NEEDED.keys() - allowed:
        act(client, action, row, pause="1", skip="1", why="mine", **{f"slot-{row.pk}": "4000000000000"})
        assert state(shop, store, skips, row) == before, action
    assert logged() == []
    assert (client.get(backfill_page_of(row)).status_code == 200) is (granted == "backfill_schedule")
    assert (client.post(backfill_page_of(row), {"fire": "1"}).status_code == 200) is (granted == "backfill_schedule")
    assert ("/backfill/" in client.get(page_of(row)).content.decode()) is (granted == "backfill_schedule")


def test_what_is_granted_is_done(shop: Celery, store: BeatStore, skips: SkipStore) -> None:
    """Each of the four by itself is enough for its action, beside the right to see."""
    # Half a day from now: its slot does not pass between the page and the answer.
    row = task("nightly", task="shop.note", crontab=crontab("0", str(HOUR), "UTC"))
    client = staff("view_periodictask", *OURS)
    act(client, "run_tasks", row)
    act(client, "pause_tasks", row, pause="1", why="mine")
    asked = act(client, "skip_tasks", row)
    act(client, "skip_tasks", row, skip="1", why="mine", **{f"slot-{row.pk}": asked.context_data["tasks"][0].slot})
    assert len(sent(shop)) == 1
    assert store.paused()["nightly"].by == "u0"
    assert skips.skips()["nightly"].by == "u0"
    assert len(logged()) == 3
    assert client.post(page_of(row), {"name": "x"}).status_code == 403


def test_without_the_right_to_see_there_is_no_page(shop: Celery) -> None:
    """The four are about what is done, and let nobody see arguments."""
    row = task("nightly", task="shop.note", crontab=crontab(), args='["secret"]')
    client = staff(*OURS)
    for path in (LIST, page_of(row), backfill_page_of(row)):
        assert client.get(path).status_code == 403
        assert Client().get(path).status_code == 302


def test_a_forged_backfill_is_refused(shop: Celery) -> None:
    """Without the token of the page."""
    row = task("nightly", task="shop.note", crontab=crontab())
    assert ada(enforce_csrf_checks=True).post(backfill_page_of(row), {"fire": "1"}).status_code == 403
    assert sent(shop) == []


# --- those who could before -----------------------------------------------------------------------------------


@pytest.fixture
def before_the_migration() -> Iterator[None]:
    """The tables as they were when who might change could do all."""
    call_command("migrate", "celery_hardened", "0006", verbosity=0)
    yield
    call_command("migrate", "celery_hardened", verbosity=0)


def codenames(holder: Any, field: str) -> set[str]:
    return {*getattr(holder, field).values_list("codename", flat=True)}


def test_who_could_before_can_afterwards(before_the_migration: None) -> None:
    """Users and groups that have ``change`` get the four; others get nothing. To go back takes them away."""
    change = Permission.objects.get(codename="change_periodictask")
    assert not Permission.objects.filter(codename__in=OURS).exists()
    bob, eve = User.objects.create_user("bob"), User.objects.create_user("eve")
    staff, readers = Group.objects.create(name="staff"), Group.objects.create(name="readers")
    bob.user_permissions.add(change)
    staff.permissions.add(change)
    readers.permissions.add(Permission.objects.get(codename="view_periodictask"))
    call_command("migrate", "celery_hardened", verbosity=0)
    assert codenames(bob, "user_permissions") == {"change_periodictask", *OURS}
    assert codenames(staff, "permissions") == {"change_periodictask", *OURS}
    assert codenames(eve, "user_permissions") == set()
    assert codenames(readers, "permissions") == {"view_periodictask"}
    assert Permission.objects.filter(codename__in=OURS).count() == 4
    bob.user_permissions.remove(Permission.objects.get(codename="run_schedule"))
    call_command("migrate", "celery_hardened", verbosity=0)
    assert "run_schedule" not in codenames(bob, "user_permissions")
    call_command("migrate", "celery_hardened", "0006", verbosity=0)
    assert codenames(bob, "user_permissions") == {"change_periodictask"}


def test_the_migrations_are_complete() -> None:
    """Nothing of the models is left to migrate."""
    call_command("makemigrations", "celery_hardened", check=True, dry_run=True, verbosity=0)
