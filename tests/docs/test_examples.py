"""Examples of the documentation are run, and its commands are understood.

Python blocks of a page run one after the other in one fresh process; then its
``test_`` functions run as pytest would run them. A block after ``<!-- fragment -->``
is only compiled. Redis at localhost is a private server.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from celery_hardened.cli import hardened
from tests.support.pages import DOCS, ROOT

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

_BLOCK = re.compile(r"(<!-- fragment -->\n)?^( *)```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_LOCALHOST = re.compile(r"redis://localhost(?::6379)?(?:/\d+)?")
_COMMAND = re.compile(r"^(?:\$ )?celery -A \w+ hardened ((?:[^\n\\|]|\\\n)+)", re.MULTILINE)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def examples(page: Path) -> Iterator[tuple[bool, str]]:
    """Whether each Python block is a fragment, and its text, on the lines it has in the page."""
    text = page.read_text(encoding="utf-8")
    for fragment, indent, code in _BLOCK.findall(text):
        yield bool(fragment), re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)


COMPLETE = [page for page in PAGES if any(not fragment for fragment, _ in examples(page))]


@pytest.mark.parametrize("page", COMPLETE, ids=named)
def test_examples_run(page: Path, tmp_path: Path, records_url: str) -> None:
    """Each complete block runs after those before it, and the tests among them pass."""
    code = "\n\n".join(code for fragment, code in examples(page) if not fragment)
    module = tmp_path / "test_page.py"
    module.write_text(_LOCALHOST.sub(records_url, code) + "\n\ndef test_the_page_has_run():\n    pass\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(module)]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_fragments_compile(page: Path) -> None:
    """What is only a part is Python all the same."""
    for _, code in examples(page):
        compile(code, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_are_understood(page: Path) -> None:
    """Every ``celery -A proj hardened ...`` of the page is one the command line takes, with these options."""
    for written in _COMMAND.findall(page.read_text(encoding="utf-8")):
        ours = re.split(r" [>|] ", written.replace("\\\n", " "))[0]  # the rest is the shell's
        words = shlex.split(ours, comments=True)
        if not words or words[0].isupper():
            continue  # a synopsis
        command: click.Command = hardened
        context = click.Context(hardened, info_name="hardened")
        while isinstance(command, click.Group):
            found = command.get_command(context, words[0])
            assert found is not None, f"{written!r}: there is no {words[0]!r}"
            command, words = found, words[1:]
        if not any(set("[{") & set(word) or word.isupper() for word in words if word[:1] != "-"):
            command.make_context(written, words, parent=context)
