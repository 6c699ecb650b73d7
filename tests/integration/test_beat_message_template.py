"""Messages from templates: the same that Celery's path makes, or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from celery import Celery, Task, signals
from celery.beat import BeatLazyFunc
from kombu import Exchange, Queue
from kombu.utils import json as kombu_json

from celery_hardened import HardenedTask, deduplicate
from celery_hardened.marks import HEADER
from tests.support.beat_messages import FIRE, Beat, opened, schedule
from tests.support.broker import Broker

pytestmark = pytest.mark.parametrize("broker", ["redis"], indirect=True)

TASKS = ("hardened", "shown", "contained", "elsewhere.task")

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "queue": {"queue": "bills"},
    "priority": {"queue": "bills", "priority": 6},
    "expires": {"expires": 60},
    "expires-float": {"expires": 90.5},
    "expires-at": {"expires": datetime.now(timezone.utc) + timedelta(days=2)},
    "headers": {"headers": {"tenant": "ä", "deep": {"a": [1, None]}, "n": 1.0}},
    "limits": {"time_limit": 20, "soft_time_limit": 10.5},
    "ignore": {"ignore_result": True},
    "serializer": {"serializer": "json", "delivery_mode": 1},
    "shadow": {"shadow": "another name", "retry": False},
    "name": {"periodic_task_name": "täglich", "headers": {"periodic_task_name": "täglich"}},
}

CONFS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix": {"broker_transport_options": {"global_keyprefix": "shop:"}},
    "zone": {"timezone": "Europe/Berlin"},
    "routes": {"task_routes": {"hard*": {"queue": "slow", "priority": 3}, "contained": "fast"}},
    "results": {"result_backend": "redis"},
    "task": {"task_annotations": {"*": {"expires": 30, "priority": 3}}},
    "limits": {"task_time_limit": 50, "task_soft_time_limit": 40, "task_repr_maxlevels": 2},
}


@pytest.fixture
def start_beat(broker: Broker, result_url: str) -> Iterator[Callable[..., Beat]]:
    beats: list[Beat] = []

    def start(**conf: Any) -> Beat:
        if conf.get("result_backend") == "redis":
            conf["result_backend"] = result_url
        beats.append(Beat(broker.url, broker.queue, **conf))
        return beats[-1]

    yield start
    for one in beats:
        one.close()


@pytest.fixture
def beat(start_beat: Callable[..., Beat]) -> Beat:
    return start_beat()


# --- they are the same ----------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", CONFS)
def test_a_message_from_a_template_is_the_natural_one_and_that_of_a_plain_publish(
    start_beat: Callable[..., Beat], conf: str
) -> None:
    """Field by field, and in the same list; only ids of the delivery and times differ, and a plain publish
    has no marks of a fire."""
    beat = start_beat(**CONFS[conf])
    for task in TASKS:
        for label, options in OPTIONS.items():
            fired = schedule(task, 1, **options)
            natural, fast = beat.natural(fired), beat.fast(fired)
            assert natural is not None
            assert fast is not None, (task, label)
            assert [one.key for one in fast] == [one.key for one in natural]
            assert list(json.loads(fast[0].payload)) == list(json.loads(natural[0].payload))
            assert opened(fast[0].payload) == opened(natural[0].payload), (task, label)

            said = {**options, "headers": {**options.get("headers", {}), "celery_beat_task": True}}
            beat.app.send_task(task, [1], {"b": "ä"}, task_id="id-1", **said) if task not in beat.app.tasks else (
                beat.app.tasks[task].apply_async([1], {"b": "ä"}, task_id="id-1", **said)
            )
            plain: Any = beat.redis.lpop(fast[0].key)
            ours = opened(fast[0].payload)
            ours["headers"][HEADER] = {"v": 1}
            assert ours == opened(plain), (task, label)


def test_each_fire_has_its_own_id_arguments_and_marks(beat: Beat) -> None:
    """From one template."""
    first = beat.fast(schedule("contained", 1), task_id="id-1")
    other = replace(schedule("contained", 2, headers={"a": 1}), kwargs={"b": "c" * 3000})
    fire = replace(FIRE, slot=5.0, schedule="other", run=None, missed=0, once=True, yields=False)
    second = beat.messages.message(other, task_id="id-2", fire=fire, now=123.25)
    assert first is not None
    assert second is not None
    headers = json.loads(second[0].payload)["headers"]
    assert (headers["id"], headers["root_id"], headers["argsrepr"]) == ("id-2", "id-2", "[2]")
    assert len(headers["kwargsrepr"]) < 2000
    assert headers[HEADER] == {
        "v": 1, "published": 123.25, "first_published": 123.25, "slot": 5.0, "schedule": "other", "once": True,
    }  # fmt: skip
    natural = beat.natural(other, task_id="id-2")
    assert natural is not None
    ours, theirs = opened(second[0].payload), opened(natural[0].payload)
    ours["headers"].pop(HEADER)
    theirs["headers"].pop(HEADER)
    assert ours == theirs


def test_arguments_of_any_kind_that_kombu_can_send(beat: Beat) -> None:
    """Dates, decimals and nesting, by kombu's own encoder. What objects make of themselves may be large: that is
    left to Celery's path."""

    class Money:
        def __json__(self) -> str:
            return "5 EUR"

    day = datetime(2024, 1, 2, tzinfo=timezone.utc)
    for args in ([], [day, UUID(int=5)], [[{"a": (1, 2)}]], ["\ud800\x00\u2028"]):
        fired = replace(schedule("elsewhere.task"), args=args, kwargs={})
        natural, fast = beat.natural(fired), beat.fast(fired)
        assert natural is not None
        assert fast is not None, args
        assert opened(fast[0].payload) == opened(natural[0].payload)
    assert beat.fast(replace(schedule("elsewhere.task"), args=[Money()])) is None


