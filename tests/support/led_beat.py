"""A beat that leads in the test's own process, by a clock that the test sets: one turn at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from celery import Celery
from redis import Redis

from celery_hardened import HardenedTask, harden
from celery_hardened.beat.entries import schedule_of
from celery_hardened.beat.names import task_id_of
from celery_hardened.beat.record import Record
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.standing import Standing
from celery_hardened.hardening import Hardening
from celery_hardened.marks import HEADER
from celery_hardened.pipeline.beat import Beat, policy_of

#: A whole second, so that slots are easy to read.
START = 1_700_000_000.0


class Clock:
    """As ``SteadyClock``; stands still until it is set."""

    times_brought_back = 0

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def start_at_least(self, mark: float) -> bool:
        return True


class Lead:
    """As ``Leadership``; it leads for as long as the test says."""

    clock_mark: float | None = None

    def __init__(self, term: int) -> None:
        self.stamp = 0
        self.term = term
        self.now: Standing | None = Standing(f"owner-{term}", term)

    def start(self) -> None: ...

    def touch(self, now: float | None = None) -> None: ...

    def standing(self) -> Standing | None:
        return self.now

    def refused(self, standing: Standing) -> None:
        self.now = None

    def release(self) -> None:
        self.now = None

    def pass_on(self, standing: Standing, because: str, *, pause: float) -> None:
        self.now = None

    def stop(self) -> None: ...


class Fixed:
    """A source of schedules that do not change."""

    def __init__(self, schedules: Sequence[Schedule | Problem]) -> None:
        self.schedules = schedules
        self.told: list[str] = []
        self.ready = True

    def open(self, woken: Callable[[], None]) -> None: ...

    def load(self) -> Sequence[Schedule | Problem]:
        return self.schedules

    def is_ready(self) -> bool:
        return self.ready

    def changes(self) -> Sequence[Schedule]:
        return ()

    def lead(self, leading: bool) -> None: ...

    def fired(self, schedule: Schedule, *, at: float) -> None:
        self.told.append(schedule.name)

    def close(self) -> None: ...


class LedBeats:
    """Beats of one app that lead one after the other, and what they have fired.

    Args:
        tasks: More tasks than ``shop.work``: called with the app.
        more: Keys of ``Schedule`` that no entry of the configuration has, by schedule.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        schedules: Mapping[str, Mapping[str, Any]],
        *,
        records_url: str | None = None,
        tasks: Callable[[Any], None] = lambda _: None,
        more: Callable[[Schedule], Schedule] = lambda schedule: schedule,
        **conf: Any,
    ) -> None:
        app: Any = Celery("shop", broker=url, set_as_current=False)
        if records_url is not None:
            conf["hardened_redis_url"] = records_url
        app.conf.update({"task_default_queue": queue, **conf})
        self.app = app
        harden(app)

        @app.task(shared=False, name="shop.work", base=HardenedTask)
        def work(*args: Any) -> None: ...

        tasks(app)
        app.finalize()
        self.queue = queue
        self.hardening: Any = Hardening.expect(app)
        self.redis = Redis.from_url(records_url or url)
        self._broker = Redis.from_url(url) if url.startswith("redis") else None
        entries = {name: {"task": "shop.work", "schedule": 1.0, **entry} for name, entry in schedules.items()}
        found = [
            schedule_of(name, entry, app=app, defaults=policy_of(self.hardening.settings))
            for name, entry in entries.items()
        ]
        self.source = Fixed([more(one) if isinstance(one, Schedule) else one for one in found])
        self.clock = Clock(START)
        self.term = 0
        self.beat = self.next_leader()

    def next_leader(self) -> Beat:
        """The one before has died, as it was; another one leads."""
        self.term += 1
        self.beat = Beat(self.hardening, self.source)
        self.lead: Any = Lead(self.term)
        # A settling is due at each turn: the test's turns are its seconds.
        self.beat.clock, self.beat.leadership = self.clock, self.lead  # type: ignore[assignment]
        self.redis.hset(self.beat.keys.leader, "owner", f"owner-{self.term}")
        self.turn()
        return self.beat

    def turn(self, at: float | None = None, *, settle: bool = True) -> None:
        """One turn at *at*, seconds after ``START``.

        Args:
            settle: Also what a beat does once a second.
        """
        if at is not None:
            self.clock.at = START + at
        self.beat._settled = 0.0 if settle else float("inf")
        self.beat.turn(most=0.0)

    def close(self) -> None:
        self.redis.close()
        if self._broker is not None:
            self._broker.close()
        self.app.close()

    # --- what became of it ----------------------------------------------------------------------------------

    def messages(self) -> list[dict[str, Any]]:
        """Headers of what is in the queue, oldest first; only where the broker is a Redis."""
        assert self._broker is not None
        raws: Any = self._broker.lrange(self.queue, 0, -1)
        return [json.loads(raw)["headers"] for raw in reversed(raws)]

    def fired(self, name: str) -> list[float]:
        """Slots of *name* in the queue, in seconds after ``START``, in the order of their messages."""
        marks = [headers[HEADER] for headers in self.messages()]
        return [round(mark["slot"] - START, 3) for mark in marks if mark.get("schedule") == name]

    def record(self, name: str) -> Record:
        text = self.beat.store.record(name)
        assert text is not None
        return Record.parse(text)

    def history(self, name: str) -> list[tuple[str, float]]:
        """Outcomes with their slots, oldest first."""
        lines = reversed(self.beat.store.history(name, 1000))
        return [(line["outcome"], round(line["slot"] - START, 3)) for line in lines]

    def holder(self, name: str) -> str | None:
        """Who has the window of *name*."""
        found: Any = self.redis.hget(self.beat.keys.window(name), "owner")
        return found.decode() if found else None

    def ends(self, name: str) -> None:
        """The run of *name* that goes on is over."""
        self.redis.delete(self.beat.keys.window(name))

    def id_of(self, name: str, slot: float) -> str:
        return task_id_of(name, START + slot)


MakeLedBeats: TypeAlias = Callable[..., LedBeats]
"""What the fixture ``led`` is: ``LedBeats`` of the test's broker; takes its schedules, and what else it takes."""


def nothing() -> None: ...


def declining(app: Any) -> None:
    """A task whose own ``apply_async`` decides that there is nothing to send: ``shop.declined``."""

    class Declining(HardenedTask):
        abstract = True

        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            return None

    app.task(shared=False, name="shop.declined", base=Declining)(nothing)
