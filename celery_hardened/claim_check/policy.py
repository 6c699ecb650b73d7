"""The reference that travels instead of large arguments, and what may be made of one. Pure."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Final
from uuid import UUID

from celery_hardened.claim_check.contract import checked
from celery_hardened.marks import REFERENCE

#: The one keyword argument of a message whose arguments are in the payload store.
KEY: Final = REFERENCE

VERSION: Final = 1

#: References that may lie in each other: a chain's result laid over arguments, again and again.
DEPTH: Final = 8

_JSON: Final = "application/json"

#: Never put into a store, nor taken out of one: it would run as code whatever somebody put there.
PICKLE: Final = "application/x-python-serialize"

#: Values looked at before encoding them all is the cheaper way to learn their size.
_LOOKS = 2000

#: Other values that have JSON of a known length.
_BOUNDED = frozenset({UUID, datetime, date, time})

#: Most bytes of JSON that one character can take: a surrogate pair, escaped.
_ESCAPED, _ESCAPED_ASCII = 12, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Where arguments lie, and what they have to be."""

    name: str
    sha256: str
    """Of the bytes in the store."""

    size: int
    """Bytes when decompressed; what is in the store is never longer."""

    content_type: str = _JSON
    zipped: bool = False
    shared: bool = False
    """More than one task may be sent with it (a callback of several): only age removes it."""

    def as_dict(self) -> dict[str, Any]:
        """The JSON object to send; what is as usual is left out."""
        out: dict[str, Any] = {"v": VERSION, "name": self.name, "sha256": self.sha256, "size": self.size}
        if self.content_type != _JSON:
            out["type"] = self.content_type
        if self.zipped:
            out["zip"] = True
        if self.shared:
            out["shared"] = True
        return out

    def as_kwargs(self) -> dict[str, Any]:
        return {KEY: self.as_dict()}

    @classmethod
    def read(cls, raw: object, *, most: int) -> Reference:
        """The reference in a message. Raises ``ValueError``, whose text says what is wrong with it."""
        if not isinstance(raw, Mapping):
            raise ValueError("its reference is no JSON object")
        if raw.get("v") != VERSION:
            raise ValueError(f"its reference is not of version {VERSION}; a newer release may have sent it")
        sha256, size, kind = raw.get("sha256"), raw.get("size"), raw.get("type", _JSON)
        if not isinstance(sha256, str) or not isinstance(kind, str):
            raise ValueError("its reference lacks a checksum or a content type")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError("its reference says no size")
        if size > most:
            raise ValueError(f"its reference says {size} bytes, and hardened_payload_max is {most}")
        return cls(
            name=checked(raw.get("name")),
            sha256=sha256,
            size=size,
            content_type=kind,
            zipped=raw.get("zip") is True,
            shared=raw.get("shared") is True,
        )


def pack(data: bytes, *, name: str, content_type: str = _JSON, shared: bool = False) -> tuple[Reference, bytes]:
    """A reference to *data*, and the bytes to store under *name*: compressed, where that is shorter."""
    squeezed = zlib.compress(data, 1)
    zipped = len(squeezed) < len(data)
    stored = squeezed if zipped else data
    reference = Reference(
        name=checked(name),
        sha256=hashlib.sha256(stored).hexdigest(),
        size=len(data),
        content_type=content_type,
        zipped=zipped,
        shared=shared,
    )
    return reference, stored


def unpack(reference: Reference, stored: bytes) -> bytes:
    """The data that was packed. Raises ``ValueError``, whose text says what is wrong with *stored*."""
    if len(stored) > reference.size:
        raise ValueError(f"it is longer than the {reference.size} bytes that were put there")
    if hashlib.sha256(stored).hexdigest() != reference.sha256:
        raise ValueError(f"the checksum of its {len(stored)} bytes is not that of what was put there")
    if not reference.zipped:
        if len(stored) != reference.size:
            raise ValueError(f"it has {len(stored)} bytes of {reference.size}")
        return stored
    # Whoever wrote the checksum may have written the rest: no more is decompressed than the size allows.
    engine = zlib.decompressobj()
    try:
        data = engine.decompress(stored, reference.size + 1)
    except zlib.error as problem:
        raise ValueError("it cannot be decompressed") from problem
    if len(data) != reference.size or not engine.eof:
        raise ValueError(f"decompressed, it does not have the {reference.size} bytes its reference says")
    return data


def laid_over(
    args: Sequence[Any], kwargs: Mapping[str, Any], stored_args: Sequence[Any], stored_kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """A message's arguments over those its reference holds, as a signature's partial arguments are:
    positional ones in front (a chain's result), keywords in place of equal ones."""
    own = {name: value for name, value in kwargs.items() if name != KEY}
    return [*args, *stored_args], {**stored_kwargs, **own}


def surely_below(values: Sequence[Any], limit: int) -> bool:
    """Is their JSON certainly shorter than *limit* bytes? ``False``: it may be, and encoding tells.

    Looks at two thousand values and at the length of texts, not into them: a few microseconds for a
    usual call.
    """
    left, looks, waiting = limit, _LOOKS, [values]
    while waiting:
        box: Any = waiting.pop()
        inside = [*box, *box.values()] if type(box) is dict else box
        looks -= len(inside)
        left -= 4 + 2 * len(inside)
        if looks < 0:
            return False
        for value in inside:
            kind = type(value)
            if kind is str:
                left -= (_ESCAPED_ASCII if value.isascii() else _ESCAPED) * len(value) + 2
            elif kind is int:
                left -= value.bit_length() // 3 + 4
            elif kind is bool or value is None or kind is float:
                left -= 26
            elif kind is dict or kind is list or kind is tuple:
                waiting.append(value)
            elif kind in _BOUNDED:
                left -= 120
            elif kind is bytes:
                left -= _ESCAPED_ASCII * len(value) + 60
            else:
                return False
        if left <= 0:
            return False
    return True


def references_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every reference in decoded JSON, wherever it lies."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            found = one.get(KEY)
            if isinstance(found, Mapping):
                yield found
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
