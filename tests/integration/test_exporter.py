"""``celery -A proj hardened exporter`` on real brokers: what it tells, with no worker up, and what ends it or not."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kombu import Queue
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from celery_hardened import Hardening
from tests.fixtures.processes import LoadProject, RunCelery, StartProcess, StartWorker
from tests.support.broker import Broker
from tests.support.health import Probed
from tests.support.letters import letter_of
from tests.support.notes import notes
from tests.support.proc import Proc
from tests.support.tcp_proxy import TcpProxy
from tests.support.until import until

pytestmark = pytest.mark.integration

APP = (Path(__file__).parents[1] / "support" / "exporter_app.py").read_text()
COMMAND = ("python", "-m", "celery", "-A", "proj", "hardened", "exporter", "--every", "0.5")

on_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)
on_rabbitmq = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)

StartProxy = Callable[[int], TcpProxy]


class Exporter(Probed):
    """A running exporter, and its numbers."""

    process: Proc

    def value(self, name: str, **labels: str) -> float | None:
        """Of one series; ``None``: there is none."""
        for family in text_string_to_metric_families(self.metrics()):
            for sample in family.samples:
                if sample.name == f"celery_hardened_{name}" and sample.labels == labels:
                    return float(sample.value)
        return None

    def wait_for(self, expected: float | None, name: str, *, within: float = 60.0, **labels: str) -> None:
        until(lambda: self.value(name, **labels) == expected, within=within, what=f"{name} {labels} to be {expected}")


@pytest.fixture
def exporter(start_process: StartProcess, tmp_path: Path) -> Callable[..., Exporter]:
    def start(*options: str, **env: str) -> Exporter:
        made = Exporter(tmp_path / "health")
        made.process = start_process(APP, *COMMAND, *options, env={**made.env, **env})
        made.wait("readyz", good=True)
        return made

    return start


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
def test_it_needs_no_worker(
    exporter: Callable[..., Exporter], load_project: LoadProject, broker: Broker, ended_by: signal.Signals
) -> None:
    """With nobody up it tells what waits, its probes are green, and SIGTERM or Ctrl-C ends it with code 0."""
    project = load_project(APP)
    for _ in range(3):
        project.fine.delay()
    told = exporter("--queues", "extra")
    told.wait_for(3, "queue_waiting", queue=broker.queue)
    assert told.ask("livez").good
    assert told.ask("startupz").good
    if broker.kind == "redis":
        age = told.value("queue_oldest_age_seconds", queue=broker.queue)
        assert age is not None
        assert 0 < age < 180
        assert told.value("queue_waiting", queue="extra") == 0
        assert (told.value("queue_unacked"), told.value("queue_delayed")) == (0, 0)
    else:
        assert told.value("queue_consumers", queue=broker.queue) == 0
        assert (told.value("queue_missing", queue="extra"), told.value("queue_waiting", queue="extra")) == (1, None)
        assert told.value("queue_oldest_age_seconds", queue=broker.queue) is None
    told.process.signal(ended_by)
    assert told.process.wait() == 0
    assert "Traceback" not in told.process.log()
    assert not list(told.folder.iterdir())


@on_redis
def test_priorities_delays_and_leases(
    exporter: Callable[..., Exporter], start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    All priorities of a queue wait in one number; what a worker runs is held, what is not due is delayed, and in
    neither state does it wait.
    """
    project = load_project(APP)
    start_worker(APP, concurrency=1, pool="threads")
    for _ in range(4):
        project.fine.apply_async(countdown=3600)
    told = exporter()
    told.wait_for(4, "queue_delayed")
    project.slow.delay(120)
    until(lambda: notes(out, "starts"), within=60, what="the task to run")
    told.wait_for(1, "queue_unacked")
    assert told.value("queue_delayed") == 4
    assert told.value("queue_waiting", queue=broker.queue) == 0
    for priority in range(10):
        project.fine.apply_async(priority=priority, queue="busy")
    told.process.stop()
    told = exporter("--queues", "busy")
    told.wait_for(10, "queue_waiting", queue="busy")


