"""``@idempotent``: whose the key of this run is, and what came of an earlier one.

Two round trips a run, claim and finish. A run that takes longer than a third of its lease is
renewed by the one thread of its process.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn
from uuid import uuid4

from celery.exceptions import Ignore

from celery_hardened.beat.names import once_key
from celery_hardened.errors import (
    ClaimBusyError,
    ClaimLostError,
    ConfigurationError,
    KeyMismatchError,
    PublishFailedError,
    StoreUnavailableError,
)
from celery_hardened.hardening import Hardening
from celery_hardened.idempotency.contract import Busy, ClaimStore, Done, Mismatch, Won
from celery_hardened.idempotency.decorator import options_of
from celery_hardened.idempotency.policy import Idempotent, Repetition, busy_delay, done_lifetime
from celery_hardened.idempotency.renewal import Held
from celery_hardened.key import bind, fingerprint
from celery_hardened.lease_clock import now
from celery_hardened.marks import Marks
from celery_hardened.metrics.catalogue import CLAIMS_LOST, EFFECTS_UNFINISHED
from celery_hardened.pipeline.attempt import Attempt
from celery_hardened.pipeline.come_back import ComeBack
from celery_hardened.pipeline.ending import ends_as
from celery_hardened.pipeline.letters import OWNER
from celery_hardened.pipeline.patience import observed, patiently
from celery_hardened.pipeline.replay import ENDED, Replay, kept_result, replay
from celery_hardened.pipeline.retry import policy_of
from celery_hardened.retry.policy import RetryPolicy, horizon
from celery_hardened.serialized import plain

logger = logging.getLogger("celery_hardened.idempotency")

_uniform = random.SystemRandom().uniform

#: Seconds. How often kombu's own delivery looks for what a dead worker held; ours looks far more often.
_SWEEP = 100.0

#: Seconds between two sweeps of the marks in a database.
_SWEEP_MARKS = 3600.0


@dataclass(slots=True)
class Claim:
    """The key that this run holds, from ``take_claim`` to ``finish`` or ``release``."""

    task: str
    key: str
    fence: int | None
    owner: str
    lifetime: float
    store: ClaimStore
    hardening: Hardening
    held: Held | None = None
    """Its lease; ``None`` where a transaction holds the key, and in eager mode."""

    transactional: bool = False

    edition: str = ""
    """Its arguments, if they are compared, and since when its key is known: see ``checkpoint/contract.py``."""

    open: bool = True
    _counted_lost: bool = False

    def check(self) -> None:
        """Is the key still ours? Asks the store only if the lease may have run out.

        Raises:
            ClaimLostError: It is another run's by now.
            StoreUnavailableError: It may be; the store does not answer.
        """
        if self.held is not None and not self.held.check():
            raise ClaimLostError(self.task, f"key {self.key}")

    def finish(self, result: Any) -> None:
        """The work is done: from now on the key answers with *result*. See ``_settle``."""
        self._settle(kept_result(self.hardening, self.task, result, self.lifetime))

    def end(self) -> None:
        """The run has ended itself (``Ignore``, ``replace``), and what it did stands: the key answers so."""
        self._settle(ENDED)

    def _settle(self, kept: bytes | None) -> None:
        """Write the record of finished work.

        In a database store this is the commit, and what it raises means that nothing was done.
        A record that cannot be written does not turn a success into a failure: the effect is
        there, and a retry would do it again. The lease then lapses, and a later duplicate runs.
        """
        try:
            settle = partial(self.store.finish, self.key, owner=self.owner, result=kept, lifetime=self.lifetime)
            # A commit is not repeated: nobody could tell what came of the first one.
            ours = settle() if self.transactional else patiently(self.hardening, settle)
        except PublishFailedError as problem:
            # It has committed: only what was to be sent after it was not, and is in letters of its own.
            self._say("unsent", "is done, but: %s", problem)  # counted as a publish
            return
        except StoreUnavailableError as problem:
            if self.transactional:
                raise
            self.hardening.metrics.inc(EFFECTS_UNFINISHED, (self.task,))
            self._say("finish_failed", "is done, but its record could not be written: %s", problem)
            return
        finally:
            self._drop()
        if not ours:
            self.count_lost()
            self._say("claim_lost", "is done, but its key is another run's by now: the effect may be there twice")

    def release(self) -> None:
        """The work is not done: the key is free for the next run. Twice changes nothing."""
        if not self.open:
            return
        self._drop()
        if self.held is not None and self.held.lost:
            self.count_lost()
            return  # it was said when it was found out, and there is nothing to free
        try:
            if not self.store.release(self.key, owner=self.owner):
                self.count_lost()
                self._say("claim_lost", "has failed, and its key is another run's by now")
        except StoreUnavailableError as problem:
            logger.warning("key %s is free only when its lease has run out: %s", self.key, problem)

    def _drop(self) -> None:
        if self.held is not None:
            self.held.drop()
        self.open = False

    def count_lost(self) -> None:
        """Another run has its key. Twice counts once."""
        if not self._counted_lost:
            self._counted_lost = True
            self.hardening.metrics.inc(CLAIMS_LOST, (self.task,))

    def _say(self, reason: str, text: str, *args: object) -> None:
        logger.error(
            f"%s (key %s) {text}",  # noqa: G004 - text is one of our own formats
            self.task,
            self.key,
            *args,
            extra={"task": self.task, "key": self.key, "reason": reason},
        )


def key_of(task: Any, args: Any, kwargs: Any) -> str | None:
    """The idempotency key of a call of *task*; ``None`` if the task has none. Raises ``UnusableKeyError``."""
    options = options_of(task)
    if options is None:
        return None
    return options.key.digest(task.name, bind(task.name, task.run, args, kwargs), otherwise=plain)


def slot_key(task: Any, marks: Marks) -> str | None:
    """The key of a slot that must not run twice though its message may be there twice; ``None``: no such message."""
    if not (marks.once and task.is_hardened) or marks.schedule is None or marks.slot is None:
        return None
    return once_key(marks.schedule, marks.slot)


def lifetime_of(task: Any, options: Idempotent, hardening: Hardening) -> float:
    """Seconds for which finished work of *task* is remembered. Raises ``ConfigurationError``."""
    known: float | None = task.__dict__.get("_hardened_lifetime")
    if known is None:
        known = done_lifetime(options, _last_repetition(task, hardening), task=task.name)
        task.__dict__["_hardened_lifetime"] = known
    return known


def lifetime_of_slot(task: Any, hardening: Hardening) -> float:
    """Seconds for which it is remembered that a slot of *task* was run: what nothing bounds is not counted."""
    known: float | None = task.__dict__.get("_hardened_lifetime_of_slot")
    if known is None:
        known = _last_repetition(task, hardening).bounded
        task.__dict__["_hardened_lifetime_of_slot"] = known
    return known


def _last_repetition(task: Any, hardening: Hardening) -> Repetition:
    settings = hardening.settings
    retries = policy_of(task, hardening)
    return Repetition.of(
        horizon=_longest_horizon(retries),
        max_retries=retries.max_retries,
        time_limit=task.time_limit or task.soft_time_limit or None,
        queue_retention=settings.queue_retention,
        lease=max(settings.lease, _stock_lease(hardening)),
        sweep=_SWEEP,
    )


def _longest_horizon(retries: RetryPolicy) -> float:
    """``horizon`` counts no ``Retry-After``; where no ``retry_for`` bounds it, each retry may wait one out."""
    asked = 0.0 if retries.horizon is not None else (retries.max_retries or 0) * retries.retry_after_max
    return horizon(retries) + asked


def _stock_lease(hardening: Hardening) -> float:
    """How long kombu's own delivery keeps a dead worker's message."""
    if hardening.delivery is not None:
        return 0.0
    return float((hardening.app.conf.broker_transport_options or {}).get("visibility_timeout") or 3600.0)


def check_idempotent(task: Any, hardening: Hardening) -> None:
    """Called for each task when a worker starts, and at its first publish. Raises ``ConfigurationError``."""
    options = options_of(task)
    if options is None or hardening.settings.observe:
        return
    if not task.is_hardened:
        raise ConfigurationError(
            f"task {task.name!r} is @idempotent but not hardened, so what its key holds back could not come back "
            f"later. Give it base=HardenedTask."
        )
    lifetime_of(task, options, hardening)


def open_claims(task: Any, hardening: Hardening) -> None:
    """Make the store that the key of *task* is in; connects to nothing. Raises ``ConfigurationError``."""
    options = options_of(task)
    if options is not None and not hardening.settings.observe:
        hardening.effects.claims_for(options)


def release_of_dead(hardening: Hardening, task: Any, marks: Marks, owner: str | None) -> None:
    """The process of a run is dead, so nobody renews its claim: the next run need not wait for the lease to end.

    Called by the parent, which knows key and owner from the message. In vain does no harm: a key that is
    not *owner*'s stays as it is.
    """
    options = options_of(task)
    own = None if options is None or options.store == "database" else marks.key
    for key in (own, slot_key(task, marks)):
        if key is None or owner is None:
            continue
        try:
            hardening.effects.claims.release(key, owner=owner)
        except StoreUnavailableError as problem:
            logger.warning("key %s is free only when its lease has run out: %s", key, problem)


def sweep(hardening: Hardening) -> None:
    """Delete expired marks of ``store="database"``, at most once an hour, in a thread: a worker's timer calls it."""
    every = (options_of(task) for task in hardening.app.tasks.values())
    aliases = {options.using for options in every if options is not None and options.store == "database"}
    if not aliases:
        return
    clock, known = time.monotonic(), hardening.__dict__
    due = known.setdefault("marks_sweep_due", clock + _uniform(0, _SWEEP_MARKS / 6))
    if clock >= due:
        known["marks_sweep_due"] = clock + _SWEEP_MARKS
        threading.Thread(target=_sweep_now, args=(hardening, aliases), name="hardened-marks-sweep", daemon=True).start()


