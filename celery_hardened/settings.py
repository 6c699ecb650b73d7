"""Every setting, once: read from ``app.conf``, checked, frozen.

Field ``x`` is Celery setting ``hardened_x`` and, under Django's ``CELERY``
namespace, ``CELERY_HARDENED_X``. The rule has no exceptions. An unknown name
is refused with a guess; settings that contradict each other are refused with
a sentence that says what to change.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from celery_hardened.errors import ConfigurationError

_DAY = 86_400.0
_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The package's configuration. Durations are seconds."""

    # --- where things are kept -------------------------------------------------------------

    redis_url: str | None = None
    """Redis (or Valkey) for our own records. ``None``: the broker's, when that is a Redis."""

    key_prefix: str = "hardened"
    """First part of every key of ours; Celery's ``global_keyprefix`` goes before it."""

    dead_letter_store: str = "redis"
    """``redis``, ``memory`` (this process only: tests), or ``module:factory``, called with the app."""

    # --- what is on -------------------------------------------------------------------------

    observe: bool = False
    """Dry run: log what would have been done differently, and do nothing."""

    version: str | None = None
    """Code version noted in dead letters. ``None``: $HARDENED_VERSION, else the git commit."""

    switch_ttl: float = 5.0
    """How long a kill switch read from Redis is trusted before it is read again."""

    # --- Redis delivery -----------------------------------------------------------------------

    redis_delivery: Literal["hardened", "stock"] = "hardened"
    """How a worker takes messages from a Redis broker. ``stock``: kombu's own transport."""

    lease: float = 30.0
    """How long a message stays its worker's without a sign of life; renewed three times in that time."""

    # --- retry ------------------------------------------------------------------------------

    max_retries: int | None = 10
    """Retries after the first attempt. ``None`` is for ever, and then ``retry_for`` is required."""

    retry_backoff: float = 1.0
    """Upper bound of the first delay; doubles with every attempt."""

    retry_backoff_max: float = 600.0
    """Upper bound of every delay."""

    retry_floor: float = 0.1
    """Lower bound of every jittered delay, so that full jitter cannot mean "at once"."""

    retry_for: float | None = None
    """Horizon: no retry later than this after the first publish. ``None``: only the count bounds."""

    retry_after_max: float = 3600.0
    """Longest ``Retry-After`` that is obeyed."""

    # --- limits of hardened tasks -------------------------------------------------------------

    time_limit: float | None = 300.0
    """Hard time limit where neither task nor ``task_time_limit`` sets one."""

    soft_time_limit: float | None = 240.0
    """Soft time limit where neither task nor ``task_soft_time_limit`` sets one."""

    # --- poison -----------------------------------------------------------------------------

    max_worker_deaths: int = 3
    """Starts of one message that may take their process down before it is a dead letter."""

    death_delay: float = 1.0
    """Wait after the first death of a hardened task; doubles with every further one."""

    death_delay_max: float = 60.0
    """Longest wait between two deaths."""

    death_memory: float = _DAY
    """How long deaths are remembered after the last one."""

    max_eta: float = 366 * _DAY
    """A message due later than this is malformed: a worker would hold it for ever."""

    # --- dead letters -------------------------------------------------------------------------

    dead_letter_max_age: float = 30 * _DAY
    """How long a letter is kept."""

    dead_letter_max_count: int = 200_000
    """How many letters are kept in all, closed ones included."""

    dead_letter_max_count_per_task: int = 100_000
    """How many open letters of one task are kept."""

    dead_letter_max_bytes: int = 256 * 1024 * 1024
    """How many bytes are kept in all: compressed envelopes, and 1200 a letter for its record and indexes."""

    dead_letter_closed_max_age: float = 7 * _DAY
    """How long resolved, redriven and discarded letters are kept as a record."""

    dead_letter_traceback_max: int = 16_384
    """Characters of traceback kept; the middle is cut."""

    dead_letter_write_timeout: float = 10.0
    """How long a letter that cannot be written, or a retry that cannot be sent, is tried again before its
    message is given back."""

    park_chords: bool = True
    """Keep the chord of a hardened task's dead letter open, so that a redrive completes it."""

    redrive_max: int = 3
    """A task redriven this often is refused unless forced."""

    # --- AMQP -------------------------------------------------------------------------------

    amqp_queues: Literal["quorum"] | None = None
    """``quorum``: new queues are quorum queues with a delivery limit and a dead letter queue."""

    amqp_delivery_limit: int = 20
    """The broker's own backstop against poison, at least 20: graceful returns count towards it."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:  # NaN too
                raise ConfigurationError(f"hardened_{name} is {value!r}; it must be a number of at least {least}.")
        for name, allowed in _ONE_OF.items():
            if getattr(self, name) not in allowed:
                raise ConfigurationError(f"hardened_{name} is {getattr(self, name)!r}; it must be one of {allowed}.")
        if self.retry_backoff_max < self.retry_backoff:
            raise ConfigurationError(
                f"hardened_retry_backoff is {self.retry_backoff} and hardened_retry_backoff_max only "
                f"{self.retry_backoff_max}, so every delay would be cut to the maximum. "
                f"Raise hardened_retry_backoff_max."
            )
        if self.retry_floor > self.retry_backoff:
            raise ConfigurationError(
                f"hardened_retry_floor is {self.retry_floor}, above hardened_retry_backoff "
                f"({self.retry_backoff}), so the first delay could not be jittered. Lower the floor."
            )
        if self.max_retries is None and self.retry_for is None:
            raise ConfigurationError(
                "hardened_max_retries is None, which means for ever; a task that never ends can never "
                "become a dead letter. Set hardened_retry_for to bound it by time."
            )
        if self.time_limit is not None and self.soft_time_limit is not None and self.soft_time_limit > self.time_limit:
            raise ConfigurationError(
                f"hardened_soft_time_limit is {self.soft_time_limit}, above hardened_time_limit "
                f"({self.time_limit}), so it would never be reached. Lower it."
            )
        if self.death_delay_max < self.death_delay:
            raise ConfigurationError(
                f"hardened_death_delay is {self.death_delay}, above hardened_death_delay_max "
                f"({self.death_delay_max}). Raise the maximum."
            )
        if self.dead_letter_max_count_per_task > self.dead_letter_max_count:
            raise ConfigurationError(
                f"hardened_dead_letter_max_count_per_task is {self.dead_letter_max_count_per_task}, above "
                f"hardened_dead_letter_max_count ({self.dead_letter_max_count}), so one task could push "
                f"out all others. Lower it."
            )

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> Settings:
        """Read the ``hardened_*`` settings of an app.

        Raises:
            ConfigurationError: A name is unknown, a value malformed, or two contradict each other.
        """
        _refuse_unknown(conf)
        # get(), never "in": under a namespace app.conf answers for
        # hardened_x while "hardened_x" in app.conf is False.
        asked = {f.name: conf.get(f"hardened_{f.name}", _ABSENT) for f in fields(cls)}
        given = {name: _seconds(value) for name, value in asked.items() if value is not _ABSENT}
        # Who sets one time limit means that one: a default of ours that contradicts it is left out.
        if "time_limit" in given and "soft_time_limit" not in given:
            given["soft_time_limit"] = _default_within(cls, "soft_time_limit", most=given["time_limit"])
        elif "soft_time_limit" in given and "time_limit" not in given:
            given["time_limit"] = _default_within(cls, "time_limit", least=given["soft_time_limit"])
        return cls(**given)


def _default_within(cls: type[Settings], name: str, *, least: Any = None, most: Any = None) -> float | None:
    """The default of a time limit, or ``None`` if it lies on the wrong side of the other one."""
    default = next(cast("float", f.default) for f in fields(cls) if f.name == name)
    numbers = [bound for bound in (least, most) if isinstance(bound, (int, float))]
    wrong = any(default < n if least is not None else default > n for n in numbers)
    return None if wrong else default


_LEAST: dict[str, float] = {
    "switch_ttl": 0.1,
    "lease": 1.0,
    "max_retries": 0,
    "retry_backoff": 0.001,
    "retry_backoff_max": 0.001,
    "retry_floor": 0.0,
    "retry_for": 0.001,
    "retry_after_max": 0.0,
    "time_limit": 0.1,
    "soft_time_limit": 0.1,
    "max_worker_deaths": 1,
    "death_delay": 0.0,
    "death_delay_max": 0.0,
    "death_memory": 60.0,
    "max_eta": 60.0,
    "dead_letter_max_age": 60.0,
    "dead_letter_max_count": 1,
    "dead_letter_max_count_per_task": 1,
    "dead_letter_max_bytes": 1024,
    "dead_letter_closed_max_age": 60.0,
    "dead_letter_traceback_max": 200,
    "dead_letter_write_timeout": 0.0,
    "redrive_max": 1,
    "amqp_delivery_limit": 20,
}

_MAY_BE_NONE = frozenset({"max_retries", "retry_for", "time_limit", "soft_time_limit"})

_ONE_OF: dict[str, tuple[object, ...]] = {
    "observe": (True, False),
    "park_chords": (True, False),
    "amqp_queues": (None, "quorum"),
    "redis_delivery": ("hardened", "stock"),
}


def _seconds(value: Any) -> Any:
    """Let a duration be a ``timedelta`` too."""
    total = getattr(value, "total_seconds", None)
    return total() if callable(total) else value


def _refuse_unknown(conf: Mapping[str, Any]) -> None:
    """Refuse a name that is nearly ours, and one of ours where it would never be read.

    Iterating ``app.conf`` yields raw keys: under a namespace all of Django's settings, of
    which only those that begin with the namespace are Celery's business.
    """
    known = [f"hardened_{f.name}" for f in fields(cast(Any, Settings))]
    keys = tuple(conf)  # reads the configuration, before which there is no namespace
    namespace = getattr(conf, "prefix", None) or ""
    for raw in keys:
        lower = raw.lower()
        name = lower.removeprefix(namespace.lower() or "celery_")
        if not name.startswith("hardened_"):
            continue
        full = namespace + (name.upper() if namespace.isupper() else name)
        if raw in (full, name) and name in known:
            continue
        # Under a namespace a bare HARDENED_X may be the project's own; ours if nothing else says x.
        if namespace and lower == name and raw != name and (name not in known or full in conf):
            continue
        if name in known:
            raise ConfigurationError(f"setting {raw!r} is never read; write {full!r}.")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(
            f"unknown setting {raw!r}.{hint} All settings are listed in docs/reference/settings.md."
        )
