"""Words and numbers for a terminal. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_PASSWORD = re.compile(r"(\w://[^\s:/@]*:)[^\s@]+@")


def without_passwords(text: str) -> str:
    """Blank the passwords of the URLs in *text*: errors like to quote the URL they could not reach.

    Where a password ends is a guess, as a careless one may hold a slash; rather too much is blanked.
    """
    return _PASSWORD.sub(r"\1**@", text)


def printable(text: str) -> str:
    """*text* with everything a terminal would obey (escapes, bidi overrides) written out."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode("ascii") for char in text
    )


def cut(text: str, most: int) -> str:
    """*text* on one line of at most *most* characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def date(moment: float | None) -> str:
    """A moment as people and ``--since`` read it, in UTC."""
    if moment is None:
        return "-"
    try:
        return datetime.fromtimestamp(moment, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # no clock's time: a letter may come from anywhere
        return str(moment)


def age(moment: float | None, *, now: float) -> str:
    """How long ago, in the largest unit that fits: ``45s``, ``3h``, ``12d``."""
    if moment is None:
        return "-"
    seconds = max(0.0, now - moment)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def amount(count: int) -> str:
    """``1 letter``, ``412 letters``."""
    return f"{count} letter" if count == 1 else f"{count} letters"


def size(count: int) -> str:
    """Bytes as people read them."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
