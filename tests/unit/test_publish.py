"""What a producer adds to every task message, and what it keeps out."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group
from kombu import Exchange, Queue

from celery_hardened import HardenedTask
from celery_hardened.marks import HEADER, Marks
from celery_hardened.pipeline.publish import stamped
from tests.support.in_process import InProcessWorker
from tests.unit.conftest import MakeApp

SECRET = "4111-1111-1111-1111"


def define(app: Celery, **options: Any) -> Any:
    @app.task(**{"base": HardenedTask, "shared": False, "name": "charge", **options})
    def charge(invoice: str, card: str = "", *, note: str = "") -> str:
        return "charged"

    return charge


def published(app: Celery, send: Any) -> list[Any]:
    """The messages that *send* publishes, as a worker receives them."""
    with InProcessWorker(app) as worker:
        send()
        worker.run()
        return worker.seen


# --- the header ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [HardenedTask, Task])
def test_every_way_to_publish_is_stamped(app: Celery, base: type) -> None:
    """delay, apply_async, by name, from a signature and from inside a workflow: the time of this publish."""
    charge = define(app, base=base)
    before = time.time()

    def send() -> None:
        charge.delay("i1")
        charge.apply_async(("i1",), headers={"trace": "t"})
        app.send_task("charge", ("i1",))
        charge.s("i1").apply_async()
        chain(charge.si("i1"), charge.si("i2")).delay()
        group(charge.si("i1"), charge.si("i2")).delay()
        chord([charge.si("i1"), charge.si("i3")], charge.si("i2")).delay()

    messages = [message for message in published(app, send) if message.headers["task"] == "charge"]
    assert len(messages) == 11
    for message in messages:
        ours = message.headers["hardened"]
        assert ours == {"v": 1, "published": ours["published"], "first_published": ours["published"]}
        assert before <= ours["published"] <= time.time()
    assert messages[1].headers["trace"] == "t"


def test_the_publish_is_stamped_though_the_header_was_copied() -> None:
    """A retry copies its message's headers; its publish is its own, the first publish stays the first."""
    out = stamped(
        {"hardened": {"published": 1.0, "first_published": 1.0, "attempt": 2, "waited": 4.5}, "a": 1}, now=9.0
    )
    assert out == {
        "a": 1,
        "hardened": {"v": 1, "published": 9.0, "first_published": 1.0, "attempt": 2, "waited": 4.5},
    }


@pytest.mark.parametrize("garbage", [None, 7, "x", [], {}, {"attempt": "x"}, {"published": "yesterday"}], ids=str)
def test_a_damaged_header_is_replaced(garbage: object) -> None:
    assert stamped({"hardened": garbage}, now=9.0)["hardened"] == {"v": 1, "published": 9.0, "first_published": 9.0}


def test_the_callers_headers_are_not_changed() -> None:
    """Beat and signatures keep theirs for the next time."""
    headers = {"hardened": {"published": 1.0}, "a": {"b": 1}}
    stamped(headers, now=9.0)
    stamped(None, now=9.0)
    assert headers == {"hardened": {"published": 1.0}, "a": {"b": 1}}


def test_message_protocol_1_has_no_headers_to_stamp(make_hardened: MakeApp) -> None:
    """It is sent as ever, and runs."""
    app = make_hardened(task_protocol=1)
    charge = define(app)
    (message,) = published(app, lambda: charge.delay("i1"))
    assert "hardened" not in message.headers
    assert message.payload["task"] == "charge"


def test_settings_are_read_before_the_first_publish(make_hardened: MakeApp) -> None:
    """A mistake is told by the first publish, of a contained task too."""
    from celery_hardened import ConfigurationError

    app = make_hardened(hardened_max_retrys=3)
    charge = define(app, base=Task)
    with pytest.raises(ConfigurationError, match="Did you mean 'hardened_max_retries'"):
        charge.delay("i1")


# --- arguments ---------------------------------------------------------------------------------------------


def everything_but_the_body(message: Any) -> str:
    return repr((message.headers, message.properties, message.delivery_info))


def test_arguments_of_hardened_tasks_are_not_in_the_headers(app: Celery) -> None:
    """Celery writes repr of all of them there, for logs, events and monitors."""
    charge = define(app)
    (message,) = published(app, lambda: charge.delay("i1", SECRET, note=SECRET))
    assert SECRET not in everything_but_the_body(message)
    assert (message.headers["argsrepr"], message.headers["kwargsrepr"]) == ("(...)", "{}")
    assert message.payload[0] == ["i1", SECRET]


