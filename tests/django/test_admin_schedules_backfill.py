"""Backfilling a range of one periodic task in the admin."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from celery_hardened import Hardening
from celery_hardened.beat.names import Keys, task_id_of
from celery_hardened.beat.progress import started
from celery_hardened.beat.record import Record
from celery_hardened.beat.store import BeatStore
from celery_hardened.contrib.django.runs.copying import Copying
from celery_hardened.pipeline.beat_by_hand import ByHand
from tests.support import django_schedules
from tests.support.admin_schedules import (
    LIST,
    act,
    backfill_page_of,
    empty_site,
    logged,
    page_of,
    sent,
    shop_at,
)
from tests.support.admin_visitors import ada
from tests.support.django_runs import line
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
def keys(shop: Celery) -> Keys:
    return Keys(Hardening.expect(shop).prefix)


@pytest.fixture
def store(shop: Celery, keys: Keys) -> BeatStore:
    return BeatStore(Hardening.expect(shop).redis, keys, history=100)


@pytest.fixture
def client(shop: Celery) -> Client:
    return ada()


def decided(store: BeatStore, upto: float | None = None) -> None:
    """A beat has decided all slots of the one schedule up to now, or *upto*."""
    schedule = django_schedules.only(django_schedules.reader("default").load())
    at = time.time() if upto is None else upto
    store.adopt({schedule.name: replace(started(schedule, at, old=None), cursor=at).text()}, overwrite=True)


def days(begin: str, end: str) -> dict[str, str]:
    """From midnight to midnight."""
    return {"begin_0": begin, "begin_1": "00:00", "end_0": end, "end_1": "00:00"}


#: One day for all that a test says, over midnight too.
TODAY = datetime.now(timezone.utc)


def ago(count: int) -> str:
    return f"{TODAY - timedelta(days=count):%Y-%m-%d}"


def show(client: Client, row: Any, **said: str) -> Any:
    return client.post(backfill_page_of(row), {**said, "show": "1"})


def ticked(page: Any) -> list[str]:
    """What the browser sends of the page as it is."""
    return [one.value for one in page.context_data["found"].rows if one.value and not one.sent]


def fire(client: Client, row: Any, slots: list[str], why: str = "the ledger was locked", **said: str) -> Any:
    return client.post(backfill_page_of(row), {**said, "slot": slots, "why": why, "fire": "1"}, follow=True)


def nightly() -> Any:
    return task("nightly", task="shop.note", crontab=crontab("30", "2", "UTC"))


def test_the_slots_are_shown_and_nothing_is_fired(client: Client, shop: Celery, store: BeatStore) -> None:
    """How many, in the zone and in UTC, under which ids, and what became of each; ticked: what was not sent."""
    row = nightly()
    decided(store)
    asked = client.get(backfill_page_of(row)).content.decode()
    assert 'type="date"' in asked
    assert 'aria-label="From, day"' in asked
    slots = [datetime.fromisoformat(f"{ago(n)}T02:30:00+00:00").timestamp() for n in (3, 2)]
    redis, keys = Hardening.expect(shop).redis, Keys(Hardening.expect(shop).prefix)
    redis.lpush(keys.history("nightly"), json.dumps({"at": 1.0, "outcome": "fired", "slot": slots[0]}))
    redis.lpush(keys.history("nightly"), json.dumps({"at": 2.0, "outcome": "paused", "slot": slots[1]}))
    page = show(client, row, **days(ago(3), ago(1)))
    rows = page.context_data["found"].rows
    told = [(one.line.at, one.became, one.sent) for one in rows]
    assert told == [(slots[0], "fired", True), (slots[1], "paused", False)]
    assert [one.task_id for one in rows] == [task_id_of("nightly", slot) for slot in slots]
    said = page.content.decode()
    assert "2 slots" in said
    assert said.count(" checked") == 1
    assert (sent(shop), logged()) == ([], [])


def test_what_beats_have_forgotten_is_known_from_the_table(client: Client, shop: Celery, store: BeatStore) -> None:
    """A slot of which Redis has no line any more, and that was sent, is not ticked; and not fired if it was sent
    since. So it is after a part of the range was passed over in one step."""
    row = nightly()
    decided(store)
    slots = [datetime.fromisoformat(f"{ago(n)}T02:30:00+00:00").timestamp() for n in (6, 5, 4, 3, 2)]
    Copying("default").copy({"nightly": [line(slot=slots[0]), line("expired", slots[2], first=slots[1], count=2)]})
    Copying("default").copy({"nightly": [line("backfilled", slots[4], id="x", at=slots[4] + 9)]})
    page = show(client, row, **days(ago(6), ago(1)))
    told = [(one.became, one.sent) for one in page.context_data["found"].rows]
    assert told == [("fired", True), ("expired", False), ("expired", False), ("", False), ("backfilled", True)]
    Copying("default").copy({"nightly": [line("backfilled", slots[3], id="y", at=slots[3] + 9)]})
    fire(client, row, ticked(page), **days(ago(6), ago(1)))
    ids = {one["headers"]["id"] for one in sent(shop)}
    assert ids == {task_id_of("nightly", slot) for slot in slots[1:3]}


def test_a_range_at_the_ends_of_the_calendar(client: Client, store: BeatStore) -> None:
    """It is refused: such a moment has no date in another zone, and no page could tell it."""
    row = nightly()
    decided(store)
    for begin, end in (("0001-01-01", "0001-01-02"), ("2026-01-01", "9999-12-31")):
        assert "1970 to 2199" in show(client, row, **days(begin, end)).content.decode()


def test_it_fires_under_the_ids_of_the_slots(client: Client, shop: Celery, store: BeatStore) -> None:
    """Oldest first, as the command line does; told, logged with the reason, and in the history with who and why."""
    row = nightly()
    decided(store)
    said = days(ago(4), ago(1))
    slots = ticked(show(client, row, **said))
    answer = fire(client, row, slots, **said).content.decode()
    assert "backfilled 3 slots." in answer
    messages = list(reversed(sent(shop)))
    at = [datetime.fromisoformat(f"{ago(n)}T02:30:00+00:00").timestamp() for n in (4, 3, 2)]
    assert [one["headers"]["id"] for one in messages] == [task_id_of("nightly", slot) for slot in at]
    assert [one["headers"]["hardened"]["slot"] for one in messages] == at
    ((who, name, log),) = logged()
    assert (who, name) == ("ada", "nightly")
    assert log.startswith("Backfilled 3 slots (20")
    assert log.endswith("): the ledger was locked")
    lines = store.history("nightly", 10)
    assert {(line["outcome"], line["by"], line["why"]) for line in lines} == {
        ("backfilled", "ada", "the ledger was locked")
    }


def test_asked_twice_it_fires_once(client: Client, shop: Celery, store: BeatStore, keys: Keys) -> None:
    """The same page posted again, also when the mark of an hour is gone: by the history. A new page may."""
    row = nightly()
    decided(store)
    said = days(ago(3), ago(1))
    slots = ticked(show(client, row, **said))
    fire(client, row, slots, **said)
    assert len(sent(shop)) == 2
    assert "2 slots were fired already, and not again." in fire(client, row, slots, **said).content.decode()
    redis = Hardening.expect(shop).redis
    redis.delete(*redis.keys(f"{keys.prefix}:*triggered*"))
    assert "2 slots were fired already, and not again." in fire(client, row, slots, **said).content.decode()
    assert len(sent(shop)) == 2
    assert len(logged()) == 1
    page = show(client, row, **said)
    assert ticked(page) == []
    fire(client, row, [one.value for one in page.context_data["found"].rows], **said)
    assert len(sent(shop)) == 4


def test_asked_twice_at_the_same_moment_it_fires_once(
    client: Client, shop: Celery, store: BeatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests that have both read the history before either has fired: the mark in Redis tells them apart."""
    row = nightly()
    decided(store)
    said = days(ago(3), ago(1))
    slots = ticked(show(client, row, **said))
    backfill = ByHand.backfill
    other = Client()
    other.cookies = client.cookies

    def both(self: Any, schedule: Any, slot: float) -> str:
        monkeypatch.undo()
        fire(other, row, slots, **said)
        return backfill(self, schedule, slot)

    monkeypatch.setattr(ByHand, "backfill", both)
    fire(client, row, slots, **said)
    assert len(sent(shop)) == 2


