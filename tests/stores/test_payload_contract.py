"""What every payload store promises, in memory, Redis, a directory, Django's storages and fsspec: one suite."""

from __future__ import annotations

import math
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import fsspec
import pytest
from redis import Redis

from celery_hardened import StoreUnavailableError
from celery_hardened.claim_check.contract import ENDED, PayloadStore, checked
from celery_hardened.claim_check.django import FOLDER, DjangoPayloadStore
from celery_hardened.claim_check.file import FilePayloadStore
from celery_hardened.claim_check.fsspec import FsspecPayloadStore
from celery_hardened.claim_check.memory import InMemoryPayloadStore
from celery_hardened.claim_check.redis import RedisPayloadStore
from tests.support import django_project
from tests.support.ports import free_port
from tests.support.until import until

KINDS = ["memory", "valkey", "redis7", "file", "django", "fsspec-memory", "fsspec-file"]

#: Those that are swept; in Redis each key runs out by itself.
SWEPT = [kind for kind in KINDS if kind not in ("valkey", "redis7")]


@dataclass
class Place:
    """A store, and what a test may do behind its back."""

    store: PayloadStore
    backdate: Callable[[str, float], None]
    """Let everything of a name be older by some seconds."""

    listing: Callable[[], list[str]]
    """Names of everything that lies there."""


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, unique: str, tmp_path: Path) -> Iterator[Place]:
    yield from make_place(request, str(request.param), unique, tmp_path)


@pytest.fixture(params=SWEPT)
def swept(request: pytest.FixtureRequest, unique: str, tmp_path: Path) -> Iterator[Place]:
    yield from make_place(request, str(request.param), unique, tmp_path)


@pytest.fixture(params=SWEPT)
def usually_fifty(request: pytest.FixtureRequest, unique: str, tmp_path: Path) -> Iterator[Place]:
    """A store whose sweep will leave everything there for 50 seconds."""
    yield from make_place(request, str(request.param), unique, tmp_path, usual=50)


@pytest.fixture
def store(place: Place) -> PayloadStore:
    return place.store


def make_place(
    request: pytest.FixtureRequest, kind: str, unique: str, folder: Path, *, usual: float = math.inf
) -> Iterator[Place]:
    if kind == "memory":
        kept: Any = InMemoryPayloadStore(usual=usual)

        def older(name: str, seconds: float) -> None:
            data, since = kept._kept[name]
            kept._kept[name] = (data, since - seconds)

        yield Place(kept, older, lambda: list(kept._kept))
    elif kind in ("valkey", "redis7"):
        client = Redis.from_url(request.getfixturevalue(kind).database())
        yield Place(
            RedisPayloadStore(client, prefix=unique),
            lambda name, seconds: None,
            lambda: [key.decode().rpartition(":")[2] for key in client.scan_iter(f"{unique}:*")],
        )
        client.close()
    elif kind == "file":
        yield Place(FilePayloadStore(folder / "payloads", usual=usual), *on_disk(folder / "payloads"))
    elif kind == "django":
        django_project.configure()
        from django.test import override_settings

        options = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": str(folder)}}
        with override_settings(STORAGES={"payloads": options}):
            yield Place(DjangoPayloadStore("payloads", usual=usual), *on_disk(folder / FOLDER))
    elif kind == "fsspec-file":
        yield Place(FsspecPayloadStore((folder / "payloads").as_uri(), usual=usual), *on_disk(folder / "payloads"))
    else:
        memory = fsspec.filesystem("memory")

        def backdate(name: str, seconds: float) -> None:
            for path in memory.ls(f"/{unique}", detail=False):
                if name in path:
                    written = datetime.now(timezone.utc) - timedelta(seconds=seconds)
                    memory.store[path].created = memory.store[path].modified = written

        def listing() -> list[str]:
            found = memory.ls(f"/{unique}", detail=False) if memory.exists(f"/{unique}") else []
            return [path.rpartition("/")[2] for path in found]

        yield Place(FsspecPayloadStore(f"memory://{unique}", usual=usual), backdate, listing)
        if memory.exists(f"/{unique}"):
            memory.rm(f"/{unique}", recursive=True)


