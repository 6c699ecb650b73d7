"""What a worker does now and then for everybody: retention, chords of parked letters, graceful returns."""

from __future__ import annotations

import logging
from typing import Any

from celery.worker import state

from celery_hardened.dead_letter.parking import keep_groups_alive
from celery_hardened.errors import HardenedError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline import claim, payload
from celery_hardened.transport.names import is_ours

logger = logging.getLogger("celery_hardened.upkeep")

#: Seconds between two rounds. A parked chord's keys live at least ``result_expires`` from the last
#: return of a member, so this only has to be well below that.
_EVERY = 60.0


class Upkeep:
    """Small, idempotent chores; every worker of an app may do them at once."""

    def __init__(self, hardening: Hardening) -> None:
        self._hardening = hardening
        self._entry: Any = None

    def start(self, timer: Any) -> None:
        """Do the chores every minute. Called at each (re)connect; a second call replaces the first."""
        if self._hardening.settings.observe:
            return
        if self._entry is not None:
            timer.cancel(self._entry)
        self._entry = timer.call_repeatedly(_EVERY, self.round)

    def round(self) -> None:
        """One round. Never raises: a KeyError in a worker's timer would be taken for a lost broker."""
        try:
            dropped = self._hardening.dead_letters.sweep()
            if dropped:
                logger.warning("retention dropped %s dead letters that were not acted on", dropped)
            payload.sweep(self._hardening)
            claim.sweep(self._hardening)
            groups = {group for _, group in self._hardening.dead_letters.parked_groups()}
            if groups:
                keep_groups_alive(self._hardening.app, groups, seconds=self._hardening.settings.dead_letter_max_age)
        except HardenedError as problem:
            logger.warning("upkeep is put off: %s", problem)
        except Exception:
            logger.exception("upkeep failed")


def note_returns(hardening: Hardening) -> int:
    """Say of every message this worker still holds that it is given back on purpose.

    Called once, when the worker stops in an orderly way and before its channel closes.
    Without it the next delivery of each would be presumed a death.

    Returns:
        How many.
    """
    held = {request for request in (*state.reserved_requests, *hardening.cut_short) if hasattr(request, "start")}
    returned = [
        request.start
        for request in held
        if not request.acknowledged and request.task.acks_late and not _comes_back_unmarked(hardening, request)
    ]
    if hardening.settings.observe:
        return 0
    try:
        for start in returned:
            hardening.deaths.record_return(start)
    except HardenedError as problem:
        logger.warning("%s returned messages are not noted and may count as deaths: %s", len(returned), problem)
    return len(returned)


def _comes_back_unmarked(hardening: Hardening, request: Any) -> bool:
    """Redis delivery puts back what was never started as if it had never been taken."""
    tag = getattr(getattr(request, "_message", None), "delivery_tag", "")
    delivery = hardening.delivery
    return is_ours(tag) and delivery is not None and not delivery.started(tag)
