"""Runs of a schedule that somebody asks for: now, or of slots of the past. No beat need be there.

The message is made and sent as a beat makes and sends it; no leader is asked and no record moves, so what
the schedule would have fired by itself it still does.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_hardened.beat.names import Keys, task_id_of, triggered_id, window_of
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.steps import Outgoing, StepToTake, Taken
from celery_hardened.beat.store import BeatStore
from celery_hardened.dedup.sent import nothing_was_sent
from celery_hardened.errors import ConfigurationError, NotFiredError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.beat_broker import are_together
from celery_hardened.pipeline.beat_elsewhere import CONFIRM_TIMEOUT, BrokerMessages
from celery_hardened.pipeline.beat_message import BeatMessages
from celery_hardened.pipeline.beat_refusal import refusal_of
from celery_hardened.pipeline.beat_send import cause_of
from celery_hardened.pipeline.publish import FireMarks
from celery_hardened.pipeline.published import ended
from celery_hardened.pipeline.windows import ttl_of_publish, windows

logger = logging.getLogger("celery_hardened.beat")


class FiredBeforeError(NotFiredError):
    """Another call has fired this very task by hand within the last hour. Nothing was sent again."""


class ByHand:
    """Fires schedules of one app by hand. ``close`` it after use.

    Args:
        by, why: For the history.
    """

    def __init__(self, hardening: Hardening, *, by: str, why: str = "") -> None:
        self._hardening = hardening
        self._by = by
        self._why = why
        self._keys = Keys(hardening.prefix)
        self._store = BeatStore(hardening.redis, self._keys, history=hardening.settings.beat_history)
        app = hardening.app
        together = are_together(hardening)
        self._messages = BeatMessages(app, hardening) if together else None
        self._elsewhere = None if together else BrokerMessages(app)

    def trigger(self, schedule: Schedule, *, force: bool = False) -> str:
        """Fire *schedule* now, under a new task id, which is returned. Its slot is this instant.

        Args:
            force: Also while it is paused, and beside a run that is not over.

        Raises:
            NotFiredError: It is paused, a run is not over, or it cannot be published.
            StoreUnavailableError: It is not known whether it was fired; its id makes a repeat harmless.
        """
        task_id = triggered_id(schedule.name)
        self._fire(schedule, round(time.time(), 3), task_id, "triggered", force=force)
        return task_id

    def backfill(self, schedule: Schedule, slot: float) -> str:
        """Fire *schedule* for a *slot* of the past, under that slot's own task id, which is returned.

        Beside whatever runs: somebody wants it now. Raises as ``trigger``, and ``FiredBeforeError`` if it was asked
        for within the hour.
        """
        task_id = task_id_of(schedule.name, slot)
        self._fire(schedule, slot, task_id, "backfilled", force=True)
        return task_id

    def _fire(self, schedule: Schedule, slot: float, task_id: str, outcome: str, *, force: bool) -> None:
        refusal = refusal_of(schedule, self._hardening)
        if refusal is not None:
            raise NotFiredError(schedule.name, refusal.rstrip("."))
        overlaps = schedule.policy.overlap != "allow" and not force
        run = window_of(schedule.name) if overlaps else None
        yields = overlaps and schedule.policy.ends_other
        fire = FireMarks(slot=slot, schedule=schedule.name, missed=0, run=run, once=False, yields=yields)
        step = self._step(schedule, slot, task_id, outcome, overlaps=overlaps, force=force)
        if self._messages is not None:
            self._publish(self._messages, schedule, task_id, fire, step)
        elif self._elsewhere is not None:
            self._publish_elsewhere(self._elsewhere, schedule, task_id, fire, step(()))
        ended(self._hardening, schedule.task, "published", (schedule.args, schedule.kwargs, schedule.options))

    def _publish(
        self,
        messages: BeatMessages,
        schedule: Schedule,
        task_id: str,
        fire: FireMarks,
        step: Callable[[Sequence[Outgoing]], StepToTake],
    ) -> None:
        def claim(pushes: Sequence[Outgoing]) -> None:
            if not pushes:
                raise ConfigurationError("its exchange and routing key lead to no queue")
            self._take(schedule, step(pushes))

        try:
            sent = messages.publish(schedule, task_id=task_id, fire=fire, claim=claim)
        except (OperationalError, RedisError) as problem:
            # The queues were not reached, and they lie where the records do. What a claim raises is of ours by now.
            raise StoreUnavailableError(f"firing schedule {schedule.name!r}", cause_of(problem)) from problem
        if not sent:
            raise NotFiredError(schedule.name, "the task's own publish sent nothing (a duplicate, or eager mode)")

    def _publish_elsewhere(
        self, messages: BrokerMessages, schedule: Schedule, task_id: str, fire: FireMarks, step: StepToTake
    ) -> None:
        began, lease = time.time(), self._hardening.settings.lease
        # Until its message is there the window is on a lease: nobody publishes it again, should this process end. One
        # that later runs take over anyway is in nobody's way, and may have to go back to the run before.
        held = step.window_ttl if fire.yields else lease + CONFIRM_TIMEOUT
        self._take(schedule, replace(step, claim="made", window_ttl=held))
        try:
            sent = messages.publish(schedule, task_id=task_id, fire=fire)
        except Exception as problem:
            # Nothing is left if it is certain that there is no message: who asks again is not refused.
            if nothing_was_sent(problem, handled=None):
                self._store.triggered(step, "given up")
            else:
                self._may_be_there(fire, step, began, held=lease)
            raise NotFiredError(schedule.name, f"the broker did not take it ({cause_of(problem)})") from problem
        if not sent:
            self._store.triggered(step, "given up")
            raise NotFiredError(schedule.name, "the task's own publish sent nothing (a duplicate, or eager mode)")
        try:
            self._may_be_there(fire, step, began, held=step.window_ttl)
        except StoreUnavailableError as problem:  # it was fired, and is not to be asked for again
            logger.warning("the window of schedule %r may be free before its run is over: %s", schedule.name, problem)

    def _may_be_there(self, fire: FireMarks, step: StepToTake, began: float, *, held: float) -> None:
        """The broker has its message, or may have it: hold its window for *held* seconds, unless its run has spoken
        and knows better. What it replaces has to end, lest both run."""
        if fire.run is not None:
            windows(self._hardening).lease(fire.run, task_id=step.task_id, lease=held, published=began)
            self._store.triggered(step, "confirmed")

    def _step(
        self, schedule: Schedule, slot: float, task_id: str, outcome: str, *, overlaps: bool, force: bool
    ) -> Callable[[Sequence[Outgoing]], StepToTake]:
        said: dict[str, Any] = {
            "at": round(time.time(), 3),
            "outcome": outcome,
            "slot": slot,
            "id": task_id,
            "by": self._by,
        }
        if self._why:
            said["why"] = self._why
        window: dict[str, Any] = {}
        if overlaps:
            task = self._hardening.app.tasks[schedule.task]
            window = {
                "overlap": schedule.policy.overlap,
                "window": self._keys.window(schedule.name),
                "window_ttl": ttl_of_publish(self._hardening, task, dict(schedule.options)),
            }

        def step(messages: Sequence[Outgoing]) -> StepToTake:
            return StepToTake(
                name=schedule.name,
                new="by hand",
                history=json.dumps(said, separators=(",", ":")),
                messages=tuple(messages),
                checks_pause=not force,
                task_id=task_id,
                **window,
            )

        return step

    def _take(self, schedule: Schedule, step: StepToTake) -> None:
        taken: Taken = self._store.trigger(step)
        if taken.outcome == "paused":
            raise NotFiredError(schedule.name, "it is paused; say --force to fire it all the same")
        if taken.outcome == "overlapped":
            raise NotFiredError(
                schedule.name,
                f"its run {taken.holder} is not over (overlap={schedule.policy.overlap!r}); --force fires it "
                f"all the same",
            )
        if taken.outcome == "done before":
            raise FiredBeforeError(schedule.name, f"task {step.task_id} was fired by hand within the last hour")
        if taken.outcome != "taken":
            raise NotFiredError(schedule.name, taken.trouble or taken.outcome)

    def close(self) -> None:
        """Let go of the connections."""
        for messages in (self._messages, self._elsewhere):
            if messages is not None:
                messages.close()
