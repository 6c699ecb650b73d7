from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest

from celery_hardened.cli.dlq import list as list_module
from tests.support.cli import SECRET, answers, call, make_app, make_letter, store_of


def test_people_get_a_table_newest_first() -> None:
    """One line a letter, aligned, with what is needed to tell them apart."""
    app = make_app()
    store_of(app).put(make_letter(1))
    store_of(app).put(make_letter(2, task="shop.refund", queue="slow", error_type="shop.errors.Gone"))

    result = call(app, "dlq", "list")

    assert result.exit_code == 0
    header, first, second = result.stdout.splitlines()
    assert header.split()[:5] == ["ID", "AGE", "STATE", "REASON", "TASK"]
    assert first.split()[0] == "task-2-0-3"
    assert "shop.errors.Gone" in first
    assert second.split()[2:6] == ["dead", "exhausted", "shop.charge", "payments"]
    assert header.index("STATE") == first.index("dead") == second.index("dead")


def test_machines_get_one_object_a_line() -> None:
    """``--json`` prints one compact ASCII object a letter."""
    app = make_app()
    store_of(app).put(make_letter(1, error_message="zwölf"))
    store_of(app).put(make_letter(2))

    result = call(app, "dlq", "list", "--json")

    second, first = answers(result)
    assert result.stdout.isascii()
    assert (first["id"], first["state"], first["task"], first["queue"]) == (
        "task-1-0-3",
        "dead",
        "shop.charge",
        "payments",
    )
    assert first["error_message"] == "zwölf"
    assert first["log_args"] == {"order": 1}
    assert second["id"] == "task-2-0-3"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_arguments_are_hidden_until_asked_for(form: tuple[str, ...]) -> None:
    """Neither table nor JSON shows an argument, unless ``--show-args`` says so."""
    app = make_app()
    store_of(app).put(make_letter())

    assert SECRET not in call(app, "dlq", "list", *form).output
    assert SECRET in call(app, "dlq", "list", "--show-args", *form).output


def test_filters_are_all_applied() -> None:
    """Every given filter must match; ids are a filter too."""
    app = make_app()
    for number in range(4):
        store_of(app).put(
            make_letter(
                number,
                task="shop.charge" if number % 2 else "shop.refund",
                reason="poison" if number > 1 else "exhausted",
                error_type="Gone",
                fingerprint=f"f{number}",
            )
        )

    def ids(*options: str) -> list[str]:
        return [record["task_id"] for record in answers(call(app, "dlq", "list", "--json", *options))]

    assert ids("--task", "shop.charge") == ["task-3", "task-1"]
    assert ids("--task", "shop.charge", "--reason", "poison") == ["task-3"]
    assert ids("--fingerprint", "f0") == ["task-0"]
    assert ids("--error", "Gone", "--queue", "payments", "--since", "1h", "task-2-0-3") == ["task-2"]
    assert ids("--until", "1h") == []
    assert ids("--state", "discarded") == []
    assert ids("--task", "") == []


def test_pages_follow_the_cursor() -> None:
    """A page says how to get the next one, on standard error; the last page says nothing."""
    app = make_app()
    for number in range(5):
        store_of(app).put(make_letter(number))
    seen, more = [], ()
    while True:
        result = call(app, "dlq", "list", "--json", "--limit", "2", *more)
        seen += [record["task_id"] for record in answers(result)]
        if not result.stderr:
            break
        more = ("--cursor", result.stderr.split()[-1])
    assert seen == [f"task-{number}" for number in (4, 3, 2, 1, 0)]


def test_all_walks_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--all`` prints every letter once, however many pages that takes."""
    monkeypatch.setattr(list_module, "_PAGE", 3)
    app = make_app()
    for number in range(10):
        store_of(app).put(make_letter(number))
    result = call(app, "dlq", "list", "--all", "--json")
    assert [record["task_id"] for record in answers(result)] == [f"task-{number}" for number in range(9, -1, -1)]
    assert not result.stderr


def test_no_letters_is_no_error() -> None:
    """An empty list is an answer: exit code 0, nothing on standard output."""
    result = call(make_app(), "dlq", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no letters" in result.stderr


@pytest.mark.parametrize("cursor", ["next", "-", "1e"])
def test_a_cursor_that_is_none_is_wrong_usage(cursor: str) -> None:
    """A mistyped cursor is said to be one."""
    app = make_app()
    store_of(app).put(make_letter())
    assert call(app, "dlq", "list", "--cursor", cursor).exit_code == 2


@pytest.mark.parametrize("terminal", [False, True])
def test_error_messages_are_shown_not_obeyed(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    """Escapes and markup in an error message appear as text, with and without rich."""
    app = make_app()
    store_of(app).put(make_letter(error_message="\x1b[2J[red]x[/blue]", task="t", queue="q"))
    pytest.importorskip("rich")
    if terminal:
        monkeypatch.setattr(list_module.output, "on_terminal", lambda: True)
    result = call(app, "dlq", "list", env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert result.exit_code == 0
    assert r"\x1b[2J[red]x[/blue]" in result.stdout


def test_no_color_is_honoured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR the table holds no escape at all; without it, it does."""
    app = make_app()
    store_of(app).put(make_letter())
    monkeypatch.setattr(list_module.output, "on_terminal", lambda: True)
    environment = {"COLUMNS": "200", "TERM": "xterm", "FORCE_COLOR": "1"}
    assert "\x1b[" not in call(app, "dlq", "list", env={**environment, "NO_COLOR": "1"}).stdout
    assert "\x1b[" in call(app, "dlq", "list", env={**environment, "NO_COLOR": None}).stdout


def test_without_rich_a_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich is an extra: without it the same table is aligned text."""
    app = make_app()
    store_of(app).put(make_letter())
    now = time.time()  # of both tables: else the letter may be older by a second in one of them
    monkeypatch.setattr(list_module, "time", SimpleNamespace(time=lambda: now))
    plain = call(app, "dlq", "list").stdout
    monkeypatch.setattr(list_module.output, "on_terminal", lambda: True)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert call(app, "dlq", "list").stdout == plain


def test_bodies_that_are_no_json_are_never_decoded() -> None:
    """``--show-args`` reads JSON only: reading pickle would run what the sender wrote."""
    app = make_app()
    store_of(app).put(make_letter(1, content_type="application/x-python-serialize", body=b"cos\nsystem\n(S'x'\ntR."))
    store_of(app).put(make_letter(2, body=b"{", content_type="application/json"))
    store_of(app).put(make_letter(3, body_compressed=True))
    store_of(app).put(make_letter(4, body=json.dumps({"args": [1], "kwargs": {}}).encode()))
    four, three, two, one = [
        record["arguments"] for record in answers(call(app, "dlq", "list", "--json", "--show-args"))
    ]
    assert four == {"args": [1], "kwargs": {}}
    assert all(set(each) == {"undecoded"} for each in (three, two, one))
    assert "x-python-serialize" in one["undecoded"]
