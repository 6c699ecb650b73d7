"""Names of keys and deliveries in Redis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.transport.names import DELAYED, LEASED, Keys, is_ours, tag


def test_keys() -> None:
    """Ours are below the prefix, kombu's are as they are given."""
    keys = Keys("app:unacked", "app:unacked_index", "app:hardened")
    assert (keys.unacked, keys.index) == ("app:unacked", "app:unacked_index")
    ours = [keys.fence, keys.fetching, keys.malformed, keys.sweep, keys.own_list("abc", "mail")]
    assert len(set(ours)) == 5
    assert all(key.startswith("app:hardened:delivery:") for key in ours)
    assert keys.own_list("abc", "mail") == "app:hardened:delivery:fetching:abc:mail"
    assert keys.own_list("abc", "a") != keys.own_list("abc", "b") != keys.own_list("abd", "b")


@given(st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
def test_tags_sort_as_they_were_taken(one: int, other: int) -> None:
    """Redis orders deliveries of one expiry by their tags."""
    assert (tag("c", one) < tag("c", other)) == (one < other)


def test_tags() -> None:
    """Each kind is told by its first letters, and neither is the other's."""
    assert tag("c", 7) == "h1:c:000000000007"
    assert tag("c", 7, kind=DELAYED) == "h1d:c:000000000007"
    assert not DELAYED.startswith(LEASED)


@pytest.mark.parametrize(
    ("found", "ours"),
    [
        (tag("c", 1), True),
        (tag("c", 1, kind=DELAYED), False),
        ("4a0c3f5e-0b5e-4d7a-9f38-0a8d1d3c2b1a", False),
        ("", False),
        (1, False),
        (None, False),
        (b"h1:c:000000000001", False),
    ],
)
def test_ours(found: object, ours: bool) -> None:
    """kombu's tags are UUIDs, AMQP's are numbers, and a delayed message is nobody's delivery."""
    assert is_ours(found) is ours
