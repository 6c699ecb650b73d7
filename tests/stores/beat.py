"""A store of schedules and what is needed to look at it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from celery_hardened.beat.names import Keys
from celery_hardened.beat.policy import Overlap
from celery_hardened.beat.store import BeatStore, Outgoing, StepToTake, Taken
from celery_hardened.dedup.store import RedisWindowStore

OWNER = "owner-1"
HISTORY = 5


@dataclass
class Box:
    """One app's beats in one Redis, led by ``OWNER``."""

    client: Redis
    keys: Keys
    store: BeatStore = field(init=False)
    windows: RedisWindowStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = BeatStore(self.client, self.keys, history=HISTORY)
        self.windows = RedisWindowStore(self.client, prefix=self.keys.prefix)
        self.lead(OWNER)

    @property
    def queue(self) -> str:
        return f"{self.keys.prefix}-queue"

    def lead(self, owner: str | None) -> None:
        if owner is None:
            self.client.delete(self.keys.leader)
        else:
            self.client.hset(self.keys.leader, "owner", owner)

    def take(self, *steps: StepToTake, owner: str = OWNER) -> list[Taken]:
        return self.store.take(owner, steps)

    def step(
        self,
        name: str = "s",
        old: str = "",
        new: str = "r1",
        *,
        overlap: Overlap = "allow",
        task_id: str = "t1",
        messages: tuple[Outgoing, ...] | None = None,
        history: str | None = None,
        checks_pause: bool = True,
        other: str | None = None,
        window_ttl: float = 60,
    ) -> StepToTake:
        return StepToTake(
            name=name,
            old=old,
            new=new,
            history=line(new) if history is None else history,
            messages=(self.message(task_id),) if messages is None else messages,
            checks_pause=checks_pause,
            overlap=overlap,
            window=self.keys.window(name),
            window_ttl=window_ttl,
            task_id=task_id,
            new_if_overlapped=f"{new} gave way" if other is None else other,
            history_if_overlapped=line("gave way"),
        )

    def message(self, text: str, key: str | None = None) -> Outgoing:
        return Outgoing("LPUSH", key or self.queue, text.encode())

    # --- what is there ------------------------------------------------------------------------------------

    def messages(self, key: str | None = None) -> list[str]:
        """In the order in which they are consumed."""
        raws: list[Any] = self.client.lrange(key or self.queue, 0, -1)
        return [raw.decode() for raw in reversed(raws)]

    def holder(self, name: str = "s") -> str | None:
        found = self.client.hget(self.keys.window(name), "owner")
        return found.decode() if isinstance(found, bytes) else None

    def said(self, name: str = "s") -> list[Any]:
        """Outcomes in the history, newest first."""
        return [one["outcome"] for one in self.store.history(name, 100)]

    def everything(self) -> dict[bytes, Any]:
        """All keys of the database with what they hold."""
        return {key: self.client.dump(key) for key in self.client.scan_iter()}


def line(outcome: str) -> str:
    return json.dumps({"outcome": outcome})
