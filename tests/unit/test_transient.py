"""The built-in table of transient errors.

Most libraries it knows are not installed here, and it must not need them: stand-ins carry
the module, the name, the bases and the attributes that the real classes have.
"""

from __future__ import annotations

import ast
import asyncio
import errno
import http.client
import importlib
import smtplib
import socket
import sqlite3
import ssl
import sys
import urllib.error
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import amqp.exceptions
import kombu.exceptions
import pytest
import redis.exceptions
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

import celery_hardened.retry
from celery_hardened.errors import StoreUnavailableError
from celery_hardened.retry.table import PERMANENT, TRANSIENT
from celery_hardened.retry.transient import http_status, is_time_limit, is_transient

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup


REFUSED = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"


def fake(dotted: str, *bases: type, **attributes: Any) -> Any:
    """A class with the module, name and bases of somebody else's."""
    module, _, name = dotted.rpartition(".")
    return type(name, bases or (Exception,), {"__module__": module, **attributes})


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def with_status(status: object, base: type[Exception] = Exception, name: str = "status_code") -> Exception:
    raised = base("failed")
    setattr(raised, name, status)
    return raised


# --- the standard library -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError(), ConnectionResetError(), ConnectionRefusedError(), ConnectionAbortedError(),
        BrokenPipeError(), TimeoutError(), asyncio.TimeoutError(),
        socket.gaierror(-3, "Temporary failure in name resolution"),
        OSError(errno.EHOSTUNREACH, "No route to host"), OSError(errno.ENETUNREACH, "Network is unreachable"),
        http.client.RemoteDisconnected(""), http.client.IncompleteRead(b"half"),
        urllib.error.URLError(ConnectionRefusedError()), urllib.error.URLError(socket.gaierror(-2, "unknown")),
        urllib.error.HTTPError("http://x", 503, "busy", None, None),  # type: ignore[arg-type]
        smtplib.SMTPServerDisconnected("gone"), smtplib.SMTPConnectError(421, b"busy"),
        smtplib.SMTPDataError(451, b"later"), ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        StoreUnavailableError("writing a letter", "timeout"),
    ],
    ids=repr,
)  # fmt: skip
def test_network_errors_of_the_standard_library_are_transient(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        Exception("timeout"), ValueError(), KeyError("id"), MemoryError(), RecursionError(), NotImplementedError(),
        OSError("unspecified"), FileNotFoundError(2, "no such file"), PermissionError(13, "denied"),
        OSError(errno.ENOSPC, "disk full"), OSError([1], "an errno that cannot be looked up"),
        urllib.error.URLError("unknown url type: foo"),
        urllib.error.HTTPError("http://x", 404, "gone", None, None),  # type: ignore[arg-type]
        smtplib.SMTPDataError(550, b"no such mailbox"), smtplib.SMTPRecipientsRefused({}),
        ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
        urllib.error.URLError(ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed")),
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(),
    ],
    ids=repr,
)  # fmt: skip
def test_everything_else_is_permanent(error: BaseException) -> None:
    assert not is_transient(error)


@pytest.mark.parametrize("error", [SoftTimeLimitExceeded(), TimeLimitExceeded(30)], ids=repr)
def test_time_limits_are_never_transient(error: Exception) -> None:
    assert is_time_limit(error)
    assert not is_transient(error)


def test_a_time_limit_that_is_also_a_timeout_is_a_time_limit() -> None:
    class PatienceError(SoftTimeLimitExceeded, TimeoutError):  # type: ignore[misc]
        pass

    assert not is_transient(PatienceError())


