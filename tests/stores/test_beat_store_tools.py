"""Pauses, problems, tasks to be revoked, schedules that come and go; and every key that is left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.skip import Skip
from celery_hardened.beat.skip_store import SkipStore
from celery_hardened.beat.steps import decoded
from celery_hardened.beat.store import MAX_REVOKES, REVOKE_TTL, TTL, LedError, Pause, Revoke, Taken
from tests.stores.beat import HISTORY, OWNER, Box
from tests.support.pages import codes, table


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, Keys(unique))
    client.close()


# --- pauses and the stamp -----------------------------------------------------------------------------------


def test_a_pause_says_who_why_when_and_until_when(box: Box) -> None:
    at = box.client.time()[0]
    box.store.pause("s", by="me", why="a line\nand “more”", until=None)
    box.store.pause("t", by="me", why="", until=at + 600.25)
    found = box.store.paused()
    assert at <= found["s"].at <= at + 30
    assert found["s"] == Pause("me", "a line\nand “more”", found["s"].at, None)
    assert found["t"].until == at + 600.25
    box.store.pause("t", by="you", why="again", until=None)
    assert box.store.paused()["t"].by == "you"
    box.store.resume("t")
    assert set(box.store.paused()) == {"s"}


def test_pauses_that_have_ended_are_not_listed_and_not_kept(box: Box) -> None:
    at = box.client.time()[0]
    box.store.pause("ended", by="me", why="", until=at - 1.0)
    assert box.store.paused() == {}
    box.store.pause("s", by="me", why="", until=at + 600.0)
    assert box.client.hkeys(box.keys.paused) == [b"s"]


def test_each_change_by_a_tool_is_stamped(box: Box) -> None:
    """A beat that reads the stamp each second sees it then; what beats write themselves leaves it alone."""
    stamps = [box.store.stamp()]
    for change in (
        lambda: box.store.pause("s", by="me", why="", until=None),
        lambda: box.store.resume("s"),
        lambda: box.store.resume("s"),
        lambda: box.store.adopt({"x": "r"}, force=True),
    ):
        change()
        stamps.append(box.store.stamp())
    assert stamps == [0, 1, 2, 3, 4]
    box.take(box.step())
    box.store.trigger(box.step())
    box.store.set_problems(OWNER, {"s": "x"})
    box.store.forget(OWNER, ["s"])
    assert box.store.stamp() == 4


# --- problems -----------------------------------------------------------------------------------------------


def test_a_problem_is_as_old_as_its_text(box: Box) -> None:
    """Said again it is the same problem; another text is a new one."""
    box.store.set_problems(OWNER, {"s": "broken\nindeed", "t": "too"})
    at = box.client.time()[0]
    found = box.store.problems()
    assert (found["s"].text, found["t"].text) == ("broken\nindeed", "too")
    assert at - 30 <= found["s"].since <= at + 1
    box.client.hset(box.keys.problems, "s", "1000 broken\nindeed")
    box.client.hset(box.keys.problems, "t", "1000 too")
    box.store.set_problems(OWNER, {"s": "broken\nindeed", "t": "else"})
    found = box.store.problems()
    assert found["s"].since == 1.0
    assert found["t"].since > 1.0
    box.store.set_problems(OWNER, {"s": None, "none": None})
    assert set(box.store.problems()) == {"t"}


def test_problems_of_thousands_of_schedules_are_set(box: Box) -> None:
    box.store.set_problems(OWNER, {f"s{n}": "bad" for n in range(2500)})
    assert len(box.store.problems()) == 2500
    box.store.set_problems(OWNER, {})


# --- tasks to be revoked ------------------------------------------------------------------------------------


def test_tasks_to_be_revoked_stay_until_they_were(box: Box) -> None:
    """A beat may die in between: at least once."""
    for number in range(4):
        box.take(box.step(f"s{number}", overlap="skip", task_id=f"t{number}"))
        overlap = "terminate_other" if number % 2 else "cancel_other"
        box.take(box.step(f"s{number}", "r1", "r2", overlap=overlap, task_id=f"u{number}"))  # type: ignore[arg-type]
    first = box.store.revokes(OWNER, 3)
    assert [(one.id, one.terminate) for one in first] == [("t0", False), ("t1", True), ("t2", False)]
    assert box.store.revokes(OWNER, 3) == first
    for _ in range(2):
        box.store.revoked(OWNER, first)
        assert [one.id for one in box.store.revokes(OWNER, 3)] == ["t3"]
    box.store.revoked(OWNER, [])


def test_the_latest_tasks_to_be_revoked_are_kept(box: Box) -> None:
    box.client.rpush(box.keys.revoke, *[json.dumps({"id": f"t{n}", "terminate": True}) for n in range(MAX_REVOKES)])
    box.windows.enter("schedule:s", task_id="runs", ttl=60)
    box.take(box.step(overlap="cancel_other"))
    found = box.store.revokes(OWNER, MAX_REVOKES + 5)
    assert (len(found), found[0].id, found[-1].id) == (MAX_REVOKES, "t1", "runs")


def test_an_entry_that_is_none_can_be_removed(box: Box) -> None:
    """It has no id, so nothing is revoked for it; and it does not stand before the others for ever."""
    box.client.rpush(box.keys.revoke, b"\xff no JSON", "[]", '{"id": "t1"}')
    found = box.store.revokes(OWNER, 5)
    assert found == [
        Revoke("", False, b"\xff no JSON"), Revoke("", False, b"[]"), Revoke("t1", False, b'{"id": "t1"}')
    ]  # fmt: skip
    box.store.revoked(OWNER, found)
    assert box.store.revokes(OWNER, 5) == []


# --- schedules that come and go -----------------------------------------------------------------------------


def test_a_schedule_that_is_gone_is_forgotten(box: Box) -> None:
    """Its pause stays, should it come back; and its window, which is its run's."""
    for name in ("s", "t"):
        box.take(box.step(name, overlap="skip"))
        box.store.pause(name, by="me", why="", until=None)
    box.store.set_problems(OWNER, {"s": "x", "t": "x"})
    box.store.forget(OWNER, ["s", "never", *(f"n{n}" for n in range(2500))])
    assert set(box.store.records()) == set(box.store.problems()) == {"t"}
    assert (box.said("s"), box.said("t")) == ([], ["r1"])
    assert set(box.store.paused()) == {"s", "t"}
    assert box.holder("s") == "t1"


