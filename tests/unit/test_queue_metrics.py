"""What is heard of queues is shown; what is not heard any more is shown no longer, and nobody waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from celery_hardened import Hardening
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.metrics import catalogue
from celery_hardened.metrics.family import Family
from celery_hardened.metrics.queue_reading import KEEP, BrokerReading, QueueReading
from celery_hardened.metrics.registry import CAPS
from celery_hardened.pipeline.queue_metrics import QueueMetrics, attach_queues
from celery_hardened.pipeline.queue_source import source_of
from tests.support.cli import make_app, make_letter
from tests.support.until import until

READING = BrokerReading(
    queues={"q": QueueReading(waiting=3, oldest=7.0, consumers=2), "r": QueueReading(waiting=1)},
    exists={"q": True, "gone": False},
    dead_letter_queues={"q": 4},
    delayed=5,
    unacked=6,
)


class Source:
    """Answers, fails or hangs, as it is told."""

    def __init__(self) -> None:
        self.answer: BrokerReading | Exception = READING
        self.asked: list[tuple[str, ...]] = []
        self.hang: threading.Event | None = None
        self.hangs = False
        self.closed = False

    def read(self, queues: Sequence[str]) -> BrokerReading:
        self.asked.append(tuple(queues))
        if self.hang is not None:
            self.hangs = True
            self.hang.wait(60)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.closed = True


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("celery_hardened.pipeline.queue_metrics.time.time", lambda: self.now)


def prepared(source: Source, **options: Any) -> tuple[QueueMetrics, Hardening]:
    hardening = Hardening.expect(make_app())
    hardening.metrics.keep_here()
    return QueueMetrics(hardening, source=lambda _: source, **options), hardening


def shown(hardening: Hardening, family: Family) -> dict[tuple[str, ...], float]:
    return hardening.metrics.registry.values(family)


def test_a_reading_is_shown() -> None:
    """Every number of a reading is at its series, and what could not be told has none."""
    metrics, hardening = prepared(Source(), queues=["more"])
    metrics.read()
    assert shown(hardening, catalogue.QUEUE_WAITING) == {("q",): 3, ("r",): 1}
    assert shown(hardening, catalogue.QUEUE_OLDEST) == {("q",): 7}
    assert shown(hardening, catalogue.QUEUE_CONSUMERS) == {("q",): 2}
    assert shown(hardening, catalogue.QUEUE_MISSING) == {("q",): 0, ("gone",): 1}
    assert shown(hardening, catalogue.QUEUE_DEAD) == {("q",): 4}
    assert shown(hardening, catalogue.QUEUE_DELAYED) == {(): 5}
    assert shown(hardening, catalogue.QUEUE_UNACKED) == {(): 6}


def test_the_age_of_the_rest_is_that_of_its_oldest() -> None:
    """Queues beyond the cap are shown as one: what waits in them is added up, and ages are not."""
    source, names = Source(), [f"q{number}" for number in range(CAPS["queue"] + 2)]
    source.answer = BrokerReading(queues={name: QueueReading(waiting=1, oldest=9.0) for name in names})
    metrics, hardening = prepared(source)
    metrics.read()
    assert shown(hardening, catalogue.QUEUE_WAITING)[("other",)] == 2
    assert shown(hardening, catalogue.QUEUE_OLDEST)[("other",)] == 9.0


def test_what_does_not_exist_is_not_spoken_of() -> None:
    """Without Redis there is no leader to be known, and letters in memory are each process's own: no series at all."""
    metrics, hardening = prepared(Source())
    metrics.read()
    assert set(shown(hardening, catalogue.QUEUE_SCRAPED)) == {("broker",)}
    assert set(shown(hardening, catalogue.QUEUE_ERRORS)) == {("broker",)}
    assert shown(hardening, catalogue.LETTERS) == shown(hardening, catalogue.LEADER_KNOWN) == {}


