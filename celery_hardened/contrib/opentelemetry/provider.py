"""One provider of spans for each process, made when the process has its first span.

OpenTelemetry's global provider can be set once, and a forked process inherits it with a thread that is not there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

from opentelemetry import trace

#: Milliseconds that the last spans of a process may take to be sent.
FLUSH_WITHIN: Final = 5_000


class ProcessProvider(trace.TracerProvider):
    """Hands all calls to the provider of the process it is in.

    Args:
        make: Makes that.
    """

    def __init__(self, make: Callable[[], trace.TracerProvider]) -> None:
        self._make = make
        self._made: trace.TracerProvider | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._made, self._lock = None, threading.Lock()

    @property
    def here(self) -> trace.TracerProvider:
        """The provider of this process."""
        made = self._made
        if made is None:
            with self._lock:
                made = self._made = self._made or self._make()
        return made

    def get_tracer(self, *args: Any, **options: Any) -> trace.Tracer:
        return _ProcessTracer(self, args, options)

    def flush(self) -> None:
        """Send what this process has not sent yet. Nothing to do if it had no span."""
        flush = getattr(self._made, "force_flush", None)
        if flush is not None:
            flush(FLUSH_WITHIN)


class _ProcessTracer(trace.Tracer):
    def __init__(self, provider: ProcessProvider, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._provider = provider
        self._args = args
        self._options = options
        self._of: trace.TracerProvider | None = None
        self._tracer: trace.Tracer = trace.NoOpTracer()

    @property
    def _here(self) -> trace.Tracer:
        provider = self._provider.here
        if self._of is not provider:
            self._tracer = provider.get_tracer(*self._args, **self._options)
            self._of = provider
        return self._tracer

    def start_span(self, *args: Any, **options: Any) -> trace.Span:
        return self._here.start_span(*args, **options)

    def start_as_current_span(self, *args: Any, **options: Any) -> Any:
        return self._here.start_as_current_span(*args, **options)
