"""Look inside an exception that somebody else wrote, without being hurt by it.

Its attributes may be properties that raise, its ``str()`` may fail, its module
may be anything. Nothing here raises, and nothing here imports the library the
exception comes from: classes are known by name.
"""

from __future__ import annotations

from collections.abc import Iterator

_LONGEST_TEXT = 10_000
_GROUPS = frozenset({"ExceptionGroup", "BaseExceptionGroup"})

#: Top-level package and class name, such as ``("redis", "TimeoutError")``. Libraries move
#: their classes between submodules (``psycopg.errors``, ``aiohttp.client_exceptions``)
#: more often than they rename them.
ClassName = tuple[str, str]


def lineage(error: BaseException) -> Iterator[ClassName]:
    """Name the class of *error* and its bases, most derived first."""
    for cls in type(error).__mro__:
        yield str(cls.__module__).partition(".")[0], cls.__name__


def attribute(owner: object, name: str) -> object:
    """Read an attribute; ``None`` if it is missing or cannot be read."""
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001  a foreign property may raise anything
        return None


def text(error: BaseException) -> str:
    """What *error* says, in lower case and at most ten thousand characters; empty if ``str()`` fails."""
    try:
        return str(error)[:_LONGEST_TEXT].lower()
    except Exception:  # noqa: BLE001  a foreign __str__ may raise anything
        return ""


def leaves(error: BaseException) -> tuple[BaseException, ...] | None:
    """Flatten a group of exceptions, however deep; ``None`` if *error* is no group.

    A group is what is called so, in the standard library or its backport to
    Python 3.10, or what holds nothing but exceptions in ``.exceptions``. A group
    without a leaf (empty, or made of itself) gives an empty tuple.
    """
    if _members(error) is None:
        return None
    found: list[BaseException] = []
    seen: set[int] = set()
    open_ = [error]
    while open_:
        one = open_.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        members = _members(one)
        if members is None:
            found.append(one)
        else:
            open_.extend(reversed(members))
    return tuple(found)


def _members(error: BaseException) -> tuple[BaseException, ...] | None:
    held = attribute(error, "exceptions")
    if not isinstance(held, (list, tuple)) or not all(isinstance(member, BaseException) for member in held):
        return None
    if not held and not any(name in _GROUPS for _, name in lineage(error)):
        return None
    return tuple(held)
