"""Rows of run history: what is written of lines and reports, however often and in whatever order they come."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta, timezone
from itertools import permutations
from typing import Any

import psycopg
import pytest
from django.db import connections

from celery_hardened.beat.run_report import RunReport, says_more
from celery_hardened.contrib.django.runs.copying import Copying
from celery_hardened.contrib.django.runs.lines import row_of_line, row_of_report, take_in
from celery_hardened.contrib.django.runs.prune import prune
from tests.support.django_runs import AT, line, report, runs, told
from tests.support.until import until


@pytest.fixture
def copying(schedules: str) -> Copying:
    return Copying(schedules)


# --- rows of lines, without a database ---------------------------------------------------------------------------


def test_a_fire_is_a_row() -> None:
    """Slot, decision, task, what it stands for, and the term of who decided."""
    row = row_of_line("nightly", line(missed=2))
    assert row is not None
    assert (row.kind, row.verdict, row.missed, row.count, row.term) == ("planned", "fired", 2, 1, 3)
    assert row.slot == datetime.fromtimestamp(AT, timezone.utc)
    assert row.decided == row.slot + timedelta(milliseconds=100)
    assert row.task_id == report().task_id


def test_slots_passed_over_in_one_step_are_one_row() -> None:
    """With their number, the first and the last of them."""
    row = row_of_line("nightly", line("expired", first=AT - 3600, count=60))
    assert row is not None
    assert (row.verdict, row.count, row.slot - row.first) == ("expired", 60, timedelta(hours=1))


def test_runs_by_hand_are_rows_of_their_own() -> None:
    """Two triggers of one millisecond, a backfill of a slot and that slot itself: none is taken for another."""
    by_hand: list[Any] = [
        row_of_line("nightly", line("triggered", id="a", by="ada")),
        row_of_line("nightly", line("triggered", id="b", by="ada")),
        row_of_line("nightly", line("backfilled", id="c", by="ada")),
        row_of_line("nightly", line("backfilled", id="c", by="ada", at=AT + 9000)),
        row_of_line("nightly", line()),
        row_of_line("other", line()),
    ]
    assert len({row.identity for row in by_hand}) == 6
    assert [row.kind for row in by_hand[:4]] == ["triggered", "triggered", "backfilled", "backfilled"]
    assert {row.verdict for row in by_hand} == {"fired"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        b"[]",
        b'{"outcome": "fired"}',
        line(slot=AT).replace(b'"at":', b'"at":1e300,"was":'),
        line().replace(b'"fired"', b"7"),
        b"[" * 100_000,
    ],
    ids=["empty", "no JSON", "no object", "no slot", "no instant", "no outcome", "deep"],
)
def test_what_no_beat_has_written_is_no_row(text: bytes) -> None:
    """It is left out; the lines beside it are not."""
    assert row_of_line("nightly", text) is None


def test_names_and_words_that_no_database_takes() -> None:
    """A zero byte or a lone surrogate cannot fail the copy of the other lines: such a schedule is in no table."""
    assert row_of_line("a\0b", line()) is None
    assert row_of_line("x" * 256, line()) is None
    assert row_of_line("\udc80", line()) is None
    row = row_of_line("nightly", line("triggered", id="a", by="a\0da \ud800" + "x" * 500))
    assert row is not None
    assert row.by.startswith("ada ?x")
    assert len(row.by) == 255


# --- reports, without a database -----------------------------------------------------------------------------------


def test_a_report_is_read_as_it_was_written() -> None:
    """All fields; what says nothing takes no room."""
    full = report("failure", error="ValueError", letter="t-0-0", attempt=4, missed=2)
    assert RunReport.parse(full.text()) == full
    assert "letter" not in json.loads(report().text())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        report().text().replace('"success"', "3").encode(),
        report().text().replace('"at":', '"at":-1,"x":').encode(),
        report().text().replace('"nightly"', '""').encode(),
    ],
)
def test_a_damaged_report_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="report of a run"):
        RunReport.parse(text)


STORY = [
    report("retry", at=AT + 3, attempt=1, error="OSError"),
    report("worker_lost", at=AT + 5, started=AT + 4, attempt=2),
    report("success", at=AT + 9, started=AT + 7, attempt=3),
    report("deduplicated", at=AT + 20, started=None, attempt=1),
]


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_reports_in_any_order_and_twice_say_the_same(order: tuple[int, ...]) -> None:
    """Retried, its worker lost, done, and a second message of it put away: done at the third attempt."""
    row = row_of_report(STORY[0])
    assert row is not None
    for index in (*order, *order):
        take_in(row, STORY[index])
    assert (row.outcome, row.attempts, row.duration, row.error) == ("success", 3, 2.0, "")
    assert row.started == datetime.fromtimestamp(AT + 1, timezone.utc)
    assert not any(take_in(row, one) for one in STORY)


def test_a_redrive_ends_the_story_of_its_letter() -> None:
    """A failure stands while its redrive is retried, and gives way when that is done."""
    row = row_of_report(report("failure", letter="t-0-0"))
    assert row is not None
    take_in(row, report("failure", letter="t-0-0"))
    take_in(row, report("retry", at=AT + 50))
    assert (row.outcome, row.dead_letter) == ("failure", "t-0-0")
    take_in(row, report("success", at=AT + 60))
    assert (row.outcome, row.dead_letter) == ("success", "")


def test_a_lost_worker_that_left_a_letter_is_the_end() -> None:
    """``worker_lost`` goes on as another start; with a letter nothing does."""
    later = report("retry", at=AT + 90)
    assert says_more(later, outcome="worker_lost", letter="", at=AT)
    assert not says_more(later, outcome="worker_lost", letter="t-0-0", at=AT)


# --- in a database ---------------------------------------------------------------------------------------------------


def test_a_copy_made_twice_changes_nothing(copying: Copying, schedules: str) -> None:
    """Lines and reports: the same rows, as they were."""
    lines = {"nightly": [line(slot=AT + 60), line("paused", slot=AT + 30, count=3), line()]}
    for _ in range(3):
        copying.copy(lines, [report(), report(slot=AT + 60)])
    found = [
        ("nightly", "fired", "success", 1),
        ("nightly", "paused", "", 0),
        ("nightly", "fired", "success", 1),
    ]
    assert told(schedules) == found


def test_a_slot_that_waited_is_one_row(copying: Copying, schedules: str) -> None:
    """It says what became of it last, also if a beat that has read less copies after one that has read all."""
    waits, fired = line("buffered"), line(at=AT + 40)
    copying.copy({"nightly": [waits]})
    assert told(schedules) == [("nightly", "buffered", "", 0)]
    copying.copy({"nightly": [fired, waits]})
    copying.copy({"nightly": [waits]})
    assert told(schedules) == [("nightly", "fired", "", 0)]
    assert runs(schedules)[0].task_id == report().task_id


def test_an_end_that_comes_before_its_slot(copying: Copying, schedules: str) -> None:
    """It makes the row, and the line fills in the rest."""
    copying.copy({}, [report()])
    assert told(schedules) == [("nightly", "fired", "success", 1)]
    copying.copy({"nightly": [line(missed=4, at=AT - 0.001)]})
    (row,) = runs(schedules)
    assert (row.outcome, row.missed, row.term, row.kind) == ("success", 4, 3, "planned")
    copying.copy({}, [report(task_id="by-hand", slot=AT + 0.5)])
    copying.copy({"nightly": [line("triggered", slot=AT + 0.5, id="by-hand", by="ada")]})
    assert [(one.kind, one.by) for one in runs(schedules)] == [("planned", ""), ("triggered", "ada")]


@pytest.mark.parametrize(
    "odd",
    [
        {"task_id": "a\0b"},
        {"task_id": "a\ud800b"},
        {"schedule": "x\0y"},
        {"worker": "w\0\udc80", "error": "E\0", "letter": "l\ud800"},
    ],
    ids=["zero byte", "surrogate", "name", "words"],
)
def test_an_end_that_no_database_takes(copying: Copying, schedules: str, odd: dict[str, Any]) -> None:
    """Whoever may publish can send such a message. It does not keep the ends beside it from being copied, for ever."""
    copying.copy({"nightly": [line()]}, [RunReport.parse(report(**{"slot": AT + 60, **odd}).text()), report()])
    assert ("nightly", "fired", "success", 1) in told(schedules, slot=datetime.fromtimestamp(AT, timezone.utc))


def test_an_end_of_a_slot_that_waits(copying: Copying, schedules: str) -> None:
    """Through another broker a task may end before the line says that it was fired."""
    copying.copy({"nightly": [line("buffered")]}, [report()])
    assert told(schedules) == [("nightly", "fired", "success", 1)]
    copying.copy({"nightly": [line(at=AT + 40), line("buffered")]})
    (row,) = runs(schedules)
    assert (row.verdict, row.outcome, row.decided.timestamp()) == ("fired", "success", AT + 40)


def test_a_slot_that_is_backfilled(copying: Copying, schedules: str) -> None:
    """Both runs have one task id: the ends that come after it are the backfill's."""
    copying.copy({"nightly": [line()]}, [report("failure", letter="t-0-0")])
    again = line("backfilled", id=report().task_id, at=AT + 900)
    copying.copy({"nightly": [again]}, [report("success", at=AT + 910)])
    assert told(schedules) == [("nightly", "fired", "failure", 1), ("nightly", "fired", "success", 1)]


