"""The dead letter store with 100,000 letters: writing, listing, counting, memory.

::

    python -m benchmarks.dead_letters [letters] [redis URL]

Starts a private Valkey unless a URL is given (an empty database; it is left full).
"""

from __future__ import annotations

import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis

from celery_hardened.dead_letter.contract import INDEX_BYTES, Query, Retention
from celery_hardened.dead_letter.letter import Attempt, DeadLetter, dump, fingerprint, letter_id
from celery_hardened.dead_letter.store import RedisDeadLetterStore
from celery_hardened.embedded import EmbeddedValkey

LETTERS = 100_000
REPEATS = 9

_KEEP = Retention(
    max_age=30 * 86_400, max_count=1 << 20, max_count_per_task=1 << 20, max_bytes=1 << 40, closed_max_age=7 * 86_400
)
_TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/srv/shop/billing/{name}.py", line {line}, in {name}\n    return self._{name}(invoice, gateway=gateway)\n'
    for name, line in (("views", 31), ("tasks", 118), ("charge", 77), ("gateway", 240), ("client", 512), ("http", 88))
)


def make_letter(dice: random.Random) -> DeadLetter:
    """A letter of the usual size: fifty tasks, six queues, a thousand causes."""
    task_id = str(uuid.UUID(int=dice.getrandbits(128)))
    task = f"shop.tasks.task_{int(dice.triangular(0, 50, 0))}"
    error = dice.choice(["builtins.ValueError", "builtins.KeyError", "requests.exceptions.ConnectionError"])
    place = f"/srv/shop/{dice.randrange(20)}.py:{dice.randrange(1000)}"
    message = f"invoice {dice.randrange(10**6)} of customer {dice.randrange(10**6)} was not accepted by the gateway"
    headers = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "root_id": task_id,
        "group": None,
        "timelimit": [None, None],
        "retries": 10,
        "eta": None,
        "expires": None,
        "origin": "gen1@web-7f9c",
        "stamps": {},
        "stamped_headers": None,
        "hardened": {"v": 1, "published": 1.0, "first_published": 1.0},
    }
    return DeadLetter(
        id=letter_id(task_id, 0, 10, ""),
        reason=dice.choice(["permanent", "permanent", "exhausted", "timeout"]),
        task=task,
        task_id=task_id,
        root_id=task_id,
        queue=f"queue-{dice.randrange(6)}",
        body=f'[["inv-{dice.randrange(10**8)}"], {{"customer": {dice.randrange(10**8)}}}, {{"chord": null}}]'.encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        properties={"correlation_id": task_id, "reply_to": str(uuid.UUID(int=dice.getrandbits(128))), "priority": 0},
        error_type=error,
        error_message=message,
        traceback=f"{_TRACEBACK}{error}: {message}\n",
        fingerprint=fingerprint(task, error, message, place),
        attempts=tuple(Attempt(1_700_000_000.0 + n * 37.123, "celery@worker-1", error) for n in range(11)),
        worker="celery@worker-1",
        version="3f9c2ab",
    )


def measure(what: str, call: Callable[[], Any]) -> None:
    """Print the median and the worst of a few calls."""
    took = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        answer = call()
        took.append(time.perf_counter() - begin)
    size = len(answer.letters) if hasattr(answer, "letters") else answer if isinstance(answer, int) else ""
    print(f"{what:<52} {statistics.median(took) * 1000:8.1f} ms   worst {max(took) * 1000:8.1f} ms   {size}")


@contextmanager
def server(url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    with EmbeddedValkey() as valkey:
        yield valkey.url


def main(number: int = LETTERS, url: str | None = None) -> None:
    dice = random.Random(7)
    letters = [make_letter(dice) for _ in range(number)]
    plain = sum(len(dump(one)) for one in letters[:1000]) / 1000
    with server(url) as place:
        client = Redis.from_url(place)
        store = RedisDeadLetterStore(client, prefix="bench", retention=_KEEP)
        about = client.info()
        print(f"server {about.get('server_name', 'redis')} {about.get('valkey_version', about['redis_version'])}")

        before = client.info("memory")["used_memory"]
        begin, cpu = time.perf_counter(), time.process_time()
        for one in letters:
            store.put(one)
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
        used = (client.info("memory")["used_memory"] - before) / number
        usage = client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
        stats = store.stats()
        compressed = stats.bytes / number - INDEX_BYTES
        print(f"{number} letters written, one at a time: {number / wall:.0f}/s;")
        print(f"  CPU of one: {cpu / number * 1e6:.0f} us here, {usage:.0f} us in the server")
        print(f"  envelope of one: {plain:.0f} bytes, compressed {compressed:.0f}")
        print(f"  memory of one: {used:.0f} bytes, so {used - compressed:.0f} beside it (INDEX_BYTES is {INDEX_BYTES})")

        task, cause = "shop.tasks.task_3", next(iter(stats.by_fingerprint))
        middle = store.get(letters[number // 2].id).stored_at
        combined = Query(task=task, queue="queue-2", reason="timeout", error_type="builtins.KeyError")
        rare = Query(queue="queue-2", reason="timeout", task="shop.tasks.task_49", until=middle)
        none = Query(queue="queue-2", reason="timeout", error_type="builtins.KeyError", fingerprint="nothing")
        for name, query in {
            "all": Query(),
            "task": Query(task=task),
            "queue and reason": Query(queue="queue-2", reason="timeout"),
            "fingerprint": Query(fingerprint=cause),
            "task, queue, reason and error": combined,
            "a rare task in half of the time": rare,
            "nothing matches": none,
            "state dead, before the middle": Query(state="dead", until=middle),
        }.items():
            measure(f"page of 50: {name}", lambda query=query: store.find(query, limit=50))  # type: ignore[misc]
            measure(f"count:      {name}", lambda query=query: store.count(query))  # type: ignore[misc]
        cursor = store.find(Query(), limit=50_000 if number > 60_000 else number // 2).cursor
        measure("page of 50 from the middle", lambda: store.find(Query(), limit=50, cursor=cursor))
        measure("stats", store.stats)
        measure("all ids", lambda: sum(1 for _ in store.ids(Query())))
        measure("parked groups", lambda: len(store.parked_groups()))

        ids = [one.id for one in letters[:10_000]]
        begin = time.perf_counter()
        for start in range(0, len(ids), 100):
            store.begin_redrive(ids[start : start + 100], token=f"t{start}", by="bench", why="", lease=60)
            store.finish_redrive(ids[start : start + 100], token=f"t{start}")
        print(
            f"redrive protocol without sending, in hundreds: {len(ids) / (time.perf_counter() - begin):.0f} letters/s"
        )
        slowest = max((int(entry["duration"]) for entry in client.slowlog_get(128)), default=0)
        print(f"longest command of the server's slow log: {slowest / 1000:.1f} ms")
        client.close()


if __name__ == "__main__":
    main(*(int(word) if word.isdigit() else word for word in sys.argv[1:]))  # type: ignore[arg-type]
