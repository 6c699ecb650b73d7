"""Errors of what makes effects happen once: keys, claims, payloads, checkpoints, publishes after a commit."""

from __future__ import annotations

from celery_hardened.errors.tasks import HardenedError


class IdempotencyError(HardenedError):
    """Base of what ``@idempotent`` can refuse."""


class UnusableKeyError(IdempotencyError):
    """No key can be taken from these arguments. At a publish nothing was sent; in a worker nothing was started."""

    def __init__(self, task: str, problem: str) -> None:
        super().__init__(task, problem)
        self.task = task
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"{self.task}: no key can be taken from these arguments: {self.problem}. A key is made of text, numbers, "
            f"booleans, None, UUIDs, dates, decimals, enums, bytes, and lists, sets and dicts of these. "
            f"Name another argument in the decorator, or pass a plain value."
        )


class KeyMismatchError(IdempotencyError):
    """The same key with other arguments. The body was not started; what the first run did stands."""

    def __init__(self, task: str, key: str) -> None:
        super().__init__(task, key)
        self.task = task
        self.key = key

    def __str__(self) -> str:
        return (
            f"{self.task} was called before with key {self.key} and other arguments, so this is either a second "
            f"meaning of one key or a mistake. It was not run. Put what differs into the key, or set "
            f"compare_arguments=False on its @idempotent."
        )


class ClaimBusyError(IdempotencyError):
    """Another run holds the key, and ``on_duplicate="raise"`` or the horizon says not to wait."""

    def __init__(self, task: str, key: str, left: float) -> None:
        super().__init__(task, key, left)
        self.task = task
        self.key = key
        self.left = left

    def __str__(self) -> str:
        return (
            f"{self.task}: another run holds key {self.key}, for {self.left} s more unless it renews its lease. "
            f"This one was not run."
        )


class ClaimLostError(IdempotencyError):
    """This run stood still for longer than its lease, and its key or checkpoint belongs to another run by now.

    Raised before the next effect, so that this run does nothing more; what it did stands.
    """

    def __init__(self, task: str, what: str) -> None:
        super().__init__(task, what)
        self.task = task
        self.what = what

    def __str__(self) -> str:
        return (
            f"{self.task}: this run has lost {self.what} to another run, because it did not renew its lease in time "
            f"(a frozen machine, a lost network, or a greenlet that never yields). It must not go on."
        )


class ResultNotKeptError(IdempotencyError):
    """The work was done before, and its result was not kept. The body was not started."""

    def __init__(self, task: str, key: str) -> None:
        super().__init__(task, key)
        self.task = task
        self.key = key

    def __str__(self) -> str:
        return (
            f"{self.task} has done its work for key {self.key} before, but the result was above "
            f"hardened_idempotency_result_max or no JSON, so what waits for it cannot go on. Return less, and "
            f"what JSON can say; or raise the limit, or set hardened_payload_store."
        )


class DuplicateTaskError(HardenedError):
    """A task of this key is on its way already; nothing was sent. ``task_id`` is that task's id."""

    def __init__(self, task: str, task_id: str) -> None:
        super().__init__(task, task_id)
        self.task = task
        self.task_id = task_id

    def __str__(self) -> str:
        return f"{self.task}: a task of the same key is on its way already ({self.task_id}). Nothing was sent."


class PayloadError(HardenedError):
    """Base of what can go wrong with arguments in the payload store."""


class PayloadTooLargeError(PayloadError):
    """Arguments above ``hardened_payload_max``. Nothing was sent."""

    def __init__(self, task: str, size: int, most: int, has_store: bool) -> None:
        super().__init__(task, size, most, has_store)
        self.task = task
        self.size = size
        self.most = most
        self.has_store = has_store

    def __str__(self) -> str:
        advice = (
            "Pass a reference to the data instead, or raise hardened_payload_max."
            if self.has_store
            else "Pass a reference to the data instead, or set hardened_payload_store and raise hardened_payload_max."
        )
        return f"{self.task}: its arguments take {self.size} bytes, more than {self.most}. Nothing was sent. {advice}"


class PayloadMissingError(PayloadError):
    """The payload store does not have the arguments. The body was not started."""

    def __init__(self, task: str, name: str) -> None:
        super().__init__(task, name)
        self.task = task
        self.name = name

    def __str__(self) -> str:
        return (
            f"{self.task}: its arguments are not in the payload store (payload {self.name}). It was removed by age or "
            f"by hand, or this worker looks into another store: compare hardened_payload_store here and there."
        )


class PayloadCorruptError(PayloadError):
    """The payload is not what was put there. The body was not started."""

    def __init__(self, task: str, name: str, problem: str) -> None:
        super().__init__(task, name, problem)
        self.task = task
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.task}: payload {self.name} is not what was stored: {self.problem}. It was not run."


class CheckpointError(HardenedError):
    """A state that cannot be kept; the checkpoint before it still is."""

    def __init__(self, task: str, problem: str) -> None:
        super().__init__(task, problem)
        self.task = task
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.task}: the checkpoint cannot be read or saved: {self.problem}. What was saved before stands."


class NotSentError(HardenedError):
    """The task waits for the commit of the transaction it was published in, or that was rolled back."""

    def __init__(self, task: str, task_id: str, rolled_back: bool) -> None:
        super().__init__(task, task_id, rolled_back)
        self.task = task
        self.task_id = task_id
        self.rolled_back = rolled_back

    def __str__(self) -> str:
        if self.rolled_back:
            return f"{self.task}[{self.task_id}] was never sent: the transaction it was published in was rolled back."
        return (
            f"{self.task}[{self.task_id}] is not sent before the transaction it was published in commits, so there is "
            f"no result to wait for yet. Ask after the commit, or publish with on_commit=False."
        )


class PublishFailedError(HardenedError):
    """The transaction has committed, and the broker did not take what was to be sent after it.

    The log has what is needed to send each again. ``tasks`` lists them as ``name[id]``.
    """

    def __init__(self, tasks: list[str], problem: str) -> None:
        super().__init__(tasks, problem)
        self.tasks = tasks
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"the transaction has committed, but {len(self.tasks)} task(s) published in it were not sent: "
            f"{', '.join(self.tasks)} ({self.problem}). Each is a dead letter of reason unsent, which a redrive sends "
            f"(celery -A <app> hardened dlq redrive --reason unsent), or, if none could be written, in the log of "
            f"celery_hardened.publish."
        )
