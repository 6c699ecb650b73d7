"""What users write, for type checkers to read. It is checked, and never run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_hardened import (
    ConfigurationError,
    DeadLetter,
    DeadLetterNotFoundError,
    DeadLetterStore,
    HardenedError,
    HardenedTask,
    Hardening,
    JsonFormatter,
    Query,
    StoredLetter,
    StoreUnavailableError,
    current_execution,
    deduplicate,
    harden,
    idempotent,
)
from celery_hardened.contrib.sqlalchemy import publishing_on_commit
from celery_hardened.embedded import EmbeddedValkey
from celery_hardened.testing import assert_idempotent, inline, key_of

if TYPE_CHECKING:
    from typing_extensions import assert_type


class Shop(Celery):  # type: ignore[misc]
    """An app class of the user's own."""


class GatewayDownError(Exception):
    """Something that passes."""


# --- harden(app) gives back what it was given ---------------------------------------------------

app = Celery("shop", broker="redis://localhost/0")
harden(app)
assert_type(harden(Shop("shop")), Shop)
harden(app, tasks="all")
harden(app, tasks="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- policy is set by subclassing -----------------------------------------------------------------


class BillingTask(HardenedTask):
    """Every option at once."""

    abstract = True
    autoretry_for = (GatewayDownError, OSError)
    dont_autoretry_for = (PermissionError,)
    max_retries = 8
    retry_for = timedelta(hours=2)
    retry_backoff = 2
    retry_backoff_max = 300
    log_args = ("invoice_id",)
    park_chords = False
    dead_letter_max_age = 86_400.0

    def classify(self, error: BaseException) -> str | bool | None:
        return "transient" if "busy" in str(error) else None


class BoundedTask(HardenedTask):
    """Seconds are as good as a timedelta, and a class may say "for ever"."""

    max_retries = None
    retry_for = 60.0


# --- tasks are defined, called and overridden as ever ---------------------------------------------


@app.task(base=BillingTask, log_args=("invoice_id",))  # type: ignore[untyped-decorator]
def charge(invoice_id: str, *, again: bool = False) -> str:
    return invoice_id if again else "charged"


@app.task(bind=True, base=HardenedTask, autoretry_for=(GatewayDownError,))  # type: ignore[untyped-decorator]
def ship(self: HardenedTask, order: int) -> None:
    try:
        charge("i1", again=bool(order))
    except GatewayDownError as error:
        raise self.retry(exc=error, countdown=1.5, max_retries=3) from error


class WithContext(HardenedTask):
    """The documented pattern, and Celery's hooks."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        logging.getLogger("shop").error("%s failed: %s", task_id, exc, extra={"task": self.name})


class Report(HardenedTask):
    """A class task."""

    name = "shop.report"

    def run(self, day: str) -> str:
        return day


app.register_task(Report())


# --- effects that happen once: the decorators keep what they decorate ------------------------------


@idempotent("invoice_id", version=2, on_duplicate="skip", lifetime=timedelta(days=30))
@deduplicate("invoice_id", until=timedelta(minutes=5), on_duplicate="raise")
def bill(invoice_id: str, note: str = "") -> int:
    return len(invoice_id + note)


assert_type(bill("i-1"), int)
bill(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@idempotent(key="invoice:{order[id]}", store="database")
@deduplicate(until="finish")
def by_template(order: dict[str, str]) -> None: ...


@idempotent(key=lambda order, **_: order["id"])
def by_function(order: dict[str, str]) -> None: ...


idempotent("x", on_duplicate="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
deduplicate("x", until="end")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@app.task(bind=True, base=HardenedTask)  # type: ignore[untyped-decorator]
def long(self: HardenedTask, rows: list[str]) -> None:
    assert_type(self.execution.key, str | None)
    assert_type(current_execution().fence, int | None)
    for row in self.checkpoint.iterate(rows, every=1.0):
        assert_type(row, str)
        self.execution.check()
    self.checkpoint.save({"done": len(rows)})
    found: dict[str, int] = self.checkpoint.load({})
    logging.getLogger("shop").info("%s", found)


def tested(session: Any) -> None:
    with publishing_on_commit(session), inline(app):
        assert_idempotent(charge, "i-1", effects=lambda: 1)
    assert_type(key_of(charge, "i-1"), str)


# --- dead letters ---------------------------------------------------------------------------------


def look(store: DeadLetterStore) -> Iterator[str]:
    page = store.find(Query(task="shop.charge", reason="exhausted", state="dead"), limit=10)
    for stored in page.letters:
        assert_type(stored, StoredLetter)
        assert_type(stored.letter, DeadLetter)
        assert_type(stored.letter.body, bytes)
        yield stored.letter.id
    Query(reason="tired")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def act(letter_id: str) -> int:
    hardening = Hardening.of(app)
    if hardening is None:
        raise SystemExit("not hardened")
    assert_type(hardening, Hardening)
    assert_type(hardening.dead_letters, DeadLetterStore)
    try:
        hardening.dead_letters.get(letter_id)
    except DeadLetterNotFoundError:
        return 0
    except StoreUnavailableError as error:
        assert_type(str(error), str)
    hardening.redrive(Query(ids=(letter_id,)), by="me", why="fixed", dry_run=True)
    return hardening.discard([letter_id], by="me", why="obsolete")


class Nowhere:
    """A store of the user's own is one by its methods, not by its base class; this has too few."""

    def put(self, letter: DeadLetter) -> bool:
        return bool(letter.id)


def own_store() -> DeadLetterStore:
    return Nowhere()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


# --- the rest -------------------------------------------------------------------------------------


def errors(error: HardenedError) -> ConfigurationError | None:
    return error if isinstance(error, ConfigurationError) else None


def logs() -> None:
    handler = logging.StreamHandler[Any]()
    handler.setFormatter(JsonFormatter())


def server() -> str:
    with EmbeddedValkey(persist=True) as valkey:
        assert_type(valkey, EmbeddedValkey)
        return valkey.url
