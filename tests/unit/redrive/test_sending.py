"""What a redrive sends, and at what pace."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_hardened.dead_letter import outlet
from celery_hardened.dead_letter.contract import Query
from tests.unit.redrive.desk import Desk, mark_of


def test_letters_are_sent_oldest_first_and_marked(desk: Desk) -> None:
    """Each message carries its letter and a token that the store accepts; the letter is ``redriven``."""
    ids = desk.fill(5)

    report = desk.redrive(batch=2)

    assert (report.sent, report.refused, report.failed, report.skipped, report.stopped) == (5, {}, {}, 0, None)
    assert desk.states(ids) == ["redriven"] * 5
    arrived = desk.arrived()
    assert [mark_of(wire)[0] for wire in arrived] == ids
    assert len({mark_of(wire)[1] for wire in arrived}) == 3
    for wire in arrived:
        letter_id, token = mark_of(wire)
        assert desk.store.accept_start(letter_id, token=token)
    assert [(entry.action, entry.by, entry.why) for entry in desk.store.get(ids[0]).audit] == [
        ("redrive", "ann", "fixed")
    ]


def test_the_message_arrives_as_it_was(desk: Desk) -> None:
    """Body bytes, encoding and headers survive the trip through kombu; retries are reset."""
    body = b'[["\xc3\xbc"],  {}, {}]'
    desk.fill(
        1, body=body, properties={"correlation_id": "t", "priority": 4}, headers={"task": "x", "id": "t", "own": [1]}
    )
    desk.redrive()
    (wire,) = desk.arrived()
    assert wire.body == body
    assert (wire.content_type, wire.content_encoding) == ("application/json", "utf-8")
    assert (wire.headers["own"], wire.headers["id"], wire.headers["retries"]) == ([1], "t", 0)
    assert (wire.properties["priority"], wire.properties["correlation_id"]) == (4, "t")


def test_a_compressed_message_arrives_whole(desk: Desk) -> None:
    """kombu took the compression off when the message arrived and left its header on; both come back."""
    body = json.dumps([["x" * 1000], {}, {}]).encode()
    desk.fill(1, body=body, headers={"task": "x", "id": "t", "compression": "application/x-gzip"})
    desk.redrive()
    (wire,) = desk.arrived()
    assert (wire.body, wire.body_compressed) == (body, False)


def test_a_query_a_limit_and_another_queue(desk: Desk) -> None:
    """Only what matches, at most so many, all to where they are told."""
    desk.fill(3)
    slow = desk.fill(4, task="shop.slow")
    other = f"{desk.queue}-other"

    report = desk.redrive(Query(task="shop.slow"), limit=3, to_queue=other, batch=2)

    assert report.sent == 3
    assert desk.arrived_ids(other) == slow[:3]
    assert desk.arrived() == []
    assert desk.store.count(Query()) == 4


def test_arguments_are_edited_on_the_way(desk: Desk) -> None:
    """The letter keeps what was; the message has what is new."""
    (one,) = desk.fill(1)
    desk.redrive(edit={"args": ["i2"]})
    (wire,) = desk.arrived()
    assert json.loads(wire.body)[0] == ["i2"]
    assert json.loads(desk.store.get(one).letter.body)[0] == ["i1"]


def test_progress_counts_up_to_the_total(desk: Desk) -> None:
    """Seen so far, and how many there were at the start."""
    desk.fill(5)
    told: list[tuple[int, int]] = []
    desk.redrive(batch=2, progress=lambda seen, total: told.append((seen, total)))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_a_rate_is_kept(desk: Desk) -> None:
    """Ten a second: the ninth second ends with the hundredth message at the earliest, no bursts between batches."""
    desk.fill(100)
    sent_at: list[float] = []
    begin = desk.clock.now
    desk.redrive(rate=10, batch=7, progress=lambda _seen, _total: sent_at.append(desk.clock.now - begin))
    assert desk.clock.now - begin == pytest.approx(9.9, abs=0.01)
    assert sent_at[0] == pytest.approx(0.6, abs=0.01)


def test_a_rate_slower_than_the_lease_holds_no_batch_too_long(desk: Desk) -> None:
    """One message a minute under a lease of 30 s: each is taken just before it is sent."""
    ids = desk.fill(3)
    report = desk.redrive(rate=1 / 60)
    assert report.sent == 3
    assert desk.states(ids) == ["redriven"] * 3
    assert [len(desk.store.get(one).audit) for one in ids] == [1, 1, 1]


def test_a_batch_that_takes_too_long_is_given_back_and_taken_anew(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow broker: what was not sent in half the lease is taken again under a new token."""
    ids = desk.fill(4)
    publish = outlet.Outlet.publish

    def slowly(self: outlet.Outlet, message: Any) -> None:
        desk.clock.sleep(10)
        publish(self, message)

    monkeypatch.setattr(outlet.Outlet, "publish", slowly)
    report = desk.redrive(lease=30)
    assert report.sent == 4
    assert sorted(desk.arrived_ids()) == sorted(ids)
    assert any(entry.why == "the lease ran out" for entry in desk.store.get(ids[3]).audit)
