"""A retry is the same message once more: what travels along, what does not, and what if it cannot be sent."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest
from celery import Celery, Task, chain, chord, group, signals
from celery.exceptions import Reject
from celery.utils.time import maybe_iso8601
from kombu.exceptions import OperationalError

from celery_hardened import DeadLetter, HardenedTask, Hardening, Query
from celery_hardened.pipeline import retry as retry_module
from celery_hardened.wire import STALE_HEADERS
from tests.support.in_process import InProcessWorker, outcomes
from tests.unit.conftest import MakeApp


def letters(app: Celery) -> list[DeadLetter]:
    found = Hardening.expect(app).dead_letters.find(Query(), limit=100).letters
    return [stored.letter for stored in found][::-1]


def failing(app: Celery, failures: int = 1, name: str = "charge", **options: Any) -> Any:
    """A hardened task that meets a dead gateway *failures* times."""

    @app.task(**{"bind": True, "base": HardenedTask, "shared": False, "name": name, **options})
    def charge(self: Any, *args: Any, **kwargs: Any) -> str:
        if self.request.retries < failures:
            raise ConnectionError("gateway down")
        return "charged"

    return charge


def due(message: Any) -> float:
    """Seconds from the publish of a retry to its eta."""
    eta = maybe_iso8601(message.headers["eta"])
    return float(eta.timestamp() - message.headers["hardened"]["published"]) if eta else 0.0


# --- what travels along --------------------------------------------------------------------------------


@pytest.mark.parametrize("explicit", [False, True])
def test_everything_travels_along(make_hardened: MakeApp, explicit: bool) -> None:
    """Arguments, id, headers, priority, queue, limits, expiry, workflow links, stamps: after two retries as before."""
    app = make_hardened(task_create_missing_queues=True)
    tries = []

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", retry_backoff=2, retry_jitter=False)
    def charge(self: Any, *args: Any, **kwargs: Any) -> str:
        tries.append((args, kwargs))
        if len(tries) < 3:
            if explicit:
                raise self.retry(exc=LookupError("x"), countdown=1)
            raise ConnectionError("gateway down")
        return "charged"

    noop = failing(app, 0, name="noop")
    signature = charge.signature(
        (1,),
        {"b": 2},
        link=noop.si("link"),
        link_error=noop.si("errback"),
        headers={"trace": "t1", "nested": {"a": [1]}},
        priority=7,
        expires=3600,
        time_limit=50,
        soft_time_limit=40,
        shadow="shadowed",
        ignore_result=False,
    )
    workflow = chord(group([chain(signature, noop.s()), noop.si()]), noop.s())
    workflow.stamp(origin_stamp="s1")
    with InProcessWorker(app) as worker:
        workflow.delay()
        worker.run()
        first, second, third = (message for message in worker.seen if message.headers["task"] == "charge")

    assert tries == [((1,), {"b": 2})] * 3
    for number, again in enumerate((second, third), start=1):
        assert again.headers["retries"] == number
        for header in (
            "id", "root_id", "group", "group_index", "timelimit", "expires", "shadow", "trace", "nested", "origin",
            "ignore_result", "stamps", "stamped_headers", "origin_stamp", "replaced_task_nesting", "argsrepr",
        ):  # fmt: skip
            assert again.headers.get(header) == first.headers.get(header), header
        assert again.payload == first.payload, "callbacks, errbacks, chain or chord changed"
        assert again.properties["priority"] == first.properties["priority"] == 7
        assert again.delivery_info["routing_key"] == first.delivery_info["routing_key"]
        assert again.properties["correlation_id"] == first.properties["correlation_id"]
        assert again.properties["delivery_tag"] != first.properties["delivery_tag"]


def test_another_queue(make_hardened: MakeApp) -> None:
    """A task that was sent to a queue of its own retries there; retry(queue=...) moves it."""
    app = make_hardened()
    own = f"{app.conf.task_default_queue}-own"

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any, move: str | None = None) -> None:
        if move:
            raise self.retry(queue=move, countdown=0)
        raise ConnectionError("gateway down")

    with InProcessWorker(app) as worker:
        worker.consumer.add_task_queue(own)
        charge.apply_async((), queue=own)
        worker.step()
        worker.step()
        assert [message.delivery_info["routing_key"] for message in worker.seen] == [own, own]
        charge.apply_async((own,))
        before = len(worker.seen)
        while len(worker.seen) < before + 3:
            worker.step()
    moved = [message.delivery_info["routing_key"] for message in worker.seen if message.payload[0] == [own]]
    assert moved[:2] == [app.conf.task_default_queue, own]


def test_marks_of_a_retry(app: Celery) -> None:
    """published is this publish, first_published the first; the attempt, the first failure and each error are told."""
    charge = failing(app, 2)
    with InProcessWorker(app) as worker:
        before = time.time()
        charge.delay()
        worker.run()
    first, second, third = (message.headers["hardened"] for message in worker.seen)
    assert first == {"v": 1, "published": first["published"], "first_published": first["published"]}
    assert before <= first["published"] < second["published"] < third["published"]
    assert second["first_published"] == third["first_published"] == first["published"]
    assert (second["attempt"], third["attempt"]) == (1, 2)
    assert first["published"] <= second["first_failed"] == third["first_failed"]
    assert [entry[2] for entry in third["history"]] == ["ConnectionError"] * 2
    assert third["waited"] == pytest.approx(due(worker.seen[1]) + due(worker.seen[2]), abs=0.5)


def test_a_plain_producers_message_starts_its_horizon_at_the_first_retry(app: Celery) -> None:
    """Without our header the first publish is unknown; the retry carries one."""
    charge = failing(app)
    with InProcessWorker(app) as worker:
        send_plain(app, charge.name, headers={"trace": "t1"})
        worker.run()
    first, second = worker.seen
    assert "hardened" not in first.headers
    assert second.headers["trace"] == "t1"
    assert second.headers["hardened"]["first_published"] == pytest.approx(time.time(), abs=60)


def send_plain(app: Celery, name: str, *, headers: dict[str, Any] | None = None) -> None:
    """Publish as a producer does that never heard of us."""
    plain = Celery(broker=app.conf.broker_url, set_as_current=False)
    plain.conf.task_default_queue = app.conf.task_default_queue
    plain.send_task(name, headers=headers)
    plain.close()


def test_history_is_capped(app: Celery) -> None:
    """A task that retries for ever does not send an ever longer message."""
    charge = failing(app, 40, max_retries=40)
    with InProcessWorker(app) as worker:
        charge.delay()
        assert worker.run(60) == 41
        assert len(worker.seen[-1].headers["hardened"]["history"]) == 20


def test_stale_headers_are_dropped(app: Celery) -> None:
    """What a broker says of one delivery does not travel into the next message."""
    charge = failing(app)
    with InProcessWorker(app) as worker:
        send_plain(app, charge.name, headers={**dict.fromkeys(STALE_HEADERS, 1), "redelivered": True, "trace": "t1"})
        worker.run()
    again = worker.seen[1].headers
    assert again["trace"] == "t1"
    assert not STALE_HEADERS & again.keys()


def test_headers_given_to_retry_are_added(app: Celery) -> None:
    """They are merged with those of the message, and cannot forge ours."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any) -> None:
        if self.request.retries == 0:
            raise self.retry(headers={"why": "slow", "hardened": {"attempt": 99}}, countdown=0)

    with InProcessWorker(app) as worker:
        charge.apply_async(headers={"trace": "t1"})
        worker.run()
    again = worker.seen[1].headers
    assert (again["trace"], again["why"], again["hardened"]["attempt"]) == ("t1", "slow", 1)
    assert again["hardened"]["first_published"] == worker.seen[0].headers["hardened"]["first_published"]


