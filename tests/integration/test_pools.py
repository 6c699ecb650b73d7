"""The same promises in every pool, as far as the pool can give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.letters import letter_of, letters
from tests.support.notes import notes
from tests.support.shop import SHOP

#: task, reason
FAILURES = [
    ("broken", "permanent"),
    ("base_exception", "permanent"),
    ("unencodable", "permanent"),
    ("exiting", "permanent"),
    ("out_of_memory", "permanent"),
    ("rejecting", "rejected"),
    ("explicit", "exhausted"),
    ("plain_broken", "permanent"),
    ("plain_retrying", "exhausted"),
    ("plain_out_of_memory", "permanent"),
    ("plain_exiting", "permanent"),
]


@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_failures_in_pools_without_processes(
    pool: str, start_worker: StartWorker, load_project: LoadProject, out: Path, subtests: pytest.Subtests
) -> None:
    """One letter for each failure, retries until success, and the worker survives sys.exit and MemoryError."""
    worker = start_worker(SHOP, pool=pool, concurrency=4)
    project = load_project(SHOP)
    sent = {name: getattr(project, name).delay(name) for name, _ in FAILURES}
    flaky = project.flaky.delay("flaky")

    for name, reason in FAILURES:
        with subtests.test(name):
            assert letter_of(project, sent[name].id).letter.reason == reason
    assert flaky.get(timeout=60) == "flaky"
    assert project.fine.delay("after").get(timeout=60) == "after"
    assert worker.running
    assert len(letters(project)) == len(FAILURES)
    starts = [line.split()[0] for line in notes(out, "starts")]
    assert starts.count("proj.flaky") == 3
    assert starts.count("proj.broken") == 1


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_hard_limit_in_gevent(start_worker: StartWorker, load_project: LoadProject) -> None:
    """gevent enforces hard limits, and reports them by another way than prefork: one letter all the same."""
    start_worker(SHOP, pool="gevent", concurrency=4)
    project = load_project(SHOP)
    assert letter_of(project, project.hard_limit.delay("h").id).letter.reason == "timeout"
    assert letter_of(project, project.plain_hard_limit.delay("p").id).letter.reason == "timeout"
    assert project.fine.delay("after").get(timeout=60) == "after"
