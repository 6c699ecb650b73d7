"""Keys and fingerprints: the same for one piece of work however it is called, another one for any other work."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import timeit
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from celery_hardened.errors import ConfigurationError, UnusableKeyError
from celery_hardened.key import BusinessKey, bind, fingerprint
from celery_hardened.serialized import plain
from tests.unit.test_canonical import SECRET, Money, lookalikes, one_to_one, scalars, sent, values

TASK = "shop.job"


def job(a: Any, b: Any = 2, *, c: Any = None) -> None:
    """The task of most tests."""


def spread(*rows: Any, **options: Any) -> None:
    """Takes anything."""


def taken(key: BusinessKey, run: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    return key.digest(TASK, bind(TASK, run, args, kwargs), plain)


def of_all(*args: Any, **kwargs: Any) -> str:
    """The key of a call of ``job``, made of all its arguments."""
    return taken(BusinessKey.of(job), job, *args, **kwargs)


def of_any(*args: Any, **kwargs: Any) -> str:
    return taken(BusinessKey.of(spread), spread, *args, **kwargs)


class SameText:
    """As two models with an equal ``__str__``."""

    def __str__(self) -> str:
        return "the same"

    __repr__ = __str__


# --- what other packages get wrong ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(of_all(1, 3), of_all(a=1, b=3), id="positional or keyword"),
        pytest.param(of_all(1), of_all(1, 2), id="default omitted"),
        pytest.param(of_all(a=1, b=3, c=4), of_all(c=4, b=3, a=1), id="order of keywords"),
        pytest.param(of_all({"x": 1, "y": {"p": 1}}), of_all({"y": {"p": 1}, "x": 1}), id="order in dicts"),
        pytest.param(of_all((1, 2)), of_all([1, 2]), id="tuple or list"),
    ],
)  # fmt: skip
def test_one_work_has_one_key(one: str, other: str) -> None:
    assert one == other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(of_all(1), of_all("1"), id="int or text"),
        pytest.param(of_all(None), of_all("None"), id="None or text"),
        pytest.param(of_all(1), of_all(True), id="int or bool"),
        pytest.param(of_all(1), of_all(1.0), id="int or float"),
        pytest.param(of_all("1_b-2", 3), of_all("1", "2_b-3"), id="separators"),
        pytest.param(of_all("a,b", "c"), of_all("a", "b,c"), id="commas"),
        pytest.param(of_any(1, 2), of_any([1, 2]), id="one row or two"),
        pytest.param(of_any(b=1), of_any({"b": 1}), id="option or dict"),
    ],
)
def test_other_work_has_another_key(one: str, other: str) -> None:
    assert one != other


def test_every_type_that_celery_can_send_is_keyed() -> None:
    """UUIDs, datetimes, Decimals and bytes need no encoder of the user's."""
    for value in (uuid.UUID(int=1), datetime(2026, 1, 1, tzinfo=timezone.utc), Decimal("1.5"), b"\xff", {"a": [()]}):
        assert of_all(value) == of_all(sent(value))


def test_lists_of_text_are_one_before_and_after_the_message() -> None:
    """A list of a str subclass in a keyword has the key that the worker computes."""

    class Name(str):
        def __repr__(self) -> str:
            return f"Name({str(self)!r})"

    assert of_all(1, c=[Name("x")]) == of_all(1, c=["x"]) == of_all(1, c=sent([Name("x")]))


def test_objects_with_one_text_are_refused_not_confused() -> None:
    """Two objects with an equal ``str`` are no key, instead of one."""
    with pytest.raises(UnusableKeyError, match="argument 'a': a SameText"):
        of_all(SameText())


def test_a_bound_task_has_one_key_in_every_process(app: Celery) -> None:
    """``self`` is no part of the key, and neither are addresses or the hash seed: two processes agree."""

    @app.task(bind=True, name=TASK)
    def job(self: Any, a: Any, b: Any = 2) -> None: ...

    key = BusinessKey.of(job.run.__func__, "a")
    here = taken(key, job.run, {"x", "y", "z"})
    assert here == taken(key, job.run, a={"z", "y", "x"}, b=7)
    code = (
        "from celery_hardened.key import BusinessKey\n"
        "def job(self, a, b=2): ...\n"
        f"print(BusinessKey.of(job, 'a').digest({TASK!r}, {{'a': {{'x', 'y', 'z'}}, 'b': 2}}))"
    )
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        there = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert there.stdout.strip() == here


def test_keys_by_function() -> None:
    """A callable sees the call with defaults applied; empty lists are as good as others."""
    key = BusinessKey.of(job, key=lambda a, b, *, c: (a["id"], b))
    assert taken(key, job, {"id": [], "note": "x"}) == taken(key, job, b=2, a={"note": "y", "id": []}, c=9)
    assert taken(key, job, {"id": []}) != taken(key, job, {"id": None})
    rows = BusinessKey.of(spread, key=lambda *rows, **options: [len(rows), options.get("kind")])
    assert taken(rows, spread, 1, 2, kind="a", x=1) == taken(rows, spread, 3, 4, kind="a")
    assert taken(rows, spread, 1, 2) != taken(rows, spread, 1, kind="a")


