"""Signatures that travel inside a message: callbacks, errbacks, the rest of a chain, a chord's body. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

#: Options of a publish, and of a signature, that hold signatures; and whether one of them may be
#: sent more than once: every member of a group calls back.
HELD = {"link": True, "link_error": True, "chord": False, "chain": False}

#: Waits for a chord's members where the result backend cannot; the body is among its arguments.
UNLOCK = "celery.chord_unlock"

#: Celery's own tasks whose arguments are signatures, and where.
_CANVAS = {
    "celery.group": ("tasks",),
    "celery.chain": ("tasks",),
    "celery.chord": ("header", "body"),
}


class StashOne(Protocol):
    """Puts the arguments of one signature away: the new ones, or ``None`` if they stay where they are."""

    def __call__(self, signature: Mapping[str, Any], *, shared: bool) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
        """*shared*: more than one message may be made of it."""


def held_in(options: Mapping[str, Any], stash: StashOne, *, shared: bool = False) -> Mapping[str, Any]:
    """*options* with the arguments of all signatures in them put away; itself, if none were."""
    changed = {}
    for name, often in HELD.items():
        held = options.get(name)
        if held:
            new = each_in(held, stash, shared=shared or often)
            if new is not held:
                changed[name] = new
    return {**options, **changed} if changed else options


def each_in(held: Any, stash: StashOne, *, shared: bool = False) -> Any:
    """A signature, or a list with signatures in it, with their arguments put away; itself, if none were."""
    if isinstance(held, Mapping):
        return _one(held, stash, shared=shared)
    if isinstance(held, (list, tuple)):
        new = [each_in(one, stash, shared=shared) for one in held]
        return new if any(a is not b for a, b in zip(new, held, strict=True)) else held
    return held


def _one(signature: Mapping[str, Any], stash: StashOne, *, shared: bool) -> Mapping[str, Any]:
    """A copy, if anything changes: the caller's may be sent again."""
    changed: dict[str, Any] = {}
    inside = _CANVAS.get(signature.get("task") or "")
    kwargs = signature.get("kwargs") or {}
    if inside is not None:
        new = {name: each_in(kwargs[name], stash, shared=shared) for name in inside if name in kwargs}
        if any(new[name] is not kwargs[name] for name in new):
            changed["kwargs"] = {**kwargs, **new}
    else:
        stashed = stash(signature, shared=shared)
        if stashed is not None:
            changed["args"], changed["kwargs"] = stashed
    options = signature.get("options") or {}
    new_options = held_in(options, stash, shared=shared)
    if new_options is not options:
        changed["options"] = new_options
    return {**signature, **changed} if changed else signature
