"""``hardened schedule`` while the Redis of messages and records is away."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_hardened import Hardening, StoreUnavailableError, harden
from celery_hardened.beat.entries import schedule_of
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.schedule import Schedule
from celery_hardened.pipeline.beat_by_hand import ByHand
from tests.support.cli import call


@pytest.fixture
def app() -> Celery:
    """Nobody listens where its broker should be; records are there too."""
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.beat_schedule = {"nightly": {"task": "shop.close", "schedule": crontab(minute="30", hour="2")}}
    app.conf.task_publish_retry = False
    return harden(app)


@pytest.mark.parametrize(
    "command",
    [["trigger", "nightly"], ["trigger", "nightly", "--force"], ["list"],
     ["backfill", "nightly", "--from", "2026-01-01", "--to", "2026-01-03", "--yes"]],
    ids=" ".join,
)  # fmt: skip
def test_a_store_that_does_not_answer_is_exit_code_4(app: Celery, command: list[str]) -> None:
    """As of every command, though it is Celery's own publish that meets it first."""
    result = call(app, "schedule", *command)
    assert result.exit_code == 4, result.output
    assert "did not answer" in result.stderr


def test_a_backfill_whose_store_goes_away_half_way(app: Celery) -> None:
    """The publish of a slot says so by the store's own error, which tells the command how far it came."""
    schedule = schedule_of("nightly", app.conf.beat_schedule["nightly"], app=app, defaults=Policy())
    assert isinstance(schedule, Schedule)
    hand = ByHand(Hardening.expect(app), by="ann")
    try:
        with pytest.raises(StoreUnavailableError, match="firing schedule 'nightly' failed"):
            hand.backfill(schedule, 1767234600.0)
    finally:
        hand.close()
