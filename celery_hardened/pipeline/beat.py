"""Life of a beat. The order of the steps is the safety property.

::

    1. lead?     only inside the trust window of our own lease; else stand by, and say why
    2. open      new leader: clock, records, schedules, pauses; what is half done is finished first
    3. look      edits of schedules, pauses and records by tools
    4. decide    each due schedule: fire, pass, wait (pure)
    5. fire      one script: still leader? record unchanged? not paused? no overlap? → record and message
    6. settle    revokes, slots that waited for another run, problems, forgotten schedules
    7. wait      until the next slot, a change, or the end of the lease; never longer than a second

Step 5 is refused by Redis, not by our clock, if another beat has led since. Kill the beat between any
two steps, and no slot is fired twice and none is lost: the record and the message are one write.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from celery import Celery
from celery.beat import Scheduler

from celery_hardened.beat.clock import SteadyClock
from celery_hardened.beat.config_source import ConfigSource
from celery_hardened.beat.leader import Leadership
from celery_hardened.beat.names import Keys
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.record import latest_slot
from celery_hardened.beat.skip_store import SkipStore
from celery_hardened.beat.source import Source
from celery_hardened.beat.standing import Standing
from celery_hardened.beat.store import BeatStore, NotLeaderError
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.pipeline.beat_book import Book
from celery_hardened.pipeline.beat_broker import are_together
from celery_hardened.pipeline.beat_fire import Firing
from celery_hardened.pipeline.beat_message import BeatMessages
from celery_hardened.pipeline.beat_metrics import BeatMetrics
from celery_hardened.pipeline.beat_one_step import RedisFiring
from celery_hardened.pipeline.beat_refusal import refusal_of
from celery_hardened.pipeline.beat_settle import Settling
from celery_hardened.pipeline.beat_two_step import TwoStepFiring
from celery_hardened.settings import Settings

logger = logging.getLogger("celery_hardened.beat")

#: Seconds. Nothing is waited for longer: the shortest a pause or an edit is seen late.
LOOK = 1.0

#: Seconds between two lines about a Redis that lets us lead and not fire.
SAY_AGAIN = 60.0

#: Seconds. A beat that leads and cannot read its schedules for so long lets another one lead for as long.
UNREAD = 10.0

#: Steps of one script call. Redis serves nobody else meanwhile: some milliseconds.
BATCH = 100

#: Script calls of one turn.
BATCHES = 20


class HardenedScheduler(Scheduler):  # type: ignore[misc]
    """``celery -A proj beat -S hardened``: ``beat_schedule``, by as many beats as you like; one leads.

    Celery calls ``tick`` in a loop, and ``close`` at the end: from its signal handler first, in the
    midst of a tick, and once more when that has unwound.

    Raises:
        ConfigurationError: The app was never hardened, or has no Redis to keep records in.
    """

    def __init__(self, app: Celery, *args: Any, lazy: bool = False, **options: Any) -> None:
        self.hardening = Hardening.expect(app)
        # Refused here: Celery has not yet turned what is printed, a traceback too, into lines of its log.
        logger.debug("records in %r", self.hardening.redis)
        self._in_tick = False
        self._ends = False
        super().__init__(app, *args, lazy=lazy, **options)

    def setup_schedule(self) -> None:
        """Nothing is read or connected yet: an embedded beat is made before its process is forked."""

    def source(self) -> Source:
        """Where the schedules are kept."""
        return ConfigSource(self.app, defaults=policy_of(self.hardening.settings))

    @cached_property
    def beat(self) -> Beat:
        return Beat(self.hardening, self.source())

    def tick(self, *_: Any, **__: Any) -> float:
        """One turn of the beat; it waits by itself, so that it can be woken. Always 0: call again at once."""
        self._end_if_asked()
        self._in_tick = True
        try:
            self.beat.turn(most=min(LOOK, self.max_interval))
        finally:
            self._in_tick = False
        self._end_if_asked()
        return 0.0

    def _end_if_asked(self) -> None:
        """What the signal handler raised is lost if it was in a destructor: each result of Celery's has one."""
        if self._ends:
            raise SystemExit

    def should_sync(self) -> bool:
        return False

    def close(self) -> None:
        """Let go of the lead, so that a standby has it at once."""
        self._ends = True
        if "beat" not in self.__dict__:
            return
        if self._in_tick:
            self.beat.ends = True
        else:
            self.beat.close()
            super().close()

    @property
    def schedule(self) -> dict[str, Any]:
        """Celery's own view, for its remote control: the names that this beat fires."""
        return dict(self.beat.book.schedules) if "beat" in self.__dict__ else {}

    @property
    def info(self) -> str:
        return f"    . records -> {self.hardening.prefix}:{{beat}} in Redis"