def on_disk(folder: Path) -> tuple[Callable[[str, float], None], Callable[[], list[str]]]:
    def backdate(name: str, seconds: float) -> None:
        for path in folder.glob(f"{name}*"):
            written = time.time() - seconds
            os.utime(path, (written, written))

    return backdate, lambda: [path.name for path in folder.glob("*")]


def new() -> str:
    return uuid.uuid4().hex


# --- put and get --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"x", bytes(range(256)) * 600, b"\0" * 3], ids=["one", "all bytes", "zeros"])
def test_what_was_put_is_got(store: PayloadStore, data: bytes) -> None:
    name = new()
    store.put(name, data, max_age=100)
    assert store.get(name, most=len(data)) == data


def test_nothing_is_known_of_other_names(store: PayloadStore) -> None:
    store.put(new(), b"data", max_age=100)
    assert store.get(new(), most=100) is None


def test_no_more_is_read_than_asked_for(store: PayloadStore) -> None:
    """One byte more tells that it is longer; ten megabytes are not read for a reference that says ten bytes."""
    name = new()
    store.put(name, b"0123456789" * 10_000, max_age=100)
    assert store.get(name, most=10) == b"01234567890"


def test_an_empty_payload_is_refused(store: PayloadStore) -> None:
    """It would say that its task has ended."""
    with pytest.raises(ValueError, match="ended"):
        store.put(new(), b"", max_age=100)


@pytest.mark.parametrize(
    "name",
    ["", "../" + "a" * 29, "a" * 31, "A" * 32, "a" * 32 + "\n", "a" * 31 + "/", "a" * 33, None, 7],
    ids=["none", "path", "short", "capitals", "newline", "slash", "long", "null", "number"],
)
def test_a_forged_name_reaches_nothing(place: Place, name: Any) -> None:
    """Whatever a message says: no path and no foreign key is made of it, by any step."""
    store = place.store
    steps: list[Callable[[], object]] = [
        lambda: store.put(name, b"data", max_age=100),
        lambda: store.get(name, most=10),
        lambda: store.finish(name, max_age=100),
        lambda: store.keep(name, max_age=100),
        lambda: store.delete(name),
    ]
    for step in steps:
        with pytest.raises(ValueError, match="32 hexadecimal digits"):
            step()
    assert place.listing() == []


def test_threads_do_not_disturb_each_other(store: PayloadStore) -> None:
    names = [new() for _ in range(8)]
    threads = [threading.Thread(target=store.put, args=(one, one.encode()), kwargs={"max_age": 100}) for one in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.get(one, most=100) for one in names] == [one.encode() for one in names]


# --- the end ------------------------------------------------------------------------------------------------


def test_a_finished_payload_says_so(place: Place) -> None:
    """The data is gone, and its name tells a message that comes back that its task has ended."""
    name = new()
    place.store.put(name, b"secret" * 1000, max_age=100)
    place.store.finish(name, max_age=100)
    assert place.store.get(name, most=10_000) == ENDED
    assert len(place.listing()) == 1


def test_finishing_is_repeatable(store: PayloadStore) -> None:
    """Also of what was never there, or is gone by age."""
    name = new()
    for _ in range(2):
        store.finish(name, max_age=100)
    assert store.get(name, most=10) == ENDED


def test_a_deleted_payload_is_unknown(place: Place) -> None:
    """With all that lay beside it; a second time changes nothing."""
    first, second = new(), new()
    place.store.put(first, b"data", max_age=100)
    place.store.keep(first, max_age=100)
    place.store.put(second, b"data", max_age=100)
    place.store.finish(second, max_age=100)
    for _ in range(2):
        place.store.delete(first)
        place.store.delete(second)
    assert place.store.get(first, most=10) is None
    assert place.store.get(second, most=10) is None
    assert place.listing() == []


