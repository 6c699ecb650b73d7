"""The module for OpenTelemetry without OpenTelemetry."""

from __future__ import annotations

import sys

import pytest
from celery import Celery

from celery_hardened import ConfigurationError
from celery_hardened.contrib.opentelemetry import instrument


def test_it_is_missed_when_it_is_asked_for(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing ours needs nothing of theirs; the call says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.celery", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'celery-hardened\[otel\]'"):
        instrument(app)
