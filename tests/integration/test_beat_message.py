"""The message of a fire by Celery's own path: made as ever, pushed by nobody but its claim."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import kombu
import pytest
from celery import Task, _state, signals
from celery.beat import BeatLazyFunc
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_hardened import HardenedTask, deduplicate
from celery_hardened.beat.steps import Outgoing
from celery_hardened.contrib.sqlalchemy import publishing_on_commit
from celery_hardened.errors import ConfigurationError, StoreUnavailableError
from celery_hardened.marks import HEADER
from celery_hardened.pipeline.beat_message import SlotRefusedError
from tests.support.beat_messages import FIRE, Beat, opened, schedule
from tests.support.broker import Broker
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.parametrize("broker", ["redis"], indirect=True)


@pytest.fixture
def beat(broker: Broker) -> Iterator[Beat]:
    beat = Beat(broker.url, broker.queue)
    yield beat
    beat.close()


@pytest.fixture
def start_beat(broker: Broker) -> Iterator[Callable[..., Beat]]:
    beats: list[Beat] = []

    def start(url: str | None = None, **conf: Any) -> Beat:
        beats.append(Beat(url or broker.url, broker.queue, **conf))
        return beats[-1]

    yield start
    for one in beats:
        one.close()


@pytest.fixture
def receivers() -> Iterator[dict[str, list[Any]]]:
    """What receivers of the signals of publishes have seen."""
    seen: dict[str, list[Any]] = {"before": [], "after": []}

    def before(sender: str, **_: Any) -> None:
        seen["before"].append(sender)

    def after(sender: str, **_: Any) -> None:
        seen["after"].append(sender)

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    yield seen
    signals.before_task_publish.disconnect(before)
    signals.after_task_publish.disconnect(after)


def refuse(_: Sequence[Outgoing]) -> None:
    raise SlotRefusedError("nightly", "stale")


# --- what is handed over ------------------------------------------------------------------------------


def test_the_message_is_handed_over_and_not_pushed(beat: Beat) -> None:
    """It is whole, and for its list: who claims the slot has only to push it."""
    made = beat.natural(schedule(queue="bills", priority=3))
    assert made is not None
    ((verb, key),) = [(one.verb, one.key) for one in made]
    assert (verb, key) == ("LPUSH", "bills\x06\x163")
    assert json.loads(made[0].payload)["headers"]["id"] == "id-1"
    assert [name for name in beat.redis.scan_iter() if b"binding" not in name] == []


def test_a_pushed_message_is_what_a_plain_publish_would_have_pushed(beat: Beat) -> None:
    """Byte for byte but for ids and times; ours says besides which slot it is for."""
    made = beat.natural(schedule("contained"))
    assert made is not None
    beat.app.tasks["contained"].apply_async((1,), {"b": "ä"}, task_id="id-1", headers={"celery_beat_task": True})
    plain, ours = opened(beat.pushed()[0]), opened(made[0].payload)
    marks = ours["headers"][HEADER]
    run = {"run": "schedule:nightly", "yields": True}
    assert marks == {"v": 1, "slot": FIRE.slot, "schedule": "nightly", "missed": 2, **run}
    ours["headers"][HEADER] = {"v": 1}
    # Celery's beat makes a list of the arguments, and so shows one.
    assert ours["headers"].pop("argsrepr") == "[1]"
    assert plain["headers"].pop("argsrepr") == "(1,)"
    assert ours == plain


def test_the_whole_key_has_the_prefix_of_the_broker(start_beat: Callable[..., Beat]) -> None:
    """``global_keyprefix`` is put on by kombu's client, which does not push here."""
    beat = start_beat(broker_transport_options={"global_keyprefix": "shop:"})
    made = beat.natural(schedule())
    assert made is not None
    beat.app.tasks["hardened"].apply_async((1,), {"b": "ä"})
    assert len(beat.pushed(made[0].key)) == 1
    assert made[0].key == f"shop:{beat.queue}"


