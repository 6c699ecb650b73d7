"""Redrive on the in-memory store and broker: what is sent, what is refused, what it does when things fail."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from amqp.exceptions import RecoverableConnectionError as AmqpConnectionError
from celery import Celery
from kombu.transport import memory

from celery_hardened.dead_letter import outlet
from celery_hardened.dead_letter.canary import Canary
from celery_hardened.dead_letter.contract import Query, Retention, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.memory import InMemoryDeadLetterStore
from celery_hardened.dead_letter.redrive import discard_letters, redrive
from celery_hardened.dead_letter.redrive_run import RedriveReport
from celery_hardened.marks import Marks
from celery_hardened.wire import Wire, capture
from tests.stores.letters import ROOMY, letter, redriven

KEEP: Retention = ROOMY


class Clock:
    """Time that passes when somebody sleeps, and by a microsecond whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0, "time.sleep() would raise"
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> InMemoryDeadLetterStore:
    return InMemoryDeadLetterStore(retention=KEEP, clock=clock)


@pytest.fixture
def queue() -> str:
    """A queue of this test; the in-memory broker is shared by the process."""
    return f"q-{uuid.uuid4().hex}"


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", set_as_current=False)
    yield app
    app.close()


class Desk:
    """Fills a store with letters of one queue, redrives them, and reads what arrived there."""

    def __init__(self, app: Celery, store: InMemoryDeadLetterStore, queue: str, clock: Clock) -> None:
        self.app, self.store, self.queue, self.clock = app, store, queue, clock

    def fill(self, number: int, **fields: Any) -> list[str]:
        ids = []
        for _ in range(number):
            one = letter(**{"queue": self.queue, **fields})
            self.store.put(one)
            ids.append(one.id)
        return ids

    def redrive(self, query: Query = Query(), **options: Any) -> RedriveReport:  # noqa: B008
        given: dict[str, Any] = {"by": "ann", "why": "fixed", "redrive_max": 3}
        return redrive(self.app, self.store, query, clock=self.clock, sleep=self.clock.sleep, **{**given, **options})

    def arrived(self, queue: str | None = None) -> list[Wire]:
        found = []
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            channel.queue_declare(queue or self.queue)
            while (message := channel.basic_get(queue or self.queue, no_ack=True)) is not None:
                found.append(capture(message))
        return found

    def arrived_ids(self, queue: str | None = None) -> list[str]:
        return [_mark(wire)[0] for wire in self.arrived(queue)]

    def states(self, ids: list[str]) -> list[str]:
        return [self.store.get(one).state for one in ids]


def _mark(wire: Wire) -> tuple[str, str]:
    mark = Marks.read(wire.headers).redrive
    assert mark is not None
    return mark


@pytest.fixture
def desk(app: Celery, store: InMemoryDeadLetterStore, queue: str, clock: Clock) -> Desk:
    return Desk(app, store, queue, clock)


# --- what is sent --------------------------------------------------------------------------------


def test_letters_are_sent_oldest_first_and_marked(desk: Desk) -> None:
    """Each message carries its letter and a token that the store accepts; the letter is ``redriven``."""
    ids = desk.fill(5)

    report = desk.redrive(batch=2)

    assert (report.sent, report.refused, report.failed, report.skipped, report.stopped) == (5, {}, {}, 0, None)
    assert desk.states(ids) == ["redriven"] * 5
    arrived = desk.arrived()
    assert [_mark(wire)[0] for wire in arrived] == ids
    assert len({_mark(wire)[1] for wire in arrived}) == 3
    for wire in arrived:
        letter_id, token = _mark(wire)
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


# --- what is refused -----------------------------------------------------------------------------


def test_a_dry_run_changes_nothing(desk: Desk) -> None:
    """It tells what would be sent and what refused."""
    ids = desk.fill(3)
    (looping,) = desk.fill(1, redrives=3)
    before = [desk.store.get(one) for one in ids]

    report = desk.redrive(dry_run=True, canary=Canary(1))

    assert report.sent == 3
    assert list(report.refused) == [looping]
    assert desk.arrived() == []
    assert [desk.store.get(one) for one in ids] == before


