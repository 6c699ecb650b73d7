"""The one text that equal values have, whatever serializer they went through; typed, and pure.

JSON of a strict kind: no spaces, keys sorted, ASCII. What JSON cannot tell apart is tagged the way
kombu tags it, ``{"__type__":"uuid","__value__":"…"}``. A dict of just these two keys is what kombu
makes of another value, and reads as that value, so no plain argument can look like a tagged one.

Holds for every value that kombu's JSON carries: the text before the message is the text after it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any, TypeAlias
from uuid import UUID

#: Levels of lists, sets and dicts within each other.
DEPTH_MAX = 64

#: Characters of one text. Twice what may be stored of arguments by default, because bytes take two for one.
LENGTH_MAX = 128 * 1024 * 1024

#: Turns a value of a type not known here into lists, dicts, text and numbers, or raises anything.
Otherwise: TypeAlias = "Callable[[Any], Any]"

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def canonical(value: Any, *, otherwise: Otherwise | None = None, place: str = "") -> str:
    """The text of *value*: equal for equal values of one type, and for no others.

    A bool, an int, a float, a text and None are five things; a tuple is a list; a set has no order and
    is no list; a dict has no order, and its keys are what JSON makes of them; an aware datetime or time is
    its instant; a Decimal is its number (``1.0`` is ``1.00``); an Enum is its value; a subclass is its base.

    Args:
        otherwise: Asked once for each value of a type not listed above. See ``serialized.plain``.
        place: What the value is to the caller, "argument 'order'"; for the error.

    Raises:
        ValueError: The value has no such text. Says where and which type, never what the value is.
    """
    try:
        return _Writer(otherwise).text(value, 0)
    except _RefusedError as refused:
        places, what = refused.places, refused.what
    except RecursionError:
        places, what = [], "nested too deeply"
    # Raised out here, so that no error with the value in its text is its context.
    where = ", ".join(filter(None, [place, *reversed(places)]))
    raise ValueError(f"{where}: {what}" if where else what)


class _RefusedError(Exception):
    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.places: list[str] = []
        """Innermost first."""


class _Writer:
    """One text in the making."""

    __slots__ = ("_left", "_otherwise")

    def __init__(self, otherwise: Otherwise | None) -> None:
        self._otherwise = otherwise
        self._left = LENGTH_MAX

    def text(self, value: Any, depth: int) -> str:
        kind = type(value)
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return self._counted(scalar(value))
        if kind is dict:
            return self._dict(value, depth)
        if kind is list or kind is tuple:
            return f"[{','.join(self._items(value, depth))}]"
        return self._rare(value, depth)

    def _rare(self, value: Any, depth: int) -> str:
        """Subclasses and unknown types, in the order in which kombu's JSON tries them.

        By the type itself: a proxy claims the class of what it stands for, and JSON does not believe it.
        """
        kind = type(value)
        for base in _NATIVE:
            if issubclass(kind, base):
                return self._counted(_SCALARS[base](value))
        if issubclass(kind, (list, tuple)):
            return f"[{','.join(self._items(value, depth))}]"
        if issubclass(kind, dict):
            return self._dict(value, depth)
        if not hasattr(kind, "__json__"):
            for base in _TAGGED:
                if issubclass(kind, base):
                    return self._counted(_SCALARS[base](value))
            if issubclass(kind, (set, frozenset)):
                return self._set(value, depth)
            if issubclass(kind, Enum):
                return self.text(value.value, depth + 1)
        return self._unknown(value, depth)

    def _items(self, values: Iterable[Any], depth: int) -> list[str]:
        if depth >= DEPTH_MAX:
            raise _RefusedError(f"nested more than {DEPTH_MAX} levels deep")
        texts: list[str] = []
        try:
            for value in values:
                texts.append(self.text(value, depth + 1))
        except _RefusedError as refused:
            refused.places.append(f"item {len(texts)}")
            raise
        self._count(len(texts) + 2)
        return texts

    def _set(self, values: Iterable[Any], depth: int) -> str:
        return _tagged("set", f"[{','.join(sorted(set(self._items(values, depth))))}]")

    def _dict(self, value: dict[Any, Any], depth: int) -> str:
        if len(value) == 2 and "__type__" in value and "__value__" in value:
            return self._marked(value["__type__"], value["__value__"], depth)
        if depth >= DEPTH_MAX:
            raise _RefusedError(f"nested more than {DEPTH_MAX} levels deep")
        texts: dict[str, str] = {}
        try:
            for key, item in value.items():
                name = key if type(key) is str else _key(key)
                if name in texts:
                    raise _RefusedError("a key that JSON makes equal to an earlier one")
                texts[name] = self.text(item, depth + 1)
        except _RefusedError as refused:
            # Keys are data too: an entry is named by its place.
            refused.places.append(f"entry {len(texts)}")
            raise
        names = sorted(texts)
        return f"{{{','.join([f'{self._counted(encode_basestring_ascii(name))}:{texts[name]}' for name in names])}}}"

    def _marked(self, marker: Any, inner: Any, depth: int) -> str:
        """A dict that kombu takes for a tagged value."""
        if type(marker) is not str:
            raise _RefusedError("a dict with a __type__ that is no text")
        if marker == "set" and type(inner) is list:
            return self._set(inner, depth)
        decode = _DECODERS.get(marker)
        if decode is None:
            # A type the project registered with kombu.
            if depth >= DEPTH_MAX:
                raise _RefusedError(f"nested more than {DEPTH_MAX} levels deep")
            return _tagged(marker, self.text(inner, depth + 1))
        try:
            decoded = decode(inner)
        except Exception:  # noqa: BLE001 - whatever a forged value makes of a decoder
            decoded = None
        if decoded is None:
            raise _RefusedError(f"a dict that says it is a {marker} and is none")
        return self.text(decoded, depth)

    def _unknown(self, value: Any, depth: int) -> str:
        refused = _RefusedError(f"a {type(value).__name__}")
        otherwise, self._otherwise = self._otherwise, None
        if otherwise is None:
            raise refused
        try:
            plain = otherwise(value)
        except Exception:  # noqa: BLE001 - kombu's text would show the value
            plain = refused
        if plain is refused:
            raise refused
        try:
            return self.text(plain, depth)
        finally:
            self._otherwise = otherwise

    def _counted(self, text: str) -> str:
        self._count(len(text))
        return text

    def _count(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise _RefusedError(f"longer than {LENGTH_MAX} characters as text")


def _tagged(marker: str, text: str) -> str:
    return f'{{"__type__":{encode_basestring_ascii(marker)},"__value__":{text}}}'


def _int(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:
        raise _RefusedError("an integer with more digits than Python writes") from None


def _float(value: float) -> str:
    if not isfinite(value):
        raise _RefusedError("a float that is no finite number")
    return float.__repr__(value + 0.0)  # one zero: -0.0 + 0.0 is 0.0


def _key(key: Any) -> str:
    """The text that JSON makes of a dict's key."""
    if key is True:
        return "true"
    if key is False:
        return "false"
    if key is None:
        return "null"
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int):
        return _int(key)
    if isinstance(key, float) and isfinite(key):
        return float.__repr__(key)
    raise _RefusedError(f"a key that is a {type(key).__name__}")


