"""What is wrong with a set of settings. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_hardened.settings import Settings


def problems(of: Settings) -> Iterator[str]:
    """A sentence for each value that is malformed, and for each two that contradict each other."""
    for name, least in LEAST.items():
        value = getattr(of, name)
        if value is None and name in MAY_BE_NONE:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:  # NaN too
            yield (f"hardened_{name} is {value!r}; it must be a number of at least {least}.")
    for name, allowed in ONE_OF.items():
        if getattr(of, name) not in allowed:
            yield (f"hardened_{name} is {getattr(of, name)!r}; it must be one of {allowed}.")
    if of.retry_backoff_max < of.retry_backoff:
        yield (
            f"hardened_retry_backoff is {of.retry_backoff} and hardened_retry_backoff_max only "
            f"{of.retry_backoff_max}, so every delay would be cut to the maximum. "
            f"Raise hardened_retry_backoff_max."
        )
    if of.retry_floor > of.retry_backoff:
        yield (
            f"hardened_retry_floor is {of.retry_floor}, above hardened_retry_backoff "
            f"({of.retry_backoff}), so the first delay could not be jittered. Lower the floor."
        )
    if of.max_retries is None and of.retry_for is None:
        yield (
            "hardened_max_retries is None, which means for ever; a task that never ends can never "
            "become a dead letter. Set hardened_retry_for to bound it by time."
        )
    if of.time_limit is not None and of.soft_time_limit is not None and of.soft_time_limit > of.time_limit:
        yield (
            f"hardened_soft_time_limit is {of.soft_time_limit}, above hardened_time_limit "
            f"({of.time_limit}), so it would never be reached. Lower it."
        )
    if of.death_delay_max < of.death_delay:
        yield (
            f"hardened_death_delay is {of.death_delay}, above hardened_death_delay_max "
            f"({of.death_delay_max}). Raise the maximum."
        )
    if of.dead_letter_max_count_per_task > of.dead_letter_max_count:
        yield (
            f"hardened_dead_letter_max_count_per_task is {of.dead_letter_max_count_per_task}, above "
            f"hardened_dead_letter_max_count ({of.dead_letter_max_count}), so one task could push "
            f"out all others. Lower it."
        )

    if of.payload_max < of.payload_threshold:
        yield (
            f"hardened_payload_threshold is {of.payload_threshold}, above hardened_payload_max "
            f"({of.payload_max}), so nothing would go to the payload store. Lower the threshold."
        )
    if of.payload_max_age is not None and of.payload_max_age < of.kept_for:
        yield (
            f"hardened_payload_max_age is {of.payload_max_age:g} s, but a message may wait "
            f"{of.queue_retention:g} s (hardened_queue_retention) and then be a dead letter for "
            f"{of.dead_letter_max_age:g} s (hardened_dead_letter_max_age): its arguments would be gone. "
            f"Raise it to at least {of.kept_for:g}, or leave it unset."
        )
    if of.beat_catchup_window is not None and of.beat_catchup_window < of.beat_grace:
        yield (
            f"hardened_beat_catchup_window is {of.beat_catchup_window:g} s, below hardened_beat_grace "
            f"({of.beat_grace:g} s): a slot would be too old before it is late. Raise it, or set it to None."
        )


LEAST: dict[str, float] = {
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
    "queue_retention": 60.0,
    "idempotency_result_max": 0,
    "checkpoint_max": 64,
    "payload_threshold": 1024,
    "payload_max": 1024,
    "payload_max_age": 60.0,
    "publish_timeout": 0.0,
    "confirm_timeout": 0.1,
    "beat_ttl": 1.0,
    "beat_grace": 0.0,
    "beat_catchup_window": 0.0,
    "beat_max_catchup": 1,
    "beat_history": 1,
    "run_history_max_age": 60.0,
    "run_history_max_count": 1,
    "metrics_max_tasks": 1,
    "health_stall": 5.0,
    "amqp_delivery_limit": 20,
}

MAY_BE_NONE = frozenset(
    {
        "max_retries",
        "retry_for",
        "time_limit",
        "soft_time_limit",
        "payload_max_age",
        "beat_catchup_window",
        "confirm_timeout",
    }
)

ONE_OF: dict[str, tuple[object, ...]] = {
    "observe": (True, False),
    "park_chords": (True, False),
    "publish_on_commit": (True, False),
    "metrics": (True, False),
    "metrics_queues": (True, False),
    "task_logs": (True, False),
    "gc_freeze": (True, False),
    "run_history": (None, True, False),
    "amqp_queues": (None, "quorum"),
    "redis_delivery": ("hardened", "stock"),
    "beat_missed_run": ("run_once", "skip", "run_all"),
    "beat_overlap": ("allow", "skip", "buffer_one", "cancel_other", "terminate_other"),
}
