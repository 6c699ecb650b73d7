"""The way to the broker fails, and comes back: so does the worker, soon, and what it ran is not run again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import pytest
from redis import Redis

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.notes import notes
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer
from tests.support.shop import SHOP
from tests.support.tcp_proxy import Direction, TcpProxy
from tests.support.until import until
from tests.support.worker import WorkerProcess

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.mortal, pytest.mark.timeout(300)]

#: Whether workers use our own Redis delivery. With kombu's a lost connection puts tasks that run
#: back into their queue, and a message that was on its way is lost: with ``False`` neither is asked.
OWN_DELIVERY = True

DELIVERY = {"CONF": repr({"hardened_redis_delivery": "hardened" if OWN_DELIVERY else "stock"})}

#: Seconds until a worker consumes again that a test allows. What is meant is ten.
BACK_WITHIN = 25.0

REDIS = pytest.mark.parametrize("broker", ["redis"], indirect=True)


class Proxy(TcpProxy):
    """A `TcpProxy` that can also forget: connections of before are silent for good, new ones work."""

    def __init__(self, target_port: int) -> None:
        self._generation = 0
        super().__init__(target_port)

    def forget(self) -> None:
        """As a firewall does that lost its table: nobody is told."""
        self._generation += 1

    def answer_new(self) -> None:
        """End a silence for new connections only: what was tried meanwhile hangs until its owner gives up."""
        self.forget()
        self._silent = frozenset()

    def lead_to(self, port: int) -> None:
        """New connections end at another server; those of before stay where they are."""
        self._target_port = port

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        born = self._generation
        write = writer.write
        writer.write = lambda data: write(data) if born == self._generation else None  # type: ignore[method-assign]
        await super()._pump(direction, reader, writer)


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    """Between the worker and its broker. The test itself goes straight to the server."""
    proxy = Proxy(broker.port)
    yield proxy
    proxy.stop()


Record = Callable[[str, float], None]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Note a measured time: it is in the file that ``--junitxml`` writes."""
    return lambda what, seconds: request.node.user_properties.append((what, round(seconds, 2)))


# --- faults: they begin when entered, and end when left --------------------------------------------


@contextlib.contextmanager
def frozen(broker: Broker, proxy: Proxy) -> Iterator[None]:
    """The server takes connections and answers nobody: SIGSTOP."""
    assert isinstance(broker.server, RedisServer)
    broker.server.pause()
    yield
    broker.server.resume()


@contextlib.contextmanager
def restarted(broker: Broker, proxy: Proxy) -> Iterator[None]:
    """kill -9, and a start with the data it had."""
    broker.server.kill()
    yield
    broker.server.start()


@contextlib.contextmanager
def loading(broker: Broker, proxy: Proxy) -> Iterator[None]:
    """The same, and it answers LOADING for some seconds."""
    assert isinstance(broker.server, RedisServer)
    with Redis(port=broker.port) as client:
        for n in range(3000):  # it looks at its clients every 1024 entries of its log
            client.set(f"ballast-{n}", n)
    broker.server._config["key-load-delay"] = 2000  # in microseconds, an entry
    broker.server.kill()
    yield
    broker.server.start()


@contextlib.contextmanager
def read_only(broker: Broker, proxy: Proxy) -> Iterator[None]:
    """It becomes a replica, of a master that is not there, and a master again: READONLY meanwhile."""
    with Redis(port=broker.port) as client:
        client.replicaof("127.0.0.1", str(free_port()))
        yield
        client.replicaof("NO", "ONE")


@contextlib.contextmanager
def clients_killed(broker: Broker, proxy: Proxy) -> Iterator[None]:
    """CLIENT KILL of every connection."""
    with Redis(port=broker.port) as client:
        for kind in ("normal", "pubsub"):
            client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        yield


@contextlib.contextmanager
def silent(broker: Broker, proxy: Proxy) -> Iterator[None]:
    """A cut that nobody is told of: connections stay and can be made, and what is sent goes nowhere."""
    proxy.silence()
    yield
    proxy.heal()


@contextlib.contextmanager
def forgotten(broker: Broker, proxy: Proxy) -> Iterator[None]:
    """Connections are silent from now on and stay so; new ones work."""
    proxy.forget()
    yield


@contextlib.contextmanager
def hanging(broker: Broker, proxy: Proxy) -> Iterator[None]:
    """Every connection is reset, and each new one is taken and never answered, also afterwards."""
    proxy.reset()
    proxy.silence()
    yield
    proxy.answer_new()


Fault = Callable[[Broker, Proxy], AbstractContextManager[None]]


# --- what is asked -----------------------------------------------------------------------------------


def starts(out: Path, order: str) -> int:
    """How often the body for *order* began."""
    return sum(line.split()[1] == order for line in notes(out, "starts"))


def seconds_until_back(project: ModuleType, out: Path) -> float:
    """Seconds from now until a task that is published now, or later, starts."""
    begin = time.monotonic()
    published = (f"probe-{n}" for n in itertools.count())
    probes: list[str] = []

    def started() -> bool:
        # One a second: kombu's delivery may lose those that are sent to a connection that is no more.
        if time.monotonic() > begin + len(probes):
            probes.append(next(published))
            project.fine.delay(probes[-1])
        return any(starts(out, probe) for probe in probes)

    until(started, within=60, what="the worker to consume again")
    back = time.monotonic() - begin
    if OWN_DELIVERY:
        until(lambda: all(starts(out, probe) for probe in probes), within=60, what="every probe to start")
    return back