# --- templates, names, versions ------------------------------------------------------------------


def test_templates_hash_typed_values() -> None:
    """A template's fields keep their types and their borders, and are looked up in dicts and objects."""
    key = BusinessKey.of(job, key="job:{a}:{b}")
    assert taken(key, job, "x:y", "z") != taken(key, job, "x", "y:z")
    assert taken(key, job, 1, 2) != taken(key, job, "1", "2")
    assert taken(key, job, 1) == taken(key, job, b=2, a=1, c="not in it")
    inner = BusinessKey.of(job, key="{a[order][id]}/{b.year}/{{literal}}")
    assert taken(inner, job, {"order": {"id": 7}}, datetime(2026, 5, 1, tzinfo=timezone.utc)) == taken(
        inner, job, {"order": {"id": 7}, "x": 1}, datetime(2026, 6, 1, tzinfo=timezone.utc)
    )
    other = BusinessKey.of(job, key="other:{a}:{b}")
    assert taken(other, job, 1, 2) != taken(key, job, 1, 2)


def test_names_have_no_order_and_nothing_else_counts() -> None:
    """What is not named may differ; a version, or another task, is another key."""
    key = BusinessKey.of(job, "a", "b")
    assert taken(key, job, 1, 2, c=3) == taken(BusinessKey.of(job, "b", "a"), job, 1, 2, c=4)
    assert taken(key, job, 1, 2) != taken(key, job, 2, 1)
    assert taken(key, job, 1, 2) != taken(BusinessKey.of(job, "a", "b", version=2), job, 1, 2)
    bound = bind(TASK, job, (1, 2), {})
    assert key.digest(TASK, bound) != key.digest("shop.other", bound)


def test_a_key_shows_no_argument() -> None:
    """Task and version are readable, arguments are not; the form of keys in use must not change."""
    text = taken(BusinessKey.of(job, "a"), job, SECRET)
    hashed, compared = (
        sha256((text % SECRET).encode()).hexdigest()[:32] for text in ('{"a":"%s"}', '{"a":"%s","b":2,"c":null}')
    )
    assert text == f"{TASK}:1:{hashed}"
    assert fingerprint(TASK, bind(TASK, job, (SECRET,), {}), plain) == compared


@pytest.mark.parametrize(
    ("names", "options", "problem"),
    [
        (("x",), {}, "has no parameter 'x'; it has a, b, c"),
        (("a", "a"), {}, "the same parameter is named twice"),
        ((job,), {}, "and this is a function"),
        (("a",), {"key": "{a}"}, "not both"),
        ((), {"key": ""}, "has no field"),
        ((), {"key": "a"}, "has no field"),
        ((), {"key": "{{a}}"}, "has no field"),
        ((), {"key": "{}"}, "has no parameter ''"),
        ((), {"key": "{0}"}, "has no parameter '0'"),
        ((), {"key": "{x[a]}"}, "has no parameter 'x'"),
        ((), {"key": "{a"}, "cannot be read"),
        ((), {"key": "{a!r}"}, "has no '!' and no ':'"),
        ((), {"key": "{a:>8}"}, "has no '!' and no ':'"),
        ((), {"key": 5}, "a text with fields or a function, not a int"),
        ((), {"version": 0}, "a whole number from 1 on, not 0"),
        ((), {"version": True}, "a whole number from 1 on, not True"),
        ((), {"version": "2"}, "a whole number from 1 on, not '2'"),
    ],
)
def test_a_wrong_key_is_refused_where_it_is_written(names: Any, options: Any, problem: str) -> None:
    """Each mistake is an error of the decoration, and names the function."""
    with pytest.raises(ConfigurationError) as refused:
        BusinessKey.of(job, *names, **options)
    assert problem in str(refused.value)
    assert str(refused.value).startswith("job")


def test_self_is_no_part_of_a_key() -> None:
    def bound(self: Any, a: Any) -> None: ...

    for options in ({"names": ["self"]}, {"key": "{self.request.id}"}):
        with pytest.raises(ConfigurationError, match=r"has no parameter 'self'.*; it has a$"):
            BusinessKey.of(bound, *options.get("names", ()), key=options.get("key"))  # type: ignore[arg-type]


# --- refused calls -------------------------------------------------------------------------------


def raising(a: Any, b: Any, *, c: Any) -> Any:
    raise KeyError(a)


