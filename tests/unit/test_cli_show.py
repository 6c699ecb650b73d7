from __future__ import annotations

import pytest

from celery_hardened.dead_letter.letter import Attempt
from tests.support.cli import SECRET, answers, call, make_app, make_letter, store_of


def test_people_see_the_whole_case() -> None:
    """Error, timeline of the attempts, traceback, message and audit are all there."""
    app = make_app()
    store = store_of(app)
    store.put(make_letter())
    store.discard("task-1-0-3", by="ann@host", why="gateway is gone")

    shown = call(app, "dlq", "show", "task-1-0-3").stdout

    assert "TimeoutError: gateway did not answer" in shown
    assert "Traceback (most recent call last):" in shown
    assert '{"order": 1}' in shown
    assert "discarded by ann@host: gateway is gone" in shown
    timeline = [line for line in shown.splitlines() if line.startswith("1970-01-01T00:16")]
    assert [line.split("ago")[1].strip() for line in timeline] == [
        "published",
        "attempt failed: TimeoutError on w1@host",
        "attempt failed: TimeoutError on w2@host",
    ]


def test_machines_get_one_object() -> None:
    """``--json`` tells the same in one object."""
    app = make_app()
    store_of(app).put(make_letter())
    (known,) = answers(call(app, "dlq", "show", "task-1-0-3", "--json"))
    assert known["attempts"] == [
        {"at": 1000.0, "worker": "w1@host", "error": "TimeoutError"},
        {"at": 1010.0, "worker": "w2@host", "error": "TimeoutError"},
    ]
    assert known["properties"] == {"correlation_id": "task-1", "priority": 3}
    assert known["audit"] == []
    assert known["body_bytes"] == len(make_letter().body)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_arguments_are_hidden_until_asked_for(form: tuple[str, ...]) -> None:
    """Body, argsrepr and kwargsrepr all hold the arguments; none is shown unasked."""
    app = make_app()
    store_of(app).put(make_letter())

    hidden = call(app, "dlq", "show", "task-1-0-3", *form).output
    assert SECRET not in hidden
    assert "argsrepr" not in hidden
    shown = call(app, "dlq", "show", "task-1-0-3", "--show-args", *form).output
    assert shown.count(SECRET) == 2
    assert "argsrepr" in shown


def test_an_unknown_letter_is_exit_code_3() -> None:
    """A script can tell "no such letter" from "failed"."""
    result = call(make_app(), "dlq", "show", "task-9-0-0")
    assert result.exit_code == 3
    assert "task-9-0-0" in result.stderr
    assert result.stdout == ""


def test_a_broken_message_can_be_looked_at() -> None:
    """A letter that is almost empty, or full of oddities, is shown all the same."""
    app = make_app()
    store = store_of(app)
    store.put(
        make_letter(1, id="tag-1", reason="malformed", task=None, task_id=None, headers={}, attempts=(), body=b"")
    )
    store.put(
        make_letter(
            2,
            id="odd",
            error_message="\x1b]0;pwned\x07 redis://:pw@host",
            traceback="\x1b[2J\ud800\u202e",
            headers={"x": {"y": b"\xff"}},
            attempts=(Attempt(1e300, "\x1b[A", "E\r"),),
            last_failed=float("inf"),
        )
    )
    for letter_id in ("tag-1", "odd"):
        result = call(app, "dlq", "show", letter_id)
        assert result.exit_code == 0, result.output
        assert all(char.isprintable() or char == "\n" for char in result.stdout)
        assert ":pw@" not in result.stdout
        assert call(app, "dlq", "show", letter_id, "--json").exit_code == 0
