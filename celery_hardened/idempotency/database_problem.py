"""What a database's error says at the first statements of a transaction. Pure; imports no driver."""

from __future__ import annotations

from typing import Literal, TypeAlias

Problem: TypeAlias = Literal["locked", "away", "no table"]

#: Serialization failure, deadlock, lock not available: somebody else is at it.
_LOCKED = frozenset({"40001", "40P01", "55P03"})

#: Shutting down, crashed, starting, idle for too long; a standby that takes no writes (a failover).
_AWAY = frozenset({"57P01", "57P02", "57P03", "57P05", "25006"})

#: Whole classes: connection exceptions, and no connections or memory left.
_AWAY_CLASSES = frozenset({"08", "53"})

_NO_TABLE = "42P01"

#: PEP 249's names for faults that are not the statement's.
_NOT_THE_STATEMENT = frozenset({"OperationalError", "InterfaceError"})


def problem_of(error: BaseException) -> Problem | None:
    """
    Judge an error of a first statement, when nothing was changed yet.

    Args:
        error: Of Django, SQLAlchemy, or a driver of PostgreSQL or SQLite.

    Returns:
        ``locked``: somebody else holds what is asked for; ask later. ``away``: the server, or the way to it.
        ``no table``: the table was never made. ``None``: anything else.
    """
    driver = getattr(error, "orig", None) or error.__cause__ or error
    code = getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None)
    text = str(driver)
    if code in _LOCKED or "is locked" in text:
        return "locked"
    if code == _NO_TABLE or "no such table" in text:
        return "no table"
    if code is not None and not getattr(error, "connection_invalidated", False):
        return "away" if code in _AWAY or code[:2] in _AWAY_CLASSES else None
    return "away" if _NOT_THE_STATEMENT & {base.__name__ for base in type(error).__mro__} else None