# --- Redis, kombu, AMQP: the real classes ---------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (redis.exceptions.ConnectionError("Error 111 connecting"), True),
        (redis.exceptions.TimeoutError("Timeout reading from socket"), True),
        (redis.exceptions.BusyLoadingError("loading"), True),
        (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), True),
        (redis.exceptions.MaxConnectionsError("Too many connections"), True),
        (redis.exceptions.ClusterDownError("CLUSTERDOWN"), True),
        (redis.exceptions.MasterDownError("MASTERDOWN"), True),
        (redis.exceptions.TryAgainError("TRYAGAIN"), True),
        (redis.exceptions.OutOfMemoryError("command not allowed"), True),
        (redis.exceptions.AuthenticationError("invalid username-password pair or user is disabled."), False),
        (redis.exceptions.AuthorizationError("no"), False),
        (redis.exceptions.NoPermissionError("this user has no permissions"), False),
        (
            redis.exceptions.ConnectionError("Error 1: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
            False,
        ),
        (redis.exceptions.ResponseError("WRONGTYPE"), False),
        (redis.exceptions.DataError("bad input"), False),
        (kombu.exceptions.OperationalError("[Errno 111] Connection refused"), True),
        (kombu.exceptions.ConnectionLimitExceeded("10"), True),
        (kombu.exceptions.EncodeError("not JSON"), False),
        (kombu.exceptions.ContentDisallowed("pickle"), False),
        (amqp.exceptions.RecoverableConnectionError("lost"), True),
        (amqp.exceptions.ConnectionForced("maintenance"), True),
        (amqp.exceptions.InternalError("boom"), True),
        (amqp.exceptions.MessageNacked(), True),
        (amqp.exceptions.AccessRefused("no"), False),
        (amqp.exceptions.NotFound("no queue"), False),
        (amqp.exceptions.PreconditionFailed("inequivalent arg"), False),
        (amqp.exceptions.NotAllowed("vhost"), False),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}"[:60],
)
def test_broker_errors(error: Exception, transient: bool) -> None:
    """What a broker says of load and fail-over passes; what it says of credentials and arguments stays."""
    assert is_transient(error) is transient


@pytest.mark.parametrize("name", ["InvalidCommand", "ChannelNotOpen", "FrameSyntaxError"])
def test_an_amqp_reply_code_is_not_an_http_status(name: str) -> None:
    """AMQP's 502 to 504 are protocol errors; read as HTTP they would ask to come back."""
    error = getattr(amqp.exceptions, name)("wrong")
    assert error.code in (502, 503, 504)
    assert not is_transient(error)


def test_kombus_wrapper_is_judged_by_what_it_wraps() -> None:
    """kombu puts a wrong Redis password into the same class as a refused connection."""
    wrapped = redis.exceptions.AuthenticationError("invalid username-password pair")
    assert not is_transient(caused(kombu.exceptions.OperationalError(str(wrapped)), wrapped))
    assert is_transient(caused(kombu.exceptions.OperationalError("refused"), ConnectionRefusedError()))
    assert is_transient(caused(kombu.exceptions.OperationalError("odd"), RuntimeError()))


@pytest.mark.parametrize(
    ("package", "module"),
    [("redis", "redis.exceptions"), ("kombu", "kombu.exceptions"), ("amqp", "amqp.exceptions")],
)
def test_every_listed_class_exists_where_the_table_says(package: str, module: str) -> None:
    real = importlib.import_module(module)
    for name in TRANSIENT[package] | PERMANENT.get(package, frozenset()):
        assert getattr(real, name).__module__.partition(".")[0] == package, name


# --- HTTP clients ---------------------------------------------------------------------------------

REQUESTS = fake("requests.exceptions.RequestException", OSError)
REQUESTS_CONNECTION = fake("requests.exceptions.ConnectionError", REQUESTS)
REQUESTS_TIMEOUT = fake("requests.exceptions.Timeout", REQUESTS)
REQUESTS_SSL = fake("requests.exceptions.SSLError", REQUESTS_CONNECTION)
REQUESTS_HTTP = fake("requests.exceptions.HTTPError", REQUESTS)
URLLIB3 = fake("urllib3.exceptions.HTTPError")
URLLIB3_TIMEOUT = fake("urllib3.exceptions.TimeoutError", URLLIB3)
URLLIB3_SSL = fake("urllib3.exceptions.SSLError", URLLIB3)
MAX_RETRY = fake("urllib3.exceptions.MaxRetryError", URLLIB3)
HTTPX_TRANSPORT = fake("httpx.TransportError")
HTTPX_NETWORK = fake("httpx.NetworkError", HTTPX_TRANSPORT)
AIOHTTP = fake("aiohttp.client_exceptions.ClientConnectionError")
AIOHTTP_OS = fake("aiohttp.client_exceptions.ClientOSError", AIOHTTP, OSError)


