"""Firing where the queues lie in the Redis that keeps the records: claim and publish are one write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_hardened.beat.missed_run import Fire
from celery_hardened.beat.names import task_id_of
from celery_hardened.beat.progress import confirmed, fired
from celery_hardened.beat.standing import Standing
from celery_hardened.beat.steps import Outgoing, StepToTake, in_parts
from celery_hardened.beat.store import NotLeaderError
from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.pipeline.beat_book import Plan
from celery_hardened.pipeline.beat_fire import Firing, is_claimed
from celery_hardened.pipeline.beat_message import BeatMessages, SlotRefusedError

if TYPE_CHECKING:
    from celery_hardened.pipeline.beat import Beat


class RedisFiring(Firing):
    """The queues lie in the Redis that keeps the records: claim and publish are one write."""

    def __init__(self, beat: Beat, messages: BeatMessages) -> None:
        super().__init__(beat)
        self._messages = messages

    def finish_pending(self, standing: Standing) -> None:
        """Send what a beat has claimed whose broker was elsewhere, and did not live to see confirmed. Its message
        may have come here, or be in the queue of a broker that is used no more."""
        for name in [*self.book.pending]:
            plan = self.book.plan_pending(name)
            if plan is not None and isinstance(plan.step, Fire) and not self.has_expired(standing, plan, plan.step):
                self.hold(plan, plan.step)
                self.carry_out(standing, [plan])

    def _carry_out(self, standing: Standing, plans: Sequence[Plan]) -> None:
        together: list[tuple[Plan, StepToTake]] = []
        alone: list[tuple[Plan, Fire]] = []
        for plan in plans:
            fire = plan.step
            if not isinstance(fire, Fire):
                together.append((plan, self.step(standing, plan)))
                continue
            try:
                task_id = task_id_of(plan.name, fire.slot)
                messages = self._messages.message(plan.schedule, task_id=task_id, fire=self.marks(plan, fire))
                asked = None if messages is None else self._with_message(standing, plan, fire, messages)
            except Exception as problem:  # noqa: BLE001 - arguments or options of this one schedule
                self.unmade(plan, problem)
                continue
            if asked is None:
                alone.append((plan, fire))
            else:
                together.append((plan, asked))
        for part in in_parts(together):
            answers = self.beat.store.take(standing.owner, [asked for _, asked in part])
            for (plan, asked), taken in zip(part, answers, strict=True):
                if self.settle(plan, asked, taken) and isinstance(plan.step, Fire):
                    self.was_fired(plan, plan.step)
        for plan, fire in alone:
            if self.beat.ends:
                return
            # A receiver or a task's own apply_async may take its time; a hundred of them are no dead main loop.
            self.beat.leadership.touch(self.beat.clock.now())
            self._publish(standing, plan, fire)

    def _with_message(self, standing: Standing, plan: Plan, fire: Fire, messages: tuple[Outgoing, ...]) -> StepToTake:
        now, said, one_off = self.beat.clock.now(), self.fired_line(standing, plan, fire), plan.schedule.one_off
        if not is_claimed(plan):
            after = fired(plan.record, fire, now, one_off=one_off)
            return self.fire_step(standing, plan, fire, after, said, messages)
        # Pauses and other runs were looked at when it was claimed.
        text = self.book.text_of(confirmed(plan.record, now, one_off=one_off))
        asked = StepToTake(name=plan.name, old=plan.text, new=text, history=said, messages=messages)
        return self.of_claim(asked, plan, "confirmed")

    def _publish(self, standing: Standing, plan: Plan, fire: Fire) -> None:
        """By Celery's own path, which runs the script where it would have sent the message."""
        asks = False

        def claim(messages: Sequence[Outgoing]) -> None:
            nonlocal asks
            if not messages:
                raise ConfigurationError("its exchange and routing key lead to no queue")
            asked = self._with_message(standing, plan, fire, tuple(messages))
            asks = True
            taken = self.beat.store.take(standing.owner, [asked])[0]
            if not self.settle(plan, asked, taken):
                raise SlotRefusedError(plan.name, taken.outcome)
            self.was_fired(plan, fire)

        try:
            sent = self._messages.publish(
                plan.schedule, task_id=task_id_of(plan.name, fire.slot), fire=self.marks(plan, fire), claim=claim
            )
        except SlotRefusedError:
            return  # it is in the book
        except Exception as problem:  # of this one schedule, such as a store of payloads that is away
            if asks and isinstance(problem, (NotLeaderError, StoreUnavailableError)):
                raise
            if isinstance(problem, (OperationalError, RedisError)):
                # Asked, not guessed: a Redis that is full or gone takes no problem either: no fault of a schedule.
                self.beat.store.set_problems(standing.owner, {plan.name: self.unmade_text(problem)})
            self.unmade(plan, problem)
            return
        if not sent:
            self.not_sent(standing, plan, fire)