def test_two_delivery_tags_are_never_the_same(beat: Beat) -> None:
    """kombu tells deliveries apart by them."""
    found = [beat.fast(schedule()) for _ in range(3)]
    tags = {json.loads(one[0].payload)["properties"]["delivery_tag"] for one in found if one}
    assert len(tags) == 3


def test_nothing_is_pushed_to_make_a_template(beat: Beat) -> None:
    """It is captured, and claimed by nobody."""
    assert beat.fast(schedule()) is not None
    assert beat.pushed() == []


# --- or there is none -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 5},
        {"eta": datetime.now(timezone.utc)},
        {"link": "x"},
        {"link_error": "x"},
        {"chord": "x"},
        {"group_id": "x"},
        {"serializer": "pickle"},
        {"serializer": "yaml"},
        {"compression": "gzip"},
        {"argsrepr": "x"},
        {"reply_to": "x"},
        {"root_id": "x"},
        {"expires": -1},
        {"expires": True},
        {"expires": "2030-01-01T00:00:00"},
        {"expires": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"expires": datetime(2020, 1, 1, tzinfo=timezone.utc)},
        {"headers": {"id": "another"}},
        {"headers": {HEADER: {"v": 1}}},
        {"queue": Queue("own")},
        {"unknown_option": 1},
    ],
    ids=lambda options: "-".join(f"{k}-{type(v).__name__}" for k, v in options.items()),
)
@pytest.mark.parametrize("task", ["contained", "elsewhere.task"])
def test_options_that_do_more_are_left_to_celery(beat: Beat, task: str, options: dict[str, Any]) -> None:
    """Also where another schedule of the task has a template."""
    assert beat.fast(schedule(task)) is not None
    assert beat.fast(schedule(task, 1, **options)) is None


def test_schedules_of_queues_with_more_than_a_list_are_left_to_celery(start_beat: Callable[..., Beat]) -> None:
    """Several copies, topics of a fanout, queues that expire (which kombu 5.6 does not let them)."""
    shop = Exchange("shop", type="topic")
    beat = start_beat(
        task_queues=[
            Queue("t-1", shop, "bill.*"), Queue("t-2", shop, "#"), Queue("news", Exchange("all", type="fanout")),
        ]
    )  # fmt: skip
    with beat.app.connection_for_write() as connection:
        beat.app.amqp.queues["t-2"](connection.default_channel).declare()
    assert beat.fast(schedule(queue="t-1", routing_key="bill.de")) is None
    assert beat.fast(schedule(queue="news")) is None
    assert beat.fast(schedule(queue="t-1", routing_key="mail.de")) is not None


def test_lazy_arguments_are_left_to_celery(beat: Beat) -> None:
    assert beat.fast(replace(schedule(), args=(BeatLazyFunc(lambda: 1),))) is None
    assert beat.fast(replace(schedule(), kwargs={"b": BeatLazyFunc(lambda: 1)})) is None