def max_retry(reason: Exception) -> Exception:
    raised: Exception = MAX_RETRY("Max retries exceeded")
    raised.reason = reason  # type: ignore[attr-defined]
    return raised


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (REQUESTS_CONNECTION("refused"), True),
        (fake("requests.exceptions.ConnectTimeout", REQUESTS_CONNECTION, REQUESTS_TIMEOUT)(), True),
        (fake("requests.exceptions.ReadTimeout", REQUESTS_TIMEOUT)(), True),
        (fake("requests.exceptions.ChunkedEncodingError", REQUESTS)(), True),
        (REQUESTS_SSL("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: hostname"), False),
        (REQUESTS_SSL("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca"), False),
        (REQUESTS_SSL("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"), True),
        (fake("requests.exceptions.MissingSchema", REQUESTS, ValueError)("Invalid URL 'nope'"), False),
        (fake("requests.exceptions.TooManyRedirects", REQUESTS)(), False),
        (REQUESTS("unspecified"), False),
        (fake("urllib3.exceptions.ConnectTimeoutError", URLLIB3_TIMEOUT)(), True),
        (fake("urllib3.exceptions.ProtocolError", URLLIB3)("Connection aborted."), True),
        (fake("urllib3.exceptions.EmptyPoolError", fake("urllib3.exceptions.PoolError", URLLIB3))(), True),
        (max_retry(URLLIB3_TIMEOUT()), True),
        (max_retry(fake("urllib3.exceptions.ResponseError", URLLIB3)("too many 503 error responses")), True),
        (max_retry(URLLIB3_SSL("certificate verify failed")), False),
        (fake("urllib3.exceptions.LocationParseError", ValueError, URLLIB3)("no host"), False),
        (fake("httpx.ConnectError", HTTPX_NETWORK)("[Errno 111] Connection refused"), True),
        (
            fake("httpx.ConnectError", HTTPX_NETWORK)("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
            False,
        ),
        (fake("httpx.PoolTimeout", fake("httpx.TimeoutException", HTTPX_TRANSPORT))(), True),
        (fake("httpx.RemoteProtocolError", fake("httpx.ProtocolError", HTTPX_TRANSPORT))(), True),
        (fake("httpx.LocalProtocolError", fake("httpx.ProtocolError", HTTPX_TRANSPORT))(), False),
        (fake("httpx.UnsupportedProtocol", HTTPX_TRANSPORT)(), False),
        (fake("aiohttp.client_exceptions.ClientConnectorError", AIOHTTP_OS)("refused"), True),
        (fake("aiohttp.client_exceptions.ServerDisconnectedError", AIOHTTP)(), True),
        (fake("aiohttp.client_exceptions.ClientPayloadError")(), True),
        (fake("aiohttp.client_exceptions.ServerFingerprintMismatch", AIOHTTP)(), False),
        (fake("aiohttp.client_exceptions.ClientSSLError", AIOHTTP_OS)("wrong version number"), False),
        (fake("aiohttp.client_exceptions.InvalidURL", ValueError)(), False),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}"[:60],
)
def test_errors_of_http_clients(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


@pytest.mark.parametrize("status", [408, 425, 429, 502, 503, 504])
@pytest.mark.parametrize("name", ["status_code", "status", "code"])
def test_a_status_that_asks_to_come_back_is_transient(status: int, name: str) -> None:
    assert is_transient(with_status(status, name=name))
    assert is_transient(with_status(SimpleNamespace(status_code=status), name="response"))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 451, 500, 501, 505, 507])
def test_any_other_error_status_is_permanent_whatever_the_class(status: int) -> None:
    """An answer that was received counts for more than the class it was wrapped in."""
    assert not is_transient(with_status(status))
    assert not is_transient(with_status(SimpleNamespace(status_code=status), REQUESTS_CONNECTION, "response"))
    assert not is_transient(with_status(status, ConnectionError))


@pytest.mark.parametrize("status", [100, 200, 302])
def test_a_status_below_400_says_nothing(status: int) -> None:
    assert is_transient(with_status(status, ConnectionError))
    assert not is_transient(with_status(status))


