"""Every metric there is. The reference page, the dashboard and the alerts are held to this list by tests."""

from __future__ import annotations

from typing import Final

from celery_hardened.metrics.family import PREFIX, Family

#: Letters of a name that is no task's of this app.
_LONGEST: Final = 200

_RUN: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
_WAIT: Final = (0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_PUBLISH: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
_LATE: Final = (0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0)


#: In place of a task's name where a message says none.
NO_TASK: Final = "none"


def task_label(name: object) -> str:
    """The label of a task by the name that a message says; nobody vouches for that."""
    return name[:_LONGEST] if isinstance(name, str) and name else NO_TASK


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(f"{PREFIX}{name}_total", "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(f"{PREFIX}{name}", "gauge", text, labels)


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Family:
    return Family(f"{PREFIX}{name}", "histogram", text, labels, buckets)


# --- tasks: counted in the worker's main process ------------------------------------------------------------

TASKS: Final = _counter("tasks", "Deliveries that ended, by how.", "task", "queue", "outcome")
TASK_SECONDS: Final = _histogram(
    "task_duration_seconds", "From the start of a body to its end, however it ended.", "task", "result", buckets=_RUN
)
TASK_WAIT_SECONDS: Final = _histogram(
    "task_queue_wait_seconds", "From the publish, or the time it was due, to the start.", "queue", buckets=_WAIT
)
TASK_EXCEPTIONS: Final = _counter("task_exceptions", "Runs that raised, by class.", "task", "exception")
DEAD_LETTERS: Final = _counter("dead_letters_written", "Dead letters written.", "task", "queue", "reason")
CLOCK_SKEW: Final = _counter("clock_skew", "Messages that started before their publish, by this host's clock.")

# --- a worker ---------------------------------------------------------------------------------------------------

WORKER_INFO: Final = _gauge("worker_info", "1, with what runs here.", "version", "celery", "pool")
WORKER_CONCURRENCY: Final = _gauge("worker_concurrency", "Tasks that may run at once.")
WORKER_CONSUMING: Final = _gauge("worker_consuming", "1 if this worker takes messages from the queue.", "queue")
WORKER_ACTIVE: Final = _gauge("worker_active", "Tasks that run.", "queue")
WORKER_RESERVED: Final = _gauge("worker_reserved", "Messages that wait here for a place in the pool.", "queue")
WORKER_WAITING: Final = _gauge("worker_waiting", "Messages that wait here until they are due.", "queue")
LONGEST_RUNNING: Final = _gauge("task_longest_running_seconds", "How long the longest run has run.", "task")
LOOP_TICK: Final = _gauge("worker_loop_last_tick_timestamp_seconds", "When the main loop last turned.")
CHILDREN_LOST: Final = _counter("pool_children_lost", "Pool processes that died in the midst of a task.")
LEASES_LOST: Final = _counter("leases_lost", "Messages whose lease ran out while they ran here.", "queue")
CLAIMS_LOST: Final = _counter("claims_lost", "Runs whose idempotency key went to another run.", "task")
EFFECTS_UNFINISHED: Final = _counter(
    "effects_unfinished", "Runs that did their work and could not write it down.", "task"
)

# --- a producer: any process that publishes -------------------------------------------------------------------------

PUBLISHED: Final = _counter("published", "Publishes, by what became of them.", "task", "queue", "result")
PUBLISH_SECONDS: Final = _histogram(
    "publish_duration_seconds", "How long a publish took, by what became of it.", "result", buckets=_PUBLISH
)

# --- queues: asked of the broker ---------------------------------------------------------------------------------

QUEUE_WAITING: Final = _gauge("queue_waiting", "Messages that wait, of all priorities.", "queue")
QUEUE_DELAYED: Final = _gauge("queue_delayed", "Messages that are not due yet, of all queues, where it can be told.")
QUEUE_UNACKED: Final = _gauge("queue_unacked", "Messages that workers hold, of all queues, where it can be told.")
QUEUE_OLDEST: Final = _gauge("queue_oldest_age_seconds", "Since the oldest waiting message was published.", "queue")
QUEUE_CONSUMERS: Final = _gauge("queue_consumers", "Consumers, where the broker tells.", "queue")
LETTERS: Final = _gauge("dead_letters", "Open dead letters.", "queue", "reason")
LETTERS_OLDEST: Final = _gauge("dead_letters_oldest_age_seconds", "Since the oldest open dead letter was written.")
QUEUE_DEAD: Final = _gauge(
    "dead_letter_queue_waiting", "Messages in a queue's dead letter queue in RabbitMQ, yet to become letters.", "queue"
)
QUEUE_MISSING: Final = _gauge("queue_missing", "1 if the broker has no queue of this name, where it tells.", "queue")
QUEUE_SCRAPED: Final = _gauge(
    "queue_scrape_timestamp_seconds", "When `broker`, `dead_letters` or `beat` last answered.", "store"
)
QUEUE_ERRORS: Final = _counter("queue_scrape_errors", "Times that it did not.", "store")
LEADER_KNOWN: Final = _gauge("beat_leader_known", "1 if Redis says that a beat leads, 0 if none does.")
LEADER_TERM: Final = _gauge("beat_leader_term", "The number of the last lead, by what Redis says.")
LEADER_TICK: Final = _gauge("beat_leader_last_tick_timestamp_seconds", "When the beat that leads last turned.")

# --- beat ------------------------------------------------------------------------------------------------------------

BEAT_LEADER: Final = _gauge("beat_leader", "1 if this beat leads.")
BEAT_TERM: Final = _gauge("beat_term", "The number of the lead, as far as this beat knows.")
BEAT_TICK: Final = _gauge("beat_last_tick_timestamp_seconds", "When this beat last turned.")
BEAT_SCHEDULES: Final = _gauge("beat_schedules", "Schedules that this beat fires.")
BEAT_PROBLEMS: Final = _gauge("beat_problems", "Schedules that cannot be used.")
BEAT_SLOTS: Final = _counter("beat_slots", "Slots, by what became of them.", "schedule", "outcome")
BEAT_LATE_SECONDS: Final = _histogram("beat_lateness_seconds", "From when a slot was due to its fire.", buckets=_LATE)

# --- about ourselves -----------------------------------------------------------------------------------

#: Tells a count of a young process, which is all new, from one that Prometheus could not scrape for a while.
PROCESS_START: Final = _gauge("process_start_timestamp_seconds", "When this process began to count.")

FOLDED: Final = _counter("labels_folded", "Times that a value was counted as `other`.", "label")
HTTP_FAILURES: Final = _counter("http_bind_failures", "Tries to listen at hardened_http that failed.")
SOURCE_ERRORS: Final = _counter("scrape_errors", "Sources that failed while the page was made.", "source")

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))
BY_NAME: Final = {family.name: family for family in ALL}
