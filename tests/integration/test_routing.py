"""Tasks that came through a topic exchange: whatever sends them again finds their queue."""

from __future__ import annotations

from pathlib import Path

from celery import Celery
from kombu import Queue

from celery_hardened import Hardening, Query, harden
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.letters import letter_of
from tests.support.notes import notes
from tests.support.shop import SHOP
from tests.support.until import until

#: One queue bound to a topic by a pattern, beside the default one.
TOPIC = """{"task_queues": [
    __import__("kombu").Queue(
        os.environ["QUEUE"] + ".orders",
        __import__("kombu").Exchange(os.environ["QUEUE"] + ".topic", type="topic"),
        routing_key="orders.#",
    ),
    __import__("kombu").Queue(os.environ["QUEUE"]),
]}"""


def test_queues_without_a_routing_key_share_one(broker: Broker) -> None:
    """What W019 warns of, on each broker: by the name of a queue a message arrives there alone; by exchange and key
    in all that have no key of their own."""
    names = [f"{broker.queue}.{name}" for name in ("low", "high")]
    app = Celery("shop", broker=broker.url, set_as_current=False)
    app.conf.update(task_default_queue=names[0], task_queues=[Queue(name) for name in names])
    harden(app)
    with app.connection_for_write() as connection, connection.channel() as channel:
        for queue in app.amqp.queues.values():
            queue(channel).declare()

        def waiting() -> list[int]:
            # An empty queue on Redis is none.
            return [channel.queue_declare(name, passive=broker.kind == "rabbitmq").message_count for name in names]

        app.send_task("x", queue=names[1])
        until(lambda: waiting() == [0, 1], within=30, what="one message in the queue that was named")
        app.send_task("x", exchange=names[0], routing_key=names[0])
        until(lambda: waiting() == [1, 2], within=30, what="a copy in each queue")
        for name in names:
            channel.queue_delete(name)
    app.close()


def test_retry_death_and_redrive_reach_the_queue_behind_a_pattern(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    The routing key names no queue and fits the binding only as a pattern: a retry, the next
    start after a death and a redrive are consumed all the same.
    """
    env = {"CONF": TOPIC}
    start_worker(SHOP, env=env)
    project = load_project(SHOP, env=env)
    queue = f"{project.app.conf.task_default_queue}.orders"
    route = {"queue": queue, "routing_key": "orders.eu"}

    assert project.flaky.apply_async(("f",), **route).get(timeout=60) == "f"
    killer = letter_of(project, project.killer.apply_async(("k",), **route).id)
    assert (killer.letter.reason, killer.letter.queue) == ("poison", queue)
    fixable = project.fixable.apply_async(("x",), **route)
    letter = letter_of(project, fixable.id).letter
    assert letter.queue == queue
    (out / "fixed").touch()
    hardening = Hardening.of(project.app)
    assert hardening is not None
    assert hardening.redrive(Query(ids=(letter.id,)), by="test", why="fixed").sent == 1
    until(
        lambda: sum(line.startswith("proj.fixable x") for line in notes(out, "starts")) == 2,
        within=60,
        what="the redriven task to start",
    )
