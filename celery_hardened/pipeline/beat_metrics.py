"""What a beat counts and tells: from the records that it has moved, so that both say the same.

A step is counted when Redis has answered that it is taken. One whose answer was lost is counted when it is asked
again; if the lead is lost with the answer, it is in the record, and counted by nobody.

Runs by hand (``hardened schedule trigger``, ``backfill``) move no record and are no slots of the plan: they are
counted as publishes alone, in the process that asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from celery_hardened.beat.jitter import offset_of
from celery_hardened.beat.missed_run import Fire, Pass
from celery_hardened.beat.moved import FIRED, moved
from celery_hardened.beat.names import task_id_of
from celery_hardened.beat.record import Record
from celery_hardened.metrics.catalogue import (
    BEAT_LATE_SECONDS,
    BEAT_LEADER,
    BEAT_PROBLEMS,
    BEAT_SCHEDULES,
    BEAT_SLOTS,
    BEAT_TERM,
    BEAT_TICK,
)
from celery_hardened.metrics.registry import CAPS
from celery_hardened.pipeline.beat_book import Plan
from celery_hardened.pipeline.beat_signals import BeatSignals
from celery_hardened.pipeline.published import publishes_of
from celery_hardened.signals import leader_changed, schedule_fired, schedule_missed

if TYPE_CHECKING:
    from celery_hardened.pipeline.beat import Beat

#: Seconds between two tellings of the gauges of a beat that a worker embeds.
_TOLD_EVERY: Final = 1.0


class BeatMetrics:
    """The counts and signals of one beat."""

    def __init__(self, beat: Beat) -> None:
        self._beat = beat
        self._metrics = beat.hardening.metrics
        self._publishes = publishes_of(beat.hardening)
        self._is_on = beat.hardening.settings.metrics
        self._ticked = 0.0
        self._told = float("-inf")
        self.signals = BeatSignals(beat.hardening.app)

    # --- the process -----------------------------------------------------------------------------------

    def open(self) -> None:
        """The beat begins, in the process in which it will fire."""
        metrics = self._metrics
        if metrics.place == "client":  # of its own; the process that a worker forked for it tells that worker
            metrics.keep_here()
        if metrics.place == "here":
            metrics.registry.at_scrape(self._set_gauges)

    def ticked(self) -> None:
        """The main loop turns."""
        self._ticked = time.time()
        if self._metrics.place == "child" and time.monotonic() - self._told >= _TOLD_EVERY:
            self._told = time.monotonic()
            self._set_gauges()

    def _set_gauges(self) -> None:
        beat, put = self._beat, self._metrics.set
        leads = beat.leadership.standing() is not None
        put(BEAT_LEADER, (), int(leads))
        put(BEAT_TERM, (), beat.leadership.term)
        put(BEAT_TICK, (), self._ticked)
        put(BEAT_SCHEDULES, (), len(beat.book) if leads else 0)
        put(BEAT_PROBLEMS, (), len(beat.book.problems) if leads else 0)

    def close(self) -> None:
        if self._metrics.place == "child":
            self._set_gauges()
        self.signals.close()

    # --- the lead --------------------------------------------------------------------------------------

    def lead(self, leads: bool, term: int, why: str) -> None:
        """This beat leads, or does not any more. Called in the thread of the lead."""
        self.signals.tell(leader_changed, leads=leads, term=term, why=why)

    def known(self, names: Iterable[str]) -> None:
        """Schedules that may be fired: their fires are shown from now on."""
        for name in islice(names, CAPS["schedule"]) if self._is_on else ():
            self._metrics.inc(BEAT_SLOTS, (name, FIRED), 0)

    # --- slots -----------------------------------------------------------------------------------------

    def moved(self, plan: Plan, before: Record | None, after: Record | None) -> None:
        """*plan* was taken, and Redis has the record *after* in the place of *before*."""
        if not self._is_on and not schedule_missed.receivers:
            return
        if before is None or after is None:
            return
        for outcome, count in moved(before, after):
            if self._is_on:
                self._metrics.inc(BEAT_SLOTS, (plan.name, outcome), count)
            # Of the coalesced the fire tells that stands for them.
            if outcome not in (FIRED, "coalesced") and schedule_missed.receivers:
                slot = _last(plan, before, outcome)
                self.signals.tell(schedule_missed, schedule=plan.name, slot=slot, count=count, reason=outcome)

    def fired(self, plan: Plan, fire: Fire) -> None:
        """*fire* has gone out, and its record says so."""
        schedule = plan.schedule
        if self._publishes is not None:
            self._publishes.ended(schedule.task, "published", (schedule.args, schedule.kwargs, schedule.options))
        if self._is_on and not fire.catchup and not _has_waited(plan, fire):
            jitter = schedule.policy.jitter
            due = fire.slot + offset_of(plan.name, fire.slot, jitter=jitter) if jitter else fire.slot
            self._metrics.observe(BEAT_LATE_SECONDS, (), max(0.0, self._beat.clock.now() - due))
        if schedule_fired.receivers:
            task_id = task_id_of(plan.name, fire.slot)
            self.signals.tell(schedule_fired, schedule=plan.name, slot=fire.slot, task_id=task_id, missed=fire.missed)


def _last(plan: Plan, before: Record, reason: str) -> float:
    """The last of the slots that were passed for *reason*."""
    if reason == "superseded" and before.buffered is not None:
        return before.buffered
    if isinstance(plan.step, Pass):
        return plan.step.upto
    if isinstance(plan.step, Fire):
        return plan.step.slot if plan.behind is None else plan.behind.slot
    return before.cursor


def _has_waited(plan: Plan, fire: Fire) -> bool:
    """Has its slot waited for the run before it to end?"""
    after = plan.record.pending_after
    return plan.buffered or (plan.record.pending is not None and after is not None and fire.slot <= after)
