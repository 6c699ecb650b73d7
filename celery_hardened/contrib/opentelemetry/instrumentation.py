"""What ``instrument`` connects, once in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery, signals
from opentelemetry import context, trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor

from celery_hardened.contrib.opentelemetry.links import on_prerun
from celery_hardened.contrib.opentelemetry.provider import ProcessProvider

#: For the receivers of signals: connected once, however many apps are instrumented.
_UID = "celery_hardened.opentelemetry"


def connect(app: Celery, make: Callable[[], trace.TracerProvider] | None) -> None:
    """Instrument Celery, and put what it lacks beside it."""
    provider = ProcessProvider(make) if make is not None else None
    if provider is not None and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(provider)
    instrumentor: Any = CeleryInstrumentor()  # type: ignore[no-untyped-call]
    if not instrumentor.is_instrumented_by_opentelemetry:
        options = {} if provider is None else {"tracer_provider": provider}
        instrumentor.instrument(**options)
    # After its own receiver, which makes the span.
    signals.task_prerun.connect(on_prerun, weak=False, dispatch_uid=_UID)
    _contain_publishes(app)

    def flush(**_: Any) -> None:
        if provider is not None:
            provider.flush()
        else:
            force: Any = getattr(trace.get_tracer_provider(), "force_flush", None)
            if force is not None:
                force(5_000)

    # A pool process ends without its exit functions: at a recycling, and with its worker.
    for signal in (signals.worker_process_shutdown, signals.worker_shutdown):
        signal.connect(flush, weak=False, dispatch_uid=f"{_UID}.{id(app)}")


def _contain_publishes(app: Celery) -> None:
    """End the span of a publish that fails, and of one whose task is known by name only.

    The instrumentation ends it when a publish is done, of a task that it finds. Else it would stay the current
    span of the thread, and the parent of whatever comes after it.
    """
    amqp: Any = app.amqp
    base = type(amqp)

    class AMQP(base):  # type: ignore[misc, valid-type]
        def _create_task_sender(self) -> Callable[..., Any]:
            sender = super()._create_task_sender()

            def send_task_message(*args: Any, **options: Any) -> Any:
                before, around = context.get_current(), trace.get_current_span()
                try:
                    return sender(*args, **options)
                except BaseException as error:
                    left = trace.get_current_span()
                    if left is not around:
                        left.record_exception(error)
                        left.set_status(trace.StatusCode.ERROR, type(error).__name__)
                    raise
                finally:
                    left = trace.get_current_span()
                    if left is not around:
                        left.end()
                    if context.get_current() is not before:
                        context.attach(before)

            return send_task_message

    AMQP.__qualname__ = AMQP.__name__ = base.__name__
    amqp.__class__ = AMQP
    amqp.__dict__.pop("send_task_message", None)  # built already? let it be built again
