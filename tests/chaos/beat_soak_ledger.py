"""What became of each slot, by arithmetic, by the history, by the server's own log, and by the workers' notes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery_hardened.beat.names import task_id_of
from celery_hardened.beat.record import Record
from tests.chaos.beat_soak_plan import ENTRIES, Entry

#: Milliseconds by which the history's instants may be rounded.
_ROUNDING = 2

#: Milliseconds. A slot that one beat has claimed, another may publish and note by a clock that is as old as the last
#: renewal of the first.
_TAKEN_OVER = 1000


@dataclass(slots=True)
class Notes:
    """What workers wrote: how often each slot's body began and ended, and how often its message was given out."""

    starts: Counter[tuple[str, int]] = field(default_factory=Counter)
    ends: Counter[tuple[str, int]] = field(default_factory=Counter)
    again: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Starts of a message that the broker had given out before."""
    given: Counter[str] = field(default_factory=Counter)
    """By task id, messages that were not given out before."""
    missed: dict[tuple[str, int], int] = field(default_factory=dict)
    ids: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def read(cls, directory: Path) -> Notes:
        notes = cls()
        for path in sorted(directory.iterdir()):
            for line in path.read_text().splitlines():
                kind, *words = line.split()
                if kind == "g":
                    notes.given[words[0]] += words[1] == "0"
                    continue
                slot = (words[1], int(words[0]))
                if kind == "s":
                    notes.starts[slot] += 1
                    notes.again[slot] += words[4] == "1"
                    notes.missed[slot] = int(words[3])
                    notes.ids[slot].add(words[2])
                else:
                    notes.ends[slot] += 1
        return notes


def published(directory: Path, queue: bytes) -> Counter[str]:
    """How often a message of each task id was put into *queue*, from the server's log of all its writes.

    What a worker gives back goes to the other end of the list, by another command.
    """
    found: Counter[str] = Counter()
    for path in sorted(directory.glob("appendonlydir/*.incr.aof"), key=lambda path: int(path.name.split(".")[-3])):
        for words in _commands(path):
            if words[0].upper() == b"LPUSH" and words[1] == queue:
                for payload in words[2:]:
                    found[json.loads(payload)["headers"]["id"]] += 1
    return found


def _commands(path: Path) -> Iterator[list[bytes]]:
    with path.open("rb") as file:
        while line := file.readline():
            if not line.startswith(b"*"):
                continue  # a time
            words = []
            for _ in range(int(line[1:])):
                size = int(file.readline()[1:])
                words.append(file.read(size + 2)[:-2])
            yield words


@dataclass(slots=True)
class Account:
    """What is said of all slots of all schedules. The lists name what must not be."""

    slots: int = 0
    fired: int = 0
    passed: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    """Slots that were still claimed, or buffered, at the end."""
    terms: set[int] = field(default_factory=set)
    late: list[float] = field(default_factory=list)
    """Seconds from each slot that was fired by itself to its fire."""
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    """Fired twice: two messages in the broker, or two lines."""
    ran_twice: list[str] = field(default_factory=list)
    """Bodies of hardened tasks that began twice."""
    contained_twice: int = 0
    """Those of contained ones, which know no key."""
    redelivered: int = 0
    """Those of them that are one message, given out twice by the broker: not a beat's doing."""
    twins: int = 0
    """Messages of a slot beyond the first, as far as workers were given them."""
    unlawful: list[str] = field(default_factory=list)
    """Passed for a reason that the schedule's policy does not know, or not as late as it says."""
    wrong: list[str] = field(default_factory=list)
    """A count, an anchor, an id, a message of no slot."""


def judge(
    anchors: Mapping[str, Record],
    final: Mapping[str, Record],
    history: Mapping[str, list[dict[str, Any]]],
    notes: Notes,
    messages: Counter[str] | None,
) -> Account:
    """Account for every slot of every schedule.

    Args:
        anchors: Records as they were when each schedule began.
        final: As they are now.
        history: Lines, oldest first.
        messages: In the broker, by task id; ``None``: only workers know.
    """
    account = Account()
    known: set[str] = set()
    for name, entry in ENTRIES.items():
        if name not in anchors or name not in final:
            account.wrong.append(f"{name} has no record")
            continue
        _judge_one(account, entry, anchors[name], final[name], history.get(name, []), notes, messages, known)
    seen = messages if messages is not None else notes.given
    account.wrong += [f"a message of no slot that was fired: {task_id}" for task_id in seen.keys() - known]
    return account


