"""The one thread of a process that keeps its leases: it renews, sweeps, and does later what failed."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from celery_hardened import lease_clock
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.transport.leases import Lease, Leases
from celery_hardened.transport.policy import RENEWALS, may_renew

logger = logging.getLogger("celery_hardened.transport")

#: Seconds between two sweeps of one worker; all of them together sweep a few times a second.
SWEEP_EVERY = 1.0
#: Sooner after anybody's sweep, a sweep does nothing.
SWEEP_GAP = 0.3
#: Seconds without any sweep after which leases get grace (see sweep.lua).
PAUSE = 3.0
GRACE = 5.0
#: Entries that one sweep looks at: some 30 ms of the server's time. The next page follows at once, after a
#: pause in which others get their turn, but no longer than a renewal can wait.
PAGE = 500
SWEEP_BREATH = 0.02
SWEEP_LONGEST = 0.3
#: Seconds that an abandoned consumer's list stays known.
KEEP = 3600.0
#: Seconds after which a loop that does not turn counts as held up.
BLOCKED = 1.0
#: Seconds between two looks for malformed messages that other workers set aside.
MALFORMED_EVERY = 30.0
MALFORMED_PAGE = 100


def _nothing(*_: object) -> None:
    """What a process does that is no worker."""


def _no() -> bool:
    return False


@dataclass(slots=True)
class Callbacks:
    """What the rest of the package does about it."""

    lost: Callable[[Lease], None] = _nothing
    """A started delivery's lease ran out: it may run elsewhere at this moment."""

    bury: Callable[[str, str, bytes], None] = _nothing
    """Write the dead letter of an item that is no message: tag, queue, item. May raise ``StoreUnavailableError``."""

    working: Callable[[], bool] = _no
    """Does a task run that is within its time limit?"""

    stopping: Callable[[], bool] = _no
    """Was the process told to end?"""


class Keeper:
    """See the module. One of its rounds never ends another: what fails is logged and tried again.

    Args:
        visibility: Seconds after which deliveries of kombu's own transport count as abandoned.

        consuming: Does this process take messages? Then it sweeps.
    """

    def __init__(self, leases: Leases, *, visibility: float, consuming: Callable[[], bool], on: Callbacks) -> None:
        self._leases = leases
        self._consuming = consuming
        self._visibility = visibility
        self._on = on
        self.restore: Callable[[str], None] = _nothing
        """Put back a delivery that kombu's own code made and abandoned. May raise ``StoreUnavailableError``."""
        self.watch: Callable[[], None] = _nothing
        """Called about once a second, after everything else. May raise ``StoreUnavailableError``."""
        self._swept = self._looked = 0.0
        self._unburied: set[str] = set()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._dice = random.Random()  # its own: a task's body may have seeded the common one
        self._loop_turned = time.monotonic()

    def loop_turned(self) -> None:
        """The loop that consumes is alive."""
        self._loop_turned = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since the loop that consumes last turned."""
        return time.monotonic() - self._loop_turned

    def start(self) -> None:
        """Start the thread. It ends with the process, or with ``stop``."""
        # Not alive: in a process that was forked from the one with the thread.
        if (self._thread is None or not self._thread.is_alive()) and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="celery-hardened-leases", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        pause = min(SWEEP_EVERY, self._leases.lease / (2 * RENEWALS))
        # Jitter spreads the sweeps of many workers.
        while not self._stop.wait(pause * self._dice.uniform(0.8, 1.2)):
            for chore in (
                self._renew,
                self._send,
                self._empty_own_lists,
                self._sweep,
                self._bury,
                self.watch,
            ):
                try:
                    chore()
                except StoreUnavailableError as problem:
                    logger.warning("leases are kept later: %s", problem)
                except Exception:
                    logger.exception("a chore of the lease thread failed")

    def _renew(self) -> None:
        leases = self._leases
        if lease_clock.now() - leases.renewed < leases.lease / RENEWALS:
            return
        if may_renew(silence=self.silence, lease=leases.lease, working=self._on.working()):
            leases.renew()
        elif leases.held:
            logger.critical(
                "this worker's loop has stood still for %.0f s and no task is within its time limit: "
                "its messages are left to others",
                self.silence,
            )

    def _send(self) -> None:
        if self._on.stopping():
            # A stop may wait for a running task; what did not start need not.
            self._leases.give_back_of(None)
        self._leases.flush()
        self._leases.send_returns()

    def _empty_own_lists(self) -> None:
        """A task in the solo pool holds up the loop: what a wait has brought meanwhile is for others."""
        if self.silence >= BLOCKED:
            self._leases.empty_lists()

    def _sweep(self) -> None:
        now = time.monotonic()
        if not self._consuming() or now - self._swept < 0.7 * SWEEP_EVERY:
            return
        self._swept = now
        every = SWEEP_GAP
        while self._sweep_page(every) and not self._stop.wait(SWEEP_BREATH):
            every = 0.0

    def _sweep_page(self, every: float) -> bool:
        """One page; is there another?"""
        lease = self._leases.lease
        expired, due, abandoned, more = self._leases.scripts.sweep(
            visibility=self._visibility,
            every=every,
            pause=PAUSE,
            # The living renew every third of a lease; they all have to come round once.
            grace=min(lease, max(GRACE, lease / RENEWALS + 2 * SWEEP_EVERY)),
            page=PAGE,
            keep=KEEP,
        )
        if expired:
            logger.warning("%s messages of workers that are gone were put back", expired)
        if due:
            logger.debug("%s delayed messages are due", due)
        for tag in abandoned:
            try:
                self.restore(tag)
            except Exception as problem:  # noqa: BLE001 - one that cannot go back holds up no other
                logger.warning("an abandoned delivery stays where it is: %s", problem)
        return more and time.monotonic() - self._swept < SWEEP_LONGEST

    def _bury(self) -> None:
        now = time.monotonic()
        if not self._leases.malformed and now - self._looked < MALFORMED_EVERY:
            return
        if now - self._looked >= MALFORMED_EVERY:
            self._looked = now
            self._unburied.clear()
        self._leases.malformed = False
        items = self._leases.scripts.malformed(MALFORMED_PAGE, but=self._unburied)
        for tag, queue, raw in items:
            try:
                self._on.bury(tag, queue, raw)
            except StoreUnavailableError:
                raise
            except Exception:  # one that cannot be buried holds up no other
                logger.exception("no dead letter for the malformed item %s", tag)
                self._unburied.add(tag)
                continue
            self._leases.scripts.forget_malformed(tag)
        if len(items) == MALFORMED_PAGE:
            self._leases.malformed = True
