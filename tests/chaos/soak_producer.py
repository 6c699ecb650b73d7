"""The producer's side of a soak: a steady feed of tasks of all kinds."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError

from tests.support.client import client_side, disconnect, forget_signals
from tests.support.worker import MODULE, lay_out

QUEUES: Final = ("soak", "soak-b")

#: Messages that wait for a worker: never none, so that kills meet running tasks; never many, so that all move on.
BACKLOG: Final = 300

_PRIORITIES: Final = ("", "\x06\x163", "\x06\x166", "\x06\x169")

#: A publish that took longer than this, or failed, may have been sent twice.
_SURE: Final = 0.5


@contextlib.contextmanager
def project(directory: Path, source: str, env: Mapping[str, str]) -> Iterator[ModuleType]:
    """The app module, imported here; its connections are gone afterwards."""
    lay_out(directory, source)
    path = [str(directory), *sys.path]
    with mock.patch.dict(os.environ, env), mock.patch.object(sys, "path", path), client_side():
        sys.modules.pop(MODULE, None)
        module = importlib.import_module(MODULE)
        try:
            yield module
        finally:
            sys.modules.pop(MODULE, None)
            forget_signals(MODULE)
            disconnect(module.app)


class Producer(threading.Thread):
    """
    Publishes *tasks* tasks as fast as the workers take them.

    Attributes:
        accepted: Tasks the broker has said yes to; they are numbered from 0.
        unsure: Number of each task that may have been sent twice, and when that began.
        less_urgent: Numbers of the tasks that others have precedence over.
        longest: Seconds the longest body takes.
    """

    def __init__(self, project: ModuleType, url: str, *, tasks: int, lease: float, dice: random.Random) -> None:
        super().__init__(name="producer", daemon=True)
        self.accepted = 0
        self.unsure: dict[int, float] = {}
        self.less_urgent: set[int] = set()
        self.longest = 1.5 * lease
        self.ending = threading.Event()
        self._project = project
        self._server = Redis.from_url(url)
        self._tasks = tasks
        self._lease = lease
        self._dice = dice

    def run(self) -> None:
        while self.accepted < self._tasks and not self.ending.is_set():
            if self.accepted % 20 == 0:
                self._wait_for_room()
            self._publish(self.accepted)
            self.accepted += 1

    def backlog(self) -> int:
        """Messages in the queues, none of those that are delayed or at a worker."""
        pipe = self._server.pipeline(transaction=False)
        for queue in QUEUES:
            for priority in _PRIORITIES:
                pipe.llen(queue + priority)
        return sum(pipe.execute())

    def _wait_for_room(self) -> None:
        while not self.ending.is_set():
            with contextlib.suppress(RedisError):  # it is being restarted
                if self.backlog() < BACKLOG:
                    return
            self.ending.wait(0.01)

    def _publish(self, number: int) -> None:
        """Until the broker has taken it."""
        name, kwargs, options = self.draw()
        task = getattr(self._project, name)
        if "priority" in options:
            self.less_urgent.add(number)
        while not self.ending.is_set():
            begun = time.monotonic()
            try:
                task.apply_async((number,), kwargs, task_id=f"soak-{number}", retry=False, **options)
                failed = False
            except (OSError, RedisError, OperationalError):
                failed = True
            if failed or time.monotonic() - begun > _SURE:
                self.unsure.setdefault(number, begun)
            if not failed:
                return
            self.ending.wait(0.05)

    def draw(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """The next task: its name, arguments and options."""
        dice, die = self._dice, self._dice.random()
        if die < 0.85:
            seconds = 0.0
        elif die < 0.998:
            seconds = dice.uniform(0.01, 0.1)
        else:  # up to longer than a lease: it must be renewed
            seconds = dice.uniform(0.2, 1.5) * self._lease
        kwargs: dict[str, Any] = {"seconds": round(seconds, 3)}
        options: dict[str, Any] = {"queue": QUEUES[dice.random() < 0.2]}
        name = "work"
        if dice.random() < 0.03:
            kwargs["failures"] = dice.choice((1, 1, 2))
            name = dice.choice(("work", "patient"))
        if dice.random() < 0.03:
            options["countdown"] = dice.uniform(0.2, 2 * self._lease)
        if dice.random() < 0.1:
            options["priority"] = dice.choice((3, 6, 9))
        return name, kwargs, options