def test_numbers_go_when_nobody_knows_them(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """
    While the broker is away its last numbers stay for a while and then go; the time it last answered stays, errors
    are counted, and the log has one line for its going and one for its return.
    """
    clock, source = Clock(monkeypatch), Source()
    metrics, hardening = prepared(source)
    with caplog.at_level(logging.INFO, logger="celery_hardened.metrics"):
        metrics.read()
        source.answer = StoreUnavailableError("counting queues", "away")
        clock.now = 1020.0
        metrics.read()
        assert shown(hardening, catalogue.QUEUE_WAITING) == {("q",): 3, ("r",): 1}
        clock.now = 1031.0
        metrics.read()
        assert shown(hardening, catalogue.QUEUE_WAITING) == shown(hardening, catalogue.QUEUE_UNACKED) == {}
        assert shown(hardening, catalogue.QUEUE_SCRAPED) == {("broker",): 1000.0}
        assert shown(hardening, catalogue.QUEUE_ERRORS) == {("broker",): 2}
        source.answer = READING
        metrics.read()
    assert shown(hardening, catalogue.QUEUE_WAITING) == {("q",): 3, ("r",): 1}
    assert shown(hardening, catalogue.QUEUE_SCRAPED) == {("broker",): 1031.0}
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "broker could not be read",
        "broker answers again",
    ]


def test_the_silence_of_one_that_never_answered_counts_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An exporter that starts while the broker is away says when it began to ask: no answer in 1970. Its silence is from
    the first as old as one for which numbers are not shown, since there are none.
    """
    clock, source = Clock(monkeypatch), Source()
    source.answer = OSError("refused")
    metrics, hardening = prepared(source)
    metrics.read()
    clock.now = 1100.0
    metrics.read()
    assert shown(hardening, catalogue.QUEUE_SCRAPED) == {("broker",): 1000.0 - KEEP}
    assert metrics.answered_ago is None


def test_any_error_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    """A source that raises what nobody expects is an error that is counted, with its traceback in the log."""
    source = Source()
    source.answer = ZeroDivisionError("odd")
    metrics, hardening = prepared(source)
    metrics.read()
    assert shown(hardening, catalogue.QUEUE_ERRORS) == {("broker",): 1}
    assert any(record.exc_info for record in caplog.records)


def test_letters_are_shown_by_queue_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open letters by both labels, and the age of the oldest."""
    metrics, hardening = prepared(Source())
    monkeypatch.setattr(hardening.settings.__class__, "dead_letter_store", "redis")
    store = hardening.eager_dead_letters
    monkeypatch.setitem(hardening.__dict__, "dead_letters", store)
    for number, reason in enumerate(["poison", "poison", "exhausted"]):
        store.put(make_letter(number, reason=reason))
    metrics.read()
    assert shown(hardening, catalogue.LETTERS) == {("payments", "poison"): 2, ("payments", "exhausted"): 1}
    assert 0 <= shown(hardening, catalogue.LETTERS_OLDEST)[()] < 60


def test_a_scrape_waits_for_nobody_and_neither_does_the_end() -> None:
    """While a reading hangs, what was read before is shown; ``stop`` returns, and the source is closed later."""
    source = Source()
    hardening = Hardening.expect(make_app())
    hardening.metrics.keep_here()
    metrics = QueueMetrics(hardening, source=lambda _: source, every=0.01)
    metrics.start()
    until(lambda: shown(hardening, catalogue.QUEUE_WAITING), within=30, what="the first reading")
    source.hang = threading.Event()
    until(lambda: source.hangs, within=30, what="a reading that hangs")
    assert shown(hardening, catalogue.QUEUE_WAITING)
    metrics.stop(within=0.05)
    assert not source.closed
    source.hang.set()
    until(lambda: source.closed, within=30, what="its thread to end")
    metrics.stop()


def test_attached_to_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """``attach_queues`` shows the queues of any broker of kombu's in the process's own registry until it is ended."""
    app = make_app()
    hardening = Hardening.expect(app)
    hardening.metrics.keep_here()
    queue = app.conf.task_default_queue
    for _ in range(3):
        app.send_task("t")
    stop = attach_queues(hardening, every=0.05)
    until(lambda: shown(hardening, catalogue.QUEUE_WAITING).get((queue,)) == 3, within=30, what="three messages")
    assert shown(hardening, catalogue.QUEUE_CONSUMERS) == {}
    stop()
    until(
        lambda: not any(thread.name == "hardened-queues" for thread in threading.enumerate()),
        what="its thread to end, and those of other tests",
    )


def test_a_queue_that_is_not_there() -> None:
    """A broker that tells says which of the queues it does not have; asking makes none."""
    hardening = Hardening.expect(make_app())
    source = source_of(hardening)
    hardening.app.send_task("t")
    queue = hardening.app.conf.task_default_queue
    for _ in range(2):
        reading = source.read([queue, "nowhere"])
        assert (dict(reading.exists), set(reading.queues)) == ({queue: True, "nowhere": False}, {queue})
    source.close()
