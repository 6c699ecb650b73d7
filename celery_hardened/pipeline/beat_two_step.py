"""Firing through a broker that is elsewhere: claim, publish, confirm.

::

    claim     the record says that the slot is pending; the script refuses whoever does not lead
    publish   by Celery's own path; the broker confirms it
    confirm   the record says that it was fired; only now does a run end that it replaces

A beat that dies between the steps leaves a pending slot. Whoever leads publishes it again under the
same task id, and then goes on. So a message may be there twice, and never not at all: the header says
so (``once``), and a hardened worker runs a slot once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from celery_hardened.beat.missed_run import Fire
from celery_hardened.beat.names import task_id_of
from celery_hardened.beat.progress import abandoned, claimed, confirmed, unclaimed
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.standing import Standing
from celery_hardened.beat.steps import StepToTake
from celery_hardened.dedup.sent import nothing_was_sent
from celery_hardened.errors import HardenedError
from celery_hardened.pipeline.beat_book import Plan
from celery_hardened.pipeline.beat_elsewhere import BrokerMessages
from celery_hardened.pipeline.beat_fire import Firing, shown
from celery_hardened.pipeline.beat_send import cause_of

if TYPE_CHECKING:
    from celery_hardened.pipeline.beat import Beat

logger = logging.getLogger("celery_hardened.beat")

#: Seconds until a broker that does not answer is tried again.
PAUSE = 1.0

#: Seconds until a message is published again of which nothing is known though the broker answers; doubles.
_AGAIN, _AGAIN_AT_MOST = 1.0, 60.0


class _NotTriedError(HardenedError):
    """The broker did not answer a moment ago, so this message was not even tried."""


class TwoStepFiring(Firing):
    """Made anew by each leader."""

    def __init__(self, beat: Beat) -> None:
        super().__init__(beat)
        self._messages = BrokerMessages(beat.hardening.app)
        self._away = False
        self._not_before = 0.0
        self._unknown: dict[str, tuple[Schedule, float, float]] = {}
        """Schedules, as they were, whose own messages come to nothing known: until when they are let be, and how
        long that is."""

    def _carry_out(self, standing: Standing, plans: Sequence[Plan]) -> None:
        away = time.monotonic() < self._not_before
        asked: list[tuple[Plan, StepToTake]] = []
        for plan in plans:
            if not isinstance(plan.step, Fire):
                asked.append((plan, self.step(standing, plan)))
            elif away:
                self.book.again([plan.name], self.beat.clock.now() + PAUSE)
            else:
                try:
                    step = self.fire_step(standing, plan, plan.step, claimed(plan.record, plan.step), "")
                    step = replace(step, claim="made")
                except Exception as problem:  # noqa: BLE001 - options of this one schedule
                    self.unmade(plan, problem)
                    continue
                asked.append((plan, step))
        if not asked:
            return
        answers = self.beat.store.take(standing.owner, [step for _, step in asked])
        for (plan, step), taken in zip(asked, answers, strict=True):
            if self.settle(plan, step, taken) and isinstance(plan.step, Fire):
                claimed_plan = self.book.plan_pending(plan.name)
                if claimed_plan is not None:
                    self._publish(standing, claimed_plan, plan.step, first=True)

    def finish_pending(self, standing: Standing) -> None:
        now = self.beat.clock.now()
        for name in [*self.book.pending]:
            if time.monotonic() < self._not_before:
                return
            let_be = self._unknown.get(name)
            if let_be is not None and now < let_be[1] and let_be[0] is self.book.schedules.get(name):
                continue
            plan = self.book.plan_pending(name)
            if plan is None or not isinstance(plan.step, Fire):
                continue
            if self.has_expired(standing, plan, plan.step):
                continue
            # Given up by a step whose answer was lost, it is not ours to publish: that slot is decided anew.
            if self.move(standing, plan, plan.record):
                self._publish(standing, plan, plan.step, first=False)

    def _publish(self, standing: Standing, plan: Plan, fire: Fire, *, first: bool) -> None:
        """Publish a claimed slot.

        Args:
            first: Nobody can have published it before.
        """
        self.beat.leadership.touch(self.beat.clock.now())
        if self.beat.leadership.standing() != standing:
            return  # it stays pending, for whoever leads
        try:
            if time.monotonic() < self._not_before:
                raise _NotTriedError("the broker does not answer")
            if not first:
                self.hold(plan, fire)
            sent = self._messages.publish(
                plan.schedule, task_id=task_id_of(plan.name, fire.slot), fire=self.marks(plan, fire)
            )
        except Exception as problem:  # noqa: BLE001 - of the broker, or of this one schedule
            self._failed(standing, plan, fire, problem, certain=first and nothing_was_sent(problem, handled=None))
            return
        self._broker_is_back()
        self._unknown.pop(plan.name, None)
        if not sent:
            said = self.line(standing, "not_sent", slot=fire.slot, count=1 + fire.missed)
            self.move(standing, plan, abandoned(plan.record), said, claim="given up")
            return
        after = confirmed(plan.record, self.beat.clock.now(), one_off=plan.schedule.one_off)
        if self.move(standing, plan, after, self.fired_line(standing, plan, fire), claim="confirmed"):
            self.was_fired(plan, fire)

    def _failed(self, standing: Standing, plan: Plan, fire: Fire, problem: Exception, *, certain: bool) -> None:
        # A confirm was waited for, and now a connection is: each by itself is no dead main loop.
        self.beat.leadership.touch(self.beat.clock.now())
        # Asked, not guessed from the error: a schedule's own code may raise the same, and is its own trouble.
        away = isinstance(problem, _NotTriedError) or not self._messages.connects()
        if away:
            self._broker_is_away(problem)
        if not certain:
            logger.warning(
                "it is not known whether slot %s of %s was published (%s); it is again, under the same task id",
                shown(fire.slot),
                plan.name,
                cause_of(problem),
            )
            if not away:  # then it is the schedule's own, and may stay so
                # Each try may take seconds, which the other schedules would be late by.
                before = self._unknown.get(plan.name)
                wait = _AGAIN if before is None else min(2 * before[2], _AGAIN_AT_MOST)
                self._unknown[plan.name] = (plan.schedule, self.beat.clock.now() + wait, wait)
                text = f"it is not known whether its task was published ({cause_of(problem)})"
                self.book.trouble(plan.name, f"{text}; it is published again, under the same task id.")
            return
        # Not a fire: the slot is decided again, and by its policy if that takes long. The run before it goes on.
        self.move(standing, plan, unclaimed(plan.record), claim="given up")
        if away:
            self.book.again([plan.name], self.beat.clock.now() + PAUSE)
        else:
            self.unmade(plan, problem)

    def _broker_is_away(self, problem: Exception) -> None:
        """It is no fault of any schedule: each is tried again as soon as there is a broker."""
        if not isinstance(problem, _NotTriedError):
            self._not_before = time.monotonic() + PAUSE
        if not self._away:
            self._away = True
            logger.error("the broker does not answer, no schedule is fired: %s", problem)

    def _broker_is_back(self) -> None:
        if self._away:
            self._away = False
            logger.warning("the broker answers again")