def policy_of(settings: Settings) -> Policy:
    """The policy of a schedule that says nothing itself."""
    return Policy(
        missed_run=settings.beat_missed_run,
        catchup_window=settings.beat_catchup_window,
        max_catchup=settings.beat_max_catchup,
        grace=settings.beat_grace,
        overlap=settings.beat_overlap,
    )


class Beat:
    """One beat process, leading or standing by."""

    def __init__(self, hardening: Hardening, source: Source) -> None:
        settings = hardening.settings
        self.hardening = hardening
        self.source = source
        self.book = Book()
        self.metrics = BeatMetrics(self)
        self.clock = SteadyClock(time.time, time.monotonic)
        self.keys = Keys(hardening.prefix)
        self.store = BeatStore(hardening.redis, self.keys, history=settings.beat_history)
        self.skips = SkipStore(hardening.redis, self.keys)
        self._awake = threading.Event()
        self.leadership = Leadership(
            hardening.redis,
            self.keys,
            ttl=settings.beat_ttl,
            identity={"host": socket.gethostname(), "pid": os.getpid(), "app": hardening.app.main},
            changed=self._awake.set,
            said=self.metrics.lead,
            stalled_exit=60.0,
        )
        self._leads: Standing | None = None
        self._told_to_lead = False
        self._settled = self._opened_at = 0.0
        self._stamp: int | None = None
        self._opened = False
        self._brought_back = 0
        self._said_away: float | None = None
        self._away_at = 0.0
        self.ends = False
        """The turn is to end soon."""

    # --- the turn ---------------------------------------------------------------------------------------

    def turn(self, *, most: float) -> None:
        """One turn. Waits at its end, for *most* seconds at most. Raises nothing that can be waited out."""
        if not self._opened:
            self._opened = True
            self.metrics.open()
            self.source.open(self._awake.set)
            self.leadership.start()
        now = self.clock.now()
        self.leadership.touch(now)
        self.metrics.ticked()
        standing = self.leadership.standing()
        if standing != self._leads or self.clock.times_brought_back != self._brought_back:
            self._stand_by()
        if standing is None:
            self._wait(most)
            return
        try:
            if self._leads is None:
                self._open(standing)
            self._look(standing)
            until = self._fire(standing)
            self._answers()
        except NotLeaderError:
            self.leadership.refused(standing)
            self._stand_by()
            until = None
        except StoreUnavailableError as problem:
            self._does_not_answer(problem)
            until = self.clock.now() + LOOK / 2
        except Exception:
            # Not foreseen, and no reason to fire nothing at all: the next turn begins anew.
            logger.exception("this turn of the beat failed; the next one comes in %g s", LOOK)
            until = self.clock.now() + LOOK
        self._wait(most if until is None else min(most, until - self.clock.now()))

    def _does_not_answer(self, problem: StoreUnavailableError) -> None:
        # Not twice a second: a user without a right, or a full server, is a matter of minutes.
        self._away_at = time.monotonic()
        if self._said_away is None or time.monotonic() - self._said_away >= SAY_AGAIN:
            self._said_away = time.monotonic()
            logger.error("nothing is fired until Redis answers: %s", problem)

    def _answers(self) -> None:
        # Not each turn asks it for what it refused.
        if self._said_away is not None and time.monotonic() - self._away_at >= 3 * LOOK:
            self._said_away = None
            logger.warning("Redis answers, schedules are fired again")

    def _stand_by(self) -> None:
        if self._told_to_lead:
            self._told_to_lead = False
            self.source.lead(False)
        if self._leads is not None:
            self._leads = None
            self.book = Book()

    def _open(self, standing: Standing) -> None:
        """Begin to lead: what the leader before us knew is in Redis, all of it."""
        self._told_to_lead = True
        self.source.lead(True)
        self._stamp = self.leadership.stamp  # before what it is the stamp of
        texts, paused, skips = self.store.records(), self.store.paused(), self.skips.skips()
        self.leadership.touch(self.clock.now())
        self._begin_no_earlier(texts)
        loaded = self.source.load()
        now = self.clock.now()
        self.leadership.touch(now)
        self.book = Book(partial(refusal_of, hardening=self.hardening))
        self.book.problems = {name: problem.text for name, problem in self.store.problems().items()}
        self.book.skips = skips
        self.book.open(loaded, texts, paused, now)
        self.leadership.touch(self.clock.now())
        self._tell_done(loaded)
        self.firing = firing_for(self)
        self._settling = Settling(self)
        self._leads, self._opened_at = standing, time.monotonic()
        self._brought_back = self.clock.times_brought_back
        self.metrics.known(self.book.schedules)
        logger.info("%d schedules, term %d", len(self.book), standing.term)

    def _tell_done(self, schedules: Sequence[object]) -> None:
        """The beat that fired a one-off may not have come to say so to where it is kept, which may have been away."""
        for schedule, at in self.book.done(schedules):
            self.source.fired(schedule, at=at)

    def _begin_no_earlier(self, texts: Mapping[str, str]) -> None:
        """The clock does not begin before what earlier leaders' clocks have shown: by their last renewal, and by
        the slots they fired since."""
        marks = [mark for mark in (self.leadership.clock_mark, latest_slot(texts.values())) if mark is not None]
        if marks and not self.clock.start_at_least(max(marks)):
            logger.error(
                "slots up to %.0f were decided by a clock more than a day ahead of this host's (%.0f); its schedules "
                "start from now. Set the clocks right",
                max(marks),
                self.clock.now(),
            )

    def _look(self, standing: Standing) -> None:
        """What was changed by others since the last look."""
        if not self.source.is_ready() and time.monotonic() - self._opened_at > UNREAD:
            # Another host may read what this one cannot. Where there is none, this one tries again.
            logger.error("its schedules cannot be read: this beat lets another one lead")
            self.leadership.pass_on(standing, "its schedules could not be read", pause=UNREAD)
            self._stand_by()
            return
        now = self.clock.now()
        changes = self.source.changes()
        for number, change in enumerate(changes):
            if number % 1000 == 999:  # all rows, if they could not be read when it began to lead
                self.leadership.touch(self.clock.now())
            self.book.change(change, now)
        if changes:
            self.metrics.known(change.name for change in changes if change.name in self.book.schedules)
        self._tell_done(changes)
        self._settling.forget_gone(standing)
        stamp = self.leadership.stamp
        if stamp != self._stamp:
            before, self.book.paused = self.book.paused, self.store.paused()
            self.book.skips = self.skips.skips()  # a coming slot is on the agenda already
            self.book.again(before.keys() | self.book.paused.keys(), now)
            self._stamp = stamp
        if time.monotonic() - self._settled >= LOOK:
            self._settled = time.monotonic()
            self._settling.settle(standing)

    def _fire(self, standing: Standing) -> float | None:
        """Take the steps that are due; when the next one will be. Not so many that nobody looks meanwhile."""
        for _ in range(BATCHES):
            plans = self.book.due(self.clock.now(), most=BATCH)
            if not plans:
                break
            self.firing.carry_out(standing, plans)
            self.leadership.touch(self.clock.now())
            if self.leadership.standing() != standing or self.ends:
                break
        return self.book.next_due()

    def _wait(self, seconds: float) -> None:
        if seconds > 0 and not self.ends:
            self._awake.wait(seconds)
        self._awake.clear()

    def close(self) -> None:
        """Let go of the lead and of the source. Twice changes nothing."""
        self.leadership.release()
        if self._opened:
            self._opened = False
            self.source.lead(False)
            self.source.close()
            self.leadership.stop()
            self.metrics.close()


def firing_for(beat: Beat) -> Firing:
    """How this app's schedules are fired: in one write where its queues lie beside the records."""
    if are_together(beat.hardening):
        return RedisFiring(beat, BeatMessages(beat.hardening.app, beat.hardening))
    return TwoStepFiring(beat)
