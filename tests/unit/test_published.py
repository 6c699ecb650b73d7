"""Each publish is counted once, by what became of it; none fails because it is counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group
from kombu import Exchange, Queue

from celery_hardened import HardenedTask, deduplicate, signals
from celery_hardened.errors import DuplicateTaskError, PayloadTooLargeError
from celery_hardened.hardening import Hardening
from celery_hardened.metrics.catalogue import PUBLISH_SECONDS, PUBLISHED
from celery_hardened.metrics.publish_result import PUBLISH_MEANING
from celery_hardened.pipeline.published import publishes_of
from tests.support.in_process import InProcessWorker
from tests.unit.conftest import MakeApp


def add(app: Celery, name: str = "shop.add", run: Callable[..., Any] | None = None, **options: Any) -> Any:
    def nothing(*_: Any) -> None: ...

    return app.task(**{"base": HardenedTask, "shared": False, "name": name, **options})(run or nothing)


@pytest.fixture
def shop(make_hardened: MakeApp) -> Celery:
    return counting(make_hardened())


def counting(app: Celery) -> Celery:
    Hardening.expect(app).metrics.keep_here()
    return app


def results(app: Celery) -> Counter[tuple[str, str, str]]:
    """Publishes by task, queue and result; the app's own queue is ``""``."""
    found = Hardening.expect(app).metrics.registry.values(PUBLISHED)
    own = app.conf.task_default_queue
    return Counter(
        {(task, "" if queue == own else queue, result): int(n) for (task, queue, result), n in found.items()}
    )


def timed(app: Celery, result: str) -> float:
    return Hardening.expect(app).metrics.registry.value(PUBLISH_SECONDS, (result,))


# --- published ----------------------------------------------------------------------------------------------


def test_every_way_to_publish_is_counted_once(shop: Celery) -> None:
    """By hand, by name, workflows, their callbacks, retries, plain tasks: as many as there are messages."""
    work = add(shop)
    plain = add(shop, "shop.plain", base=Task)

    def flaky(self: Any) -> None:
        if not self.request.retries:
            raise ConnectionError

    again = add(shop, "shop.again", flaky, bind=True, max_retries=1)
    with InProcessWorker(shop) as worker:
        work.delay(1)
        work.apply_async((1,), link=work.si(2))
        shop.send_task("shop.add", (1,))
        shop.send_task("not.ours")
        chain(work.si(1), work.si(2), plain.si()).delay()
        group(work.si(1), work.si(2)).delay()
        chord([work.si(1), work.si(3)], plain.si()).delay()
        again.delay()
        worker.run()
        seen = Counter((message.headers["task"], "", "published") for message in worker.seen)
    assert seen["shop.again", "", "published"] == 2
    assert results(shop) == seen
    assert timed(shop, "published") == seen.total()


def test_in_a_dry_run_publishes_are_counted(make_hardened: MakeApp) -> None:
    """``hardened_observe`` changes nothing, and counts."""
    app = counting(make_hardened(hardened_observe=True))
    add(app).delay(1)
    assert results(app) == Counter({("shop.add", "", "published"): 1})


def test_the_label_is_the_queue(make_hardened: MakeApp) -> None:
    """Of routes, of options, of a task's own queue, of a binding; the routing key where no queue is known."""
    app = counting(
        make_hardened(
            task_queues=[Queue("bound", Exchange("goods", type="topic"), routing_key="goods.#"), Queue("default")],
            task_default_queue="default",
            task_create_missing_queues=True,
            task_routes={"shop.routed": {"queue": "by_route"}},
        )
    )
    add(app).delay()
    add(app, "shop.routed").delay()
    add(app, "shop.own", queue="own").delay()
    add(app, "shop.given").apply_async(queue="given")
    add(app, "shop.object").apply_async(queue=Queue("object"))
    add(app, "shop.bound").apply_async(exchange=Exchange("goods", type="topic"), routing_key="goods.#")
    add(app, "shop.anywhere").apply_async(exchange="", routing_key="ignored")
    add(app, "shop.nowhere").apply_async(exchange=Exchange("e", type="fanout"), routing_key="k")
    queues = {task.removeprefix("shop."): queue for task, queue, _ in results(app)}
    assert queues == {
        "add": "",
        "routed": "by_route",
        "own": "own",
        "given": "given",
        "object": "object",
        "bound": "bound",
        "anywhere": "",
        "nowhere": "k",
    }


def test_a_delay_by_the_broker_is_no_label_of_its_own(shop: Celery) -> None:
    """The routing key of a message that RabbitMQ delays begins with its delay: there are more than a million."""
    publishes = publishes_of(Hardening.expect(shop))
    assert publishes is not None
    key = f"{'.'.join('0' * 28)}.orders"
    assert publishes._queue_of({"exchange": "celery_delayed_27", "routing_key": key}) == "orders"


