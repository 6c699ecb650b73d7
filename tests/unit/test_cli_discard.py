from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest
from celery import Celery

from celery_hardened import DeadLetterError, Hardening, StoreUnavailableError
from celery_hardened.cli import output
from tests.support.cli import answers, call, make_app, make_letter, store_of


@pytest.fixture
def app() -> Celery:
    app = make_app()
    for number in range(4):
        store_of(app).put(make_letter(number))
    return app


def states(app: Celery) -> list[str]:
    return [store_of(app).get(f"task-{number}-0-3").state for number in range(4)]


def test_letters_are_closed_with_who_and_why(app: Celery) -> None:
    """A discard leaves a record of who did it and why."""
    result = call(app, "dlq", "discard", "task-1-0-3", "--why", "customer left", "--by", "ann@host")
    assert (result.exit_code, result.stdout) == (0, "discarded 1 of 1 letter\n")
    stored = store_of(app).get("task-1-0-3")
    assert stored.state == "discarded"
    assert (stored.audit[-1].by, stored.audit[-1].why) == ("ann@host", "customer left")
    assert states(app) == ["dead", "discarded", "dead", "dead"]


def test_a_reason_is_required(app: Celery) -> None:
    """Nobody discards without saying why."""
    assert call(app, "dlq", "discard", "task-1-0-3").exit_code == 2
    assert states(app) == ["dead"] * 4


def test_no_filter_does_not_mean_everything(app: Celery) -> None:
    """A forgotten filter closes nothing; ``--all`` says it and stands alone."""
    assert call(app, "dlq", "discard", "--why", "x", "--yes").exit_code == 2
    assert call(app, "dlq", "discard", "--why", "x", "--yes", "--all", "--task", "shop.charge").exit_code == 2
    assert states(app) == ["dead"] * 4
    assert call(app, "dlq", "discard", "--why", "x", "--yes", "--all").exit_code == 0
    assert states(app) == ["discarded"] * 4


def test_several_letters_need_a_yes(app: Celery) -> None:
    """Where nobody can be asked, more than one letter needs ``--yes``; the refusal is exit code 1."""
    result = call(app, "dlq", "discard", "--task", "shop.charge", "--why", "x")
    assert result.exit_code == 1
    assert "--yes" in result.stderr
    assert states(app) == ["dead"] * 4


@pytest.mark.parametrize(("answer", "code", "state"), [("y\n", 0, "discarded"), ("n\n", 1, "dead"), ("\n", 1, "dead")])
def test_somebody_at_a_terminal_is_asked(
    app: Celery, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, state: str
) -> None:
    """The question names how many and which; anything but yes leaves them alone."""
    monkeypatch.setattr(output, "somebody_there", lambda: True)
    result = call(app, "dlq", "discard", "--task", "shop.charge", "--why", "x", stdin=answer)
    assert result.exit_code == code
    assert "Discard 4 letters (task=shop.charge) for good?" in result.stderr
    assert states(app) == [state] * 4


def test_a_dry_run_changes_nothing(app: Celery) -> None:
    """``--dry-run`` counts, asks nothing and closes nothing."""
    result = call(app, "dlq", "discard", "--task", "shop.charge", "--why", "x", "--dry-run", "--json")
    assert answers(result) == [{"selected": 4, "discarded": 0, "problems": [], "dry_run": True}]
    assert states(app) == ["dead"] * 4


def test_an_unknown_id_stops_it_all(app: Celery) -> None:
    """A misspelt id is exit code 3, and the others named beside it are left alone."""
    result = call(app, "dlq", "discard", "task-1-0-3", "nonsense", "--why", "x", "--yes")
    assert result.exit_code == 3
    assert states(app) == ["dead"] * 4


def test_the_same_command_goes_on_where_it_stopped(app: Celery) -> None:
    """Ids that were closed before are named and skipped, so a list of ids can be given again."""
    ids = [f"task-{number}-0-3" for number in range(4)]
    store_of(app).discard(ids[0], by="ann", why="first half")
    result = call(app, "dlq", "discard", *ids, "--why", "x", "--yes")
    assert result.exit_code == 1
    assert "'task-0-0-3' is discarded" in result.stderr
    assert states(app) == ["discarded"] * 4


def test_trouble_with_one_letter_is_not_trouble_for_the_next(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter whose chord cannot be told is reported; the rest is discarded; exit code 1."""
    discard = Hardening.discard

    def odd(self: Hardening, letter_ids: Sequence[str], *, by: str, why: str) -> int:
        if "task-1-0-3" in letter_ids:
            raise DeadLetterError("its chord could not be told")
        return discard(self, letter_ids, by=by, why=why)

    monkeypatch.setattr(Hardening, "discard", odd)
    result = call(app, "dlq", "discard", "--all", "--why", "x", "--yes")
    assert result.exit_code == 1
    assert "its chord could not be told" in result.stderr
    assert states(app) == ["discarded", "dead", "discarded", "discarded"]


def test_ctrl_c_comes_between_two_letters(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C does not tear a discard apart: the letter under way is finished, the rest is left, and it is said."""
    discard = Hardening.discard

    def interrupted(self: Hardening, letter_ids: Sequence[str], *, by: str, why: str) -> int:
        if "task-1-0-3" in letter_ids:
            os.kill(os.getpid(), signal.SIGINT)
        return discard(self, letter_ids, by=by, why=why)

    monkeypatch.setattr(Hardening, "discard", interrupted)
    result = call(app, "dlq", "discard", "--all", "--why", "x", "--yes")
    assert result.exit_code == 130
    assert "2 of 4 letters were discarded" in result.stderr
    assert states(app) == ["discarded", "discarded", "dead", "dead"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_store_that_goes_away_half_way_is_said(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 4, with how far it came."""
    discard = Hardening.discard

    def failing(self: Hardening, letter_ids: Sequence[str], *, by: str, why: str) -> int:
        if "task-2-0-3" in letter_ids:
            raise StoreUnavailableError("closing a dead letter", "gone")
        return discard(self, letter_ids, by=by, why=why)

    monkeypatch.setattr(Hardening, "discard", failing)
    result = call(app, "dlq", "discard", "--all", "--why", "x", "--yes")
    assert result.exit_code == 4
    assert "2 of 4 letters were discarded" in result.stderr