def test_a_task_that_keeps_dying_is_refused_unless_forced(desk: Desk) -> None:
    """The loop limit counts redrives of the task, not of the letter."""
    (twice,) = desk.fill(1, redrives=2)
    (thrice,) = desk.fill(1, redrives=3)

    report = desk.redrive()
    assert report.sent == 1
    assert report.refused == {
        thrice: "it was redriven 3 times before (hardened_redrive_max is 3) and died each time. "
        "Mend the cause first, or use --force."
    }
    assert desk.states([twice, thrice]) == ["redriven", "dead"]
    assert desk.store.get(thrice).audit == ()

    assert desk.redrive(force=True).sent == 1


def test_a_parked_letter_whose_chord_is_gone_is_refused(desk: Desk) -> None:
    """It would succeed and the chord never run. Asked for parked letters only; ``force`` does not ask."""
    (alive,) = desk.fill(1, parked=True, group_id="alive")
    (lost,) = desk.fill(1, parked=True, group_id="lost")
    (plain,) = desk.fill(1, group_id="lost")
    asked: list[str] = []

    def gone(of: DeadLetter) -> str | None:
        asked.append(of.id)
        return "its chord is gone." if of.group_id == "lost" else None

    report = desk.redrive(parked_group_alive=gone)
    assert report.refused == {lost: "its chord is gone."}
    assert asked == [alive, lost]
    assert desk.states([alive, lost, plain]) == ["redriven", "parked", "redriven"]

    assert desk.redrive(parked_group_alive=gone, force=True).sent == 1


def test_letters_closed_in_the_last_moment_are_skipped(desk: Desk) -> None:
    """Between the look at a letter and its taking somebody else may act: their word holds."""
    ids = desk.fill(3, parked=True, group_id="g")

    def discarded_by_another(of: DeadLetter) -> str | None:
        if of.id == ids[1]:
            desk.store.discard(of.id, by="bob", why="")
        return None

    report = desk.redrive(parked_group_alive=discarded_by_another)

    assert (report.sent, report.skipped, report.seen) == (2, 1, 3)
    assert desk.states(ids) == ["redriven", "discarded", "redriven"]


def test_letters_named_by_id_are_never_passed_over_in_silence(desk: Desk) -> None:
    """Unknown, closed, or excluded by another filter: each is refused with its reason."""
    good, closed, other = desk.fill(3)
    desk.store.discard(closed, by="ann", why="")
    (other,) = desk.fill(1, task="shop.other")

    report = desk.redrive(Query(ids=(good, closed, other, "nobody"), task="shop.charge"))

    assert report.sent == 1
    assert report.refused == {
        closed: "it is discarded already.",
        other: "the other filters exclude it.",
        "nobody": "there is no such letter.",
    }


def test_one_bad_letter_does_not_stop_the_others(desk: Desk) -> None:
    """No queue known, arguments that cannot be edited: refused, and the rest goes out."""
    lost = desk.fill(1, queue="", routing_key="")
    binary = desk.fill(1, content_type="application/data")
    good = desk.fill(2)
    report = desk.redrive(edit={"args": ["i2"]})
    assert set(report.refused) == {*lost, *binary}
    assert report.sent == 2
    assert desk.states(good) == ["redriven"] * 2


@pytest.mark.parametrize(
    "options", [{"batch": 0}, {"rate": 0}, {"limit": 0}, {"lease": 0}, {"edit": {"arguments": []}}]
)
def test_senseless_options_are_refused_before_anything_is_sent(desk: Desk, options: dict[str, Any]) -> None:
    """A typo in ``edit`` would otherwise redrive everything unedited."""
    ids = desk.fill(1)
    with pytest.raises(ValueError, match=r"batch and limit|edit may hold"):
        desk.redrive(**options)
    assert desk.states(ids) == ["dead"]


# --- what fails ----------------------------------------------------------------------------------


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
    marks = [_mark(wire) for wire in desk.arrived()]
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

    marks = [_mark(wire) for wire in desk.arrived()]
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


# --- canary --------------------------------------------------------------------------------------