def test_arguments_given_to_retry_replace_the_old_ones(app: Celery) -> None:
    seen = []

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any, a: int, b: int = 0) -> None:
        seen.append((a, b))
        if self.request.retries == 0:
            raise self.retry(args=(2,), kwargs={"b": 3}, countdown=0)

    with InProcessWorker(app) as worker:
        charge.delay(1)
        worker.run()
    assert seen == [(1, 0), (2, 3)]


# --- one policy, and explicit words ----------------------------------------------------------------------


def test_explicit_and_automatic_retries_share_one_policy(app: Celery) -> None:
    """retry() without a time waits as the backoff says, not Celery's fixed three minutes."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", retry_jitter=False, retry_backoff=3)
    def charge(self: Any) -> None:
        if self.request.retries < 4:
            if self.request.retries % 2:
                raise self.retry()
            raise ConnectionError("gateway down")

    with InProcessWorker(app) as worker:
        charge.delay()
        worker.run()
    assert [round(due(message)) for message in worker.seen[1:]] == [3, 6, 12, 24]


def in_two_hours() -> datetime:
    """Asked when the test runs: it may be collected long before."""
    return datetime.now(timezone.utc) + timedelta(hours=2)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"countdown": 77}, 77),
        ({"countdown": 0}, 0),
        ({"countdown": -5}, 0),
        ({"countdown": 0.25}, 0.25),
        ({"countdown": 86_400}, 86_400),
        ({"eta": in_two_hours}, 7200),
        ({"eta": lambda: in_two_hours().isoformat()}, 7200),
    ],
    ids=["later", "at-once", "before-now", "a-fraction", "a-day", "eta", "eta-as-text"],
)
def test_an_explicit_time_is_taken_as_it_is(app: Celery, options: dict[str, Any], seconds: float) -> None:
    """Not jittered, not capped by retry_backoff_max, not cut by the horizon."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", retry_for=10)
    def charge(self: Any) -> None:
        if self.request.retries == 0:
            raise self.retry(**{name: value() if callable(value) else value for name, value in options.items()})

    with InProcessWorker(app) as worker:
        charge.delay()
        assert worker.run() == 2
    assert due(worker.seen[1]) == pytest.approx(seconds, abs=60 if "eta" in options else 0.2)
    assert letters(app) == []