def test_arguments_that_are_refused_are_left_to_celery_which_says_why(beat: Beat) -> None:
    """A wrong signature, and what is no JSON."""
    for args in ([], [1, 2, 3], [object()]):
        wrong = replace(schedule("contained"), args=args, kwargs={})
        assert beat.fast(schedule("contained")) is not None
        assert beat.fast(wrong) is None
        with pytest.raises(Exception, match=r"argument|JSON"):
            beat.natural(wrong)


@pytest.mark.parametrize("signal", [signals.before_task_publish, signals.after_task_publish, signals.task_sent])
def test_a_receiver_sees_every_publish(beat: Beat, signal: Any) -> None:
    """From the moment it is connected, and until it is gone."""

    def receiver(**_: Any) -> None: ...

    assert beat.fast(schedule()) is not None
    signal.connect(receiver)
    try:
        assert beat.fast(schedule()) is None
    finally:
        signal.disconnect(receiver)
    assert beat.fast(schedule()) is not None


@pytest.mark.parametrize(
    "conf",
    [
        {"task_always_eager": True},
        {"task_send_sent_event": True},
        {"task_protocol": 1},
        {"task_compression": "gzip"},
        {"task_serializer": "yaml"},
        {"task_routes": lambda *_, **__: None},
        {"hardened_observe": True},
        {"broker_transport_options": {"body_encoding": "utf-8"}},
    ],
    ids=lambda conf: next(iter(conf)),
)
def test_configuration_that_does_more_is_left_to_celery(start_beat: Callable[..., Beat], conf: dict[str, Any]) -> None:
    assert start_beat(**conf).fast(schedule()) is None


def test_large_arguments_are_left_to_celery(start_beat: Callable[..., Beat], tmp_path: Any) -> None:
    """They go to the payload store."""
    beat = start_beat(hardened_payload_store=f"file://{tmp_path}", hardened_payload_threshold=1024)
    assert beat.fast(schedule()) is not None
    assert beat.fast(replace(schedule(), kwargs={"b": "x" * 5000})) is None


def test_a_tasks_own_ways_are_left_to_it(beat: Beat) -> None:
    """Its class, any class it is of, the instance, and decorators of ours that keep keys."""

    class Own(HardenedTask):
        def apply_async(self, *args: Any, **options: Any) -> Any:
            return super().apply_async(*args, **options)

    class Shadow(Task):  # type: ignore[misc]
        def shadow_name(self, *_: Any) -> str:
            return "x"

    class Below(Shadow):
        """Nothing of its own."""

    @deduplicate("a")
    def single(a: int, b: Any = None) -> None: ...

    beat.task("own", base=Own)
    beat.task("below", base=Below)
    beat.task("single", body=single)
    for name in ("own", "below", "single"):
        assert beat.fast(schedule(name)) is None
    assert beat.fast(schedule()) is not None
    beat.app.tasks["contained"].apply_async = mock.Mock()
    assert beat.fast(schedule("contained")) is None


def test_what_is_wrapped_around_celerys_code_is_asked(beat: Beat) -> None:
    """Instrumentation does that."""
    assert beat.fast(schedule()) is not None
    stock = Task.apply_async

    def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        return stock(self, *args, **options)

    wrapped.__module__ = stock.__module__
    with mock.patch.object(Task, "apply_async", wrapped):
        beat.messages.refresh()
        assert beat.fast(schedule()) is None
    with mock.patch.object(Celery, "send_task"):
        pass
    beat.messages.refresh()
    assert beat.fast(schedule()) is not None


def test_a_template_ends_with_what_it_was_made_of(beat: Beat) -> None:
    """Routes, and a task that takes another's name."""

    def key(task: str = "contained") -> str:
        beat.messages.refresh()
        found = beat.fast(schedule(task))
        assert found is not None
        return found[0].key

    assert key() == beat.queue
    beat.app.conf.task_routes = {"contained": {"queue": "routed"}}
    beat.app.amqp.flush_routes()
    beat.app.amqp.router = beat.app.amqp.Router()
    assert key() == "routed"
    assert key("hardened") == beat.queue
    del beat.app.tasks["hardened"]
    beat.task("hardened", queue="said")
    assert key("hardened") == "said"


def test_an_encoder_that_is_not_kombus_makes_no_template(beat: Beat) -> None:
    """A template that does not give its own message again is not kept."""
    dumps = kombu_json.dumps
    with mock.patch("kombu.transport.redis.dumps", lambda value: dumps(value).replace('"lang": "py"', '"lang":"py"')):
        assert beat.fast(schedule()) is None
