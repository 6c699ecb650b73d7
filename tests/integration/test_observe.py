"""``hardened_observe``: a dry run says once what it would do, and does nothing."""

from __future__ import annotations

import pytest

from celery_hardened import Hardening
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.shop import SHOP
from tests.support.until import until

pytestmark = pytest.mark.integration

OBSERVING = {"CONF": "{'hardened_observe': True}"}


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_dry_run_says_each_thing_once_and_does_none(start_worker: StartWorker, load_project: LoadProject) -> None:
    """
    A transient and a permanent failure and one of a contained task: one line each
    with what would be done, and Celery's own outcome. No letter, no retry, no key, no
    setting of Celery's changed.
    """
    worker = start_worker(SHOP, env=OBSERVING)
    project = load_project(SHOP, env=OBSERVING)
    sent = {name: getattr(project, name).delay(name) for name in ("flaky", "broken", "plain_broken")}
    for name, result in sent.items():
        until(lambda result=result: result.state == "FAILURE", within=60, what=f"{name} to fail")
    assert project.fine.delay("after").get(timeout=60) == "after"

    def said() -> list[str]:
        lines = [line.partition("observing: would ")[2] for line in worker.log().splitlines()]
        return sorted(line.split(":")[0].split(" in ")[0] for line in lines if line)

    # Some of it is written when the result is there already.
    until(lambda: len(said()) >= 3, within=30, what="all three to be said")
    assert said() == [
        "retry proj.flaky",
        "write a dead letter of proj.broken",
        "write a dead letter of proj.plain_broken",
    ]
    assert "settings you had not set: nothing" in worker.log()
    assert project.broken.acks_late is False
    assert project.app.conf.worker_prefetch_multiplier == 4
    hardening = Hardening.of(project.app)
    assert hardening is not None
    assert list(hardening.redis.scan_iter(match=f"{hardening.prefix}:*")) == []