@pytest.mark.parametrize(
    ("key", "args", "kwargs", "problem"),
    [
        (BusinessKey.of(job), (), {"b": SECRET}, "missing a required argument: 'a'"),
        (BusinessKey.of(job), (SECRET,) * 4, {}, "too many positional arguments"),
        (BusinessKey.of(job), (SECRET,), {"a": SECRET}, "multiple values for argument 'a'"),
        (BusinessKey.of(job), (SECRET,), {"x": SECRET}, "got an unexpected keyword argument 'x'"),
        (BusinessKey.of(job), ([SECRET, {SECRET: SameText()}],), {}, "argument 'a', item 1, entry 0: a SameText"),
        (BusinessKey.of(job, "b"), (SECRET, float("nan")), {}, "argument 'b': a float that is no finite number"),
        (BusinessKey.of(job, key="{a.id}"), (SECRET,), {}, "{a.id} cannot be looked up (AttributeError)"),
        (BusinessKey.of(job, key="{a[id]}"), ({SECRET: 1},), {}, "{a[id]} cannot be looked up (KeyError)"),
        (BusinessKey.of(job, key="{a[id]}"), ({"id": [Money(SECRET)]},), {}, "{a[id]}, item 0: a Money"),
        (BusinessKey.of(job, key=raising), (SECRET,), {}, "its key= function raised KeyError in test_key.py, line "),
        (BusinessKey.of(job, key=lambda *_, **__: None), (SECRET,), {}, "its key= function returned None"),
        (BusinessKey.of(job, key=lambda a, **_: a), (SECRET,), {}, "its key= function raised TypeError"),
        (BusinessKey.of(job, key=lambda *_, **__: [float("nan")]), (1,), {}, "what its key= function returned, item 0"),
    ],
)  # fmt: skip
def test_a_call_without_a_key_is_refused(key: BusinessKey, args: Any, kwargs: Any, problem: str) -> None:
    """The error says which argument and why; no value of any argument is in it or in an error it came from."""
    with pytest.raises(UnusableKeyError) as refused:
        taken(key, job, *args, **kwargs)
    error = refused.value
    assert error.task == TASK
    assert error.problem.startswith(problem)
    assert SECRET not in str(error) + repr(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_a_fingerprint_needs_every_argument() -> None:
    """What is no part of the key is compared all the same, and the error says how to leave that out."""
    bound = bind(TASK, job, (1, SameText()), {})
    assert BusinessKey.of(job, "a").digest(TASK, bound, plain)
    with pytest.raises(UnusableKeyError) as refused:
        fingerprint(TASK, bound, plain)
    assert "argument 'b': a SameText" in refused.value.problem
    assert "compare_arguments=False" in refused.value.problem


# --- properties ----------------------------------------------------------------------------------


def shop(order: Any, amount: Any = 1, /, note: Any = "", *more: Any, kind: Any = None, **options: Any) -> None:
    """Every kind of parameter."""


NAMED = [
    BusinessKey.of(shop),
    BusinessKey.of(shop, "order", "kind"),
    BusinessKey.of(shop, key="shop:{order}:{kind}:{options}"),
    BusinessKey.of(shop, key=lambda order, *args, **kwargs: [order, args, kwargs]),
]


@given(
    st.lists(values, min_size=1, max_size=5),
    st.dictionaries(st.sampled_from(["kind", "x", "y", "z"]), scalars),
    st.randoms(),
)
def test_one_key_across_messages_and_spellings(args: list[Any], kwargs: dict[str, Any], dice: random.Random) -> None:
    """A message, another order of keywords, and written-out defaults change neither key nor fingerprint."""
    shuffled = list(kwargs.items())
    dice.shuffle(shuffled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kombu_json._encoders, Money, ("money", lambda money: money.amount))
        patch.setitem(kombu_json._decoders, "money", Money)
        written_out = [*args, *[1, ""][len(args) - 1 :]]
        calls = [(args, kwargs), tuple(sent([args, dict(shuffled)])), (written_out, {"kind": None, **kwargs})]
        if len(args) == 3:
            calls.append((args[:2], {**dict(shuffled), "note": args[2]}))
        bound = [bind(TASK, shop, args, kwargs) for args, kwargs in calls]
        for key in NAMED:
            assert len({key.digest(TASK, one, plain) for one in bound}) == 1
        assert len({fingerprint(TASK, one, plain) for one in bound}) == 1


def test_no_two_calls_share_a_key() -> None:
    """Two calls have one key exactly when their arguments are equal in type and value, for every pair of 50,000."""
    dice = random.Random(12)
    template, named = BusinessKey.of(job, key="{a}:{b}:{c}"), BusinessKey.of(job, "a", "b", "c")
    calls = [sent([lookalikes(dice, 1), lookalikes(dice, 2), lookalikes(dice, 3)]) for _ in range(50_000)]
    for key in (template, named):
        bound = ((call, {"a": call[0], "b": call[1], "c": call[2]}) for call in calls)
        assert one_to_one((call, key.digest(TASK, one, plain)) for call, one in bound) > 20_000


def test_a_key_costs_little() -> None:
    """Key and fingerprint of a small call take about 13 µs; thirty times that is allowed here."""
    key = BusinessKey.of(job, "a")
    args, kwargs = (str(uuid.uuid4()), Decimal("10.50")), {"c": "note"}

    def once() -> None:
        bound = bind(TASK, job, args, kwargs)
        key.digest(TASK, bound, plain)
        fingerprint(TASK, bound, plain)

    once()
    # By the processor's time of this thread: what others on a busy machine take is not its cost.
    assert min(timeit.repeat(once, timer=time.thread_time, number=200, repeat=10)) / 200 < 400e-6
