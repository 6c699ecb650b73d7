"""A shop whose deduplicated tasks are entered, started and ended step by step, over a store in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

from celery import Celery

from celery_hardened import HardenedTask, Hardening, StoreUnavailableError, harden
from celery_hardened.dedup.decorator import deduplicate
from celery_hardened.dedup.memory import InMemoryWindowStore
from celery_hardened.dedup.renewal import Renewal
from celery_hardened.marks import HEADER, Marks
from celery_hardened.pipeline.dedup import Window, enter
from celery_hardened.pipeline.held_windows import ended, started, waits
from celery_hardened.pipeline.send import Call, send

WEEK = 7 * 86_400.0
LEASE = 30.0


class Store(InMemoryWindowStore):
    """Does not answer while it is ``down``, and loses its answer while it is ``mute``."""

    down = False
    mute = False
    steps: int = 0

    def _asked(self, change: Any) -> Any:
        self.steps += 1
        if self.down:
            raise StoreUnavailableError("a step", "down")
        answered = change()
        if self.mute:
            raise StoreUnavailableError("a step", "its answer was lost")
        return answered

    def enter(
        self, key: str, *, task_id: str, ttl: float, window: float | None = None, told: float | None = None
    ) -> str:
        enter = super().enter
        owner: str = self._asked(lambda: enter(key, task_id=task_id, ttl=ttl, window=window, told=told))
        return owner

    def leave(self, key: str, *, task_id: str) -> bool:
        leave = super().leave
        left: bool = self._asked(lambda: leave(key, task_id=task_id))
        return left

    def hold(self, key: str, *, task_id: str, ttl: float | None, told: float | None = None) -> bool:
        hold = super().hold
        held: bool = self._asked(lambda: hold(key, task_id=task_id, ttl=ttl, told=told))
        return held

    def lease(self, key: str, *, task_id: str, lease: float, published: float) -> bool:
        step = super().lease
        leased: bool = self._asked(lambda: step(key, task_id=task_id, lease=lease, published=published))
        return leased

    @property
    def owners(self) -> set[str]:
        return {held.task_id for held in self.held()}

    @property
    def left(self) -> float:
        return next((held.left for held in self.held()), 0.0)


class Idle(Renewal):
    """Its rounds are called by the test."""

    def _run(self) -> None: ...


class Shop:
    """A hardened app, its store, and tasks of every kind. Nothing is published."""

    def __init__(self) -> None:
        self.clock = [1000.0]
        self.store = Store(clock=lambda: self.clock[0])
        self.app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(hardened_dead_letter_store="memory", hardened_lease=LEASE)
        harden(self.app)
        self.hardening = Hardening.expect(self.app)
        self.hardening.__dict__["_dedup_windows"] = self.store
        self.renewal = Idle(lambda: self.store, lease=LEASE, clock=lambda: self.clock[0])
        self.hardening.__dict__["_dedup_renewal"] = self.renewal

    def task(self, **options: Any) -> Any:
        """A task of its own; options of ``@deduplicate``, and ``task_options``."""
        task_options = options.pop("task_options", {})

        @deduplicate("number", **options)
        def work(number: int, note: str = "") -> None: ...

        return self.app.task(base=HardenedTask, name="shop.work", **task_options)(work)

    def enter(self, task: Any, *args: Any, task_id: str = "t1", maybe_sent: bool = False, **options: Any) -> Window:
        window = enter(self.hardening, task, task.name, args or (1,), {}, options, task_id, maybe_sent=maybe_sent)
        assert window is not None
        return window

    def start(self, task: Any, window: Window, **request: Any) -> None:
        with running(task, **request):
            started(self.hardening, task, Marks(dedup=window.mark, redrive=request.get("redrive")), window.task_id)

    def again(self, task: Any, window: Window, *, delay: float = 0.0, **request: Any) -> None:
        """The message is sent again as it is."""
        with running(task, **request):
            waits(self.hardening, task, Marks(dedup=window.mark), window.task_id, delay)

    def retry(self, task: Any, window: Window, *, fails: Exception | None = None) -> None:
        """The next attempt is published; that is never refused, though it may fail."""
        headers = {HEADER: Marks(dedup=window.mark).header(attempt=1)}
        options = {"task_id": window.task_id, "retries": 1, "headers": headers}
        stock = Mock(side_effect=fails)
        try:
            send(self.hardening, stock, Call(task, task.name, (1,), {}, options))
        finally:
            assert Marks.read(stock.call_args.kwargs["headers"]).dedup == window.mark

    def end(self, window: Window, *, well: bool) -> None:
        ended(self.hardening, Marks(dedup=window.mark), window.task_id, well=well)


@contextmanager
def running(task: Any, **request: Any) -> Iterator[None]:
    request.pop("redrive", None)
    task.push_request(**{"id": "t1", **request})
    try:
        yield
    finally:
        task.pop_request()
