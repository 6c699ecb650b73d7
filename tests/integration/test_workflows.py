"""Chains, groups and chords with a failing member: dead letter, redrive, and the workflow completes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from celery import chain, chord, group
from celery.result import AsyncResult

from celery_hardened import Hardening, Query, RedriveRefusedError
from tests.fixtures.processes import LoadProject, StartWorker
from tests.support.letters import letter_of, letters
from tests.support.notes import notes
from tests.support.shop import SHOP
from tests.support.until import until


def redrive(project: ModuleType, **query: object) -> int:
    hardening = Hardening.of(project.app)
    assert hardening is not None
    report = hardening.redrive(Query(**query), by="test", why="it is fixed")  # type: ignore[arg-type]
    assert not report.failed, report
    return report.sent


def outcome(project: ModuleType, result: AsyncResult) -> object:
    """Ask the backend, not the handle: that has seen a parent fail and says so for ever."""
    return project.app.AsyncResult(result.id).get(timeout=60)


def fix(out: Path) -> None:
    (out / "fixed").write_text("yes")


def test_chain_goes_on_after_a_redrive(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """A chain whose middle link fails: the later links run once the letter is redriven."""
    start_worker(SHOP)
    project = load_project(SHOP)
    result = chain(project.fine.si("one"), project.fixable.si("two"), project.fine.si("three"))()

    letter_of(project, result.parent.id)
    fix(out)
    assert redrive(project) == 1

    until(lambda: any("proj.fine three" in line for line in notes(out, "starts")), what="the last link to run")
    until(lambda: letters(project) == [], what="the letter to be closed")


def test_group_completes_after_a_redrive(start_worker: StartWorker, load_project: LoadProject, out: Path) -> None:
    """A group with a failing member: the group's results are complete once it is redriven."""
    start_worker(SHOP)
    project = load_project(SHOP)
    result = group(project.fine.s("a"), project.fixable.s("b"), project.fine.s("c")).apply_async()

    letter_of(project, result.results[1].id)
    fix(out)
    assert redrive(project) == 1

    until(lambda: project.app.AsyncResult(result.results[1].id).state == "SUCCESS", what="the member to succeed")
    fresh = [project.app.AsyncResult(member.id).get(timeout=60) for member in result.results]
    assert fresh == ["a", "b", "c"]


def test_parked_chord_completes_after_a_redrive(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """
    A chord's member dies: the member says FAILURE, the chord stays open, and the
    body runs once, with all results, when the letter is redriven.
    """
    start_worker(SHOP)
    project = load_project(SHOP)
    body = chord([project.fine.s(1), project.fixable.s(2), project.fine.s(3)])(project.total.s())

    member = body.parent.results[1]
    stored = letter_of(project, member.id)
    assert (stored.state, stored.letter.parked) == ("parked", True)
    until(lambda: member.state == "FAILURE", what="the parked member to say FAILURE")
    assert body.state == "PENDING"
    chord_size = project.app.backend.get_key_for_group(stored.letter.group_id, ".s")

    def lives_as_long_as_the_letter() -> bool:
        lifetime = project.app.backend.client.pttl(chord_size)
        return lifetime == -1 or lifetime > 29 * 86_400_000

    # A sibling that returns after the parking may set it back to a day, until the worker's next upkeep.
    until(lives_as_long_as_the_letter, within=150, what="the chord's keys to live as long as the letter")

    fix(out)
    assert redrive(project) == 1
    assert outcome(project, body) == 6
    assert notes(out, "totals") == ["6"]


def test_first_link_of_a_chain_in_a_chord_is_parked_too(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """The first link of a chain in a chord's header carries no chord itself, and is a member all the same."""
    start_worker(SHOP)
    project = load_project(SHOP)
    links = project.fixable.si(2) | project.fine.si(2)
    body = chord([project.fine.s(1), links])(project.total.s())

    stored = until(lambda: letters(project), within=60, what="the letter of the first link")[0]
    assert (stored.state, stored.letter.task) == ("parked", "proj.fixable")
    fix(out)
    assert redrive(project) == 1
    assert outcome(project, body) == 3


def test_chord_survives_a_member_that_only_the_parent_saw_die(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """A hard time limit is seen by the worker's parent alone; its chord is parked all the same."""
    start_worker(SHOP)
    project = load_project(SHOP)
    body = chord([project.fine.s(1), project.hard_limit.s(2)])(project.total.s())

    stored = letter_of(project, body.parent.results[1].id)
    assert (stored.state, stored.letter.reason) == ("parked", "timeout")
    until(lambda: body.parent.results[1].state == "FAILURE", what="the member to say FAILURE")
    assert body.state == "PENDING"


def test_discard_fails_the_parked_chord(start_worker: StartWorker, load_project: LoadProject) -> None:
    """Discarding a parked letter is what fails its chord; until then nobody hears of it."""
    start_worker(SHOP)
    project = load_project(SHOP)
    body = chord([project.fine.s(1), project.broken.s(2)])(project.total.s())
    stored = letter_of(project, body.parent.results[1].id)
    assert body.state == "PENDING"

    hardening = Hardening.of(project.app)
    assert hardening is not None
    assert hardening.discard([stored.letter.id], by="test", why="hopeless") == 1
    until(lambda: body.state == "FAILURE", what="the chord to fail")
    assert letters(project) == []


def test_parking_can_be_switched_off(start_worker: StartWorker, load_project: LoadProject) -> None:
    """With the kill switch off, a dead member fails its chord at once, as in plain Celery."""
    start_worker(SHOP)
    project = load_project(SHOP)
    hardening = Hardening.of(project.app)
    assert hardening is not None
    hardening.switches.set("parking", False, by="test", why="drill")
    body = chord([project.fine.s(1), project.broken.s(2)])(project.total.s())

    assert letter_of(project, body.parent.results[1].id).state == "dead"
    until(lambda: body.state == "FAILURE", what="the chord to fail")


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_redrive_refuses_when_the_chord_is_gone(
    start_worker: StartWorker, load_project: LoadProject, out: Path
) -> None:
    """A member whose chord has vanished would succeed and the body never run: refused with a sentence."""
    start_worker(SHOP)
    project = load_project(SHOP)
    body = chord([project.fine.s(1), project.fixable.s(2)])(project.total.s())
    stored = letter_of(project, body.parent.results[1].id)
    backend = project.app.backend
    backend.client.delete(*(backend.get_key_for_group(stored.letter.group_id, suffix) for suffix in (".s", ".j", ".t")))

    fix(out)
    hardening = Hardening.of(project.app)
    assert hardening is not None
    report = hardening.redrive(Query(), by="test", why="late")
    assert report.sent == 0
    assert "body never run" in report.refused[stored.letter.id]
    assert letters(project)[0].state == "parked"
    assert RedriveRefusedError  # the class a single redrive raises; the report collects its sentences


def test_contained_member_fails_its_chord_as_plain_celery_does(
    start_worker: StartWorker, load_project: LoadProject
) -> None:
    """A contained task's failure is a letter, and nothing else changes: its chord fails at once."""
    start_worker(SHOP)
    project = load_project(SHOP)
    body = chord([project.fine.s(1), project.plain_broken.s(2)])(project.total.s())

    assert letter_of(project, body.parent.results[1].id).state == "dead"
    until(lambda: body.state == "FAILURE", what="the chord to fail")
