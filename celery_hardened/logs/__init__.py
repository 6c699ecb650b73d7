"""Log records of this package: their fields, the arguments that they may show, and how they are printed as JSON."""

from celery_hardened.logs.arguments import log_args
from celery_hardened.logs.json_formatter import JsonFormatter

__all__ = ["JsonFormatter", "log_args"]