def test_a_long_history_at_once(copying: Copying, schedules: str) -> None:
    """More rows than one statement takes variables for."""
    lines = {f"s {n}": [line(schedule=f"s {n}", slot=AT + second) for second in range(50)] for n in range(12)}
    ends = [report(schedule=f"s {n}", slot=AT + second) for n in range(12) for second in range(50)]
    copying.copy(lines, ends)
    assert len(runs(schedules, outcome="success", attempts=1)) == 600


def test_what_pruning_has_taken_does_not_come_back(copying: Copying, schedules: str) -> None:
    """A line that is older than rows are kept is not copied."""
    since = datetime.fromtimestamp(AT + 30, timezone.utc)
    copying.copy({"nightly": [line(slot=AT + 60), line()]}, since=since)
    assert [row.slot.timestamp() for row in runs(schedules)] == [AT + 60]


def test_what_is_older_than_the_newest_that_are_kept(copying: Copying, schedules: str) -> None:
    """No row is there that was pruned by count; of one instant, at which some were, none comes back."""
    assert copying.floor(3) is None
    copying.copy({"nightly": [line(slot=AT + second, at=AT + 99) for second in range(4)]})
    copying.copy({"nightly": [line(slot=AT + 5, at=AT + 100)]})
    assert copying.floor(6) is None
    before = runs(schedules)
    prune(max_age=1e6, max_count=3, clock=clock_at(101))
    copying.copy({"nightly": [line(slot=AT + second, at=AT + 99) for second in range(4)]}, since=copying.floor(3))
    assert [row.pk for row in runs(schedules)] == [row.pk for row in before[2:]]


