"""What RabbitMQ takes out of a queue becomes a dead letter, or goes back where it came from."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from kombu import Connection

from celery_hardened.dead_letter.contract import Query, StoredLetter
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.amqp_app import SOURCE
from tests.support.broker import Broker
from tests.support.letters import task_headers
from tests.support.notes import notes
from tests.support.rabbitmq import BINARIES, RabbitMQ
from tests.support.redis_server import RedisServer
from tests.support.until import until
from tests.support.worker import POOLS

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)]


def letters(project: ModuleType) -> list[StoredLetter]:
    return list(project.store.find(Query()).letters)


def the_letter(project: ModuleType) -> StoredLetter:
    """Wait for a letter, and have it be the only one."""
    found: list[StoredLetter] = until(lambda: letters(project), within=60, what="a dead letter")
    assert len(found) == 1
    return found[0]


def waiting(broker: Broker, suffix: str = "") -> int:
    """Messages in the test's queue that no consumer holds."""
    with Connection(broker.url) as connection, connection.channel() as channel:
        count: int = channel.queue_declare(broker.queue + suffix, passive=True).message_count
        return count


#: The drain's clock, faster.
HURRIED = """
import celery_hardened.dead_letter.drain as drain
drain._LOOK_EVERY = 0.5
drain._HOLD_MAX = 2.0
"""


@pytest.mark.parametrize("pool", POOLS)
def test_rejected(start_worker: StartWorker, load_project: LoadProject, broker: Broker, pool: str) -> None:
    """A message its consumer rejects for good is a letter with its body, its ids and its way into the queue."""
    start_worker(SOURCE, pool=pool)
    proj = load_project(SOURCE)
    result = proj.refuse.delay()

    letter = the_letter(proj).letter

    assert (letter.reason, letter.task, letter.task_id) == ("rejected", "proj.refuse", result.id)
    assert (letter.queue, letter.exchange, letter.routing_key) == (broker.queue, "", broker.queue)
    assert (letter.worker, letter.version, letter.attempts) == ("w1@test", "v1", ())
    assert letter.body.startswith(b"[[], {}")
    until(lambda: waiting(broker, ".dlq") == 0, what="the dead letter queue to be empty")


def test_rejected_and_written_down_already(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker
) -> None:
    """The letter a worker wrote itself before it rejected the message is the only one."""
    proj = load_project(SOURCE)
    proj.refuse.apply_async(task_id="the-one")
    with Connection(broker.url) as connection, connection.channel() as channel:
        until(lambda: waiting(broker), what="the message")
        message = channel.basic_get(broker.queue)
        from celery_hardened.dead_letter.capture import from_wire
        from celery_hardened.wire import capture

        wire = capture(channel.message_to_python(message))
        written = from_wire(
            wire, reason="unknown_task", error_type="NotRegistered", error_message="?", now=1.0, worker="w",
            version=None, queue=broker.queue, traceback_max=100,
        )  # fmt: skip
        assert proj.store.put(written)
        channel.basic_reject(message.delivery_tag, requeue=False)
    until(lambda: waiting(broker, ".dlq") == 1, what="the broker to move it")

    start_worker(SOURCE)

    until(lambda: waiting(broker, ".dlq") == 0, what="the dead letter queue to be drained")
    assert the_letter(proj).letter.reason == "unknown_task"


def test_expired(start_worker: StartWorker, load_project: LoadProject, broker: Broker) -> None:
    """A message that expires while nobody consumes is a letter, dated by the broker."""
    proj = load_project(SOURCE)
    proj.add.apply_async((1, 2), expires=0.2)
    until(lambda: waiting(broker, ".dlq") == 1, what="the message to expire")

    start_worker(SOURCE)

    letter = the_letter(proj).letter
    assert letter.reason == "expired_horizon"
    assert "expired in queue" in letter.error_message


