"""What this process holds of a Redis broker.

Deliveries outlive the channel they came through: after a lost connection a running
task keeps its lease, and its ack goes through here. A message is

- *held* from the fetch on; not started, it goes back at once and unmarked when its channel closes;
- *started* from the moment it is handed to the pool; only its ack, a reject, or the end of this
  process ends it;
- *lost* when its lease ran out all the same: somebody else has it, and nothing done here touches that.

``keeper.py`` has the thread that renews, and that does later what cannot be done now.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from celery_hardened import lease_clock
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.transport.scripts import DeliveryScripts

logger = logging.getLogger("celery_hardened.transport")


@dataclass(slots=True)
class Lease:
    """One delivery that this process holds."""

    tag: str
    queue: str
    consumer: str
    fence: int
    started: bool = False


@dataclass(frozen=True, slots=True)
class _Return:
    """Deliveries that go back together."""

    tags: list[str]
    started: bool
    last: bool


class Leases:
    """The deliveries of one process. Threads and greenlets may share it; a forked child starts empty.

    Args:
        lease: Seconds a delivery stays ours without renewal.

        lost: Told of a started delivery whose lease ran out: it may run elsewhere at this moment.

        wanted: Called when there is something to keep.
    """

    def __init__(
        self,
        scripts: DeliveryScripts,
        *,
        lease: float,
        lost: Callable[[Lease], None],
        wanted: Callable[[], None],
    ) -> None:
        self.scripts = scripts
        """Replaced when the broker has failed over to another address."""
        self.lease = lease
        self._lost = lost
        self._wanted = wanted
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._held: dict[str, Lease] = {}
        self._acks: deque[str] = deque()
        self._returns: deque[_Return] = deque()
        self._lists: set[str] = set()
        self._left: set[str] = set()
        self.renewed = lease_clock.now()
        """When all leases were prolonged last."""
        self.malformed = False
        """Something was set aside just now."""

    def _here(self) -> None:
        """A forked child must neither renew, ack nor give back what its parent holds."""
        if self._pid != os.getpid():
            self._forget()

    # --- deliveries ----------------------------------------------------------------------------

    def take(self, leases: Iterable[Lease]) -> None:
        """They were leased by a fetch just now."""
        self._here()
        with self._lock:
            self._held.update((lease.tag, lease) for lease in leases)
        self._wanted()

    def start(self, tag: str) -> bool:
        """It is about to run. ``False``: it must not, it is not ours any more."""
        self._here()
        if lease_clock.now() - self.renewed > self.lease:
            # This process stood still, or was cut off, for longer than a lease: ask before, not after.
            try:
                self.renew([tag])
            except StoreUnavailableError as problem:
                logger.warning("%s is not started, its lease may have run out: %s", tag, problem)
                self.give_back([tag])
        with self._lock:
            lease = self._held.get(tag)
            if lease is None:
                return False
            lease.started = True
            return True

    def holds(self, tag: str) -> bool:
        self._here()
        return tag in self._held

    def started(self, tag: str) -> bool:
        """Is it held, and was it handed to the pool?"""
        lease = self._held.get(tag)
        return lease is not None and lease.started

    @property
    def held(self) -> int:
        """How many deliveries are held, acknowledged ones not counted."""
        return len(self._held)

    def ack(self, tag: str, *, ride: bool) -> None:
        """It is done. *ride*: its channel's next fetch, which is due at once, will say so."""
        self._here()
        with self._lock:
            if self._held.pop(tag, None) is None:
                return  # lost: its entry is somebody else's, or gone
            self._acks.append(tag)
        if not ride:
            self.flush()

    @property
    def unsent_acks(self) -> int:
        return len(self._acks)

    def riding(self, limit: int) -> list[str]:
        """Take up to *limit* acks along. The caller hands them back with ``unsent`` if that fails."""
        with self._lock:
            return [self._acks.popleft() for _ in range(min(limit, len(self._acks)))]

    def unsent(self, tags: Sequence[str]) -> None:
        with self._lock:
            self._acks.extendleft(reversed(tags))

    def flush(self) -> bool:
        """Send all acks now. ``False``: they cannot be sent, stay leased, and are sent later."""
        tags = self.riding(len(self._acks))
        if not tags:
            return True
        try:
            self.scripts.end(tags)
        except StoreUnavailableError as problem:
            self.unsent(tags)
            logger.warning("%s acknowledgements are sent later: %s", len(tags), problem)
            return False
        return True

    def give_back(self, tags: Sequence[str], *, last: bool = False) -> None:
        """End deliveries; others may take their messages. What cannot be sent now is sent later."""
        self._here()
        with self._lock:
            found = [lease for tag in tags if (lease := self._held.pop(tag, None)) is not None]
        for started in (True, False):
            some = [lease.tag for lease in found if lease.started is started]
            if some:
                self._returns.append(_Return(some, started=started, last=last))
        self.send_returns()

    def give_back_of(self, consumer: str | None) -> int:
        """What one consumer brought, or all of them, and nobody started goes back, in the old order. How many."""
        self._here()
        with self._lock:
            tags = [one.tag for one in self._held.values() if consumer in (None, one.consumer) and not one.started]
            # In the same step: a pool's thread may start one meanwhile.
            for tag in tags:
                del self._held[tag]
            if tags:
                self._returns.append(_Return(tags, started=False, last=False))
        if tags:
            self.send_returns()
        return len(tags)

    def never_arrived(self, tags: Sequence[str]) -> None:
        """The answer of a fetch was lost: whatever it leased under *tags* goes back."""
        self._here()
        self._returns.append(_Return(list(tags), started=False, last=False))
        self._wanted()

    def delay(self, waits: Sequence[tuple[str, str, float]]) -> None:
        """Let deliveries wait in Redis: tag, tag to wait under, seconds.

        Raises:
            StoreUnavailableError: They are held still.
        """
        self._here()
        self.scripts.delay(waits)
        with self._lock:
            for tag, _, _ in waits:
                self._held.pop(tag, None)

    def set_aside(self, tag: str, queue: str, raw: bytes) -> None:
        """This process cannot read it: it becomes a dead letter. Raises ``StoreUnavailableError``: it is held still."""
        self._here()
        self.scripts.set_aside(tag, queue, raw)
        with self._lock:
            self._held.pop(tag, None)
        self.malformed = True

    # --- own lists -------------------------------------------------------------------------------

    def enter(self, member: str) -> None:
        """A consumer is about to wait with an own list: from now on it is known, and swept should we die.

        Raises:
            StoreUnavailableError: It is not known; nobody may wait with it.
        """
        self._here()
        if member in self._lists:
            return
        with self._lock:
            self._left.discard(member)
        self.scripts.renew((), lists=[member], lease=self.lease)
        with self._lock:
            self._lists.add(member)
        self._wanted()

    def leave(self, members: Iterable[str]) -> None:
        """Its channel closes; what still lies in the lists goes back."""
        self._here()
        with self._lock:
            self._left |= self._lists.intersection(members)
            self._lists -= self._left
        self.send_returns()

    def empty_lists(self) -> None:
        """Put back what lies in the own lists, and go on waiting. Raises ``StoreUnavailableError``."""
        with self._lock:
            lists = sorted(self._lists)
        self.scripts.release(lists, stay=self.lease)

    # --- what has to be done now and then ----------------------------------------------------------

    def renew(self, only: Sequence[str] | None = None) -> None:
        """Prolong everything, or *only* these. Raises ``StoreUnavailableError``."""
        with self._lock:
            tags = list(only) if only is not None else [*self._held, *self._acks]
            lists = sorted(self._lists)
        asked = lease_clock.now()  # not when the answer came: this process may stand still meanwhile
        gone = self.scripts.renew(tags, lists=lists, lease=self.lease)
        with self._lock:
            # In one step: between them, a start would believe that what is lost is fresh. What was acked
            # between the list and the script is no lease any more.
            lost = [lease for tag in gone if (lease := self._held.pop(tag, None)) is not None]
            if only is None:
                self.renewed = asked
        for lease in lost:
            if lease.started:
                self._lost(lease)
            else:
                logger.info("%s was put back by somebody else before it started here", lease.tag)

    def send_returns(self) -> None:
        """Give back what is to go back. What cannot be sent is sent later."""
        while True:
            try:
                some = self._returns.popleft()
            except IndexError:
                break
            try:
                self.scripts.give_back(some.tags, started=some.started, last=some.last)
            except StoreUnavailableError as problem:
                self._returns.appendleft(some)
                logger.warning("%s messages are given back later: %s", len(some.tags), problem)
                self._wanted()
                return
        with self._lock:
            left = sorted(self._left)
        if not left:
            return
        try:
            self.scripts.release(left)
        except StoreUnavailableError as problem:
            logger.warning("own lists are left later: %s", problem)
            self._wanted()
            return
        with self._lock:
            self._left.difference_update(left)

    def close(self) -> None:
        """This process ends: acks are sent, and what it still holds goes back, marked if it was started."""
        if self._pid != os.getpid():
            return
        self.flush()
        self.give_back(list(self._held))
        self.leave(list(self._lists))
