"""Errors of configuration, dead letters and the running of tasks."""

from __future__ import annotations


class HardenedError(Exception):
    """Base of every error raised by celery_hardened."""


class ConfigurationError(HardenedError, ValueError):
    """A ``hardened_*`` setting is unknown, malformed or at odds with another.

    Raised when the configuration is first read; nothing was started or sent.
    """


class NotHardenedError(ConfigurationError):
    """A ``HardenedTask`` was published or served by an app that was not hardened.

    Nothing was sent; no worker was started.
    """

    def __init__(self, task: str, app: str) -> None:
        super().__init__(task, app)
        self.task = task
        self.app = app

    def __str__(self) -> str:
        return (
            f"task {self.task!r} is a HardenedTask, but its app {self.app!r} was never hardened, "
            f"so retries, dead letters and late acks would silently be missing. "
            f"Call celery_hardened.harden(app) right after the app is created."
        )


class DeadLetterError(HardenedError):
    """Base of what can go wrong with a dead letter."""


class DeadLetterNotFoundError(DeadLetterError):
    """No letter has this id: it never existed, or retention dropped it."""

    def __init__(self, letter_id: str) -> None:
        super().__init__(letter_id)
        self.letter_id = letter_id

    def __str__(self) -> str:
        return (
            f"there is no dead letter {self.letter_id!r}. It may have been dropped by retention "
            f"(celery -A <app> hardened dlq stats shows how many were), or the id is misspelt."
        )


class EnvelopeError(DeadLetterError):
    """Bytes that are no envelope, or one written by a newer version. Nothing was changed."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"this is not a dead letter envelope that this version can read: {self.problem}. "
            f"The format is in docs/reference/envelope.md."
        )


class RedriveRefusedError(DeadLetterError):
    """The letter stays where and as it was; no message was sent."""

    def __init__(self, letter_id: str, why: str) -> None:
        super().__init__(letter_id, why)
        self.letter_id = letter_id
        self.why = why

    def __str__(self) -> str:
        return f"dead letter {self.letter_id!r} was not redriven: {self.why}"


class MalformedMessageError(HardenedError):
    """A message that cannot be a task; it became a dead letter and was acked."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"not a task message: {self.problem}"


class TaskExitError(HardenedError):
    """A task raised ``SystemExit`` or another exception that is meant to end a process.

    It would have taken the pool process, or in a threads or solo pool the whole
    worker, with it. This stands in for it: the task has failed, the worker lives.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return (
            f"the task tried to end its process ({self.what}). It has failed for good and the worker "
            f"goes on. Raise an ordinary exception instead, or return."
        )


class TaskMemoryError(HardenedError):
    """A task ran out of memory.

    Celery re-raises a task's ``MemoryError`` in the worker's main process and
    the whole worker dies with it. This stands in for it: the task has failed,
    the worker lives.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return (
            f"the task ran out of memory ({self.message or 'MemoryError'}). It was not retried, "
            f"because the same input would most likely do it again; see its dead letter."
        )


class TaskProcessLostError(HardenedError):
    """A message that killed its worker as often as it may. It is a dead letter ``poison`` now."""

    def __init__(self, task: str, deaths: int, limit: int, last: str) -> None:
        super().__init__(task, deaths, limit, last)
        self.task = task
        self.deaths = deaths
        self.limit = limit
        self.last = last

    def __str__(self) -> str:
        return (
            f"{self.task} lost its process {self.deaths} times (hardened_max_worker_deaths is "
            f"{self.limit}; the last time: {self.last}), so it was not started again. Look for an "
            f"out-of-memory kill or a crash in native code, then redrive the letter."
        )


class NotFiredError(HardenedError):
    """A run by hand was refused. Nothing was sent."""

    def __init__(self, schedule: str, problem: str) -> None:
        super().__init__(schedule, problem)
        self.schedule = schedule
        self.problem = problem

    def __str__(self) -> str:
        return f"schedule {self.schedule!r} was not fired: {self.problem}."


class StoreUnavailableError(HardenedError):
    """A store of ours did not answer; what was to be written is not. The error of its client is ``__cause__``."""

    def __init__(self, operation: str, problem: str, where: str = "") -> None:
        """*where*: what to look at, such as ``the database 'default'``; empty: the Redis of our records."""
        super().__init__(operation, problem, where)
        self.operation = operation
        self.problem = problem
        self.where = where

    def __str__(self) -> str:
        look = self.where or "the server it is on (hardened_redis_url names that of our own records)"
        return (
            f"{self.operation} failed, because {self.where or 'the store'} did not answer ({self.problem}). "
            f"Nothing was changed. Check {look}."
        )
