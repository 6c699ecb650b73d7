"""Letters, as the pipelines write them: built from a request or a message, written before the ack."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery_hardened.dead_letter.capture import from_wire, identify
from celery_hardened.dead_letter.describe import cut_middle, describe
from celery_hardened.dead_letter.keep import keep
from celery_hardened.dead_letter.letter import DeadLetter, Reason
from celery_hardened.dead_letter.parking import can_park, chord_group, detach, keep_groups_alive
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.hardening import Hardening
from celery_hardened.marks import Marks
from celery_hardened.metrics.catalogue import DEAD_LETTERS, task_label
from celery_hardened.pipeline import held_windows, payload
from celery_hardened.poison.contract import work_id
from celery_hardened.signals import task_dead_lettered, tell
from celery_hardened.wire import Wire

logger = logging.getLogger("celery_hardened.dead_letter")

#: Where the parent puts the raw message for the child: inside ``properties``, because Celery
#: copies unknown top-level names into ``request.headers`` and from there into every retry.
WIRE = "hardened_wire"

#: Likewise: the token of a suspect's start, and whether it has the worker to itself.
START = "hardened_start"
ALONE = "hardened_alone"

#: Likewise: the owner that this start's claim will have, so that the parent can free the key of a dead child.
OWNER = "hardened_owner"

#: Likewise: which process handed it over, and when (``lease_clock.now()``).
HANDED = "hardened_handed"


def letter_for(
    hardening: Hardening,
    wire: Wire,
    *,
    reason: Reason,
    error: BaseException,
    worker: str,
    queue: str,
    formatted: str | None = None,
    shown: Mapping[str, Any] | None = None,
    deaths: int | None = None,
    max_age: float | None = None,
    parked: bool = False,
    group_id: str | None = None,
) -> DeadLetter:
    """Build the letter of *wire*, which ended with *error*."""
    described = describe(error, formatted)
    most = hardening.settings.dead_letter_traceback_max
    letter = from_wire(
        wire,
        reason=reason,
        error_type=described.type,
        error_message=described.message,
        traceback=cut_middle(described.traceback, most),
        location=described.location,
        now=time.time(),
        worker=worker,
        version=hardening.version,
        queue=queue,
        traceback_max=most,
        log_args=shown or {},
    )
    return replace(
        letter,
        deaths=letter.deaths if deaths is None else deaths,
        max_age=max_age,
        parked=parked,
        group_id=group_id or letter.group_id,
    )


def work_of(wire: Wire, key: str | None) -> str:
    """Name the work that *wire* asks for, for the store of deaths.

    From the message alone, so that parent, pool process and drain name it alike: a task may be
    registered under a second name, and a message of protocol 1 has no headers.
    """
    who = identify(wire)
    return work_id(task=who.task or "", root_id=who.root_id, key=key, body=wire.body)


def write(hardening: Hardening, letter: DeadLetter) -> None:
    """Write *letter* once. Raises ``StoreUnavailableError``."""
    kept, new = keep(hardening.dead_letters, letter)
    is_kept(hardening, letter, new=new)
    logger.log(
        beside_the_end(hardening) if letter.reason in ("poison", "lost") else logging.ERROR,
        "dead letter %s: %s %s (%s)%s",
        kept,
        letter.task or "<no task>",
        letter.reason,
        letter.error_type,
        "" if new else ", written before",
        extra={
            "task": letter.task,
            "task_id": letter.task_id,
            "queue": letter.queue,
            "attempt": letter.attempt,
            "letter": kept,
            "reason": letter.reason,
            **{f"arg_{name}": value for name, value in letter.log_args.items()},
        },
    )


def beside_the_end(hardening: Hardening) -> int:
    """Level of a line about a lost process: the record of its end is an ``ERROR`` already, unless there is none, and so
    is the pool's own line about the signal."""
    settings = hardening.settings
    return logging.WARNING if settings.task_logs and not settings.observe else logging.ERROR


def is_kept(hardening: Hardening, letter: DeadLetter, *, new: bool = True) -> None:
    """A letter was written: its payloads live as long as it may, and its task's window is over. Never raises.

    One that is not *new* was written before, and is not counted again.
    """
    if new:
        hardening.metrics.inc(DEAD_LETTERS, (task_label(letter.task), letter.queue, letter.reason))
        tell(task_dead_lettered, hardening.app, letter=letter)
    payload.keep(hardening, letter)
    if letter.task_id:
        held_windows.ended(hardening, Marks.read(letter.headers), letter.task_id, well=False)


def may_park(hardening: Hardening, task: Any, request: Any) -> bool:
    """Is the letter of this request to be parked: a chord waits, parking is wanted, and possible?

    ``park_chords`` on the task decides; without it hardened tasks follow ``hardened_park_chords``,
    and contained ones fail their chord at once, as plain Celery does.
    """
    if chord_group(request) is None:
        return False
    wanted = getattr(task, "park_chords", None)
    wanted = hardening.settings.park_chords and task.is_hardened if wanted is None else wanted
    return bool(wanted) and can_park(task) and hardening.switches.get("parking")


def park(hardening: Hardening, request: Any, letter: DeadLetter) -> None:
    """Keep the chord of *request* open, whose *letter* is written, and let it fail without telling it."""
    age = letter.max_age or hardening.settings.dead_letter_max_age
    try:
        keep_groups_alive(hardening.app, [str(letter.group_id)], seconds=age)
    except StoreUnavailableError as problem:
        logger.warning("the chord of %s is extended by the next upkeep: %s", letter.id, problem)
    detach(request)
