"""What happened in a soak, and what of it was right: reads the notes, judges every repeat. Knows no process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

Kind = Literal["child", "group", "stop", "cut", "restart"]

#: A body that is over is acked within this many seconds by a worker that nothing happens to.
GRACE: Final = 2.0

#: Within this many seconds of a fault's end its worker has reconnected and sent what it had to send.
RECOVERY: Final = 10.0

#: A body handed to a process that was stopped just then starts within this many seconds of its waking.
WAKING: Final = 3.0


@dataclass(slots=True)
class Start:
    """One body that began."""

    task: int
    attempt: int
    at: float
    worker: int
    """Process id of the worker's main process."""

    child: int
    over: float | None = None
    """When it ended or asked for a retry; ``None``: its process died, or it still runs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to one worker, or to all."""

    kind: Kind
    at: float
    until: float
    """When it was over: SIGCONT, the healed line, the server's answer."""

    worker: int | None = None
    """Process id; ``None``: all workers."""

    child: int | None = None
    """The only victim, if it was one."""

    def hits(self, start: Start) -> bool:
        """Was it done to the process of *start*?"""
        return self.worker in (None, start.worker) and self.child in (None, start.child)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A start of an attempt that had started before."""

    start: Start
    earlier: Start
    why: str | None
    """The fault that explains it; ``None``: nothing does."""

    @property
    def overlaps(self) -> bool:
        """Did it begin while the earlier body still ran?"""
        return self.earlier.over is not None and self.start.at < self.earlier.over


@dataclass(slots=True)
class Notes:
    """The lines of all pool processes, read as they grow."""

    directory: Path
    starts: dict[tuple[int, int], list[Start]] = field(default_factory=lambda: defaultdict(list))
    """By task number and attempt."""

    ended: set[int] = field(default_factory=set)
    workers: set[int] = field(default_factory=set)
    """Process ids of the workers that ever ran a task."""

    lines: int = 0
    _read: dict[str, int] = field(default_factory=dict)
    _running: dict[str, Start] = field(default_factory=dict)

    def read(self) -> None:
        """Take in what was written since the last time."""
        for path in self.directory.iterdir():
            seen = self._read.get(path.name, 0)
            if path.stat().st_size == seen:
                continue
            with path.open("rb") as file:
                file.seek(seen)
                new = file.read()
            self._read[path.name] = seen + len(new)
            worker, child = (int(word) for word in path.name.split("-"))
            self.workers.add(worker)
            for line in new.decode().splitlines():
                self._take(path.name, line, worker, child)

    def _take(self, name: str, line: str, worker: int, child: int) -> None:
        kind, at, task, attempt = line.split()
        self.lines += 1
        if kind == "s":
            start = self._running[name] = Start(int(task), int(attempt), float(at), worker, child)
            self.starts[start.task, start.attempt].append(start)
            return
        self._running[name].over = float(at)
        if kind == "e":
            self.ended.add(int(task))


def faults_that_hit(start: Start, faults: Iterable[Fault], *, longest: float) -> Iterator[Fault]:
    """
    The *faults*, in order of time, that were done to its process between *start* and its ack.

    Nobody outside sees an ack, so the time of it is bounded: `GRACE` after the body, `RECOVERY` after a fault.

    Args:
        longest: Seconds a body takes at most.
    """
    acked = (start.at + longest if start.over is None else start.over) + GRACE
    for fault in faults:
        # What a process holds in its pipe when it is stopped begins when it wakes.
        until = fault.until + WAKING if fault.kind == "stop" else fault.until
        if until < start.at or not fault.hits(start):
            continue
        if fault.at > acked:
            return
        yield fault
        if fault.kind == "group":
            return
        acked = fault.until + RECOVERY if fault.kind == "child" else max(acked, fault.until + RECOVERY)


def judge(notes: Notes, faults: Iterable[Fault], *, unsure: dict[int, float], longest: float) -> list[Repeat]:
    """
    Every repeat with what explains it.

    A fault that hit an earlier start of the same task explains one more start: of this attempt, as
    its message comes again, or of a later one, as the retry was published twice.

    Args:
        unsure: Tasks whose publish the server's restart cut, and when: they may be there twice.
    """
    in_order = sorted(faults, key=lambda fault: fault.at)
    repeats = []
    for (task, attempt), starts in notes.starts.items():
        if len(starts) == 1:
            continue
        starts.sort(key=lambda start: start.at)
        # When the cause began, what it was, and when the start that it hit began.
        causes = [(unsure[task], "publish", unsure[task])] if task in unsure else []
        for earlier in range(attempt + 1):
            for hit in notes.starts.get((task, earlier), ()):
                causes += [(one.at, one.kind, hit.at) for one in faults_that_hit(hit, in_order, longest=longest)]
        causes.sort()
        for before, start in pairwise(starts):
            why = next((cause for cause in causes if cause[0] <= start.at and cause[2] < start.at), None)
            if why is not None:
                causes.remove(why)
            repeats.append(Repeat(start, before, why[1] if why else _woken(start, in_order)))
    return repeats


def _woken(start: Start, faults: Iterable[Fault]) -> str | None:
    """It was handed to a process that was stopped before it could begin, and ran elsewhere meanwhile."""
    stops = (fault for fault in faults if fault.kind == "stop" and fault.hits(start))
    return "woken" if any(stop.at <= start.at <= stop.until + WAKING for stop in stops) else None


def recoveries(notes: Notes, faults: Iterable[Fault], *, but: Collection[int] = ()) -> dict[str, list[float]]:
    """
    Seconds from each kill that ended a running task to its next start, by kind of kill, sorted.

    Args:
        but: Tasks that wait longer in their queue, for others have precedence.
    """
    kills = [fault for fault in faults if fault.kind in ("child", "group")]
    found: dict[str, list[float]] = {"child": [], "group": []}
    for (task, _), starts in notes.starts.items():
        if task in but:
            continue
        starts.sort(key=lambda start: start.at)
        for start, after in pairwise(starts):
            if start.over is None:
                kill = next((kill for kill in kills if kill.hits(start) and start.at <= kill.until), None)
                if kill is not None and after.at > kill.at:
                    found[kill.kind].append(after.at - kill.at)
    return {kind: sorted(times) for kind, times in found.items()}


def percentile(times: list[float], part: float) -> float | None:
    """The value below which *part* of the sorted *times* lies."""
    return times[min(len(times) - 1, int(part * len(times)))] if times else None