def test_what_beats_may_still_fire_is_left_to_them(client: Client, store: BeatStore) -> None:
    """Slots that none has decided, and one that waits for the run before it; and what is to come."""
    row = nightly()
    slot = datetime.fromisoformat(f"{ago(3)}T02:30:00+00:00").timestamp()
    decided(store, upto=slot)
    record = Record.parse(store.record("nightly") or "")
    store.adopt({"nightly": replace(record, buffered=slot).text()}, overwrite=True)
    page = show(client, row, **days(ago(4), ago(1)))
    assert [one.line.at for one in page.context_data["found"].rows] == [slot - 86_400]
    said = page.content.decode()
    assert "is left to the beats: it waits to be fired" in said
    assert "none has decided them yet" in said
    decided(store)
    assert "are still to come" in show(client, row, **days(ago(1), ago(-5))).content.decode()


def test_more_than_a_hundred_are_refused(client: Client, shop: Celery, store: BeatStore) -> None:
    """With the number; also if they are posted all the same."""
    row = task("often", task="shop.note", crontab=crontab("*", "*", "UTC"))
    decided(store)
    page = show(client, row, **days(ago(3), ago(1)))
    assert "There are more than 100 slots in this range" in page.content.decode()
    values = [f"{round(one * 1000)}:0" for one in page.context_data["found"].past.slots]
    fire(client, row, values, **days(ago(3), ago(1)))
    assert (sent(shop), logged()) == ([], [])


