"""``self.checkpoint``: how far a run has come, kept across redelivery, retry and redrive."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar
from uuid import uuid4

from celery_hardened.checkpoint.contract import CheckpointStore, Message, Whose
from celery_hardened.checkpoint.memory import InMemoryCheckpointStore
from celery_hardened.checkpoint.record import Record
from celery_hardened.checkpoint.rows import rest_of
from celery_hardened.errors import CheckpointError, ClaimLostError, StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.lease_clock import now
from celery_hardened.marks import Marks, deaths_in
from celery_hardened.pipeline import stopping
from celery_hardened.pipeline.come_back import HandBack
from celery_hardened.pipeline.execution import Execution
from celery_hardened.pipeline.letters import HANDED
from celery_hardened.pipeline.patience import observed, patiently
from celery_hardened.pipeline.retry import NOTES
from celery_hardened.pipeline.transactions import django_transactions
from celery_hardened.transport.names import is_ours

logger = logging.getLogger("celery_hardened.checkpoint")

T = TypeVar("T")

#: Seconds that the state of finished work is kept for its own message, which comes back if the
#: worker dies between the success and the ack.
FINISHED = 3600.0


class Checkpoint:
    """How far this run has come. One object for a run; reach it as ``self.checkpoint``.

    The record belongs to the idempotency key of the run, if it has one, else to the task id.
    Opening it (the first use) and each save are one round trip. The run that opened it last
    owns it; any other is refused with ``ClaimLostError`` and must not go on.

    An eager task keeps it in this process, a direct call for the length of the call.
    """

    def __init__(self, task: Any, request: Any, *, outside: bool = False) -> None:
        self._task = task
        self._request = request
        self._notes: dict[str, Any] = request.__dict__.setdefault(NOTES, {})
        self._hardening = None if request.called_directly else Hardening.of(task.app)
        """``None``: nothing outlives this call."""
        self._store = self._choose_store()
        self._outside = outside
        self._owner = uuid4().hex
        self._record: Record | None = None
        self._found = b""
        self._loops: dict[str, object] = {}
        """What was begun in this run, by name, and not in a row that is done by now."""
        self._in_row: list[str] = []
        """Loops that are in one of their rows, the innermost last."""
        self._unsaved = False
        self._seen = 0.0
        """When the record was ours for certain, by ``now()``."""
        self._deaths_told = False

    @staticmethod
    def of(task: Any) -> Checkpoint:
        """The checkpoint of *task*'s current run."""
        request = task.request
        if task.request_stack.top is None:  # outside of any run Celery has one request for all
            return Checkpoint(task, type(request)(), outside=True)
        notes = request.__dict__.setdefault(NOTES, {})
        found: Checkpoint = notes.get("checkpoint") or notes.setdefault("checkpoint", Checkpoint(task, request))
        return found

    # --- what a task calls -------------------------------------------------------------------

    def load(self, default: Any = None) -> Any:
        """What the last ``save`` of this work got, in this run or before it, as JSON brings it back.

        *default* if nothing was saved.

        Raises:
            CheckpointError: The record was written by a release this one cannot read.
            StoreUnavailableError: Redis does not answer.
        """
        return self._opened().value(default)

    def save(self, state: Any) -> None:
        """Keep *state* (whatever kombu's JSON takes) instead of the one before. Call it after the
        effects it tells of, outside of their transaction.

        Raises:
            CheckpointError: It is no JSON, or larger than ``hardened_checkpoint_max``, or a
                transaction is open, which may still be rolled back: also that of
                ``@idempotent(store="database")``. The one before it stands.
            ClaimLostError: Another run goes on with this work; this one must end.
            StoreUnavailableError: Redis does not answer.
        """
        record = self._opened()
        before = record.state
        try:
            record.keep(state)
        except ValueError as problem:
            raise CheckpointError(self._task.name, str(problem)) from problem
        try:
            self._write()
        except CheckpointError:
            record.state = before
            raise

    def iterate(self, rows: Iterable[T], every: float = 5.0, name: str = "rows") -> Iterator[T]:
        """Go through *rows*, from where this work was left.

        A row is done when the loop asks for the next one: one that is left by an exception,
        ``break`` or ``return`` is not, and comes again. *rows* have to be the same, in the same
        order, each time.

        Args:
            every: Seconds between two saves, at least; 0 saves after each row. It saves besides when
                the rows end, when the run fails, and when the worker stops, which then hands the task back.
            name: Of this loop; each loop of a task needs its own. A loop inside of another one begins
                anew in each of its rows, under the same name.

        Raises:
            ValueError: A loop of that name was begun before in this run, or in this row of the loop around
                it, or *rows* have no order.
            CheckpointError, StoreUnavailableError: As ``load`` and ``save``.
        """
        if name in self._loops:
            raise ValueError(
                f"{self._task.name} has begun a loop named {name!r} before in this run, and a second one would "
                f"start where that one was left. Give each its own: iterate(rows, name=...). Only a loop inside of "
                f"another one begins again, in the next row of that."
            )
        if not every >= 0:
            raise ValueError(f"every is {every!r}; it must be a number of seconds, 0 for each row")
        self._refuse_beside_a_mark()
        done = self._opened().begin(name, self._in_row[-1] if self._in_row else None)
        self._loops[name] = loop = object()
        return self._iterate(rows, every, name, loop, done)

    @property
    def stopping(self) -> bool:
        """Was this worker told to stop? Always ``False`` in eager tasks and direct calls."""
        return stopping.told() and self._hardening is not None and not self._request.is_eager

    def hand_back_if_stopping(self) -> None:
        """Hand the task back now if this worker was told to stop; for loops of your own, after ``save``."""
        if self.stopping and not observed(self._hardening, "hand %s back", self._task.name):  # type: ignore[arg-type]
            self._hand_back()

    # --- how it does that --------------------------------------------------------------------

    def _iterate(self, rows: Iterable[T], every: float, name: str, loop: object, done: int) -> Iterator[T]:
        record = self._opened()
        rest, total = rest_of(rows, done)
        saved = time.monotonic()
        if total is None or done < total:
            self.hand_back_if_stopping()
        for row in rest:
            self._in_row.append(name)
            try:
                yield row
            finally:
                self._in_row.remove(name)
            if self._loops.get(name) is not loop:
                raise ValueError(
                    f"{self._task.name} goes on with a loop {name!r} that was begun in a row of another one, which is "
                    f"done. Begin it anew in each row."
                )
            done += 1
            for forgotten in record.row_done(name, done):
                self._loops.pop(forgotten, None)
            self._unsaved = True
            if total is None or done < total:  # the last row is followed by the end, not by a hand-back
                self.hand_back_if_stopping()
            if time.monotonic() - saved >= every:
                self._write()
                saved = time.monotonic()
        if self._unsaved:
            self._write()

    def _opened(self) -> Record:
        """The record, opened at its first use. Raises as ``load`` and ``save`` do."""
        if self._outside:
            problem = "no run of it is under way in this thread; take self.checkpoint in the body and pass it on"
            raise CheckpointError(self._task.name, problem)
        if self._record is None:
            self._refuse_late()
            self._seen = now()
            raw = self._ask(self._open)
            try:
                self._record = Record.read(raw)
            except ValueError as problem:
                raise CheckpointError(self._task.name, str(problem)) from problem
            self._found = self._record.dump()
        return self._record

    def _refuse_late(self) -> None:
        """Do not open, and so take it from the run that goes on, after standing still for a lease."""
        process, handed = (self._request.properties or {}).get(HANDED) or (None, 0.0)
        if process is None or self._hardening is None:
            return
        if now() - handed > self._hardening.settings.lease and Execution(self._task).lost:
            self._lose()

    def _refuse_beside_a_mark(self) -> None:
        """The key is in a transaction, as all that the body writes, which ends behind the body."""
        if getattr(self._notes.get("claim"), "transactional", False):
            problem = "the whole run is one transaction, @idempotent(store='database'), which may still be rolled back"
            raise CheckpointError(self._task.name, f"{problem}; use store='redis' for a task that resumes")

    def _write(self, *, once: bool = False) -> None:
        self._refuse_beside_a_mark()
        record = self._opened()
        raw = record.dump()
        most = self._hardening.settings.checkpoint_max if self._hardening is not None else len(raw)
        if len(raw) > most:
            problem = f"it takes {len(raw)} bytes, and hardened_checkpoint_max is {most}"
            raise CheckpointError(self._task.name, problem)
        if self._hardening is not None and not self._request.is_eager and django_transactions():
            problem = "a transaction is open, and if it is rolled back the checkpoint is ahead of what was done"
            raise CheckpointError(self._task.name, f"{problem}; save, and end each row, after its transaction")

        self._unsaved = True
        sent = now()
        whose = self._ask(lambda: self._save(raw), once=once)
        gone = whose == "gone" and self._ask(self._goes_on, once=once)
        if gone:
            # In one step: whoever has opened it meanwhile is the owner, and keeps it.
            whose = self._ask(lambda: self._save(raw, anew=True), once=once)
        if whose != "ours":
            self._lose()
        self._seen, self._unsaved = sent, False
        if raw != self._found:
            self._note_progress()
        if gone:
            logger.warning("%s[%s]: its checkpoint was gone and is written anew", self._task.name, self._request.id)
            self._ask(self._hold_the_key, once=once)

    def _open(self) -> bytes | None:
        return self._store.open(self._work, owner=self._owner, again=self._again, lifetime=self._lifetime, of=self._of)

    def _save(self, raw: bytes, *, anew: bool = False) -> Whose:
        life = self._lifetime
        return self._store.save(self._work, owner=self._owner, state=raw, lifetime=life, anew=anew, of=self._of)

    def _goes_on(self) -> bool:
        """The record is gone. Is it certain that the store lost it, and that no run has done this work meanwhile?

        A message that was acked before it began is nobody else's, and one with a lease is its holder's.
        Where nobody can tell (RabbitMQ, stock delivery), time does: a run that has finished leaves a record for
        `FINISHED` seconds. One still at work takes it back when it opens it, or is refused; so one of the two goes on.
        """
        if self._hardening is None or self._request.is_eager or not self._task.acks_late:
            return True
        execution = Execution(self._task)
        if is_ours(execution.delivery_tag):
            return not execution.lost
        return now() - self._seen < min(FINISHED, self._lifetime)

    def _hold_the_key(self) -> None:
        """What lost the record may have lost the key as well, and then anybody may claim it: its message goes back
        and claims it again, or waits, and goes on from here."""
        claim = self._notes.get("claim")
        if claim is not None and claim.open and claim.held is not None and not claim.held.ask():
            self._end(HandBack(f"key {claim.key} is not its own any more"))

    def _note_progress(self) -> None:
        """It has come further than any run before: failures and deaths so far do not count any more."""
        if not self._notes.get("progress"):
            self._notes["progress"] = True
            self._request.retries = self._task.request.retries = 0
        start = self._notes.get("start")
        if start is None or self._deaths_told or self._hardening is None:
            return
        try:
            self._hardening.deaths.progress(start)
            self._deaths_told = True
        except StoreUnavailableError as problem:  # the next save tells it
            logger.warning("deaths of %s are not forgotten yet: %s", self._task.name, problem)

    def _hand_back(self) -> NoReturn:
        if self._unsaved:
            try:
                self._write(once=True)
            except StoreUnavailableError as problem:
                logger.warning("%s is handed back without its last rows: %s", self._task.name, problem)
        self._end(HandBack("its worker stops"))

    def _lose(self) -> NoReturn:
        self._end(ClaimLostError(str(self._task.name), "its checkpoint"))

    def _end(self, ending: Exception) -> NoReturn:
        """Raise *ending*, and note it: a body that catches it must not end as if its work were done."""
        self._notes["ending"] = ending
        raise ending

    def _close(self, *, finished: bool) -> None:
        if self._record is None or "ending" in self._notes:
            return
        try:
            if self._unsaved:
                self._write()
            if self._notes.get("progress"):
                self._task.request.retries = 0  # a __call__ may have run the body in a copy of the request
            if finished and self._store.finish(self._work, owner=self._owner, lifetime=FINISHED) == "another's":
                logger.error("%s succeeded, and another run of the same work goes on", self._task.name)
        except StoreUnavailableError as problem:
            logger.warning("the checkpoint of %s is not closed: %s", self._task.name, problem)
        except (CheckpointError, ClaimLostError, HandBack) as problem:
            logger.warning("%s: %s", self._task.name, problem)

    def _ask(self, step: Callable[[], T], *, once: bool = False) -> T:
        return step() if once or self._hardening is None else patiently(self._hardening, step)

    def _choose_store(self) -> CheckpointStore:
        if self._hardening is None:
            return InMemoryCheckpointStore()
        effects = self._hardening.effects
        return effects.eager_checkpoints if self._request.is_eager else effects.checkpoints

    @property
    def _lifetime(self) -> float:
        return FINISHED if self._hardening is None else self._hardening.settings.kept_for

    @property
    def _work(self) -> str:
        claim = self._notes.get("claim")
        return str(claim.key if claim is not None else Marks.read(self._request.headers).key or self._request.id)

    @property
    def _of(self) -> Message:
        return Message(str(self._request.id), getattr(self._notes.get("claim"), "edition", ""))

    @property
    def _again(self) -> bool:
        return bool((self._request.delivery_info or {}).get("redelivered")) or deaths_in(self._request.headers) > 0


def close(task: Any, *, finished: bool) -> None:
    """The current run ends: after its success, or before it is decided what comes of its failure.

    No round trip if it never used its checkpoint. Raises nothing.
    """
    found = task.request.__dict__.get(NOTES, {}).get("checkpoint")
    if found is not None:
        found._close(finished=finished)
