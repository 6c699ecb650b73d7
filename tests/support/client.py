"""Celery in the test process: the producer's side, left without a trace."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import kombu.pools
from celery import Celery, _state, signals


@contextlib.contextmanager
def client_side() -> Iterator[None]:
    """Apps made inside are not the current one outside, and shared tasks declared inside are forgotten."""
    default, current = _state.default_app, _state._tls.current_app
    finalizers = set(_state._on_app_finalizers)
    try:
        yield
    finally:
        _state.default_app, _state._tls.current_app = default, current
        _state._on_app_finalizers.clear()
        _state._on_app_finalizers.update(finalizers)
        kombu.pools.reset()


def forget_signals(module: str) -> None:
    """Disconnect the signal receivers that *module* defined: one in a reference cycle would hear the next test."""
    for signal in vars(signals).values():
        for _, reference in list(getattr(signal, "receivers", None) or ()):
            receiver = reference() if isinstance(reference, weakref.ref) else reference
            if getattr(receiver, "__module__", None) == module:
                signal.disconnect(receiver)


def disconnect(app: Celery) -> None:
    """Close what *app* opened to its broker and its result backend."""
    if app.configured:
        app.pool.force_close_all()
        consumer = getattr(app.backend, "result_consumer", None)
        if consumer is not None:
            consumer.stop()
            # A result that outlives its app would connect once more to unsubscribe.
            consumer._pubsub = None
            app.backend.client.close()
    app.close()
