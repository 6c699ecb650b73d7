"""What the overview reads of missed runs, where there are more schedules than are read at once."""

from __future__ import annotations

import json
import time

import pytest
from django.template.loader import render_to_string

from celery_hardened import Hardening
from celery_hardened.beat.names import Keys
from celery_hardened.contrib.django.overview import read


@pytest.fixture
def hardening(redis_hardening: Hardening) -> Hardening:
    return redis_hardening


def test_each_schedule_has_its_turn(hardening: Hardening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of them miss each of their slots: those are read first that were read longest ago, or never."""
    monkeypatch.setattr(read, "_HISTORIES", 3)
    keys, asks = Keys(hardening.prefix), read.AskRedis(hardening)
    missed: list[dict[str, int]] = []
    for turn in range(1, 8):
        for number in range(7):
            record = {"v": 1, "cursor": 1.0, "anchor": 1.0, "mark": "m", "passed": {"expired": turn}}
            hardening.redis.hset(keys.records, f"s{number}", json.dumps(record, separators=(",", ":")))
            said = {"at": time.time(), "outcome": "expired", "slot": 1.0, "count": 1}
            hardening.redis.lpush(keys.history(f"s{number}"), json.dumps(said))
        told = asks.read()
        assert told is not None
        missed.append({one.schedule: one.recently for one in told[1].missed})
    assert [len(one) for one in missed] == [3, 6, 7, 7, 7, 7, 7]
    assert min(missed[-1].values()) >= 7 - 7 // 3


def test_one_missed_run_is_one() -> None:
    """In the singular; none, and two, are runs."""
    for number, said in ((0, "0 missed runs since"), (1, "1 missed run since"), (2, "2 missed runs since")):
        page = render_to_string("admin/celery_hardened/overview/part.html", {"beats": {"missed_ever": number}})
        assert said in page
