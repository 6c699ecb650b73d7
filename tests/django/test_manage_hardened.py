"""``manage.py hardened``: the command line of ``celery -A proj hardened``, for the app of the project."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery, _state
from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import CommandError

from celery_hardened.cli import hardened
from celery_hardened.contrib.django.management.commands.hardened import Command
from tests.support.cli import call, make_app, make_letter, store_of

ROOT = Path(__file__).parents[2]

CELERY = """
import os
from celery import Celery
from celery_hardened import HardenedTask, harden
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
harden(app)
other = harden(Celery("other", broker="memory://", set_as_current=False))
other.conf.hardened_dead_letter_store = "memory"
plain = Celery("plain", broker="memory://", set_as_current=False)
"""

SETTINGS = """
SECRET_KEY = "of a test"
INSTALLED_APPS = ["django_celery_beat", "celery_hardened.contrib.django", "django.contrib.contenttypes"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
USE_TZ = True
SILENCED_SYSTEM_CHECKS = ["celery_hardened.I001"]
CELERY_BROKER_URL = "memory://"
CELERY_TIMEZONE = TIME_ZONE = "UTC"
CELERY_HARDENED_DEAD_LETTER_STORE = "django"
CELERY_HARDENED_REDIS_URL = "redis://127.0.0.1:1/0"
"""

MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


class Shop:
    """A project on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        package = folder / "shop"
        package.mkdir()
        (folder / "manage.py").write_text(MANAGE)
        (package / "settings.py").write_text(SETTINGS)
        (package / "celery.py").write_text(CELERY)
        self.init = package / "__init__.py"
        self.init.write_text("from .celery import app as celery_app\n")

    def manage(self, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "CELERY_"))}
        return subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=self.folder,
            env={**env, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=check,
        )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """With its tables."""
    made = Shop(tmp_path_factory.mktemp("project"))
    made.manage("migrate", "--verbosity", "0", check=True)
    return made


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """The current app, with letters in memory."""
    made = make_app()
    monkeypatch.setattr(_state._tls, "current_app", made)
    yield made
    made.close()


# --- from a shell ---------------------------------------------------------------------------------------


def test_it_asks_the_apps_own_store(shop: Shop) -> None:
    """Dead letters in the project's database, without ``-A``; what Django adds to each command is taken."""
    for words in (
        ("hardened", "--settings", "shop.settings", "--no-color", "dlq", "list", "--json"),
        ("hardened", "dlq", "list", "--json", "--settings=shop.settings", "--pythonpath", "."),
    ):
        answered = shop.manage(*words)
        assert (answered.returncode, answered.stdout, answered.stderr) == (0, "", ""), words


def test_a_store_that_does_not_answer(shop: Shop) -> None:
    """Exit code 4, one sentence, no traceback."""
    answered = shop.manage("hardened", "switch", "list")
    assert answered.returncode == 4, answered.stderr
    assert "127.0.0.1:1" in answered.stderr
    assert "Traceback" not in answered.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("switch", "list"), 0, ""),
        (("dlq", "show", "nothing"), 3, "nothing"),
        (("dlq", "lst"), 2, "Did you mean"),
        (("--settings", "x.y", "switch", "set", "retries", "off", "--pythonpath=z"), 2, "--why"),
        (("--app", "tests.support.no_such_app", "switch", "list"), 2, "no Celery app 'tests.support.no_such_app'"),
    ],
)
def test_exit_codes(
    app: Celery, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    """Those of the page on the command line, each with a sentence."""
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "hardened", *words])
    assert (ended.value.code or 0) == code
    assert said in capsys.readouterr().err


def test_an_app_that_is_not_hardened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and what to do."""
    monkeypatch.setattr(_state._tls, "current_app", Celery("plain", broker="memory://", set_as_current=False))
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "hardened", "dlq", "list"])
    assert ended.value.code == 2
    assert "is not hardened" in capsys.readouterr().err


def test_another_app(shop: Shop) -> None:
    """``--app`` before the command, as ``celery -A``."""
    answered = shop.manage("hardened", "--app", "shop.celery:other", "switch", "list", "--json")
    assert answered.returncode == 0, answered.stderr
    assert {json.loads(line)["name"] for line in answered.stdout.splitlines()} == {"parking", "retries"}


def test_help(shop: Shop) -> None:
    """Of the group and of a command, under the name it was called by."""
    for words in (("--help",), ("dlq", "redrive", "--help")):
        answered = shop.manage("hardened", *words)
        usage = " ".join(("Usage: manage.py hardened", *words[:-1]))
        assert answered.stdout.startswith(usage), answered.stderr
        assert answered.returncode == 0


def test_a_project_that_does_not_import_its_app(shop: Shop) -> None:
    """It says so, and ``check`` does; neither makes an app up."""
    kept = shop.init.read_text()
    shop.init.write_text("")
    try:
        answered = shop.manage("hardened", "switch", "list")
        assert answered.returncode == 2
        assert "from .celery import app as celery_app" in answered.stderr
        assert "celery_hardened.W001" in shop.manage("check").stderr
        assert shop.manage("hardened", "--app", "shop.celery", "dlq", "list").returncode == 0
    finally:
        shop.init.write_text(kept)


def test_checks_of_a_whole_project(shop: Shop) -> None:
    """Nothing is said of one that is right, with its database and in production; a table that is missing is."""
    assert "no issues" in shop.manage("check").stdout
    words = ("check", "--tag", "celery_hardened", "--deploy", "--database", "default")
    answered = shop.manage(*words)
    assert "no issues" in answered.stdout, answered.stderr
    shop.manage("migrate", "celery_hardened", "0002", check=True)
    try:
        answered = shop.manage(*words)
        assert answered.returncode == 1
        assert "celery_hardened.E010" in answered.stderr
        assert "celery_hardened.0003_dead_letters" in answered.stderr
        # Or nobody could migrate.
        assert "E010" not in shop.manage("migrate", "--plan").stderr
    finally:
        shop.manage("migrate", check=True)


# --- from Python ------------------------------------------------------------------------------------------


def test_by_call_command(app: Celery) -> None:
    """Output goes where it is told to; the exit code of what fails is that of the error."""
    store_of(app).put(make_letter(1))
    out = io.StringIO()
    call_command("hardened", "dlq", "list", "--json", stdout=out)
    assert [json.loads(line)["id"] for line in out.getvalue().splitlines()] == [make_letter(1).id]
    assert out.getvalue() == call(app, "dlq", "list", "--json").stdout
    with pytest.raises(CommandError, match="nothing") as failed:
        call_command("hardened", "dlq", "show", "nothing")
    assert failed.value.returncode == 3
    with pytest.raises(CommandError, match="there is no Celery app") as failed:
        call_command("hardened", "--app", "tests.support.no_such_app:app", "dlq", "list")
    assert failed.value.returncode == 2


def test_it_has_every_command(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same click group: what is added there is here too, with the same help."""
    monkeypatch.setattr(click.formatting, "FORCED_WIDTH", 80)  # as wide as click's own runner
    assert isinstance(load_command_class(get_commands()["hardened"], "hardened"), Command)

    def walk(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
        for name, command in group.commands.items():
            yield (*path, name)
            if isinstance(command, click.Group):
                yield from walk(command, *path, name)

    found = list(walk(hardened))
    assert len(found) > 20
    for path in found:
        out = io.StringIO()
        call_command("hardened", *path, "--help", stdout=out)
        assert out.getvalue() == call(app, *path, "--help").stdout
