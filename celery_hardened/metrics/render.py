"""The numbers of a registry as text: Prometheus text 0.0.4 and OpenMetrics 1.0.

The text of a series up to its number is made once, and that of a histogram again only if it changed: a scrape takes
time from a worker that is busy. However many scrapes come, the page is made twice a second at most; those that come
meanwhile wait for it and get the same.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from celery_hardened.metrics.catalogue import FOLDED, SOURCE_ERRORS
from celery_hardened.metrics.family import Family
from celery_hardened.metrics.registry import Labels, Registry

logger = logging.getLogger("celery_hardened.metrics")

#: Seconds that a page is the answer to further scrapes.
FRESH: Final = 0.5

#: Seconds that a scrape waits for the one before it.
_PATIENCE: Final = 10.0

#: Series whose text is kept; there are no more than the caps of labels allow, times their outcomes.
_KEPT: Final = 200_000


class Page:
    """What ``/metrics`` shows of one registry.

    Args:
        fresh: Seconds that a page is shown again instead of being made anew.

        process: Show memory, CPU time and open files of this process too, as prometheus-client does.
    """

    def __init__(self, registry: Registry, *, fresh: float = FRESH, process: bool = True) -> None:
        self._registry = registry
        self._fresh = fresh
        self._lock = threading.Lock()
        self._made_at = -math.inf
        self._texts: dict[bool, bytes] = {}
        self._series: dict[tuple[Family, Labels], str] = {}
        self._histograms: dict[tuple[Family, Labels], _Histogram] = {}
        self._said: set[tuple[str, type[BaseException]]] = set()
        self._process = _process_text() if process else None

    @staticmethod
    def content_type(*, openmetrics: bool) -> str:
        if openmetrics:
            return "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return "text/plain; version=0.0.4; charset=utf-8"

    def text(self, *, openmetrics: bool = False) -> bytes:
        """The page.

        Raises:
            TimeoutError: Another scrape has been at it for `_PATIENCE` seconds: one of its sources hangs.
        """
        if not self._lock.acquire(timeout=_PATIENCE):
            raise TimeoutError(f"another scrape has not ended for {_PATIENCE:g} s: what it asks does not answer")
        try:
            if time.monotonic() - self._made_at > self._fresh:
                self._texts.clear()
                self._ask_sources()
                self._made_at = time.monotonic()
            if openmetrics not in self._texts:
                self._texts[openmetrics] = self._made(openmetrics)
            return self._texts[openmetrics]
        finally:
            self._lock.release()

    def _ask_sources(self) -> None:
        for source in self._registry.sources:
            name = name_of(source)
            try:
                source()
            except Exception as error:
                self._registry.inc(SOURCE_ERRORS, (name,))
                if (name, type(error)) not in self._said:
                    self._said.add((name, type(error)))
                    logger.exception("metrics: %s failed; the rest is shown. Said once until it works again", name)
            else:
                self._said = {said for said in self._said if said[0] != name}
        folded: dict[Labels, float] = {(label,): float(number) for label, number in list(self._registry.folded.items())}
        if folded:
            self._registry.replace(FOLDED, folded)

    def _made(self, openmetrics: bool) -> bytes:
        if len(self._series) > _KEPT:
            self._series.clear()
            self._histograms.clear()
        values, buckets = self._registry.snapshot()
        parts: list[str] = []
        for family, series in values.items():
            parts.append(_head(family, openmetrics))
            known = self._series
            for labels, value in series.items():
                prefix = known.get((family, labels))
                if prefix is None:
                    prefix = known[family, labels] = f"{family.name}{_braces(family.labels, labels)} "
                parts.append(f"{prefix}{number(value)}\n")
        for family, cells in buckets.items():
            parts.append(_head(family, openmetrics))
            for labels, counts in cells.items():
                shown = self._histograms.get((family, labels))
                if shown is None:
                    shown = self._histograms[family, labels] = _Histogram(family, labels)
                parts.append(shown.text(counts))
        if self._process is not None:
            parts.append(self._process(openmetrics))
        if openmetrics:
            parts.append("# EOF\n")
        return "".join(parts).encode(errors="backslashreplace")


class _Histogram:
    """The lines of one series of a histogram, made again if its counts changed."""

    def __init__(self, family: Family, labels: Labels) -> None:
        names = (*family.labels, "le")
        bounds = (*(repr(float(bound)) for bound in family.buckets), "+Inf")
        self._buckets = [f"{family.name}_bucket{_braces(names, (*labels, bound))} " for bound in bounds]
        braces = _braces(family.labels, labels)
        self._count, self._sum = f"{family.name}_count{braces} ", f"{family.name}_sum{braces} "
        self._counts: list[float] | None = None
        self._text = ""

    def text(self, counts: list[float]) -> str:
        if counts != self._counts:
            so_far, lines = 0.0, []
            for prefix, count in zip(self._buckets, counts, strict=False):  # the sum stands after them
                so_far += count
                lines.append(f"{prefix}{number(so_far)}\n")
            lines.append(f"{self._count}{number(so_far)}\n{self._sum}{number(counts[-1])}\n")
            self._text, self._counts = "".join(lines), counts
        return self._text


def _head(family: Family, openmetrics: bool) -> str:
    name = family.name.removesuffix("_total") if openmetrics and family.kind == "counter" else family.name
    text = _escaped(family.help) if openmetrics else family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n"


def _braces(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escaped(value: object) -> str:
    # A label is a word of ours or of a message. Were one no text, a page that fails for it would show nothing at all.
    # A lone surrogate (a name that was no UTF-8) has no encoding: it is shown as the text \udc80.
    text = str(value).encode(errors="backslashreplace").decode()
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """As Prometheus reads it."""
    if value == int(value) if math.isfinite(value) else False:
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def wants_openmetrics(accept: str) -> bool:
    """Does this ``Accept`` header name OpenMetrics? As prometheus-client decides: named is wanted."""
    return any(part.partition(";")[0].strip() == "application/openmetrics-text" for part in accept.split(","))


def name_of(source: Callable[[], Any]) -> str:
    """A short and lasting name of a source, for a label and a line of the log."""
    while isinstance(source, partial):
        source = source.func
    name = getattr(source, "__qualname__", type(source).__qualname__)
    return str(name).replace("<locals>.", "")


def _process_text() -> Callable[[bool], str]:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import generate_latest
    from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)

    def text(openmetrics: bool) -> str:
        if openmetrics:
            return str(generate_openmetrics(registry).decode()).removesuffix("# EOF\n")  # type: ignore[no-untyped-call]
        return generate_latest(registry).decode()

    return text


class HardenedCollector:
    """The numbers of *registry* for a registry of prometheus-client that a process shows already:

    ::

        REGISTRY.register(HardenedCollector(hardening.metrics.registry))
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._page = Page(registry, process=False)

    def describe(self) -> list[Any]:
        """Nothing: names are known when they are counted."""
        return []

    def collect(self) -> Iterator[Any]:
        """Metric objects of prometheus-client."""
        from prometheus_client.metrics_core import Metric
        from prometheus_client.samples import Sample

        self._page.text()  # asks the sources, once for all who come at one time
        values, buckets = self._registry.snapshot()
        for family, series in values.items():
            name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
            metric = Metric(name, family.help, family.kind)
            metric.samples = [Sample(family.name, _named(family, labels), value) for labels, value in series.items()]
            yield metric
        for family, cells in buckets.items():
            metric = Metric(family.name, family.help, family.kind)
            for labels, counts in cells.items():
                metric.samples += list(_histogram_samples(family, _named(family, labels), counts))
            yield metric


def _named(family: Family, labels: Labels) -> dict[str, str]:
    return dict(zip(family.labels, labels, strict=True))


def _histogram_samples(family: Family, named: Mapping[str, str], counts: list[float]) -> Iterator[Any]:
    from prometheus_client.samples import Sample

    so_far = 0.0
    for bound, count in zip((*(repr(float(bound)) for bound in family.buckets), "+Inf"), counts, strict=False):
        so_far += count
        yield Sample(f"{family.name}_bucket", {**named, "le": bound}, so_far)
    yield Sample(f"{family.name}_count", dict(named), so_far)
    yield Sample(f"{family.name}_sum", dict(named), counts[-1])
