"""Redrive: send dead letters again, each exactly once, though anything may be killed on the way.

Letters go in batches: taken under a fresh token (``begin_redrive``), published,
marked (``finish_redrive``). Killed between any two of these, a redrive is resumed
by calling it again. Letters whose message was not sent are still there; letters
whose message was sent but not marked are sent a second time when their lease has
lapsed, and the consumer lets one of the two run (``accept_start``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from celery import Celery

from celery_hardened.dead_letter.canary import Canary
from celery_hardened.dead_letter.contract import DeadLetterStore, Query, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.outlet import Outlet
from celery_hardened.dead_letter.redrive_run import RedriveReport, RedriveRun
from celery_hardened.dead_letter.resend import Edit

#: Seconds a batch is held. A redrive that was killed is resumed after at most this time.
LEASE = 30.0


def redrive(
    app: Celery,
    store: DeadLetterStore,
    query: Query,
    *,
    by: str,
    why: str,
    redrive_max: int,
    dry_run: bool = False,
    rate: float | None = None,
    batch: int = 100,
    canary: Canary | None = None,
    limit: int | None = None,
    to_queue: str | None = None,
    edit: Edit | None = None,
    force: bool = False,
    parked_group_alive: Callable[[DeadLetter], str | None] | None = None,
    progress: Callable[[int, int], object] | None = None,
    lease: float = LEASE,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> RedriveReport:
    """Send the letters that match *query* now, oldest first. Letters that come later are left alone.

    Args:
        by: Who does it; in the audit of each letter.
        why: The reason; in the audit too.
        redrive_max: A task redriven this often is refused, unless *force*.
        dry_run: Tell what would be sent and refused; change nothing.
        rate: Messages a second at most; ``None`` for as fast as it goes.
        batch: Letters taken at a time.
        canary: Send a few first and go on only if they fare well.
        limit: Messages at most.
        to_queue: Send them all to this queue.
        edit: Changes the arguments of each (see ``resend.Edit``).
        force: Send what the loop limit or a lost chord would refuse.
        parked_group_alive: Asked for each parked letter; answers why a redrive would be for nothing.
        progress: Called with (letters dealt with, letters that matched at the start).
        lease: Seconds a batch is held.

    Raises:
        StoreUnavailableError: The store did not answer. Call it again to resume.
        ValueError: *batch*, *rate*, *limit* or *edit* makes no sense.
    """
    if batch < 1 or lease <= 0 or (rate is not None and rate <= 0) or (limit is not None and limit < 1):
        raise ValueError("batch and limit must be at least 1, rate and lease above 0")
    if edit is not None and not callable(edit) and (unknown := set(edit) - {"args", "kwargs"}):
        raise ValueError(f"edit may hold 'args' and 'kwargs', not {sorted(unknown)}")
    if rate is not None:
        # A batch has to be through well before its lease lapses.
        batch = max(1, min(batch, int(rate * lease / 3)))
    with Outlet(app) as outlet:
        run = RedriveRun(
            store=store,
            outlet=outlet,
            by=by,
            why=why,
            redrive_max=redrive_max,
            dry_run=dry_run,
            pause=0.0 if rate is None else 1.0 / rate,
            batch=batch,
            limit=limit,
            to_queue=to_queue,
            edit=edit,
            force=force,
            parked_group_alive=parked_group_alive or _unasked,
            progress=progress or _unheard,
            lease=lease,
            clock=clock,
            sleep=sleep,
        )
        return run(query, canary)


def _unasked(_letter: DeadLetter) -> str | None:
    return None


def _unheard(_seen: int, _total: int) -> None:
    return None


def discard_letters(
    store: DeadLetterStore,
    letter_ids: Sequence[str],
    *,
    by: str,
    why: str,
    closing: Callable[[StoredLetter], object] | None = None,
) -> list[StoredLetter]:
    """Close open letters for good, and answer those that were closed by this call.

    Args:
        closing: Called with each letter just before it is closed, for example to fail its chord.
            If the process dies in between, or *closing* raises, the letter is still open and the
            call can be repeated; *closing* then sees it again.
    """
    discarded = []
    for letter_id in letter_ids:
        found = store.find(Query(ids=(letter_id,)), limit=1).letters
        if not found:
            continue
        if closing is not None:
            closing(found[0])
        if store.discard(letter_id, by=by, why=why):
            discarded.append(replace(found[0], state="discarded"))
    return discarded
