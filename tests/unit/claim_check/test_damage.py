"""A payload that is gone, damaged or forged, and a store that is away."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from celery import Celery, Task

from celery_hardened import HardenedTask, Hardening
from celery_hardened.claim_check.policy import DEPTH, KEY, pack
from tests.support.in_process import InProcessWorker
from tests.unit.claim_check.conftest import LARGE, Store, letters
from tests.unit.conftest import MakeApp, patient


def damage(store: Store, kind: str, name: str) -> None:
    data, since = store._kept[name]
    if kind == "missing":
        del store._kept[name]
        return
    changed = {
        "flipped": bytes([data[0] ^ 1]) + data[1:],
        "cut": data[:-1],
        "longer": data + b"x",
        "bomb": b"\0" * 10_000_000,
    }
    store._kept[name] = (changed[kind], since)


@pytest.mark.parametrize("kind", ["missing", "flipped", "cut", "longer", "bomb"])
def test_a_payload_that_is_not_what_was_put(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any], kind: str
) -> None:
    """A permanent failure with a dead letter of its own; the body is not started, and nothing is retried."""
    charge.delay("i-1", note=LARGE)
    damage(store, kind, store.names("put")[0])
    assert worker.run() == 1
    assert ran == []
    (letter,) = letters(app)
    assert letter.error_type.endswith("PayloadMissingError" if kind == "missing" else "PayloadCorruptError")
    assert letter.reason == "permanent"
    assert worker.unacked == 0


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {},
        [],
        {"v": 1, "name": "../../../etc/passwd", "sha256": "x", "size": 10},
        {"v": 1, "name": "a" * 32, "sha256": "x", "size": 10**12},
        {"v": 99, "name": "a" * 32, "sha256": "x", "size": 1},
    ],
    ids=["null", "empty", "list", "path", "huge", "newer"],
)
def test_a_forged_reference_is_a_dead_letter(
    app: Celery, worker: InProcessWorker, store: Store, ran: list[Any], make_app: MakeApp, raw: Any
) -> None:
    """And never reaches the store."""
    make_app(task_default_queue=app.conf.task_default_queue).send_task("charge", [], {KEY: raw})
    assert worker.run() == 1
    assert ran == []
    assert letters(app)[0].error_type.endswith("PayloadCorruptError")
    assert store.names("get") == []


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        (pickle.dumps(([1], {})), "application/x-python-serialize"),
        (b"[[1], {}", "application/json"),
        (b'{"a": 1}', "application/json"),
        (b"[[1], {}, {}]", "application/json"),
        (b'["ab", {}]', "application/json"),
        (b"[[1], [2]]", "application/json"),
        (b"\xff\xfe", "application/json"),
        (b"[" * 50_000, "application/json"),
        (b"x", "application/x-unheard-of"),
    ],
    ids=["pickle", "cut", "object", "three", "text", "list", "no utf-8", "deep", "unknown"],
)
def test_what_cannot_be_arguments_is_a_dead_letter(
    make_hardened: MakeApp, make_app: MakeApp, ran: list[Any], data: bytes, content_type: str
) -> None:
    """A pickle is not even opened where pickles are accepted."""
    app = make_hardened(hardened_payload_store="memory:", accept_content=["json", "pickle"])
    Hardening.expect(app).__dict__["payload_store"] = store = Store()

    @app.task(base=HardenedTask, shared=False, name="charge")
    def charge(invoice: Any) -> None:
        ran.append(invoice)

    found, stored = pack(data, name="a" * 32, content_type=content_type)
    store.put("a" * 32, stored, max_age=1)
    with InProcessWorker(app) as worker:
        plain = make_app(task_default_queue=app.conf.task_default_queue)
        plain.send_task("charge", [], found.as_kwargs())
        assert worker.run() == 1
    assert ran == []
    (letter,) = letters(app)
    assert letter.error_type.endswith("PayloadCorruptError")


@pytest.mark.parametrize("depth", [1, 2, DEPTH, DEPTH + 1, 50])
def test_references_in_references_are_bounded(
    app: Celery, worker: InProcessWorker, store: Store, ran: list[Any], make_app: MakeApp, depth: int
) -> None:
    """Each lays its arguments in front; a ring of them ends too."""
    kwargs: dict[str, Any] = {"invoice": 0}
    for level in range(depth):
        name = f"{level:032x}"
        found, stored = pack(json.dumps([[], {**kwargs, "kind": str(level)}]).encode(), name=name)
        store.put(name, stored, max_age=1)
        kwargs = found.as_kwargs()
    make_app(task_default_queue=app.conf.task_default_queue).send_task("charge", [], kwargs)
    worker.run()
    if depth <= DEPTH:
        assert ran == [(0, "", str(depth - 1))]
        assert store.alive == []
    else:
        assert ran == []
        assert "lie in each other" in letters(app)[0].error_message
        assert len(store.names("get")) == DEPTH


def test_a_store_that_blinks_is_waited_for(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    charge.delay("i-1", note=LARGE)
    patient(app)
    store.away = 1
    assert worker.run() == 1
    assert ran == [("i-1", LARGE, "a")]


def test_a_store_that_is_away_is_a_transient_failure(
    worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    charge.delay("i-1", note=LARGE)
    store.away = 10**6
    worker.step()
    assert ran == []
    store.away = 0
    worker.run()
    assert ran == [("i-1", LARGE, "a")]


def test_a_contained_task_goes_back_while_the_store_is_away(
    app: Celery, worker: InProcessWorker, store: Store, ran: list[Any], make_app: MakeApp
) -> None:
    """Celery would fail it for good."""

    @app.task(base=Task, acks_late=True, shared=False, name="plain")
    def plain(text: str) -> None:
        ran.append(text)

    worker.consumer.update_strategies()
    found, stored = pack(json.dumps([[LARGE], {}]).encode(), name="a" * 32)
    store.put("a" * 32, stored, max_age=1)
    make_app(task_default_queue=app.conf.task_default_queue).send_task("plain", [], found.as_kwargs())
    store.away = 10**6
    worker.step()
    assert ran == []
    assert letters(app) == []
    store.away = 0
    assert worker.run() == 1
    assert ran == [LARGE]
