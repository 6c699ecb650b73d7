"""The soak in short, and what its judge lets pass."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.soak import soak
from tests.chaos.soak_fleet import plan
from tests.chaos.soak_ledger import GRACE, RECOVERY, WAKING, Fault, Notes, Repeat, judge, recoveries

pytestmark = pytest.mark.chaos

W1, W2 = 100, 200


def notes_of(directory: Path, *lines: str) -> Notes:
    """Notes of ``<worker>/<child> <line>`` each."""
    for line in lines:
        process, _, said = line.partition(" ")
        with (directory / process.replace("/", "-")).open("a") as file:
            file.write(said + "\n")
    notes = Notes(directory)
    notes.read()
    return notes


def why(notes: Notes, *faults: Fault, unsure: dict[int, float] | None = None) -> list[str | None]:
    """What explains each repeat."""
    return [repeat.why for repeat in repeats(notes, *faults, unsure=unsure)]


def repeats(notes: Notes, *faults: Fault, unsure: dict[int, float] | None = None) -> list[Repeat]:
    return judge(notes, faults, unsure=unsure or {}, longest=7.5)


def test_a_repeat_that_nothing_explains_is_found(tmp_path: Path) -> None:
    """No fault, a fault of another worker, one before the start and one long after the end explain nothing."""
    notes = notes_of(tmp_path, "100/1 s 10.0 7 0", "100/1 e 10.1 7 0", "200/2 s 20.0 7 0", "200/2 e 20.1 7 0")
    assert why(notes) == [None]
    assert why(notes, Fault("group", 10.05, 10.05, W2)) == [None]
    assert why(notes, Fault("group", 9.9, 9.9, W1)) == [None]
    assert why(notes, Fault("group", 10.2 + GRACE, 10.2 + GRACE, W1)) == [None]
    assert why(notes, Fault("child", 10.05, 10.05, W1, child=3)) == [None]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("child", 10.05, 10.06, W1, child=1),
        Fault("group", 10.5, 10.5, W1),
        Fault("stop", 10.05, 16.0, W1),
        Fault("cut", 10.2, 10.2, W1),
        Fault("restart", 9.9, 10.05),
    ],
    ids=lambda fault: str(fault.kind),
)
def test_a_fault_between_a_start_and_its_ack_explains_one_more_start(tmp_path: Path, fault: Fault) -> None:
    """One fault explains one repeat, not two."""
    notes = notes_of(tmp_path, "100/1 s 10.0 7 0", "100/1 e 10.1 7 0", "200/2 s 20.0 7 0", "200/2 e 20.1 7 0")
    assert why(notes, fault) == [fault.kind]
    again = notes_of(tmp_path, "200/2 s 30.0 7 0", "200/2 e 30.1 7 0")
    assert why(again, fault) == [fault.kind, None]


def test_a_fault_keeps_the_ack_back(tmp_path: Path) -> None:
    """A kill that comes while a cut worker still reconnects explains the next start; later it does not."""
    notes = notes_of(tmp_path, "100/1 s 10.0 7 0", "100/1 e 10.1 7 0", "200/2 s 40.0 7 0", "200/2 s 41.0 7 0")
    cut = Fault("cut", 10.05, 10.05, W1)
    late = 10.05 + RECOVERY
    assert why(notes, cut, Fault("group", late - 0.1, late - 0.1, W1)) == ["cut", "group"]
    assert why(notes, cut, Fault("group", late + 0.1, late + 0.1, W1)) == ["cut", None]


def test_a_repeated_attempt_repeats_its_retry(tmp_path: Path) -> None:
    """A fault of attempt 0 explains a second start of attempt 1, but no fault of attempt 1 one of attempt 0."""
    notes = notes_of(
        tmp_path,
        *("100/1 s 10.0 7 0", "100/1 r 10.1 7 0", "200/2 s 20.0 7 0", "200/2 r 20.1 7 0"),
        *("200/2 s 21.0 7 1", "200/2 e 21.1 7 1", "200/2 s 22.0 7 1", "200/2 e 22.1 7 1"),
    )
    assert why(notes, Fault("group", 10.2, 10.2, W1)) == ["group", "group"]
    assert why(notes, Fault("group", 21.05, 21.05, W2)) == [None, "group"]


def test_a_publish_that_was_cut_may_be_there_twice(tmp_path: Path) -> None:
    """One repeat of a task whose publish the restart of the server cut is explained."""
    notes = notes_of(tmp_path, "100/1 s 10.0 7 0", "100/1 e 10.1 7 0", "200/2 s 20.0 7 0", "200/2 e 20.1 7 0")
    assert why(notes, unsure={7: 9.0}) == ["publish"]
    assert why(notes, unsure={8: 9.0}) == [None]


def test_a_stopped_process_may_begin_what_it_held_when_it_wakes(tmp_path: Path) -> None:
    """
    Only at once: what a woken worker takes from its own stock later should not have been started.
    The stop explains a start elsewhere after that one, too.
    """
    stop = Fault("stop", 9.0, 20.0, W2)
    lines = ("100/1 s 15.0 7 0", "100/1 e 15.1 7 0")
    at_once, later, before = tmp_path / "at-once", tmp_path / "later", tmp_path / "before"
    for each in (at_once, later, before):
        each.mkdir()
    assert why(notes_of(before, "200/2 s 20.01 7 0", "200/2 e 20.02 7 0", "100/1 s 21.0 7 0"), stop) == ["stop"]
    assert why(notes_of(at_once, *lines, f"200/2 s {20 + WAKING / 2} 7 0"), stop) == ["woken"]
    assert why(notes_of(later, *lines, f"200/2 s {20 + 2 * WAKING} 7 0"), stop) == [None]


def test_overlaps_and_recoveries_are_measured(tmp_path: Path) -> None:
    """A repeat that begins while the earlier body runs on is told apart; a killed one's next start is timed."""
    notes = notes_of(
        tmp_path,
        *("100/1 s 10.0 7 0", "200/2 s 12.0 7 0", "200/2 e 12.1 7 0", "100/1 e 13.0 7 0"),
        *("100/3 s 10.0 8 0", "200/4 s 16.5 8 0", "200/4 e 16.6 8 0"),
    )
    faults = (Fault("cut", 10.5, 10.5, W1), Fault("child", 11.0, 11.1, W1, child=3))
    assert [repeat.overlaps for repeat in repeats(notes, *faults)] == [True, False]
    assert recoveries(notes, faults) == {"child": [5.5], "group": []}
    assert recoveries(notes, faults, but={8}) == {"child": [], "group": []}


@pytest.mark.parametrize(("kills", "restarts"), [(12, 1), (200, 2), (4, 4), (5, 0)])
def test_a_plan_has_as_many_faults_as_asked_for(kills: int, restarts: int) -> None:
    """All kills are planned, restarts among them; the same dice plan the same."""
    kinds = plan(random.Random(1), kills=kills, restarts=restarts)
    assert len(kinds) == kills
    assert kinds.count("restart") == restarts
    assert kinds == plan(random.Random(1), kills=kills, restarts=restarts)
    if kills >= 12:
        assert set(kinds) >= {"child", "group", "stop", "cut"}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    """600 tasks, 12 faults of all kinds, a restart of the server among them: none lost, no repeat without its fault."""
    words = "--kills 12 --tasks 600 --restarts 1 --lease 5 --workers 2 --patience 45 --server valkey"
    report = soak(words.split(), directory=tmp_path)
    told = "\n".join(report.lines())
    assert report.tasks == 600, told
    assert sum(report.kills.values()) == 12, told
    assert not report.lost, told
    assert not report.unexplained, told
    assert not report.left_over, told
    assert not report.dead_letters, told