@on_redis
def test_behind_a_prefix(exporter: Callable[..., Exporter], load_project: LoadProject, broker: Broker) -> None:
    """``global_keyprefix``, the separator and the steps are the broker's options, and others' lists are not counted."""
    conf = repr({"broker_transport_options": {"global_keyprefix": "app1:", "sep": ":", "priority_steps": [0, 5]}})
    project = load_project(APP, {"CONF": conf})
    for priority in (0, 3, 5, 9):
        project.fine.apply_async(priority=priority)
    Redis.from_url(broker.url).lpush(broker.queue, "{}")
    told = exporter(CONF=conf)
    told.wait_for(4, "queue_waiting", queue=broker.queue)
    assert told.value("queue_oldest_age_seconds", queue=broker.queue) is not None


def test_dead_letters(
    exporter: Callable[..., Exporter], start_worker: StartWorker, load_project: LoadProject, broker: Broker
) -> None:
    """Open letters by queue and reason; one that was discarded is not counted any more."""
    project = load_project(APP)
    start_worker(APP, concurrency=1, pool="threads")
    letters = [letter_of(project, project.broken.delay().id).letter for _ in range(2)]
    told = exporter()
    told.wait_for(2, "dead_letters", queue=broker.queue, reason=letters[0].reason)
    age = told.value("dead_letters_oldest_age_seconds")
    assert age is not None
    assert 0 <= age < 180
    Hardening.expect(project.app).discard([one.id for one in letters], by="ann", why="test")
    told.wait_for(None, "dead_letters", queue=broker.queue, reason=letters[0].reason)


@pytest.mark.chaos
@pytest.mark.slow
def test_broker_away_and_back(
    exporter: Callable[..., Exporter], load_project: LoadProject, broker: Broker, start_proxy: StartProxy
) -> None:
    """
    The broker refuses, or says nothing at all: a scrape is answered at once all the same, errors are counted, the
    time it last answered stands still, and the process lives. It answers again, and so do the numbers.
    """
    load_project(APP).fine.delay()
    proxy = start_proxy(broker.port)
    told = exporter(BROKER_URL=broker.at(proxy.port).url)
    told.wait_for(1, "queue_waiting", queue=broker.queue)
    for fault in (proxy.down, proxy.silence):
        errors = told.value("queue_scrape_errors_total", store="broker") or 0
        fault()

        def failed(before: float = errors) -> bool:
            return (told.value("queue_scrape_errors_total", store="broker") or 0) > before

        until(failed, within=90, what="an error to be counted")
        since = told.value("queue_scrape_timestamp_seconds", store="broker")
        began = time.monotonic()
        for _ in range(10):
            told.metrics()
        assert time.monotonic() - began < 10
        assert told.value("queue_scrape_timestamp_seconds", store="broker") == since
        assert told.ask("livez").good
        proxy.heal()

        def answers(before: float | None = since) -> bool:
            now = told.value("queue_scrape_timestamp_seconds", store="broker")
            return now is not None and before is not None and now > before

        until(answers, within=90, what="the broker to be heard again")
        told.wait_for(1, "queue_waiting", queue=broker.queue)
    assert told.process.running


@on_redis
def test_a_port_that_is_taken(run_celery: RunCelery, broker: Broker) -> None:
    """It is what the process is for: one sentence, and it ends."""
    done = run_celery(APP, "hardened", "exporter", "--http", f"127.0.0.1:{broker.port}")
    assert done.returncode == 2
    assert "cannot be served" in done.stderr
    assert "Traceback" not in done.stderr
    done = run_celery(APP, "hardened", "exporter", "--http", "here")
    assert done.returncode == 2
    assert "--http='here' is no address" in done.stderr


