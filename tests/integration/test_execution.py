"""What a task can ask about its own delivery."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.notes import notes
from tests.support.until import until

pytestmark = pytest.mark.integration

APP = """
import os, time
from celery import Celery
from celery_hardened import HardenedTask, harden
from tests.support.notes import note

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease=3.0,
)
harden(app)


@app.task(base=HardenedTask, bind=True)
def look(self):
    return self.execution.fence, self.execution.lost


@app.task(base=HardenedTask, bind=True)
def keep_looking(self):
    note("looks", "running")
    deadline = time.monotonic() + 60
    while not self.execution.lost:
        if time.monotonic() > deadline:
            return "never lost"
        time.sleep(0.05)
    return "lost"


@app.task(base=HardenedTask, bind=True, acks_late=False)
def look_early(self):
    return self.execution.fence, self.execution.lost
"""


def test_fences_grow_and_a_held_lease_is_not_lost(
    start_worker: StartWorker, load_project: LoadProject, request: pytest.FixtureRequest
) -> None:
    """Each delivery on Redis has a larger fence than the one before; RabbitMQ gives none. Nothing is lost that runs."""
    start_worker(APP, concurrency=1)
    project = load_project(APP)
    seen = [project.look.delay().get(timeout=60) for _ in range(3)]
    assert [lost for _, lost in seen] == [False] * 3
    fences = [fence for fence, _ in seen]
    if project.app.connection_for_read().transport.driver_type == "redis":
        assert fences == sorted(set(fences))
        assert project.look_early.delay().get(timeout=60)[1] is False, "acked before it ran is not lost"
    else:
        assert fences == [None] * 3
    assert project.look.apply().get() == (None, False)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_run_learns_that_its_lease_is_gone(
    start_worker: StartWorker, load_project: LoadProject, out: Path, environment: dict[str, str]
) -> None:
    """Once its entry is gone from the index, as after a sweep, ``execution.lost`` says so."""
    start_worker(APP, concurrency=1)
    project = load_project(APP)
    result = project.keep_looking.delay()
    until(lambda: notes(out, "looks"), within=60, what="the task to run")
    with redis.Redis.from_url(environment["BROKER_URL"]) as client:
        tags = client.zrange("unacked_index", 0, -1)
        mine = [tag for tag in tags if environment["QUEUE"].encode() in (client.hget("unacked", tag) or b"")]
        assert len(mine) == 1
        client.zrem("unacked_index", *mine)
        client.hdel("unacked", *mine)
    assert result.get(timeout=60) == "lost"


CONSUMER = (
    APP
    + """

from kombu import Queue


@app.task(base=HardenedTask)
def take_one(name):
    with app.connection_for_read() as connection, connection.channel() as channel:
        queue = Queue(name)(channel)
        queue.declare()
        channel.basic_publish(channel.prepare_message("hello"), exchange="", routing_key=name)
        got = []
        with connection.Consumer([queue], callbacks=[lambda body, message: (got.append(body), message.ack())]):
            connection.drain_events(timeout=30)
        queue.delete()
        return got
"""
)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_task_that_takes_messages_itself(
    start_worker: StartWorker, load_project: LoadProject, environment: dict[str, str], pool: str
) -> None:
    """A body may consume through the app's own connection; tasks after it start as before."""
    start_worker(CONSUMER, concurrency=1, pool=pool)
    project = load_project(CONSUMER)
    for turn in range(3):
        assert project.take_one.delay(f"{environment['QUEUE']}-{turn}").get(timeout=60) == ["hello"]
        assert project.look.delay().get(timeout=60)[1] is False
