"""Every error this package raises.

::

    HardenedError
    ├─ ConfigurationError (ValueError)   a setting is unknown, malformed or contradicts another
    │   └─ NotHardenedError              HardenedTask on an app without harden(app)
    ├─ DeadLetterError
    │   ├─ DeadLetterNotFoundError       no letter has this id
    │   ├─ EnvelopeError                 these bytes are not an envelope this version can read
    │   └─ RedriveRefusedError           the letter was left as it was
    ├─ IdempotencyError
    │   ├─ UnusableKeyError              no key can be taken from these arguments
    │   ├─ KeyMismatchError              the same key with other arguments
    │   ├─ ClaimBusyError                another run holds the key
    │   ├─ ClaimLostError                the key belongs to another run by now
    │   └─ ResultNotKeptError            done before, but its result was too large to keep
    ├─ DuplicateTaskError                a task of this key is on its way already
    ├─ PayloadError
    │   ├─ PayloadTooLargeError          arguments above the limit; nothing was sent
    │   ├─ PayloadMissingError           the payload store does not have them any more
    │   └─ PayloadCorruptError           what it has is not what was put there
    ├─ CheckpointError                   a state that cannot be kept; the one before still is
    ├─ NotSentError                      its transaction has not committed, or never will
    ├─ PublishFailedError                committed, and then the broker did not take it
    ├─ NotFiredError                     a run of a schedule by hand was refused; nothing was sent
    ├─ MalformedMessageError             a message that cannot be a task
    ├─ TaskExitError                     a task called sys.exit
    ├─ TaskMemoryError                   MemoryError, made survivable for the worker
    ├─ TaskProcessLostError              a message that kept killing its worker
    └─ StoreUnavailableError             a store of ours did not answer; nothing was changed

Positional arguments only, all of them handed to ``super().__init__``: Celery
rebuilds an error as ``cls(*exc.args)``, both across the pool (pickle) and out
of a JSON result backend. A keyword-only argument would not survive the trip.
"""

from celery_hardened.errors.effects import (
    CheckpointError,
    ClaimBusyError,
    ClaimLostError,
    DuplicateTaskError,
    IdempotencyError,
    KeyMismatchError,
    NotSentError,
    PayloadCorruptError,
    PayloadError,
    PayloadMissingError,
    PayloadTooLargeError,
    PublishFailedError,
    ResultNotKeptError,
    UnusableKeyError,
)
from celery_hardened.errors.tasks import (
    ConfigurationError,
    DeadLetterError,
    DeadLetterNotFoundError,
    EnvelopeError,
    HardenedError,
    MalformedMessageError,
    NotFiredError,
    NotHardenedError,
    RedriveRefusedError,
    StoreUnavailableError,
    TaskExitError,
    TaskMemoryError,
    TaskProcessLostError,
)

__all__ = [
    "CheckpointError",
    "ClaimBusyError",
    "ClaimLostError",
    "ConfigurationError",
    "DeadLetterError",
    "DeadLetterNotFoundError",
    "DuplicateTaskError",
    "EnvelopeError",
    "HardenedError",
    "IdempotencyError",
    "KeyMismatchError",
    "MalformedMessageError",
    "NotFiredError",
    "NotHardenedError",
    "NotSentError",
    "PayloadCorruptError",
    "PayloadError",
    "PayloadMissingError",
    "PayloadTooLargeError",
    "PublishFailedError",
    "RedriveRefusedError",
    "ResultNotKeptError",
    "StoreUnavailableError",
    "TaskExitError",
    "TaskMemoryError",
    "TaskProcessLostError",
    "UnusableKeyError",
]

# Their names are in dead letters and results: where a class is defined may change, where it is found may not.
for _name in __all__:
    globals()[_name].__module__ = __name__
