"""Arguments are where they have to be, in the message, the result and the dead letter, and nowhere else."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kombu import Connection
from redis import Redis

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.letters import letter_of, letters, publish_raw, task_headers
from tests.support.ports import free_port
from tests.support.until import until

APP = (Path(__file__).parents[1] / "support" / "secretive_app.py").read_text()

SECRET = "marker-4111-1111"


@contextmanager
def heard(project: ModuleType) -> Iterator[list[str]]:
    """All events on the broker meanwhile, each as JSON, without the return value that ``task-succeeded`` tells."""
    said: list[str] = []
    connection = project.app.connection()

    def hear(event: dict[str, Any]) -> None:
        event.pop("result", None)  # the result is where results are
        said.append(json.dumps(event))

    receiver = project.app.events.Receiver(connection, handlers={"*": hear})

    def listen() -> None:
        # On one connection to the end: nobody keeps what is said between two.
        for _ in receiver.consume(limit=None, timeout=None, wakeup=False, safety_interval=0.1):
            pass

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        # Whoever is not yet connected hears nothing of what is said; a heartbeat comes every two seconds.
        until(lambda: said, within=60, what="the first event to be heard")
        yield said
    finally:
        receiver.should_stop = True
        thread.join()
        connection.release()


def send_all(project: ModuleType) -> dict[str, Any]:
    """Each kind of task, with the secret by position and by name."""
    sent = {}
    for name in ("fine", "flaky", "broken", "once", "single"):
        sent[name] = getattr(project, name).delay(name, SECRET, note=SECRET)
    return sent


def in_redis(url: str) -> set[str]:
    """The keys of a Redis database whose name or value holds the secret in clear."""
    with Redis.from_url(url) as client:
        found = set()
        for key in client.scan_iter(count=1000):
            kind = client.type(key)
            read: dict[bytes, Any] = {
                b"string": lambda key: client.get(key),
                b"hash": lambda key: client.hgetall(key),
                b"list": lambda key: client.lrange(key, 0, -1),
                b"set": lambda key: client.smembers(key),
                b"zset": lambda key: client.zrange(key, 0, -1),
                b"stream": lambda key: client.xrange(key),
                b"none": lambda key: None,  # it has expired meanwhile
            }
            if SECRET in f"{key!r} {read[kind](key)!r}":
                found.add(key.decode())
        return found


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("lines", ["text", "json"])
def test_no_argument_is_anywhere_else(
    pool: str,
    lines: str,
    broker: Broker,
    start_worker: StartWorker,
    load_project: LoadProject,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """Output, log file, metrics, events, and every key of Redis but the results: of tasks that succeed, retry, fail,
    are replayed and refused, with small arguments and with arguments in the payload store."""
    port, logfile = free_port(), tmp_path / "worker.log"
    env = {"HARDENED_HTTP": f"127.0.0.1:{port}"} | ({"JSON_LOGS": "1"} if lines == "json" else {})
    args = ["-E"] if lines == "json" else ["-E", "--logfile", str(logfile)]
    worker = start_worker(APP, pool=pool, env=env, args=args, wait=False)
    project = load_project(APP)

    def output() -> str:
        return worker.log() + (logfile.read_text() if logfile.exists() else "")

    until(lambda: " ready." in output(), within=60, what="the worker to be ready")
    with heard(project) as events:
        sent = send_all(project)
        for name in ("fine", "flaky", "once", "single"):
            sent[name].get(timeout=60)
        letter_of(project, sent["broken"].id)
        large = project.fine.delay("large", SECRET * 20_000, note="large")
        assert len(large.get(timeout=60)) == len(SECRET) * 20_000
        assert project.once.delay("once", SECRET, note=SECRET).get(timeout=60) == "once"  # replayed
        tasks = "task-received"
        until(lambda: len([event for event in events if tasks in event]) > 4, within=60, what="events of tasks")
        shown = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()

    assert "proj.fine" in shown
    assert SECRET not in shown
    assert len(events) > 8
    assert not [event for event in events if SECRET in event]
    records = in_redis(environment["RECORDS_URL"]) | in_redis(environment["RESULT_URL"])
    assert {key for key in records if not key.startswith("celery-task-meta-")} == set()
    worker.stop()
    assert "proj.fine" in output()
    assert SECRET not in output()


def test_what_waits_in_the_broker_shows_it_in_the_body_only(broker: Broker, load_project: LoadProject) -> None:
    """Headers and properties of a message, of a first publish and of one by name."""
    project = load_project(APP)
    send_all(project)
    project.single.delay("refused", SECRET)
    seen = 0
    with Connection(broker.url) as connection, connection.channel() as channel:
        while (message := channel.basic_get(broker.queue, no_ack=True)) is not None:
            message = channel.message_to_python(message) if isinstance(message, dict) else message
            seen += 1
            body = message.body if isinstance(message.body, str) else bytes(message.body).decode()
            assert SECRET in body
            assert SECRET not in repr((message.headers, message.properties, message.delivery_info))
    assert seen == 5


def test_bad_input_is_not_quoted(
    broker: Broker, start_worker: StartWorker, load_project: LoadProject, environment: dict[str, str]
) -> None:
    """Of a message that nothing can run, neither its body nor what its headers show of it is printed."""
    worker = start_worker(APP)
    project = load_project(APP)
    shown = {"argsrepr": f"('{SECRET}',)", "kwargsrepr": f"{{'note': '{SECRET}'}}"}
    good = json.dumps([[SECRET], {"note": SECRET}, {}])
    publish_raw(broker, body=good, headers=task_headers("nowhere", id="unknown", **shown))
    publish_raw(broker, body=f"not json {SECRET}", headers=task_headers("proj.fine", id="undecodable", **shown))
    publish_raw(broker, body=json.dumps({"card": SECRET}))
    publish_raw(broker, body=json.dumps([[SECRET], SECRET, {}]), headers=task_headers("proj.fine", id="odd", **shown))
    until(lambda: len(letters(project)) == 4, within=60, what="four letters")
    worker.stop()
    assert [line for line in worker.log().splitlines() if SECRET in line] == []
    assert {key for key in in_redis(environment["RECORDS_URL"]) if "task-meta" not in key} == set()