@pytest.mark.parametrize("value", [True, "503", 503.0, 99, 600, 1006, -503, None, [], lambda: 503])
@pytest.mark.parametrize("name", ["status_code", "status", "code"])
def test_what_is_no_http_status_is_not_taken_for_one(value: object, name: str) -> None:
    assert http_status(with_status(value, name=name)) is None


def test_the_first_attribute_that_is_a_status_counts() -> None:
    error = with_status(503)
    error.code = 404  # type: ignore[attr-defined]
    assert http_status(error) == 503
    error.response = SimpleNamespace(status_code=429)  # type: ignore[attr-defined]
    assert http_status(error) == 429


def test_a_response_that_is_falsy_is_read_all_the_same() -> None:
    class Response:
        status_code = 503

        def __bool__(self) -> bool:
            return False

    assert is_transient(with_status(Response(), REQUESTS_HTTP, "response"))


def test_an_exit_code_is_not_a_status() -> None:
    assert not is_transient(SystemExit(503))


# --- AWS and gRPC ---------------------------------------------------------------------------------

CLIENT_ERROR = fake("botocore.exceptions.ClientError")
BOTOCORE = fake("botocore.exceptions.BotoCoreError")
BOTOCORE_CONNECTION = fake("botocore.exceptions.ConnectionError", BOTOCORE)


def aws(code: str, status: object = 400) -> Exception:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return with_status(response, CLIENT_ERROR, "response")


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (aws("ThrottlingException"), True),
        (aws("ProvisionedThroughputExceededException"), True),
        (aws("RequestTimeout"), True),
        (aws("SlowDown", 503), True),
        (aws("ServiceUnavailable", 503), True),
        (aws("ValidationException"), False),
        (aws("AccessDenied", 403), False),
        (aws("NoSuchKey", 404), False),
        (aws("InternalError", 500), False),
        (with_status(None, CLIENT_ERROR, "response"), False),
        (with_status({"Error": {"Code": []}}, CLIENT_ERROR, "response"), False),
        (fake("botocore.errorfactory.TooManyRequestsException", type(aws("x")))("unread"), False),
        (fake("botocore.exceptions.EndpointConnectionError", BOTOCORE_CONNECTION)(), True),
        (fake("botocore.exceptions.ReadTimeoutError", BOTOCORE)(), True),
        (fake("botocore.exceptions.SSLError", BOTOCORE_CONNECTION)("certificate verify failed"), False),
        (fake("botocore.exceptions.NoCredentialsError", BOTOCORE)(), False),
        (fake("botocore.exceptions.ParamValidationError", BOTOCORE)(), False),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'response', value)}"[:90],
)
def test_errors_of_aws(error: Exception, transient: bool) -> None:
    """Throttling comes with HTTP status 400; the code in the body tells it apart."""
    assert is_transient(error) is transient


RPC_ERROR = fake("grpc.RpcError")


def rpc(code: Any, details: str = "") -> Exception:
    inactive = fake("grpc._channel._InactiveRpcError", RPC_ERROR, code=lambda _self: code)
    raised: Exception = inactive(details)
    return raised


