"""Keeps the claims of this process alive, and knows until when each is certainly its own.

One thread a process (a greenlet under gevent), on a connection of its own. It sleeps until
the oldest claim is a third of its lease old, and no longer than that third: so nobody has
to wake it for a new claim, and a task that is shorter costs it nothing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

from celery_hardened.errors import StoreUnavailableError
from celery_hardened.lease_clock import now

logger = logging.getLogger("celery_hardened.idempotency")

#: Renewals in one lease.
RENEWALS = 3
#: A renewal that failed is tried again after this part of a lease.
_AGAIN = 1 / 20
#: What is due within this part of a lease is renewed along.
_TOGETHER = 1 / 24


class RenewStore(Protocol):
    """What is needed of a store of claims."""

    def renew(self, key: str, *, owner: str, lease: float) -> bool: ...

    def renew_all(self, claims: Sequence[tuple[str, str]], *, lease: float) -> list[bool]: ...


class Held:
    """One claim of this process. ``Renewals.hold`` makes it."""

    __slots__ = ("__weakref__", "_renewals", "dropped", "key", "lease", "lost", "owner", "sent", "until")

    def __init__(self, renewals: Renewals, key: str, owner: str, lease: float, sent: float) -> None:
        self._renewals = renewals
        self.key = key
        self.owner = owner
        self.lease = lease
        self.sent = sent
        """When the claim or its last renewal was sent; the lease began no sooner."""

        self.until = sent + lease
        """Until then, by ``now()``, nobody else can have it."""

        self.lost = False
        """Another run has it: the store said so."""

        self.dropped = False

    def certain(self) -> bool:
        """Is it ours without asking anybody? Costs a look at the clock."""
        return not self.lost and now() < self.until

    def check(self) -> bool:
        """Is it still ours? Asks the store, if that is not certain; a lease that nobody took over begins anew.

        Raises:
            StoreUnavailableError: The store does not answer, and another run may have it by now.
        """
        return self.certain() or self.ask()

    def ask(self) -> bool:
        """As ``check``, and asks the store in any case: it may have lost the record."""
        return not self.lost and self._renewals.ask(self)

    def drop(self) -> None:
        """It is not renewed any more. Nothing is told to the store."""
        self._renewals.drop(self)

    def renewed(self, sent: float) -> None:
        """The store has taken a renewal that was sent then."""
        if sent > self.sent:
            self.sent, self.until = sent, sent + self.lease


def _nothing(held: Held) -> None:
    """What a loss means where nobody asks for it."""


class Renewals:
    """The claims of this process, and the thread that renews them. Threads may share it.

    A forked child starts with none of them: they are its parent's.

    Args:
        store: Called once in each process, when a store is first needed.
        lost: Called once for each claim that another run took over, in the thread that found out.
    """

    def __init__(self, store: Callable[[], RenewStore], *, lost: Callable[[Held], None] = _nothing) -> None:
        self._make_store = store
        self._lost = lost
        self.forget()
        _of_this_process.add(self)

    def forget(self) -> None:
        """Start afresh: what was held is another process' business, or nobody's. The thread ends when it wakes."""
        self._life = object()
        self._lock = threading.Lock()
        # Weakly: a soft time limit may hit before the run knows of what it holds, and then nobody would drop it.
        self._held: WeakValueDictionary[int, Held] = WeakValueDictionary()
        self._store: RenewStore | None = None
        self._thread: threading.Thread | None = None
        self._sooner = threading.Event()
        self._longest = float("inf")

    def close(self) -> None:
        """Renew nothing any more, and end the thread."""
        sooner = self._sooner
        self.forget()
        sooner.set()

    def hold(self, key: str, owner: str, lease: float, *, sent: float) -> Held:
        """
        Renew a claim that was just won, until it is dropped, or nobody has it any more.

        Args:
            sent: ``now()`` from before the claim was sent.
        """
        held = Held(self, key, owner, lease, sent)
        with self._lock:
            self._held[id(held)] = held
            sooner = lease / RENEWALS < self._longest
            if sooner:
                self._longest = lease / RENEWALS
            if self._thread is None or not self._thread.is_alive():
                self._thread = self._start()
            elif sooner:
                self._sooner.set()
        return held

    def drop(self, held: Held) -> None:
        """It is not renewed any more. Nothing is told to the store."""
        with self._lock:
            held.dropped = True
            self._held.pop(id(held), None)

    def ask(self, held: Held) -> bool:
        """Renew *held* now, in the caller's thread; is it still ours? Raises ``StoreUnavailableError``."""
        sent = now()
        return self._judge(held, sent, self._get_store().renew(held.key, owner=held.owner, lease=held.lease))

    def _start(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._run, name="celery-hardened-claims", daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # at the end of the interpreter, or of the machine's threads
            logger.warning("claims of this process are not renewed: %s", problem)
            return None
        return thread

    def _run(self) -> None:
        life, sooner = self._life, self._sooner
        pause = 0.0
        # A greenlet, other than a thread, goes on in a forked child; there it is another life.
        while True:
            sooner.wait(pause)
            sooner.clear()
            if self._life is not life:
                return
            try:
                pause = self._round()
            except StoreUnavailableError as problem:
                logger.warning("claims are renewed later: %s", problem)
                pause = self._longest * RENEWALS * _AGAIN
            except Exception:
                logger.exception("claims are renewed later")
                pause = self._longest * RENEWALS * _AGAIN

    def _round(self) -> float:
        """Renew what is due; seconds until the next can be."""
        started = now()
        with self._lock:
            held = list(self._held.values())
        due = [one for one in held if _due(one) - started <= one.lease * _TOGETHER]
        for lease in {one.lease for one in due}:
            mine = [one for one in due if one.lease == lease]
            # Taken before the request leaves: the lease cannot begin sooner.
            sent = now()
            answers = self._get_store().renew_all([(one.key, one.owner) for one in mine], lease=lease)
            for one, ours in zip(mine, answers, strict=True):
                self._judge(one, sent, ours)
        with self._lock:
            waits = [_due(one) for one in list(self._held.values())]
            longest = self._longest
        return max(0.0, min(longest, min(waits, default=float("inf")) - now()))

    def _judge(self, held: Held, sent: float, ours: bool) -> bool:
        if ours:
            held.renewed(sent)
            return True
        with self._lock:
            # One that was dropped while it was asked for is nobody's loss; and one loss is told once.
            new = not held.lost and not held.dropped
            held.lost = True
            self._held.pop(id(held), None)
        if new:
            try:
                self._lost(held)
            except Exception:
                logger.exception("the loss of claim %s was not told", held.key)
        return False

    def _get_store(self) -> RenewStore:
        store = self._store
        if store is None:
            store = self._store = self._make_store()
        return store


def _due(held: Held) -> float:
    return held.sent + held.lease / RENEWALS


_of_this_process: WeakSet[Renewals] = WeakSet()


def _forked() -> None:
    # The thread is not here, and its lock may have been held by it.
    for renewals in list(_of_this_process):
        renewals.forget()


os.register_at_fork(after_in_child=_forked)
