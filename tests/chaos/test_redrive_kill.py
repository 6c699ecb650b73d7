"""A redrive is killed in the middle and called again."""

from __future__ import annotations

import random

import pytest

from celery_hardened.dead_letter.contract import Query
from tests.support import redrive_kill

LETTERS = 2000


@pytest.mark.chaos
@pytest.mark.slow
def test_a_redrive_killed_three_times_runs_each_letter_once(each_redis_url: str, unique: str) -> None:
    """
    2,000 letters, SIGKILL at three random moments, then once more to the end:
    a worker that asks before it starts runs each letter exactly once, and every
    letter is ``redriven``. It is busy until the first kill and away from then on,
    so that messages of several redrives of one letter wait for it together.
    """
    dice = random.Random()
    store = redrive_kill.open_store(each_redis_url, unique)
    ids = redrive_kill.fill(store, unique, LETTERS)

    with redrive_kill.Consumer(each_redis_url, unique, store) as consumer:
        for _ in range(3):
            killed = redrive_kill.run_killed(each_redis_url, unique, dice=dice)
            assert killed is not None, "the redrive was through before it could be killed"
            consumer.pause()
        redrive_kill.run_to_the_end(each_redis_url, unique)

    assert consumer.starts == dict.fromkeys(ids, 1)
    assert store.count(Query()) == 0
    assert store.stats().by_state == {"redriven": LETTERS}
