"""A worker's side of a bulk action: slices of some seconds, each step of which is in the row before the next begins.

Killed between any two steps, it goes on where it was. What was sent or discarded and not yet noted is told by the
audit of the letter itself, in which the action stands by its number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from celery import Celery
from django.db import DatabaseError, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from celery_hardened.cli.text import without_passwords
from celery_hardened.contrib.django.dead_letters import bulk
from celery_hardened.contrib.django.dead_letters.bulk_asker import withdrawn
from celery_hardened.contrib.django.dead_letters.bulk_deal import Outcome, deal
from celery_hardened.contrib.django.dead_letters.bulk_log import note_end
from celery_hardened.contrib.django.dead_letters.rows import key_of
from celery_hardened.contrib.django.models import BulkAction, BulkActionLetter
from celery_hardened.dead_letter.canary import Canary, watch
from celery_hardened.hardening import Hardening

#: Seconds after which other messages get their turn. The letters sent may be waiting in the same queue.
SLICE: Final = 10.0

#: A pause longer than this is spent in the broker, and not in a process that others wait for.
_PATIENCE: Final = 1.0

_AT_A_TIME: Final = 100
_LISTED_AT_A_TIME: Final = 500

#: Seconds between two looks at a canary, and at letters that another redrive holds.
_LOOK: Final = 2.0
_HELD_LOOK: Final = 5.0

#: How long letters that another redrive holds are waited for; its lease is 30 s.
_HELD_FOR: Final = timedelta(seconds=90)

_FINAL: Final = ("done", "refused", "failed", "left")


class SupersededError(Exception):
    """Another delivery holds the action now; nothing was written."""


class BulkWork:
    """One delivery's work on *action*, which it has taken (``bulk.take``)."""

    def __init__(
        self,
        app: Celery,
        action: BulkAction,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.hardening = Hardening.expect(app)
        self.action = action
        self.token = action.token
        self.clock = clock
        self.sleep = sleep
        self._alias = bulk.alias()

    def slice(self) -> float | None:
        """Work for about ``SLICE`` seconds; seconds after which to go on, ``None`` if there is nothing left to do.

        Raises:
            StoreUnavailableError: The letters' store did not answer, or the broker; the next slice goes on.
        """
        begun = self.clock()
        try:
            self.write(note="")
            # Hours may have passed since it was asked for. Nobody's account should outlive itself in a queue.
            if not self.action.stop_by and (why := withdrawn(self.action)):
                self._end("stopped", why)
                return None
            while True:
                self.write()
                if self.action.stop_by:
                    self._end("stopped", f"{self.action.stop_by} stopped it.")
                    return None
                pause = self._step()
                if pause is None or pause > _PATIENCE:
                    return pause
                self.sleep(pause)
                if self.clock() - begun > SLICE:
                    return 0.0
        except SupersededError:
            return None
        except Exception as problem:
            with suppress(SupersededError, DatabaseError):
                self.write(note=f"{type(problem).__name__}: {without_passwords(str(problem))}"[:1000])
            raise

    def hand_over(self, pause: float) -> bool:
        """Let go of it for *pause* seconds; after them whoever comes first may go on. Was it held until now?

        That the pause is in the row, and not in the message alone, keeps the rate however many messages there are.
        """
        try:
            with self._written(token="", held_until=Now() + timedelta(seconds=pause)):
                return True
        except SupersededError:
            return False

    # --- steps: what is done, and seconds until the next one is of use -----------------------------------------

    def _step(self) -> float | None:
        steps: dict[str, Callable[[], float | None]] = {
            "waiting": self._begin,
            "listing": self._list,
            "canary": self._send_canary,
            "watching": self._watch,
            "working": lambda: self._batch(_AT_A_TIME),
        }
        return steps[self.action.state]()

    def _begin(self) -> float:
        self.write(state="listing")
        return 0.0

    def _list(self) -> float:
        """Write down which letters it is about. Killed within, it begins anew; each is there once all the same."""
        query = bulk.loaded(self.action.query)
        store = self.hardening.dead_letters
        for some in _some(store.ids(query), _LISTED_AT_A_TIME):
            self._listed((one, "", "") for one in some)
            if self._mine().exclude(stop_by="").exists():
                return 0.0
        if query.ids:
            known = set(self._letters().values_list("letter", flat=True))
            gone = [one for one in query.ids if key_of(one) not in known]
            self._listed((one, "left", "it was not open any more when this began.") for one in gone)
        rows = self._letters()
        first = "canary" if self.action.canary and not self.action.dry_run else "working"
        self.write(state=first, total=rows.count(), left=rows.filter(outcome="left").count())
        return 0.0

    def _listed(self, letters: Iterable[tuple[str, str, str]]) -> None:
        rows = [
            BulkActionLetter(action=self.action, letter=key_of(one), outcome=outcome, why=why)
            for one, outcome, why in letters
        ]
        with self._written():
            BulkActionLetter.objects.using(self._alias).bulk_create(rows, ignore_conflicts=True)

    def _send_canary(self) -> float | None:
        missing = (self.action.canary or 0) - self.action.done
        # Those that another redrive holds are waited for: without them none might be left to try.
        if missing > 0 and self._letters().filter(outcome__in=("", "held")).exists():
            return self._batch(missing)
        if self.action.done:
            self.write(state="watching", canary_sent_at=Now(), held_since=None)
        else:
            self.write(state="working", held_since=None)
        return 0.0

    def _watch(self) -> float | None:
        """One look at the canary. Its letters may need the very process that would wait for them."""
        of = self.action
        canary = Canary(of.canary or 1, of.canary_max_failed, of.canary_wait)
        sent = list(self._letters().filter(outcome="done").order_by("pk").values_list("letter", flat=True)[: of.canary])
        look = Canary(canary.count, canary.max_failed_percent, wait=0.0)
        result = watch(self.hardening.dead_letters, sent, look, clock=self.clock, sleep=self.sleep)
        hopeless = result.died * 100 > canary.max_failed_percent * len(sent)
        if result.pending and not hopeless and not self._past("canary_sent_at", timedelta(seconds=canary.wait)):
            return _LOOK
        said = f"{result.resolved} succeeded, {result.died} died again, {result.pending} had not finished"
        self.write(canary_said=said)
        verdict = result.verdict(canary)
        if verdict is not None:
            self._end("stopped", verdict)
            return None
        self.write(state="working")
        return 0.0

    def _batch(self, most: int) -> float | None:
        rate, begun = self.action.rate, self.clock()
        # At a rate, so many as take a second: between them it looks whether it is to stop.
        number = min(most, _AT_A_TIME if rate is None else max(1, min(_AT_A_TIME, int(rate))))
        rows = self._letters().filter(outcome="").order_by("pk")
        some = list(rows.values_list("letter", flat=True)[:number])
        if not some:
            return self._none_left()
        outcomes, trouble = deal(self.hardening, self.action, some)
        self._note(outcomes)
        if trouble is not None:
            raise trouble
        sent = sum(outcome == "done" for outcome, _ in outcomes.values())
        if rate is None or self.action.dry_run:
            return 0.0
        return max(0.0, sent / float(rate) - (self.clock() - begun))

    def _none_left(self) -> float | None:
        """Nothing is to do, apart from letters that another redrive held when their turn was."""
        held = self._letters().filter(outcome="held")
        if not held.exists():
            self._end("done", "")
            return None
        if self.action.held_since is None:
            self.write(held_since=Now())
        if self._past("held_since", _HELD_FOR):
            with self._written(left=F("left") + held.count()):
                held.update(outcome="left", why="another redrive holds it.")
            return 0.0
        with self._written():
            held.update(outcome="")
        return _HELD_LOOK

    def _end(self, state: str, note: str) -> None:
        with self._written(state=state, note=note, ended_at=Now(), held_until=None):
            self.action.refresh_from_db()
            note_end(self.action, state, note)
        bulk.prune()

    # --- the rows -----------------------------------------------------------------------------------------------

    def _letters(self) -> QuerySet[BulkActionLetter]:
        return BulkActionLetter.objects.using(self._alias).filter(action_id=self.action.pk)

    def _note(self, outcomes: dict[str, Outcome]) -> None:
        """Each letter is counted in the transaction in which it leaves the state "to do"."""
        alike: dict[Outcome, list[str]] = {}
        for one, outcome in outcomes.items():
            alike.setdefault(outcome, []).append(one)
        counts = {name: sum(outcome == name for outcome, _ in outcomes.values()) for name in _FINAL}
        with self._written(**{name: F(name) + number for name, number in counts.items() if number}):
            for (became, why), letters in alike.items():
                self._letters().filter(letter__in=letters).update(outcome=became, why=why[:1000])

    def _past(self, column: str, age: timedelta) -> bool:
        return bool(self._mine().filter(**{f"{column}__lte": Now() - age}).exists())

    def _mine(self) -> QuerySet[BulkAction]:
        return BulkAction.objects.using(self._alias).filter(pk=self.action.pk, token=self.token)

    def write(self, **changes: Any) -> None:
        """Write *changes*, and that it lives; the row as it is then."""
        with self._written(**changes):
            pass
        found = self._mine().first()
        if found is None:
            raise SupersededError
        self.action = found

    @contextmanager
    def _written(self, **changes: Any) -> Iterator[None]:
        """A transaction that begins with this write: it holds the row, and fails if that is another's by now."""
        said = {"held_until": Now() + bulk.HOLD, "progressed_at": Now(), **changes}
        with transaction.atomic(using=self._alias):
            if not self._mine().exclude(state__in=bulk.ENDED).update(**said):
                raise SupersededError
            yield


def _some(ids: Iterable[str], number: int) -> Iterator[Sequence[str]]:
    source = iter(ids)
    while some := list(islice(source, number)):
        yield some
