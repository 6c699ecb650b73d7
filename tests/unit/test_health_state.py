"""Verdicts on facts: what makes a process dead, what only keeps it from being ready."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.health.state import (
    DEAF_DEAD,
    UNREADY,
    BeatFacts,
    ExporterFacts,
    Facts,
    WorkerFacts,
    beat_health,
    exporter_health,
    health_of,
    told,
    worker_health,
)

WELL = WorkerFacts(
    pool="prefork",
    started=True,
    stopping=False,
    turned=0.5,
    tried=None,
    working=False,
    queues=("celery",),
    missing=(),
    cancelled=(),
    deaf=0.0,
    stall=60.0,
)

seconds = st.floats(0, 1e6)
names = st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(tuple)
facts = st.builds(
    WorkerFacts,
    pool=st.sampled_from(["prefork", "threads", "gevent", "solo"]),
    started=st.booleans(),
    stopping=st.booleans(),
    turned=seconds,
    tried=st.none() | seconds,
    working=st.booleans(),
    queues=names,
    missing=names,
    cancelled=names,
    deaf=seconds,
    stall=st.floats(5, 1000),
)


@pytest.mark.parametrize(
    ("changed", "live", "ready", "says"),
    [
        ({}, True, True, "consumes from celery"),
        ({"turned": 61}, False, False, "not turned for 61 s"),
        ({"turned": 20}, True, False, "not turned for 20 s"),
        ({"turned": 900, "working": True}, True, True, "held up its loop for 900 s"),
        ({"turned": 900, "tried": 3.0}, True, False, "last try 3 s ago"),
        ({"turned": 900, "tried": 61.0}, False, False, "nor has it tried for 61 s"),
        ({"missing": ("celery",), "queues": (), "deaf": 14.0}, True, True, "celery"),
        ({"missing": ("celery",), "queues": (), "deaf": 16.0}, True, False, "not consumed from celery for 16 s"),
        ({"missing": ("celery",), "queues": (), "deaf": 121.0}, False, False, "not consumed from celery for 121 s"),
        ({"queues": (), "cancelled": ("celery",)}, True, False, "told not to consume from celery"),
        ({"queues": ("a",), "cancelled": ("b",)}, True, False, "told not to consume from b"),
        ({"queues": ()}, True, False, "consumes from no queue"),
        ({"stopping": True, "turned": 900}, True, False, "told to stop"),
        ({"started": False, "queues": ()}, True, False, "starting"),
    ],
)
def test_a_worker(changed: dict[str, object], live: bool, ready: bool, says: str) -> None:
    """Each cause alone, with its sentence."""
    health = worker_health(dataclasses.replace(WELL, **changed))  # type: ignore[arg-type]
    assert (health.live.good, health.ready.good) == (live, ready), health
    assert says in health.live.because + health.ready.because


@given(facts)
def test_liveness_needs_no_broker(of: WorkerFacts) -> None:
    """A worker whose tries to connect go on is never dead, whatever else is so."""
    trying = dataclasses.replace(of, tried=min(of.turned, of.stall / 2))
    assert worker_health(trying).live.good


@given(facts)
def test_a_worker_that_moves_is_dead_for_one_cause_only(of: WorkerFacts) -> None:
    """Dead and moving means: it has consumed nothing for two minutes, and nobody told it to stop."""
    if not worker_health(of).live.good and of.moves:
        assert of.deaf >= DEAF_DEAD
        assert not of.stopping


@given(facts)
def test_ready_means_alive_and_at_work(of: WorkerFacts) -> None:
    """Nothing is ready that does not move, was not started, ends, is cut off, deaf, or was told not to consume."""
    health = worker_health(of)
    if health.ready.good:
        assert of.started
        assert not of.stopping
        assert of.tried is None
        assert not of.cancelled
        assert of.moves
        assert not (of.missing and of.deaf >= UNREADY)


@given(facts)
def test_time_does_not_heal(of: WorkerFacts) -> None:
    """What is dead after some seconds of silence is dead after more of them."""
    if not worker_health(of).live.good:
        longer = dataclasses.replace(
            of, turned=of.turned + 1, deaf=of.deaf + 1, tried=None if of.tried is None else of.tried + 1
        )
        assert not worker_health(longer).live.good


BEAT = BeatFacts(started=True, turned=0.4, leads=True, answered=True, problem=None, longest=1.0)


@pytest.mark.parametrize(
    ("changed", "live", "ready", "says"),
    [
        ({}, True, True, "it leads"),
        ({"leads": False}, True, True, "stands by"),
        ({"turned": 119.0}, True, True, "leads"),
        ({"turned": 121.0}, False, False, "not turned for 121 s"),
        ({"turned": 800.0, "longest": 300.0}, True, True, "leads"),
        ({"answered": False, "problem": "ConnectionError", "leads": False}, True, False, "ConnectionError"),
    ],
)
def test_a_beat(changed: dict[str, object], live: bool, ready: bool, says: str) -> None:
    """Leading or standing by, both are its work; without Redis it does neither, and a restart would not help."""
    health = beat_health(dataclasses.replace(BEAT, **changed))  # type: ignore[arg-type]
    assert (health.live.good, health.ready.good) == (live, ready)
    assert says in health.ready.because


@pytest.mark.parametrize(
    ("of", "live", "ready", "started"),
    [
        (ExporterFacts(answered=None), True, False, False),
        (ExporterFacts(answered=2.0), True, True, True),
        (ExporterFacts(answered=90.0), True, False, True),
        (ExporterFacts(answered=2.0, turned=61.0), False, True, True),
        # It asks every five minutes, and every five seconds.
        (ExporterFacts(answered=290.0, turned=290.0, every=300.0), True, True, True),
        (ExporterFacts(answered=899.0, turned=899.0, every=300.0), True, True, True),
        (ExporterFacts(answered=900.0, turned=900.0, every=300.0), False, False, True),
        (ExporterFacts(answered=60.0, turned=60.0, every=5.0), False, False, True),
        (ExporterFacts(answered=90.0, turned=90.0, stall=120.0, every=5.0), True, False, True),
    ],
)
def test_an_exporter(of: ExporterFacts, live: bool, ready: bool, started: bool) -> None:
    """It is ready as long as its broker answers, and alive as long as it asks."""
    health = exporter_health(of)
    assert (health.live.good, health.ready.good, health.started.good) == (live, ready, started)


@given(facts | st.just(BEAT) | st.builds(ExporterFacts, answered=st.none() | seconds))
def test_the_body_says_all(of: Facts) -> None:
    """The body of a probe is JSON: the verdict, a sentence, and every fact by its name."""
    answer = health_of(of).ready
    body = json.loads(json.dumps(told(answer, of)))
    assert body["good"] is answer.good
    assert body["because"] == answer.because
    assert set(body["facts"]) == {field.name for field in dataclasses.fields(of)}