def _sweep_now(hardening: Hardening, aliases: set[str]) -> None:
    try:
        for using in aliases:
            while hardening.effects.database_claims(using).sweep():
                pass
    except Exception as problem:  # noqa: BLE001 - whatever the database raises; the next hour is soon enough
        logger.warning("expired marks are deleted later: %r", problem)


def take_claim(attempt: Attempt, args: Any, kwargs: Any) -> Claim | Replay | None:
    """Claim the key of this run. ``None``: it has none, and runs as it is.

    Raises:
        KeyMismatchError: The key was used with other arguments.
        UnusableKeyError: There is no key in these arguments.
        ResultNotKeptError: The work is done, something waits for its result, and that was not kept.
        ClaimBusyError: Another run holds the key, and the task does not want to wait.
        ComeBack: Another run holds the key, or the store does not answer.
        celery.exceptions.Ignore: Another message's run holds the key, and the task skips such duplicates.
    """
    task, hardening = attempt.task, attempt.hardening
    options = options_of(task)
    if options is None or observed(hardening, "claim the key of %s", task.name):
        return None
    bound = bind(task.name, task.run, args, kwargs)
    key = options.key.digest(task.name, bound, otherwise=plain)
    compared = fingerprint(task.name, bound, otherwise=plain) if options.compare_arguments else ""
    store = hardening.effects.claims_for(options, eager=attempt.request.is_eager)
    owner = (attempt.request.properties or {}).get(OWNER) or uuid4().hex
    lease, lifetime = hardening.settings.lease, lifetime_of(task, options, hardening)
    sent = now()
    try:
        answer = store.claim(
            key,
            owner=owner,
            task_id=str(attempt.request.id),
            fingerprint=compared,
            lease=lease,
            lifetime=lifetime,
        )
    except StoreUnavailableError as problem:
        if options.on_store_error == "run":
            logger.warning("%s runs without its key %s: %s", task.name, key, problem)
            return None
        raise ComeBack(str(problem), delay=busy_delay(lease, lease, _uniform), error=problem) from problem
    if isinstance(answer, Won):
        claim = Claim(task.name, key, answer.fence, owner, lifetime, store, hardening)
        claim.edition = f"{answer.since}:{compared}"
        claim.transactional = options.store == "database"
        attempt.notes["claim"] = claim  # before it is renewed: from here on it is released whatever comes
        if not claim.transactional and not attempt.request.is_eager:
            claim.held = hardening.effects.renewals.hold(key, owner, lease, sent=sent)
        return claim
    if isinstance(answer, Done):
        return replay(attempt, key, answer)
    if isinstance(answer, Mismatch):
        raise KeyMismatchError(task.name, key)
    return _busy(attempt, options, key, answer)


def _busy(attempt: Attempt, options: Idempotent, key: str, answer: Busy) -> NoReturn:
    """Another run holds the key. Its own message, delivered again, always waits: acked away, nothing
    would be left to run it if the holder died."""
    task, request = attempt.task, attempt.request
    error = ClaimBusyError(task.name, key, round(answer.left, 1))
    if not answer.same and options.on_duplicate == "raise":
        raise error
    if not answer.same and options.on_duplicate == "skip" and not attempt.in_workflow:
        logger.info(
            "%s[%s] is skipped: another task works on key %s",
            task.name,
            request.id,
            key,
            extra={"task": task.name, "task_id": request.id, "outcome": "deduplicated"},
        )
        raise ends_as(Ignore(str(error)), "deduplicated")
    delay = busy_delay(answer.left, attempt.hardening.settings.lease, _uniform)
    raise ComeBack(f"another run holds key {key}", delay=delay, error=error)
