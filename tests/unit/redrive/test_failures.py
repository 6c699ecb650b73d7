"""What a redrive does when the broker fails, somebody interrupts, or its forerunner was killed."""

from __future__ import annotations

from typing import Any

import pytest
from amqp.exceptions import RecoverableConnectionError as AmqpConnectionError
from kombu.transport import memory

from celery_hardened.dead_letter import outlet
from tests.unit.redrive.desk import Desk, mark_of


def failing(monkeypatch: pytest.MonkeyPatch, *, times: int, error: Exception, arrives: bool = False) -> None:
    """Let the next publishes fail; *arrives*: the message gets through and only the answer is lost."""
    left = [times]
    send = outlet.wire.send

    def broken(*args: Any, **options: Any) -> None:
        if left[0] > 0:
            left[0] -= 1
            if arrives:
                send(*args, **options)
            raise error
        send(*args, **options)

    monkeypatch.setattr(outlet.wire, "send", broken)


def test_a_broker_that_fails_once_costs_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not sent is taken again."""
    ids = desk.fill(5)
    failing(monkeypatch, times=2, error=ConnectionResetError("gone"))
    report = desk.redrive(batch=3)
    assert (report.sent, report.failed, report.stopped) == (5, {}, None)
    assert desk.arrived_ids() == ids


def test_a_message_that_arrived_though_the_answer_was_lost_runs_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again, under another token: the store lets one of the two run."""
    desk.fill(3)
    failing(monkeypatch, times=1, error=ConnectionResetError("gone"), arrives=True)

    report = desk.redrive()

    assert report.sent == 3
    marks = [mark_of(wire) for wire in desk.arrived()]
    assert len(marks) == 4
    assert len({*marks}) == 4
    assert sum(desk.store.accept_start(one, token=token) for one, token in marks) == 3


def test_no_library_repeats_a_publish_by_itself(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    kombu would, when the connection breaks, and redis-py on a time-out: two messages
    with one token, which the store takes for one message and its redelivery.
    """
    desk.fill(1)
    desk.app.conf.broker_transport_options = {"retry_on_timeout": True, "socket_timeout": 3}
    put = memory.Channel._put
    answers = [AmqpConnectionError("gone")]

    def lossy(*args: Any, **options: Any) -> None:
        put(*args, **options)
        while answers:
            raise answers.pop()

    monkeypatch.setattr(memory.Channel, "_put", lossy)
    desk.redrive()

    marks = [mark_of(wire) for wire in desk.arrived()]
    assert len(marks) == 2
    assert marks[0] != marks[1]
    with outlet.Outlet(desk.app) as out:
        assert out._connect().transport_options == {"retry_on_timeout": False, "socket_timeout": 3}


def test_a_broker_that_stays_down_stops_the_redrive(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three failures in a row: the rest is open as before, and can be redriven later."""
    ids = desk.fill(5)
    failing(monkeypatch, times=3, error=ConnectionResetError("gone"))

    report = desk.redrive(batch=2)

    assert (report.sent, report.skipped) == (0, 0)
    assert list(report.failed) == ids[:2]
    assert report.stopped is not None
    assert "3 times in a row (ConnectionResetError: gone)" in report.stopped
    assert desk.states(ids) == ["dead"] * 5
    assert desk.redrive().sent == 5


def test_a_message_that_cannot_be_published_fails_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the message, not of the broker: it is given back and the others go out."""
    ids = desk.fill(3)
    failing(monkeypatch, times=1, error=TypeError("no such header type"))
    report = desk.redrive()
    assert report.failed == {ids[0]: "TypeError: no such header type"}
    assert report.sent == 2
    assert desk.states(ids) == ["dead", "redriven", "redriven"]


def test_an_interrupt_marks_what_was_sent_and_gives_back_the_rest(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a batch: nobody has to wait for the lease."""
    ids = desk.fill(5)
    publish = outlet.Outlet.publish
    sent: list[Any] = []

    def interrupted(self: outlet.Outlet, message: Any) -> None:
        if len(sent) == 3:
            raise KeyboardInterrupt
        sent.append(message)
        publish(self, message)

    monkeypatch.setattr(outlet.Outlet, "publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        desk.redrive()
    assert desk.states(ids) == ["redriven"] * 3 + ["dead"] * 2


def test_what_a_killed_redrive_held_is_taken_over_when_the_lease_lapses(desk: Desk) -> None:
    """Called again at once, it sends the free ones, waits for the others, and leaves none."""
    ids = desk.fill(5)
    desk.store.begin_redrive(ids[:2], token="killed", by="bob", why="", lease=30)

    report = desk.redrive()

    assert (report.sent, report.skipped) == (5, 0)
    assert desk.arrived_ids() == [*ids[2:], *ids[:2]]


def test_letters_under_a_redrive_that_lives_are_left_to_it(desk: Desk) -> None:
    """Its lease is longer than we wait: skipped, not doubled."""
    ids = desk.fill(3)
    desk.store.begin_redrive(ids[:2], token="alive", by="bob", why="", lease=3600)
    report = desk.redrive()
    assert (report.sent, report.skipped) == (1, 2)
    assert desk.arrived_ids() == ids[2:]


def test_an_amqp_queue_that_does_not_exist_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """AMQP throws away what is sent to a queue that is not there."""
    ids = desk.fill(1)
    monkeypatch.setattr(outlet.Outlet, "has_queue", lambda _self, _queue: False)
    report = desk.redrive()
    assert "the broker has no queue" in report.refused[ids[0]]
    assert desk.states(ids) == ["dead"]