@pytest.mark.parametrize("round_", range(3))
def test_two_that_copy_at_once(copying: Copying, schedules: str, round_: int) -> None:
    """Two beats that both think that they lead: each row is there once, with what either has read."""
    every = [line(slot=AT + second, at=AT + 60 + second) for second in range(40, -1, -1)]
    waits = [line("buffered", slot=AT + 40), *every[1:]]
    begin = threading.Barrier(2)
    failed: list[Exception] = []

    def copy(lines: list[bytes], ends: list[RunReport]) -> None:
        begin.wait(30)
        try:
            for _ in range(5):
                try:
                    copying.copy({"nightly": lines}, ends)
                    return
                except Exception as problem:  # noqa: BLE001 - a deadlock is tried again, as the collector does
                    failed.append(problem)
            raise AssertionError(failed)
        finally:
            connections.close_all()

    ends = [report(slot=AT + second) for second in range(41)]
    threads = [threading.Thread(target=copy, args=args) for args in ((every, ends), (waits, ends[:20]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert told(schedules) == [("nightly", "fired", "success", 1)] * 41


def test_another_beat_adds_the_row_meanwhile(copying: Copying, schedules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After we asked what is there and before we write: its row says less, and ours is not ignored for it."""
    waits, fired = line("buffered"), line(at=AT + 40)
    copying.copy({"nightly": [waits]})
    there = Copying._there
    asked: list[int] = []

    def late(self: Copying, identities: Any) -> Any:
        asked.append(1)
        return {} if len(asked) == 1 else there(self, identities)

    monkeypatch.setattr(Copying, "_there", late)
    copying.copy({"nightly": [fired, waits]})
    assert told(schedules) == [("nightly", "fired", "", 0)]


@pytest.mark.parametrize("schedules", ["postgres"], indirect=True)
def test_another_beat_takes_in_an_end_meanwhile(copying: Copying, schedules: str) -> None:
    """The row is locked while it is read and written: neither of two ends is lost."""
    copying.copy({"nightly": [line()]})
    settings = connections[schedules].settings_dict

    def take_in_another() -> None:
        try:
            copying.copy({}, [report("retry", attempt=3)])
        finally:
            connections.close_all()

    where: dict[str, Any] = {"host": settings["HOST"], "port": settings["PORT"], "dbname": settings["NAME"]}
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with (
        psycopg.connect(**where, user="test") as other,
        psycopg.connect(**where, user="test", autocommit=True) as looks,
    ):
        other.execute("UPDATE celery_hardened_schedule_run SET attempts = 7")
        thread = threading.Thread(target=take_in_another)
        thread.start()
        until(lambda: looks.execute(waiting).fetchone() != (0,), within=30, what="the second to wait")
    thread.join(30)
    assert told(schedules) == [("nightly", "fired", "retry", 7)]


# --- pruning ------------------------------------------------------------------------------------------------------


def clock_at(seconds: float) -> Any:
    return lambda: datetime.fromtimestamp(AT + seconds, timezone.utc)


def test_pruning_by_age_and_count(copying: Copying, schedules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too old goes, then what is too much, the oldest first; in batches; a second time nothing does."""
    monkeypatch.setattr("celery_hardened.contrib.django.runs.prune.BATCH", 4)
    copying.copy({"nightly": [line(slot=AT + second) for second in range(30)]})
    gone = prune(max_age=20, max_count=15, clock=clock_at(30.05))
    assert gone == {"age": 10, "count": 5}
    assert [row.slot.timestamp() - AT for row in runs(schedules)] == [*range(15, 30)]
    assert prune(max_age=20, max_count=15, clock=clock_at(30.05)) == {"age": 0, "count": 0}


def test_rows_of_one_instant_are_counted_too(copying: Copying, schedules: str) -> None:
    """A catch-up decides many at once: as many stay as are to be kept."""
    copying.copy({"nightly": [line(slot=AT + second, at=AT + 99) for second in range(30)]})
    prune(max_age=1e6, max_count=7, clock=clock_at(100))
    assert len(runs(schedules)) == 7


def test_pruning_ends_in_time(copying: Copying, schedules: str) -> None:
    """Where its time is up it leaves the rest to the next run."""
    copying.copy({"nightly": [line(slot=AT + second) for second in range(30)]})
    assert prune(max_age=1, max_count=1, until=0.0, clock=clock_at(100)) == {"age": 0, "count": 0}
    assert len(runs(schedules)) == 30
