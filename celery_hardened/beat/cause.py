"""What an error of somebody else's code is, in a few words. Pure."""

from __future__ import annotations

#: Characters: it is kept in Redis for as long as the problem lasts.
_MOST = 1000


def cause(error: BaseException) -> str:
    """``ValueError: what it says``. Raises nothing, whatever the error's own ``__str__`` does."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - as above
        return f"{kind}, whose text cannot be read: {type(problem).__name__}"
    text = text if len(text) <= _MOST else f"{text[:_MOST]}…"
    return f"{kind}: {text}" if text else kind
