"""Steps of schedules: what is asked, what became of it, and how both are told to and by ``steps.lua``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from celery_hardened.beat.policy import Overlap
from celery_hardened.redis_script import Argument

Outcome: TypeAlias = Literal[
    "taken", "overlapped", "paused", "skipped", "not skipped", "stale", "failed", "done before"
]

_OUTCOMES: dict[str, Outcome] = {
    "t": "taken",
    "o": "overlapped",
    "p": "paused",
    "k": "skipped",
    "u": "not skipped",
    "s": "stale",
    "f": "failed",
    "d": "done before",
}
#: What a step says of a claim, and the letters that say so in place of an overlap policy's own.
Claim: TypeAlias = Literal["", "made", "confirmed", "given up"]

_MODES = {
    (overlap, kind): f"{kind}{letter}"
    for overlap, letter in (
        ("allow", "a"), ("skip", "s"), ("buffer_one", "s"), ("cancel_other", "c"), ("terminate_other", "t")
    )
    for kind in "01k"
}  # fmt: skip
_CLAIMED = {"c": "C", "t": "T"}
_CLAIM_IS_OVER: dict[Claim, str] = {"confirmed": "e", "given up": "b"}

#: Bytes of messages in one call. Redis serves nobody else while it takes them, and ends a connection that sends a
#: gigabyte before its command is complete.
MOST_BYTES = 4 * 1024 * 1024

T = TypeVar("T")

_VERBS = {"LPUSH": "L", "PUBLISH": "P"}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message, as the broker's channel would hand it to Redis."""

    verb: Literal["LPUSH", "PUBLISH"]
    key: str
    """List or channel, as Redis knows it: with every prefix."""

    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepToTake:
    """One decision on one schedule."""

    name: str
    old: str = ""
    """The record that the decision was made on; ``""``: there was none."""

    new: str = ""
    """The record once it is carried out. Always another one than *old*: that tells a repeat."""

    history: str = ""
    """Line of the history, JSON; ``""``: none."""

    messages: tuple[Outgoing, ...] = ()
    checks_pause: bool = False
    """Nothing is done while the schedule is paused, or its *slot* is skipped."""

    slot: float | None = None
    """What it fires, or passes over; ``None``: nothing that could be skipped."""

    takes_skip: bool = False
    """It passes over *slot* because that is skipped: nothing is done if it is not, or no more; the skip is over
    with it."""

    overlap: Overlap = "allow"
    """``skip`` and ``buffer_one`` are the same here; what differs is *new_if_overlapped*."""

    claim: Claim = ""
    """Of a message that goes to a broker elsewhere. ``made``: the run that is replaced has to end only when the
    claim of *task_id* is ``confirmed``; ``given up``: it has its *window* again. These two need no overlap policy."""

    window: str = ""
    """``Keys.window``. This and what follows is not used with ``allow``, unless a claim is over."""

    window_ttl: float = 0.0
    """Seconds until the window is free if nothing frees it."""

    task_id: str = ""
    """Who holds the window from then on."""

    new_if_overlapped: str = ""
    """The record if the step gives way; ``""``: it stays as it is."""

    history_if_overlapped: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a step.

    ``taken``: as asked, now or when it was asked for before. ``overlapped``: it gave way. ``paused``, ``skipped``,
    ``not skipped``, ``stale``, ``failed``: nothing was changed. ``done before`` (by hand only): another call has,
    within the hour.
    """

    outcome: Outcome
    holder: str = ""
    """Task that held the window: the run given way to, or cancelled, or terminated (at a repeat it is not known)."""

    current: str = ""
    """``stale``: the record as it is, or ``""``."""

    skip: str = ""
    """``skipped``: by whom and why, as it is kept; see ``skip.py``."""

    trouble: str = ""
    """``failed``: why, in Redis' words. ``taken``: a PUBLISH after another one that the server refused."""


_PLAIN = {letter: Taken(outcome) for letter, outcome in _OUTCOMES.items()}


def in_parts(asked: Iterable[tuple[T, StepToTake]]) -> Iterator[list[tuple[T, StepToTake]]]:
    """*asked*, in parts whose messages together are not too many bytes for one call; one message may be."""
    part: list[tuple[T, StepToTake]] = []
    size = 0
    for one in asked:
        more = sum(len(message.payload) for message in one[1].messages)
        if part and size + more > MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += more
    if part:
        yield part


def told(step: StepToTake) -> list[Argument]:
    """*step* as ``steps.lua`` reads it.

    Raises:
        ValueError: It could not be told from its repeat, or says too little.
    """
    name, old, new, messages, overlap = step.name, step.old, step.new, step.messages, step.overlap
    if new == old and (messages or step.history):
        raise ValueError("its record would stay the same, so a repeat of it would be done again")
    if len(messages) > 1:  # what is published cannot be taken back, so it goes last
        messages = tuple(sorted(messages, key=lambda message: message.verb == "PUBLISH"))
    kind = "k" if step.takes_skip else "1" if step.checks_pause else "0"
    mode = _MODES.get((overlap, kind))
    if mode is None:
        raise ValueError(f"its overlap policy {overlap!r} is none that there is")
    over = _CLAIM_IS_OVER.get(step.claim)
    if over is not None:
        mode = kind + over
    elif step.claim:
        mode = kind + _CLAIMED.get(mode[1], mode[1])
    for message in messages:
        mode += _VERBS.get(message.verb) or "?"
    if "?" in mode:
        raise ValueError("the verb of a message is neither LPUSH nor PUBLISH")
    words: list[Argument] = [encoded(name), encoded(old), encoded(new), encoded(step.history), mode]
    if kind != "0":
        words.append("" if step.slot is None else milliseconds(step.slot))
    if overlap != "allow" or over is not None:
        if not step.window or not step.task_id:
            raise ValueError("it heeds overlaps or ends a claim, and has no window or no task id")
        if step.new_if_overlapped and step.new_if_overlapped in (old, new):
            raise ValueError("its record if it gives way is not a third one, so a repeat could not be told")
        words += (step.window, max(1, milliseconds(step.window_ttl)), step.task_id)
        words += (encoded(step.new_if_overlapped), encoded(step.history_if_overlapped))
    for message in messages:
        words += (message.key, message.payload)
    return words


def all_taken(answer: Sequence[Any]) -> list[Taken]:
    """What ``fire.lua`` answered: few of its steps have more to say than one letter."""
    outcomes = decoded(answer[0])
    found = [_PLAIN[letter] for letter in outcomes]
    for i in range(1, len(answer), 3):
        index = int(answer[i]) - 1
        found[index] = taken(outcomes[index], answer[i + 1], answer[i + 2])
    return found


def taken(letter: str, text: bytes | str, trouble: bytes | str) -> Taken:
    outcome = _OUTCOMES[letter]
    said = decoded(text)
    if outcome == "stale":
        return Taken(outcome, current=said, trouble=decoded(trouble))
    if outcome == "skipped":
        return Taken(outcome, skip=said, trouble=decoded(trouble))
    return Taken(outcome, said, trouble=decoded(trouble))


def encoded(text: str) -> bytes:
    """Bytes that are no UTF-8 come back as they were, so that such a record can be replaced."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # other lone surrogates, which no database holds
        return text.encode("utf-8", "backslashreplace")


def decoded(value: bytes | str) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def readable(value: object) -> str:
    """*value* as a page or a table takes it. A terminal that is not UTF-8 hands over reasons with lone surrogates."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
