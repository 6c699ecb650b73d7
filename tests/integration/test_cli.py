"""The real ``celery`` command against a real store, broker and worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery.result import AsyncResult

from tests.fixtures.processes import LoadProject, RunCelery, StartWorker
from tests.support.letters import letters
from tests.support.notes import notes
from tests.support.ports import free_port
from tests.support.shop import SHOP
from tests.support.terminal import at_terminal
from tests.support.until import until
from tests.support.worker import MODULE, lay_out

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("broker", ["redis"], indirect=True)]


def records(result: Any) -> list[Any]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def succeeded(project: ModuleType, sent: Sequence[AsyncResult[Any]]) -> list[Any]:
    """What all of them return in the end. A result that is asked while its redrive still runs keeps the failure before
    it for good, so others are asked first."""

    def all_have() -> bool:
        return all(project.app.AsyncResult(one.id).state == "SUCCESS" for one in sent)

    until(all_have, within=60, what="all of them to succeed")
    return [one.get(timeout=60) for one in sent]


def test_from_failure_to_success(
    start_worker: StartWorker, load_project: LoadProject, run_celery: RunCelery, out: Path
) -> None:
    """Tasks fail, an operator lists them, looks at one, mends the cause, redrives: all succeed."""
    start_worker(SHOP)
    project = load_project(SHOP)
    sent = [project.fixable.delay(f"o{number}") for number in range(5)]
    until(lambda: len(letters(project)) == 5, what="five dead letters")

    listed = records(run_celery(SHOP, "hardened", "dlq", "list", "--task", "proj.fixable", "--json"))
    assert {record["task_id"] for record in listed} == {result.id for result in sent}
    assert {record["error_type"] for record in listed} == {"ValueError"}
    shown = run_celery(SHOP, "hardened", "dlq", "show", listed[0]["id"])
    assert shown.returncode == 0
    assert "not fixed yet" in shown.stdout
    assert "Traceback" in shown.stdout
    (stats,) = records(run_celery(SHOP, "hardened", "dlq", "stats", "--json"))
    assert stats["open"] == 5
    assert [(cause["count"], cause["task"]) for cause in stats["causes"]] == [(5, "proj.fixable")]

    (out / "fixed").touch()
    redriven = run_celery(
        SHOP, "hardened", "dlq", "redrive", "--task", "proj.fixable", "--yes", "--why", "fixed", "--canary", "1"
    )
    assert redriven.returncode == 0, redriven.stderr
    assert "sent 5 of 5 letters" in redriven.stdout
    assert "canary: 1 succeeded" in redriven.stdout
    assert sorted(succeeded(project, sent)) == ["o0", "o1", "o2", "o3", "o4"]
    until(lambda: len(letters(project, state="resolved")) == 5, what="all letters to be resolved")
    assert records(run_celery(SHOP, "hardened", "dlq", "list", "--json")) == []


def test_a_redrive_stopped_by_ctrl_c_goes_on(
    start_worker: StartWorker,
    load_project: LoadProject,
    run_celery: RunCelery,
    environment: dict[str, str],
    tmp_path: Path,
    out: Path,
) -> None:
    """Ctrl-C at the terminal in the middle of a redrive; the same command again; each task ran once more, no more."""
    start_worker(SHOP)
    project = load_project(SHOP)
    sent = [project.fixable.delay(f"o{number}") for number in range(12)]
    until(lambda: len(letters(project)) == 12, what="twelve dead letters")
    (out / "fixed").touch()

    code, seen = terminal(
        environment, tmp_path, {"Redrive 12 letters": "y\n", "25%": "\x03"},
        "dlq", "redrive", "--all", "--rate", "1", "--batch", "1",
    )  # fmt: skip

    assert code == 130, seen
    assert "The same command goes on" in seen
    assert 0 < len(letters(project)) < 12
    again = run_celery(SHOP, "hardened", "dlq", "redrive", "--all", "--yes")
    assert again.returncode == 0, again.stderr
    assert len(set(succeeded(project, sent))) == 12
    assert len([line for line in notes(out, "starts") if line.startswith("proj.fixable ")]) == 24


def test_a_person_gets_a_table_and_is_asked(
    start_worker: StartWorker,
    load_project: LoadProject,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """At a terminal: a table with rich, a question before two letters are discarded, a bar while it works."""
    start_worker(SHOP)
    project = load_project(SHOP)
    for order in ("a", "b"):
        project.broken.delay(order, secret="hunter2")
    until(lambda: len(letters(project)) == 2, what="two dead letters")

    code, seen = terminal(environment, tmp_path, {}, "dlq", "list")
    assert code == 0
    assert "\x1b[1m" in seen
    assert "proj.broken" in seen
    code, seen = terminal({**environment, "NO_COLOR": "1"}, tmp_path, {}, "dlq", "list", "--show-args")
    assert code == 0
    assert "\x1b[" not in seen
    assert "hunter2" in seen

    code, seen = terminal(environment, tmp_path, {"Discard 2 letters": "n\n"}, "dlq", "discard", "--all", "--why", "x")
    assert code == 1, seen
    assert len(letters(project)) == 2
    code, seen = terminal(environment, tmp_path, {"Discard 2 letters": "y\n"}, "dlq", "discard", "--all", "--why", "x")
    assert code == 0, seen
    assert "100%" in seen
    assert "discarded 2 of 2 letters" in seen
    assert letters(project) == []


def test_letters_leave_and_come_back(
    start_worker: StartWorker, load_project: LoadProject, run_celery: RunCelery, tmp_path: Path, unique: str
) -> None:
    """Exported from one store, imported into an empty one, redriven from there."""
    start_worker(SHOP)
    project = load_project(SHOP)
    project.broken.delay("o1")
    until(lambda: letters(project), what="a dead letter")
    file = tmp_path / "letters.jsonl"
    other = {"KEY_PREFIX": f"other-{unique}"}

    assert run_celery(SHOP, "hardened", "dlq", "export", str(file)).returncode == 0
    assert "imported 1 letter" in run_celery(SHOP, "hardened", "dlq", "import", str(file), env=other).stdout
    assert "imported 0 letters" in run_celery(SHOP, "hardened", "dlq", "import", str(file), env=other).stdout
    (record,) = records(run_celery(SHOP, "hardened", "dlq", "list", "--json", env=other))
    assert record["id"] == letters(project)[0].letter.id


def test_a_switch_reaches_the_workers(
    start_worker: StartWorker, load_project: LoadProject, run_celery: RunCelery, out: Path
) -> None:
    """``switch set retries off``: the next failure that would be retried is a dead letter instead."""
    conf = {"CONF": "{'hardened_switch_ttl': 0.1}"}
    start_worker(SHOP, env=conf)
    project = load_project(SHOP)
    assert run_celery(SHOP, "hardened", "switch", "set", "retries", "off", "--why", "drill").returncode == 0

    project.flaky.delay("o1")
    (letter,) = until(lambda: letters(project), what="a dead letter")
    assert letter.letter.task == "proj.flaky"
    assert letter.letter.attempt == 0

    assert run_celery(SHOP, "hardened", "switch", "clear", "retries").returncode == 0
    assert project.flaky.delay("o2").get(timeout=60) == "o2"


def test_exit_codes(run_celery: RunCelery) -> None:
    """No such letter is 3, a store that does not answer 4, an app that is not hardened 2; nobody sees a traceback."""
    plain = "from celery import Celery\napp = Celery('proj', broker='memory://')\n"
    dead = {"RECORDS_URL": f"redis://:s3cret@127.0.0.1:{free_port()}/0"}
    cases = [
        (SHOP, {}, ["show", "nonsense"], 3),
        (SHOP, dead, ["stats"], 4),
        (plain, {}, ["stats"], 2),
        (SHOP, {}, ["list", "--reason", "boredom"], 2),
        (SHOP, {}, ["discard", "--why", "x"], 2),
        (SHOP, {}, ["list"], 0),
    ]
    for source, env, args, code in cases:
        result = run_celery(source, "hardened", "dlq", *args, env=env)
        assert result.returncode == code, (args, result.stderr)
        assert "Traceback" not in result.stderr
        assert "s3cret" not in result.stderr


def terminal(environment: Mapping[str, str], tmp_path: Path, answers: Mapping[str, str], *args: str) -> tuple[int, str]:
    """``celery -A proj hardened ARGS`` at a terminal."""
    directory = tmp_path / "terminal"
    paths = lay_out(directory, SHOP)
    argv = [sys.executable, "-m", "celery", "-A", MODULE, "hardened", *args]
    return at_terminal(argv, cwd=directory, env={**environment, **paths}, answers=answers)