def test_every_queue_of_a_topic_exchange_is_in_one_claim(start_beat: Callable[..., Beat]) -> None:
    """One claim for all copies: a slot is fired to all of its queues, or to none."""
    shop = Exchange("shop", type="topic")
    queues = [Queue("t-1", shop, "bill.*"), Queue("t-2", shop, "#"), Queue("t-3", shop, "mail.*")]
    beat = start_beat(task_queues=queues)
    with beat.app.connection_for_write() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()
    calls: list[Sequence[Outgoing]] = []
    assert beat.messages.publish(
        schedule(queue="t-1", routing_key="bill.de"), task_id="id-1", fire=FIRE, claim=calls.append
    )
    ((one, other),) = calls
    assert {one.key, other.key} == {"t-1", "t-2"}
    assert one.payload == other.payload


def test_a_broadcast_is_a_publish_to_its_topic(start_beat: Callable[..., Beat]) -> None:
    """Fanout exchanges are no lists in Redis."""
    beat = start_beat(task_queues=[Queue("news", Exchange("all", type="fanout"))])
    made = beat.natural(schedule(queue="news"))
    assert made is not None
    assert [one.verb for one in made] == ["PUBLISH"]
    assert made[0].key.startswith(f"/{_database(beat)}.all")


def _database(beat: Beat) -> int:
    return int(beat.redis.connection_pool.connection_kwargs["db"])


def test_an_exchange_that_leads_nowhere_is_claimed_with_nothing_to_push(start_beat: Callable[..., Beat]) -> None:
    """As a publish to it is no error: the slot is over."""
    shop = Exchange("shop", type="topic")
    beat = start_beat(task_queues=[Queue("t-1", shop, "bill.*")])
    with beat.app.connection_for_write() as connection:
        beat.app.amqp.queues["t-1"](connection.default_channel).declare()
    assert beat.natural(schedule(queue="t-1", routing_key="mail.de")) == []


def test_a_queue_that_expires_lives_on_from_a_claimed_publish(start_beat: Callable[..., Beat]) -> None:
    """kombu renews it in one pipeline with the push; here it comes after the claim."""
    beat = start_beat(task_queues=[Queue("short", expires=60)])

    def claim(pushes: Sequence[Outgoing]) -> None:
        for one in pushes:
            beat.redis.lpush(one.key, one.payload)

    assert beat.natural(schedule(queue="short"), claim) is not None
    ttl: Any = beat.redis.pttl("short")
    assert ttl == -1 if kombu.VERSION[:2] < (5, 7) else 0 < ttl <= 60_000


def test_links_and_chains_and_lazy_arguments_travel(beat: Beat) -> None:
    """What options say is Celery's to put into the message, and arguments are made at the fire."""
    link = beat.app.signature("contained", (2,))
    lazy = replace(schedule(link=link, countdown=5), args=(BeatLazyFunc(lambda: 7),))
    made = beat.natural(lazy)
    assert made is not None
    message = json.loads(made[0].payload)
    args, _, embed = json.loads(b64decode(message["body"]))
    assert args == [7]
    assert embed["callbacks"][0]["task"] == "contained"
    assert message["headers"]["eta"] is not None


def test_a_task_of_which_only_the_name_is_known_is_published(beat: Beat) -> None:
    """beat need not import tasks."""
    made = beat.natural(schedule("elsewhere.task"))
    assert made is not None
    headers = json.loads(made[0].payload)["headers"]
    assert headers["task"] == "elsewhere.task"
    assert headers[HEADER]["slot"] == FIRE.slot


@pytest.mark.parametrize("conf", [{"task_protocol": 1}, {"task_compression": "gzip"}, {"task_serializer": "pickle"}])
def test_other_forms_of_messages_are_handed_over_too(start_beat: Callable[..., Beat], conf: dict[str, Any]) -> None:
    """Whatever kombu makes of it."""
    beat = start_beat(accept_content=["json", "pickle"], **conf)
    made = beat.natural(schedule())
    assert made is not None
    assert [one.verb for one in made] == ["LPUSH"]
    assert beat.pushed() == []


# --- signals --------------------------------------------------------------------------------------------


def test_signals_fire_once_and_the_second_only_after_the_claim(beat: Beat, receivers: dict[str, list[Any]]) -> None:
    """``after_task_publish`` says that a message is out."""
    told: list[list[Any]] = []
    assert beat.natural(schedule(), lambda _: told.append(list(receivers["after"]))) is not None
    assert told == [[]]
    assert receivers == {"before": ["hardened"], "after": ["hardened"]}