def _judge_one(
    account: Account,
    entry: Entry,
    began: Record,
    final: Record,
    history: list[dict[str, Any]],
    notes: Notes,
    messages: Counter[str] | None,
    known: set[str],
) -> None:
    name = entry.name
    if (began.anchor, began.mark) != (final.anchor, final.mark):
        account.wrong.append(f"{name} has another anchor than it began with")
    slots = entry.slots(_ms(began.anchor), _ms(began.cursor), _ms(final.cursor))
    index = {slot: number for number, slot in enumerate(slots)}
    said: dict[int, list[str]] = {slot: [] for slot in slots}
    inexact = _ROUNDING if messages is not None else _TAKEN_OVER

    def say(upto: int, count: int, what: str, at: int) -> None:
        if upto not in index or index[upto] - count + 1 < 0:
            account.wrong.append(f"{name} says {what} of {count} slots up to {upto}, which are none")
            return
        for slot in slots[index[upto] - count + 1 : index[upto] + 1]:
            said[slot].append(what)
            late = at - slot
            if what != "fired" and what not in entry.allowed:
                account.unlawful.append(f"{name} {slot} is {what}")
            elif what not in ("fired", "overlapped") and late < entry.grace * 1000 - inexact:
                account.unlawful.append(f"{name} {slot} is {what}, {late} ms late")
            elif late < -inexact:
                account.unlawful.append(f"{name} {slot} is {what} {-late} ms early")

    fired = passed = 0
    missed: dict[int, int] = {}
    for line in history:
        account.terms.add(line["term"])
        what, slot, at = line["outcome"], _ms(line["slot"]), _ms(line["at"])
        if what == "fired":
            fired += 1
            say(slot, 1, "fired", at)
            missed[slot] = line.get("missed", 0)
            if not missed[slot]:
                account.late.append((at - slot) / 1000)
            if missed[slot] and slot in index and index[slot]:
                say(slots[index[slot] - 1], missed[slot], "coalesced", at)
            passed += missed[slot]
        elif what != "buffered":
            passed += line.get("count", 1)
            say(slot, line.get("count", 1), what, at)
    if fired != final.fired or passed != sum(final.passed.values()):
        account.wrong.append(f"{name}: {fired} fired and {passed} passed, but its record says {final}")

    waiting = {_ms(slot) for slot in (final.buffered, final.pending) if slot is not None}
    account.slots += len(slots)
    account.pending += len(waiting)
    for slot, told in said.items():
        key, task_id = (name, slot), task_id_of(name, slot / 1000)
        starts = notes.starts[key]
        there = messages[task_id] if messages is not None else notes.given[task_id]
        if told == ["fired"] or slot in waiting:
            known.add(task_id)
        if not told and slot not in waiting:
            account.lost.append(f"{name} {slot}: nothing is said of it, {there} messages, {starts} runs")
        elif len(told) > 1:
            account.doubled.append(f"{name} {slot}: {' and '.join(told)}, {there} messages, {starts} runs")
        elif told == ["fired"]:
            account.fired += 1
            if not there or not notes.ends[key]:
                account.lost.append(f"{name} {slot}: fired, {there} messages, {starts} runs, {notes.ends[key]} ended")
            if messages is not None and there > 1:
                account.doubled.append(f"{name} {slot}: {there} messages, {starts} runs")
            account.twins += max(0, there - 1)
            if starts > 1:
                account.redelivered += notes.again[key]
                if entry.task == "plain":
                    account.contained_twice += starts - 1
                else:
                    account.ran_twice.append(f"{name} {slot}: {starts} runs, {notes.again[key]} given out again")
            if starts and (notes.missed[key] != missed[slot] or notes.ids[key] != {task_id}):
                account.wrong.append(f"{name} {slot}: its run was told {notes.missed[key]} missed, {notes.ids[key]}")
        elif told:
            account.passed[told[0]] += 1
            if starts or there:
                account.doubled.append(f"{name} {slot}: {told[0]}, but {there} messages and {starts} runs")
    account.wrong += [
        f"{name} {slot} ran and is no slot" for one, slot in notes.starts if one == name and slot not in said
    ]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
