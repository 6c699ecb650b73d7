"""Where counts are kept: plain numbers in this process, rendered as text for Prometheus.

Not prometheus-client's own objects, for three reasons that were measured: a scrape of 500 tasks takes them 255 ms,
in a worker that is busy; their multiprocess mode is chosen by an environment variable at import, and would turn
the counts of a parent process into files; and its files grow with each recycled child. Where a process is not ours
(a web server that publishes) theirs are used, see ``sinks.ClientSink``.
"""

from __future__ import annotations

import operator
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from celery_hardened.metrics.family import OTHER, Family

Labels: TypeAlias = "tuple[str, ...]"

#: How many values each label may have. Of other labels there are few by what they are.
CAPS: Final[Mapping[str, int]] = {"task": 1000, "queue": 200, "schedule": 200}

#: How many classes of exceptions each task may have.
EXCEPTIONS_PER_TASK: Final = 20


class Registry:
    """All series of one process. Threads may share it; nothing here does I/O.

    Args:
        caps: Values that a label may have, by its name.
    """

    def __init__(self, caps: Mapping[str, int] = CAPS) -> None:
        self._caps = dict(caps)
        # Re-entrant: what a signal handler counts may come while its own thread counts.
        self._lock = threading.RLock()
        self._values: dict[Family, dict[Labels, float]] = {}
        self._buckets: dict[Family, dict[Labels, list[float]]] = {}
        self._sources: list[Callable[[], None]] = []
        self._known: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._folds: dict[tuple[Family, Labels], Labels] = {}
        self.folded: defaultdict[str, int] = defaultdict(int)
        """By label: how often a value was counted as ``other``."""

    def after_fork(self) -> None:
        """A thread that is not there any more may have held the lock."""
        self._lock = threading.RLock()

    # --- counting ---------------------------------------------------------------------------------------

    def inc(self, family: Family, labels: Labels = (), by: float = 1) -> None:
        """Add *by* to a counter or a gauge."""
        with self._lock:
            try:
                self._values[family][labels] += by
            except KeyError:
                series = self._values.setdefault(family, {})
                key = self._admitted(family, labels)
                series[key] = series.get(key, 0) + by

    def observe(self, family: Family, labels: Labels, value: float) -> None:
        """Put *value* into a histogram."""
        with self._lock:
            try:
                cells = self._buckets[family][labels]
            except KeyError:
                series = self._buckets.setdefault(family, {})
                key = self._admitted(family, labels)
                cells = series.setdefault(key, [0.0] * (len(family.buckets) + 2))
            cells[bisect_left(family.buckets, value)] += 1
            cells[-1] += value

    def set(self, family: Family, labels: Labels, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            series = self._values.setdefault(family, {})
            series[labels if labels in series else self._admitted(family, labels)] = value

    def replace(
        self, family: Family, values: Mapping[Labels, float], *, fold: Callable[[float, float], float] = operator.add
    ) -> None:
        """Set a gauge with all its series: what is not among *values* is shown no more.

        *fold* makes one of two that are both ``other``.
        """
        with self._lock:
            found: dict[Labels, float] = {}
            for labels, value in values.items():
                key = self._admitted(family, labels)
                found[key] = fold(found[key], value) if key in found else value
            self._values[family] = found

    def zero(self, family: Family, series: Iterable[Labels]) -> None:
        """Show these series from now on, at 0 if nothing was counted yet."""
        for labels in series:
            self.inc(family, labels, 0)

    def _admitted(self, family: Family, labels: Labels) -> Labels:
        """*labels*, with ``other`` for each value that is one too many. Asked when a series may be new."""
        known = self._folds.get((family, labels))
        if known is None:
            known = self._folded(family, labels)
            if known == labels:
                return labels
            if len(self._folds) < 10_000:
                self._folds[family, labels] = known
        for name, value, shown in zip(family.labels, labels, known, strict=True):
            if value != shown:
                self.folded[name] += 1
        return known

    def _folded(self, family: Family, labels: Labels) -> Labels:
        shown: list[str] = []
        for name, value in zip(family.labels, labels, strict=True):
            # Of the task as it is shown: all those that are ``other`` have one task's share of classes.
            shown.append(self._fold(name, value, shown[0] if shown else ""))
        return tuple(shown)

    def _fold(self, name: str, value: str, first: str) -> str:
        most, scope = (EXCEPTIONS_PER_TASK, first) if name == "exception" else (self._caps.get(name), "")
        if most is None or value == OTHER:
            return value
        seen = self._known[name, scope]
        if value not in seen:
            if len(seen) >= most:
                return OTHER
            seen.add(value)
        return value

    # --- showing ----------------------------------------------------------------------------------------

    def at_scrape(self, source: Callable[[], None]) -> None:
        """Call *source* before each rendering, to set what nobody counts (running tasks, ages). What it raises is
        logged and counted, and the rest is shown."""
        self._sources.append(source)

    def value(self, family: Family, labels: Labels = ()) -> float:
        """What a counter or gauge says; of a histogram how many values it holds. 0 if there is no such series."""
        with self._lock:
            if family.kind == "histogram":
                return sum(self._buckets.get(family, {}).get(labels, [0.0])[:-1])
            return self._values.get(family, {}).get(labels, 0)

    def values(self, family: Family) -> dict[Labels, float]:
        """All series of a counter or gauge."""
        with self._lock:
            return dict(self._values.get(family, {}))

    @property
    def sources(self) -> tuple[Callable[[], None], ...]:
        """What is to be called before a rendering."""
        return tuple(self._sources)

    def snapshot(self) -> tuple[dict[Family, dict[Labels, float]], dict[Family, dict[Labels, list[float]]]]:
        """All numbers at one moment: counters and gauges, and the cells of histograms (counts, then the sum)."""
        with self._lock:
            values = {family: dict(series) for family, series in self._values.items()}
            buckets = {f: {key: list(cells) for key, cells in series.items()} for f, series in self._buckets.items()}
        return values, buckets
