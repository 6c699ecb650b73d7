"""What belongs together in the logs: the id, who gives it, and middlewares that take it from a web request."""

from celery_hardened.correlation.current import correlate, correlation_id
from celery_hardened.correlation.log_filter import CorrelationFilter
from celery_hardened.correlation.web import ASGIMiddleware, WSGIMiddleware

__all__ = ["ASGIMiddleware", "CorrelationFilter", "WSGIMiddleware", "correlate", "correlation_id"]