# --- what was not published ------------------------------------------------------------------------------------


def test_duplicates(shop: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted once whether the caller gets a result, nothing or an error; each is told, with who was first."""
    told: list[dict[str, Any]] = []

    def hear(sender: Any, **what: Any) -> None:
        assert sender is shop
        told.append(what)

    signals.task_deduplicated.connect(hear, weak=False)
    enter = type("Windows", (), {"enter": lambda self, key, **_: "first"})()
    monkeypatch.setattr("celery_hardened.pipeline.dedup.windows", lambda hardening: enter)
    monkeypatch.setattr("celery_hardened.pipeline.dedup.renewal", lambda hardening: _Quiet())
    try:
        for answer in ("return", "drop", "raise"):
            task = add(shop, f"shop.{answer}", deduplicate("number", on_duplicate=answer)(numbered()))
            if answer == "raise":
                with pytest.raises(DuplicateTaskError):
                    task.apply_async((1,), task_id="second")
            else:
                task.apply_async((1,), task_id="second")
    finally:
        signals.task_deduplicated.disconnect(hear)
    names = [f"shop.{answer}" for answer in ("return", "drop", "raise")]
    assert results(shop) == Counter({(name, "", "deduplicated"): 1 for name in names})
    assert [{k: what[k] for k in ("task", "task_id", "owner")} for what in told] == [
        {"task": name, "task_id": "second", "owner": "first"} for name in names
    ]


def numbered() -> Any:
    def run(number: int) -> None: ...

    return run


class _Quiet:
    def keep_after_all(self, *_: Any) -> None: ...


def test_what_the_caller_gets_an_error_for(make_hardened: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large, refused (the call's own fault), failed (the broker's): in the queue where it would have gone."""
    app = counting(
        make_hardened(
            hardened_payload_max=2000,
            hardened_payload_threshold=1024,
            task_routes={"shop.routed": {"queue": "by_route"}},
        )
    )
    work, routed = add(app), add(app, "shop.routed")
    with pytest.raises(PayloadTooLargeError):
        work.delay("x" * 3000)
    with pytest.raises(Exception, match="not JSON serializable"):
        routed.delay(object())
    with pytest.raises(TypeError):
        app.send_task("shop.add", args=3)

    def refuse(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError

    monkeypatch.setattr("kombu.messaging.Producer.publish", refuse)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            routed.delay(1)
    assert results(app) == Counter(
        {
            ("shop.add", "", "too_large"): 1,
            ("shop.routed", "by_route", "refused"): 1,
            ("shop.add", "", "refused"): 1,
            ("shop.routed", "by_route", "failed"): 3,
        }
    )
    assert {result: timed(app, result) for result in PUBLISH_MEANING if timed(app, result)} == {
        "too_large": 1,
        "refused": 2,
        "failed": 3,
    }


# --- a publish never fails because it is counted ---------------------------------------------------------------------


def test_metrics_that_raise_change_nothing(
    shop: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is sent, an error stays the caller's own; it is said once."""

    def raising(*_: Any, **__: Any) -> None:
        raise RuntimeError("metrics are broken")

    work = add(shop)
    with InProcessWorker(shop) as worker:
        with monkeypatch.context() as broken:
            broken.setattr("celery_hardened.metrics.registry.Registry.inc", raising)
            for _ in range(3):
                work.delay(1)
            with pytest.raises(TypeError):
                shop.send_task("shop.add", args=3)
        worker.run()
        assert len(worker.seen) == 3
    assert caplog.text.count("not counted as they should") == 1


def test_without_metrics_nothing_is_counted(make_hardened: MakeApp) -> None:
    """``hardened_metrics = False``: nothing is even looked at."""
    app = make_hardened(hardened_metrics=False)
    add(app).delay(1)
    hardening = Hardening.expect(app)
    assert hardening.__dict__["publishes"] is None
    hardening.metrics.keep_here()
    add(app, "shop.other").delay(1)
    assert not hardening.metrics.registry.values(PUBLISHED)


def test_threads_that_publish_at_the_same_time(shop: Celery) -> None:
    """The first publishes of a process come from many threads: none is lost."""
    work, start = add(shop), threading.Barrier(8)
    # Not Celery's own: it takes no lock where it binds tasks, reads its configuration and makes its pools.
    shop.finalize()
    with shop.producer_pool.acquire(block=True) as producer:
        assert producer.channel

    def publish() -> None:
        start.wait(30)
        for _ in range(25):
            work.delay(1)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results(shop) == Counter({("shop.add", "", "published"): 200})
