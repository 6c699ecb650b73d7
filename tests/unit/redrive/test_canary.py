"""A few letters go first, and the rest only if they fare well."""

from __future__ import annotations

from typing import Any

import pytest

from celery_hardened.dead_letter.canary import Canary
from celery_hardened.dead_letter.contract import Query
from celery_hardened.dead_letter.redrive import redrive
from celery_hardened.dead_letter.redrive_run import RedriveReport
from tests.stores.letters import redriven
from tests.unit.redrive.desk import Desk, mark_of


class Worker:
    """Runs what arrives whenever the redrive sleeps; *dies* says which fail again."""

    def __init__(self, desk: Desk, dies: list[bool], *, stalls: bool = False) -> None:
        self.desk, self.dies, self.stalls = desk, dies, stalls

    def __call__(self, seconds: float) -> None:
        self.desk.clock.now += seconds
        for wire in [] if self.stalls else self.desk.arrived():
            letter_id, token = mark_of(wire)
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
