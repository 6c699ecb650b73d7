"""A time limit of gevent ends the greenlet and not the process: the key of that run is free at once."""

from __future__ import annotations

import pytest

from tests.fixtures.processes import LoadProject, StartWorker

pytestmark = pytest.mark.integration

APP = """
import os, time
from celery import Celery
from celery_hardened import HardenedTask, harden, idempotent

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=120.0,
)
harden(app)


@app.task(bind=True, base=HardenedTask, time_limit=6.0, soft_time_limit=None)
@idempotent("number", compare_arguments=False)
def slow(self, number, seconds):
    time.sleep(seconds)
    return "done"
"""


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_time_limit_frees_the_key(start_worker: StartWorker, load_project: LoadProject) -> None:
    """Its worker lives on and would go on renewing the claim: the next task of the key would wait for ever."""
    start_worker(APP, pool="gevent", concurrency=4)
    project = load_project(APP)
    with pytest.raises(Exception, match=r"TimeLimitExceeded|6\.0"):
        project.slow.delay("n", seconds=60).get(timeout=60)
    assert project.slow.delay("n", seconds=0).get(timeout=60) == "done"