def test_explicit_max_retries_are_the_tasks_word(app: Celery) -> None:
    """More than the class allows, beyond the horizon, and for this call only."""
    tries = []

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", max_retries=1, retry_for=0.001)
    def charge(self: Any) -> None:
        tries.append(self.request.retries)
        if self.request.retries < 4:
            raise self.retry(max_retries=10, exc=LookupError("x"))
        raise self.retry(exc=LookupError("x"))

    with InProcessWorker(app) as worker:
        charge.delay()
        worker.run()
    assert tries == [0, 1, 2, 3, 4]
    assert [letter.reason for letter in letters(app)] == ["exhausted"]


def test_max_retries_none_means_the_class_default_in_a_call(app: Celery) -> None:
    """As in Celery; for ever is said on the class, with a horizon."""
    tries = []

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", max_retries=2)
    def charge(self: Any) -> None:
        tries.append(1)
        raise self.retry(max_retries=None, countdown=0, exc=LookupError("x"))

    with InProcessWorker(app) as worker:
        charge.delay()
        worker.run()
    assert len(tries) == 3


def test_for_ever_within_a_horizon(app: Celery) -> None:
    """max_retries=None and retry_for: more retries than any count, until the time is up."""
    charge = failing(app, 99, max_retries=None, retry_for=3600, retry_jitter=False, retry_backoff_max=1)
    with InProcessWorker(app) as worker:
        charge.delay()
        assert worker.run(30) == 30
        assert letters(app) == []


def test_retry_kwargs_as_most_examples_use_it(app: Celery) -> None:
    """``retry_kwargs={"max_retries": 2, "countdown": 5}`` with autoretry_for: two retries, five seconds apart."""
    charge = failing(app, 99, autoretry_for=(ConnectionError,), retry_kwargs={"max_retries": 2, "countdown": 5})
    with InProcessWorker(app) as worker:
        charge.delay()
        assert worker.run() == 3
    assert [round(due(message)) for message in worker.seen[1:]] == [5, 5]
    assert [letter.reason for letter in letters(app)] == ["exhausted"]


@pytest.mark.parametrize("wrong", ["text", 7, object, ["list"]])
def test_an_exc_that_is_none_is_told_at_once(app: Celery, wrong: Any) -> None:
    """Celery notices only when the retries run out, days later."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any) -> None:
        raise self.retry(exc=wrong)

    with InProcessWorker(app) as worker, outcomes() as noted:
        charge.delay()
        assert worker.run() == 1
    assert noted == ["failure"]
    (letter,) = letters(app)
    assert (letter.reason, letter.error_type) == ("permanent", "TypeError")
    assert "exc must be an exception" in letter.error_message


def test_an_exception_class_will_do(app: Celery) -> None:
    """As for ``raise``."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", max_retries=1)
    def charge(self: Any) -> None:
        raise self.retry(exc=LookupError, countdown=0)

    with InProcessWorker(app) as worker:
        charge.delay()
        worker.run()
    assert [letter.error_type for letter in letters(app)] == ["LookupError"]


