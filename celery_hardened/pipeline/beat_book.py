"""What the leading beat knows: the schedules, their records, and when each is due next."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from celery_hardened.beat.agenda import Agenda
from celery_hardened.beat.cause import cause
from celery_hardened.beat.jitter import offset_of
from celery_hardened.beat.missed_run import Fire, Pass, Wait, decide
from celery_hardened.beat.own import Own
from celery_hardened.beat.progress import buffered_fire, current, pending_fire
from celery_hardened.beat.record import Record
from celery_hardened.beat.schedule import Problem, Schedule
from celery_hardened.beat.skip import Skip
from celery_hardened.beat.slots import Between
from celery_hardened.beat.source import Change, Gone
from celery_hardened.beat.store import Pause

logger = logging.getLogger("celery_hardened.beat")

#: Seconds until a schedule that could not be decided or published is tried again; doubles, up to the second.
_AGAIN, _AGAIN_AT_MOST = 1.0, 60.0

#: Seconds between two catch-up runs of one schedule.
PACE = 0.1

#: Seconds. A schedule class that takes longer to say when it is due is asked again only after so many times that.
SLOW, SPARED = 0.1, 10.0

_NOTHING = Record(cursor=0.0, anchor=0.0, mark="")


@dataclass(frozen=True, slots=True)
class Begin:
    """Write the record of a schedule that has none: then its anchor and cursor outlive this leader."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step of one schedule, to be taken."""

    schedule: Schedule
    record: Record
    text: str
    """The record as Redis has it, if nobody changed it; ``""``: it has none."""

    step: Fire | Pass | Begin
    buffered: bool = False
    """The step fires the slot that waited for the run before it."""

    behind: Fire | None = None
    """What is due meanwhile, and is overlapped if *buffered* has to wait on."""

    @property
    def name(self) -> str:
        return self.schedule.name


