"""Where workers say how they are, in Redis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from redis import Redis

from celery_hardened.attendance.record import Lost, Present, Roll, WorkerRecord
from celery_hardened.redis_connection import answered
from celery_hardened.redis_script import Script

#: Seconds after which a worker that says nothing is forgotten.
KEEP: Final = 3600.0

#: Lost leases that are kept, the latest.
MOST_LOST: Final = 100

#: Workers that are read at most: those that spoke last.
MOST_WORKERS: Final = 500

#: Seconds that the keys outlive the last worker.
TTL: Final = 86_400

#: Answers that ``ask_roll`` leads to.
ROLL_ANSWERS: Final = 4


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names for one *prefix* (``hardening.prefix``); one slot of a cluster."""

    prefix: str

    @property
    def records(self) -> str:
        return f"{self.prefix}:{{worker}}:records"

    @property
    def seen(self) -> str:
        return f"{self.prefix}:{{worker}}:seen"

    @property
    def lost(self) -> str:
        return f"{self.prefix}:{{worker}}:lost"


class WorkerStore:
    """What the workers of one prefix have said. All steps may be repeated, and raise ``StoreUnavailableError``."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._tell = Script(client, str(__package__), "tell", operation="telling how a worker is")

    def tell(self, token: str, record: WorkerRecord | None, lost: Sequence[str] = ()) -> int:
        """A worker says how it is; ``None``: it ends. How many there are.

        Args:
            token: Of this run of it.
            lost: Of ``lost_text``.
        """
        keys = [self._keys.records, self._keys.seen, self._keys.lost]
        text = "" if record is None else record.text()
        return int(self._tell(keys=keys, args=[token, text, KEEP, MOST_LOST, TTL, *lost]))

    def read(self) -> Roll:
        """All that is known."""
        with answered("calling the roll of workers"), self._client.pipeline(transaction=False) as pipe:
            ask_roll(pipe, self._keys)
            return roll_told(pipe.execute())


def lost_text(*, queue: str, worker: str, task: str) -> str:
    """A lease that ran out, as it is kept. No two are the same."""
    return json.dumps({"v": 1, "id": uuid4().hex, "queue": queue, "worker": worker, "task": task})


def ask_roll(pipe: Any, keys: Keys) -> None:
    """Put the questions of ``WorkerStore.read`` into *pipe*, for a caller that asks more in the same round trip."""
    pipe.time()
    pipe.zrevrange(keys.seen, 0, MOST_WORKERS - 1, withscores=True)
    pipe.hgetall(keys.records)
    pipe.zrevrange(keys.lost, 0, MOST_LOST - 1, withscores=True)


def roll_told(answers: Sequence[Any]) -> Roll:
    """What the ``ROLL_ANSWERS`` answers to ``ask_roll`` say."""
    (seconds, micros), seen, records, lost = answers
    now = seconds + micros / 1e6
    present = []
    for token, at in seen:
        record = WorkerRecord.parse(records[token]) if token in records else None
        if record is not None:
            present.append(Present(record, max(0.0, now - at)))
    read = [_lost(text, max(0.0, now - at)) for text, at in lost]
    return Roll(tuple(present), tuple(one for one in read if one is not None))


def _lost(text: bytes, ago: float) -> Lost | None:
    try:
        said = json.loads(text)
        return Lost(str(said["queue"]), str(said["worker"]), str(said["task"]), ago) if said["v"] == 1 else None
    except (ValueError, TypeError, KeyError):
        return None
