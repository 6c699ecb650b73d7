from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from celery_hardened import Query, StoredLetter
from celery_hardened.cli.archive import dump_line, load_line
from celery_hardened.cli.dlq import move
from celery_hardened.dead_letter.contract import Audit
from tests.support.cli import answers, call, make_app, make_letter, store_of


def test_a_line_tells_everything() -> None:
    """A letter comes back from its line as it was, state, time and audit included."""
    stored = StoredLetter(
        letter=make_letter(body=bytes(range(256)), error_message="zwölf\n"),
        state="discarded",
        stored_at=1234.5,
        audit=(Audit(1235.0, "discarded", "ann", "why"),),
    )
    line = dump_line(stored)
    assert "\n" not in line
    assert load_line(line.encode()) == stored


def test_letters_move_from_one_store_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What export writes, import reads, in any number of batches; doing it twice adds nothing."""
    monkeypatch.setattr(move, "_BATCH", 3)
    here, there = make_app(), make_app()
    for number in range(8):
        store_of(here).put(make_letter(number))
    file = tmp_path / "letters.jsonl"

    result = call(here, "dlq", "export", str(file), "--json")
    assert answers(result) == [{"exported": 8, "file": str(file)}]
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(file.read_text().splitlines()) == 8

    assert answers(call(there, "dlq", "import", str(file), "--json")) == [
        {"imported": 8, "already_there": 0, "bad": []}
    ]
    assert answers(call(there, "dlq", "import", str(file), "--json")) == [
        {"imported": 0, "already_there": 8, "bad": []}
    ]
    everyone = [one.letter for one in store_of(here).find(Query()).letters]
    assert [one.letter for one in store_of(there).find(Query()).letters] == everyone


def test_a_pipe_will_do() -> None:
    """``-`` is standard output and input; the report keeps out of the way."""
    here, there = make_app(), make_app()
    store_of(here).put(make_letter(1))
    store_of(here).put(make_letter(2))
    exported = call(here, "dlq", "export", "-", "task-1-0-3")
    assert len(exported.stdout.splitlines()) == 1
    assert "exported 1 letter" in exported.stderr
    assert call(there, "dlq", "import", "-", stdin=exported.stdout).exit_code == 0
    assert store_of(there).get("task-1-0-3").letter == make_letter(1)


def _edited(**changes: object) -> str:
    line = json.loads(dump_line(StoredLetter(letter=make_letter(7), state="dead", stored_at=1.0)))
    envelope = {name: value for name, value in changes.items() if name not in line}
    line |= {name: value for name, value in changes.items() if name in line}
    line["letter"] |= envelope
    return json.dumps(line)


BAD_LINES = [
    "{",
    "[]",
    "7",
    "\x00\xff",
    "[" * 100_000,
    _edited(v=2),
    _edited(v="1"),
    _edited(state="lost"),
    _edited(stored_at="yesterday"),
    _edited(stored_at=float("nan")),
    _edited(audit=[{"at": 1.0}]),
    _edited(audit=7),
    _edited(id=""),
    _edited(id=None),
    _edited(headers=7),
    _edited(reason="boredom"),
    _edited(body="%%%"),
    _edited(max_age="1"),
    _edited(attempts=[7]),
    _edited(task=["x"]),
]


def test_bad_lines_are_named_and_good_ones_imported(tmp_path: Path) -> None:
    """One damaged line costs that line, not the file: exit code 1, its number, and all others imported."""
    good = dump_line(StoredLetter(letter=make_letter(1), state="dead", stored_at=1.0))
    last = dump_line(StoredLetter(letter=make_letter(2), state="dead", stored_at=2.0))
    file = tmp_path / "letters.jsonl"
    file.write_bytes("\n".join([good, "", *BAD_LINES, last]).encode("latin-1"))
    app = make_app()

    result = call(app, "dlq", "import", str(file), "--json")

    assert result.exit_code == 1
    (report,) = answers(result)
    assert (report["imported"], report["already_there"]) == (2, 0)
    assert [bad["line"] for bad in report["bad"]] == list(range(3, 3 + len(BAD_LINES)))
    assert f"line {2 + len(BAD_LINES)}: " in result.stderr


def test_an_export_never_overwrites_by_accident(tmp_path: Path) -> None:
    """The file may be the only copy of letters that retention has dropped since."""
    app = make_app()
    store_of(app).put(make_letter())
    file = tmp_path / "letters.jsonl"
    file.write_text("precious")
    assert call(app, "dlq", "export", str(file)).exit_code == 1
    assert file.read_text() == "precious"
    assert call(app, "dlq", "export", str(file), "--force").exit_code == 0
    assert load_line(file.read_bytes()).letter == make_letter()


def test_an_export_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C half-way leaves no file that looks complete."""
    monkeypatch.setattr(move, "_BATCH", 1)
    app = make_app()
    store = store_of(app)
    for number in range(3):
        store.put(make_letter(number))
    find = store.find

    def interrupted(query: Query, *, limit: int = 50, cursor: str | None = None) -> object:
        if cursor:
            os.kill(os.getpid(), signal.SIGINT)
        return find(query, limit=limit, cursor=cursor)

    monkeypatch.setattr(store, "find", interrupted)
    result = call(app, "dlq", "export", str(tmp_path / "letters.jsonl"))
    assert result.exit_code == 130
    assert "was not written" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_import_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C half-way says how far it came; the same command does the rest and nothing twice."""
    monkeypatch.setattr(move, "_BATCH", 1)
    app = make_app()
    store = store_of(app)
    put_many = store.put_many

    def interrupted(letters: Iterable[StoredLetter]) -> int:
        letters = list(letters)
        if letters[0].letter.task_id == "task-1":
            os.kill(os.getpid(), signal.SIGINT)
        return put_many(letters)

    file = tmp_path / "letters.jsonl"
    lines = [dump_line(StoredLetter(letter=make_letter(n), state="dead", stored_at=1.0)) + "\n" for n in range(3)]
    file.write_text("".join(lines))
    with monkeypatch.context() as patch:
        patch.setattr(store, "put_many", interrupted)
        result = call(app, "dlq", "import", str(file))
    assert result.exit_code == 130
    assert "1 letter imported so far" in result.stderr
    assert answers(call(app, "dlq", "import", str(file), "--json")) == [{"imported": 2, "already_there": 1, "bad": []}]


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, command: str) -> None:
    """A wrong path is exit code 1 and no traceback."""
    result = call(make_app(), "dlq", command, str(tmp_path / "nowhere" / "letters.jsonl"))
    assert result.exit_code == 1
    assert "nowhere" in result.stderr
