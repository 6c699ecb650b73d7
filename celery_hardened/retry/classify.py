"""Transient, permanent, or out of time? The task's own words first, then the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from celery_hardened.errors import ConfigurationError
from celery_hardened.retry.anatomy import leaves, lineage
from celery_hardened.retry.transient import is_time_limit, is_transient

Kind: TypeAlias = Literal["transient", "permanent", "timeout"]
ErrorTypes: TypeAlias = tuple[type[BaseException], ...]
Hook: TypeAlias = Callable[[BaseException], object]

_CONTROL_FLOW = ("celery", "TaskPredicate")
_HOOK_SAYS: dict[object, Kind] = {
    "transient": "transient",
    "permanent": "permanent",
    True: "transient",
    False: "permanent",
}


def classify(
    error: BaseException, *, autoretry_for: ErrorTypes, dont_autoretry_for: ErrorTypes, hook: Hook | None
) -> Kind:
    """Say what kind of failure *error* is. The first rule that applies decides:

    1. a class in ``dont_autoretry_for``: permanent
    2. a class in ``autoretry_for``: transient
    3. the task's ``classify(exc)``: ``"transient"`` or ``True``, ``"permanent"`` or
       ``False``, ``None`` for no opinion
    4. the built-in table: transient
    5. else permanent

    A time limit is ``timeout`` by whatever rule but the second, and there only if it
    is listed itself: ``autoretry_for = (Exception,)`` means "whatever goes wrong in my
    code", not "run what hangs again".

    A group of exceptions is transient only if every member is, by these rules. One
    member in ``dont_autoretry_for`` settles it; a group class that is listed itself
    and the hook, which is shown the group before its members, are obeyed.

    Celery's ``Ignore``, ``Reject`` and ``Retry`` are not failures; see ``passes_untouched``.

    Raises:
        ConfigurationError: The hook raised, or returned something else.
    """
    members = leaves(error)
    if members is None:
        return _classify_one(error, autoretry_for, dont_autoretry_for, hook)

    if any(_lists(dont_autoretry_for, one) for one in (error, *members)):
        return _timeout_or_permanent(members)
    if _lists_itself(autoretry_for, error):
        return "transient"
    said = _ask(hook, error)
    if said is not None:
        return said
    kinds = [_classify_one(member, autoretry_for, dont_autoretry_for, hook) for member in members]
    if kinds and all(kind == "transient" for kind in kinds):
        return "transient"
    return "timeout" if "timeout" in kinds else "permanent"


def passes_untouched(error: BaseException) -> bool:
    """Is it ``Ignore``, ``Reject`` or ``Retry``: a word to Celery, not a failure?"""
    return _CONTROL_FLOW in lineage(error)


def _classify_one(error: BaseException, wanted: ErrorTypes, unwanted: ErrorTypes, hook: Hook | None) -> Kind:
    if is_time_limit(error):
        return "transient" if _lists_itself(wanted, error) and not _lists(unwanted, error) else "timeout"
    if _lists(unwanted, error) or passes_untouched(error):
        return "permanent"
    if _lists(wanted, error):
        return "transient"
    said = _ask(hook, error)
    if said is not None:
        return said
    return "transient" if is_transient(error) else "permanent"


def _timeout_or_permanent(members: tuple[BaseException, ...]) -> Kind:
    return "timeout" if any(is_time_limit(member) for member in members) else "permanent"


def _lists(listed: ErrorTypes, error: BaseException) -> bool:
    return isinstance(error, listed)


def _lists_itself(listed: ErrorTypes, error: BaseException) -> bool:
    """By a class of its own: every time limit and most groups are an ``Exception`` too."""
    return any(isinstance(error, one) for one in listed if one not in (Exception, BaseException))


def _ask(hook: Hook | None, error: BaseException) -> Kind | None:
    if hook is None:
        return None
    name = getattr(hook, "__qualname__", repr(hook))
    try:
        said = hook(error)
    except Exception as problem:
        raise ConfigurationError(
            f"{name}() raised {type(problem).__name__} ({problem}) when it was asked about "
            f"{type(error).__name__}. It must return 'transient', 'permanent' or None."
        ) from problem
    if said is None:
        return None
    if isinstance(said, (str, bool)) and said in _HOOK_SAYS:
        return _HOOK_SAYS[said]
    raise ConfigurationError(
        f"{name}() returned {said!r} when it was asked about {type(error).__name__}. "
        f"It must return 'transient' (or True), 'permanent' (or False), or None for no opinion."
    )
