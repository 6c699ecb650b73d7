"""Is an error transient? The built-in table, which imports none of the libraries it knows.

An error is judged in this order; the first answer counts:

1. a time limit, and whatever is no ``Exception``, is not transient
2. an error that only carries another one is judged by that one
3. a library with status codes of its own (databases, AMQP, gRPC, AWS) is judged by them
4. an HTTP status from 400 on
5. the class, and then its bases
6. else permanent
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from celery_hardened.retry import own_codes
from celery_hardened.retry.anatomy import ClassName, attribute, leaves, lineage, text
from celery_hardened.retry.table import (
    CARRIERS,
    CERTIFICATE_REFUSED,
    HTTP_STATUSES,
    PERMANENT,
    TIME_LIMITS,
    TLS,
    TLS_CUT,
    TRANSIENT,
    UNREACHABLE,
)

#: Errors that carry errors: an honest chain is three long (SQLAlchemy, driver, socket).
_DEEPEST = 8

Judge = Callable[[BaseException, tuple[ClassName, ...]], "bool | None"]

_OWN_CODES: Mapping[str, Judge] = {
    "botocore": own_codes.aws,
    "grpc": own_codes.grpc,
    "MySQLdb": own_codes.mysql,
    "pymysql": own_codes.mysql,
    "psycopg": own_codes.postgres,
    "psycopg2": own_codes.postgres,
    "psycopg_pool": own_codes.postgres,
    "sqlite3": own_codes.sqlite,
    "django": own_codes.django,
    "sqlalchemy": own_codes.sqlalchemy,
    "pymongo": own_codes.mongo,
    "smtplib": own_codes.smtp,
}

#: Their ``.code`` looks like an HTTP status and is none: AMQP's 503 means "command invalid".
_NOT_HTTP = frozenset({"amqp"})


def is_transient(error: BaseException) -> bool:
    """Does the table expect that the same task, run again later, may succeed?

    A group is transient if it has members and all of them are. Never raises.
    """
    members = leaves(error)
    if members is None:
        return _judge(error) is True
    return bool(members) and all(_judge(member) is True for member in members)


def is_time_limit(error: BaseException) -> bool:
    """Is it Celery's soft or hard time limit?"""
    return any(name in TIME_LIMITS for name in lineage(error))


def http_status(error: BaseException) -> int | None:
    """The HTTP status *error* carries.

    The first whole number from 100 to 599 among ``.response.status_code``,
    ``.status_code``, ``.status`` and ``.code``; gRPC's ``code`` is a method and a
    process's exit code too small, so neither is taken for one.
    """
    response = attribute(error, "response")
    candidates = (
        attribute(response, "status_code"),
        attribute(error, "status_code"),
        attribute(error, "status"),
        attribute(error, "code"),
    )
    for candidate in candidates:
        if isinstance(candidate, int) and 100 <= candidate <= 599:
            return int(candidate)
    return None


def _judge(error: BaseException, depth: int = 0) -> bool | None:
    """``None``: the table does not know it."""
    if not isinstance(error, Exception) or is_time_limit(error):
        return False
    names = tuple(lineage(error))

    inner = _carried(error, names)
    if inner is not None and depth < _DEEPEST:
        answer = _judge(inner, depth + 1)
        if answer is not None:
            return answer

    answer = _by_codes(error, names)
    if answer is None:
        answer = _by_class(error, names)
    if answer is True and CERTIFICATE_REFUSED in text(error):
        return False
    return answer


def _carried(error: BaseException, names: tuple[ClassName, ...]) -> BaseException | None:
    if attribute(error, "connection_invalidated") is True:
        return None  # SQLAlchemy has looked at what it carries: the connection is gone
    for name in names:
        held = attribute(error, CARRIERS[name]) if name in CARRIERS else None
        if isinstance(held, BaseException):
            return held
    return None


def _by_codes(error: BaseException, names: tuple[ClassName, ...]) -> bool | None:
    packages = dict.fromkeys(package for package, _ in names)
    for package in packages:
        judge = _OWN_CODES.get(package)
        answer = judge(error, names) if judge is not None else None
        if answer is not None:
            return answer
    if _NOT_HTTP.isdisjoint(packages):
        status = http_status(error)
        # A response that was fine (200, but not JSON) says nothing about the error.
        if status is not None and status >= 400:
            return status in HTTP_STATUSES
    return None


def _by_class(error: BaseException, names: tuple[ClassName, ...]) -> bool | None:
    for package, name in names:
        if name in PERMANENT.get(package, ()):
            return False
        if name in TLS.get(package, ()):
            return any(words in text(error) for words in TLS_CUT)
        if name in TRANSIENT.get(package, ()):
            return True
    if isinstance(error, OSError) and isinstance(error.errno, int) and error.errno in UNREACHABLE:
        return True
    return None
