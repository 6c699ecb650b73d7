"""References, what is made of them, and which store a URL names."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib
from dataclasses import replace
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps

from celery_hardened import ConfigurationError
from celery_hardened.claim_check.django import DjangoPayloadStore
from celery_hardened.claim_check.file import FilePayloadStore
from celery_hardened.claim_check.fsspec import FsspecPayloadStore
from celery_hardened.claim_check.memory import InMemoryPayloadStore
from celery_hardened.claim_check.once import Once
from celery_hardened.claim_check.open import open_store
from celery_hardened.claim_check.policy import KEY, Reference, laid_over, pack, references_in, surely_below, unpack
from celery_hardened.claim_check.redis import RedisPayloadStore
from celery_hardened.claim_check.signatures import held_in
from tests.support import django_project

NAME = "0123456789abcdef" * 2
MOST = 1_000_000


# --- references ---------------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=5000), st.booleans())
def test_what_is_packed_comes_back(data: bytes, shared: bool) -> None:
    """Through the JSON of a message; what is stored is never longer than the data."""
    reference, stored = pack(data, name=NAME, shared=shared)
    assert len(stored) <= len(data) == reference.size
    assert Reference.read(reference.as_dict(), most=MOST) == reference
    assert unpack(reference, stored) == data


def test_what_shrinks_is_compressed() -> None:
    reference, stored = pack(b"a" * 100_000, name=NAME)
    assert reference.zipped
    assert len(stored) < 1000


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"v": 2}, "version 1"),
        ({"v": None}, "version 1"),
        ({"name": "../../etc/passwd"}, "32 hexadecimal"),
        ({"name": None}, "32 hexadecimal"),
        ({"name": 7}, "32 hexadecimal"),
        ({"sha256": 7}, "checksum"),
        ({"sha256": None}, "checksum"),
        ({"type": ["application/json"]}, "content type"),
        ({"size": -1}, "no size"),
        ({"size": True}, "no size"),
        ({"size": "5"}, "no size"),
        ({"size": 1e3}, "no size"),
        ({"size": MOST + 1}, "hardened_payload_max is 1000000"),
        ({"size": 10**30}, "hardened_payload_max"),
    ],
    ids=repr,
)
def test_a_forged_reference_is_refused(change: dict[str, Any], problem: str) -> None:
    raw = pack(b"data", name=NAME)[0].as_dict()
    with pytest.raises(ValueError, match=problem):
        Reference.read({**raw, **change}, most=MOST)


@pytest.mark.parametrize("raw", [None, "text", 7, [], True], ids=repr)
def test_what_is_no_reference_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        Reference.read(raw, most=MOST)


@pytest.mark.parametrize("data", [b"a" * 5000, bytes(range(256))], ids=["zipped", "plain"])
def test_any_damage_is_found(data: bytes) -> None:
    """One bit, the last byte missing, one too many, nothing at all."""
    reference, stored = pack(data, name=NAME)
    flipped = stored[:10] + bytes([stored[10] ^ 1]) + stored[11:]
    for damaged in (flipped, stored[:-1], stored + b"x", b"", data * 2):
        with pytest.raises(ValueError, match=r"checksum|longer"):
            unpack(reference, damaged)


def test_a_bomb_is_not_decompressed() -> None:
    """Whoever writes the checksum may write a size that lies: no more is decompressed than it allows."""
    bomb = zlib.compress(b"\0" * 50_000_000, 9)
    size = 60_000
    assert len(bomb) < size
    forged = Reference(name=NAME, sha256=hashlib.sha256(bomb).hexdigest(), size=size, zipped=True)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="60000 bytes its reference says"):
            unpack(forged, bomb)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("stored", [b"no zlib at all", zlib.compress(b"abc" * 50)[:-6]], ids=["other", "cut"])
def test_what_cannot_be_decompressed(stored: bytes) -> None:
    forged = Reference(name=NAME, sha256=hashlib.sha256(stored).hexdigest(), size=150, zipped=True)
    with pytest.raises(ValueError, match="decompressed"):
        unpack(forged, stored)


def test_a_size_that_lies() -> None:
    """Too small, or too large."""
    for size in (99, 101):
        data = bytes(range(100))
        forged = Reference(name=NAME, sha256=hashlib.sha256(data).hexdigest(), size=size)
        with pytest.raises(ValueError, match=r"longer than the 99|100 bytes of 101"):
            unpack(forged, data)


def test_arguments_are_laid_over_as_a_signatures_are() -> None:
    """A chain's result in front, keywords instead of equal ones; an inner reference stays."""
    message: dict[str, Any] = {KEY: {"outer": 1}, "note": "new"}
    stored: dict[str, Any] = {"note": "old", "kind": "b", KEY: {"inner": 1}}
    args, kwargs = laid_over(["result"], message, ["invoice"], stored)
    assert args == ["result", "invoice"]
    assert kwargs == {"note": "new", "kind": "b", KEY: {"inner": 1}}


