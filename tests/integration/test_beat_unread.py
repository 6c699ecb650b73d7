"""A beat that cannot read its schedules does not keep the lead."""

from __future__ import annotations

import pytest

from celery_hardened.pipeline import beat as pipeline
from tests.support.led_beat import MakeLedBeats


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_schedules_that_cannot_be_read_are_left_to_another_beat(
    led: MakeLedBeats, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another host may read what this one cannot; a source that is slow at first is waited for."""
    beats = led({"s": {"schedule": 1.0}})
    beats.source.ready = False
    beats.turn(1.0)
    assert beats.lead.standing() is not None
    monkeypatch.setattr(pipeline, "UNREAD", 0.0)
    beats.turn(2.0)
    assert beats.lead.standing() is None
    assert "lets another one lead" in caplog.text

    beats.source.ready = True
    beats.next_leader()
    beats.turn(3.0)
    assert beats.lead.standing() is not None
