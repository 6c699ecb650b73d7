"""What processes have counted, those that are gone included. Pure.

A counter begins anew with each process. What a worker said last is kept, so that a release of the shop, which
replaces all workers, takes nothing away.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from celery_hardened.metrics import catalogue
from celery_hardened.metrics.family import Family

#: Values of one metric by their labels, in the order of the family's.
Series = Mapping[tuple[str, ...], float]


class Scrape:
    """One answer of ``/metrics``.

    Args:
        text: In Prometheus' format.

    Raises:
        ValueError: It is none.
    """

    def __init__(self, text: str) -> None:
        self._values: defaultdict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._values[sample.name][tuple(sorted(sample.labels.items()))] = sample.value

    def of(self, family: Family) -> dict[tuple[str, ...], float]:
        """All series of *family*."""
        found = {}
        for labels, value in self._values.get(family.name, {}).items():
            named = dict(labels)
            found[tuple(named.get(label, "") for label in family.labels)] = value
        return found

    def sum(self, family: Family) -> int:
        """Of all series of *family*."""
        return int(sum(self.of(family).values()))


class Counts:
    """The sum over all processes there ever were."""

    def __init__(self) -> None:
        self._last: dict[str, Scrape] = {}

    def take(self, process: str, scrape: Scrape) -> None:
        """What *process* says now. Its name is no other process's, before or after."""
        self._last[process] = scrape

    def outcomes(self) -> dict[str, dict[str, int]]:
        """By task: deliveries by how they ended; tasks and outcomes that never were are left out."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for scrape in self._last.values():
            for (task, _, outcome), count in scrape.of(catalogue.TASKS).items():
                if count:
                    found[task][outcome] += int(count)
        return {task: dict(outcomes) for task, outcomes in sorted(found.items())}
