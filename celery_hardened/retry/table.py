"""What the built-in table knows of other people's errors. Data only; ``transient.py`` reads it.

Classes are written as top-level package and name and hold for their subclasses;
the most derived class that is listed decides. ``docs/how-to/retry-policy.md``
shows this file as a table and is held to it by a test.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

# One name a line would make a page of every list.
# fmt: off

_REDIS = frozenset({
    "ConnectionError", "TimeoutError", "ReadOnlyError", "ClusterDownError", "TryAgainError", "OutOfMemoryError",
})
_REDIS_ACCESS = frozenset({"AuthenticationError", "AuthorizationError"})

#: Faults that pass by themselves: the other side was away, busy or slow.
TRANSIENT: Mapping[str, frozenset[str]] = {
    "builtins": frozenset({"ConnectionError", "TimeoutError"}),
    "socket": frozenset({"gaierror"}),
    # Python 3.10 still has three classes called TimeoutError; later they are one.
    "asyncio": frozenset({"TimeoutError"}),
    "concurrent": frozenset({"TimeoutError"}),
    "http": frozenset({"IncompleteRead"}),
    "smtplib": frozenset({"SMTPServerDisconnected"}),
    "celery_hardened": frozenset({"StoreUnavailableError"}),
    "redis": _REDIS,
    "valkey": _REDIS,
    "kombu": frozenset({"OperationalError", "LimitExceeded"}),
    "amqp": frozenset({"ConnectionError", "InternalError", "MessageNacked"}),
    "requests": frozenset({"ConnectionError", "Timeout", "ChunkedEncodingError", "RetryError"}),
    "urllib3": frozenset({
        "TimeoutError", "ProtocolError", "ProxyError", "IncompleteRead", "InvalidChunkLength",
        "EmptyPoolError", "ClosedPoolError", "MaxRetryError",
    }),
    "httpx": frozenset({"TimeoutException", "NetworkError", "RemoteProtocolError", "ProxyError"}),
    "httpcore": frozenset({"TimeoutException", "NetworkError", "RemoteProtocolError", "ProxyError"}),
    "aiohttp": frozenset({"ClientConnectionError", "ClientPayloadError"}),
    "botocore": frozenset({
        "ConnectionError", "ConnectionClosedError", "ReadTimeoutError", "IncompleteReadError",
        "ResponseStreamingError", "CapacityNotAvailableError",
    }),
    "grpc": frozenset({"FutureTimeoutError"}),
    "pymongo": frozenset({"ConnectionFailure", "ExecutionTimeout", "WTimeoutError"}),
    "django": frozenset({"OperationalError", "InterfaceError"}),
    "sqlalchemy": frozenset({"TimeoutError", "DisconnectionError"}),
}

#: Faults that hide under a class listed above and stay: credentials, permissions, protocol.
PERMANENT: Mapping[str, frozenset[str]] = {
    "redis": _REDIS_ACCESS,
    "valkey": _REDIS_ACCESS,
    "amqp": frozenset({"IrrecoverableConnectionError"}),
    "urllib3": frozenset({"ResponseNotChunked"}),
    "aiohttp": frozenset({"ServerFingerprintMismatch"}),
}

#: TLS faults hide there too. They are permanent, unless their text says that the
#: connection was merely cut, which is reported with the same classes.
TLS: Mapping[str, frozenset[str]] = {
    "ssl": frozenset({"SSLError"}),
    "requests": frozenset({"SSLError"}),
    "urllib3": frozenset({"SSLError"}),
    "aiohttp": frozenset({"ClientSSLError"}),
    "botocore": frozenset({"SSLError"}),
}
TLS_CUT = ("eof occurred", "unexpected_eof", "connection has been closed", "timed out")

#: Whatever the class, a certificate that was refused stays refused.
CERTIFICATE_REFUSED = "certificate verify failed"

#: ``errno`` of an ``OSError`` for which Python has no ``ConnectionError`` class.
UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN})

#: HTTP statuses that ask to come back. Every other status from 400 on is permanent.
HTTP_STATUSES = frozenset({408, 425, 429, 502, 503, 504})

#: ``Error.Code`` of a botocore ``ClientError``: throttled, or timed out on the server's side.
AWS_CODES = frozenset({
    "BandwidthLimitExceeded", "EC2ThrottledException", "LimitExceededException", "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException", "RequestLimitExceeded", "RequestThrottled",
    "RequestThrottledException", "RequestTimeout", "RequestTimeoutException", "SlowDown", "ThrottledException",
    "Throttling", "ThrottlingException", "TooManyRequestsException", "TransactionInProgressException",
})

#: gRPC status codes, by name.
GRPC_CODES = frozenset({"ABORTED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"})

#: RESOURCE_EXHAUSTED is also what gRPC calls a message over the size limit.
GRPC_TOO_LARGE = "larger than max"

#: PostgreSQL: serialization failure, deadlock, lock not available, statement timeout, out of
#: connections or memory, server shutting down or starting. A whole class is two letters.
SQLSTATES = frozenset({
    "08", "40000", "40001", "40003", "40P01", "53000", "53200", "53300", "55P03", "57014", "57P01", "57P02",
    "57P03", "57P05",
})

#: MySQL and MariaDB: cannot connect, connection lost or killed, server shutting down or not
#: ready, too many connections, lock wait timeout, deadlock, statement timeout. 0 is what
#: both drivers say of a connection closed already.
MYSQL_ERRORS = frozenset({
    0, 1040, 1047, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 1226, 1317,
    1927, 1969, 2002, 2003, 2005, 2006, 2012, 2013, 2055, 3024, 3572, 4031,
})

#: SQLite says busy and locked, no such table and no such column with one class.
SQLITE_LOCKED = ("is locked", "locking protocol")

#: An ``OperationalError`` that carries no code and says one of these will say so again.
SQL_PERMANENT = (
    "access denied", "authentication failed", "does not exist", "does not support", "doesn't exist",
    "no pg_hba.conf entry", "no such column", "no such function", "no such module", "no such table",
    "not supported", "syntax error", "unable to open database file", "unknown column", "unknown database",
)

#: Errors that only carry another one: package, class, and the attribute that holds it. The
#: inner one decides where the table knows it.
CARRIERS: Mapping[tuple[str, str], str] = {
    ("kombu", "OperationalError"): "__cause__",
    ("urllib3", "MaxRetryError"): "reason",
    ("urllib", "URLError"): "reason",
    ("django", "DatabaseError"): "__cause__",
    ("django", "InterfaceError"): "__cause__",
    ("sqlalchemy", "DBAPIError"): "orig",
}

#: Raised by Celery when a task runs out of time. Never transient by the table.
TIME_LIMITS = frozenset({("billiard", "SoftTimeLimitExceeded"), ("billiard", "TimeLimitExceeded")})
