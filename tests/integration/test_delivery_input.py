"""Whatever lies in a queue's list, the messages around it run, and it becomes one dead letter with its bytes."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.broker import Broker
from tests.support.delivery_app import DELIVERY, Book, conf, starts
from tests.support.letters import letters, task_headers
from tests.support.until import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize("broker", ["redis"], indirect=True),
]


def body_of(order: str) -> bytes:
    return json.dumps([[order], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()


def envelope(queue: str, order: str = "good", *, without: str = "", **changes: Any) -> dict[str, Any]:
    """A message as kombu puts it into a list; *changes* of properties are given as ``properties={...}``."""
    properties: dict[str, Any] = {
        "correlation_id": "c",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": "t",
        **changes.pop("properties", {}),
    }
    found = {
        "body": base64.b64encode(body_of(order)).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": task_headers("proj.job"),
        "properties": properties,
        **changes,
    }
    for where in (found, properties):
        where.pop(without, None)
    return found


def text(message: Any) -> bytes:
    return json.dumps(message).encode()


@dataclass(frozen=True)
class Garbage:
    """An item of the list, and what its letter holds."""

    name: str
    item: Callable[[str], bytes]
    """Of the queue's name."""

    reason: str = "malformed"
    body: bytes | None = None
    """``None``: the item itself, for nothing of it is a message's body."""


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


#: What kombu's own message falls over.
HEADERS = [
    Garbage("headers are a list", lambda q: text(envelope(q, headers=[1]))),
    Garbage("headers are a word", lambda q: text(envelope(q, headers="abc"))),
    Garbage("headers are a number", lambda q: text(envelope(q, headers=5))),
    Garbage("headers are bytes", lambda q: text(envelope(q, headers={"__type__": "bytes", "__value__": "YQ=="}))),
]

