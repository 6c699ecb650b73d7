from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from celery_hardened import Hardening, Query, StoreUnavailableError
from celery_hardened.cli import output
from celery_hardened.dead_letter.redrive_run import RedriveReport
from tests.support.cli import answers, call, make_app, make_letter, store_of


@pytest.fixture
def app() -> Celery:
    """Four letters of one task, in a queue of this test's own."""
    app = make_app()
    for number in range(4):
        store_of(app).put(make_letter(number, queue=_queue(app)))
    return app


def _queue(app: Celery) -> str:
    return str(app.conf.task_default_queue)


def sent(app: Celery, queue: str | None = None) -> list[Any]:
    """Take what was sent off the broker."""
    messages = []
    with app.connection_for_read() as connection, connection.SimpleQueue(queue or _queue(app)) as incoming:
        while incoming.qsize():
            messages.append(incoming.get_nowait())
            messages[-1].ack()
    return messages


def states(app: Celery) -> list[str]:
    return [store_of(app).get(f"task-{number}-0-3").state for number in range(4)]


def test_a_letter_is_sent_again_as_it_was(app: Celery) -> None:
    """Same body, same id; the audit says who and why."""
    result = call(app, "dlq", "redrive", "task-2-0-3", "--by", "ann@host", "--why", "gateway is back")
    assert (result.exit_code, result.stdout) == (0, "sent 1 of 1 letter\n")
    (message,) = sent(app)
    assert message.body == make_letter(2).body
    assert message.headers["id"] == "task-2"
    stored = store_of(app).get("task-2-0-3")
    assert stored.state == "redriven"
    assert [(entry.by, entry.why) for entry in stored.audit] == [("ann@host", "gateway is back")]


def test_machines_get_a_report(app: Celery) -> None:
    """``--json`` counts what became of every letter."""
    store_of(app).put(make_letter(9, redrives=3))
    result = call(app, "dlq", "redrive", "--all", "--yes", "--json")
    assert result.exit_code == 1
    (report,) = answers(result)
    refused = report.pop("refused")
    assert list(refused) == ["task-9-0-3"]
    assert "hardened_redrive_max" in refused["task-9-0-3"]
    assert report == {
        "selected": 5, "sent": 4, "failed": {}, "skipped": 0, "stopped": None, "canary": None, "dry_run": False,
    }  # fmt: skip


def test_force_sends_what_the_loop_limit_refuses() -> None:
    """A letter that was redriven too often goes only with ``--force``."""
    app = make_app()
    store_of(app).put(make_letter(1, redrives=3, queue=_queue(app)))
    refused = call(app, "dlq", "redrive", "--all")
    assert refused.exit_code == 1
    assert "task-1-0-3" in refused.stderr
    assert sent(app) == []
    assert call(app, "dlq", "redrive", "--all", "--force").exit_code == 0
    assert len(sent(app)) == 1


def test_a_dry_run_sends_nothing(app: Celery) -> None:
    """``--dry-run`` needs no yes, says what would be sent, and changes nothing."""
    result = call(app, "dlq", "redrive", "--task", "shop.charge", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "would send 4 of 4 letters\n")
    assert sent(app) == []
    assert states(app) == ["dead"] * 4


