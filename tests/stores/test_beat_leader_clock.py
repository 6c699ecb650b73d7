"""The clock of who leads, as the next leader hears of it."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_hardened.beat.leader_store import LeaderStore, Taken
from celery_hardened.beat.names import Keys

NOW = 1_700_000_000.0


@pytest.fixture
def store(each_redis_url: str, unique: str) -> LeaderStore:
    return LeaderStore(Redis.from_url(each_redis_url), Keys(unique), ttl=30.0)


def led(store: LeaderStore, owner: str, *clocks: float) -> float | None:
    """*owner* takes the lead, says what its clock says, and lets go. What it heard of the clock before."""
    taken = store.acquire(owner, client="", identity={"host": owner})
    assert isinstance(taken, Taken)
    for clock in clocks:
        assert store.renew(owner, client="", clock=clock, idle=0.0).held
    store.release(owner)
    return taken.mark


def test_a_leader_that_dies_at_once_does_not_set_the_clock_back(store: LeaderStore) -> None:
    """One whose clock was an hour ahead has led; the next is renewed once by its own clock, and is gone: the third
    still hears of the hour, and waits for no slot that was decided."""
    assert led(store, "ahead", NOW, NOW + 3600) is None
    assert led(store, "short", NOW + 1) == NOW + 3600
    assert led(store, "third", NOW + 3601) == NOW + 3600
    assert led(store, "fourth") == NOW + 3601


def test_a_wrong_date_is_forgotten(store: LeaderStore) -> None:
    """A clock that was more than a day ahead is not obeyed, so what is said after it counts."""
    led(store, "wrong", NOW + 90_000)
    assert led(store, "right", NOW) == NOW + 90_000
    assert led(store, "next") == NOW
