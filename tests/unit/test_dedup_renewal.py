"""The thread that renews leases and frees keys, one round at a time."""

from __future__ import annotations

import os
from typing import Any

import pytest

from celery_hardened import StoreUnavailableError
from celery_hardened.dedup import renewal as module
from celery_hardened.dedup.memory import InMemoryWindowStore
from celery_hardened.dedup.renewal import Renewal
from tests.support.until import until

LEASE = 30.0


class Store(InMemoryWindowStore):
    """Does not answer while it is ``down``."""

    down = False
    asked = 0
    renewed = 0

    def _answer(self) -> None:
        self.asked += 1
        if self.down:
            raise StoreUnavailableError("a step", "down")

    def renew(self, key: str, *, task_id: str, lease: float) -> bool:
        self._answer()
        found = super().renew(key, task_id=task_id, lease=lease)
        self.renewed += found
        return found

    def leave(self, key: str, *, task_id: str) -> bool:
        self._answer()
        return super().leave(key, task_id=task_id)

    def owner(self, key: str) -> str | None:
        return next((held.task_id for held in self.held() if held.key == key), None)


class Idle(Renewal):
    """Its rounds are called by the test."""

    def _run(self) -> None: ...


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def store(clock: list[float]) -> Store:
    return Store(clock=lambda: clock[0])


@pytest.fixture
def renewal(store: Store, clock: list[float]) -> Renewal:
    return Idle(lambda: store, lease=LEASE, clock=lambda: clock[0])


def test_what_is_kept_is_renewed_until_it_is_dropped(renewal: Renewal, store: Store, clock: list[float]) -> None:
    store.enter("k", task_id="t1", ttl=LEASE)
    renewal.keep("k", "t1", most=10 * LEASE)
    for _ in range(25):
        clock[0] += LEASE / 3
        renewal.round()
    assert store.owner("k") == "t1"
    assert renewal.drop("k", "t1") is True
    assert renewal.drop("k", "t1") is False
    for _ in range(4):
        clock[0] += LEASE / 3
        renewal.round()
    assert store.owner("k") is None


def test_nobody_is_renewed_for_ever(renewal: Renewal, store: Store, clock: list[float]) -> None:
    """A run that hangs, or whose end nobody told."""
    store.enter("k", task_id="t1", ttl=LEASE)
    renewal.keep("k", "t1", most=LEASE)
    for _ in range(7):
        clock[0] += LEASE / 3
        renewal.round()
    assert store.owner("k") is None
    assert store.asked == 2


def test_a_key_that_was_lost_is_not_asked_for_again(
    renewal: Renewal, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process stood still for longer than its lease, and another task has it."""
    store.enter("k", task_id="t2", ttl=LEASE)
    renewal.keep("k", "t1", most=10 * LEASE)
    renewal.round()
    renewal.round()
    assert store.asked == 1
    assert [record.message for record in caplog.records] == ["deduplication key k is not held by t1 any more"]
    assert store.owner("k") == "t2"


def test_an_outage_is_outlived_and_told_once(
    renewal: Renewal, store: Store, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """What is kept stays kept, what is to be freed is freed when the store answers again."""
    store.enter("kept", task_id="t1", ttl=LEASE)
    store.enter("freed", task_id="t2", ttl=7 * 86_400)
    renewal.keep("kept", "t1", most=10 * LEASE)
    renewal.free_later("freed", "t2")
    store.down = True
    for _ in range(5):
        renewal.round()
    assert len(caplog.records) == 1
    store.down = False
    clock[0] += LEASE * 2 / 3
    renewal.round()
    clock[0] += LEASE * 2 / 3
    assert store.owner("kept") == "t1"
    assert store.owner("freed") is None


def test_a_key_is_freed_when_its_time_has_come(renewal: Renewal, store: Store, clock: list[float]) -> None:
    store.enter("k", task_id="t1", ttl=7 * 86_400)
    renewal.free_later("k", "t1", after=10)
    renewal.round()
    assert store.owner("k") == "t1"
    clock[0] += 11
    renewal.round()
    renewal.round()
    assert store.owner("k") is None
    assert store.asked == 1, "it is told once"


def test_a_key_that_was_taken_again_is_not_freed(renewal: Renewal, store: Store) -> None:
    """The caller tried again with the same task id, and that publish was accepted."""
    renewal.free_later("k", "t1")
    renewal.keep_after_all("k", "t1")
    store.enter("k", task_id="t1", ttl=60)
    renewal.round()
    assert store.owner("k") == "t1"


def test_what_waits_is_bounded(renewal: Renewal, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a long outage the oldest are left to their TTL."""
    monkeypatch.setattr(module, "MOST", 3)
    for number in range(5):
        store.enter(f"k{number}", task_id="t", ttl=600)
        renewal.free_later(f"k{number}", "t")
    renewal.round()
    assert sorted(held.key for held in store.held()) == ["k0", "k1"]


def test_a_forked_child_starts_with_nothing(renewal: Renewal, store: Store) -> None:
    """Its parent renews what its parent keeps."""
    renewal.keep("k", "t1", most=10 * LEASE)
    renewal.free_later("j", "t1")
    child = os.fork()
    if child == 0:
        renewal.round()
        os._exit(store.asked)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    renewal.round()
    assert store.asked == 2


def test_the_thread_works_and_ends() -> None:
    """It renews again and again, frees at once, is gone when there is nothing to do, and comes again."""
    store = Store()
    renewal = Renewal(lambda: store, lease=0.3)
    for _ in range(2):
        store.enter("kept", task_id="t1", ttl=600)  # it is looked at below, though the machine stood still before
        renewal.keep("kept", "t1", most=10 * LEASE)
        store.enter("freed", task_id="t2", ttl=600)
        renewal.free_later("freed", "t2")
        until(lambda: store.owner("freed") is None, what="the key that could not be freed before is free")
        seen = store.renewed
        until(lambda seen=seen: store.renewed >= seen + 6, what="the renewals of two leases")  # type: ignore[misc]
        assert store.owner("kept") == "t1"
        thread: Any = renewal._thread
        assert thread is not None
        renewal.drop("kept", "t1")
        until(lambda thread=thread: not thread.is_alive(), what="the thread ends")  # type: ignore[misc]
