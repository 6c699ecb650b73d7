"""A message that arrived keeps its payload and its key, whatever the tries after it say.

The broker has the first try and its answer is lost; then nobody listens any more, so that each further try is refused,
which by itself is certain to have sent nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import chain, chord
from kombu import Connection
from kombu.exceptions import OperationalError
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from celery_hardened import Hardening
from celery_hardened.errors import PublishFailedError
from celery_hardened.pipeline.windows import windows
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

pytestmark = pytest.mark.integration

#: Not to be waited for.
LEASE = 60.0

SHOP = f"""
import os
from pathlib import Path

from celery import Celery

from celery_hardened import HardenedTask, deduplicate, harden
from tests.support.notes import note
from tests.support.until import until

app = Celery("proj", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    hardened_redis_url=os.environ["RECORDS_URL"],
    hardened_key_prefix=os.environ["KEY_PREFIX"],
    hardened_lease={LEASE},
    hardened_payload_store=Path(os.environ["OUT"], "payloads").as_uri(),
    hardened_payload_threshold=1024,
    hardened_publish_timeout=1.0,
    broker_connection_timeout=2.0,
    task_publish_retry_policy={{"max_retries": 2, "interval_start": 0.1, "interval_max": 0.1}},
)
app.conf.update(eval(os.environ.get("CONF", "{{}}")))
harden(app)


@app.task(base=HardenedTask)
@deduplicate("order")
def work(order, size):
    return order


@app.task(base=HardenedTask)
@deduplicate("order")
def after(returned, order):
    return order


@app.task(base=HardenedTask)
def warm():
    return 1


@app.task(bind=True, base=HardenedTask)
def first(self):
    warm.apply_async(queue=os.environ["QUEUE"] + "-next")  # on the connection of what follows
    note("begun", self.request.id)
    until(Path(os.environ["OUT"], "gate").exists, within=60, what="the test to open the gate")
    return 1