def test_a_slot_outside_of_the_range_is_not_fired(client: Client, shop: Celery, store: BeatStore) -> None:
    """What is posted is what the range has, whatever else was put into the form."""
    row = nightly()
    decided(store)
    other = datetime.fromisoformat(f"{ago(9)}T02:30:00+00:00").timestamp()
    values = [f"{round(other * 1000)}:0", "x", "1:1:1", ""]
    answer = fire(client, row, values, **days(ago(3), ago(1))).content.decode()
    assert "Tick the slots that are to be fired" in answer
    assert (sent(shop), logged()) == ([], [])


def test_a_reason_is_asked_for(client: Client, shop: Celery, store: BeatStore) -> None:
    """The slots stay on the page, and nothing is fired."""
    row = nightly()
    decided(store)
    said = days(ago(3), ago(1))
    page = fire(client, row, ticked(show(client, row, **said)), why="", **said)
    assert "This field is required" in page.content.decode()
    assert len(page.context_data["found"].rows) == 2
    assert (sent(shop), logged()) == ([], [])


def test_the_range_is_in_the_schedules_zone_with_what_the_clock_did(client: Client, store: BeatStore) -> None:
    """The night of a jump: the slot that was fired later, and why. A time that there was not is refused."""
    row = task("spring", task="shop.note", crontab=crontab("30", "2", "Europe/Paris"), start_time=None)
    decided(store)
    page = show(client, row, **days("2026-03-28", "2026-03-31"))
    rows = page.context_data["found"].rows
    paris = ZoneInfo("Europe/Paris")
    assert [datetime.fromtimestamp(one.line.at, paris).strftime("%d %H:%M") for one in rows] == [
        "28 02:30", "29 03:00", "30 02:30"
    ]  # fmt: skip
    assert "02:30 does not exist, fired at 03:00" in page.content.decode()
    assert "Europe/Paris" in page.content.decode()
    gap = {"begin_0": "2026-03-29", "begin_1": "02:15", "end_0": "2026-03-30", "end_1": "00:00"}
    assert "may not exist" in show(client, row, **gap).content.decode()
    turned = {"begin_0": "2026-03-29", "begin_1": "00:00", "end_0": "2026-03-28", "end_1": "00:00"}
    assert "not later than where the range begins" in show(client, row, **turned).content.decode()


def test_what_cannot_be_backfilled_is_said(client: Client) -> None:
    """An interval that no beat has seen with a start, and a row that cannot be read."""
    bad = task("bad", task="shop.note", crontab=crontab(), args="{")
    assert "arguments are no JSON" in client.get(backfill_page_of(bad)).content.decode()
    assert client.get(f"{LIST}987654/backfill/").status_code == 302


def test_from_the_list_and_from_its_page(client: Client) -> None:
    """Exactly one is selected; and a button on the page of the task."""
    one, other = every(60, name="one", task="shop.note"), every(60, name="other", task="shop.note")
    answer = client.post(LIST, {"action": "backfill_task", "_selected_action": [one.pk]})
    assert (answer.status_code, answer["Location"]) == (302, backfill_page_of(one))
    assert "Select one task" in act(client, "backfill_task", one, other).content.decode()
    assert f'href="{backfill_page_of(one)}"' in client.get(page_of(one)).content.decode()


def test_it_costs_the_same_for_any_range(client: Client, store: BeatStore) -> None:
    """One slot or a hundred: the same statements."""
    row = nightly()
    decided(store)
    counts = []
    for begin in (2, 95):
        with CaptureQueriesContext(connection) as seen:
            assert show(client, row, **days(ago(begin), ago(1))).context_data["found"].past.slots
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 6, [one["sql"] for one in seen]
