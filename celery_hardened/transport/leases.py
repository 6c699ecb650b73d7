"""What this process holds of a Redis broker, and the one thread that keeps it.

Deliveries outlive the channel they came through: after a lost connection a running
task keeps its lease, and its ack goes through here. A message is

- *held* from the fetch on; not started, it goes back at once and unmarked when its channel closes;
- *started* from the moment it is handed to the pool; only its ack, a reject, or the end of this
  process ends it;
- *lost* when its lease ran out all the same: somebody else has it, and nothing done here touches that.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.transport.policy import RENEWALS, may_renew
from celery_hardened.transport.scripts import DeliveryScripts

logger = logging.getLogger("celery_hardened.transport")

#: Seconds between two sweeps of one worker; all of them together sweep a few times a second.
SWEEP_EVERY = 1.0
#: Sooner after anybody's sweep, a sweep does nothing.
SWEEP_GAP = 0.3
#: Seconds without any sweep after which leases get grace (see sweep.lua).
PAUSE = 3.0
GRACE = 5.0
PAGE = 1000
#: Seconds an abandoned consumer's list stays known.
KEEP = 3600.0

#: Seconds between two looks for malformed messages of others.
MALFORMED_EVERY = 30.0


def _nothing(*_: object) -> None:
    """What a process does that is no worker."""


def _nothing_runs() -> bool:
    return False


@dataclass(slots=True)
class Lease:
    """One delivery that this process holds."""

    tag: str
    queue: str
    consumer: str
    fence: int
    started: bool = False


@dataclass(slots=True)
class Callbacks:
    """What the rest of the package does about it."""

    lost: Callable[[Lease], None] = _nothing
    """A started delivery's lease ran out: it may run elsewhere at this moment."""

    bury: Callable[[str, str, bytes], None] = _nothing
    """Write the dead letter of an item that is no message. May raise ``StoreUnavailableError``."""

    restore: Callable[[str], None] = _nothing
    """Put back a delivery that kombu's own code made and abandoned."""

    working: Callable[[], bool] = _nothing_runs
    """Does a task run that is within its time limit?"""

    watch: Callable[[], None] = _nothing
    """Called about once a second, after everything else."""


