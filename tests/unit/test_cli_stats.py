from __future__ import annotations

from celery_hardened.dead_letter.contract import Stats
from tests.support.cli import answers, call, make_app, make_letter, store_of


def test_causes_are_grouped_the_largest_first() -> None:
    """An operator reads "3 times TimeoutError in shop.charge", not three ids."""
    app = make_app()
    for number in range(3):
        store_of(app).put(make_letter(number))
    store_of(app).put(make_letter(9, fingerprint="f9", error_type="KeyError", task="shop.refund", reason="permanent"))

    shown = call(app, "dlq", "stats").stdout
    lines = shown.splitlines()

    assert lines[0].startswith("4 letters open, ")
    assert lines[1].split()[:5] == ["3", "×", "TimeoutError", "in", "shop.charge"]  # noqa: RUF001
    assert lines[2].split()[:5] == ["1", "×", "KeyError", "in", "shop.refund"]  # noqa: RUF001
    assert "exhausted  3" in shown


def test_machines_get_every_count() -> None:
    """``--json`` is one object; each group is ordered by size."""
    app = make_app(hardened_dead_letter_max_count=3, hardened_dead_letter_max_count_per_task=3)
    for number in range(4):
        store_of(app).put(make_letter(number, queue="payments" if number else "slow"))
    store_of(app).discard("task-3-0-3", by="ann", why="test")

    (stats,) = answers(call(app, "dlq", "stats", "--json"))

    assert stats["open"] == 2
    assert stats["by_queue"] == {"payments": 2}
    assert stats["by_reason"] == {"exhausted": 2}
    assert stats["by_task"] == {"shop.charge": 2}
    assert stats["by_error_type"] == {"TimeoutError": 2}
    assert stats["by_state"] == {"dead": 2, "discarded": 1}
    assert sum(stats["dropped"].values()) == 1
    (cause,) = stats["causes"]
    assert (cause["fingerprint"], cause["count"], cause["newest_id"]) == ("f1", 2, "task-2-0-3")


def test_what_retention_dropped_is_said() -> None:
    """Letters that were lost to retention do not vanish silently."""
    app = make_app(hardened_dead_letter_max_count=2, hardened_dead_letter_max_count_per_task=2)
    for number in range(5):
        store_of(app).put(make_letter(number))
    assert "3 letters dropped by retention while open (count 3)" in call(app, "dlq", "stats").stdout


def test_top_bounds_the_causes() -> None:
    """``--top`` causes are looked up, no more."""
    app = make_app()
    for number in range(5):
        store_of(app).put(make_letter(number, fingerprint=f"f{number}"))
    (stats,) = answers(call(app, "dlq", "stats", "--json", "--top", "2"))
    assert len(stats["causes"]) == 2


def test_an_empty_store_has_stats_too() -> None:
    """Nothing is not an error."""
    app = make_app()
    assert call(app, "dlq", "stats").stdout.startswith("0 letters open, 0 B")
    (stats,) = answers(call(app, "dlq", "stats", "--json"))
    assert stats["open"] == 0
    assert set(stats) == {"causes", *Stats.__dataclass_fields__} - {"by_fingerprint", "by_queue_and_reason"}
