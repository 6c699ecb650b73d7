"""The example project in itself: its own tests, Django's checks, and the files that say how it is run."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "example_project"


def manage(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``manage.py``, in a process of its own: this one may be another Django project's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EXAMPLE_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT,
        env={**kept, "PYTHONPATH": str(ROOT), "EXAMPLE_FOLDER": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_own_tests_pass(tmp_path: Path) -> None:
    """Orders, imports, pictures and reports do what their pages say, without broker, worker and Redis."""
    done = manage(tmp_path, "test", "--timing")

    assert done.returncode == 0, done.stderr
    assert re.search(r"Ran (\d+) tests", done.stderr), done.stderr


def test_nothing_is_unsafe(tmp_path: Path) -> None:
    """``manage.py check`` has nothing to say."""
    done = manage(tmp_path, "check", "--fail-level", "INFO")

    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_migrations_are_whole(tmp_path: Path) -> None:
    """The models are as the migrations make them."""
    done = manage(tmp_path, "makemigrations", "--check", "--dry-run")

    assert done.returncode == 0, done.stdout


def test_starts_after_the_first_change_nothing(tmp_path: Path) -> None:
    """The first start draws a password and tells it; a later one leaves it, and what was changed in the admin.

    A variable sets another one. No file has any of them in clear.
    """
    first = manage(tmp_path, "prepare")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite3")) as shop, shop:
        shop.execute("UPDATE django_celery_beat_periodictask SET enabled = 0 WHERE name = 'nightly report'")
    again = manage(tmp_path, "prepare")
    given = manage(tmp_path, "prepare", EXAMPLE_ADMIN_PASSWORD="of my own")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite3")) as shop:
        schedules = shop.execute(
            "SELECT name, enabled, missed_run, overlap FROM django_celery_beat_periodictask task "
            "JOIN celery_hardened_schedule_policy ON periodic_task_id = task.id ORDER BY name"
        ).fetchall()

    assert first.returncode == again.returncode == given.returncode == 0, first.stderr + again.stderr + given.stderr
    drawn = re.search(r"admin: user admin, password (\S{12})\n", first.stdout)
    assert drawn, first.stdout
    assert "with the password of the first start" in again.stdout
    assert "of my own" not in given.stdout
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert drawn.group(1).encode() not in kept
    assert b"of my own" not in kept
    assert schedules == [
        ("compare with the gateway", 1, "run_once", "skip"),
        ("nightly report", 0, "run_once", "skip"),
        ("prune the run history", 1, "run_once", "skip"),
    ]


def test_a_folder_is_of_one_database(tmp_path: Path) -> None:
    """Another database gives the same numbers to its orders, and their keys are done: it is refused, or begun anew."""

    def supervise(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EXAMPLE_", "DJANGO_"))}
        code = (
            "import sys; from pathlib import Path; from supervisor.place import Place, PlaceError\n"
            "try: Place(Path(sys.argv[1]), fresh='--fresh' in sys.argv).close()\n"
            "except PlaceError as problem: sys.exit(str(problem))"
        )
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "example"), *options],
            cwd=PROJECT,
            env={**kept, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    theirs = {"EXAMPLE_DATABASE": "postgresql://me:secret@db/shop"}
    assert supervise().returncode == 0
    refused = supervise(**theirs)
    assert refused.returncode == 1
    assert "is about the orders of SQLite, and now the database is db:5432/shop" in refused.stderr
    assert "secret" not in refused.stderr
    assert supervise().returncode == 0, "it is as it was"
    assert supervise("--fresh", **theirs).returncode == 0
    assert supervise(**theirs).returncode == 0
    assert supervise().returncode == 1


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("postgresql://u:p%40ss@db:5433/shop", ["postgresql", "shop", "u", "p@ss", "db", "5433"]),
        ("postgres://db/shop", ["postgresql", "shop", "", "", "db", ""]),
    ],
)
def test_a_postgresql_url_is_read(tmp_path: Path, url: str, wanted: list[str]) -> None:
    """``EXAMPLE_DATABASE`` is what Django needs of it, quoted signs included."""
    code = (
        "from environment import database; d = database(); "
        "print([d['ENGINE'].split('.')[-1], *(d[n] for n in ('NAME', 'USER', 'PASSWORD', 'HOST', 'PORT'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env={**os.environ, "EXAMPLE_DATABASE": url, "EXAMPLE_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(wanted)


def test_every_variable_is_in_the_readme() -> None:
    """What the code reads from the environment, the README tells, and nothing else."""
    read = {
        name
        for path in PROJECT.rglob("*.py")
        for name in re.findall(r"EXAMPLE_[A-Z_]+", path.read_text())
        if name != "EXAMPLE_SEEN_FROM"  # between ./dev and the supervisor
    }
    told = set(re.findall(r"EXAMPLE_[A-Z_]+", (PROJECT / "README.md").read_text()))
    assert told == read


# --- how it is run ---------------------------------------------------------------------------------


def procfile() -> dict[str, str]:
    lines = (PROJECT / "Procfile").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_the_procfile_runs_all_that_is_promised() -> None:
    """Web, two workers that share no queue and leave none out, two beats, the exporter, the gateway."""
    commands = procfile()
    queues = [
        set(found.group(1).split(",")) for c in commands.values() if (found := re.search(r"worker.* -Q (\S+)", c))
    ]

    assert list(commands) == ["release", "gateway", "web", "payments", "general", "beat1", "beat2", "exporter"]
    assert queues == [{"payments"}, {"default", "heavy"}]
    assert sum("beat -S hardened-django" in command for command in commands.values()) == 2


def test_the_compose_file_runs_the_same() -> None:
    """Each process of the Procfile is a service with the same command, but for addresses."""
    compose = yaml.safe_load((PROJECT / "compose.yaml").read_text())
    services = compose["services"]

    def words(command: str) -> list[str]:
        return re.sub(r"[\d.]+:(\$PORT|\d+)", "ADDRESS", command).split()

    for name, command in procfile().items():
        assert words(services[name]["command"]) == words(command), name
    for name, service in services.items():
        assert set(service) <= {
            "image", "build", "command", "environment", "volumes", "ports", "depends_on", "healthcheck", "restart",
            "stop_grace_period",
        }, name  # fmt: skip
        assert ("image" in service) != ("build" in service), name
        assert set(service.get("depends_on", [])) <= set(services), name
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in compose["volumes"], volume
    assert all(services[name]["restart"] == "unless-stopped" for name in procfile() if name != "release")


def test_secrets_of_the_compose_file_are_asked_for() -> None:
    """No password of the admin stands in a file: Compose refuses to start without one."""
    text = (PROJECT / "compose.yaml").read_text()
    for name in ("EXAMPLE_ADMIN_PASSWORD", "EXAMPLE_SECRET_KEY"):
        assert re.findall(rf"{name}: (.*)", text) == [f'"${{{name}:?}}"']