@on_redis
def test_no_beat_leads(exporter: Callable[..., Exporter], broker: Broker, environment: dict[str, str]) -> None:
    """Where no beat ever led nothing is said of one; where one did and none does, the exporter says 0."""
    told = exporter()
    told.wait_for(0, "queue_scrape_errors_total", store="beat")
    assert told.value("beat_leader_known") is None
    client = Redis.from_url(environment["RECORDS_URL"])
    client.hset(f"{environment['KEY_PREFIX']}:{{beat}}:term", mapping={"term": 7, "ended": "expired"})
    told.wait_for(0, "beat_leader_known")
    assert told.value("beat_leader_term") == 7


# --- RabbitMQ ----------------------------------------------------------------------------------------------------


@on_rabbitmq
def test_messages_say_when_they_were_published(
    load_project: LoadProject, start_worker: StartWorker, broker: Broker
) -> None:
    """
    Each message has the property that RabbitMQ's own metric of a queue's age goes by, in whole seconds of its own
    publish: a retry does not repeat the one of the attempt before, and a caller's own is no publish.
    """
    project = load_project(APP)
    before = int(time.time())
    project.again.apply_async(headers={"x": 1}, timestamp=1)

    def taken(queue: str) -> list[int]:
        with project.app.connection_for_read() as connection:
            bound = Queue(queue)(connection.default_channel)
            bound.declare()
            message = bound.get(no_ack=False)
            if message is None:
                return []
            message.requeue()
            return [message.properties["timestamp"]]

    first = until(lambda: taken(broker.queue), within=30, what="the first message")
    assert before <= first[0] <= time.time()
    until(lambda: time.time() >= first[0] + 1, within=10, what="the next second")
    start_worker(APP, concurrency=1, pool="threads")
    second = until(lambda: taken(broker.queue + "-again"), within=60, what="the retry")
    assert second[0] > first[0]


@on_rabbitmq
def test_quorum_queues(
    exporter: Callable[..., Exporter], load_project: LoadProject, start_worker: StartWorker, broker: Broker, out: Path
) -> None:
    """Quorum queues of ours: ready messages, consumers, what the broker delays, and the depth of dead letter queues."""
    conf = repr({"hardened_amqp_queues": "quorum", "broker_native_delayed_delivery_queue_type": "classic"})
    project = load_project(APP, {"CONF": conf})
    project.fine.delay()
    told = exporter("--queues", "nowhere", CONF=conf)
    told.wait_for(1, "queue_waiting", queue=broker.queue)
    told.wait_for(0, "dead_letter_queue_waiting", queue=broker.queue)
    assert told.value("queue_missing", queue="nowhere") == 1
    project.fine.apply_async(countdown=3600)
    told.wait_for(1, "queue_delayed")
    with project.app.connection_for_write() as connection:
        connection.Producer().publish("dead", exchange="", routing_key=f"{broker.queue}.dlq")
    told.wait_for(1, "dead_letter_queue_waiting", queue=broker.queue)
    start_worker(APP, concurrency=1, pool="threads", env={"CONF": conf})
    until(lambda: notes(out, "runs"), within=60, what="the task to run")
    told.wait_for(0, "queue_waiting", queue=broker.queue)
    told.wait_for(1, "queue_consumers", queue=broker.queue)


@on_rabbitmq
def test_a_queue_of_somebody_elses(
    exporter: Callable[..., Exporter], load_project: LoadProject, broker: Broker
) -> None:
    """One that the broker will not let us see has no numbers, and hides no other; the channel it cost is made anew."""
    project = load_project(APP)
    project.fine.delay()
    with project.app.connection_for_read() as connection:
        Queue(f"{broker.queue}-mine", exclusive=True)(connection.default_channel).declare()
        told = exporter("--queues", f"{broker.queue}-mine,{broker.queue}-gone")
        told.wait_for(1, "queue_waiting", queue=broker.queue)
        assert told.value("queue_waiting", queue=f"{broker.queue}-mine") is None
        assert told.value("queue_missing", queue=f"{broker.queue}-mine") is None
        assert told.value("queue_missing", queue=f"{broker.queue}-gone") == 1
        assert told.value("queue_scrape_errors_total", store="broker") == 0
