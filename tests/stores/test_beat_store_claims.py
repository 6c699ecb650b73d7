"""Claims of slots whose message goes to a broker elsewhere: when the run ends that they are to replace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.steps import Claim
from celery_hardened.beat.store import Taken
from celery_hardened.errors import StoreUnavailableError
from tests.stores.beat import OWNER, Box, line


@pytest.fixture
def box(each_redis_url: str, unique: str) -> Iterator[Box]:
    client = Redis.from_url(each_redis_url)
    yield Box(client, Keys(unique))
    client.close()


def claim(box: Box, task_id: str, old: str = "", **more: Any) -> Taken:
    """Its record is ``<task id> claimed`` from then on."""
    step = box.step(old=old, new=f"{task_id} claimed", task_id=task_id, messages=(), **more)
    return box.take(replace(step, claim="made"))[0]


def over(box: Box, task_id: str, said: Claim) -> Taken:
    step = box.step(old=f"{task_id} claimed", new=f"{task_id} {said}", task_id=task_id, messages=())
    return box.take(replace(step, claim=said))[0]


def ended(box: Box) -> list[tuple[str, bool]]:
    return [(one.id, one.terminate) for one in box.store.revokes(OWNER, 100)]


def left(box: Box) -> dict[bytes, bytes]:
    """What is to be replaced still."""
    found: Any = box.client.hgetall(box.keys.replaces)
    return found


@pytest.mark.parametrize("overlap", ["cancel_other", "terminate_other"])
def test_a_run_ends_when_the_claim_is_confirmed(box: Box, overlap: Any) -> None:
    """Not before; once, though the confirmation is repeated."""
    box.take(box.step(new="first", task_id="t0", overlap=overlap))
    assert claim(box, "t1", "first", overlap=overlap) == Taken("taken", "t0")
    assert (box.holder(), ended(box)) == ("t1", [])
    for _ in range(2):
        assert over(box, "t1", "confirmed").outcome == "taken"
    assert (box.holder(), ended(box)) == ("t1", [("t0", overlap == "terminate_other")])
    assert left(box) == {}


def test_a_claim_that_is_given_up_has_replaced_nothing(box: Box) -> None:
    """The run before it has its window again, and nobody ends it, until there is a message that replaces it."""
    box.take(box.step(new="first", task_id="t0", overlap="terminate_other"))
    before = "first"
    for task_id in ("t1", "t2"):
        claim(box, task_id, before, overlap="terminate_other")
        for _ in range(2):
            assert over(box, task_id, "given up").outcome == "taken"
        assert (box.holder(), ended(box), left(box)) == ("t0", [], {})
        assert box.client.pttl(box.keys.window("s")) > 0
        before = f"{task_id} given up"
    claim(box, "t3", before, overlap="terminate_other")
    over(box, "t3", "confirmed")
    assert (box.holder(), ended(box)) == ("t3", [("t0", True)])


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "terminate_other"])
def test_a_claim_that_is_given_up_leaves_its_window(box: Box, overlap: Any) -> None:
    """Of a run of its own alone: another one's stays."""
    claim(box, "t1", overlap=overlap)
    over(box, "t1", "given up")
    assert (box.holder(), left(box)) == (None, {})
    claim(box, "t2", "t1 given up", overlap=overlap)
    box.windows.free("schedule:s")
    box.windows.enter("schedule:s", task_id="another", ttl=60)
    over(box, "t2", "given up")
    assert (box.holder(), ended(box)) == ("another", [])


def test_what_a_claim_was_to_end_is_ended_by_who_takes_it_over(box: Box) -> None:
    """A run by hand replaces a claim of which nothing is known yet: what that one would have ended ends with it."""
    box.take(box.step(new="first", task_id="t0", overlap="terminate_other"))
    claim(box, "t1", "first", overlap="terminate_other")
    hand = replace(box.step(task_id="by hand", overlap="terminate_other", messages=()), claim="made")
    assert box.store.trigger(hand) == Taken("taken", "t1")
    over(box, "t1", "given up")
    assert (box.holder(), ended(box)) == ("by hand", [])
    box.store.triggered(hand, "confirmed")
    assert (box.holder(), ended(box), left(box)) == ("by hand", [("t1", True), ("t0", True)], {})


def test_a_run_by_hand_that_is_given_up_has_not_been(box: Box) -> None:
    """Neither in the history, nor for who asks again; what it was to replace goes on."""
    box.take(box.step(new="first", task_id="t0", overlap="cancel_other"))
    hand = box.step(task_id="by hand", overlap="cancel_other", messages=(), history=line("triggered"))
    hand = replace(hand, claim="made")
    for _ in range(2):
        assert box.store.trigger(hand) == Taken("taken", "t0")
        assert box.said()[0] == "triggered"
        for _ in range(2):
            box.store.triggered(hand, "given up")
        assert (box.holder(), ended(box), left(box), box.said()) == ("t0", [], {}, ["first"])


def test_a_claim_of_another_release_is_confirmed(box: Box) -> None:
    """One that has written down at once what is to end: there is nothing more to write."""
    box.take(box.step(new="first", task_id="t0", overlap="cancel_other"))
    box.take(box.step(old="first", new="t1 claimed", task_id="t1", messages=(), overlap="cancel_other"))
    over(box, "t1", "confirmed")
    assert (box.holder(), ended(box)) == ("t1", [("t0", False)])


def test_a_key_of_that_name_that_is_no_hash(box: Box) -> None:
    """Refused before anything is changed."""
    box.client.set(box.keys.replaces, "x")
    before = box.everything()
    with pytest.raises(StoreUnavailableError):
        claim(box, "t1", overlap="cancel_other")
    with pytest.raises(StoreUnavailableError):
        box.store.trigger(box.step(task_id="by hand"))
    assert box.everything() == before