def test_references_are_found_wherever_they_lie() -> None:
    body = [[], {KEY: {"name": "a"}}, {"chain": [{"kwargs": {KEY: {"name": "b"}}}], "chord": None, "x": KEY}]
    assert sorted(str(found["name"]) for found in references_in(body)) == ["a", "b"]


# --- the cheap test -----------------------------------------------------------------------------------------

_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.just(timezone.utc))
    | st.dates()
    | st.times()
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.booleans(), inner) | st.tuples(inner)
    ),
    max_leaves=30,
)


@settings(max_examples=150)
@given(st.lists(_VALUES, max_size=4), st.dictionaries(st.text(), _VALUES, max_size=4), st.integers(1, 3000))
def test_what_is_surely_below_is_below(args: list[Any], kwargs: dict[str, Any], limit: int) -> None:
    """Never the other way: a large call that is taken for small would go to the broker."""
    if surely_below((args, kwargs), limit):
        assert len(dumps([args, kwargs])) < limit


@pytest.mark.parametrize(
    "value",
    ["\0" * 30_000, "€" * 15_000, "\N{PILE OF POO}" * 12_000, b"\xff" * 100_000, b"a" * 131_072, 10**140_000],
    ids=["controls", "euros", "astral", "binary", "bytes", "integer"],
)
def test_expensive_characters_are_not_small(value: Any) -> None:
    """They take six or twelve bytes each in JSON."""
    assert not surely_below(([value], {}), 131_072)
    assert not surely_below(([], {"text": [value]}), 131_072)


def test_usual_arguments_are_small() -> None:
    args = [17, "order-4711", UUID(int=5), datetime(2026, 1, 1, tzinfo=timezone.utc), date(2026, 1, 1), time(12)]
    kwargs = {"note": "x" * 2000, "lines": [{"sku": "a", "count": 3, "price": 1.5}] * 20, "flag": True, "none": None}
    assert surely_below((args, kwargs), 131_072)


@pytest.mark.parametrize("value", [Decimal(1), object(), {1, 2}, range(3)], ids=["decimal", "object", "set", "range"])
def test_what_is_not_known_is_encoded(value: object) -> None:
    assert not surely_below(([value], {}), 131_072)


def test_many_values_are_encoded() -> None:
    """Encoding them is then cheaper than looking at each."""
    assert not surely_below(([[1] * 3000], {}), 131_072)


# --- signatures ---------------------------------------------------------------------------------------------


