"""What a new leader's book knows as soon as it is opened."""

from __future__ import annotations

from celery import Celery

from celery_hardened.beat.entries import schedule_of
from celery_hardened.beat.missed_run import Fire
from celery_hardened.beat.policy import Policy
from celery_hardened.beat.progress import claimed, started
from celery_hardened.beat.schedule import Schedule
from celery_hardened.pipeline.beat_book import Book

NOW = 1_700_000_000.0


def test_a_pending_slot_is_known_before_anything_is_decided() -> None:
    """What another leader had claimed is published first, not a second later; the others have nothing to publish."""
    app = Celery()
    every = {"task": "t", "schedule": 1.0}
    found = [schedule_of(name, every, app=app, defaults=Policy()) for name in ("claimed", "free")]
    schedules = [one for one in found if isinstance(one, Schedule)]
    records = {one.name: started(one, NOW - 5, old=None) for one in schedules}
    records["claimed"] = claimed(records["claimed"], Fire(NOW - 4))

    book = Book()
    book.open(schedules, {name: record.text() for name, record in records.items()}, {}, NOW)
    plans = {name: book.plan_pending(name) for name in [*book.pending]}
    assert {name: plan.step for name, plan in plans.items() if plan is not None} == {"claimed": Fire(NOW - 4)}