def test_over_the_maximum_length(start_worker: StartWorker, load_project: LoadProject) -> None:
    """What a full queue pushes out is a letter that says so."""
    bounded = SOURCE + "\napp.conf.task_queues = [Queue(os.environ['QUEUE'], max_length=1)]\n"
    proj = load_project(bounded)
    proj.add.delay(1, 1)
    proj.add.delay(2, 2)

    start_worker(bounded)

    letter = the_letter(proj).letter
    assert letter.reason == "rejected"
    assert "maximum length" in letter.error_message


def test_malformed(start_worker: StartWorker, load_project: LoadProject, broker: Broker) -> None:
    """What is no task at all becomes a letter ``malformed``, two of them two letters; the worker runs on."""
    worker = start_worker(SOURCE)
    proj = load_project(SOURCE)
    with Connection(broker.url) as connection, connection.channel() as channel:
        for body in (b"\xff\x00garbage", b'{"id": 7}'):
            connection.Producer(channel).publish(
                body, routing_key=f"{broker.queue}.dlq", content_type="application/x-odd", content_encoding="binary",
                headers={"compression": "application/x-bz2", "hardened": 3, "x-death": "never"},
            )  # fmt: skip

    until(lambda: len(letters(proj)) == 2, what="two letters")

    assert {stored.letter.reason for stored in letters(proj)} == {"malformed"}
    assert proj.add.delay(2, 3).get(timeout=30) == 5
    assert worker.running


def test_the_printed_command(start_worker: StartWorker, load_project: LoadProject, broker: Broker) -> None:
    """The command a worker prints for a queue it keeps gives that queue a dead letter queue, which is drained."""
    with Connection(broker.url) as connection, connection.channel() as channel:
        channel.queue_declare(broker.queue, durable=True, auto_delete=False)
    worker = start_worker(SOURCE)
    node = broker.server
    assert isinstance(node, RabbitMQ)
    printed = next(line for line in worker.log().splitlines() if "rabbitmqctl set_policy" in line)
    command = shlex.split(printed[printed.index("rabbitmqctl") :])

    subprocess.run(
        [BINARIES / "rabbitmqctl", "-n", node.node, *command[1:]], env=node.process.env, check=True, timeout=60
    )
    proj = load_project(SOURCE)
    proj.refuse.delay()

    assert the_letter(proj).letter.reason == "rejected"


def test_a_queue_added_later(start_worker: StartWorker, load_project: LoadProject, broker: Broker) -> None:
    """A queue the worker is told to consume while it runs is drained too; one whose dead letter
    queue is deleted and made anew is drained again, and the worker's connection is not lost over it."""
    worker = start_worker(SOURCE + HURRIED)
    proj = load_project(SOURCE)
    later = f"{broker.queue}-later"
    proj.app.control.add_consumer(later, reply=True, timeout=10)
    proj.refuse.apply_async(queue=later)
    assert the_letter(proj).letter.queue == later

    with Connection(broker.url) as connection, connection.channel() as channel:
        channel.queue_delete(f"{later}.dlq")
        worker.wait_for_log("ended the consumer")
        channel.queue_declare(f"{later}.dlq", durable=True, auto_delete=False)
        channel.queue_bind(f"{later}.dlq", f"hardened.dlx.{later}")
    until(lambda: worker.log().count(f"draining {later}.dlq") == 2, what="it to be drained again")
    proj.refuse.apply_async(queue=later)

    until(lambda: len(letters(proj)) == 2, what="the second letter")
    assert "Connection to broker lost" not in worker.log()


# --- the delivery limit ---------------------------------------------------------------------------


