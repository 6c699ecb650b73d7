"""How a step is taken: fired, or passed, and written down.

In one write with its message where that is possible (``beat_one_step``), else in three (``beat_two_step``).
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery_hardened.beat.missed_run import Fire, Pass
from celery_hardened.beat.names import task_id_of, window_of
from celery_hardened.beat.progress import abandoned, buffered, overlapped, passed, unbuffered
from celery_hardened.beat.record import Record, has_fired, record_of
from celery_hardened.beat.schedule import Schedule
from celery_hardened.beat.skip import Skip
from celery_hardened.beat.standing import Standing
from celery_hardened.beat.steps import Claim, Outgoing, StepToTake, Taken
from celery_hardened.pipeline.beat_book import Plan
from celery_hardened.pipeline.beat_message import FireMarks
from celery_hardened.pipeline.beat_send import cause_of
from celery_hardened.pipeline.windows import ttl_of_publish, windows

if TYPE_CHECKING:
    from celery_hardened.pipeline.beat import Beat

logger = logging.getLogger("celery_hardened.beat")

#: Seconds. A window is not held longer, whatever the options of its schedule come to: Redis has no endless ones.
LONGEST_RUN = 366 * 86_400.0

_AS_JSON = json.JSONEncoder(separators=(",", ":")).encode


class Firing(ABC):
    """What both ways have in common. Made anew by each leader."""

    def __init__(self, beat: Beat) -> None:
        self.beat = beat
        self._moved = beat.metrics.moved
        self.book = beat.book
        self.keys = beat.keys

    def carry_out(self, standing: Standing, plans: Sequence[Plan]) -> None:
        """Take the steps, as far as they can be taken.

        Raises:
            NotLeaderError: Another beat has led since; nothing was done by what was asked last.
            StoreUnavailableError: It is not known what was done; Redis tells when it is asked again.
        """
        try:
            self._carry_out(standing, plans)
        except Exception:
            # They were taken from the agenda; what was done is found when they are decided again.
            self.book.again([plan.name for plan in plans], self.beat.clock.now())
            raise

    @abstractmethod
    def _carry_out(self, standing: Standing, plans: Sequence[Plan]) -> None:
        """Take the steps; whatever is raised, the caller puts the plans back."""

    @abstractmethod
    def finish_pending(self, standing: Standing) -> None:
        """See to messages that are not known to have arrived."""

    # --- the step -----------------------------------------------------------------------------------------

    def step(self, standing: Standing, plan: Plan) -> StepToTake:
        """The step of *plan*, if it fires nothing."""
        record, step = plan.record, plan.step
        if isinstance(step, Pass):
            skip = self.book.skips.get(plan.name) if step.reason == "skipped_by_hand" else None
            more = {"by": skip.by, "why": skip.why} if skip else {}
            said = self.line(standing, step.reason, slot=step.upto, first=step.first, count=step.count, **more)
            return StepToTake(
                name=plan.name,
                old=plan.text,
                new=self.book.text_of(passed(record, step)),
                history=said,
                slot=step.upto,
                takes_skip=skip is not None,
            )
        before, said = record_of(plan.text), ""
        if before is not None and before.buffered is not None and record.buffered is None:
            said = self.line(standing, "superseded", slot=before.buffered, count=1 + before.buffered_missed)
        return StepToTake(name=plan.name, old=plan.text, new=self.book.text_of(record), history=said)

    def fire_step(
        self, standing: Standing, plan: Plan, fire: Fire, after: Record, said: str, messages: tuple[Outgoing, ...] = ()
    ) -> StepToTake:
        """Move the record to *after*, if no other run or pause is in the way."""
        asked = StepToTake(
            name=plan.name,
            old=plan.text,
            new=self.book.text_of(after),
            history=said,
            messages=messages,
            checks_pause=True,
            slot=fire.slot,
            task_id=task_id_of(plan.name, fire.slot),
        )
        overlap = plan.schedule.policy.overlap
        if overlap == "allow":
            return asked
        otherwise, said_otherwise = self._if_overlapped(standing, plan, fire)
        return replace(
            asked,
            overlap=overlap,
            window=self.keys.window(plan.name),
            window_ttl=self._longest_run(plan.schedule),
            new_if_overlapped=otherwise,
            history_if_overlapped=said_otherwise,
        )

    def _if_overlapped(self, standing: Standing, plan: Plan, fire: Fire) -> tuple[str, str]:
        """Record and history line of a slot that gives way."""
        if plan.behind is not None:
            said = self.line(standing, "overlapped", slot=plan.behind.slot, count=1 + plan.behind.missed)
            return overlapped(plan.record, plan.behind).text(), said
        if plan.buffered:
            return "", ""  # it waits on
        if plan.schedule.policy.overlap == "buffer_one" and plan.record.buffered is None:
            said = self.line(standing, "buffered", slot=fire.slot, missed=fire.missed)
            return buffered(plan.record, fire.slot, fire.missed).text(), said
        said = self.line(standing, "overlapped", slot=fire.slot, count=1 + fire.missed)
        return overlapped(plan.record, fire).text(), said

    def fired_line(self, standing: Standing, plan: Plan, fire: Fire) -> str:
        return self.line(standing, "fired", slot=fire.slot, id=task_id_of(plan.name, fire.slot), missed=fire.missed)

    def line(self, standing: Standing, outcome: str, **more: Any) -> str:
        """One line of run history."""
        at = round(self.beat.clock.now(), 3)
        said = {"at": at, "outcome": outcome, "term": standing.term, **{k: v for k, v in more.items() if v}}
        return _AS_JSON(said)

    def _longest_run(self, schedule: Schedule) -> float:
        """Seconds that a run may hold its window if nothing is heard of it."""
        task = self.beat.hardening.app.tasks[schedule.task]
        return min(ttl_of_publish(self.beat.hardening, task, dict(schedule.options)), LONGEST_RUN)

    def marks(self, plan: Plan, fire: Fire) -> FireMarks:
        overlaps = plan.schedule.policy.overlap != "allow"
        return FireMarks(
            slot=fire.slot,
            schedule=plan.name,
            missed=fire.missed,
            run=window_of(plan.name) if overlaps else None,
            once=is_claimed(plan),
            yields=plan.schedule.policy.ends_other,
        )

    # --- what became of it ------------------------------------------------------------------------------

    def settle(self, plan: Plan, asked: StepToTake, taken: Taken) -> bool:
        """Put down in the book what the script has answered. Was the step taken?"""
        name, now = plan.name, self.beat.clock.now()
        before = self.book.before(plan)
        if taken.outcome == "taken":
            self._moved(plan, before, self.book.took(plan, asked.new, now))
            if isinstance(plan.step, Pass):
                self._tell_pass(plan.schedule, plan.step)
            return True
        if taken.outcome == "overlapped":
            if asked.new_if_overlapped:
                self._moved(plan, before, self.book.took(plan, asked.new_if_overlapped, now))
        elif taken.outcome == "paused":
            self.book.held_up(name, self.beat.store.paused(), now)
        elif taken.outcome in ("skipped", "not skipped"):
            # Redis has the last word: the look may be a second old. Decided again by what it says.
            self.book.skips.pop(name, None)
            if (skip := Skip.parse(taken.skip)) is not None:
                self.book.skips[name] = skip
            self.book.again([name], now)
        elif taken.outcome == "stale":
            if isinstance(plan.step, Fire) and has_fired(taken.current, plan.step.slot):
                # Its answer was lost, and the step was made anew since: the message is there, under this very id.
                self._moved(plan, before, self.book.took(plan, taken.current, now))
                return True
            # The answer to a step before may have been lost, and this one was made anew.
            self._moved(plan, before, record_of(taken.current))
            self.book.stale(name, taken.current, now)
        else:
            self.book.failed(name, f"the step was refused by Redis ({taken.trouble}); it is tried again.", now)
        return False

    def was_fired(self, plan: Plan, fire: Fire) -> None:
        schedule = plan.schedule
        self.beat.metrics.fired(plan, fire)
        self.book.succeeded(schedule.name)
        self.beat.source.fired(schedule, at=self.beat.clock.now())
        if logger.isEnabledFor(logging.INFO):
            logger.info(
                "Sending due task %s (%s), slot %s%s",
                schedule.name,
                schedule.task,
                shown(fire.slot),
                f", which stands for {fire.missed} missed before it" if fire.missed else "",
                extra={"schedule": schedule.name, "task": schedule.task, "outcome": "fired"},
            )

    def _tell_pass(self, schedule: Schedule, step: Pass) -> None:
        # Of these somebody wanted it so, for as long as it takes.
        logger.log(
            logging.INFO if step.reason in ("paused", "skipped_by_hand", "not_sent") else logging.WARNING,
            "not fired: %d slot%s of %s (%s), the last %s",
            step.count,
            "" if step.count == 1 else "s",
            schedule.name,
            step.reason,
            shown(step.upto),
            extra={"schedule": schedule.name, "task": schedule.task, "outcome": step.reason},
        )

    def unmade(self, plan: Plan, problem: Exception) -> None:
        """The task of this one schedule cannot be published."""
        self.book.failed(plan.name, self.unmade_text(problem), self.beat.clock.now())

    @staticmethod
    def unmade_text(problem: Exception) -> str:
        return f"its task could not be published ({cause_of(problem)}); it is tried again."

    def not_sent(self, standing: Standing, plan: Plan, fire: Fire) -> None:
        """The task's own publish has decided that there is nothing to send."""
        passing = replace(plan, step=Pass(fire.slot, fire.slot, 1 + fire.missed, "not_sent"))
        asked = self.step(standing, passing)
        if plan.buffered:
            asked = replace(asked, new=unbuffered(plan.record, "not_sent").text())
        elif is_claimed(plan):
            asked = self.of_claim(replace(asked, new=abandoned(plan.record).text()), plan, "given up")
        self.settle(passing, asked, self.beat.store.take(standing.owner, [asked])[0])

    # --- a slot that is claimed ---------------------------------------------------------------------------

    def has_expired(self, standing: Standing, plan: Plan, fire: Fire) -> bool:
        """Is the slot of *plan* not to be published again? Workers do not remember for ever whether they ran it."""
        if self.beat.clock.now() - fire.slot <= self.beat.hardening.settings.queue_retention:
            return False
        said = self.line(standing, "expired", slot=fire.slot, count=1 + fire.missed)
        self.let_go(plan.name, fire)
        self.move(standing, plan, abandoned(plan.record, "expired"), said)
        return True

    def move(self, standing: Standing, plan: Plan, after: Record, said: str = "", *, claim: Claim = "") -> bool:
        asked = self.of_claim(StepToTake(name=plan.name, old=plan.text, new=after.text(), history=said), plan, claim)
        taken = self.beat.store.take(standing.owner, [asked])[0]
        self.book.pending.discard(plan.name)
        return self.settle(plan, asked, taken)

    def of_claim(self, asked: StepToTake, plan: Plan, claim: Claim) -> StepToTake:
        """*asked*, which says what became of the slot that *plan* has claimed, if it has. Whatever its policy is by
        now: it may have been another one when the window was taken."""
        slot = plan.record.pending
        if slot is None or not claim:
            return asked
        return replace(asked, claim=claim, window=self.keys.window(plan.name), task_id=task_id_of(plan.name, slot))

    def hold(self, plan: Plan, fire: Fire) -> None:
        """Have the window of a claim that another beat has made, or that a message has ended already."""
        if plan.schedule.policy.overlap != "allow":
            windows(self.beat.hardening).enter(
                window_of(plan.name), task_id=task_id_of(plan.name, fire.slot), ttl=self._longest_run(plan.schedule)
            )

    def let_go(self, name: str, fire: Fire) -> None:
        """A claimed slot is given up, and nobody may ever free its window: if its message did arrive, for a lease."""
        lease = self.beat.hardening.settings.lease
        windows(self.beat.hardening).hold(window_of(name), task_id=task_id_of(name, fire.slot), ttl=lease)


def is_claimed(plan: Plan) -> bool:
    """May its message be there already, under the same id?"""
    return plan.record.pending is not None


def shown(slot: float) -> str:
    """*slot* as people read it: UTC, to the millisecond."""
    return datetime.fromtimestamp(slot, tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