def test_keeping_what_is_not_there_leaves_nothing(place: Place) -> None:
    place.store.keep(new(), max_age=100)
    assert place.listing() == []


# --- age ----------------------------------------------------------------------------------------------------


def test_what_is_too_old_is_swept(swept: Place) -> None:
    old, young = new(), new()
    swept.store.put(old, b"data", max_age=100)
    swept.store.put(young, b"data", max_age=100)
    swept.backdate(old, 60)
    assert swept.store.sweep(50) == 1
    assert swept.store.get(old, most=10) is None
    assert swept.store.get(young, most=10) == b"data"
    assert swept.store.sweep(50) == 0


def test_what_a_dead_letter_keeps_is_young_again(swept: Place) -> None:
    """Twice too: a letter may be redriven and fail once more."""
    name = new()
    swept.store.put(name, b"data", max_age=100)
    for _ in range(2):
        swept.backdate(name, 60)
        swept.store.keep(name, max_age=100)
    assert swept.store.sweep(50) == 0
    assert swept.store.get(name, most=10) == b"data"
    swept.backdate(name, 60)
    assert swept.store.sweep(50) == 1
    assert swept.listing() == []


def test_that_a_task_has_ended_is_forgotten_too(swept: Place) -> None:
    name = new()
    swept.store.put(name, b"data", max_age=100)
    swept.backdate(name, 60)
    swept.store.finish(name, max_age=100)
    assert swept.store.sweep(50) == 0
    assert swept.store.get(name, most=10) == ENDED
    swept.backdate(name, 60)
    assert swept.store.sweep(50) == 1
    assert swept.listing() == []


def test_what_is_needed_longer_is_kept_longer(usually_fifty: Place) -> None:
    """A task that starts in a hundred days, a letter of a year, a key's result: by its own age, not by the others'."""
    place, long, kept, short = usually_fifty, new(), new(), new()
    for name, max_age in ((long, 200), (kept, 50), (short, 10)):
        place.store.put(name, b"data", max_age=max_age)
    place.store.keep(kept, max_age=200)
    later(place, 40)
    assert place.store.sweep(50) == 0
    later(place, 120)
    assert place.store.sweep(50) == 1
    assert [place.store.get(name, most=10) for name in (long, kept, short)] == [b"data", b"data", None]
    later(place, 260)
    assert place.store.sweep(50) == 2
    assert place.listing() == []


def test_a_longer_life_counts_from_the_last_time(usually_fifty: Place) -> None:
    """Kept once more, for a shorter time, it is swept like others; and one that has ended goes in the end."""
    place, again, ended = usually_fifty, new(), new()
    for name in (again, ended):
        place.store.put(name, b"data", max_age=500)
    place.store.keep(again, max_age=50)
    place.store.finish(ended, max_age=50)
    later(place, 120)
    place.store.sweep(50)
    assert place.store.get(again, most=10) is None
    assert place.store.get(ended, most=10) in (ENDED, None)
    later(place, 600)
    place.store.sweep(50)
    assert place.listing() == []


def later(place: Place, seconds: float) -> None:
    """So many seconds after now, as the store sees it."""
    store: Any = place.store
    clock = time.monotonic if isinstance(store, InMemoryPayloadStore) else time.time
    store._clock = lambda: clock() + seconds


def test_an_empty_store_is_swept(swept: Place) -> None:
    """Before the first payload there is no directory."""
    assert swept.store.sweep(0) == 0


@pytest.mark.parametrize("kind", ["file", "django", "fsspec-file"])
def test_foreign_files_are_left_alone(request: pytest.FixtureRequest, unique: str, tmp_path: Path, kind: str) -> None:
    """Whatever else lies in the directory, and however old it is."""
    for place in make_place(request, kind, unique, tmp_path):
        name = new()
        place.store.put(name, b"data", max_age=100)
        folder = next(tmp_path.rglob(name)).parent
        foreign = [folder / "invoice.pdf", folder / f"{new()}.pdf", folder / new()[:30]]
        for path in foreign:
            path.write_bytes(b"theirs")
            os.utime(path, (0, 0))
        assert place.store.sweep(50) == 0
        assert all(path.exists() for path in foreign)


