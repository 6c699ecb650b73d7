"""Payloads in a directory: of this machine, or mounted by all."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from celery_hardened.claim_check.contract import ENDED, checked
from celery_hardened.errors import StoreUnavailableError

#: What is written before it gets its name; one whose writer was killed is as old as any payload.
_UNNAMED = ".tmp"


class FilePayloadStore:
    """One file for each payload, in a directory of its own, readable by this user alone (0700, 0600).

    A payload gets its name once all of it is on the disk, so no reader sees half of one.

    What is needed longer than *usual* seconds (see the contract) has a time of modification in the future:
    as much later as it is needed longer. A copy that loses these times is kept for the usual time from then.
    *clock* gives seconds since the epoch, as the file system does.
    """

    def __init__(self, folder: Path, *, usual: float = math.inf, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._usual = usual
        self._clock = clock

    def put(self, name: str, data: bytes, *, max_age: float) -> None:
        if not data:
            raise ValueError("an empty payload would say that its task has ended")
        self._write(name, data, max_age)

    def get(self, name: str, *, most: int) -> bytes | None:
        path = self._path(name)
        with self._answered("reading a payload"):
            try:
                # Not through a link: the directory may be where others can write.
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                if not self._folder.is_dir():
                    raise  # not mounted here, which is another thing than a payload that is gone
                return None
            with os.fdopen(handle, "rb") as file:
                return file.read(most + 1)

    def finish(self, name: str, *, max_age: float) -> None:
        self._write(name, ENDED, max_age)

    def keep(self, name: str, *, max_age: float) -> None:
        path = self._path(name)
        with self._answered("keeping a payload"), suppress(FileNotFoundError):
            self._date(path, max_age)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._answered("removing a payload"):
            path.unlink(missing_ok=True)

    def sweep(self, older_than: float) -> int:
        limit, gone = self._clock() - older_than, 0
        with self._answered("sweeping payloads"), suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if not _is_ours(entry.name):
                    continue
                with suppress(FileNotFoundError):  # another worker sweeps too
                    if entry.stat(follow_symlinks=False).st_mtime < limit:
                        Path(entry.path).unlink()
                        gone += 1
        return gone

    def _write(self, name: str, data: bytes, max_age: float) -> None:
        path = self._path(name)
        unnamed = self._folder / f"{name}.{uuid4().hex}{_UNNAMED}"
        with self._answered("storing a payload"):
            try:
                handle = self._create(unnamed)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    # The message that refers to it may outlive a power cut; so must this.
                    os.fsync(file.fileno())
                if max_age > self._usual:
                    self._date(unnamed, max_age)
                unnamed.replace(path)
            except BaseException:
                with suppress(OSError):
                    unnamed.unlink(missing_ok=True)
                raise
            self._sync_folder()

    def _date(self, path: Path, max_age: float) -> None:
        """It was written now; or as much later as it is needed longer than usual."""
        when = self._clock() + max(0.0, max_age - self._usual)
        os.utime(path, (when, when), follow_symlinks=False)

    def _create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(path, flags, 0o600)

    def _sync_folder(self) -> None:
        handle = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # some network file systems know no sync of a directory
                os.fsync(handle)
        finally:
            os.close(handle)

    def _path(self, name: str) -> Path:
        return self._folder / checked(name)

    @contextmanager
    def _answered(self, operation: str) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise StoreUnavailableError(operation, f"{type(problem).__name__}: {problem}") from problem


def _is_ours(name: str) -> bool:
    head, dot, _ = name.partition(".")
    try:
        checked(head)
    except ValueError:
        return False
    return not dot or name.endswith(_UNNAMED)