def _decimal(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise _RefusedError("a Decimal that is no finite number")
    number = "".join(map(str, digits)).lstrip("0")
    short = number.rstrip("0")
    if not short:
        return _tagged("decimal", '"0"')
    return _tagged("decimal", f'"{"-" if sign else ""}{short}e{exponent + len(number) - len(short)}"')


def _datetime(value: datetime) -> str:
    try:
        aware = value.utcoffset() is not None
        since = value - _EPOCH if aware else None
    except Exception:  # noqa: BLE001 - a time zone of the user's own
        raise _RefusedError("a datetime whose time zone fails") from None
    return _tagged("datetime", f'"{datetime.isoformat(value)}"' if since is None else _microseconds(since))


def _time(value: time) -> str:
    try:
        offset = value.utcoffset()
    except Exception:  # noqa: BLE001 - as above
        raise _RefusedError("a time whose time zone fails") from None
    if offset is None:
        return _tagged("time", f'"{time.isoformat(value.replace(tzinfo=None))}"')
    since = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    return _tagged("time", _microseconds(since - offset))


def _microseconds(since: timedelta) -> str:
    return str((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _bytes(value: bytes | bytearray) -> str:
    return _tagged("bytes", f'"{value.hex()}"')


_SCALARS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring_ascii,
    int: _int,
    float: _float,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
    datetime: _datetime,
    date: lambda value: _tagged("date", f'"{date.isoformat(value)}"'),
    time: _time,
    Decimal: _decimal,
    UUID: lambda value: _tagged("uuid", f'"{value.hex}"'),
    bytes: _bytes,
    bytearray: _bytes,
}

#: What JSON has itself, whatever a subclass adds to it.
_NATIVE: tuple[type, ...] = (str, int, float)

#: What has a tag; a datetime is also a date.
_TAGGED: tuple[type, ...] = (datetime, date, time, Decimal, UUID, bytes, bytearray)

#: kombu's own.
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda text: text.encode(),
    "base64": lambda text: base64.b64decode(text.encode()),
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda fields: UUID(**fields),
}