def test_a_refusal_goes_through_unchanged_and_no_signal_says_that_it_was_sent(
    beat: Beat, receivers: dict[str, list[Any]]
) -> None:
    with pytest.raises(SlotRefusedError) as caught:
        beat.natural(schedule(), refuse)
    assert caught.value.args == ("nightly", "stale")
    assert receivers == {"before": ["hardened"], "after": []}


@pytest.mark.parametrize(
    "error",
    [RedisConnectionError("gone"), StoreUnavailableError("firing", "gone"), OSError(5, "?"), OperationalError("x")],
    ids=["redis", "store", "os", "kombu"],
)
def test_a_claim_that_fails_is_not_tried_again_by_kombu(beat: Beat, error: Exception) -> None:
    """kombu publishes again when its connection is lost; whether the script has run is not its to know."""
    calls: list[Any] = []

    def claim(pushes: Sequence[Outgoing]) -> None:
        calls.append(pushes)
        raise error

    with pytest.raises(type(error)) as caught:
        beat.natural(schedule(), claim)
    assert caught.value is error
    assert len(calls) == 1


def test_a_receiver_that_publishes_and_changes_the_message_does_both(beat: Beat) -> None:
    """What it publishes is sent by itself and has no marks; what it changes is in the message."""

    def before(sender: str, headers: dict[str, Any], properties: dict[str, Any], **_: Any) -> None:
        if sender == "hardened":
            headers["tenant"] = "acme"
            properties["priority"] = 9
            beat.app.tasks["contained"].delay(5)

    signals.before_task_publish.connect(before)
    try:
        made = beat.natural(schedule())
    finally:
        signals.before_task_publish.disconnect(before)
    assert made is not None
    assert json.loads(made[0].payload)["headers"]["tenant"] == "acme"
    assert made[0].key == f"{beat.queue}\x06\x169"
    (other,) = map(json.loads, beat.pushed())
    assert other["headers"]["task"] == "contained"
    assert "slot" not in other["headers"][HEADER]


def test_an_event_of_the_publish_is_sent_after_the_claim_and_is_not_claimed(start_beat: Callable[..., Beat]) -> None:
    """``task_send_sent_event``: Celery sends the event with the same producer."""
    beat = start_beat(task_send_sent_event=True)
    listener: Any = beat.redis.pubsub()  # type: ignore[no-untyped-call]
    listener.psubscribe("*celeryev*")
    assert listener.get_message(timeout=10)["type"] == "psubscribe"
    calls: list[Any] = []

    def claim(pushes: Sequence[Outgoing]) -> None:
        assert listener.get_message(timeout=0.05) is None
        calls.append(pushes)

    assert beat.natural(schedule(), claim) is not None
    event = json.loads(listener.get_message(timeout=10)["data"])
    listener.close()
    assert json.loads(b64decode(event["body"]))["type"] == "task-sent"
    assert len(calls) == 1


# --- who decides ----------------------------------------------------------------------------------------


def test_a_task_that_does_not_send_is_no_fire(beat: Beat) -> None:
    """A task's own ``apply_async`` may decide so."""

    class Quiet(HardenedTask):
        def apply_async(self, *args: Any, **options: Any) -> Any:
            return None

    beat.task("quiet", base=Quiet)
    assert beat.natural(schedule("quiet"), refuse) is None


def test_a_task_that_catches_the_refusal_does_not_make_it_a_fire(beat: Beat) -> None:
    """It is raised all the same."""

    class Deaf(HardenedTask):
        def apply_async(self, *args: Any, **options: Any) -> Any:
            try:
                return super().apply_async(*args, **options)
            except Exception:  # noqa: BLE001
                return None

    beat.task("deaf", base=Deaf)
    with pytest.raises(SlotRefusedError):
        beat.natural(schedule("deaf"), refuse)


