"""Runs by hand where the broker is not the Redis of the records."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest

from celery_hardened import Hardening
from celery_hardened.beat.names import Keys, task_id_of
from celery_hardened.beat.store import BeatStore
from celery_hardened.dedup.store import RedisWindowStore
from celery_hardened.pipeline.beat_elsewhere import CONFIRM_TIMEOUT, BrokerMessages
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.cli import answers, call
from tests.support.notes import notes
from tests.support.until import until

pytestmark = pytest.mark.integration

APP = (Path(__file__).parents[1] / "support" / "beat_app.py").read_text()

SCHEDULES = "{'hourly': {'task': 'proj.tick', 'schedule': crontab(minute='0'), 'overlap': 'skip'}}"


def test_trigger_and_backfill_through_another_broker(
    load_project: LoadProject, start_worker: StartWorker, out: Path
) -> None:
    """On RabbitMQ and on another Redis: refused while a run is not over, run under their ids, and over after it."""
    env = {"SCHEDULES": SCHEDULES}
    app = load_project(APP, env=env).app
    (one,) = answers(call(app, "schedule", "trigger", "hourly", "--json"))
    refused = call(app, "schedule", "trigger", "hourly")
    assert refused.exit_code == 1
    assert one["task_id"] in refused.stderr
    period = ["--from", "2026-01-01T00:00", "--to", "2026-01-01T02:00"]
    assert call(app, "schedule", "backfill", "hourly", *period, "--yes", "--pace", "0").exit_code == 0

    start_worker(APP, env=env)
    until(lambda: len(notes(out, "runs")) >= 3, what="three runs", within=60)
    expected = {one["task_id"], task_id_of("hourly", 1767225600.0), task_id_of("hourly", 1767229200.0)}
    assert {line.split()[2] for line in notes(out, "runs")} == expected
    hardening = Hardening.expect(app)
    windows = RedisWindowStore(hardening.redis, prefix=hardening.prefix)
    until(lambda: not list(windows.held()), what="the run to be over", within=60)
    assert call(app, "schedule", "trigger", "hourly").exit_code == 0


def test_what_the_broker_did_not_take_may_be_asked_for_again(
    load_project: LoadProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that refuses connections has got nothing: within the hour the same slot is fired, once."""
    app = load_project(APP, env={"SCHEDULES": SCHEDULES}).app
    period = ["--from", "2026-01-01T00:00", "--to", "2026-01-01T01:00", "--yes"]

    def refused(*_: Any, **__: Any) -> bool:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr(BrokerMessages, "publish", refused)
    assert "the broker did not take it" in call(app, "schedule", "backfill", "hourly", *period).stderr
    monkeypatch.undo()
    hardening = Hardening.expect(app)
    store = BeatStore(hardening.redis, Keys(hardening.prefix), history=10)
    assert store.history("hourly", 10) == []
    assert call(app, "schedule", "backfill", "hourly", *period).exit_code == 0
    assert [line["outcome"] for line in store.history("hourly", 10)] == ["backfilled"]
    again = call(app, "schedule", "backfill", "hourly", *period)
    assert "was fired by hand within the last hour" in again.stderr


