"""What is committed: it builds into a whole wheel and says nothing about the machine it was written on."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: Put together here, so that this file does not contain what it forbids.
_HOSTS = [
    f"{host}.{top}"
    for host, top in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("deb.debian", "org"),
        ("security.debian", "org"),
    ]
]
_MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|home|work|tmp|Users)/[\w.-]+")

_BINARY = {".png", ".ico", ".woff2", ".gz"}

PINNED = ["requirements.txt", "requirements-demo.txt", "requirements-example.txt", "requirements-oldest.txt"]


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows, that are there, and that are text."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / line for line in listed.stdout.split("\0") if line]
    return [path for path in paths if path.is_file() and path.suffix not in _BINARY]


def test_wheel_is_whole(tmp_path: Path) -> None:
    """The wheel holds every file of the package, the licence, and nothing else."""
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    package = {str(path.relative_to(ROOT)) for path in tracked("celery_hardened")}

    assert package <= names
    assert {name.split("/")[0] for name in names} == {"celery_hardened", "celery_hardened-0.1.0.dist-info"}
    assert "celery_hardened-0.1.0.dist-info/licenses/LICENSE" in names


@pytest.mark.parametrize("path", PINNED)
def test_pins_are_exact_and_hashed(path: str) -> None:
    """Every requirement is one version with its hashes, and no line names where it comes from."""
    text = (ROOT / path).read_text()
    requirements = [line for line in re.split(r"\n(?! )", text.replace("\\\n", "")) if line]

    assert [line for line in requirements if not re.match(r"[a-z0-9-]+(\[[a-z,]+\])?==\S+", line)] == []
    assert [line for line in requirements if "--hash=sha256:" not in line] == []
    assert re.findall(r"\S*(?:://|--index|--find-links)\S*", text) == []


@pytest.mark.parametrize("part", ["requirements-demo.txt", "requirements-example.txt"])
def test_what_is_shown_is_a_part_of_the_whole(part: str) -> None:
    """The pins of demo and example are among the suite's, so the tested versions are the shown ones."""
    whole, shown = ((ROOT / path).read_text().splitlines() for path in ("requirements.txt", part))

    assert [line for line in shown if "==" in line and line.split(" ;")[0].rstrip(" \\") not in "\n".join(whole)] == []


def test_no_file_names_a_package_index() -> None:
    """Where packages come from is each machine's own setting."""
    found = [
        (str(path.relative_to(ROOT)), host) for path in tracked() for host in _HOSTS if host in path.read_text("utf-8")
    ]

    assert found == []


def test_no_file_names_a_path_of_one_machine() -> None:
    """A path that exists on one machine only is of no use to a reader."""
    found = {str(path.relative_to(ROOT)): _MACHINE_PATH.findall(path.read_text("utf-8")) for path in tracked()}

    assert {path: hits for path, hits in found.items() if hits} == {}