def test_what_fails_after_the_claim_does_not_unmake_the_fire(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    """The message is out: a caller that took it back would fire the slot twice."""

    class Late(HardenedTask):
        def apply_async(self, *args: Any, **options: Any) -> Any:
            super().apply_async(*args, **options)
            raise ValueError("too late")

    beat.task("late", base=Late)
    assert beat.natural(schedule("late")) is not None
    assert "what came after failed" in caplog.text


def test_a_message_that_is_published_twice_is_claimed_once(beat: Beat) -> None:
    """Under one id: the second one is not pushed by anybody."""

    class Twice(HardenedTask):
        def apply_async(self, *args: Any, **options: Any) -> Any:
            super().apply_async(*args, **options)
            return super().apply_async(*args, **options)

    beat.task("twice", base=Twice)
    calls: list[Any] = []
    assert beat.natural(schedule("twice"), calls.append) is not None
    assert len(calls) == 1
    assert beat.pushed() == []


def test_nothing_leaves_by_the_connection_outside_of_a_fire(beat: Beat) -> None:
    """Nor in a batch of kombu's, which would be sent at its end."""
    beat.natural(schedule())
    producer = beat.messages._open()
    with pytest.raises(SlotRefusedError):
        producer.publish({"a": 1}, routing_key=beat.queue)
    assert not producer.channel.supports_batch_publish
    assert beat.pushed() == []


def test_eager_tasks_run_and_are_no_message(start_beat: Callable[..., Beat]) -> None:
    """As Celery's beat has it."""
    beat = start_beat(task_always_eager=True)
    ran = []

    def run(a: int, b: Any) -> None:
        ran.append(a)

    beat.task("now", body=run)
    assert beat.natural(schedule("now"), refuse) is None
    assert ran == [1]


def test_a_connection_of_an_options_own_is_refused(beat: Beat) -> None:
    """Its messages would go past the claim."""
    with pytest.raises(ConfigurationError, match="connection"):
        beat.natural(schedule(connection=object()))


def test_it_waits_for_no_commit_and_has_no_parent(beat: Beat) -> None:
    """Whatever runs in this thread: a transaction, or a task that runs a beat."""
    sqlalchemy = pytest.importorskip("sqlalchemy.orm")
    running: Task = beat.app.tasks["contained"]
    running.push_request(id="parent", root_id="root", called_directly=False)
    _state.push_current_task(running)
    try:
        with publishing_on_commit(sqlalchemy.Session()):
            made = beat.natural(schedule())
        assert _state.get_current_worker_task() is running
    finally:
        _state.pop_current_task()
        running.pop_request()
    assert made is not None
    headers = json.loads(made[0].payload)["headers"]
    assert (headers["root_id"], headers["parent_id"]) == ("id-1", None)


# --- connections ------------------------------------------------------------------------------------------


def test_a_connection_that_is_lost_is_made_again_and_captures(
    broker: Broker, start_beat: Callable[..., Beat], start_proxy: Callable[[int], TcpProxy]
) -> None:
    """kombu revives the channel in the middle of the publish; what it makes then must capture too."""
    proxy = start_proxy(broker.port)
    beat = start_beat(broker.at(proxy.port).url)
    assert beat.natural(schedule()) is not None
    for number in range(3):
        proxy.reset()
        # A queue that was not declared yet: the loss is met by its declaration.
        assert beat.natural(schedule(queue=f"new-{number}")) is not None
    assert [name for name in beat.redis.scan_iter() if b"binding" not in name] == []


def test_without_a_broker_it_fails_and_goes_on_when_that_is_back(
    broker: Broker, start_beat: Callable[..., Beat], start_proxy: Callable[[int], TcpProxy]
) -> None:
    """Nothing of the failed publish is left over."""
    proxy = start_proxy(broker.port)
    beat = start_beat(broker.at(proxy.port).url, task_publish_retry_policy={"max_retries": 1, "interval_start": 0})
    proxy.down()
    with pytest.raises(OperationalError):
        beat.natural(schedule(queue="one"))
    proxy.heal()
    made = beat.natural(schedule(queue="one"))
    assert made is not None
    assert len(made) == 1


def test_a_refused_slot_frees_the_key_of_its_task(beat: Beat) -> None:
    """``@deduplicate``: the window of a publish that sent nothing is not kept."""

    @deduplicate("a")
    def run(a: int, b: Any) -> None: ...

    beat.task("single", body=run)
    with pytest.raises(SlotRefusedError):
        beat.natural(schedule("single"), refuse)
    assert beat.natural(schedule("single"), task_id="id-2") is not None
    assert beat.natural(schedule("single"), refuse, task_id="id-3") is None, "one is on its way"
