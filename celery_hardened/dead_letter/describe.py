"""An error in words: safe for any exception a task can raise, however odd."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

_MESSAGE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Described:
    """What a dead letter says of an error."""

    type: str
    message: str
    traceback: str
    location: str
    """File and line of the innermost frame, for the fingerprint."""


def describe(error: BaseException, formatted: str | None = None) -> Described:
    """Describe *error*. Never raises: a message that cannot be made is said to be so.

    Args:
        formatted: The traceback as text, where the error has crossed a process and lost its own.
    """
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    # Celery stands one of these in for an exception that cannot be pickled. Its own attributes
    # are looked at, not whatever an odd exception answers or raises.
    own = getattr(error, "__dict__", {})
    if isinstance(own.get("exc_cls_name"), str):
        module = own.get("exc_module")
        name = own["exc_cls_name"] if module in (None, "builtins") else f"{module}.{own['exc_cls_name']}"
    try:
        message = str(error)
    except Exception as problem:  # noqa: BLE001 - an exception's own __str__ may do anything
        message = f"<{name} whose message could not be read: {type(problem).__name__}>"
    frames = traceback.extract_tb(error.__traceback__)
    location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    if formatted is None:
        try:
            formatted = "".join(traceback.format_exception(cls, error, error.__traceback__))
        except Exception as problem:  # noqa: BLE001 - as above
            formatted = f"{name}: <traceback could not be formatted: {type(problem).__name__}>\n"
    return Described(type=str(name), message=message[:_MESSAGE_MAX], traceback=formatted, location=location)


def cut_middle(text: str, most: int) -> str:
    """*text* in at most *most* characters, the middle cut out: both ends of a traceback matter."""
    if len(text) <= most:
        return text
    note = f"\n… {len(text) - most} characters cut …\n"
    half = max(0, (most - len(note)) // 2)
    return text[:half] + note + text[len(text) - half :]
