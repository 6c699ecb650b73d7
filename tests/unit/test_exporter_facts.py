"""What the probes of an exporter judge by."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from celery_hardened import Hardening
from celery_hardened.pipeline import exporter
from tests.support.cli import make_app


def test_probes_know_how_often_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two readings it asks nobody: who probes one that asks every five minutes has to wait for that."""
    found: list[Any] = []
    monkeypatch.setattr(exporter, "serve", lambda hardening, look, **_: found.append(look()))
    stop = threading.Event()
    stop.set()
    exporter.run_exporter(Hardening.expect(make_app(hardened_health_stall=50)), stop=stop, every=300.0)
    (facts,) = found
    assert (facts.every, facts.stall) == (300.0, 50)
