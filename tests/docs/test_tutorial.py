"""The tutorial, done as it says: its file, its commands, its kills."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.pages import text_of
from tests.support.proc import Proc
from tests.support.redis_server import RedisServer
from tests.support.until import until

PAGE = "tutorial/first-hardened-task.md"
TEXT = text_of(PAGE)


def commands(under: str) -> list[str]:
    """The commands of one section, in order."""
    section = TEXT.partition(f"## {under}\n")[2].partition("\n## ")[0]
    return [line[2:] for line in section.splitlines() if line.startswith("$ ")]


def here(command: str) -> list[str]:
    """The words of a command, ``celery`` being this environment's."""
    first, *rest = shlex.split(command)
    assert first == "celery"
    return [sys.executable, "-m", "celery", *rest]


@pytest.mark.integration
@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_tutorial_ends_as_it_says(tmp_path: Path, processes: list[Proc], valkey: RedisServer) -> None:
    """A retry, a mended dead letter, a killed process and a killed worker; every order arrives."""
    found = re.search(r"<!-- file: shop.py -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    shop = found[1]
    for database in (0, 1):
        assert f"redis://127.0.0.1:6399/{database}" in shop
        shop = shop.replace(f"redis://127.0.0.1:6399/{database}", valkey.database())
    (tmp_path / "shop.py").write_text(shop)

    def run(command: str) -> str:
        done = subprocess.run(here(command), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(command: str) -> Iterator[None]:
        """What is to be killed lasts ten seconds, and the end of the command that asked for it takes of them."""
        with subprocess.Popen(here(command), cwd=tmp_path, stdout=subprocess.DEVNULL) as asking:
            yield
        assert asking.returncode == 0, command

    worker = Proc("worker", here(commands("The shop")[0]), cwd=tmp_path, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    processes.append(worker)
    worker.start()

    def logged(pattern: str, *, since: int = 0, within: float = 60) -> re.Match[str]:
        return until(lambda: re.search(pattern, worker.log()[since:]), within=within, what=f"{pattern!r} in the log")

    logged(r"celery_hardened: 3 tasks hardened, 0 contained")
    run(commands("The shop")[1])
    logged(r"shipping order-1(.|\n)*shop\.ship\[.*\] success in")

    run(commands("A fault that passes")[0])
    logged(r"shop\.pay\[.*\] success in")
    assert len(re.findall(r"shop\.pay\[.*\] retry in .* s, again in .* s: ConnectionError$", worker.log(), re.M)) == 2

    call, look, redrive, after, resolved = commands("A fault that stays")
    run(call)
    logged("dead letter .*: shop.invoice permanent")
    assert "ValueError: no IBAN" in run(look)
    assert run(redrive).strip() == "sent 1 of 1 letter"
    logged(r"shop\.invoice\[.*\] success in")
    until(lambda: "shop.invoice" in run(resolved), what="the letter to be resolved")
    assert "shop.invoice" not in run(after)
    assert f"$ {after}\nno letters.\n" in TEXT

    call, kill = commands("Kill the process")
    assert kill == "kill -9 4242"
    with running(call):
        os.kill(int(logged(r"shipping order-4 in process (\d+)")[1]), signal.SIGKILL)
    logged(r"lost its process .*: death 1 of 3, next start in 1\.0 s")
    logged(r"next start in 1\.0 s(.|\n)*shop\.ship\[.*\] success in")

    call, kill, again = commands("Kill the worker")
    assert (kill, again) == ("kill -9 $(cat worker.pid)", commands("The shop")[0])
    with running(call):
        logged("shipping order-5")
        os.kill(int((tmp_path / "worker.pid").read_text()), signal.SIGKILL)
    until(lambda: not worker.running, what="the worker to be dead")
    assert not re.search(r"shipping order-5(.|\n)*shop\.ship\[.*\] success in", worker.log())

    before = len(worker.log())
    worker.start()
    logged("1 messages of workers that are gone were put back", since=before, within=150)
    logged("shipping order-5", since=before)
    logged(r"shop\.ship\[.*\] success in", since=before)
    assert run("celery -A shop hardened dlq list").count("dead") == 0
