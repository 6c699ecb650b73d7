"""Errors of libraries that have codes of their own: databases, AWS, gRPC, SMTP.

Each function judges one library's errors: ``True`` transient, ``False``
permanent, ``None`` not its business. None of them raises.
"""

from __future__ import annotations

from collections.abc import Collection

from celery_hardened.retry.anatomy import ClassName, attribute, text
from celery_hardened.retry.table import (
    AWS_CODES,
    GRPC_CODES,
    GRPC_TOO_LARGE,
    HTTP_STATUSES,
    MYSQL_ERRORS,
    SQL_PERMANENT,
    SQLITE_LOCKED,
    SQLSTATES,
    TRANSIENT,
)

Names = tuple[ClassName, ...]


def aws(error: BaseException, names: Names) -> bool | None:
    """A botocore ``ClientError``: by its code (throttling comes with status 400), else by its HTTP status."""
    if ("botocore", "ClientError") not in names:
        return None
    response = attribute(error, "response")
    return _among(_item(_item(response, "Error"), "Code"), AWS_CODES) or _among(
        _item(_item(response, "ResponseMetadata"), "HTTPStatusCode"), HTTP_STATUSES
    )


def grpc(error: BaseException, names: Names) -> bool | None:
    """An ``RpcError``: by the name of its status code."""
    if ("grpc", "RpcError") not in names:
        return None
    return _among(attribute(_answer(error, "code"), "name"), GRPC_CODES) and GRPC_TOO_LARGE not in text(error)


def smtp(error: BaseException, names: Names) -> bool | None:
    """An SMTP reply: 4xx asks to try again later."""
    if ("smtplib", "SMTPResponseException") not in names:
        return None
    reply = attribute(error, "smtp_code")
    return isinstance(reply, int) and 400 <= reply < 500


def postgres(error: BaseException, names: Names) -> bool | None:
    """psycopg's and psycopg2's errors: by SQLSTATE; without one, it is about the connection."""
    state = attribute(error, "sqlstate") or attribute(error, "pgcode")
    if isinstance(state, str):
        return state in SQLSTATES or state[:2] in SQLSTATES
    # libpq refuses a wrong password or an unknown database without a SQLSTATE.
    return _named(names, "OperationalError", "InterfaceError") and not _says_permanent(error)


def mysql(error: BaseException, names: Names) -> bool | None:  # noqa: ARG001  one signature for all
    """mysqlclient's and PyMySQL's errors: by number, whatever the class."""
    return _among(_number(error), MYSQL_ERRORS)


def sqlite(error: BaseException, names: Names) -> bool | None:
    """SQLite's ``OperationalError``: transient only when somebody else holds the lock."""
    return _named(names, "OperationalError") and any(words in text(error) for words in SQLITE_LOCKED)


def django(error: BaseException, names: Names) -> bool | None:
    """``django.db``'s errors with no error of a known driver behind them."""
    if not _named(names, "OperationalError", "InterfaceError"):
        return None
    number = _number(error)
    return not _says_permanent(error) if number is None else _among(number, MYSQL_ERRORS)


def sqlalchemy(error: BaseException, names: Names) -> bool | None:
    """A ``DBAPIError``: an invalidated connection, or a driver unknown here that gives a SQLSTATE."""
    if ("sqlalchemy", "DBAPIError") not in names:
        return None
    if attribute(error, "connection_invalidated") is True:
        return True
    return _among(attribute(attribute(error, "orig"), "sqlstate"), SQLSTATES)


def mongo(error: BaseException, names: Names) -> bool | None:
    """pymongo's errors: by class, and by the labels the server gives to what may be tried again."""
    if any(package == "pymongo" and name in TRANSIENT["pymongo"] for package, name in names):
        return True
    return any(
        _answer(error, "has_error_label", label) is True
        for label in ("TransientTransactionError", "RetryableWriteError")
    )


def _named(names: Names, *wanted: str) -> bool:
    return any(name in wanted for _, name in names)


def _says_permanent(error: BaseException) -> bool:
    said = text(error)
    return any(words in said for words in SQL_PERMANENT)


def _number(error: BaseException) -> int | None:
    args = attribute(error, "args")
    return args[0] if isinstance(args, tuple) and args and isinstance(args[0], int) else None


def _among(value: object, known: Collection[object]) -> bool:
    # What cannot be hashed cannot be looked up, and a foreign attribute may hold anything.
    return isinstance(value, (str, int)) and value in known


def _item(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, dict) else None


def _answer(error: BaseException, method: str, *args: object) -> object:
    """Call a foreign method; ``None`` if there is none or it raises."""
    called = attribute(error, method)
    if not callable(called):
        return None
    try:
        return called(*args)
    except Exception:  # noqa: BLE001  a foreign method may raise anything
        return None