def test_several_letters_need_a_yes(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused where nobody can be asked; asked, with the number that would be sent, where somebody can."""
    assert call(app, "dlq", "redrive", "--all").exit_code == 1
    monkeypatch.setattr(output, "somebody_there", lambda: True)
    declined = call(app, "dlq", "redrive", "--all", "--limit", "3", stdin="n\n")
    assert declined.exit_code == 1
    assert "Redrive 3 letters (every open letter)?" in declined.stderr
    assert states(app) == ["dead"] * 4
    assert call(app, "dlq", "redrive", "--all", "--limit", "1").exit_code == 0
    assert call(app, "dlq", "redrive", "--all", "--limit", "2", stdin="y\n").exit_code == 0
    assert states(app) == ["redriven", "redriven", "redriven", "dead"]


def test_no_filter_does_not_mean_everything(app: Celery) -> None:
    """A forgotten filter sends nothing."""
    assert call(app, "dlq", "redrive", "--yes").exit_code == 2
    assert call(app, "dlq", "redrive", "--yes", "--all", "--queue", "x").exit_code == 2
    assert states(app) == ["dead"] * 4


def test_ids_are_checked_before_anything_is_sent(app: Celery) -> None:
    """A misspelt id is exit code 3 and nothing sent; a closed letter is refused and the others are sent."""
    assert call(app, "dlq", "redrive", "task-1-0-3", "nonsense", "--yes").exit_code == 3
    assert states(app) == ["dead"] * 4
    store_of(app).discard("task-0-0-3", by="ann", why="x")
    result = call(app, "dlq", "redrive", "task-0-0-3", "task-1-0-3", "--yes")
    assert result.exit_code == 1
    assert "it is discarded already" in result.stderr
    assert states(app) == ["discarded", "redriven", "dead", "dead"]


def test_arguments_can_be_edited_and_the_queue_changed(app: Celery) -> None:
    """``--edit-args`` replaces, ``--edit-kwargs`` is laid over, ``--to-queue`` sends it elsewhere."""
    queue = f"other-{_queue(app)}"
    options = ["--edit-args", "[7]", "--edit-kwargs", '{"cents": 500}', "--to-queue", queue]
    assert call(app, "dlq", "redrive", "task-1-0-3", *options).exit_code == 0
    (message,) = sent(app, queue)
    args, kwargs, _ = json.loads(message.body)
    assert args == [7]
    assert kwargs == {"card": "hunter2", "cents": 500}


@pytest.mark.parametrize(
    "options",
    [
        ["--edit-args", "{}"],
        ["--edit-kwargs", "[]"],
        ["--edit-args", "[1"],
        ["--rate", "0"],
        ["--batch", "0"],
        ["--limit", "0"],
        ["--canary", "0"],
        ["--canary", "1", "--canary-max-failed", "101"],
    ],
)
def test_senseless_options_send_nothing(app: Celery, options: list[str]) -> None:
    """They are wrong usage, found before anything is sent."""
    assert call(app, "dlq", "redrive", "--all", "--yes", *options).exit_code == 2
    assert states(app) == ["dead"] * 4


def test_a_canary_that_does_not_come_back_stops_the_redrive(app: Celery) -> None:
    """Nobody serves the queue here: after the wait the rest is left alone, with exit code 1."""
    result = call(app, "dlq", "redrive", "--all", "--yes", "--canary", "1", "--canary-wait", "0")
    assert result.exit_code == 1
    assert "canary: 0 succeeded, 0 died again, 1 had not finished" in result.stdout
    assert "left alone" in result.stderr
    assert states(app) == ["redriven", "dead", "dead", "dead"]


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (StoreUnavailableError("beginning a redrive", "gone"), 4)]
)
def test_cut_short_it_says_how_to_go_on(
    app: Celery, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    """Ctrl-C, or the store gone half-way: how far it came, and that the same command resumes it."""
    redrive = Hardening.redrive

    def cut_short(self: Hardening, query: Query, **options: Any) -> RedriveReport:
        redrive(self, query, **{**options, "limit": 2})
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Hardening, "redrive", cut_short)
        result = call(app, "dlq", "redrive", "--all", "--yes")
    assert result.exit_code == code
    assert "About 2 of 4 letters were dealt with" in result.stderr
    assert "same command" in result.stderr
    assert call(app, "dlq", "redrive", "--all", "--yes").exit_code == 0
    assert len(sent(app)) == 4


def test_refusals_are_grouped_by_reason() -> None:
    """A thousand refusals for one reason are one line, not a thousand."""
    app = make_app()
    for number in range(9):
        store_of(app).put(make_letter(number, redrives=3))
    result = call(app, "dlq", "redrive", "--all", "--yes")
    assert result.stderr.count("hardened_redrive_max") == 1
    assert "9 letters refused" in result.stderr
    assert "and 6 more" in result.stderr
