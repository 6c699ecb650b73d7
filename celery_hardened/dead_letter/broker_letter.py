"""The letter of a message that the broker took out of its queue. Pure, given the recorded deaths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from celery_hardened.dead_letter.capture import from_wire
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.x_death import broker_death, sentence, verdict
from celery_hardened.wire import Wire


@dataclass(frozen=True, slots=True)
class Disposal:
    """What to do with a message out of a dead letter queue."""

    letter: DeadLetter

    go_back: bool
    """It belongs back into its queue; the letter is for the case that there is none any more."""


def dispose(
    wire: Wire,
    *,
    queue: str,
    recorded_deaths: Callable[[DeadLetter], int],
    now: float,
    worker: str,
    version: str | None,
) -> Disposal:
    """Decide what becomes of *wire*, out of the dead letter queue of *queue*, and build its letter.

    Its id is the one a worker would have given the same failure, so that a letter the
    worker wrote before it rejected the message is found, not doubled.

    Args:
        recorded_deaths: Asked only of a message over its delivery limit.

    Raises:
        StoreUnavailableError: *recorded_deaths* could not be answered.
    """
    death = broker_death(wire.headers, queue)
    letter = from_wire(
        replace(wire, exchange=death.exchange, routing_key=death.routing_key),
        reason="rejected",
        error_type=f"broker.{death.reason or 'unknown'}",
        error_message=sentence(death, queue),
        now=death.at if death.at is not None else now,
        worker=worker,
        version=version,
        queue=queue,
        traceback_max=0,
        started=False,
    )
    is_task = letter.task is not None and letter.task_id is not None
    deaths = letter.deaths
    if is_task and death.reason == "delivery_limit":
        deaths = max(deaths, recorded_deaths(letter))
    decided = verdict(death, is_task=is_task, deaths=deaths)
    if decided == "go back":
        return Disposal(letter, go_back=True)
    return Disposal(replace(letter, reason=decided, deaths=deaths), go_back=False)
