"""What a producer puts away, and what it leaves alone."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from celery import Celery, Task
from kombu.exceptions import OperationalError

from celery_hardened import HardenedTask, Hardening, PayloadTooLargeError, StoreUnavailableError
from tests.support.in_process import InProcessWorker
from tests.unit.claim_check.conftest import LARGE, Store, reference
from tests.unit.conftest import MakeApp


def test_large_arguments_travel_as_a_reference(worker: InProcessWorker, store: Store, charge: Any, ran: Any) -> None:
    """The body and the result know nothing of it, and what may be shown of the arguments still is."""
    result = charge.delay("i-1", note=LARGE)
    assert worker.run() == 1
    assert ran == [("i-1", LARGE, "a")]
    assert result.result == "i-1"
    assert len(worker.seen[0].body) < 500
    found = reference(worker.seen[0])
    assert store.names("put") == store.names("get") == store.names("finish") == [found["name"]]
    assert worker.seen[0].headers["argsrepr"] == "(invoice='i-1')"
    assert worker.seen[0].headers["kwargsrepr"] == "{}"


def test_small_arguments_touch_no_store(worker: InProcessWorker, store: Store, charge: Any, ran: Any) -> None:
    charge.delay("i-1", note="x" * 3000)
    worker.run()
    assert store.calls == []
    assert ran == [("i-1", "x" * 3000, "a")]


def test_the_threshold_counts_bytes(store: Store, charge: Any) -> None:
    """Of the arguments as JSON, exactly."""
    fits = 4096 - len(json.dumps([[""], {}])) - 1
    charge.delay("x" * fits)
    assert store.calls == []
    charge.delay("x" * (fits + 1))
    assert len(store.calls) == 1


def test_a_contained_task_is_left_alone(app: Celery, worker: InProcessWorker, store: Store, ran: Any) -> None:
    """Its messages may go to a worker that is not hardened."""

    @app.task(base=Task, shared=False, name="plain")
    def plain(text: str) -> None:
        ran.append(text)

    worker.consumer.update_strategies()
    plain.delay(LARGE)
    app.send_task("plain", [LARGE])
    worker.run()
    assert store.calls == []
    assert ran == [LARGE, LARGE]


def test_a_name_this_process_does_not_know(
    app: Celery, make_hardened: MakeApp, worker: InProcessWorker, store: Store, ran: Any
) -> None:
    """A producer without the task's code; whatever task it is there fetches them, a contained one too."""
    producer = make_hardened(
        task_default_queue=app.conf.task_default_queue,
        hardened_payload_store="memory:",
        hardened_payload_threshold=4096,
    )
    Hardening.expect(producer).__dict__["payload_store"] = store

    @app.task(base=Task, shared=False, name="plain")
    def plain(text: str) -> None:
        ran.append(text)

    worker.consumer.update_strategies()
    producer.send_task("charge", ["i-1"], {"note": LARGE})
    producer.send_task("plain", [LARGE])
    assert worker.run() == 2
    assert ran == [("i-1", LARGE, "a"), LARGE]
    assert store.alive == []
    assert LARGE[:50] not in str(worker.seen[0].headers)


def test_a_plain_producers_large_message_runs(
    app: Celery, make_app: MakeApp, worker: InProcessWorker, store: Store, ran: Any
) -> None:
    make_app(task_default_queue=app.conf.task_default_queue).send_task("charge", [LARGE])
    worker.run()
    assert ran == [(LARGE, "", "a")]
    assert store.calls == []


@pytest.mark.parametrize("conf", [{"task_protocol": 1}, {"hardened_observe": True}], ids=["protocol 1", "observe"])
def test_who_is_left_alone(make_hardened: MakeApp, conf: dict[str, Any]) -> None:
    app = make_hardened(hardened_payload_store="memory:", hardened_payload_threshold=4096, **conf)
    Hardening.expect(app).__dict__["payload_store"] = store = Store()

    @app.task(base=HardenedTask, shared=False, name="charge")
    def charge(text: str) -> None: ...

    charge.delay(LARGE)
    assert store.calls == []