def test_records_are_adopted_while_no_beat_leads(box: Box) -> None:
    box.take(box.step("known", new="mine"))
    with pytest.raises(LedError):
        box.store.adopt({"new": "theirs"}, overwrite=True)
    assert box.store.records() == {"known": "mine"}
    box.lead(None)
    for _ in range(2):  # a repeat answers the same
        assert box.store.adopt({"known": "theirs", "new": "theirs"}) == ["new"]
    assert box.store.records() == {"known": "mine", "new": "theirs"}
    assert set(box.store.adopt({"known": "theirs", "new": "theirs"}, overwrite=True)) == {"known", "new"}
    assert box.store.record("known") == "theirs"
    many = {f"s{n}": "r" for n in range(2500)}
    assert box.store.adopt(many) == list(many)


def test_a_beat_that_leads_finds_what_was_adopted_by_force(box: Box) -> None:
    box.take(box.step(new="mine"))
    assert box.store.adopt({"s": "theirs"}, overwrite=True, force=True) == ["s"]
    assert box.take(box.step(old="mine", new="next")) == [Taken("stale", current="theirs")]


# --- keys ---------------------------------------------------------------------------------------------------


def use_everything(box: Box) -> None:
    """Every step that writes."""
    box.take(box.step(overlap="skip"), box.step("x"))
    box.take(box.step(old="r1", new="r2", overlap="skip", task_id="t2"))
    box.take(box.step(old="r2 gave way", new="r3", overlap="cancel_other", task_id="t3"))
    box.take(replace(box.step(old="r3", new="r4", overlap="cancel_other", task_id="t4"), claim="made"))
    box.store.trigger(box.step("z", task_id="by hand"))
    box.store.pause("s", by="me", why="", until=None)
    box.store.pause("x", by="me", why="", until=None)
    box.store.resume("x")
    skips = SkipStore(box.client, box.keys)
    assert skips.skip("s", Skip(float(box.client.time()[0]), "me", "", 0.0), record=box.store.record("s"))
    box.store.set_problems(OWNER, {"s": "x"})
    box.store.adopt({"new": "r"}, force=True)


