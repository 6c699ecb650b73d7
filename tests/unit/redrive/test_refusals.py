"""What a redrive leaves as it was, and what it says of it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_hardened.dead_letter.canary import Canary
from celery_hardened.dead_letter.contract import Query, StoredLetter
from celery_hardened.dead_letter.letter import DeadLetter
from celery_hardened.dead_letter.redrive import discard_letters
from tests.unit.redrive.desk import Desk


def test_a_dry_run_changes_nothing(desk: Desk) -> None:
    """It tells what would be sent and what refused."""
    ids = desk.fill(3)
    (looping,) = desk.fill(1, redrives=3)
    before = [desk.store.get(one) for one in ids]

    report = desk.redrive(dry_run=True, canary=Canary(1))

    assert report.sent == 3
    assert list(report.refused) == [looping]
    assert desk.arrived() == []
    assert [desk.store.get(one) for one in ids] == before


def test_a_task_that_keeps_dying_is_refused_unless_forced(desk: Desk) -> None:
    """The loop limit counts redrives of the task, not of the letter."""
    (twice,) = desk.fill(1, redrives=2)
    (thrice,) = desk.fill(1, redrives=3)

    report = desk.redrive()
    assert report.sent == 1
    assert report.refused == {
        thrice: "it was redriven 3 times before (hardened_redrive_max is 3) and died each time. "
        "Mend the cause first, or use --force."
    }
    assert desk.states([twice, thrice]) == ["redriven", "dead"]
    assert desk.store.get(thrice).audit == ()

    assert desk.redrive(force=True).sent == 1


def test_a_parked_letter_whose_chord_is_gone_is_refused(desk: Desk) -> None:
    """It would succeed and the chord never run. Asked for parked letters only; ``force`` does not ask."""
    (alive,) = desk.fill(1, parked=True, group_id="alive")
    (lost,) = desk.fill(1, parked=True, group_id="lost")
    (plain,) = desk.fill(1, group_id="lost")
    asked: list[str] = []

    def gone(of: DeadLetter) -> str | None:
        asked.append(of.id)
        return "its chord is gone." if of.group_id == "lost" else None

    report = desk.redrive(parked_group_alive=gone)
    assert report.refused == {lost: "its chord is gone."}
    assert asked == [alive, lost]
    assert desk.states([alive, lost, plain]) == ["redriven", "parked", "redriven"]

    assert desk.redrive(parked_group_alive=gone, force=True).sent == 1


def test_letters_closed_in_the_last_moment_are_skipped(desk: Desk) -> None:
    """Between the look at a letter and its taking somebody else may act: their word holds."""
    ids = desk.fill(3, parked=True, group_id="g")

    def discarded_by_another(of: DeadLetter) -> str | None:
        if of.id == ids[1]:
            desk.store.discard(of.id, by="bob", why="")
        return None

    report = desk.redrive(parked_group_alive=discarded_by_another)

    assert (report.sent, report.skipped, report.seen) == (2, 1, 3)
    assert desk.states(ids) == ["redriven", "discarded", "redriven"]


def test_letters_named_by_id_are_never_passed_over_in_silence(desk: Desk) -> None:
    """Unknown, closed, or excluded by another filter: each is refused with its reason."""
    good, closed, other = desk.fill(3)
    desk.store.discard(closed, by="ann", why="")
    (other,) = desk.fill(1, task="shop.other")

    report = desk.redrive(Query(ids=(good, closed, other, "nobody"), task="shop.charge"))

    assert report.sent == 1
    assert report.refused == {
        closed: "it is discarded already.",
        other: "the other filters exclude it.",
        "nobody": "there is no such letter.",
    }


def test_one_bad_letter_does_not_stop_the_others(desk: Desk) -> None:
    """No queue known, arguments that cannot be edited: refused, and the rest goes out."""
    lost = desk.fill(1, queue="", routing_key="")
    binary = desk.fill(1, content_type="application/data")
    good = desk.fill(2)
    report = desk.redrive(edit={"args": ["i2"]})
    assert set(report.refused) == {*lost, *binary}
    assert report.sent == 2
    assert desk.states(good) == ["redriven"] * 2


@pytest.mark.parametrize(
    "options", [{"batch": 0}, {"rate": 0}, {"limit": 0}, {"lease": 0}, {"edit": {"arguments": []}}]
)
def test_senseless_options_are_refused_before_anything_is_sent(desk: Desk, options: dict[str, Any]) -> None:
    """A typo in ``edit`` would otherwise redrive everything unedited."""
    ids = desk.fill(1)
    with pytest.raises(ValueError, match=r"batch and limit|edit may hold"):
        desk.redrive(**options)
    assert desk.states(ids) == ["dead"]


# --- discard -------------------------------------------------------------------------------------


def test_discarding_answers_the_letters_it_closed(desk: Desk) -> None:
    """Each was seen by ``closing`` while it was still open; what was closed before is left out."""
    ids = desk.fill(3)
    desk.store.resolve(ids[1], by="w", why="")
    seen: list[str] = []

    def closing(stored: StoredLetter) -> None:
        seen.append(desk.store.get(stored.letter.id).state)

    closed = discard_letters(desk.store, [*ids, "nobody"], by="ann", why="obsolete", closing=closing)

    assert [stored.letter.id for stored in closed] == [ids[0], ids[2]]
    assert {stored.state for stored in closed} == {"discarded"}
    assert seen == ["dead", "dead"]
    assert desk.states(ids) == ["discarded", "resolved", "discarded"]


def test_a_letter_whose_chord_could_not_be_failed_stays_open(desk: Desk) -> None:
    """``closing`` comes first, so that nothing is forgotten if it fails."""
    ids = desk.fill(1)

    def closing(_stored: StoredLetter) -> None:
        raise ConnectionError("no result backend")

    with pytest.raises(ConnectionError):
        discard_letters(desk.store, ids, by="ann", why="", closing=closing)
    assert desk.states(ids) == ["dead"]
