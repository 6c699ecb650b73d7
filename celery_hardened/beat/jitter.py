"""How much later than its slot each one is fired. Pure: no dice, so every beat puts the same slot off alike."""

from __future__ import annotations

from hashlib import blake2b

#: Never to be changed: a slot that is put off by one release must not be due at once in the next.
_KEY = b"celery_hardened.beat.jitter"


def offset_of(name: str, slot: float, jitter: float) -> float:
    """Seconds in [0, *jitter*) that *slot* of schedule *name* is put off: whole milliseconds, evenly spread."""
    width = int(jitter * 1000)
    if width <= 1:
        return 0.0
    text = f"{name}\0{round(slot * 1000)}".encode(errors="surrogatepass")
    drawn = int.from_bytes(blake2b(text, digest_size=8, key=_KEY).digest(), "big")
    return (drawn * width >> 64) / 1000


def jitter_problem(jitter: float, period: float) -> str | None:
    """Why an interval of *period* seconds cannot be jittered by *jitter*; ``None``: it can.

    A slot put off beyond the next one would hold that one up, since slots are fired in order.
    """
    if jitter < period or jitter == 0:
        return None
    return (
        f"jitter ({jitter:g} s) is not shorter than the interval ({period:g} s), so a slot would be put off beyond "
        f"the next one. Lower jitter below {period:g} s."
    )