def test_limit_without_deaths_goes_back(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """A message that reached the delivery limit by returns alone is back in its queue as a new one, and runs."""
    worker = start_worker(SOURCE, env={"REQUEUE": "1"})
    proj = load_project(SOURCE)
    result = proj.hot_potato.delay()
    worker.wait_for_log("is back in its queue", within=120)
    worker.stop()
    seen = len(notes(out, "runs"))

    start_worker(SOURCE)

    assert result.get(timeout=60) == "eaten"
    assert seen > 20
    assert letters(proj) == []


def test_limit_with_deaths_is_poison(start_worker: StartWorker, load_project: LoadProject) -> None:
    """With a recorded death the same message is a ``poison`` letter and is not started again."""
    start_worker(SOURCE, env={"REQUEUE": "1", "DEATHS": "2"})
    proj = load_project(SOURCE)
    proj.hot_potato.delay()

    letter = the_letter(proj).letter

    assert (letter.reason, letter.deaths) == ("poison", 2)


def test_limit_and_the_queue_is_gone(start_worker: StartWorker, load_project: LoadProject, broker: Broker) -> None:
    """A message that belongs back into a queue that was deleted is a letter instead of nothing."""
    proj = load_project(SOURCE)
    proj.add.delay(1, 2)
    other = f"{broker.queue}-other"
    headers = task_headers("proj.add", id="orphan")
    death = [{"queue": other, "reason": "delivery_limit", "exchange": "", "routing-keys": [other], "count": 1}]
    with Connection(broker.url) as connection, connection.channel() as channel:
        channel.queue_declare(f"{other}.dlq", durable=True, auto_delete=False)
        channel.queue_declare(other, durable=True, auto_delete=False)
    source = SOURCE + f"\napp.conf.task_queues = [Queue({other!r}, durable=True, no_declare=True)]\n"
    start_worker(source)
    with Connection(broker.url) as connection, connection.channel() as channel:
        channel.queue_delete(other)
        connection.Producer(channel).publish(
            b"[[1, 2], {}, {}]", routing_key=f"{other}.dlq", content_type="application/json",
            content_encoding="utf-8", headers={**headers, "x-death": death},
        )  # fmt: skip

    letter = the_letter(proj).letter
    assert (letter.task_id, letter.queue) == ("orphan", other)


# --- the store is down ------------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_store_down(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, tmp_path: Path, pool: str
) -> None:
    """While the store is down messages wait in the broker, without a hot loop and across a worker's death;
    when it is back each is a letter, none is lost, none is double."""
    records = RedisServer(tmp_path / "records", persist=True)
    records.start()
    try:
        env = {"RECORDS_URL": records.database()}
        proj = load_project(SOURCE, env)
        worker = start_worker(SOURCE, env=env, pool=pool)
        records.kill()
        ids = {proj.refuse.delay().id for _ in range(25)}
        worker.wait_for_log("wait there", within=60)
        assert proj.add.delay(2, 3).get(timeout=30) == 5
        worker.kill_group()
        second = start_worker(SOURCE, env=env, pool=pool)
        second.wait_for_log("wait there", within=60)

        records.start()

        until(lambda: len(letters(proj)) == 25, within=120, what="25 letters")
        assert {stored.letter.task_id for stored in letters(proj)} == ids
        until(lambda: waiting(broker, ".dlq") == 0, what="the dead letter queue to be empty")
        assert second.log().count("wait there") < 15
    finally:
        records.stop()


@pytest.mark.chaos
def test_store_down_for_long(
    start_worker: StartWorker, load_project: LoadProject, broker: Broker, tmp_path: Path
) -> None:
    """Messages are not held unacked until RabbitMQ closes the channel over it: after a while they are
    given back and fetched anew, which their dead letter queue suffers without limit."""
    records = RedisServer(tmp_path / "records", persist=True)
    records.start()
    try:
        env = {"RECORDS_URL": records.database()}
        proj = load_project(SOURCE, env)
        worker = start_worker(SOURCE + HURRIED, env=env)
        records.kill()
        proj.refuse.delay()
        until(lambda: worker.log().count("draining") >= 3, within=120, what="the message to be fetched anew twice")

        records.start()

        assert the_letter(proj).letter.reason == "rejected"
        assert "Connection to broker lost" not in worker.log()
    finally:
        records.stop()
