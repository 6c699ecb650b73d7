"""A redrive that is killed: many letters, SIGKILL at random moments, and a worker that counts every start.

Used by `tests/chaos/test_redrive_kill.py` (2,000 letters) and `benchmarks/redrive_kill.py` (10,000).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field

from celery import Celery
from redis import Redis

from celery_hardened.dead_letter.contract import Query, Retention, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.redrive import redrive
from celery_hardened.dead_letter.store import RedisDeadLetterStore
from celery_hardened.marks import Marks

LEASE = 2.0
_BATCH = 50
_KEEP = Retention(max_age=3600, max_count=1 << 20, max_count_per_task=1 << 20, max_bytes=1 << 30, closed_max_age=3600)


def open_store(url: str, prefix: str) -> RedisDeadLetterStore:
    return RedisDeadLetterStore(Redis.from_url(url), prefix=prefix, retention=_KEEP)


def fill(store: RedisDeadLetterStore, queue: str, number: int) -> list[str]:
    """Put *number* letters of *queue* into the store; their ids."""
    letters = [
        DeadLetter(
            id=f"task-{n}-0-0",
            reason="permanent",
            task="shop.charge",
            task_id=f"task-{n}",
            queue=queue,
            body=b'[["i1"], {}, {}]',
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": "shop.charge", "id": f"task-{n}", "retries": 0},
        )
        for n in range(number)
    ]
    store.put_many(StoredLetter(letter=each, state="dead", stored_at=1e9 + n) for n, each in enumerate(letters))
    return [each.id for each in letters]


@dataclass(slots=True)
class Consumer:
    """
    A worker's side of the protocol: takes messages off the queue and starts those that may run.

    While it is paused, what killed redrives sent without marking it piles up beside
    what their successors send instead.
    """

    url: str
    queue: str
    store: RedisDeadLetterStore
    starts: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    _done: threading.Event = field(default_factory=threading.Event)
    _works: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Consumer:
        self._works.set()
        self._thread = threading.Thread(target=self._consume)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take what is left, then stop."""
        self._done.set()
        self._works.set()
        assert self._thread is not None
        self._thread.join()

    def pause(self) -> None:
        """Leave the queue alone until the end."""
        self._works.clear()

    def _consume(self) -> None:
        app = Celery("consumer", broker=self.url, set_as_current=False)
        with app.connection_for_read() as connection:
            channel = connection.default_channel
            while True:
                self._works.wait()
                ending = self._done.is_set()
                message = channel.basic_get(self.queue, no_ack=True)
                if message is not None:
                    self._start(message.headers)
                elif ending:
                    return
                else:
                    self._done.wait(0.02)

    def _start(self, headers: object) -> None:
        self.messages += 1
        mark = Marks.read(headers).redrive
        assert mark is not None
        letter_id, token = mark
        if self.store.accept_start(letter_id, token=token):
            self.starts[letter_id] += 1


@dataclass(frozen=True, slots=True)
class Killed:
    """When a redrive was killed."""

    after_letters: int
    of: int


def run_killed(url: str, prefix: str, *, dice: random.Random) -> Killed | None:
    """Start a redrive in a process of its own, which has SIGKILL at a random moment; ``None`` if it was done before."""
    # By its own clock: whoever watches it may come late. Enough is left for the next ones that are to be killed.
    share = dice.uniform(0.1, 0.45)
    # A moment within the next batch: after its taking, between two publishes, before its marking.
    pause = dice.uniform(0.0, 0.03)
    words = [sys.executable, "-m", __name__, url, prefix, str(share), str(pause)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != -signal.SIGKILL:
        return None
    seen, total = (int(word) for word in done.stdout.split()[-2:])
    return Killed(seen, total)


def run_to_the_end(url: str, prefix: str) -> str:
    """One more redrive that nobody kills; the last line it printed."""
    done = subprocess.run([sys.executable, "-m", __name__, url, prefix], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def main(url: str, prefix: str, share: str = "", pause: str = "") -> None:
    """The process that is killed: redrive every open letter, tell how far it is.

    Args:
        share: Part of the letters after which it is killed, *pause* seconds later; empty: it is not.
    """
    app = Celery("redrive", broker=url)
    deadly = [float(share)] if share else []

    def told(seen: int, total: int) -> None:
        sys.stdout.write(f"{seen} {total}\n")
        sys.stdout.flush()
        if deadly and seen >= deadly[0] * total:
            deadly.clear()
            threading.Timer(float(pause), os.kill, (os.getpid(), signal.SIGKILL)).start()

    report = redrive(
        app,
        open_store(url, prefix),
        Query(),
        by="test",
        why="kill me",
        redrive_max=3,
        batch=_BATCH,
        lease=LEASE,
        progress=told,
    )
    assert report.stopped is None, report.stopped
    assert not report.failed, report.failed


if __name__ == "__main__":
    main(*sys.argv[1:])