def test_what_its_own_publish_did_not_send_leaves_nothing_behind(
    load_project: LoadProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line that says that it ran, and no window that nobody frees: the schedule's own next run is not refused."""
    app = load_project(APP, env={"SCHEDULES": SCHEDULES}).app
    monkeypatch.setattr(BrokerMessages, "publish", lambda *_, **__: False)
    assert "sent nothing" in call(app, "schedule", "trigger", "hourly").stderr
    hardening = Hardening.expect(app)
    assert BeatStore(hardening.redis, Keys(hardening.prefix), history=10).history("hourly", 10) == []
    assert not list(RedisWindowStore(hardening.redis, prefix=hardening.prefix).held())


class Killed(BaseException):
    """Nothing is done any more."""


def held(app: Any) -> dict[str, tuple[str, float]]:
    hardening = Hardening.expect(app)
    windows = RedisWindowStore(hardening.redis, prefix=hardening.prefix)
    return {one.key: (one.task_id, one.left) for one in windows.held()}


@pytest.mark.parametrize("way", ["the broker is silent", "killed on the way"])
def test_a_trigger_that_may_have_come_to_nothing_holds_the_window_for_a_lease(
    load_project: LoadProject, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Nobody publishes it again, so the schedule's own runs do not wait for it for days."""
    app = load_project(APP, env={"SCHEDULES": SCHEDULES}).app

    def lost(*_: Any, **__: Any) -> bool:
        raise TimeoutError("no confirm") if way == "the broker is silent" else Killed

    monkeypatch.setattr(BrokerMessages, "publish", lost)
    with contextlib.suppress(Killed):
        call(app, "schedule", "trigger", "hourly")
    [(_, left)] = held(app).values()
    lease = Hardening.expect(app).settings.lease
    assert 0 < left <= lease + (0 if way == "the broker is silent" else CONFIRM_TIMEOUT)


def test_a_trigger_that_was_sent_holds_the_window_until_its_run_is_over(
    load_project: LoadProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as its message may wait; and unless its run has spoken, or is over, before the broker has confirmed."""
    app = load_project(APP, env={"SCHEDULES": SCHEDULES}).app
    hardening = Hardening.expect(app)
    windows = RedisWindowStore(hardening.redis, prefix=hardening.prefix)
    (one,) = answers(call(app, "schedule", "trigger", "hourly", "--json"))
    assert held(app)["schedule:hourly"][0] == one["task_id"]
    assert held(app)["schedule:hourly"][1] > hardening.settings.queue_retention - 60
    windows.free("schedule:hourly")

    def began(*_: Any, task_id: str, **__: Any) -> bool:
        return windows.hold("schedule:hourly", task_id=task_id, ttl=60, told=time.time())

    def ended(*_: Any, task_id: str, **__: Any) -> bool:
        return windows.leave("schedule:hourly", task_id=task_id)

    monkeypatch.setattr(BrokerMessages, "publish", began)
    assert call(app, "schedule", "trigger", "hourly").exit_code == 0
    assert held(app)["schedule:hourly"][1] <= 60
    windows.free("schedule:hourly")
    monkeypatch.setattr(BrokerMessages, "publish", ended)
    assert call(app, "schedule", "trigger", "hourly").exit_code == 0
    assert held(app) == {}


def test_a_trigger_ends_the_run_before_when_its_message_is_there(
    load_project: LoadProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for being asked for: if the broker has not taken it, that run goes on and keeps its window."""
    app = load_project(APP, env={"SCHEDULES": SCHEDULES.replace("skip", "terminate_other")}).app
    hardening = Hardening.expect(app)
    windows = RedisWindowStore(hardening.redis, prefix=hardening.prefix)
    keys = Keys(hardening.prefix)
    assert windows.enter("schedule:hourly", task_id="before", ttl=600) == "before"

    def refused(*_: Any, **__: Any) -> bool:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr(BrokerMessages, "publish", refused)
    assert "the broker did not take it" in call(app, "schedule", "trigger", "hourly").stderr
    monkeypatch.setattr(BrokerMessages, "publish", lambda *_, **__: False)
    assert "sent nothing" in call(app, "schedule", "trigger", "hourly").stderr
    assert held(app)["schedule:hourly"][0] == "before"
    assert held(app)["schedule:hourly"][1] > 500
    assert hardening.redis.lrange(keys.revoke, 0, -1) == []
    monkeypatch.undo()
    (one,) = answers(call(app, "schedule", "trigger", "hourly", "--json"))
    assert held(app)["schedule:hourly"][0] == one["task_id"]
    assert [json.loads(entry) for entry in hardening.redis.lrange(keys.revoke, 0, -1)] == [
        {"id": "before", "terminate": True}
    ]