# --- expiry -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["automatic", "policy", "countdown", "eta"])
def test_a_retry_after_expires_is_a_letter_at_once(app: Celery, how: str) -> None:
    """Sent, it would be revoked without a word. Here the failure itself is on record."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", retry_jitter=False, retry_backoff=500)
    def charge(self: Any) -> None:
        error = ConnectionError("gateway down")
        if how == "automatic":
            raise error
        options = {
            "policy": {},
            "countdown": {"countdown": 500},
            "eta": {"eta": datetime.now(timezone.utc) + timedelta(seconds=500)},
        }[how]
        raise self.retry(exc=error, **options)

    with InProcessWorker(app) as worker, outcomes() as noted:
        charge.apply_async(expires=300)
        assert worker.run() == 1
    assert noted == ["failure"]
    assert [(letter.reason, letter.error_type) for letter in letters(app)] == [("expired_horizon", "ConnectionError")]


def test_a_retry_before_expires_is_sent(app: Celery) -> None:
    charge = failing(app, retry_jitter=False, retry_backoff=10)
    with InProcessWorker(app) as worker:
        charge.apply_async(expires=300)
        assert worker.run() == 2
    assert letters(app) == []


# --- a retry that cannot be sent ---------------------------------------------------------------------------


class Outage:
    """A broker that takes nothing for the next so many publishes, and a clock that only pauses move."""

    def __init__(self) -> None:
        self.left = 0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return sum(self.pauses)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    time = staticmethod(time.time)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    """Of the whole process; set ``left`` to begin it."""
    outage = Outage()
    publish = kombu.Producer.publish

    def refusing(self: Any, *args: Any, **options: Any) -> Any:
        if outage.left:
            outage.left -= 1
            raise OperationalError("broker down")
        return publish(self, *args, **options)

    monkeypatch.setattr(kombu.Producer, "publish", refusing)
    monkeypatch.setattr(retry_module, "time", outage)
    return outage


@pytest.mark.parametrize("explicit", [False, True])
def test_a_publish_that_fails_for_a_while(app: Celery, outage: Outage, explicit: bool) -> None:
    """It is tried again, with growing pauses; one retry is sent, no attempt is lost."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any) -> str:
        if self.request.retries == 0:
            if explicit:
                raise self.retry(exc=LookupError("x"))
            raise ConnectionError("gateway down")
        return "charged"

    with InProcessWorker(app) as worker, outcomes() as noted:
        result = charge.delay()
        outage.left = 3
        assert worker.run() == 2
        assert result.result == "charged"
    assert noted == ["retry", "success"]
    assert outage.pauses == sorted(outage.pauses)
    assert len(outage.pauses) == 3


@pytest.mark.parametrize("explicit", [False, True])
def test_a_publish_that_goes_on_failing_gives_the_message_back(app: Celery, outage: Outage, explicit: bool) -> None:
    """Celery drops the task there. Here the message is the broker's again, after the time that a setting gives."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any) -> str:
        starts.append(self.request.retries)
        if len(starts) == 1:
            if explicit:
                raise self.retry(exc=LookupError("x"))
            raise ConnectionError("gateway down")
        return "charged"

    starts: list[int] = []
    with InProcessWorker(app) as worker, outcomes() as noted:
        result = charge.delay()
        outage.left = 10**6
        worker.step()
        assert (starts, noted) == ([0], [])
        assert 8 < sum(outage.pauses) < 11, "hardened_dead_letter_write_timeout is ten seconds"
        assert letters(app) == []
        outage.left = 0
        worker.run()
        assert result.result == "charged"
    assert starts == [0, 0], "the message came back as it was, its retries unspent"
    assert len({message.delivery_tag for message in worker.seen}) == 1, "it is not the same message"


@pytest.mark.parametrize("explicit", [False, True])
def test_an_early_acked_task_has_no_message_to_give_back(app: Celery, outage: Outage, explicit: bool) -> None:
    """Its failure is a letter, so that it is on record and can be redriven."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge", acks_late=False)
    def charge(self: Any) -> None:
        error = ConnectionError("gateway down")
        if explicit:
            raise self.retry(exc=error)
        raise error

    with InProcessWorker(app) as worker, outcomes() as noted:
        charge.delay()
        outage.left = 10**6
        worker.run()
    assert noted == ["failure"]
    (letter,) = letters(app)
    assert letter.reason == "exhausted"
    assert letter.error_type in ("ConnectionError", "kombu.exceptions.OperationalError")


