"""What every dead letter store promises about how much it keeps, and for how long."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from celery_hardened.dead_letter.contract import DeadLetterStore, StoredLetter
from tests.stores.conftest import MakeStore
from tests.stores.letters import ROOMY, letter, listed
from tests.support.until import until


def test_the_oldest_go_when_there_are_too_many(make_store: MakeStore) -> None:
    """Count: each letter over the bound pushes out the oldest open one, which is counted."""
    store = make_store(replace(ROOMY, max_count=3))
    ids = [letter().id for _ in range(5)]
    for one in ids:
        store.put(letter(one))

    assert listed(store) == ids[:1:-1]
    assert store.stats().dropped == {"count": 2}
    assert store.stats().by_task == {"shop.charge": 3}


def test_one_task_does_not_push_out_another(make_store: MakeStore) -> None:
    """Count per task: only the broken task's own letters go."""
    store = make_store(replace(ROOMY, max_count_per_task=2))
    innocent = letter(task="shop.ship")
    store.put(innocent)
    broken = [letter().id for _ in range(5)]
    for one in broken:
        store.put(letter(one))

    assert listed(store) == [broken[4], broken[3], innocent.id]
    assert store.stats().dropped == {"count": 3}


def test_the_oldest_go_when_they_are_too_large(make_store: MakeStore) -> None:
    """Bytes: measured compressed; the letter being written stays, however large."""
    noise = random.Random(1)
    bodies = [noise.randbytes(10_000) for _ in range(4)]
    store = make_store(replace(ROOMY, max_bytes=30_000))
    ids = []
    for body in bodies:
        one = letter(body=body)
        store.put(one)
        ids.append(one.id)
    assert listed(store) == ids[:1:-1]
    assert store.stats().bytes <= 30_000
    assert store.stats().dropped == {"bytes": 2}

    store.put(huge := letter(body=noise.randbytes(60_000)))
    assert listed(store) == [huge.id]


def test_closed_letters_go_before_open_ones(make_store: MakeStore) -> None:
    """A record of the past makes room for work that waits, and is not counted as dropped."""
    store = make_store(replace(ROOMY, max_count=2))
    oldest, closed, newest = letter(), letter(), letter()
    store.put(oldest)
    store.put(closed)
    store.discard(closed.id, by="ann", why="")
    store.put(newest)

    assert listed(store) == [newest.id, oldest.id]
    assert listed(store, state="discarded") == []
    assert store.stats().dropped == {}


def test_age_drops_letters_when_swept_and_when_others_are_written(make_store: MakeStore) -> None:
    """A letter's own ``max_age`` comes before the store's; dropped ones are counted."""
    store = make_store(replace(ROOMY, max_age=0.3))
    short, long = letter(), letter(max_age=3600.0)
    store.put(long)
    store.put(short)  # last: a write would drop it, should it come late
    until(lambda: store.sweep() == 1, what="the short-lived letter to be swept")
    assert listed(store) == [long.id]
    assert store.stats().dropped == {"age": 1}

    store.put(brief := letter(max_age=0.2))

    def gone_by_writing() -> bool:
        store.put(letter(max_age=3600.0))
        return brief.id not in listed(store)

    until(gone_by_writing, what="a write to drop the letter that was too old")


def test_closed_letters_have_an_age_of_their_own(make_store: MakeStore) -> None:
    """They are dropped ``closed_max_age`` after they were closed, and not counted."""
    store = make_store(replace(ROOMY, closed_max_age=0.2))
    kept, closed = letter(), letter()
    store.put(kept)
    store.put(closed)
    store.resolve(closed.id, by="w1", why="")

    until(lambda: store.sweep() == 1, what="the closed letter to be swept")

    assert listed(store) == [kept.id]
    assert store.stats().dropped == {}


def test_a_sweep_takes_no_more_than_it_is_told(store: DeadLetterStore) -> None:
    """Bounded work at a time; what is left goes the next time."""
    store.put_many(
        StoredLetter(letter=letter(max_age=2.0), state="dead", stored_at=1.0 + number) for number in range(7)
    )
    old = time.monotonic() + 2.1
    until(lambda: time.monotonic() > old, what="the last of them to grow old")

    assert store.sweep(limit=3) == 3
    assert store.sweep(limit=3) == 3
    assert store.sweep(limit=3) == 1
    assert store.stats().dropped == {"age": 7}


def test_a_sweep_applies_bounds_that_were_lowered(make_store: MakeStore) -> None:
    """An import may bring more than is kept; a sweep brings the number down, oldest first."""
    store = make_store(replace(ROOMY, max_count=5, max_count_per_task=3))
    letters = [letter(task=f"shop.t{number % 4}") for number in range(8)]
    store.put_many(StoredLetter(letter=one, state="dead", stored_at=1.0 + n) for n, one in enumerate(letters))

    store.sweep()

    assert listed(store) == [one.id for one in letters[:2:-1]]
