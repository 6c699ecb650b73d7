"""``docs/how-to/retry-policy.md`` says what the code does, and its examples run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from celery_hardened import HardenedTask
from celery_hardened.retry import table
from celery_hardened.retry.policy import RetryPolicy, horizon
from celery_hardened.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "retry-policy.md"
TEXT = PAGE.read_text(encoding="utf-8")

_SHOWN_AS = {
    "builtins": "Python",
    "concurrent": "concurrent.futures",
    "http": "http.client",
    "django": "django.db",
}


def code(words: Iterable[object]) -> str:
    return ", ".join(f"`{word}`" for word in sorted(words, key=str))


def rows() -> list[str]:
    """The table of the page, from the table of the code."""
    lines = ["| library | transient | permanent all the same |", "|---|---|---|"]
    packages = [*table.TRANSIENT, *(package for package in table.TLS if package not in table.TRANSIENT)]
    for package in packages:
        stays = table.PERMANENT.get(package, frozenset()) | table.TLS.get(package, frozenset())
        shown = _SHOWN_AS.get(package, package)
        lines.append(f"| {shown} | {code(table.TRANSIENT.get(package, ()))} | {code(stays)} |")
    codes = {
        "HTTP status": table.HTTP_STATUSES,
        "AWS error codes": table.AWS_CODES,
        "gRPC codes": table.GRPC_CODES,
        "SQLSTATE (PostgreSQL)": table.SQLSTATES,
        "MySQL and MariaDB errors": table.MYSQL_ERRORS,
    }
    lines += [f"| {name} | {code(listed)} | every other |" for name, listed in codes.items()]
    lines.append(f"| SQLite | {code(table.SQLITE_LOCKED)} in the message | every other |")
    lines.append("| SMTP replies | `4xx` | `5xx` |")
    lines.append(
        "| MongoDB labels | `RetryableWriteError`, `TransientTransactionError` | every other `OperationFailure` |"
    )
    return lines


def policy(task: Any) -> RetryPolicy:
    return RetryPolicy.of(task, Settings())


def test_the_table_is_the_one_of_the_code() -> None:
    """If this fails, put the expected lines between the two marks of the page."""
    found = re.search(r"<!-- table: begin -->\n\n(.*?)\n\n<!-- table: end -->", TEXT, re.DOTALL)
    assert found is not None
    assert found[1].splitlines() == rows()


def test_the_defaults_are_the_ones_of_the_settings() -> None:
    settings = Settings()
    for line in (
        f"| `max_retries` | {settings.max_retries} |",
        f"| `retry_backoff` | {settings.retry_backoff:g} |",
        f"| `retry_backoff_max` | {settings.retry_backoff_max:g} |",
        f"No drawn delay is below {settings.retry_floor:g} s",
        f"Ten retries last at most {horizon(RetryPolicy.of(object(), settings)):g} s",
    ):
        assert line in TEXT
    assert (settings.max_retries, settings.retry_for, settings.retry_after_max) == (10, None, 3600)


def test_the_examples_run() -> None:
    """Every block, one after the other, in one namespace; then what the page says of them."""
    names: dict[str, Any] = {"__name__": "shop"}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)

    billing = policy(names["charge"])
    assert billing.max_retries == 8
    assert billing.autoretry_for == (names["GatewayError"],)
    assert billing.dont_autoretry_for == (names["CardRefusedError"],)

    report = names["ReportTask"]()
    assert isinstance(report, HardenedTask)
    assert report.classify(ValueError("try again later")) == "transient"
    assert report.classify(ValueError("no")) is None

    @names["app"].task(base=names["NightTask"])  # type: ignore[misc]
    def night() -> None: ...

    assert policy(night).max_retries is None
    assert horizon(policy(night)) == 12 * 3600
