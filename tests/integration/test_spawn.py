"""A pool whose processes are spawned, not forked: they get the app by pickle and import its module anew."""

from __future__ import annotations

from pathlib import Path

import celery
import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.letters import letter_of
from tests.support.notes import notes
from tests.support.shop import SHOP

pytestmark = pytest.mark.skipif(celery.VERSION[:2] < (5, 7), reason="Celery chooses the start method from 5.7 on")


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_spawned_pool_processes_are_hardened(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """
    A transient error is retried by the policy, a permanent one is a dead letter: the
    hardening came along in the pickle.
    """
    start_worker(SHOP, concurrency=1, env={"CONF": "{'worker_pool_start_method': 'spawn'}"})
    project = load_project(SHOP)

    flaky, broken = project.flaky.delay("f1"), project.broken.delay("b1")

    assert flaky.get(timeout=90) == "f1"
    assert letter_of(project, broken.id).letter.reason == "permanent"
    retries = [line.split()[2] for line in notes(out, "starts") if line.startswith("proj.flaky f1")]
    assert retries == ["0", "1", "2"]
