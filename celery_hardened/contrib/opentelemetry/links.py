"""Links from the span of a retry to that of the first attempt, and from a redriven run to the run its letter is of.

Their trace contexts travel in a message header of their own, which retries copy and letters keep.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from celery_hardened.marks import is_redriven
from celery_hardened.pipeline.letters import WIRE

#: Message header: ``first`` and ``last`` run of this task, each a ``traceparent``.
HEADER: Final = "hardened_spans"

#: Attribute of a link: what it links to.
KIND: Final = "celery_hardened.link"

_text = TraceContextTextMapPropagator()


def on_prerun(task: Any = None, **_: Any) -> None:
    """A run begins, and its span is the current one: link it, and leave word in its message for later ones."""
    request: Any = getattr(task, "request", None)
    headers = getattr(request, "headers", None)
    span = trace.get_current_span()
    own = _traceparent(span)
    if not isinstance(headers, MutableMapping) or own is None:
        return
    known = headers.get(HEADER)
    known = known if isinstance(known, Mapping) else {}
    if is_redriven(headers):
        _link(span, known.get("last"), "dead_letter")
    elif request.retries:
        _link(span, known.get("first"), "first_attempt")
    left = headers[HEADER] = {"first": known.get("first") or own, "last": own}
    packed = (request.properties or {}).get(WIRE)
    if isinstance(packed, tuple) and isinstance(packed[4], dict):
        packed[4][HEADER] = left  # the message as it arrived, which a letter is made of


def _traceparent(span: trace.Span) -> str | None:
    carrier: dict[str, str] = {}
    _text.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")


def _link(span: trace.Span, traceparent: Any, kind: str) -> None:
    if not isinstance(traceparent, str):
        return
    found = trace.get_current_span(_text.extract({"traceparent": traceparent})).get_span_context()
    if found.is_valid:
        span.add_link(found, {KIND: kind})
