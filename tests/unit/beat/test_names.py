"""Names that other processes, other releases and scripts rely on."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from celery_hardened.beat.names import NAMESPACE, Keys, once_key, task_id_of, triggered_id, window_of


def test_task_ids_never_change() -> None:
    """The same slot has the same id whoever publishes it: these are for ever, or an upgrade fires slots twice."""
    assert str(NAMESPACE) == "6f4d2c1e-5b7a-5e0f-9a39-2d1d6a4c8e11"
    assert task_id_of("nightly", 1_764_547_200.0) == "09143b41-6fa6-536f-b50e-82d5f078e73f"
    assert task_id_of("nightly", 1_764_547_200.001) == "a9189a15-545d-5305-a617-e5d57d48bd8b"
    assert task_id_of("Rechnungen ü", 0.0) == "d2bf11eb-f765-5e70-8dc5-5575d716c78b"
    assert once_key("nightly", 1_764_547_200.5) == "schedule:nightly:1764547200500"


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-(10**12), 10**13))
def test_an_id_hangs_on_the_millisecond(name: str, ms: int) -> None:
    """Float noise below a millisecond makes no second task; the next millisecond does."""
    assert task_id_of(name, ms / 1000) == task_id_of(name, ms / 1000 + 1e-5) != task_id_of(name, (ms + 1) / 1000)
    assert uuid.UUID(task_id_of(name, ms / 1000)).version == 5


def test_runs_by_hand_are_all_different() -> None:
    """Two of them are two, and neither is the task of a slot."""
    assert len({triggered_id("nightly") for _ in range(100)}) == 100


def test_keys_of_one_beat_share_a_hash_slot() -> None:
    """A script may touch them together; the window alone hangs on its own name, as the store of windows writes it."""
    keys = Keys("shop:hardened")
    assert [
        keys.leader, keys.term, keys.wake, keys.records, keys.paused, keys.stamp, keys.problems, keys.revoke,
        keys.history("nightly"),
    ] == [
        f"shop:hardened:{{beat}}:{name}"
        for name in (
            "leader", "term", "wake", "records", "paused", "stamp", "problems", "revoke", "history:nightly",
        )
    ]  # fmt: skip
    assert keys.window("nightly") == "shop:hardened:dedup:{schedule:nightly}"
    assert window_of("nightly") == "schedule:nightly"