def test_the_callers_objects_do_not_change(store: Store, charge: Any, app: Celery) -> None:
    """A signature is sent again and again."""
    kwargs = {"invoice": LARGE}
    link = charge.s(LARGE)
    chain = charge.s(LARGE) | charge.si(LARGE)
    before = (dict(kwargs), json.dumps(link), json.dumps(chain))
    for _ in range(2):
        charge.apply_async(kwargs=kwargs, link=link)
        chain.clone().delay()
    assert (kwargs, json.dumps(link), json.dumps(chain)) == before
    assert len(set(store.names("put"))) == 8


def test_too_large_is_refused(make_hardened: MakeApp, app: Celery, store: Store, charge: Any) -> None:
    """With a store and without; nothing is put away and nothing sent."""
    with pytest.raises(PayloadTooLargeError, match=r"take 100020 bytes, more than 100000\. Nothing was sent"):
        charge.delay("x" * 100_000, note="")
    with pytest.raises(PayloadTooLargeError):
        charge.apply_async(["i-1"], {"note": LARGE}, link=charge.si("x" * 100_001))
    assert store.alive == []
    bare = make_hardened(hardened_payload_max=200_000)

    @bare.task(base=HardenedTask, shared=False, name="charge")
    def task(text: str) -> None: ...

    task.delay("x" * 190_000)
    with pytest.raises(PayloadTooLargeError, match="set hardened_payload_store"):
        task.delay("x" * 200_000)
    bare.send_task("elsewhere", ["x" * 200_000])  # a name it does not know may be a plain task's


@pytest.mark.parametrize("certain", [True, False], ids=["refused", "cut"])
def test_a_publish_that_fails(
    app: Celery, store: Store, charge: Any, monkeypatch: pytest.MonkeyPatch, certain: bool
) -> None:
    """If no connection was made nothing was sent, and the payloads go; a message that may have arrived keeps them."""

    def fail(*_: Any, **__: Any) -> None:
        cause = ConnectionRefusedError(errno.ECONNREFUSED, "refused") if certain else ConnectionResetError()
        raise OperationalError("no broker") from cause

    assert app.amqp.send_task_message
    monkeypatch.setitem(app.amqp.__dict__, "send_task_message", fail)
    with pytest.raises(OperationalError):
        charge.apply_async([LARGE], link=charge.si(LARGE))
    assert len(store.names("put")) == 2
    assert len(store.alive) == (0 if certain else 2)


def test_a_store_that_is_away_sends_nothing(worker: InProcessWorker, store: Store, charge: Any) -> None:
    """Nor does a second payload that cannot be put leave the first."""
    store.away = 1
    with pytest.raises(StoreUnavailableError):
        charge.delay(LARGE)

    class Second(Store):
        def put(self, name: str, data: bytes, *, max_age: float) -> None:
            if self.alive:
                raise StoreUnavailableError("put", "refused")
            super().put(name, data, max_age=max_age)

    Hardening.expect(charge.app).__dict__["payload_store"] = second = Second()
    with pytest.raises(StoreUnavailableError):
        charge.apply_async([LARGE], link=charge.si(LARGE))
    assert second.names("put")
    assert second.alive == []
    assert worker.run() == 0


def test_pickles_are_never_put_away(make_hardened: MakeApp) -> None:
    """Whoever can write into the store could run code in a worker."""
    app = make_hardened(
        hardened_payload_store="memory:", hardened_payload_threshold=4096, accept_content=["json", "pickle"]
    )
    Hardening.expect(app).__dict__["payload_store"] = store = Store()

    @app.task(base=HardenedTask, shared=False, name="charge", serializer="pickle")
    def charge(text: str) -> None: ...

    charge.delay(LARGE)
    assert store.calls == []


def test_other_serializers_keep_their_types(make_hardened: MakeApp, ran: list[Any]) -> None:
    """The task's own serializer writes what is put away: JSON would make text of the number."""
    app = make_hardened(
        hardened_payload_store="memory:",
        hardened_payload_threshold=4096,
        task_serializer="yaml",
        accept_content=["json", "yaml"],
    )
    Hardening.expect(app).__dict__["payload_store"] = store = Store()

    @app.task(base=HardenedTask, shared=False, name="charge")
    def charge(data: Any) -> None:
        ran.append(data)

    with InProcessWorker(app) as worker:
        charge.delay({1: LARGE})
        worker.run()
    assert ran == [{1: LARGE}]
    assert len(store.names("put")) == 1
