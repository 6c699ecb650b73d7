"""What every payload store promises. One test suite holds all of them to it.

::

    absent ──put──▶ kept ──finish──▶ ended       the data is gone, and the name says so
                      │                │
                      └── delete, age ─┴──▶ absent

``max_age`` is how long a payload is needed. Where each thing runs out by itself it is how long it is there.
A store that is swept keeps all of it for as long as the sweep says, and longer what is needed longer than
``usual``: the seconds that the sweep will say.

Names are 32 hexadecimal digits, new for each payload, and checked at each use: they come back in
messages, which anybody may have written.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

#: What ``get`` answers for a payload whose task has ended.
ENDED: Final = b""

_NAME = re.compile(r"[0-9a-f]{32}")


class PayloadStore(Protocol):
    """Keeps bytes by name. Raises ``StoreUnavailableError`` if it cannot be reached. Times are seconds."""

    def put(self, name: str, data: bytes, *, max_age: float) -> None:
        """Keep *data*, which is not empty. Durable when this returns, as far as the store can say."""

    def get(self, name: str, *, most: int) -> bytes | None:
        """The data, ``ENDED``, or ``None`` if nothing is known. Reads *most* + 1 bytes at most: one more than
        *most* says that it is longer."""

    def finish(self, name: str, *, max_age: float) -> None:
        """Remove the data, and remember that its task has ended. Never is neither there in between."""

    def keep(self, name: str, *, max_age: float) -> None:
        """Let its age begin anew, for a dead letter or a long delay. Nothing of that name: nothing is done."""

    def delete(self, name: str) -> None:
        """Forget it. Nothing of that name: nothing is done."""

    def sweep(self, older_than: float) -> int:
        """Remove what is older and not needed longer; how many. A store that lets each thing run out by itself
        answers 0."""


def checked(name: object) -> str:
    """*name*, if it can be one of ours. Raises ``ValueError``: no path may be made of it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("a payload's name is 32 hexadecimal digits")
    return name