def test_every_signature_is_looked_at() -> None:
    """In callbacks, errbacks, the rest of a chain, a chord's body, and in groups and chains inside them."""
    seen: list[tuple[str, bool]] = []

    def stash(signature: Any, *, shared: bool) -> Any:
        seen.append((signature["task"], shared))
        return (), {"ref": signature["task"]}

    def sig(name: str, **options: Any) -> dict[str, Any]:
        return {"task": name, "args": ["large"], "kwargs": {"a": 1}, "options": options}

    inner = {
        "task": "celery.chord",
        "args": [],
        "kwargs": {
            "header": {"task": "celery.group", "args": [], "kwargs": {"tasks": [sig("g1"), sig("g2")]}, "options": {}},
            "body": sig("body", link_error=[sig("body-errback")]),
        },
        "options": {},
    }
    options = {
        "link": sig("callback"),
        "link_error": [sig("errback", link=[sig("after-errback")])],
        "chain": [sig("last"), inner, sig("second", task_id="t2")],
        "chord": sig("chord-body"),
        "queue": "q",
    }
    before = repr(options)
    new = held_in(options, stash)
    assert repr(options) == before, "the caller's own signatures must not change"
    shared = {"callback", "errback", "after-errback", "body-errback"}
    alone = {"last", "g1", "g2", "body", "second", "chord-body"}
    assert sorted(seen) == sorted([*((one, True) for one in shared), *((one, False) for one in alone)])
    assert new["queue"] == "q"
    assert new["chain"][2] == {"task": "second", "args": (), "kwargs": {"ref": "second"}, "options": {"task_id": "t2"}}
    assert new["chain"][1]["kwargs"]["header"]["kwargs"]["tasks"][1]["kwargs"] == {"ref": "g2"}


def test_without_large_arguments_nothing_is_copied() -> None:
    options = {"link": [{"task": "a", "args": [1], "kwargs": {}, "options": {}}], "queue": "q"}
    assert held_in(options, lambda signature, *, shared: None) is options


def test_what_goes_into_several_messages_is_remembered_for_a_minute() -> None:
    now = [0.0]
    once = Once(clock=lambda: now[0])
    reference, _ = pack(b"data", name=NAME)
    once.note(("g1", "t1", "digest", False), reference)
    assert once.find(("g1", "t1", "digest", False)) == reference
    assert once.find(("g1", "t1", "digest", True)) is None
    now[0] = 61.0
    assert once.find(("g1", "t1", "digest", False)) is None
    for number in range(1000):
        once.note((str(number), "t1", "digest", False), replace(reference, size=number))
    assert len(once._noted) <= 256


# --- URLs -----------------------------------------------------------------------------------------------------


def opened(url: str) -> Any:
    return open_store(url, redis=lambda other: f"client of {other}", prefix=lambda: "p")


def test_urls_name_stores(tmp_path: Path) -> None:
    django_project.configure()
    from django.test import override_settings

    files = {"BACKEND": "django.core.files.storage.FileSystemStorage"}
    with override_settings(STORAGES={"default": files, "payloads": files}):
        assert isinstance(opened("django:"), DjangoPayloadStore)
        assert opened("django:payloads")._alias == opened("django://payloads")._alias == "payloads"
        with pytest.raises(ConfigurationError, match="storage 'other', which cannot be used"):
            opened("django:other")
    assert isinstance(opened("memory:"), InMemoryPayloadStore)
    assert isinstance(opened("memory://somewhere"), FsspecPayloadStore)
    assert isinstance(opened("file:///var/lib/pay%20loads"), FilePayloadStore)
    assert opened("file:///var/lib/pay%20loads")._folder == Path("/var/lib/pay loads")
    assert opened("file:/var/lib")._folder == opened("file://localhost/var/lib")._folder == Path("/var/lib")
    for url, client in (("redis:", "None"), ("redis://h/3", "redis://h/3"), ("rediss://h", "rediss://h")):
        store = opened(url)
        assert isinstance(store, RedisPayloadStore)
        assert store._redis == f"client of {client}"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("/var/lib/payloads", "which is no URL"),
        ("", "which is no URL"),
        ("file:payloads", "file:///absolute/path"),
        ("file://server/share", "file:///absolute/path"),
        ("file:///var/lib?x=1", "file:///absolute/path"),
        ("s4://bucket/pre", "no payload store is known for 's4'"),
        ("http//x:", "no payload store is known"),
    ],
)
def test_a_wrong_url_is_refused_with_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        opened(url)
    assert "hardened_payload_store" in str(refused.value)


def test_a_file_system_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the password of the URL is not."""

    def missing(protocol: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    with pytest.raises(ConfigurationError, match="s3fs") as refused:
        opened("s3://key:hunter2@bucket/prefix")
    assert "hunter2" not in str(refused.value)
