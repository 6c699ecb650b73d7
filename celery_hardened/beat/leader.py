"""Who of several beats leads: one thread that stands for election, renews, and lets go.

A leader acts only while ``standing()`` answers: that is inside a window of its own
monotonic clock, which ends before the lease in Redis can. What it then does is
refused by Redis all the same if somebody else leads by now: the window spares
work, the owner token is what protects.

Nothing starts before ``start()``, so that a beat may be forked before it.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from redis import Redis

from celery_hardened import lease_clock
from celery_hardened.beat.leader_gone import Gone
from celery_hardened.beat.leader_stall import Stall
from celery_hardened.beat.leader_store import Holder, LeaderStore, Taken, own_connection
from celery_hardened.beat.leader_words import Words
from celery_hardened.beat.names import Keys
from celery_hardened.beat.standing import Held, Standing
from celery_hardened.errors import StoreUnavailableError

logger = logging.getLogger("celery_hardened.beat")

#: Part of a lease that is not trusted: clocks of two machines run differently fast, and a thread may be interrupted.
MARGIN = 0.1

#: Renewals in one lease, at least.
RENEWALS = 3

#: Seconds between two renewals at most: the stamp is read with them, and a lost connection is noticed.
EVERY = 0.4

#: Seconds between two looks of a standby. Longer than ``EVERY``: a leader that reconnects is back by the second one.
POLL = 0.5

#: Part by which a look may come later, so that standbys do not come together.
JITTER = 0.2

#: Seconds between two tries while Redis does not answer.
AGAIN = 0.2

#: Exit code of a beat whose main loop is dead: "temporary failure" of sysexits.h.
EXIT_STALLED = 75


class Leadership:
    """The part of one beat in the election. One for each process; its main loop calls ``touch`` and ``standing``.

    Args:
        client: Where the leadership is kept. Connections of our own are made to the same place.
        ttl: Seconds of the lease.
        identity: For people: host, pid, app.
        changed: Called from the thread whenever ``standing()``, ``reachable`` or ``stamp`` changed. When a window of
            trust ends while Redis does not answer, it is called late: ask ``standing()`` before each act.
        stalled_after: Seconds without ``touch`` after which the lead is let go.
        stalled_exit: Seconds without it after which the process ends, with exit code 75. ``None``: never.
        said: See ``Words``. Called from the thread.
    """

    def __init__(
        self,
        client: Redis,
        keys: Keys,
        *,
        ttl: float,
        identity: Mapping[str, str | int | None],
        changed: Callable[[], None],
        monotonic: Callable[[], float] = lease_clock.now,
        stalled_after: float = 10.0,
        stalled_exit: float | None = None,
        said: Callable[[bool, int, str], object] | None = None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._ttl = ttl
        self._identity = dict(identity)
        self._changed = changed
        self._monotonic = monotonic
        self._timeout = ttl / RENEWALS
        self._every = min(self._timeout, EVERY)
        # The socket's time-out must not come before the end of the wait.
        self._poll = min(POLL, self._timeout / 2)
        self._stall = Stall(monotonic, after=stalled_after, exit_after=stalled_exit, step=min(ttl, stalled_after / 2))
        self._dice = random.Random()

        # Reentrant, and never held during I/O: a signal handler may release in the middle of anything.
        self._lock = threading.RLock()
        # Its put() may be called by a signal handler, other than Event.set().
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._resigned = False
        self._stopped = False

        self._held: Held | None = None
        self._candidate = ""
        self._taken: Taken | None = None
        self._lost = (0, "")
        self._words = Words(said)
        self._said_stamp: int | None = None
        self._id = ""
        self._highest = 0
        self._not_before = 0.0
        self._clock: float | None = None

        self.reachable = False
        """Redis answered the last time it was asked."""
        self.problem: str | None = "Redis was not asked yet"
        """Why it is not reachable."""
        self.server_ahead: float | None = None
        """Seconds by which the server's clock is ahead of this host's."""
        self.stamp: int | None = None
        """Counter of changes by tools, as of the last renewal; at most ``EVERY`` old while Redis answers."""
        self.clock_mark: float | None = None
        """What the clock of the leader before said last, found when the lead was taken. Kept for ``KEEP`` seconds."""
        self.holder: Mapping[str, object] | None = None
        """Identity of who leads, while we stand by."""

    # --- of the main loop, and of signal handlers --------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. A second call does nothing."""
        if self._thread is not None:
            return
        connect = partial(own_connection, self._client, timeout=self._timeout)
        self._store = LeaderStore(connect(), self._keys, ttl=self._ttl)
        # Another connection: the thread's may be waiting for an answer when we let go.
        self._way_out = LeaderStore(connect(tries=1), self._keys, ttl=self._ttl)
        self._gone = Gone(self._store, self._monotonic, ttl=self._ttl, after=self._poll)
        self._stall.restart()
        self._thread = threading.Thread(target=self._run, name="celery-hardened-leader", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as problem:  # at the end of the interpreter, or of the machine's threads
            logger.error("this beat cannot lead: %s", problem)
            self.problem = str(problem)

    def standing(self) -> Standing | None:
        """The proof of leading, while that is certain: up to ``MARGIN`` of a lease before it could end."""
        held = self._held
        return held.standing if held is not None and self._monotonic() < held.until else None

    @property
    def term(self) -> int:
        """The latest that is known, whosever it is; 0: none."""
        return self._highest

    def touch(self, now: float | None = None) -> None:
        """The main loop lives.

        Args:
            now: Its clock, kept in Redis with the next renewal: the next leader's clock begins no earlier.
        """
        if now is not None:
            self._clock = now
        if self._stall.touch():
            logger.warning("the main loop is back: this beat stands by again")
            self._wake.put(None)

    def refused(self, standing: Standing) -> None:
        """A script said that *standing* is not the leader's: stand by at once."""
        if self._lose(standing, "Redis refused its step: another beat leads, or its lease had run out"):
            self._wake.put(None)

    def pass_on(self, standing: Standing, because: str, *, pause: float) -> None:
        """Let go, for a standby that is better off, and stand for election again in *pause* seconds."""
        if self._lose(standing, because):
            self._not_before = self._monotonic() + pause
            self._let_go(self._way_out, standing.owner)

    def release(self) -> None:
        """Let go, and stand for election no more. May be called twice, and by a signal handler."""
        with self._lock:
            self._resigned = True
            held, self._held = self._held, None
            owner = held.standing.owner if held is not None else self._candidate
            self._candidate = ""  # asked for once: a server that is away is not waited for again
            self._lost = self._lost if held is None else (held.standing.term, "it let go")
        if owner:
            self._let_go(self._way_out, owner)

    def stop(self) -> None:
        """Release, and end the thread."""
        self.release()
        self._stopped = True
        self._wake.put(None)
        if self._thread is not None and self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(2 * self._timeout + self._poll)  # as long as a request under way, and its repetition

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped:
            try:
                pause = self._round()
                self._tell()
            except Exception:
                logger.exception("the election of the leading beat goes on")
                pause = AGAIN
            self._wait(pause)
        self._tell()

    def _wait(self, seconds: float) -> None:
        with suppress(Empty):
            if seconds > 0:
                self._wake.get(timeout=seconds)
            while True:
                self._wake.get_nowait()

    def _round(self) -> float:
        """One step; seconds until the next."""
        stalled = self._stall.look()
        if stalled:
            self._judge_stall()
        held = self._held
        try:
            if held is not None:
                return self._renew(held)
            if stalled or self._resigned or self._monotonic() < self._not_before:
                return self._poll
            return self._stand()
        except StoreUnavailableError as problem:
            self.reachable, self.problem = False, str(problem)
            self._gone.forget()
            return AGAIN

    def _renew(self, held: Held) -> float:
        standing = held.standing
        for _ in range(2):
            # Taken before the request leaves: the lease cannot begin sooner.
            sent, wall = self._monotonic(), time.time()
            answer = self._store.renew(standing.owner, client=self._id, clock=self._clock, idle=self._stall.idle())
            self._answered(answer.server, wall)
            self.stamp = answer.stamp
            if not answer.held:
                self._lose(standing, "its lease had run out, or another beat took the lead")
                return 0.0
            with self._lock:
                if self._held is not None and self._held.standing == standing:
                    self._held = replace(self._held, until=self._trusted(sent))
            if not self._reconnected():
                break
        return self._every

    def _stand(self) -> float:
        """Stand for election, or wait for the next one."""
        # Kept until it is answered: a lead whose answer was lost is ours, and only under this token.
        owner = self._candidate = self._candidate or uuid.uuid4().hex
        sent, wall = self._monotonic(), time.time()
        answer = self._store.acquire(owner, client=self._id, identity=self._identity, seen=self._highest)
        self._answered(answer.server, wall)
        self._highest = max(self._highest, answer.term)
        if isinstance(answer, Holder):
            self._candidate = ""
            return self._stand_by(answer)
        self._take(owner, answer, sent)
        # Its id is recorded at once: until then only the end of the lease tells that we died.
        return 0.0 if self._reconnected() else self._every

    def _take(self, owner: str, taken: Taken, sent: float) -> None:
        with self._lock:
            self._candidate = ""
            resigned = self._resigned
            if not resigned:
                self._taken, self.clock_mark, self.stamp, self.holder = taken, taken.mark, taken.stamp, None
                self._held = Held(Standing(owner, taken.term), self._trusted(sent))
        if resigned:  # while Redis was asked
            self._let_go(self._store, owner)
        self._tell()

    def _stand_by(self, holder: Holder) -> float:
        self.holder = holder.identity
        self._words.stands_by(holder, self._identity.get("app"))
        self._tell()
        if not (self._gone.is_gone(holder) and self._store.depose(holder.owner, client=holder.client)):
            self._store.wait_for_release(self._poll * (1 + JITTER * self._dice.random()))
        return 0.0

    # --- what became of it -----------------------------------------------------------------------------------------

    def _trusted(self, sent: float) -> float:
        return sent + self._ttl * (1 - MARGIN)

    def _reconnected(self) -> bool:
        """Is the connection another one than the last step told Redis?"""
        known, self._id = self._id, self._store.client_id()
        return self._id != known

    def _lose(self, standing: Standing, because: str) -> bool:
        with self._lock:
            if self._held is None or self._held.standing != standing:
                return False
            self._held, self._lost = None, (standing.term, because)
            return True

    def _let_go(self, store: LeaderStore, owner: str) -> None:
        try:
            store.release(owner)
        except StoreUnavailableError as problem:
            logger.warning("the lead could not be given back, it ends with its lease (%g s): %s", self._ttl, problem)
        except BaseException:  # a second signal in its midst; to repeat it changes nothing
            with suppress(StoreUnavailableError):
                store.release(owner)
            raise

    def _judge_stall(self) -> None:
        held = self._held
        silent = self._stall.silent
        if held is not None and self._lose(held.standing, f"its main loop has been silent for {silent:.0f} s"):
            logger.error("the main loop of this beat has been silent for %.0f s: it lets go of the lead", silent)
            self._let_go(self._store, held.standing.owner)
        if self._stall.is_over:
            logger.critical("the main loop of this beat has been silent for %.0f s: the process ends", silent)
            os._exit(EXIT_STALLED)

    def _answered(self, server: float, sent: float) -> None:
        """Redis answered; *server* is its time, and *sent* this host's when it was asked."""
        self.reachable, self.problem = True, None
        self.server_ahead = server - (sent + time.time()) / 2
        self._words.clocks(self.server_ahead)

    def _tell(self) -> None:
        """Say what changed since it was last said."""
        standing = self.standing()
        news = self._words.reachable(self.problem)
        term = standing.term if standing else None
        news |= self._words.lead(term, taken=self._taken, lost=self._lost, wanted=self._resigned)
        news |= self.stamp != self._said_stamp
        self._said_stamp = self.stamp
        if news:
            self._changed()
