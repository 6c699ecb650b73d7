"""Celery in the test process: the producer's side, left without a trace."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterator

import kombu.pools
from celery import Celery, _state, signals

from celery_hardened import signals as ours
from tests.support.until import until


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
        _state._set_task_join_will_block(False)  # what a worker that was made here has said of its process


def without_shared_tasks() -> None:
    """Inside of ``client_side``: apps made from now on have no tasks of modules that other tests have imported."""
    theirs = [one for one in _state._on_app_finalizers if one.__module__ != "celery.app.builtins"]
    _state._on_app_finalizers.difference_update(theirs)


def forget_signals(module: str) -> None:
    """Disconnect the signal receivers that *module* defined: one in a reference cycle would hear the next test."""
    for signal in (*vars(signals).values(), *vars(ours).values()):
        for _, reference in list(getattr(signal, "receivers", None) or ()):
            receiver = reference() if isinstance(reference, weakref.ref) else reference
            if getattr(receiver, "__module__", None) == module:
                signal.disconnect(receiver)


def listening(app: Celery) -> None:
    """Wait until a worker hears broadcasts. On Redis, and with greenlets, that is a moment after it says that it is
    ready, and what is said before that it never hears."""
    until(lambda: app.control.ping(timeout=1, limit=1), within=60, what="a worker to listen")


def disconnect(app: Celery) -> None:
    """Close what *app* opened to its broker and its result backend, and bind its tasks.

    A task that nobody has asked for is a proxy, which would bind itself when somebody looks at it: at
    the next collection of garbage, in the middle of another test, to whatever tasks there are by then.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app.finalize()
    if app.configured:
        app.pool.force_close_all()
        consumer = getattr(app.backend, "result_consumer", None)
        if consumer is not None:
            consumer.stop()
            # A result that outlives its app would connect once more to unsubscribe.
            consumer._pubsub = None
            app.backend.client.close()
    app.close()