def stand(broker: Broker, worker: WorkerProcess) -> None:
    """It is there, and stops in good order."""
    assert worker.running
    worker.signal(signal.SIGTERM)
    assert worker.wait(within=60) == 0


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (frozen, 12.0),
        (restarted, 3.0),
        (loading, 1.0),
        (read_only, 6.0),
        (clients_killed, 1.0),
        (silent, 20.0),
        (silent, 45.0),
        (forgotten, 1.0),
        (hanging, 12.0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@REDIS
def test_a_worker_comes_back(
    broker: Broker,
    proxy: Proxy,
    start_worker: StartWorker,
    load_project: LoadProject,
    out: Path,
    record: Record,
    fault: Fault,
    seconds: float,
) -> None:
    """
    After each fault the worker runs new tasks, soon; one that ended during the fault and one that
    goes on beyond it have ended, and, by our own delivery, were started once.
    """
    worker = start_worker(SHOP, concurrency=3, env={**DELIVERY, "BROKER_URL": broker.at(proxy.port).url})
    project = load_project(SHOP)
    project.slow.delay("during", seconds / 2)
    project.slow.delay("beyond", seconds + 6)
    until(lambda: starts(out, "during") and starts(out, "beyond"), within=60, what="both to start")

    with fault(broker, proxy):
        time.sleep(seconds)  # as long as it lasts there is nothing to wait for
    back = seconds_until_back(project, out)

    record("back_after", back)
    for order in ("during", "beyond"):
        until(lambda: any(order in line for line in notes(out, "ends")), within=60, what=f"{order} to end")  # noqa: B023
    if OWN_DELIVERY:
        until(lambda: quiet(broker), within=60, what="every message to be acked")
        assert (starts(out, "during"), starts(out, "beyond")) == (1, 1)
    assert back <= BACK_WITHIN
    stand(broker, worker)


def quiet(broker: Broker) -> bool:
    """Whether nothing waits and nothing is held."""
    with Redis.from_url(broker.url) as client:
        return not client.llen(broker.queue) and not client.hlen("unacked")


@REDIS
def test_a_worker_follows_a_failover(
    broker: Broker,
    proxy: Proxy,
    start_worker: StartWorker,
    load_project: LoadProject,
    out: Path,
    tmp_path: Path,
    record: Record,
) -> None:
    """
    The replica is promoted and the name leads to it; the old master lives on as its replica,
    with the worker's connections. The worker leaves it for the new one.
    """
    standby = RedisServer(tmp_path / "standby", persist=True)
    with standby.start():
        with Redis(port=standby.port) as new:
            new.replicaof("127.0.0.1", str(broker.port))
            until(lambda: new.info("replication")["master_link_status"] == "up", what="the replica to follow")
        worker = start_worker(SHOP, concurrency=3, env={**DELIVERY, "BROKER_URL": broker.at(proxy.port).url})
        load_project(SHOP).slow.delay("beyond", 8.0)
        until(lambda: starts(out, "beyond"), within=60, what="it to start")

        assert standby.port is not None
        with Redis(port=standby.port) as new, Redis(port=broker.port) as old:
            new.replicaof("NO", "ONE")
            proxy.lead_to(standby.port)
            old.replicaof("127.0.0.1", str(standby.port))
        project = load_project(SHOP, env={"BROKER_URL": broker.at(standby.port).url})
        back = seconds_until_back(project, out)

        record("back_after", back)
        until(lambda: notes(out, "ends"), within=60, what="it to end")
        if OWN_DELIVERY:
            until(lambda: quiet(broker.at(standby.port)), within=60, what="every message to be acked")
            assert starts(out, "beyond") == 1
        assert back <= BACK_WITHIN
        stand(broker, worker)


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_worker_comes_back_to_rabbitmq(
    broker: Broker,
    start_worker: StartWorker,
    load_project: LoadProject,
    out: Path,
    record: Record,
) -> None:
    """After kill -9 of the node and its start: what it runs it runs again, by the protocol, and new tasks soon."""
    worker = start_worker(SHOP, concurrency=3)
    project = load_project(SHOP)
    project.slow.delay("beyond", 8.0)
    until(lambda: starts(out, "beyond"), within=60, what="it to start")

    broker.server.kill()
    worker.wait_for_log("Trying again in", within=60)
    broker.server.start()
    back = seconds_until_back(project, out)

    record("back_after", back)
    until(lambda: notes(out, "ends"), within=60, what="it to end")
    assert back <= BACK_WITHIN
    stand(broker, worker)


@pytest.mark.parametrize("fault", [restarted, frozen, silent], ids=lambda fault: fault.__name__)
@REDIS
def test_sigterm_while_the_broker_is_away(
    broker: Broker,
    proxy: Proxy,
    start_worker: StartWorker,
    load_project: LoadProject,
    out: Path,
    record: Record,
    fault: Fault,
) -> None:
    """The worker ends the task it runs, gives up on its broker, and ends."""
    worker = start_worker(SHOP, env={**DELIVERY, "BROKER_URL": broker.at(proxy.port).url})
    load_project(SHOP).slow.delay("last", 8.0)
    until(lambda: starts(out, "last"), within=60, what="it to start")

    with fault(broker, proxy):
        if fault is restarted:
            worker.wait_for_log("Cannot connect", within=60)
        asked = time.monotonic()
        worker.signal(signal.SIGTERM)
        worker.wait(within=90)
        took = time.monotonic() - asked

    record("ended_after", took)
    assert notes(out, "ends"), "it was cut short"
    assert took <= 60