"""

on_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


@contextmanager
def answer_lost(proxy: TcpProxy, queue: Callable[[], int], *, hangs: bool = False) -> Iterator[None]:
    """What is sent within arrives, and as soon as it has, nobody listens any more.

    Args:
        queue: How many messages there are.
        hangs: The connection stays, and never says a word, and nobody listens from the start; else it breaks then.
    """
    arrived = threading.Event()

    def close() -> None:
        until(lambda: queue() == 1, within=60, what="the message to arrive")
        if not hangs:
            proxy.close_port()
            proxy.reset()
        arrived.set()

    assert queue() == 0
    proxy.silence("down")
    if hangs:
        proxy.close_port()
    thread = threading.Thread(target=close)
    thread.start()
    yield
    thread.join(90)
    assert arrived.is_set()


def asked(broker: Broker, queue: str) -> Callable[[], int]:
    """How many messages *queue* has, asked for past the proxy."""

    def count() -> int:
        with Connection(broker.url) as connection:
            declared = connection.default_channel.queue_declare(queue, durable=True, auto_delete=False)
            return int(declared.message_count)

    return count


def emptied(broker: Broker, queue: str) -> None:
    """Take out the one message that made a connection, and declared *queue* on it."""
    with Connection(broker.url) as connection:
        until(lambda: connection.default_channel.queue_purge(queue) == 1, within=60, what="it to be there")


def warmed(project: ModuleType, broker: Broker) -> Callable[[], int]:
    """Have the connection made that the next publish takes; how many messages its queue has, see ``asked``."""
    project.warm.delay()
    emptied(broker, broker.queue)
    return asked(broker, broker.queue)


def keys(project: ModuleType) -> dict[str, float]:
    """Seconds that each holder of a key has left."""
    return {one.task_id: one.left for one in windows(Hardening.expect(project.app)).held()}


def put_away(out: Path) -> int:
    return sum(1 for path in (out / "payloads").rglob("*") if path.is_file())


def plain(project: ModuleType, publish: Callable[[], Any]) -> None:
    publish()


def as_callback(project: ModuleType, publish: Callable[[], Any]) -> None:
    """As Celery publishes what follows a task, from 5.7 on."""
    around = getattr(project.app.amqp, "_retry_publish", None)
    publish() if around is None else around(publish)


def on_commit(project: ModuleType, publish: Callable[..., Any]) -> None:
    """One publish after the other, until the patience is over."""
    engine = create_engine("sqlite://")
    try:
        with Session(engine) as session:
            publish(on_commit=session)
            session.commit()
    finally:
        engine.dispose()  # from Python 3.13 on a connection that is left to the garbage collector is a warning


@pytest.mark.parametrize("way", [plain, as_callback, on_commit])
def test_an_answer_that_is_lost_before_the_port_is_closed(
    load_project: LoadProject,
    broker: Broker,
    start_proxy: Callable[[int], TcpProxy],
    out: Path,
    way: Callable[[ModuleType, Callable[..., Any]], None],
) -> None:
    """Payload and key are kept for the message, the key for a lease."""
    proxy = start_proxy(broker.port)
    project = load_project(SHOP, env={"BROKER_URL": broker.at(proxy.port).url})
    publish = partial(project.work.apply_async, (1, "x" * 5000), task_id="it")
    queue = warmed(project, broker)
    with answer_lost(proxy, queue), pytest.raises((OperationalError, PublishFailedError)):
        way(project, publish)
    assert queue() == 1
    assert put_away(out) == 1
    assert list(keys(project)) == ["it"]
    assert 0 < keys(project)["it"] <= LEASE


@on_redis
@pytest.mark.parametrize("way", [plain, as_callback])
def test_a_client_that_tries_again_by_itself(
    load_project: LoadProject,
    broker: Broker,
    start_proxy: Callable[[int], TcpProxy],
    out: Path,
    way: Callable[[ModuleType, Callable[..., Any]], None],
) -> None:
    """``retry_on_timeout`` of redis-py: the try that arrived shows in no error."""
    proxy = start_proxy(broker.port)
    conf = {"broker_transport_options": {"socket_timeout": 1.0, "retry_on_timeout": True}}
    project = load_project(SHOP, env={"BROKER_URL": broker.at(proxy.port).url, "CONF": repr(conf)})
    publish = partial(project.work.apply_async, (1, "x" * 5000), task_id="it", retry=False)
    queue = warmed(project, broker)
    with answer_lost(proxy, queue, hangs=True), pytest.raises(OperationalError, match="refused"):
        way(project, publish)
    assert queue() == 1
    assert put_away(out) == 1
    assert list(keys(project)) == ["it"]


def linked(project: ModuleType, following: Any) -> None:
    project.first.apply_async(link=following)


def chained(project: ModuleType, following: Any) -> None:
    chain(project.first.s(), following).apply_async()


def completed(project: ModuleType, following: Any) -> None:
    chord([project.first.s()])(following)


@on_redis
@pytest.mark.parametrize("start", [linked, chained, completed])
def test_what_follows_a_task(
    start_worker: StartWorker,
    load_project: LoadProject,
    broker: Broker,
    start_proxy: Callable[[int], TcpProxy],
    out: Path,
    start: Callable[[ModuleType, Any], None],
) -> None:
    """A callback, the rest of a chain and a chord's body, of a worker that loses its broker there."""
    proxy = start_proxy(broker.port)
    start_worker(SHOP, concurrency=1, env={"BROKER_URL": broker.at(proxy.port).url})
    project = load_project(SHOP)
    start(project, project.after.s(1).set(queue=f"{broker.queue}-next", task_id="it"))
    until(lambda: notes(out, "begun"), within=60, what="the first one to run")
    emptied(broker, f"{broker.queue}-next")
    with answer_lost(proxy, asked(broker, f"{broker.queue}-next")):
        (out / "gate").touch()
    until(lambda: keys(project).get("it", 0.0) <= LEASE, within=60, what="the worker to give up")
    assert list(keys(project)) == ["it"]


def test_a_broker_that_is_not_there(
    load_project: LoadProject, broker: Broker, start_proxy: Callable[[int], TcpProxy], out: Path
) -> None:
    """The plain case stays what it was: no try had a connection, and nothing is kept."""
    proxy = start_proxy(broker.port)
    project = load_project(SHOP, env={"BROKER_URL": broker.at(proxy.port).url})
    proxy.close_port()
    for way in (plain, as_callback):
        with pytest.raises(OperationalError):
            way(project, partial(project.work.apply_async, (1, "x" * 5000)))
        assert keys(project) == {}
        assert put_away(out) == 0
