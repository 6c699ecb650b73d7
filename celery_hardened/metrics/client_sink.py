"""Counts of a process that is not ours: a web server that publishes, a shell, a script.

They go into prometheus-client's own registry, so that its multiprocess mode and the endpoint that the project has
already are honoured. Whatever goes wrong with that is said once in the log: what was to be counted goes on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from celery_hardened.metrics.catalogue import FOLDED
from celery_hardened.metrics.family import OTHER, Family
from celery_hardened.metrics.registry import CAPS, EXCEPTIONS_PER_TASK, Labels

logger = logging.getLogger("celery_hardened.metrics")

#: Where what this process has made lies on prometheus-client's registry: it may be there already when a second app
#: counts, and outlives a reload of this module.
_SHARED: Final = "_celery_hardened_made"

#: Series that are folded, of which the sink remembers how: beyond, it finds that out each time.
_REMEMBERED: Final = 10_000

_making = threading.Lock()


def _after_fork() -> None:
    """A thread that is not there any more may have held the lock."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class _Made:
    """The metrics of this process, for all its apps."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}
        """``None``: it cannot be made, and that has been said."""
        self.seen: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        """Values of capped labels, as ``Registry`` keeps them."""


class ClientSink:
    """The counts of one app. Makes its metrics when they are first counted: importing prometheus-client takes time.

    Nothing here raises. Threads may share it.

    Args:
        caps: See ``Registry``. Apps of one process share what they have used up.
    """

    def __init__(self, caps: Mapping[str, int] = CAPS) -> None:
        self._caps = dict(caps)
        self._children: dict[tuple[Family, Labels], Any] = {}
        self._folded: dict[tuple[Family, Labels], Labels] = {}
        self._told = False

    def inc(self, family: Family, labels: Labels, by: float) -> None:
        try:
            child = self._children.get((family, labels)) or self._child(family, labels)
            if child is not None:
                child.inc(by)
        except Exception as problem:  # noqa: BLE001 - a directory of its multiprocess mode that is full, or gone
            self._tell(problem)

    def observe(self, family: Family, labels: Labels, value: float) -> None:
        try:
            child = self._children.get((family, labels)) or self._child(family, labels)
            if child is not None:
                child.observe(value)
        except Exception as problem:  # noqa: BLE001 - likewise
            self._tell(problem)

    def _tell(self, problem: Exception) -> None:
        if not self._told:
            self._told = True
            logger.error("publishes of this process are not counted as they should: %r", problem)

    # --- making ---------------------------------------------------------------------------------------------

    def _child(self, family: Family, labels: Labels) -> Any:
        """The series of *labels*, or the one that they are counted in beyond a cap; ``None``: it cannot be made."""
        with _making:
            made = _made()
            shown = self._folded.get((family, labels)) or self._admitted(made, family, labels)
            child = self._children.get((family, shown))
            if child is None:
                metric = _metric(made, family)
                if metric is None:
                    return None
                child = self._children[family, shown] = metric.labels(*shown) if shown else metric
            if shown == labels:
                return child
            if len(self._folded) < _REMEMBERED:
                self._folded[family, labels] = shown
            folds = _metric(made, FOLDED)
            for name, value, seen in zip(family.labels, labels, shown, strict=True):
                if value != seen and folds is not None:
                    folds.labels(name).inc()
            return child

    def _admitted(self, made: _Made, family: Family, labels: Labels) -> Labels:
        return tuple(self._fold(made, name, value, labels) for name, value in zip(family.labels, labels, strict=True))

    def _fold(self, made: _Made, name: str, value: str, labels: Labels) -> str:
        most, scope = (EXCEPTIONS_PER_TASK, labels[0]) if name == "exception" else (self._caps.get(name), "")
        if most is None or value == OTHER:
            return value
        seen = made.seen[name, scope]
        if value not in seen:
            if len(seen) >= most:
                return OTHER
            seen.add(value)
        return value


def _made() -> _Made:
    from prometheus_client import REGISTRY

    known = vars(REGISTRY)
    made: _Made = known.setdefault(_SHARED, _Made())
    return made


def _metric(made: _Made, family: Family) -> Any:
    if family.name not in made.by_name:
        import prometheus_client

        make = {
            "counter": prometheus_client.Counter,
            "gauge": prometheus_client.Gauge,
            "histogram": prometheus_client.Histogram,
        }[family.kind]
        more = {"buckets": family.buckets} if family.kind == "histogram" else {}
        try:
            made.by_name[family.name] = make(family.name, family.help, family.labels, **more)
        except ValueError as problem:  # the name is somebody else's here
            made.by_name[family.name] = None
            logger.error("%s is not counted in this process: %s", family.name, problem)
    return made.by_name[family.name]