# --- one store's own ----------------------------------------------------------------------------------------


def test_every_redis_key_runs_out(each_redis_url: str, unique: str) -> None:
    client = Redis.from_url(each_redis_url)
    store = RedisPayloadStore(client, prefix=unique)
    name = new()
    key = f"{unique}:payload:{name}"
    store.put(name, b"data", max_age=100)
    assert 90_000 < client.pttl(key) <= 100_000
    store.keep(name, max_age=200)
    assert 190_000 < client.pttl(key) <= 200_000
    store.finish(name, max_age=50)
    assert 40_000 < client.pttl(key) <= 50_000
    store.put(name, b"data", max_age=0.05)
    until(lambda: store.get(name, most=10) is None, within=10, what="the payload to run out")
    client.close()


def test_a_redis_that_is_away_says_so() -> None:
    client = Redis(port=free_port(), socket_timeout=1, socket_connect_timeout=1, retry=None)
    store = RedisPayloadStore(client, prefix="p")
    steps: list[Callable[[], object]] = [
        lambda: store.put(new(), b"data", max_age=1),
        lambda: store.get(new(), most=1),
        lambda: store.finish(new(), max_age=1),
        lambda: store.keep(new(), max_age=1),
        lambda: store.delete(new()),
    ]
    for step in steps:
        with pytest.raises(StoreUnavailableError, match="payload"):
            step()
    client.close()


def test_files_are_this_users_alone(tmp_path: Path) -> None:
    """They hold arguments, which are nobody else's business on a shared machine."""
    previous = os.umask(0)
    try:
        FilePayloadStore(tmp_path / "a" / "payloads").put(name := new(), b"data", max_age=1)
    finally:
        os.umask(previous)
    folder = tmp_path / "a" / "payloads"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Where others can write, one could lead to any file of this user."""
    (tmp_path / "theirs").write_bytes(b"password")
    (tmp_path / (name := new())).symlink_to(tmp_path / "theirs")
    with pytest.raises(StoreUnavailableError):
        FilePayloadStore(tmp_path).get(name, most=100)


def test_half_a_file_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is the store's trouble, and what was written until then is gone; so is, by age, what a
    writer that was killed has left."""
    store = FilePayloadStore(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(StoreUnavailableError, match="No space left"):
            store.put(new(), b"data", max_age=1)
    assert list(tmp_path.iterdir()) == []
    left = tmp_path / f"{new()}.{new()}.tmp"
    left.write_bytes(b"half")
    assert store.sweep(3600) == 0
    os.utime(left, (0, 0))
    assert store.sweep(3600) == 1


def test_a_directory_that_is_not_mounted_is_no_missing_payload(tmp_path: Path) -> None:
    """That would bury every task with large arguments."""
    with pytest.raises(StoreUnavailableError):
        FilePayloadStore(tmp_path / "share").get(new(), most=1)


def test_a_storage_that_fails_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its library raises."""
    store = FsspecPayloadStore(f"memory://{new()}")
    filesystem, _ = store._filesystem()

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("503 slow down")

    for name in ("pipe_file", "cat_file", "rm_file", "ls"):
        monkeypatch.setattr(filesystem, name, refuse)
    steps: list[Callable[[], object]] = [
        lambda: store.put(new(), b"data", max_age=1),
        lambda: store.get(new(), most=1),
        lambda: store.delete(new()),
        lambda: store.sweep(1),
    ]
    for step in steps:
        with pytest.raises(StoreUnavailableError, match="slow down"):
            step()


def test_a_forked_process_makes_its_own_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads and connections of an object store do not survive a fork."""
    store = FsspecPayloadStore(tmp_path.as_uri())
    mine, _ = store._filesystem()
    assert store._filesystem()[0] is mine
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert store._filesystem()[0] is not mine


def test_names() -> None:
    assert checked("0123456789abcdef" * 2)
