"""The page of the numbers: read back by other people's parsers, cheap, and made once for all who ask at once."""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text

from celery_hardened.metrics.catalogue import (
    ALL,
    FOLDED,
    SOURCE_ERRORS,
    TASK_SECONDS,
    TASK_WAIT_SECONDS,
    TASKS,
    WORKER_ACTIVE,
)
from celery_hardened.metrics.registry import Registry
from celery_hardened.metrics.render import HardenedCollector, Page, wants_openmetrics
from tests.fixtures.servers import missing


def _samples(parse: Any, page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = [sample for family in parse(page.decode()) for sample in family.samples]
    named = {(one.name, tuple(sorted(one.labels.items()))): one.value for one in found}
    assert len(named) == len(found), "a series is there twice"
    return named


def _everything() -> Registry:
    """A registry with a series or two of every family there is."""
    registry = Registry()
    for family in ALL:
        for value in ("one", "two"):
            labels = tuple(value for _ in family.labels)
            if family.kind == "histogram":
                registry.observe(family, labels, 0.3)
                registry.observe(family, labels, 1e9)
            elif family.kind == "counter":
                registry.inc(family, labels, 2)
            else:
                registry.set(family, labels, 0.25)
    return registry


@pytest.mark.parametrize("as_openmetrics", [False, True])
def test_every_family_is_read_back(as_openmetrics: bool) -> None:
    """prometheus-client's parsers read both formats, and find each number where it was put."""
    registry = _everything()
    page = Page(registry, process=False).text(openmetrics=as_openmetrics)
    found = _samples(openmetrics if as_openmetrics else text, page)
    for family in ALL:
        labels = tuple(sorted((name, "one") for name in family.labels))
        if family.kind == "histogram":
            count = registry.value(family, tuple("one" for _ in family.labels))
            assert found[f"{family.name}_count", labels] == count
            assert found[f"{family.name}_bucket", tuple(sorted((*labels, ("le", "+Inf"))))] == count
        elif family not in (FOLDED,):
            assert found[family.name, labels] == registry.value(family, tuple("one" for _ in family.labels))


def test_a_label_that_is_no_text() -> None:
    """It is shown as one: a page that failed of it would show nothing at all, for as long as the process lives."""
    registry = Registry()
    registry.inc(TASKS, ("shop.pay", None, 5))  # type: ignore[arg-type]
    assert b'task="shop.pay",queue="None",outcome="5"' in Page(registry, process=False).text()


def test_promtool_finds_nothing() -> None:
    """Prometheus's own tool has no complaint about names, types, help or values."""
    promtool = shutil.which("promtool")
    if promtool is None:
        missing("prometheus")
    page = Page(_everything()).text()
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@given(st.text(st.characters(codec=None, exclude_categories=())), st.floats(allow_nan=False))
def test_any_name_and_any_number(name: str, value: float) -> None:
    """Quotes, backslashes, newlines and lone surrogates in a label, and any number: one line each, read back whole."""
    registry = Registry()
    registry.set(WORKER_ACTIVE, (name,), value)
    page = Page(registry, process=False)
    shown = name.encode(errors="backslashreplace").decode()
    key = (WORKER_ACTIVE.name, (("queue", shown),))
    assert _samples(openmetrics, page.text(openmetrics=True)) == {key: value}
    # Its older parser, unlike Prometheus, takes every kind of line end for one.
    assert page.text().count(b"\n") == 3


def test_numbers_change() -> None:
    """What was made once is the text before a number: the number, and the cells of a histogram, are of now."""
    registry = Registry()
    page = Page(registry, fresh=0.0, process=False)
    for turn in range(1, 4):
        registry.inc(TASKS, ("t", "q", "success"))
        registry.observe(TASK_SECONDS, ("t", "ok"), turn)
        found = _samples(text, page.text())
        assert found[TASKS.name, (("outcome", "success"), ("queue", "q"), ("task", "t"))] == turn
        assert found[f"{TASK_SECONDS.name}_count", (("result", "ok"), ("task", "t"))] == turn
    assert found[f"{TASK_SECONDS.name}_sum", (("result", "ok"), ("task", "t"))] == 6
    buckets = {dict(k[1])["le"]: v for k, v in found.items() if k[0].endswith("_bucket")}
    assert buckets["1.0"] == 1
    assert buckets["5.0"] == 3


def test_a_source_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted each time and logged once until it works again; the rest of the page is shown."""
    registry = Registry()
    problems: list[Exception | None] = [ValueError("no"), ValueError("no again"), KeyError("x"), None, ValueError("n")]
    asked = 0

    def source() -> None:
        nonlocal asked
        asked += 1
        problem = problems[asked - 1]
        if problem is not None:
            raise problem

    registry.at_scrape(source)
    registry.at_scrape(lambda: registry.set(WORKER_ACTIVE, ("q",), asked))
    page = Page(registry, fresh=0.0, process=False)
    with caplog.at_level(logging.ERROR, logger="celery_hardened.metrics"):
        for turn in range(1, 6):
            assert f'{WORKER_ACTIVE.name}{{queue="q"}} {turn}\n'.encode() in page.text()
    assert sum(registry.values(SOURCE_ERRORS).values()) == 4
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError, KeyError, ValueError]


def test_scrapes_at_one_time_are_one() -> None:
    """Scrapes that come while a page is made wait for it and get it: ten of them ask the sources once."""
    registry = Registry()
    asked: list[int] = []
    go = threading.Event()

    def source() -> None:
        asked.append(1)
        assert go.wait(30)

    registry.at_scrape(source)
    page = Page(registry, fresh=60.0, process=False)
    texts: list[bytes] = []
    threads = [threading.Thread(target=lambda: texts.append(page.text())) for _ in range(10)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(asked) == 1
    assert len(texts) == 10
    assert len(set(texts)) == 1


def test_folded_values_are_shown() -> None:
    """What went beyond a cap is `other`, and how often that was so stands beside it."""
    registry = Registry({"queue": 1})
    registry.observe(TASK_WAIT_SECONDS, ("first",), 1)
    registry.observe(TASK_WAIT_SECONDS, ("second",), 1)
    found = _samples(text, Page(registry, process=False).text())
    assert found[f"{TASK_WAIT_SECONDS.name}_count", (("queue", "other"),)] == 1
    assert found[FOLDED.name, (("label", "queue"),)] == 1


def test_in_a_registry_of_prometheus_client() -> None:
    """``HardenedCollector`` shows the same series in an endpoint that a project has already."""
    registry = _everything()
    theirs = CollectorRegistry()
    theirs.register(HardenedCollector(registry))  # type: ignore[arg-type]
    ours = _samples(text, Page(registry, process=False).text())
    assert _samples(text, generate_latest(theirs)) == ours


def test_process_metrics() -> None:
    """Memory, CPU time and open files of the process are on the page."""
    for as_openmetrics, parse in ((False, text), (True, openmetrics)):
        found = _samples(parse, Page(Registry()).text(openmetrics=as_openmetrics))
        assert found["process_resident_memory_bytes", ()] > 1e6


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3", True),
    ],
)
def test_who_gets_openmetrics(accept: str, wanted: bool) -> None:
    """Who names it."""
    assert wants_openmetrics(accept) is wanted


def test_a_large_page_is_cheap() -> None:
    """500 tasks with their zeros and 100 with histograms: five pages take under a second, of which a worker would
    have noticed 255 ms each with prometheus-client (2 ms each here, on an idle machine)."""
    registry = Registry()
    for n in range(500):
        registry.zero(TASKS, [(f"shop.tasks.number_{n}", "celery", outcome) for outcome in "abcde"])
    for n in range(100):
        for result in ("ok", "error"):
            registry.observe(TASK_SECONDS, (f"shop.tasks.number_{n}", result), n)
    page = Page(registry, fresh=0.0)
    page.text()
    before = time.thread_time()
    for _ in range(5):
        page.text()
    assert time.thread_time() - before < 1.0