#: No kombu message at all: kept as it is.
NO_MESSAGE = [
    Garbage("no json", lambda _: b"not json"),
    Garbage("empty", lambda _: b""),
    Garbage("empty object", lambda _: b"{}"),
    Garbage("a list", lambda _: b"[1]"),
    Garbage("a number", lambda _: b"17"),
    Garbage("null", lambda _: b"null"),
    Garbage("properties are a number", lambda _: b'{"properties": 5}'),
    Garbage("properties are a list", lambda q: text({**envelope(q), "properties": []})),
    Garbage("properties are missing", lambda q: text({k: v for k, v in envelope(q).items() if k != "properties"})),
    Garbage("cut off", lambda q: text(envelope(q))[:-40]),
    Garbage("two in one", lambda q: text(envelope(q)) * 2),
    Garbage("not utf-8", lambda _: b'\xff\xfe{"properties": {}}'),
    Garbage("zeros", lambda _: b"\0" * 64),
    Garbage("line feeds", lambda _: b'\n"\n\n'),
    Garbage("nested list", lambda _: b"[" * 100_000),
    Garbage("nested deeply", lambda q: text(envelope(q))[:-1] + b', "odd": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
    Garbage("large", lambda _: b"x" * 300_000),
    Garbage("body is no base64", lambda q: text(envelope(q, body="a"))),
    Garbage("body encoding unknown", lambda q: text(envelope(q, properties={"body_encoding": "rot13"}))),
    Garbage("body is a number", lambda q: text(envelope(q, body=5))),
    Garbage("a long integer", lambda q: text(envelope(q))[:-1] + b', "odd": ' + b"1" * 5_000 + b"}"),
    Garbage("no such date", lambda q: text(envelope(q, headers={"x": {"__type__": "datetime", "__value__": "no"}}))),
]

#: Messages of kombu's, and none of Celery's: the letter holds their body.
NO_TASK = [
    Garbage(
        "headers nested deeply", lambda q: text(envelope(q, "x", headers={"x": nested(900)})), "malformed", body_of("x")
    ),
    Garbage("no headers", lambda q: text(envelope(q, "x", without="headers")), "malformed", body_of("x")),
    Garbage(
        "body is no json",
        lambda q: text(envelope(q, body=base64.b64encode(b"\xff{").decode())),
        "undecodable",
        b"\xff{",
    ),
    Garbage("no body", lambda q: text(envelope(q, without="body")), "malformed", b""),
    Garbage(
        "content type unknown", lambda q: text({**envelope(q, "x"), "content-type": "x/y"}), "undecodable", body_of("x")
    ),
]

#: Messages that lack what only a broker needs: they run.
GOOD_ENOUGH: dict[str, Callable[[str], bytes]] = {
    "no-delivery-tag": lambda q: text(envelope(q, "no-delivery-tag", without="delivery_tag")),
    "no-delivery-info": lambda q: text(envelope(q, "no-delivery-info", without="delivery_info")),
    "no-exchange": lambda q: text(envelope(q, "no-exchange", properties={"delivery_info": {"routing_key": q}})),
    "odd-delivery-info": lambda q: text(envelope(q, "odd-delivery-info", properties={"delivery_info": 5})),
    "odd-priority": lambda q: text(envelope(q, "odd-priority", properties={"priority": "high"})),
    "odd-mark": lambda q: text({**envelope(q, "odd-mark"), "hardened-delivery": 5}),
    # Read as kombu reads it: what is no UTF-8 is replaced.
    "odd-text": lambda q: text(envelope(q, "odd-text"))[:-1] + b', "odd": "\xff\xfe"}',
    "half-a-character": lambda q: text(
        envelope(q, "half-a-character", headers={**task_headers("proj.job"), "x": "\udc00"})
    ),
    "odd-tag": lambda q: text(envelope(q, "odd-tag", properties={"delivery_tag": ["h1:"]})),
}


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_garbage_between_messages(
    pool: str,
    start_worker: StartWorker,
    load_project: LoadProject,
    broker: Broker,
    out: Path,
    unique: str,
    subtests: pytest.Subtests,
) -> None:
    """
    Garbage of every kind between good messages, four taken at a time: all good ones run once, each
    garbage is one letter with its bytes, the worker stays and keeps all its slots, and Redis keeps nothing.
    """
    env = conf(worker_prefetch_multiplier=4)
    project = load_project(DELIVERY, env=env)
    book = Book(broker)
    # Once each: every message has an id of its own.
    garbage = [(one, one.item(broker.queue)) for one in (*NO_MESSAGE, *NO_TASK)]
    enough = iter(GOOD_ENOUGH.items())
    good = []
    for n, (_, garbled) in enumerate(garbage):
        book.client.lpush(broker.queue, garbled)
        for name, item in [pair for pair in [next(enough, None)] if pair]:
            book.client.lpush(broker.queue, item(broker.queue))
            good.append(name)
        if n % 2:
            project.job.delay(f"good-{n}")
            good.append(f"good-{n}")
    worker = start_worker(DELIVERY, pool=pool, concurrency=2, env=env)

    until(lambda: len(starts(out)) >= len(good), within=60, what="the good ones to run")
    until(lambda: len(letters(project)) >= len(garbage), within=60, what=f"{len(garbage)} letters")
    until(book.empty, within=20, what="all to be acked")
    assert Counter(start.order for start in starts(out)) == Counter(good)
    found: Counter[tuple[str, bytes]] = Counter(
        (stored.letter.reason, stored.letter.body) for stored in letters(project)
    )
    for one, garbled in garbage:
        with subtests.test(one.name):
            key = (one.reason, garbled if one.body is None else one.body)
            assert found[key] >= 1, [reason for reason, body in found if body == key[1]]
            found[key] -= 1
    assert {stored.letter.queue for stored in letters(project)} == {broker.queue}
    malformed = f"t-{unique}:delivery:malformed"
    until(lambda: not book.client.exists(malformed), within=20, what="no item to be left set aside")

    slow = [project.job.delay(f"after-{n}", 1.0) for n in range(2)]
    assert [result.get(timeout=30) for result in slow] == ["after-0", "after-1"]
    assert worker.running
    assert "Connection to broker lost" not in worker.log()
    assert len(letters(project)) == len(garbage)


def test_garbage_alone(start_worker: StartWorker, load_project: LoadProject, broker: Broker, unique: str) -> None:
    """
    A queue of nothing but garbage, more than one fetch takes, is emptied into letters by a worker that
    waits, and the message that comes after it runs.
    """
    worker = start_worker(DELIVERY, concurrency=1)
    project = load_project(DELIVERY)
    book = Book(broker)
    project.job.delay("before").get(timeout=30)
    items = [f"garbage {n}".encode() for n in range(150)]
    for item in items:
        book.client.lpush(broker.queue, item)
    assert project.job.delay("after").get(timeout=60) == "after"
    until(lambda: len(letters(project)) >= len(items), within=60, what="150 letters")
    assert sorted(stored.letter.body for stored in letters(project)) == sorted(items)
    assert {stored.letter.reason for stored in letters(project)} == {"malformed"}
    until(lambda: not book.client.exists(f"t-{unique}:delivery:malformed"), within=20, what="nothing to be set aside")
    until(book.empty, within=20, what="the broker to hold nothing")
    assert worker.running


def test_odd_headers(start_worker: StartWorker, load_project: LoadProject, broker: Broker) -> None:
    """Headers that are no object, and none that kombu could take for it: a letter each, and the worker stays."""
    worker = start_worker(DELIVERY, concurrency=1)
    project = load_project(DELIVERY)
    book = Book(broker)
    items = [one.item(broker.queue) for one in HEADERS]
    for n, item in enumerate(items):
        book.client.lpush(broker.queue, item)
        assert project.job.delay(f"after-{n}").get(timeout=30) == f"after-{n}"
    assert worker.running
    until(lambda: len(letters(project)) == len(HEADERS), within=30, what="a letter each")
    bodies = {stored.letter.body for stored in letters(project)}
    assert bodies == set(items)
    until(book.empty, within=20, what="the broker to hold nothing")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("depth", [300, 500, 700])
def test_deep_arguments_leave_the_slot(
    depth: int, pool: str, start_worker: StartWorker, load_project: LoadProject, broker: Broker, out: Path
) -> None:
    """
    Headers nested so deeply that they may not be sent to a pool process: the message runs or is one
    letter, and the one slot of the worker is free for the next.
    """
    worker = start_worker(DELIVERY, pool=pool, concurrency=1)
    project = load_project(DELIVERY)
    book = Book(broker)
    headers = {**task_headers("proj.job"), "x": nested(depth)}
    book.client.lpush(broker.queue, text(envelope(broker.queue, "deep", headers=headers)))
    assert project.job.delay("after").get(timeout=30) == "after"
    assert worker.running
    until(lambda: len(letters(project)) + len(starts(out, "deep")) == 1, within=20, what="its one end")
    until(book.empty, within=20, what="the broker to hold nothing")