def test_arguments_that_cannot_be_encoded_are_no_outage(app: Celery, outage: Outage) -> None:
    """retry(args=[object()]) will never be sent: a letter at once, not a message that comes back for ever."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any, order: Any) -> None:
        raise self.retry(args=[object()])

    with InProcessWorker(app) as worker:
        charge.delay(1)
        assert worker.run() == 1
    assert outage.pauses == []
    assert [(letter.reason, letter.error_type) for letter in letters(app)] == [
        ("permanent", "kombu.exceptions.EncodeError")
    ]


def test_contained_retries_are_celery_s(app: Celery, outage: Outage) -> None:
    """A retry that cannot be sent is dropped, as stock drops it; what is left is a letter."""

    @app.task(bind=True, base=Task, shared=False, name="charge")
    def charge(self: Any) -> None:
        raise self.retry(countdown=0)

    with InProcessWorker(app) as worker:
        charge.delay()
        outage.left = 10**6
        assert worker.run() == 1
    assert [letter.reason for letter in letters(app)] == ["rejected"]


# --- throw=False ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["return", "raise", "out of memory", "raise it"])
def test_retry_without_throw_is_the_retry(app: Celery, then: str) -> None:
    """Whatever the body does afterwards: exactly one further message, one signal an attempt, no letter."""

    @app.task(bind=True, base=HardenedTask, shared=False, name="charge")
    def charge(self: Any) -> str:
        if self.request.retries == 0:
            pending = self.retry(throw=False, countdown=0)
            if then == "raise it":
                raise pending
            if then == "raise":
                raise ConnectionError("after that")
            if then == "out of memory":
                raise MemoryError("after that")
        return "charged"

    with InProcessWorker(app) as worker, outcomes() as noted:
        result = charge.delay()
        assert worker.run() == 2
        assert result.result == "charged"
    assert noted == ["retry", "success"]
    assert letters(app) == []


# --- signals --------------------------------------------------------------------------------------------------


def test_exactly_one_signal_an_attempt(app: Celery) -> None:
    """Projects commit or roll back in them."""
    charge = failing(app, 99, max_retries=3)
    postruns = []

    def on_postrun(state: str, **_: Any) -> None:
        postruns.append(state)

    signals.task_postrun.connect(on_postrun)
    with InProcessWorker(app) as worker, outcomes() as noted:
        charge.delay()
        worker.run()
    signals.task_postrun.disconnect(on_postrun)
    assert noted == ["retry", "retry", "retry", "failure"]
    assert postruns == ["RETRY", "RETRY", "RETRY", "FAILURE"]


def test_a_switch_turns_retries_off(app: Celery) -> None:
    """Failures are letters at once, automatic or explicit; eager tasks do not ask."""
    hardening = Hardening.expect(app)
    hardening.switches.set("retries", False, by="ann", why="the gateway asked us to stop")

    @app.task(bind=True, base=HardenedTask, shared=False, name="explicit")
    def explicit(self: Any) -> None:
        raise self.retry(exc=LookupError("x"), countdown=0)

    automatic = failing(app, name="automatic")
    with InProcessWorker(app) as worker:
        explicit.delay()
        automatic.delay()
        assert worker.run() == 2
    assert [(letter.task, letter.reason) for letter in letters(app)] == [
        ("explicit", "exhausted"),
        ("automatic", "exhausted"),
    ]
    assert automatic.apply().result == "charged"
    hardening.switches.clear("retries")
    with InProcessWorker(app) as worker:
        assert automatic.delay()
        assert worker.run() == 2


def test_reject_is_passed_on(app: Celery) -> None:
    """A task's own Reject is not taken for a failure to retry."""

    @app.task(base=HardenedTask, shared=False, name="charge", autoretry_for=(Exception,))
    def charge() -> None:
        raise Reject("not mine", requeue=False)

    with InProcessWorker(app) as worker:
        charge.delay()
        assert worker.run() == 1
    assert [letter.reason for letter in letters(app)] == ["rejected"]