def test_every_key_is_on_the_page_and_has_a_ttl_or_a_bound(box: Box) -> None:
    """``docs/reference/redis-keys.md`` tells of each, with its type and what keeps it from staying."""
    use_everything(box)
    box.client.delete(box.queue)  # the broker's
    box.lead(None)  # the leader's own keys are another matter
    rows = {}
    for cells in table("reference/redis-keys.md", "Beats") + table("reference/redis-keys.md", "Redis keys"):
        name = codes(cells[0])[0].replace("<prefix>", box.keys.prefix, 1)
        pattern = "".join(".+" if part[:1] == "<" else re.escape(part) for part in re.split(r"(<[^>]+>)", name))
        rows[pattern] = (cells[1], cells[3])
    days = {"90 days": TTL, "a day": REVOKE_TTL, "an hour": 3600.0}
    kinds = {}
    for key in map(decoded, box.client.scan_iter()):
        [(kind, lives)] = {row for pattern, row in rows.items() if re.fullmatch(pattern, key)}
        assert decoded(box.client.type(key)) == kind, key
        kinds[key.removeprefix(box.keys.prefix)] = kind
        ttl = box.client.ttl(key)
        if lives.startswith("bound"):
            assert ttl == -1, key
        elif ":dedup:" in key:
            assert 0 < ttl <= 60, key
        else:
            most = next(seconds for said, seconds in days.items() if said in lives)
            assert most - 60 < ttl <= most, key
    assert set(kinds) == {
        ":{beat}:records", ":{beat}:paused", ":{beat}:skips", ":{beat}:stamp", ":{beat}:problems", ":{beat}:revoke",
        ":{beat}:replaces", ":{beat}:history:s", ":{beat}:history:x", ":{beat}:history:z",
        ":{beat}:triggered:by hand", ":dedup:{schedule:s}",
    }  # fmt: skip


def test_records_live_as_long_as_beats_use_them(box: Box) -> None:
    """Lengthened by a call that takes something, or nothing, once a day; and not at each call."""
    box.take(box.step())
    for left, lengthened in ((TTL - 3600, False), (TTL - 2 * 86_400, True), (60, True)):
        box.client.expire(box.keys.records, int(left))
        assert box.take() == []
        assert (box.client.ttl(box.keys.records) > TTL - 60) is lengthened
    box.client.persist(box.keys.records)
    box.take(box.step("x", checks_pause=False))
    assert box.client.ttl(box.keys.records) > TTL - 60


def test_what_is_kept_of_a_schedule_is_bounded(box: Box) -> None:
    """A thousand fires later it is one field of each hash, and a history of so many lines."""
    for number in range(1000):
        box.take(box.step(old=f"r{number - 1}" if number else "", new=f"r{number}", overlap="terminate_other"))
    assert box.client.hlen(box.keys.records) == 1
    assert box.client.llen(box.keys.history("s")) == HISTORY
    keys = {raw.decode() for raw in box.client.scan_iter()}
    assert keys == {box.queue, box.keys.leader, box.keys.records, box.keys.history("s"), box.keys.window("s")}
