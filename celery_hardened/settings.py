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
from celery_hardened.settings_rules import problems

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
    """``redis``, ``django`` or ``django:<alias>`` (the project's database), ``memory`` (this process only: tests), or
    ``module:factory``, called with the app."""

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

    # --- effects ------------------------------------------------------------------------------

    queue_retention: float = 7 * _DAY
    """Longest a message may wait in a queue and still be wanted. Records of finished work outlive it."""

    idempotency_result_max: int = 65_536
    """Bytes of a result kept in the record of finished work; larger ones go to the payload store."""

    database: str | None = None
    """``module:attribute`` of the SQLAlchemy ``sessionmaker`` for ``store="database"``. ``None``: Django's."""

    checkpoint_max: int = 1024 * 1024
    """Bytes of JSON that a checkpoint may hold."""

    # --- claim check --------------------------------------------------------------------------

    payload_store: str | None = None
    """Where large arguments go: ``file:``, ``redis:``, ``django:`` or any fsspec URL. ``None``: nowhere."""

    payload_threshold: int = 131_072
    """Bytes of arguments from which they go to the payload store."""

    payload_max: int = 64 * 1024 * 1024
    """Bytes of arguments above which a publish is refused."""

    payload_max_age: float | None = None
    """How long a payload is kept, if nothing needs it longer. ``None``: a letter's life and a wait in the queue."""

    # --- publish on commit ----------------------------------------------------------------------

    publish_on_commit: bool = True
    """Inside ``transaction.atomic()`` a hardened task is sent after the commit."""

    publish_timeout: float = 10.0
    """How long a publish after a commit is tried again before it is an error."""

    confirm_timeout: float | None = 10.0
    """How long RabbitMQ may take to say that it has a message, before the publish is tried anew or is an error.
    ``None``: for ever, as py-amqp does."""

    # --- beat -----------------------------------------------------------------------------------

    beat_ttl: float = 5.0
    """How long a beat leads without a sign of life. It gives one about every 0.4 s, and at least three in that time."""

    beat_grace: float = 30.0
    """A slot that is fired late by no more than this is on time."""

    beat_missed_run: Literal["run_once", "skip", "run_all"] = "run_once"
    """Of the slots that no beat could fire in time: the latest once, none, or each of them."""

    beat_catchup_window: float | None = _DAY
    """A missed slot older than this is not made up for. ``None``: however old."""

    beat_max_catchup: int = 100
    """``run_all``: so many missed slots at most, the newest."""

    beat_overlap: Literal["allow", "skip", "buffer_one", "cancel_other", "terminate_other"] = "allow"
    """What a slot does while the run before it waits or runs."""

    beat_history: int = 50
    """Lines of run history kept for each schedule."""

    run_history: bool | None = None
    """Keep what became of each slot in Django's database: workers report the ends of scheduled tasks, and the beat
    that leads copies. ``None``: where ``celery_hardened.contrib.django`` is installed."""

    run_history_max_age: float = 30 * _DAY
    """How long ``celery_hardened.prune_schedule_runs`` keeps a row of run history."""

    run_history_max_count: int = 100_000
    """How many rows it keeps in all."""

    # --- metrics, health, logs ----------------------------------------------------------------------

    metrics: bool = True
    """Count what happens. Shown where ``hardened_http`` says, and in a web process by prometheus-client."""

    metrics_max_tasks: int = 1000
    """Names of tasks that have series of their own; further ones are counted as ``other``."""

    metrics_queues: bool = False
    """Let this worker or beat ask the broker for its queues too, as ``hardened exporter`` does."""

    http: str | int | None = None
    """Where a worker or beat answers for its metrics and health: ``9808``, ``"127.0.0.1:9808"``; port 0 is any
    that is free. ``$HARDENED_HTTP`` goes before it. ``None``: nowhere."""

    health_dir: str | None = None
    """Folder for a worker's or beat's probe files ``live``, ``ready`` and ``started``. ``$HARDENED_HEALTH_DIR`` goes
    before it."""

    health_stall: float = 60.0
    """A main loop that has not turned for so long is dead, and ``/livez`` says so."""

    task_logs: bool = True
    """Log the start and the end of each task as one record with fields, in place of Celery's lines."""

    gc_freeze: bool = True
    """A worker leaves what it holds at its start out of Python's garbage collection, whose pauses are then short."""

    # --- AMQP -------------------------------------------------------------------------------

    amqp_queues: Literal["quorum"] | None = None
    """``quorum``: new queues are quorum queues with a delivery limit and a dead letter queue."""

    amqp_delivery_limit: int = 20
    """The broker's own backstop against poison, at least 20: graceful returns count towards it."""

    def __post_init__(self) -> None:
        for problem in problems(self):
            raise ConfigurationError(problem)

    @property
    def kept_for(self) -> float:
        """Seconds after which nobody can ask for what a message left behind: a wait in the queue, then a letter."""
        return self.queue_retention + self.dead_letter_max_age

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
