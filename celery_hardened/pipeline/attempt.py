"""One attempt in the pool process: what all steps know of it, and whether its start is written down."""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import Any
from uuid import uuid4

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.marks import Marks, deaths_in, has_window, is_redriven
from celery_hardened.pipeline import eager, held_windows
from celery_hardened.pipeline.letters import START, WIRE, work_of
from celery_hardened.pipeline.retry import NOTES
from celery_hardened.poison.contract import Start
from celery_hardened.poison.policy import is_suspect
from celery_hardened.wire import Wire, unpack

logger = logging.getLogger("celery_hardened.execute")


class Attempt:
    """One attempt, from its first check to its end."""

    def __init__(self, task: Any, request: Any, hardening: Hardening) -> None:
        self.task = task
        self.request = request
        self.hardening = hardening
        self.notes: dict[str, Any] = request.__dict__[NOTES]
        self.redelivered = bool((request.delivery_info or {}).get("redelivered"))
        self.redriven = not request.is_eager and is_redriven(request.headers)
        self.suspect = not request.is_eager and is_suspect(
            redelivered=self.redelivered, deaths=deaths_in(request.headers), early_ack=not task.acks_late
        )
        self.begun: float | None = None
        """When its body began, by ``time.monotonic``."""
        self._begun = False
        self.opened = False
        """Is its start written down, and its end not yet?"""

    @cached_property
    def marks(self) -> Marks:
        return Marks.read(self.request.headers)

    @cached_property
    def wire(self) -> Wire:
        """The message as it arrived; the parent sent it along (see ``letters.WIRE``)."""
        found = (self.request.properties or {}).get(WIRE)
        if isinstance(found, tuple):
            return unpack(found)
        return eager.wire_of(self.task, self.request)

    @cached_property
    def start(self) -> Start:
        """This start, under the token the parent gave it."""
        work = work_of(self.wire, self.marks.key)
        token = (self.request.properties or {}).get(START) or uuid4().hex
        return Start(work, str(self.request.id), token, self.marks.deaths)

    @cached_property
    def _in_window(self) -> bool:
        """Does its message hold a window? Asked in every run, so without reading all marks."""
        return has_window(self.request.headers)

    @property
    def queue(self) -> str:
        return self.wire.queue or self.wire.routing_key

    @property
    def in_workflow(self) -> bool:
        """Does something wait for its result to go on: a chord, the rest of a chain, a callback?"""
        request = self.request
        return bool(request.chord or request.chain or request.callbacks or request.group)

    @property
    def claim(self) -> Any:
        """The key this run holds (``claim.Claim``), or ``None``."""
        return self.notes.get("claim")

    @property
    def slot(self) -> Any:
        """The slot this run holds (``claim.Claim``; see ``once.py``), or ``None``."""
        return self.notes.get("slot")

    @property
    def runtime(self) -> float | None:
        """Seconds since its body began; ``None``: it has not."""
        return None if self.begun is None else time.monotonic() - self.begun

    def release(self) -> None:
        """The run has not done its work: what it has claimed is free for the next one. Twice changes nothing."""
        for claim in (self.claim, self.slot):
            if claim is not None:
                claim.release()

    def begin(self) -> None:
        """The body is about to begin; a window that ends with the start is over."""
        if not self._begun and self._in_window:
            self._begun = True
            held_windows.started(self.hardening, self.task, self.marks, str(self.request.id))

    def leave_window(self) -> None:
        """It has ended well, by its own body or by an earlier one's (then it never began)."""
        if not self._in_window:
            return
        self.begin()
        held_windows.ended(self.hardening, self.marks, str(self.request.id), well=True)

    def close(self, *, finished: bool) -> None:
        """Its start has ended without a death. *finished*: for good, so its deaths are forgotten."""
        if not self.opened:
            return
        self.opened = False
        try:
            self.hardening.deaths.close_start(self.start, finished=finished)
        except StoreUnavailableError as problem:
            logger.warning("end of suspect %s is not recorded: %s", self.task.name, problem)
