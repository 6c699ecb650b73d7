"""A redrive of 10,000 letters, killed by SIGKILL three times: does each letter run exactly once?

::

    python -m benchmarks.redrive_kill [letters] [kills] [seed]

Starts a private Valkey. Exits with 1 if a letter ran twice or not at all.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

from celery_hardened.dead_letter.contract import Query
from celery_hardened.embedded import EmbeddedValkey
from tests.support import redrive_kill


def main(number: int = 10_000, kills: int = 3, seed: int | None = None) -> int:
    seed = seed if seed is not None else random.randrange(10**6)
    dice = random.Random(seed)
    begin = time.perf_counter()
    with EmbeddedValkey() as valkey:
        store = redrive_kill.open_store(valkey.url, "bench")
        ids = redrive_kill.fill(store, "bench", number)
        with redrive_kill.Consumer(valkey.url, "bench", store) as consumer:
            for _ in range(kills):
                killed = redrive_kill.run_killed(valkey.url, "bench", dice=dice)
                print(f"killed {killed}" if killed else "was through before it could be killed")
                consumer.pause()
            print(f"last run: {redrive_kill.run_to_the_end(valkey.url, 'bench')} (letters seen, letters there)")
        states, left = store.stats().by_state, store.count(Query())

    runs = Counter(consumer.starts[one] for one in ids)
    print(f"seed {seed}, {number} letters, {kills} kills, {time.perf_counter() - begin:.0f} s")
    print(
        f"messages sent {consumer.messages}, refused at the start {consumer.messages - sum(consumer.starts.values())}"
    )
    print(f"letters by number of runs {dict(runs)}, states {dict(states)}, open {left}")
    exact = runs == {1: number} and left == 0
    print("each exactly once" if exact else "NOT EXACTLY ONCE")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:])))