class Book:
    """Kept in memory by the leader alone; made anew whenever a beat begins to lead.

    Args:
        refusal: Why a schedule that is well-formed cannot be fired all the same; ``None``: it can.
    """

    def __init__(self, refusal: Callable[[Schedule], str | None] = lambda _: None) -> None:
        self._refusal = refusal
        self.schedules: dict[str, Schedule] = {}
        self.paused: Mapping[str, Pause] = {}
        self.skips: dict[str, Skip] = {}  # Redis asks for them anew before it fires
        self.problems: dict[str, str] = {}
        self.said: dict[str, str | None] = {}
        """Problems that have come or gone, and are not in Redis yet."""
        self.buffered: set[str] = set()
        self.pending: set[str] = set()
        self.gone: set[str] = set()
        self.left: dict[str, Fire] = {}
        """Of those, what was claimed and may never be published."""
        self._texts: dict[str, str] = {}
        self._written: dict[str, Record] = {}
        """By their texts: what may be taken before the next look, so that it need not be read again."""
        self._lost: dict[str, Record] = {}
        """Records that Redis has lost, until it has them again."""
        self._failures: dict[str, int] = {}
        self._held_up: dict[str, float] = {}
        self._agenda = Agenda()

    def __len__(self) -> int:
        return len(self.schedules)

    # --- what is known ---------------------------------------------------------------------------------

    def open(
        self, loaded: Sequence[Schedule | Problem], texts: Mapping[str, str], paused: Mapping[str, Pause], now: float
    ) -> None:
        """Begin to lead with what the source and Redis say."""
        self._texts = dict(texts)
        self.paused = paused
        known, self.problems = self.problems, {}  # each leader says in its own log what is wrong
        for one in loaded:
            self.change(one, now)
        self.said |= dict.fromkeys(known.keys() - self.problems.keys())
        # At once: what the leader before us had claimed is late already. By its text, as there may be many.
        self.pending |= {name for name in self.schedules if '"pending":' in texts.get(name, "")}

    def change(self, change: Change, now: float) -> None:
        """A schedule is new, was edited, is no good any more, or is gone."""
        if isinstance(change, Schedule) and (refusal := self._refusal(change)) is not None:
            change = Problem(change.name, refusal)
        if isinstance(change, Schedule):
            if self.problems.pop(change.name, None) is not None:
                self.said[change.name] = None
            self._failures.pop(change.name, None)
            self.schedules[change.name] = change
            self._agenda.put(change.name, now)
            return
        self.schedules.pop(change.name, None)
        self._agenda.drop(change.name)
        self.buffered.discard(change.name)
        self.pending.discard(change.name)
        if isinstance(change, Gone):
            left = pending_fire(self._kept(change.name) or _NOTHING)
            if left is not None:
                self.left[change.name] = left
            self._texts.pop(change.name, None)
            self._lost.pop(change.name, None)
            self._failures.pop(change.name, None)
            self._held_up.pop(change.name, None)
            self.gone.add(change.name)
            if self.problems.pop(change.name, None) is not None:
                self.said[change.name] = None
        else:
            self.trouble(change.name, change.text)

    def trouble(self, name: str, text: str) -> None:
        """Say once what is wrong with a schedule."""
        if self.problems.get(name) != text:
            self.problems[name] = self.said[name] = text
            logger.error("schedule %r: %s", name, text, extra={"schedule": name})

    def is_paused(self, name: str, now: float) -> bool:
        pause = self.paused.get(name)
        return pause is not None and (pause.until is None or now < max(pause.until, self._held_up.get(name, now)))

    # --- what is to be done -----------------------------------------------------------------------------

    def next_due(self) -> float | None:
        return self._agenda.next()

    def due(self, now: float, *, most: int) -> list[Plan]:
        """The next step of each schedule that is due, the earliest first; at most *most*."""
        plans: list[Plan] = []
        while len(plans) < most and (names := self._agenda.due(now, most - len(plans))):
            for name in names:
                plan = self.plan(name, now)
                if plan is not None:
                    plans.append(plan)
        self._written.clear()
        return plans

    def plan(self, name: str, now: float) -> Plan | None:
        """The next step of one schedule; ``None``: nothing is due, and it is on the agenda for when it is."""
        schedule = self.schedules.get(name)
        if schedule is None:
            return None
        text = self._texts.get(name, "")
        try:
            kept = self._kept(name)
            record = current(schedule, kept or self._lost.get(name), now)
            if record is not kept:
                return Plan(schedule, record, text, Begin())
            self._note(name, record)
            if record.done or record.pending is not None:
                return None
            began = time.monotonic()
            slots = schedule.when.slots(record.anchor)
            if isinstance(slots, Own):
                slots.now_is(now)
            step = decide(
                slots if schedule.is_unbounded else Between(slots, schedule.start, schedule.end),
                after=record.cursor,
                now=now,
                policy=schedule.policy,
                offset=partial(offset_of, name, jitter=schedule.policy.jitter),
                paused=self.is_paused(name, now),
                skip=skip.slot if (skip := self.skips.get(name)) else None,
            )
        except Exception as problem:  # noqa: BLE001 - a schedule class of a user's may raise anything
            self.failed(name, f"its next slot cannot be found ({cause(problem)}).", now)
            return None
        if isinstance(step, Wait):
            self._agenda.put(name, step.until)
            if isinstance(slots, Own):
                self._spare_others(name, now, time.monotonic() - began)
            return None
        if isinstance(step, Fire) and (waiting := buffered_fire(record)) is not None:
            # First come, first served: once the run before is over, the slot that waited is fired, not this one.
            return Plan(schedule, record, text, waiting, buffered=True, behind=step)
        return Plan(schedule, record, text, step)

    def _spare_others(self, name: str, now: float, took: float) -> None:
        """A class of a user's that takes its time to say when it is due holds all schedules up: ask it less often."""
        due = self._agenda.when(name)
        if took >= SLOW and due is not None:
            self.trouble(name, "its schedule class takes long to say when it is due; it is asked less often.")
            self._agenda.put(name, max(due, now + min(SPARED * took, _AGAIN_AT_MOST)))

    def plan_buffered(self, name: str) -> Plan | None:
        """Fire the slot that waited for the run before it; asked again and again, as that may have ended.

        Not while another slot is pending: one at a time is published.
        """
        return self._waiting(name, self.buffered, buffered_fire, buffered=True)

    def plan_pending(self, name: str) -> Plan | None:
        """Publish the slot again whose message is not known to have arrived."""
        return self._waiting(name, self.pending, pending_fire)

    def _waiting(
        self, name: str, names: set[str], of: Callable[[Record], Fire | None], *, buffered: bool = False
    ) -> Plan | None:
        schedule, record = self.schedules.get(name), self._kept(name)
        fire = None if schedule is None or record is None else of(record)
        if schedule is None or record is None or fire is None:
            names.discard(name)
            return None
        self._note(name, record)
        if buffered and record.pending is not None:
            return None
        return Plan(schedule, record, self._texts[name], fire, buffered=buffered)

    # --- what became of it ------------------------------------------------------------------------------

    def before(self, plan: Plan) -> Record | None:
        """The record that Redis had, before what it answers to *plan*; ``None``: none that can be read.

        Another one than the plan's, if an answer that was lost has come to light since.
        """
        is_as_planned = self._texts.get(plan.name, "") == plan.text and not isinstance(plan.step, Begin)
        return plan.record if is_as_planned else self._kept(plan.name)

    def took(self, plan: Plan, text: str, now: float) -> Record | None:
        """Redis has this record now. It is returned, if it can be read."""
        self._texts[plan.name] = text
        record = self._kept(plan.name)
        self._lost.pop(plan.name, None)
        if isinstance(plan.step, Fire) and plan.step.catchup:
            self._agenda.put(plan.name, now + PACE)
        elif self.plan(plan.name, now) is not None:  # as a rule it waits, and is on the agenda for when it is
            self._agenda.put(plan.name, now)
        return record

    def succeeded(self, name: str) -> None:
        """It was fired: whatever kept it from that is over."""
        self._failures.pop(name, None)
        if self.problems.pop(name, None) is not None:
            self.said[name] = None

    def stale(self, name: str, text: str, now: float) -> None:
        """Redis had another record than this book: *text*. ``""``: none at all."""
        if not text and (known := self._kept(name)) is not None:
            self._lost[name] = known  # only the leader writes records; started afresh, it might fire slots again
        self._texts[name] = text
        self._agenda.put(name, now)

    def held_up(self, name: str, paused: Mapping[str, Pause], now: float) -> None:
        """Redis says that it is paused; *paused*: all that are, by the server's clock.

        Ours may be ahead of it. Then a pause that ends is not over before the server says so.
        """
        self.paused = paused
        if name in paused:
            self._held_up[name] = now + _AGAIN
            self._agenda.put(name, now)
        else:  # it was resumed just now, or nobody of ours has written it
            self._agenda.put(name, now + PACE)

    def failed(self, name: str, problem: str, now: float) -> None:
        """The step could not be taken; it is tried again, later each time. The others go on."""
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        self.trouble(name, problem)
        self._agenda.put(name, now + min(_AGAIN * 2 ** min(failures - 1, 10), _AGAIN_AT_MOST))

    def again(self, names: Iterable[str], now: float) -> None:
        """Decide these anew."""
        for name in names:
            if name in self.schedules:
                self._agenda.put(name, now)

    # --- records ------------------------------------------------------------------------------------------

    def text_of(self, record: Record) -> str:
        """What is to be kept of *record*."""
        text = record.text()
        self._written[text] = record
        return text

    def _kept(self, name: str) -> Record | None:
        text = self._texts.get(name)
        if not text:
            return None
        try:
            return self._written.get(text) or Record.parse(text)
        except ValueError as problem:
            logger.error("the record of schedule %r is damaged (%s); it starts afresh", name, problem)
            return None

    def _note(self, name: str, record: Record) -> None:
        for names, held in ((self.buffered, record.buffered), (self.pending, record.pending)):
            if held is None:
                names.discard(name)
            else:
                names.add(name)

    def unknown(self, now: float, *, older_than: float) -> list[str]:
        """Schedules that have a record in Redis and are not there any more, for so long."""
        found = []
        for name in self._texts.keys() - self.schedules.keys() - self.problems.keys():
            record = self._kept(name)
            if record is None or now - max(record.cursor, record.last_fired or 0.0) > older_than:
                found.append(name)
        return found

    def forget(self, names: Iterable[str]) -> None:
        """Redis has no record of these any more."""
        for name in names:
            self._texts.pop(name, None)
            self.gone.discard(name)
            self.left.pop(name, None)

    def done(self, among: Iterable[object] | None = None) -> list[tuple[Schedule, float]]:
        """One-offs that were fired, and when.

        Args:
            among: Of these schedules; ``None``: of all.
        """
        found = []
        for schedule in self.schedules.values() if among is None else among:
            if not isinstance(schedule, Schedule):
                continue
            record = self._kept(schedule.name) if schedule.one_off else None
            if record is not None and record.done and record.last_fired is not None and record.mark == schedule.mark:
                found.append((schedule, record.last_fired))
        return found
