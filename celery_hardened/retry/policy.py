"""The retry policy of a task, and what it decides about a failed attempt.

Pure: the clock and the dice are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from celery_hardened.errors import ConfigurationError
from celery_hardened.retry.classify import ErrorTypes, Kind
from celery_hardened.retry.task_options import options_of
from celery_hardened.settings import Settings

Uniform: TypeAlias = Callable[[float, float], float]

#: 2.0**1024 would overflow; no maximum is reached later than here.
_MAX_EXPONENT = 1000


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Try again after *delay* seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt; *reason* is what the dead letter records."""

    reason: Literal["permanent", "exhausted", "expired_horizon", "timeout"]


Verdict: TypeAlias = RetryIn | GiveUp


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How a task's failures are retried. Durations are seconds.

    The attribute of the task that sets a field is named with it; ``RetryPolicy.of``
    reads them.

    Raises:
        ConfigurationError: Two fields contradict each other, or one is no sensible value.
    """

    max_retries: int | None
    """``max_retries``: retries after the first attempt; ``None`` is for ever, within the horizon."""

    backoff: float | None
    """``retry_backoff``: upper bound of the first delay, doubled by every retry. ``None``: every
    delay is ``default_delay``, exactly."""

    backoff_max: float
    """``retry_backoff_max``: upper bound of every delay."""

    jitter: bool
    """``retry_jitter``: draw each delay between zero and its bound; else it is the bound itself."""

    default_delay: float
    """``default_retry_delay``: the delay where there is no backoff."""

    floor: float
    """``hardened_retry_floor``: lower bound of every drawn delay."""

    horizon: float | None
    """``retry_for``: no retry starts later than this after the first publish."""

    retry_after_max: float
    """``hardened_retry_after_max``: longest ``Retry-After`` that is obeyed."""

    autoretry_for: ErrorTypes = ()
    """``autoretry_for``: transient, besides what the table knows."""

    dont_autoretry_for: ErrorTypes = ()
    """``dont_autoretry_for``: permanent, whatever else applies."""

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def of(cls, task: Any, settings: Settings) -> RetryPolicy:
        """Read the policy from a task's attributes; what it does not set comes from *settings*.

        Raises:
            ConfigurationError: The attributes contradict each other; names the task.
        """
        try:
            policy = cls(**options_of(task, settings))
            if policy.max_retries is None and policy.horizon is None:
                raise ConfigurationError(
                    "max_retries is None, which means for ever; a task that never ends can never become "
                    "a dead letter. Set retry_for to bound it by time."
                )
            return policy
        except ConfigurationError as problem:
            name = getattr(task, "name", None) or getattr(task, "__name__", None) or type(task).__name__
            raise ConfigurationError(f"task {name!r}: {problem}") from problem


def decide(
    policy: RetryPolicy,
    *,
    kind: Kind,
    retries: int,
    now: float,
    first_published: float | None,
    expires: float | None,
    retry_after: float | None,
    uniform: Uniform,
    delay: float | None = None,
) -> Verdict:
    """
    Decide what becomes of a failed attempt.

    Count and horizon bound independently: the first that is reached ends it.

    Args:
        kind: What ``classify`` said of the error.
        retries: Retries spent so far (Celery's ``request.retries``); 0 after the first attempt.
        now: Seconds since the epoch, like *first_published* and *expires*.
        first_published: When the task was first sent; ``None`` if nobody noted it, and then the
            horizon runs from *now*. The caller notes it for the next attempt.
        expires: No attempt may start later.
        retry_after: How long the other side asked to wait, in seconds.
        uniform: Draws a float between two bounds, such as ``random.uniform``.
        delay: The task's own decision, ``self.retry(countdown=...)``: taken as it is, and not
            held to the horizon.

    Returns:
        ``RetryIn``, or ``GiveUp`` with ``permanent``, ``timeout`` (a time limit), ``exhausted``
        (the count is used up) or ``expired_horizon`` (the next attempt would start too late).
    """
    if kind != "transient":
        return GiveUp(kind)
    if policy.max_retries is not None and retries >= policy.max_retries:
        return GiveUp("exhausted")

    chosen = delay
    latest = math.inf if expires is None else expires
    if chosen is None:
        chosen = next_delay(policy, retries=retries, retry_after=retry_after, uniform=uniform)
        if policy.horizon is not None:
            latest = min(latest, (now if first_published is None else first_published) + policy.horizon)
    return GiveUp("expired_horizon") if now + chosen > latest else RetryIn(chosen)


def next_delay(policy: RetryPolicy, *, retries: int, retry_after: float | None = None, uniform: Uniform) -> float:
    """
    How long to wait before the next attempt, in seconds.

    Full jitter: drawn between zero and the bound, so that tasks which failed together
    do not come back together; never below the floor, because zero would hit what just
    failed at once. (Where the bound itself is below the floor, it is the bound.)
    Without jitter it is the bound; without backoff it is ``default_delay``.

    A ``Retry-After`` is waited out first, up to ``retry_after_max``, and the drawn delay
    comes on top: everybody was told the same number. A fixed delay is only raised to it.

    Args:
        retries: Retries spent so far; 0 after the first attempt.
    """
    asked = 0.0 if retry_after is None else min(max(0.0, retry_after), policy.retry_after_max)
    most = bound(policy, retries=retries)
    if policy.backoff is None or not policy.jitter:
        return max(asked, most)
    return max(min(policy.floor, most), asked + uniform(0.0, most))


def bound(policy: RetryPolicy, *, retries: int) -> float:
    """The longest delay after *retries* retries, ``Retry-After`` apart. Never falls as *retries* grow."""
    if policy.backoff is None:
        return policy.default_delay
    return min(policy.backoff_max, policy.backoff * 2.0 ** min(max(retries, 0), _MAX_EXPONENT))


def horizon(policy: RetryPolicy) -> float:
    """
    The longest time until a task that keeps failing becomes a dead letter, in seconds.

    The sum of all bounds, or the policy's own horizon if that ends sooner. Counts
    waiting only: not the attempts themselves, not time in the queue, not a
    ``Retry-After`` that is longer than the bound.
    """
    limit = math.inf if policy.horizon is None else policy.horizon
    if policy.max_retries is None:
        return limit
    total, spent = 0.0, 0
    while spent < policy.max_retries and spent <= _MAX_EXPONENT:
        total += bound(policy, retries=spent)
        spent += 1
    # From here on every delay has the same bound.
    total += bound(policy, retries=spent) * (policy.max_retries - spent)
    return min(total, limit)


#: The task's attribute, our field, and whether the field may be zero.
_NUMBERS = (
    ("max_retries", "max_retries", True),
    ("retry_backoff", "backoff", False),
    ("retry_backoff_max", "backoff_max", False),
    ("default_retry_delay", "default_delay", True),
    ("retry_for", "horizon", False),
    ("hardened_retry_floor", "floor", True),
    ("hardened_retry_after_max", "retry_after_max", True),
)


def _check(policy: RetryPolicy) -> None:
    for attribute, field, zero in _NUMBERS:
        value = getattr(policy, field)
        if value is not None and not (_is_number(value) and (value > 0 or (zero and value == 0))):
            raise ConfigurationError(
                f"{attribute} is {value!r}; it must be a number {'of at least' if zero else 'above'} 0."
            )
    if policy.max_retries is not None and not isinstance(policy.max_retries, int):
        raise ConfigurationError(f"max_retries is {policy.max_retries!r}; it must be a whole number, or None.")
    if policy.backoff is not None and policy.backoff > policy.backoff_max:
        raise ConfigurationError(
            f"retry_backoff is {policy.backoff:g} s and retry_backoff_max only {policy.backoff_max:g} s, so every "
            f"delay would be cut to the maximum. Raise retry_backoff_max or lower retry_backoff."
        )
    for name in ("autoretry_for", "dont_autoretry_for"):
        listed = getattr(policy, name)
        if not all(isinstance(one, type) and issubclass(one, BaseException) for one in listed):
            raise ConfigurationError(f"{name} is {listed!r}; it must be a tuple of exception classes.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
