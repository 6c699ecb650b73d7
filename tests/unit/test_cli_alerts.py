"""``hardened alerts`` and ``hardened dashboard``: what the app knows of itself is filled in."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from celery import Celery

from celery_hardened import harden
from tests.support.cli import call, make_app


def rules(app: Celery, *options: str) -> dict[str, Any]:
    done = call(app, "alerts", *options)
    assert done.exit_code == 0, done.output
    return {rule["alert"]: rule for group in yaml.safe_load(done.stdout)["groups"] for rule in group["rules"]}


def test_thresholds_are_filled_in() -> None:
    """Each option reaches its rule."""
    found = rules(
        make_app(), "--oldest-age", "30", "--failure-ratio", "0.5", "--min-volume", "7", "--drain", "90",
        "--timeouts", "2", "--worker-lost", "4", "--stuck", "77", "--letter-age", "66", "--stale", "55",
        "--beat", "--beat-silent", "44", "--stalled", "120",
    )  # fmt: skip

    for name, end in {
        "CeleryQueueOldestMessage": "> 30",
        "CeleryTaskFailureRatio": "> 0.5",
        "CeleryTaskTimeouts": ">= 2",
        "CeleryWorkerLost": ">= 4",
        "CeleryTaskStuck": "> 77",
        "CeleryDeadLettersForgotten": "> 66",
    }.items():
        assert found[name]["expr"].strip().endswith(end), name
    assert ">= 7" in found["CeleryTaskFailureRatio"]["expr"]
    assert "> 90" in found["CeleryQueueDrainTime"]["expr"]
    assert "> 55" in found["CeleryQueueMetricsStale"]["expr"]
    assert "> 44" in found["CeleryBeatSilent"]["expr"]
    assert "[2m]" in found["CeleryQueueStalled"]["expr"]


def test_long_time_limits_are_allowed_for() -> None:
    """A queue whose runs may take an hour has not stalled after ten minutes, and a run of an hour is not stuck."""
    app = make_app()

    @app.task(name="shop.report", time_limit=3600)
    def report() -> None: ...

    found = rules(app)

    assert found["CeleryTaskStuck"]["expr"].strip().endswith("> 7200")
    assert "[2h]" in found["CeleryQueueStalled"]["expr"]
    assert rules(app, "--stuck", "60")["CeleryTaskStuck"]["expr"].strip().endswith("> 60")


def test_our_own_task_is_no_measure() -> None:
    """The half hour of a bulk action says nothing of how long the project's tasks may run."""
    app = make_app()

    @app.task(name="celery_hardened.takes_long", time_limit=1800)
    def bulk_action() -> None: ...

    assert "[10m]" in rules(app)["CeleryQueueStalled"]["expr"]


def test_queues_and_name_are_the_apps() -> None:
    """Every queue of the app has to be measured; commands name the app."""
    app = make_app(task_routes={"shop.pay": {"queue": "payments"}})

    found = rules(app)

    assert 'queue="payments"' in found["CeleryQueueNotMeasured"]["expr"]
    assert f'queue="{app.conf.task_default_queue}"' in found["CeleryQueueNotMeasured"]["expr"]
    assert found["CeleryDeadLettersGrowing"]["labels"]["app"] == "shop"
    assert "`celery -A shop hardened dlq stats`" in found["CeleryDeadLettersGrowing"]["annotations"]["description"]


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        ({}, [], False),
        ({}, ["--beat"], True),
        ({"beat_schedule": {"a": {"task": "x", "schedule": 60}}}, [], True),
        ({"beat_schedule": {"a": {"task": "x", "schedule": 60}}}, ["--no-beat"], False),
        ({"beat_scheduler": "hardened-django"}, [], True),
    ],
)
def test_beat_is_missed_where_there_should_be_one(settings: Any, options: list[str], expected: bool) -> None:
    """An app with schedules is told of a beat that was never there; one without is told nothing of beats."""
    found = rules(make_app(**settings), *options)

    assert ("CeleryBeatNoLeader" in found) is expected
    assert not expected or "absent_over_time" in found["CeleryBeatSilent"]["expr"]


def test_periodic_tasks_of_a_signal_are_schedules() -> None:
    """``add_periodic_task`` in ``on_after_finalize`` counts: the app is finalised first."""
    app = make_app()

    @app.task(name="shop.tick")
    def tick() -> None: ...

    @app.on_after_finalize.connect
    def setup(sender: Celery, **_: Any) -> None:
        sender.add_periodic_task(60.0, tick.s())

    assert "CeleryBeatNoLeader" in rules(app)


@pytest.mark.parametrize(("broker", "expected"), [("redis://127.0.0.1:1/0", False), ("amqp://127.0.0.1:1//", True)])
def test_rules_on_rabbitmq_are_for_rabbitmq(broker: str, expected: bool) -> None:
    """They are left out on Redis; nothing is connected to in order to tell."""
    app = harden(Celery("shop", broker=broker, set_as_current=False))
    app.conf.update(hardened_redis_url="redis://127.0.0.1:1/0")

    found = rules(app)

    assert ("CeleryRabbitQueueNoConsumer" in found) is expected


def test_a_wrong_selector_is_said() -> None:
    """In a sentence, with an example, and exit code 2."""
    done = call(make_app(), "alerts", "--selector", "namespace=prod")

    assert done.exit_code == 2
    assert "no list of matchers" in done.output


def test_labels_may_be_others_or_none() -> None:
    """``--by`` names what tells installations apart."""
    assert "by (cluster, env, queue)" in rules(make_app(), "--by", "cluster, env")["CeleryQueueStalled"]["expr"]
    assert "by (queue)" in rules(make_app(), "--by", "")["CeleryQueueStalled"]["expr"]


def test_dashboard_is_named_after_the_app() -> None:
    """What is printed is JSON, with the app's name or the given one."""
    made = json.loads(call(make_app(), "dashboard").stdout)
    assert made["title"] == "Celery, shop"
    made = json.loads(call(make_app(), "dashboard", "--title", "Ours", "--datasource", "abc").stdout)
    assert made["title"] == "Ours"
    assert made["panels"][1]["datasource"]["uid"] == "abc"
