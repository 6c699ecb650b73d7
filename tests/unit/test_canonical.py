"""The canonical text: equal for equal values, before and after the serializer; different for all others."""

from __future__ import annotations

import random
import uuid
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from celery_hardened import canonical as module
from celery_hardened.canonical import DEPTH_MAX, canonical
from celery_hardened.serialized import plain

SECRET = "4111-1111-1111-1111"
UTC = timezone.utc
PLUS_TWO = timezone(timedelta(hours=2))
NOON = datetime.fromisoformat("2026-03-01T12:00")
FAR_EAST = timezone(timedelta(hours=14))


class Colour(str, Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Kind(Enum):
    PAPER = "paper"


class Text(str):
    def __str__(self) -> str:
        return "not what JSON writes"

    __repr__ = __str__


Point = namedtuple("Point", "x y")


class Stamp(datetime):
    """As pandas and pendulum have one."""


class Ordered:
    """What kombu's JSON takes by ``__json__``."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __json__(self) -> dict[str, Any]:
        return {"number": self.number, "at": NOON, "parts": (1, 2)}


class Money:
    """What kombu's JSON takes once it is registered; equal amounts are not the same object."""

    def __init__(self, amount: str) -> None:
        self.amount = amount


class Failing(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        raise RuntimeError(SECRET)


def sent(value: Any) -> Any:
    """*value* after a message."""
    return kombu_json.loads(kombu_json.dumps(value))


@pytest.fixture
def money(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Money`` is registered with kombu, as a project would do it."""
    monkeypatch.setitem(kombu_json._encoders, Money, ("money", lambda money: [Decimal(money.amount), "EUR"]))
    monkeypatch.setitem(kombu_json._decoders, "money", lambda fields: Money(str(fields[0])))


DIFFERENT: list[Any] = [
    *(None, True, False, 1, 0, -1, 1.0, 0.0, 1.5, "1", "1.0", "True", "true", "None", "null", "", "0"),
    *([], {}, set(), [1], ["1"], [[1]], [1, 1], {1}, {"1"}, {"1": 1}, {"1": "1"}, {"1": [1]}, "[1]", '{"1":1}'),
    *([None], [[]], [{}], {"": None}, {"a": {}}, ["a", "b"], ["a,b"], ['a","b'], "a,b"),
    *(b"1", b"", b"\xff", Decimal(1), Decimal("1.5"), Decimal("-1"), Decimal("1e30"), 10**30, 1e30, "1e30"),
    *(uuid.UUID(int=1), str(uuid.UUID(int=1)), uuid.UUID(int=1).hex, uuid.UUID(int=1).bytes),
    *(NOON, NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=PLUS_TWO), NOON.isoformat(), NOON.replace(microsecond=1)),
    *(NOON.date(), NOON.date().isoformat(), NOON.time(), NOON.timetz().replace(tzinfo=UTC), "12:00:00", 43_200_000_000),
    *({"uuid": "1"}, ["uuid", "1"], "ä", "a\u0308", "\ud800", "\x00", {"a": 1, "b": 2}, {"a": 2, "b": 1}),
    *({"__type__": "uuid"}, {"__type__": "uuid", "__value__": 1, "more": 1}, ["set", [1]], {1, 2}, [1, 2], [2, 1]),
]


def test_what_differs_has_another_text() -> None:
    """No two of these lookalikes share a text."""
    texts = [canonical(value) for value in DIFFERENT]
    assert [text for text, times in Counter(texts).items() if times > 1] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, [2, (3,)]), [1, (2, [3])]),
        (Point(1, 2), [1, 2]),
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (defaultdict(list, a=[]), {"a": []}),
        ({2: "a", 10: "b"}, {"10": "b", "2": "a"}),
        ({None: 1}, {"null": 1}),
        ({True: 1}, {"true": 1}),
        ({1.0: 1}, {"1.0": 1}),
        ({Colour.RED: 1}, {"red": 1}),
        ({Size.SMALL: 1}, {"1": 1}),
        ({3, 1, 2}, frozenset([2, 3, 1])),
        ({"a", 1, None, (1, 2)}, frozenset([(1, 2), None, 1, "a"])),
        (0.0, -0.0),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("100"), Decimal("1e2")),
        (Decimal("-0.00"), Decimal(0)),
        (Decimal("0.10"), Decimal((0, (0, 1, 0, 0), -3))),
        (bytearray(b"ab"), b"ab"),
        (NOON.replace(tzinfo=PLUS_TWO), NOON.replace(hour=10, tzinfo=UTC)),
        (NOON.replace(tzinfo=ZoneInfo("Europe/Berlin")), NOON.replace(hour=11, tzinfo=UTC)),
        (NOON.replace(fold=1), NOON),
        (Stamp(2026, 3, 1, 12), NOON),
        (NOON.timetz().replace(tzinfo=PLUS_TWO), time(10, tzinfo=UTC)),
        # Earlier than any UTC time that Python can write.
        (datetime.min.replace(tzinfo=FAR_EAST), datetime.min.replace(hour=1, tzinfo=timezone(timedelta(hours=15)))),
        (Colour.RED, "red"),
        (Size.SMALL, 1),
        (Kind.PAPER, "paper"),
        (Text("a"), "a"),
        ({"__type__": "uuid", "__value__": {"hex": "0" * 31 + "1"}}, uuid.UUID(int=1)),
        ({"__type__": "base64", "__value__": "/w=="}, b"\xff"),
        ({"__type__": "decimal", "__value__": "1.50"}, Decimal("1.5")),
        ({"__type__": "date", "__value__": "2026-03-01"}, date(2026, 3, 1)),
        ({"__type__": "set", "__value__": [2, 1, 1]}, {1, 2}),
    ],
)  # fmt: skip
def test_what_is_equal_has_one_text(one: Any, other: Any) -> None:
    assert canonical(one) == canonical(other)


# --- the serializer ------------------------------------------------------------------------------

finite = st.floats(allow_nan=False, allow_infinity=False)
zones = st.none() | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    finite,
    st.text(st.characters(), max_size=20),
    st.binary(max_size=20),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(timezones=zones),
    st.sampled_from([Colour.RED, Size.SMALL, Text("x"), Stamp(2026, 1, 1)]),
    st.integers().map(Ordered),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        # Keys that JSON makes equal are refused: one kind in a dict.
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.dictionaries(st.integers(), inner, max_size=3),
        st.dictionaries(finite, inner, max_size=2),
        st.dictionaries(st.sampled_from([None, True, False, Size.SMALL.name, Colour.RED]), inner, max_size=3),
        st.builds(lambda marker, value: {"__type__": marker, "__value__": value}, st.just("money"), inner),
    ),
    max_leaves=12,
)


@given(values)
def test_the_serializer_changes_no_text(value: Any) -> None:
    """The text of whatever kombu's JSON carries is the same before and after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kombu_json._encoders, Money, ("money", lambda money: money.amount))
        patch.setitem(kombu_json._decoders, "money", Money)
        assert canonical(sent(value), otherwise=plain) == canonical(value, otherwise=plain)


def test_a_type_of_the_project_is_keyed_by_its_own_form(money: None) -> None:
    """Registered with kombu or with ``__json__``: what can be sent can be keyed, and comes back as the same key."""
    for value in (Money("1.50"), [Ordered(3)], {"of": (Money("2"), Ordered(1))}):
        assert canonical(sent(value), otherwise=plain) == canonical(value, otherwise=plain)
    assert canonical(Money("1.50"), otherwise=plain) == canonical(Money("1.5"), otherwise=plain)
    assert canonical(Money("1.50"), otherwise=plain) != canonical(Money("2"), otherwise=plain)
    assert canonical(Money("1"), otherwise=plain) != canonical([Decimal(1), "EUR"])


def test_otherwise_is_asked_once() -> None:
    """What still is unknown then is refused, so a form that leads back to itself ends."""
    asked: list[Any] = []

    def itself(value: Any) -> Any:
        asked.append(value)
        return [value]

    with pytest.raises(ValueError, match=r"^item 0, item 0: a Money$"):
        canonical([Money("1")], otherwise=itself)
    assert len(asked) == 1


def lookalikes(dice: random.Random, depth: int = 0) -> Any:
    """A small value; many of them are easily mistaken for each other."""
    if depth < 3 and dice.random() < 0.45:
        items = [lookalikes(dice, depth + 1) for _ in range(dice.randrange(4))]
        if dice.random() < 0.6:
            return items
        return dict(zip(dice.sample(["a", "b", "1", "true", "a,b", "", "__type__"], len(items)), items, strict=True))
    return dice.choice(
        [
            *(None, True, False, 0, 1, 2, 10, 1.0, 0.0, 10.0, "", "1", "1.0", "true", "None", "null", "a", "a,b"),
            *("_b-2", "[]", "{}", '"', "\\", b"1", b"", Decimal(1), Decimal("1.0"), Decimal(10), uuid.UUID(int=1)),
            *(uuid.UUID(int=1).hex, NOON, NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=PLUS_TWO), NOON.date()),
            *(NOON.isoformat(), NOON.time(), dice.randrange(10**6), str(dice.randrange(10**6))),
        ]
    )


def shape(value: Any) -> Any:
    """Python's own equality, with the type beside each value."""
    if isinstance(value, list):
        return ("list", *map(shape, value))
    if isinstance(value, dict):
        return ("dict", frozenset((key, shape(item)) for key, item in value.items()))
    kind = type(value).__name__
    naive = isinstance(value, datetime) and value.tzinfo is None
    return (f"naive {kind}" if naive else kind, value)


def one_to_one(pairs: Iterator[tuple[Any, str]]) -> int:
    """How many different shapes there were; each has one text, and each text one shape."""
    text_of: dict[Any, str] = {}
    shape_of: dict[str, Any] = {}
    for value, text in pairs:
        tagged = shape(value)
        assert text_of.setdefault(tagged, text) == text, f"two texts for {tagged}"
        assert shape_of.setdefault(text, tagged) == tagged, f"{text} for {tagged} and {shape_of[text]}"
    return len(text_of)


def test_no_collision_among_a_hundred_thousand() -> None:
    """Texts are equal exactly where Python and the types say so, for every pair of 100,000 values from messages."""
    dice = random.Random(4)
    arrived = (sent(lookalikes(dice)) for _ in range(100_000))
    assert one_to_one((value, canonical(value)) for value in arrived) > 20_000


# --- refusals ------------------------------------------------------------------------------------


def circle() -> list[Any]:
    inner: list[Any] = [SECRET]
    inner.append(inner)
    return inner


REFUSED: list[tuple[Any, str]] = [
    (Money(SECRET), "a Money"),
    ([1, {SECRET: [Money(SECRET)]}], "item 1, entry 0, item 0: a Money"),
    (float("nan"), "a float that is no finite number"),
    ([float("inf")], "item 0: a float that is no finite number"),
    (Decimal("NaN"), "a Decimal that is no finite number"),
    (Decimal("-Infinity"), "a Decimal that is no finite number"),
    ({1: SECRET, "1": SECRET}, "entry 1: a key that JSON makes equal to an earlier one"),
    ({SECRET: 1, (SECRET,): 2}, "entry 1: a key that is a tuple"),
    ({float("nan"): 1}, "entry 0: a key that is a float"),
    ({Kind.PAPER: 1}, "entry 0: a key that is a Kind"),
    (10**5000, "an integer with more digits than Python writes"),
    (circle(), ", ".join(["item 1"] * DEPTH_MAX) + f": nested more than {DEPTH_MAX} levels deep"),
    (datetime(2026, 1, 1, tzinfo=Failing()), "a datetime whose time zone fails"),
    (time(1, tzinfo=Failing()), "a time whose time zone fails"),
    ({"__type__": "uuid", "__value__": SECRET}, "a dict that says it is a uuid and is none"),
    ({"__type__": 5, "__value__": SECRET}, "a dict with a __type__ that is no text"),
    (iter([SECRET]), "a list_iterator"),
    (object(), "a object"),
    (lambda: SECRET, "a function"),
]


@pytest.mark.parametrize(("value", "problem"), REFUSED, ids=[problem[-40:] for _, problem in REFUSED])
def test_refusals(value: Any, problem: str) -> None:
    """What has no canonical text is refused by its place and type; neither it nor a cause shows the value."""
    for otherwise in (None, plain):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole text is compared
            canonical(value, otherwise=otherwise)
        assert str(refused.value) == problem
        assert refused.value.__cause__ is None
        assert refused.value.__context__ is None


@given(values, st.integers(0, len(REFUSED) - 1))
def test_errors_show_no_value(value: Any, which: int) -> None:
    """Wherever the bad part is, what stands around it is not in the error."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - any problem will do
        canonical({"before": SECRET, SECRET: [value, REFUSED[which][0], SECRET]}, otherwise=plain)
    assert SECRET not in repr(refused.value)


def test_a_tower_of_references_is_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty lists, each holding the one before it twice, would be 2**60 items: the length is bounded on the way."""
    monkeypatch.setattr(module, "LENGTH_MAX", 100_000)
    tower: list[Any] = []
    for _ in range(60):
        tower = [tower, tower]
    with pytest.raises(ValueError, match="longer than 100000 characters"):
        canonical(tower)
    with pytest.raises(ValueError, match="longer than 100000 characters"):
        canonical(["x" * 100_001])
    with pytest.raises(ValueError, match="longer than 100000 characters"):
        canonical({"x" * 100_001: 1})


def test_as_deep_as_allowed() -> None:
    """Sixty-four levels are keyed, one more is not; a dict counts like a list."""
    nested: Any = 1
    for level in range(DEPTH_MAX):
        nested = {"a": nested} if level % 2 else [nested]
    assert canonical(nested)
    with pytest.raises(ValueError, match="nested more than"):
        canonical([nested])