class Leases:
    """The deliveries of one process. Threads and greenlets may share it; a forked child starts empty.

    Args:
        lease: Seconds a delivery stays ours without renewal.

        visibility: Seconds after which deliveries of kombu's own transport count as abandoned.
    """

    def __init__(self, scripts: DeliveryScripts, *, lease: float, visibility: float, on: Callbacks) -> None:
        self._scripts = scripts
        self.lease = lease
        self.visibility = visibility
        self._on = on
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._held: dict[str, Lease] = {}
        self._acks: deque[str] = deque()
        self._returns: deque[_Return] = deque()
        self._lists: set[str] = set()
        self._left: set[str] = set()
        self._renewed = self._swept = self._looked = 0.0
        self._loop_turned = time.monotonic()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False
        self.malformed = False
        """Something was set aside just now."""

    def _here(self) -> None:
        """A forked child must neither renew, ack nor give back what its parent holds."""
        if self._pid != os.getpid():
            self._forget()

    def use(self, scripts: DeliveryScripts) -> None:
        """Go on through another connection: the broker has failed over to another address."""
        self._scripts = scripts

    # --- deliveries ----------------------------------------------------------------------------

    def take(self, leases: Iterable[Lease]) -> None:
        """They were leased by a fetch just now."""
        self._here()
        for lease in leases:
            self._held[lease.tag] = lease
        self._run()

    def start(self, tag: str) -> bool:
        """It is about to run. ``False``: it must not, it is not ours any more."""
        self._here()
        if time.monotonic() - self._renewed > self.lease and tag in self._held:
            # This process stood still for longer than a lease: ask before, not after.
            try:
                self._renew([tag])
            except StoreUnavailableError as problem:
                logger.warning("lease of %s could not be checked before its start: %s", tag, problem)
        with self._lock:
            lease = self._held.get(tag)
            if lease is None:
                return False
            lease.started = True
            return True

    def holds(self, tag: str) -> bool:
        self._here()
        return tag in self._held

    def ack(self, tag: str, *, ride: bool) -> None:
        """It is done. *ride*: its channel's next fetch, which is due at once, will say so."""
        self._here()
        with self._lock:
            if self._held.pop(tag, None) is None:
                return  # lost: its entry is somebody else's, or gone
            self._acks.append(tag)
        if not ride:
            self.flush()

    def riding(self, limit: int) -> list[str]:
        """Take up to *limit* acks along. The caller hands them back with ``unsent`` if that fails."""
        acks = self._acks
        out: list[str] = []
        while acks and len(out) < limit:
            try:
                out.append(acks.popleft())
            except IndexError:  # another thread was faster
                break
        return out

    def unsent(self, tags: Sequence[str]) -> None:
        self._acks.extendleft(reversed(tags))

    @property
    def unsent_acks(self) -> int:
        return len(self._acks)

    def flush(self) -> None:
        """Send all acks now. What cannot be sent stays, leased, for the thread to try again."""
        tags = self.riding(len(self._acks))
        if not tags:
            return
        try:
            self._scripts.end(tags)
        except StoreUnavailableError as problem:
            self.unsent(tags)
            logger.warning("%s acknowledgements are sent later: %s", len(tags), problem)

    def give_back(self, tags: Sequence[str], *, last: bool = False) -> None:
        """End deliveries; others may take their messages. What cannot be sent now is sent later."""
        self._here()
        with self._lock:
            found = [lease for tag in tags if (lease := self._held.pop(tag, None)) is not None]
        for started in (True, False):
            some = [lease.tag for lease in found if lease.started is started]
            if some:
                self._returns.append(_Return(some, started=started, last=last))
        self._send_returns()

    def give_back_of(self, consumer: str) -> int:
        """A channel closes: what it brought and nobody started goes back, in the old order. How many."""
        self._here()
        tags = [lease.tag for lease in list(self._held.values()) if lease.consumer == consumer and not lease.started]
        self.give_back(tags)
        return len(tags)

    def delay(self, waits: Sequence[tuple[str, str, float]]) -> None:
        """Let deliveries wait in Redis: tag, tag to wait under, seconds.

        Raises:
            StoreUnavailableError: They are held still.
        """
        self._here()
        self._scripts.delay(waits)
        for tag, _, _ in waits:
            self._held.pop(tag, None)

    def set_aside(self, tag: str, queue: str, raw: bytes) -> None:
        """This process cannot read it: it becomes a dead letter. Raises ``StoreUnavailableError``: it is held still."""
        self._here()
        self._scripts.set_aside(tag, queue, raw)
        self._held.pop(tag, None)
        self.malformed = True

    def waiting(self, lists: Sequence[str]) -> int:
        """Messages in queue *lists*. Raises ``StoreUnavailableError``."""
        return self._scripts.length(lists)

    def never_arrived(self, tags: Sequence[str]) -> None:
        """The answer of a fetch was lost: whatever it leased under *tags* goes back."""
        self._here()
        self._returns.append(_Return(list(tags), started=False, last=False))
        self._run()

    # --- own lists -------------------------------------------------------------------------------

    def enter(self, member: str) -> None:
        """A consumer is about to wait with an own list: from now on it is known, and swept should we die."""
        self._here()
        if member in self._lists:
            return
        self._left.discard(member)
        self._scripts.renew((), lists=[member], lease=self.lease)
        self._lists.add(member)
        self._run()

    def leave(self, members: Iterable[str]) -> None:
        """Its channel closes."""
        self._here()
        self._left.update(self._lists.intersection(members))
        self._lists.difference_update(self._left)
        self._send_returns()

    # --- the thread --------------------------------------------------------------------------------

    def turned(self) -> None:
        """The worker's loop is alive."""
        self._loop_turned = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since the worker's loop last turned."""
        return time.monotonic() - self._loop_turned

    def _run(self) -> None:
        if self._thread is None and not self._closed:
            self._renewed = time.monotonic()
            self._thread = threading.Thread(target=self._tick_for_ever, name="celery-hardened-leases", daemon=True)
            self._thread.start()

    def _tick_for_ever(self) -> None:
        # Jitter spreads the sweeps of many workers.
        pause = min(SWEEP_EVERY, self.lease / (2 * RENEWALS))
        while not self._closed:
            self._wake.wait(pause * random.uniform(0.8, 1.2))
            try:
                self._tick()
            except StoreUnavailableError as problem:
                logger.warning("leases are renewed later: %s", problem)
            except Exception:
                logger.exception("a round of the lease thread failed")

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._renewed >= self.lease / RENEWALS:
            if may_renew(silence=self.silence, lease=self.lease, working=self._on.working()):
                self._renew([*self._held, *self._acks])
                self._renewed = now
            elif self._held:
                logger.critical(
                    "this worker's loop has stood still for %.0f s and no task is within its time limit: "
                    "its messages are left to others",
                    self.silence,
                )
        self.flush()
        self._send_returns()
        if self._lists and now - self._swept >= 0.7 * SWEEP_EVERY:
            self._swept = now
            self._sweep()
        if self.malformed or now - self._looked >= MALFORMED_EVERY:
            self.malformed, self._looked = False, now
            self._bury_malformed()
        self._on.watch()

    def _renew(self, tags: Sequence[str]) -> None:
        lost = self._scripts.renew(tags, lists=sorted(self._lists), lease=self.lease)
        for tag in lost:
            with self._lock:
                lease = self._held.pop(tag, None)
            # No lease: it was acked between the list and the script.
            if lease is not None and lease.started:
                self._on.lost(lease)
            elif lease is not None:
                logger.info("%s was put back by somebody else before it started here", tag)

    def _send_returns(self) -> None:
        while self._returns:
            some = self._returns[0]
            try:
                self._scripts.give_back(some.tags, started=some.started, last=some.last)
            except StoreUnavailableError as problem:
                logger.warning("%s messages are given back later: %s", len(some.tags), problem)
                self._run()
                return
            self._returns.popleft()
        left = sorted(self._left)
        if left:
            try:
                self._scripts.release(left)
            except StoreUnavailableError as problem:
                logger.warning("own lists are left later: %s", problem)
                self._run()
                return
            self._left.difference_update(left)

    def _sweep(self) -> None:
        expired, due, abandoned = self._scripts.sweep(
            visibility=self.visibility,
            every=SWEEP_GAP,
            pause=PAUSE,
            grace=min(GRACE, self.lease),
            page=PAGE,
            keep=KEEP,
        )
        if expired:
            logger.warning("%s messages of workers that are gone were put back", expired)
        if due:
            logger.debug("%s delayed messages are due", due)
        for tag in abandoned:
            self._on.restore(tag)

    def _bury_malformed(self) -> None:
        for tag, queue, raw in self._scripts.malformed():
            self._on.bury(tag, queue, raw)
            self._scripts.forget_malformed(tag)

    def close(self) -> None:
        """This process ends: acks are sent, and what it still holds goes back, marked if it was started."""
        if self._pid != os.getpid() or self._closed:
            return
        self._closed = True
        self._wake.set()
        self.flush()
        self.give_back(list(self._held))
        self.leave(list(self._lists))


@dataclass(slots=True)
class _Return:
    tags: list[str] = field(default_factory=list)
    started: bool = False
    last: bool = False