@pytest.mark.parametrize("send", ["delay", "by name", "keywords"])
def test_listed_arguments_are_shown(app: Celery, send: str) -> None:
    """By name, positional or not; the others are not."""
    charge = define(app, log_args=("invoice",))
    (message,) = published(
        app,
        {
            "delay": lambda: charge.delay("i1", SECRET),
            "by name": lambda: app.send_task("charge", ("i1", SECRET)),
            "keywords": lambda: charge.delay(card=SECRET, invoice="i1"),
        }[send],
    )
    assert message.headers["argsrepr"] == "(invoice='i1')"
    assert SECRET not in everything_but_the_body(message)


def test_listed_arguments_are_still_shown_after_a_retry(app: Celery) -> None:
    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", log_args=("invoice",))
    def charge(self: Any, invoice: str, card: str) -> None:
        if self.request.retries == 0:
            raise ConnectionError("gateway down")

    messages = published(app, lambda: charge.delay("i1", SECRET))
    assert [message.headers["argsrepr"] for message in messages] == ["(invoice='i1')"] * 2
    assert not any(SECRET in everything_but_the_body(message) for message in messages)


def test_task_sent_events_show_no_more(make_hardened: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events go to every monitor that listens."""
    app = make_hardened(task_send_sent_event=True)
    charge = define(app, log_args=("invoice",))
    sent = []

    def publish(kind: str, fields: dict[str, Any], *args: Any, **options: Any) -> None:
        sent.append((kind, fields))

    monkeypatch.setattr(app.amqp._event_dispatcher, "publish", publish)
    published(app, lambda: charge.delay("i1", SECRET))
    ((kind, fields),) = sent
    assert (kind, fields["args"], fields["kwargs"]) == ("task-sent", "(invoice='i1')", "{}")
    assert SECRET not in repr(sent)


def test_contained_tasks_show_what_celery_shows(app: Celery) -> None:
    charge = define(app, base=Task)
    (message,) = published(app, lambda: charge.delay("i1", "c", note="n"))
    assert (message.headers["argsrepr"], message.headers["kwargsrepr"]) == ("('i1', 'c')", "{'note': 'n'}")


def test_arguments_that_cannot_be_shown_do_not_hinder_a_publish(make_hardened: MakeApp) -> None:
    """Pickle and friends carry objects whose __str__ may raise."""

    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no words")

        __repr__ = __str__

    app = make_hardened()
    charge = define(app, log_args=("invoice",), typing=False)

    with pytest.raises(Exception, match="JSON"):  # refused for what it is, not for how it looks
        charge.delay(Mute())


# --- the user's own amqp -------------------------------------------------------------------------------------


def test_queues_routes_and_exchanges_stay(make_hardened: MakeApp) -> None:
    """Stamping is not routing."""
    app = make_hardened()
    name = app.conf.task_default_queue
    app.conf.task_queues = (Queue(name, Exchange(f"x-{name}", type="topic"), routing_key="charge.#"),)
    app.conf.task_routes = {"charge": {"exchange": f"x-{name}", "routing_key": "charge.now", "exchange_type": "topic"}}
    charge = define(app)
    (message,) = published(app, lambda: charge.delay("i1"))
    assert (message.delivery_info["exchange"], message.delivery_info["routing_key"]) == (f"x-{name}", "charge.now")
    assert message.headers["hardened"]["v"] == 1


def test_headers_handed_on_to_another_task_bring_no_history() -> None:
    """``child.apply_async(headers=self.request.headers)``: the child has not failed, died or been redriven."""
    parent = {
        "hardened": {"v": 1, "deaths": 2, "redrive": ["l", "t"], "redrives": 1, "first_published": 1.0, "key": "k"},
        "trace": "t1",
    }
    assert stamped(parent, now=9.0, again=False) == {
        "trace": "t1",
        "hardened": {"v": 1, "published": 9.0, "first_published": 9.0, "key": "k"},
    }


def test_a_window_is_not_handed_on(app: Celery) -> None:
    """Headers of a running task that are given to another publish bring no window along."""

    @app.task(base=HardenedTask, name="other")
    def other() -> None: ...

    marks = Marks(dedup=("k", "finish"), correlation_id="c").header()
    with InProcessWorker(app) as worker:
        other.apply_async(headers={HEADER: marks})
        worker.run()
    sent = Marks.read(worker.seen[0].headers)
    assert (sent.dedup, sent.correlation_id) == (None, "c")
