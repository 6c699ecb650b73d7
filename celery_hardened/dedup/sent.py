"""Did a publish that failed send anything?

If not, its key is free at once. If it may have, the key is kept for a lease: long enough for a
message that did arrive to be the only one, for most tasks, and short enough to try again.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from itertools import zip_longest

from kombu.exceptions import SerializationError

from celery_hardened.errors import HardenedError

#: No connection was made, so nothing can have been sent over it.
_REFUSED = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOENT})

#: In the ``__dict__`` of an error: it ended a publish that may have sent its message, whatever it says itself.
_MARK = "_hardened_may_have_sent"

#: What is raised before anything is sent: the message could not be made, or must not be.
_UNMADE = (HardenedError, SerializationError, TypeError, ValueError, LookupError, AttributeError)


def nothing_was_sent(error: BaseException, *, handled: BaseException | None) -> bool:
    """Is it certain that a publish that ended with *error* has sent no message?

    A connection that was never made has sent nothing, unless an earlier try on another one did. That one's error
    need not be in the context of the last: the publish itself knows of all its tries, and has marked its error
    (``pipeline/tries.py``). Whatever is not known is not certain.

    Args:
        handled: What the caller was handling when it published; the context ends there.
    """
    if any(_MARK in vars(link) for link in links(error, handled)):
        return False
    if isinstance(error, _UNMADE):
        return True
    # An empty pool of connections is no trouble, nor a channel that is made at its first use (kombu 5.6), but
    # both are in the context of what comes next.
    chain = [link for link in links(error, handled) if not isinstance(link, (LookupError, AttributeError))]
    for link, wrapped in zip_longest(chain, chain[1:]):
        if not _is_refused(link) and (wrapped is None or isinstance(link, OSError)):
            return False  # a client's error that wraps none of the socket's came over a connection
    return True


def may_have_sent(error: BaseException) -> None:
    """Mark *error*, which ended a publish of which a try, the last or one before it, may have sent the message."""
    vars(error)[_MARK] = True  # not setattr(), which an error may have made its own


def links(error: BaseException, handled: BaseException | None = None) -> Iterator[BaseException]:
    """*error*, what it wraps or followed, and so on, up to *handled*."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and link is not handled and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _is_refused(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) or (isinstance(error, OSError) and error.errno in _REFUSED)
