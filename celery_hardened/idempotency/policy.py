"""What ``@idempotent`` was told, how long finished work is remembered, and how long a busy key is waited for. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from celery_hardened.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_hardened.key import BusinessKey

Store: TypeAlias = Literal["redis", "database"]
OnDuplicate: TypeAlias = Literal["wait", "skip", "raise"]
OnStoreError: TypeAlias = Literal["wait", "run"]
Uniform: TypeAlias = Callable[[float, float], float]

#: Part of a lease over which those who wait for one key come back.
_SPREAD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotent:
    """The options of one ``@idempotent``. Durations are seconds."""

    key: BusinessKey
    """How the key is taken from a call."""

    store: Store = "redis"
    using: str = "default"
    """Django's alias of the database that the effect and, with ``store="database"``, the mark go to."""

    on_duplicate: OnDuplicate = "wait"
    """What a call does whose key another message holds. A redelivery of the holder's own message always waits."""

    compare_arguments: bool = True
    """Is the same key with other arguments an error?"""

    lifetime: float | None = None
    """How long finished work is remembered; ``None``: as long as a repetition can come."""

    eta: float = 0.0
    """The longest countdown this task is published with."""

    on_store_error: OnStoreError = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """What bounds the time until the last repetition of a message. Seconds; infinite where nothing bounds it."""

    horizon: float
    """The sum of the longest retry delays."""

    attempts: float
    """The attempts before the last, each as long as its time limit allows."""

    queue: float
    """The longest wait in the queue that is provided for."""

    lease: float
    sweep: float
    """What passes at most until a dead worker's message is found."""

    @classmethod
    def of(
        cls,
        *,
        horizon: float,
        max_retries: int | None,
        time_limit: float | None,
        queue_retention: float,
        lease: float,
        sweep: float,
    ) -> Repetition:
        """
        Take them from a task's policy and the settings.

        Args:
            max_retries: ``None``: only the horizon bounds the attempts, and then counts their time too.
            time_limit: ``None``: an attempt may take for ever.
        """
        each = math.inf if time_limit is None else time_limit
        attempts = max_retries * each if max_retries else 0.0
        return cls(horizon=horizon, attempts=attempts, queue=queue_retention, lease=lease, sweep=sweep)

    @property
    def bounded(self) -> float:
        """The sum of what is bounded."""
        parts = (self.horizon, self.attempts, self.queue, self.lease, self.sweep)
        return sum(seconds for seconds in parts if not math.isinf(seconds))


def done_lifetime(options: Idempotent, last: Repetition, *, task: str) -> float:
    """
    How long the record of finished work is kept, in seconds.

    A record that is gone before the last repetition has come lets that one run again.

    Raises:
        ConfigurationError: ``lifetime=`` is shorter than that, or nothing bounds it and none is given.
    """
    parts = {
        "retry delays": last.horizon,
        "attempts": last.attempts,
        "hardened_queue_retention": last.queue,
        "lease and sweep": last.lease + last.sweep,
        "longest countdown (eta=)": options.eta,
    }
    endless = [name for name, seconds in parts.items() if math.isinf(seconds)]
    needed = sum(seconds for seconds in parts.values() if not math.isinf(seconds))
    told = " + ".join(f"{seconds:g} s {name}" for name, seconds in parts.items() if not math.isinf(seconds))
    if options.lifetime is None:
        if endless:
            raise ConfigurationError(
                f"task {task!r}: nothing bounds its {' and '.join(endless)}, so nothing says how long @idempotent has "
                f"to remember finished work. Give it lifetime=, of at least {needed:g} s ({told}), or set a time "
                f"limit and max_retries or retry_for."
            )
        return needed
    if options.lifetime < needed:
        raise ConfigurationError(
            f"task {task!r}: lifetime={options.lifetime:g} on its @idempotent is below {needed:g} s, the latest that "
            f"a repetition can come ({told}); that one would run again. Raise it, or leave it out."
        )
    return options.lifetime


def eta_problem(options: Idempotent, delay: float) -> str | None:
    """
    What is wrong with a publish that is due in *delay* seconds; ``None``: nothing.

    The record of finished work is counted to outlive a message that was due within ``eta=``. What is due
    later may come, or come again, when it is forgotten, and then runs.
    """
    if not delay > options.eta:
        return None
    return (
        f"it is due in {delay:.0f} s, and its @idempotent provides for {options.eta:g} s (eta=): finished work of its "
        f"key may be forgotten before it has come for the last time, and is then done again. Set eta= to the longest "
        f"countdown this task is published with."
    )


def busy_delay(left: float, lease: float, uniform: Uniform) -> float:
    """
    How long a message waits whose key is busy, in seconds.

    Until the holder's lease ends, unless it is renewed, and a little longer: those
    that wait for one key do not all come back in the same moment.

    Args:
        left: What the store said is left of the holder's lease.
        uniform: Draws a float between two bounds, such as ``random.uniform``.
    """
    return min(max(left, 0.0), lease) + uniform(0.0, lease * _SPREAD)
