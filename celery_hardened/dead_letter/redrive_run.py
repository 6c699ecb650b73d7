"""One run of a redrive: choose, take, publish, mark, and what to do when any of it fails."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from celery_hardened.dead_letter.canary import Canary, CanaryResult, watch
from celery_hardened.dead_letter.contract import OPEN, DeadLetterStore, Query, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.outlet import Outlet, PublishError
from celery_hardened.dead_letter.resend import Edit, outgoing
from celery_hardened.errors import DeadLetterNotFoundError, RedriveRefusedError

#: Publishes that may fail one after the other before the redrive stops.
_FAILURES_MAX = 3


@dataclass(slots=True)
class RedriveReport:
    """What a redrive did."""

    sent: int = 0
    """Messages sent; in a dry run, that would have been sent."""

    refused: dict[str, str] = field(default_factory=dict)
    """Letters left as they were, by id, and why. A sentence without its subject: "it was redriven 3 times…"."""

    failed: dict[str, str] = field(default_factory=dict)
    """Letters whose message the broker did not take; they are open as before."""

    skipped: int = 0
    """Letters that somebody else closed or redrives in this moment."""

    stopped: str | None = None
    """Why it ended before all letters were dealt with, as a sentence."""

    canary: CanaryResult | None = None

    @property
    def seen(self) -> int:
        """Letters dealt with in one way or the other."""
        return self.sent + len(self.refused) + len(self.failed) + self.skipped


@dataclass(slots=True, kw_only=True)
class RedriveRun:
    """One call of ``redrive``; its arguments are the fields."""

    store: DeadLetterStore
    outlet: Outlet
    by: str
    why: str
    redrive_max: int
    dry_run: bool
    pause: float
    batch: int
    limit: int | None
    to_queue: str | None
    edit: Edit | None
    force: bool
    parked_group_alive: Callable[[DeadLetter], str | None]
    progress: Callable[[int, int], object]
    lease: float
    clock: Callable[[], float]
    sleep: Callable[[float], object]

    report: RedriveReport = field(default_factory=RedriveReport)
    total: int = 0
    sent_ids: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    next_at: float = 0.0
    failures: int = 0

    def __call__(self, query: Query, canary: Canary | None) -> RedriveReport:
        self.total = self.store.count(query)
        ids = self._chosen(query)
        if canary is not None and not self.dry_run:
            self._send_from(ids, canary.count)
            if self.report.stopped is None and self.sent_ids:
                result = watch(self.store, self.sent_ids, canary, clock=self.clock, sleep=self.sleep)
                self.report.canary = result
                self.report.stopped = result.verdict(canary)
        self._send_from(ids, self.limit)
        self._take_over()
        return self.report

    def _chosen(self, query: Query) -> Iterator[str]:
        """Ids, oldest first, of what matches now: a letter that its own redrive brings forth is not chosen."""
        if query.ids:
            self._refuse_unmatched(query)
        newest = self.store.find(query, limit=1).letters
        if newest:
            yield from self.store.ids(replace(query, until=newest[0].stored_at))

    def _refuse_unmatched(self, query: Query) -> None:
        """Letters named by id must not be passed over in silence."""
        matched = set(self.store.ids(query))
        for letter_id in query.ids:
            if letter_id in matched:
                continue
            try:
                state = self.store.get(letter_id).state
            except DeadLetterNotFoundError:
                self.report.refused[letter_id] = "there is no such letter."
            else:
                self.report.refused[letter_id] = (
                    "the other filters exclude it." if state in OPEN else f"it is {state} already."
                )

    def _send_from(self, ids: Iterator[str], most: int | None) -> None:
        """Send until *most* are sent in all, the ids are used up, or something stops it."""
        if self.limit is not None:
            most = min(most or self.limit, self.limit)
        while self.report.stopped is None:
            room = self.batch if most is None else min(self.batch, most - self.report.sent)
            if room <= 0:
                return
            taken = list(islice(ids, room))
            if not taken:
                return
            self._deal_with(taken)

    def _take_over(self) -> None:
        """Letters under another redrive's lease: wait until it has sent them, or was killed and it lapses."""
        deadline = self.clock() + 1.5 * self.lease
        while self.held and self._may_send() and self.clock() < deadline:
            self.sleep(min(1.0, self.lease / 5))
            ids, self.held = iter(self.held), []
            self._send_from(ids, self.limit)
            self.held.extend(ids)
        self.report.skipped += len(self.held)
        self.held = []

    def _may_send(self) -> bool:
        return not self.dry_run and self.report.stopped is None and self.report.sent != self.limit

    def _deal_with(self, ids: Sequence[str]) -> None:
        found = self.store.find(Query(ids=tuple(ids)), limit=len(ids)).letters
        self.report.skipped += len(ids) - len(found)
        ready = []
        for stored in reversed(found):
            if stored.leased:
                self.held.append(stored.letter.id)
            elif (why := self._refusal(stored.letter)) is not None:
                self.report.refused[stored.letter.id] = why
            else:
                ready.append(stored.letter.id)
        if self.dry_run:
            self.report.sent += len(ready)
        while ready and self._may_send():
            ready = self._send_batch(ready)
        self.progress(self.report.seen, self.total)

    def _refusal(self, letter: DeadLetter) -> str | None:
        if letter.redrives >= self.redrive_max and not self.force:
            return (
                f"it was redriven {letter.redrives} times before (hardened_redrive_max is {self.redrive_max}) "
                f"and died each time. Mend the cause first, or use --force."
            )
        try:
            message = outgoing(letter, token="", now=0.0, to_queue=self.to_queue, edit=self.edit)
        except RedriveRefusedError as refused:
            return refused.why
        if not message.exchange and not self.outlet.has_queue(message.routing_key):
            return f"the broker has no queue {message.routing_key!r}. Create it, or name another one (--to-queue)."
        return None if self.force or not letter.parked else self.parked_group_alive(letter)

    def _send_batch(self, ids: Sequence[str]) -> list[str]:
        """Take, publish and mark. Answers those given back because the broker failed or time ran out."""
        # New for every taking, also of the same letter: a publish that failed may have arrived.
        token = uuid.uuid4().hex
        self._pace()
        until = self.clock() + self.lease / 2
        taken = self.store.begin_redrive(ids, token=token, by=self.by, why=self.why, lease=self.lease)
        self.report.skipped += len(ids) - len(taken)
        todo = list(taken)
        sent: list[str] = []
        problem: PublishError | None = None
        try:
            while todo:
                if sent:
                    self._pace()
                    if self.clock() > until:
                        break
                self._publish(todo[0], token)
                sent.append(todo.pop(0).letter.id)
        except PublishError as error:
            problem = error
        finally:
            # Also when interrupted: what is sent is sent, the rest need not wait for the lease.
            self.store.finish_redrive(sent, token=token)
            why = "the lease ran out" if problem is None else f"publishing failed: {problem}"
            self.store.cancel_redrive([stored.letter.id for stored in todo], token=token, why=why)
            self.report.sent += len(sent)
            self.sent_ids.extend(sent)
        self.failures = 0 if sent else self.failures
        left = [stored.letter.id for stored in todo]
        if problem is not None:
            self._failed(left, problem)
            return left if problem.of_broker else left[1:]
        return left

    def _pace(self) -> None:
        if not self.pause:
            return
        now = self.clock()
        if self.next_at > now:
            self.sleep(self.next_at - now)
        # Counted from when it was due, so that late wake-ups do not add up; a stall is not caught up on.
        self.next_at = max(self.next_at, now) + self.pause

    def _publish(self, stored: StoredLetter, token: str) -> None:
        message = outgoing(stored.letter, token=token, now=time.time(), to_queue=self.to_queue, edit=self.edit)
        self.outlet.publish(message)

    def _failed(self, left: Sequence[str], problem: PublishError) -> None:
        if not problem.of_broker:
            self.report.failed[left[0]] = str(problem)
            return
        self.failures += 1
        if self.failures < _FAILURES_MAX:
            self.sleep(0.2 * 2**self.failures)
            return
        self.report.failed.update(dict.fromkeys(left, str(problem)))
        self.report.stopped = (
            f"The broker failed {self.failures} times in a row ({problem}). "
            f"What was not sent is as it was; run the redrive again when the broker is back."
        )
