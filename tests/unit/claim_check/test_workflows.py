"""Large arguments in callbacks, chains, groups and chords; large results of a chain."""

from __future__ import annotations

import json
from typing import Any

from celery import Celery

from celery_hardened import HardenedTask
from tests.support.in_process import InProcessWorker
from tests.unit.claim_check.conftest import LARGE, Store, again, unzipped
from tests.unit.conftest import patient


def test_large_arguments_anywhere_in_a_workflow(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    """A callback's, the later ones' of a chain, a group's inside it, a chord's body's: no message is large."""
    from celery import chain, chord, group

    def large(name: str) -> str:
        return f"{name}:{LARGE}"

    work = chain(
        charge.si(large("one")),
        charge.si(large("two")),
        group(charge.si(large("a")), charge.si(large("b")), charge.si(large("c"))),
        charge.si("joined", note=large("three")),
    )
    work.apply_async()
    chord([charge.si("d"), charge.si("e")], charge.si(large("body"))).apply_async()
    charge.apply_async(["f"], link=charge.si(large("link")))
    worker.run()
    wanted = [large(one) for one in ("one", "two", "a", "b", "c", "body", "link")] + ["joined", "d", "e", "f"]
    assert sorted(call[0] for call in ran) == sorted(wanted)
    assert ("joined", large("three"), "a") in ran
    assert max(len(message.body) for message in worker.seen) < 8000
    assert all(len(str(message.headers)) < 3000 for message in worker.seen)
    linked = [name for name in store.alive if b"link" in unzipped(store, name)]
    assert store.alive == linked, "only what callbacks share is left to its age"


def test_a_chords_body_is_put_away_once(worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]) -> None:
    """It travels in the message of every member."""
    from celery import chord

    chord([charge.si(str(number)) for number in range(20)], charge.si("body", note=LARGE)).apply_async()
    worker.run()
    assert len(ran) == 21
    assert len(store.names("put")) == 1
    assert store.alive == []


def test_a_chains_result_goes_in_front_of_what_lies_in_the_store(
    worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    """Small or large: the reference is laid under it, twice if need be."""
    (charge.s("small") | charge.s(note="one" + LARGE)).apply_async()
    worker.run()
    assert ran[1:] == [("small", "one" + LARGE, "a")]
    ran.clear()
    (charge.s("big" + LARGE) | charge.s("two" + LARGE) | charge.s("three" + LARGE, kind="b")).apply_async()
    worker.run()
    big = "big" + LARGE
    assert ran == [(big, "", "a"), (big, "two" + LARGE, "a"), (big, "three" + LARGE, "b")]
    assert max(len(message.body) for message in worker.seen) < 4000
    assert store.alive == []


def test_errbacks_of_both_kinds(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    """One that takes an id is a task of its own; one that takes the exception Celery calls as a function."""
    called: list[Any] = []

    @app.task(base=HardenedTask, shared=False, name="mourn")
    def mourn(failed: str, text: str) -> None:
        called.append(text)

    @app.task(base=HardenedTask, shared=False, name="inquest")
    def inquest(request: Any, error: Any, traceback: Any, text: str) -> None:
        called.append((str(error), text))

    worker.consumer.update_strategies()
    charge.fails.append(ValueError("broken"))
    charge.apply_async(["i-1"], link_error=[inquest.s(LARGE)])
    worker.run()
    assert called == [("broken", LARGE)]
    assert len(store.names("put")) == 1


def test_an_errback_of_the_same_task(app: Celery, worker: InProcessWorker, store: Store) -> None:
    """Called as a function while the failed request is still the current one, which must not change."""
    called: list[Any] = []

    @app.task(base=HardenedTask, bind=True, shared=False, name="own")
    def own(self: Any, request: Any, error: Any = None, traceback: Any = None, text: str = "") -> None:
        called.append((self.request.args, text))
        if error is None:
            raise ValueError("broken")

    worker.consumer.update_strategies()
    own.apply_async(["i-1"], link_error=[own.s(text=LARGE)])
    worker.run()
    assert called == [(["i-1"], ""), (["i-1"], LARGE)]
    assert store.names("finish") == []


def test_what_several_tasks_share_is_not_ended_by_the_first(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    """A callback in a message that comes back is called again, as ever; only age removes its arguments."""
    charge.apply_async(["i-1"], link=charge.si("callback", note=LARGE))
    worker.run()
    again(app, worker.seen[0])
    worker.run()
    assert ran == [("i-1", "", "a"), ("callback", LARGE, "a")] * 2
    assert store.names("finish") == []


def test_what_a_task_sends_waits_for_a_store_that_blinks(
    app: Celery, worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    """A chain's next step would be lost, or its first one run again."""

    @app.task(base=HardenedTask, shared=False, name="begin")
    def begin() -> str:
        store.away = 1
        return LARGE

    worker.consumer.update_strategies()
    patient(app)
    (begin.s() | charge.s()).apply_async()
    worker.run()
    assert ran == [(LARGE, "", "a")]


def test_a_signature_that_is_sent_again_is_put_away_again(
    worker: InProcessWorker, store: Store, charge: Any, ran: list[Any]
) -> None:
    """Its task id is the same, and the first one's payload has ended when the second comes."""
    body = charge.si("body", note=LARGE)
    body.freeze()
    for _ in range(2):
        charge.apply_async(["i-1"], chain=[body])
        worker.run()
    assert ran == [("i-1", "", "a"), ("body", LARGE, "a")] * 2


def test_the_body_of_a_chord_that_is_polled_for(app: Celery, store: Store, charge: Any) -> None:
    """Result backends that cannot count members ask every second, with the body in the question."""
    sent: list[Any] = []
    sender = app.amqp.send_task_message
    app.amqp.__dict__["send_task_message"] = lambda producer, name, message, **options: sent.append(message.body)
    body = charge.si("body", note=LARGE)
    app.send_task("celery.chord_unlock", ["group", body], {"interval": 1})
    app.amqp.__dict__["send_task_message"] = sender
    assert len(store.names("put")) == 1
    assert len(json.dumps(sent[0])) < 2000
    assert body["kwargs"] == {"note": LARGE}
