"""Spans of publishes and runs, by OpenTelemetry's own Celery instrumentation (extra ``otel``).

What it lacks is here: a provider in each process, none lost when a pool process ends, links of retries and redrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from celery import Celery

from celery_hardened.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument"]


def instrument(app: Celery, provider: Callable[[], TracerProvider] | None = None) -> None:
    """Have the publishes and the runs of *app* traced. To be called where the app is made, in each process.

    Args:
        provider: Makes the ``TracerProvider`` of a process, with its exporters. Called in each process that has a
            span, for the first of them: after a fork, so that exporters with threads and connections are the
            process's own. It is the global provider too, unless there is one. ``None``: the global provider, which
            whoever sets it has to set in each pool process.

    Raises:
        ConfigurationError: OpenTelemetry or its Celery instrumentation is not installed.
    """
    try:
        import opentelemetry.instrumentation.celery
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"instrument(app) needs {error.name or 'OpenTelemetry'}, which is not installed: "
            f"pip install 'celery-hardened[otel]'."
        ) from error
    from celery_hardened.contrib.opentelemetry.instrumentation import connect

    connect(app, provider)