@pytest.mark.parametrize("name", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"])
def test_transient_grpc_codes(name: str) -> None:
    assert is_transient(rpc(SimpleNamespace(name=name, value=(14, "unavailable"))))


@pytest.mark.parametrize("name", ["INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "INTERNAL", "UNAUTHENTICATED"])
def test_permanent_grpc_codes(name: str) -> None:
    assert not is_transient(rpc(SimpleNamespace(name=name)))


def test_a_grpc_message_that_is_too_large_stays_too_large() -> None:
    too_large = "CLIENT: Sent message larger than max (100 vs. 10)"
    assert not is_transient(rpc(SimpleNamespace(name="RESOURCE_EXHAUSTED"), too_large))


def test_a_grpc_error_that_cannot_name_its_code_is_permanent() -> None:
    def code(_self: object) -> object:
        raise RuntimeError

    assert not is_transient(fake("grpc.Odd", RPC_ERROR, code=code)())
    assert not is_transient(RPC_ERROR())
    assert is_transient(fake("grpc.FutureTimeoutError")())


# --- databases ------------------------------------------------------------------------------------

PSYCOPG = fake("psycopg.OperationalError", sqlstate=None)
PSYCOPG2 = fake("psycopg2.OperationalError", pgcode=None)
MYSQL = fake("MySQLdb._exceptions.OperationalError")
PYMYSQL = fake("pymysql.err.OperationalError")
PYMYSQL_INTERFACE = fake("pymysql.err.InterfaceError")
DJANGO = fake("django.db.utils.OperationalError", fake("django.db.utils.DatabaseError"))
DJANGO_PROGRAMMING = fake("django.db.utils.ProgrammingError", fake("django.db.utils.DatabaseError"))
DJANGO_INTERFACE = fake("django.db.utils.InterfaceError")
DBAPI = fake("sqlalchemy.exc.DBAPIError", connection_invalidated=False, orig=None, code="e3q8")


def postgres(state: str, driver: Any = PSYCOPG) -> Exception:
    attribute = "sqlstate" if driver is PSYCOPG else "pgcode"
    return with_status(state, fake("psycopg.errors.Named", driver), attribute)


def dbapi(orig: Exception, *, invalidated: bool = False) -> Exception:
    raised: Exception = DBAPI(f"({type(orig).__name__}) {orig}")
    raised.orig = orig  # type: ignore[attr-defined]
    raised.connection_invalidated = invalidated  # type: ignore[attr-defined]
    return raised


@pytest.mark.parametrize("driver", [PSYCOPG, PSYCOPG2])
@pytest.mark.parametrize(
    ("state", "transient"),
    [
        ("40001", True),
        ("40P01", True),
        ("55P03", True),
        ("57014", True),
        ("57P01", True),
        ("57P03", True),
        ("53300", True),
        ("08006", True),
        ("40002", False),
        ("28P01", False),
        ("42P01", False),
        ("23505", False),
        ("53100", False),
    ],
)
def test_postgresql_is_judged_by_sqlstate(driver: Any, state: str, transient: bool) -> None:
    assert is_transient(postgres(state, driver)) is transient


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (PSYCOPG("connection failed: Connection refused"), True),
        (PSYCOPG("the connection is closed"), True),
        (PSYCOPG('on socket "/run/.s.PGSQL.5432" failed: No such file or directory'), True),
        (fake("psycopg_pool.PoolTimeout", PSYCOPG)("couldn't get a connection after 30 s"), True),
        (PSYCOPG2("server closed the connection unexpectedly"), True),
        (fake("psycopg2.InterfaceError", pgcode=None)("connection already closed"), True),
        (PSYCOPG('FATAL:  password authentication failed for user "app"'), False),
        (PSYCOPG2('FATAL:  database "shop" does not exist'), False),
        (PSYCOPG("server does not support SSL, but SSL was required"), False),
        (PSYCOPG('SSL error: certificate verify failed; root certificate file "x" is missing'), False),
        (fake("psycopg.IntegrityError", sqlstate=None)("duplicate key"), False),
        (fake("psycopg.ProgrammingError", sqlstate=None)("invalid connection option"), False),
    ],
    ids=str,
)
def test_postgresql_without_a_sqlstate_is_about_the_connection(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


@pytest.mark.parametrize("driver", [MYSQL, PYMYSQL])
@pytest.mark.parametrize(
    ("number", "transient"),
    [
        (1205, True),
        (1213, True),
        (2002, True),
        (2003, True),
        (2006, True),
        (2013, True),
        (1040, True),
        (1146, False),
        (1054, False),
        (1045, False),
        (1049, False),
        (1062, False),
    ],
)
def test_mysql_is_judged_by_number(driver: Any, number: int, transient: bool) -> None:
    assert is_transient(driver(number, "said the server")) is transient


def test_a_mysql_connection_closed_already_is_transient() -> None:
    assert is_transient(PYMYSQL_INTERFACE(0, ""))
    assert not is_transient(fake("pymysql.err.InternalError")("Packet sequence number wrong"))
    assert not is_transient(MYSQL())


def test_sqlite_says_locked_and_no_such_table_with_one_class(tmp_path: Path) -> None:
    """Real errors: a lock held by somebody else passes, a missing table or column does not."""
    holder = sqlite3.connect(tmp_path / "shop.db")
    other = sqlite3.connect(tmp_path / "shop.db", timeout=0)
    holder.execute("create table orders (id)")
    holder.commit()

    def failure(connection: sqlite3.Connection, statement: str) -> sqlite3.OperationalError:
        with pytest.raises(sqlite3.OperationalError) as failed:
            connection.execute(statement)
        return failed.value

    holder.execute("begin exclusive")
    locked = failure(other, "insert into orders values (1)")
    missing_table = failure(holder, "select * from nope")
    missing_column = failure(holder, "select nope from orders")
    holder.close()
    other.close()

    assert is_transient(locked)
    assert not is_transient(missing_table)
    assert not is_transient(missing_column)
    # Django and SQLAlchemy say the same with classes of their own.
    assert is_transient(caused(DJANGO(str(locked)), locked))
    assert not is_transient(caused(DJANGO(str(missing_table)), missing_table))
    assert is_transient(dbapi(locked))
    assert not is_transient(dbapi(missing_table))


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (DJANGO("could not connect to server"), True),
        (DJANGO_INTERFACE("connection already closed"), True),
        (DJANGO(2006, "MySQL server has gone away"), True),
        (DJANGO(1054, "Unknown column 'x' in 'field list'"), False),
        (DJANGO("no such table: shop_order"), False),
        (DJANGO("unable to open database file"), False),
        (caused(DJANGO("deadlock detected"), postgres("40P01")), True),
        (caused(DJANGO("permission denied"), postgres("28000")), False),
        (caused(DJANGO("ORA-03113"), fake("oracledb.exceptions.OperationalError")()), True),
        (caused(DJANGO_PROGRAMMING("relation does not exist"), postgres("42P01")), False),
        (DJANGO_PROGRAMMING("relation does not exist"), False),
        (fake("django.db.utils.IntegrityError", fake("django.db.utils.DatabaseError"))("duplicate"), False),
        (fake("django.core.exceptions.ValidationError")("bad"), False),
    ],
    ids=str,
)
def test_django_is_judged_by_its_driver_where_it_is_known(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (dbapi(fake("cx_Oracle.DatabaseError")("lost"), invalidated=True), True),
        (dbapi(fake("psycopg2.DatabaseError", pgcode=None)("SSL SYSCALL error"), invalidated=True), True),
        (dbapi(fake("cx_Oracle.DatabaseError")("bad")), False),
        (dbapi(postgres("40001")), True),
        (dbapi(postgres("42P01")), False),
        (dbapi(PYMYSQL(1213, "Deadlock found")), True),
        (dbapi(with_status("40001", name="sqlstate")), True),
        (fake("sqlalchemy.exc.TimeoutError")("QueuePool limit reached"), True),
        (fake("sqlalchemy.exc.DisconnectionError")(), True),
        (fake("sqlalchemy.exc.NoResultFound")(), False),
    ],
    ids=str,
)
def test_sqlalchemy_knows_its_invalidated_connections(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


MONGO = fake("pymongo.errors.PyMongoError", has_error_label=lambda self, label: label in getattr(self, "labels", ()))
MONGO_CONNECTION = fake("pymongo.errors.ConnectionFailure", MONGO)
MONGO_OPERATION = fake("pymongo.errors.OperationFailure", MONGO)


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (fake("pymongo.errors.AutoReconnect", MONGO_CONNECTION)(), True),
        (fake("pymongo.errors.ServerSelectionTimeoutError", MONGO_CONNECTION)(), True),
        (fake("pymongo.errors.ExecutionTimeout", MONGO_OPERATION)(), True),
        (with_status(("TransientTransactionError",), MONGO_OPERATION, "labels"), True),
        (MONGO_OPERATION("not authorized"), False),
        (fake("pymongo.errors.DuplicateKeyError", MONGO_OPERATION)(), False),
        (with_status(503, MONGO_OPERATION, "code"), False),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}",
)
def test_mongodb_is_judged_by_class_and_label(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


# --- groups ---------------------------------------------------------------------------------------


def test_a_group_is_transient_only_if_all_of_it_is() -> None:
    assert is_transient(ExceptionGroup("", [ConnectionError(), ExceptionGroup("", [TimeoutError()])]))
    assert not is_transient(ExceptionGroup("", [ConnectionError(), ExceptionGroup("", [ValueError()])]))
    assert not is_transient(BaseExceptionGroup("", [ConnectionError(), SystemExit()]))


def test_a_group_is_known_by_what_it_holds() -> None:
    """The backport to Python 3.10, and whatever else holds nothing but exceptions."""
    backport = fake("exceptiongroup._exceptions.ExceptionGroup")
    assert is_transient(with_status((ConnectionError(), TimeoutError()), backport, "exceptions"))
    assert not is_transient(with_status((ConnectionError(), KeyError()), backport, "exceptions"))
    assert is_transient(with_status([ConnectionError()], name="exceptions"))


def test_an_empty_group_is_not_transient() -> None:
    backport = fake("exceptiongroup._exceptions.ExceptionGroup", ConnectionError)
    assert not is_transient(with_status((), backport, "exceptions"))
    # An error that merely has room for others is no group.
    assert is_transient(with_status((), ConnectionError, "exceptions"))
    assert is_transient(with_status(["text"], ConnectionError, "exceptions"))


def test_groups_may_be_deep_and_may_hold_themselves() -> None:
    deep: BaseException = ConnectionError()
    for _ in range(5000):
        deep = with_status([deep], name="exceptions")
    assert is_transient(deep)

    ring = with_status([], name="exceptions")
    ring.exceptions.append(ring)  # type: ignore[attr-defined]
    assert not is_transient(ring)
    ring.exceptions.append(ConnectionError())  # type: ignore[attr-defined]
    assert is_transient(ring)


# --- hostile exceptions ---------------------------------------------------------------------------


def test_attributes_that_raise_break_nothing() -> None:
    def explode(_self: object) -> object:
        raise RuntimeError("do not look at me")

    names = (
        "exceptions", "response", "status_code", "status", "code", "reason", "orig", "connection_invalidated",
        "sqlstate", "pgcode", "has_error_label", "args", "__cause__",
    )  # fmt: skip
    hostile = {name: property(explode) for name in names}
    for base in (Exception, ConnectionError, PSYCOPG, MYSQL, DJANGO, DBAPI, MONGO, CLIENT_ERROR, RPC_ERROR, MAX_RETRY):
        error = type("Hostile", (base,), {**hostile, "__str__": explode, "__module__": base.__module__})()
        assert is_transient(error) in (True, False)
    assert is_transient(type("Hostile", (ConnectionError,), {**hostile, "__str__": explode})())


def test_attributes_that_cannot_be_looked_up_break_nothing() -> None:
    odd: list[Callable[[], Exception]] = [
        lambda: with_status([], CLIENT_ERROR, "response"),
        lambda: aws("x", []),
        lambda: rpc(SimpleNamespace(name=[])),
        lambda: MYSQL([]),
        lambda: dbapi(with_status([], name="sqlstate")),
        lambda: with_status([], PSYCOPG, "sqlstate"),
    ]
    for make in odd:
        assert is_transient(make()) in (True, False)


def test_errors_that_carry_each_other_end_somewhere() -> None:
    first, second = kombu.exceptions.OperationalError("a"), kombu.exceptions.OperationalError("b")
    caused(first, caused(second, first))
    assert is_transient(first)


def test_a_class_without_a_module_breaks_nothing() -> None:
    assert not is_transient(type("Odd", (Exception,), {"__module__": None})())


# --- the imports ----------------------------------------------------------------------------------


def test_nothing_in_the_package_imports_what_it_judges() -> None:
    """Only the standard library and our own settings and errors; policies import neither clock nor dice."""
    folder = Path(celery_hardened.retry.__file__).parent
    for file in sorted(folder.glob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        tops = {name.partition(".")[0] for name in imported}
        assert tops <= set(sys.stdlib_module_names) | {"celery_hardened"}, file
        assert tops.isdisjoint({"time", "random", "socket"}), file
        ours = {name for name in imported if name.startswith("celery_hardened")}
        assert all(
            name.startswith("celery_hardened.retry") or name in ("celery_hardened.errors", "celery_hardened.settings")
            for name in ours
        ), file