class Worker:
    """Runs what arrives whenever the redrive sleeps; *dies* says which fail again."""

    def __init__(self, desk: Desk, dies: list[bool], *, stalls: bool = False) -> None:
        self.desk, self.dies, self.stalls = desk, dies, stalls

    def __call__(self, seconds: float) -> None:
        self.desk.clock.now += seconds
        for wire in [] if self.stalls else self.desk.arrived():
            letter_id, token = _mark(wire)
            assert self.desk.store.accept_start(letter_id, token=token)
            if self.dies and self.dies.pop(0):
                self.desk.store.put(redriven(self.desk.store.get(letter_id).letter, queue=self.desk.queue))
            else:
                self.desk.store.resolve(letter_id, by="worker", why="succeeded")


def with_canary(desk: Desk, canary: Canary, worker: Worker) -> RedriveReport:
    return redrive(
        desk.app, desk.store, Query(), by="ann", why="", redrive_max=3, canary=canary, clock=desk.clock, sleep=worker
    )


def test_a_canary_that_lives_lets_the_rest_go(desk: Desk) -> None:
    """The first three succeed, then the other seven are sent."""
    desk.fill(10)
    report = with_canary(desk, Canary(3), Worker(desk, []))
    assert report.canary is not None
    assert (report.canary.resolved, report.canary.died, report.canary.pending) == (3, 0, 0)
    assert (report.sent, report.stopped) == (10, None)


def test_a_canary_that_dies_stops_the_rest(desk: Desk) -> None:
    """More than a quarter of four died again: six letters are left as they were."""
    ids = desk.fill(10)
    report = with_canary(desk, Canary(4, max_failed_percent=25), Worker(desk, [True, False, True, False]))
    assert report.sent == 4
    assert report.stopped is not None
    assert report.stopped.startswith("Of 4 canary letters 2 died again and 0 had not finished")
    assert desk.states(ids[4:]) == ["dead"] * 6


def test_a_canary_may_lose_as_many_as_allowed(desk: Desk) -> None:
    """Exactly the percentage is not more than it."""
    desk.fill(10)
    report = with_canary(desk, Canary(4, max_failed_percent=50), Worker(desk, [True, False, True, False]))
    assert (report.sent, report.stopped) == (10, None)


def test_a_canary_nobody_runs_stops_the_rest(desk: Desk) -> None:
    """No worker, no evidence: after the wait it counts as failed."""
    desk.fill(10)
    before = desk.clock.now
    report = with_canary(desk, Canary(4, wait=60), Worker(desk, [], stalls=True))
    assert report.sent == 4
    assert report.stopped is not None
    assert "4 had not finished after 60 s" in report.stopped
    assert desk.clock.now - before == pytest.approx(60, abs=2)


@pytest.mark.parametrize("options", [(0,), (1, 101.0), (1, 0.0, -1.0), (1, 0.0, 1.0, 0.0)])
def test_a_senseless_canary_is_refused(options: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="a canary needs"):
        Canary(*options)


# --- discard -------------------------------------------------------------------------------------


def test_discarding_answers_the_letters_it_closed(desk: Desk) -> None:
    """Each was seen by ``closing`` while it was still open; what was closed before is left out."""
    ids = desk.fill(3)
    desk.store.resolve(ids[1], by="w", why="")
    seen: list[str] = []

    def closing(stored: StoredLetter) -> None:
        seen.append(desk.store.get(stored.letter.id).state)

    closed = discard_letters(desk.store, [*ids, "nobody"], by="ann", why="obsolete", closing=closing)

    assert [stored.letter.id for stored in closed] == [ids[0], ids[2]]
    assert {stored.state for stored in closed} == {"discarded"}
    assert seen == ["dead", "dead"]
    assert desk.states(ids) == ["discarded", "resolved", "discarded"]


def test_a_letter_whose_chord_could_not_be_failed_stays_open(desk: Desk) -> None:
    """``closing`` comes first, so that nothing is forgotten if it fails."""
    ids = desk.fill(1)

    def closing(_stored: StoredLetter) -> None:
        raise ConnectionError("no result backend")

    with pytest.raises(ConnectionError):
        discard_letters(desk.store, ids, by="ann", why="", closing=closing)
    assert desk.states(ids) == ["dead"]
